"""Fine-tuning: the whole network and a new classifier, from pretrained or from random weights.

After the paper, "Transfer Learning via Fine-Tuning" (its "Adam with Nesterov momentum" is NAdam)
and "Semi-supervised Learning Supervised Baselines".
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flatnce.pretrain.data import Views
from flatnce.pretrain.data.own_set import AnySet, loader_of
from flatnce.pretrain.evaluation.features import device_of, extract, to_channels
from flatnce.pretrain.evaluation.options import VALIDATION
from flatnce.pretrain.evaluation.probe import Probe, check_training, choose
from flatnce.pretrain.models import width_of

FEW = 128  # images that are read without worker processes


@dataclass(frozen=True)
class FinetuneConfig:
    """How the whole network is trained on labelled images."""

    size: int  #: Side of a crop, in pixels.
    #: Length of the shorter side of a test image before its centre is cut; ``size`` by default.
    resize: int | None = None
    mean: float | tuple[float, ...] = 0.5  #: Mean to normalise with, as in pretraining.
    std: float | tuple[float, ...] = 0.25  #: Standard deviation to normalise with.
    channels: int | None = None  #: Channels of the network; by default those of the images.
    epochs: int = 100  #: Passes over the training images.
    batch_size: int = 512  #: Images per step; all of them if there are fewer.
    #: Learning rates; of several, one is chosen on held-out training images. If no class has two
    #: images, the first is used.
    rates: tuple[float, ...] = (5e-5,)
    crop_least: float = 0.08  #: Least share of the area that a random crop takes.
    flip: float = 0.5  #: Probability of mirroring.
    validation: float = VALIDATION  #: Share of the training images held out to choose a rate on.
    workers: int | None = None  #: Processes that decode files; by default one per core.

    def __post_init__(self) -> None:
        check_training(self.epochs, self.batch_size, self.rates)


def finetune(
    backbone: nn.Module,
    train_set: AnySet,
    test_set: AnySet,
    config: FinetuneConfig,
    *,
    seed: int = 0,
    fresh: Callable[[], nn.Module] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Probe:
    """Train a copy of the whole network with a linear classifier, then classify the test images.

    The backbone itself does not change. Training uses random resized crops of the whole images
    and flips, without colour changes; the test images are resized and cut to their centre, and
    classified in evaluation mode. The labels of the test images are not used.

    Arguments:
        backbone: Images to features, with an attribute ``width``.
        train_set: The labelled images.
        test_set: The images to classify.
        config: The settings.
        seed: Seed of the classifier, the order, the crops, the held-out draw and, from scratch,
            of the network.
        fresh: Builds the same architecture with random weights, to start from these instead of
            the backbone's.
        report: Called with a line after every epoch.
    """
    start = fresh or (lambda: copy.deepcopy(backbone))
    job = _Job(start, config, seed, report, device_of(backbone))
    rate, how = job.choose_rate(train_set)
    protocol: dict[str, Any] = {
        "classifier": "linear, and the whole network under it",
        "start": "pretrained" if fresh is None else "scratch",
        "epochs": config.epochs,
        "optimizer": "nadam",
        "weight_decay": 0.0,
        "crop_least": config.crop_least,
        "flip": config.flip,
        "batch_size": min(config.batch_size, len(train_set)),
        "augmentation": "random resized crops and flips",
        "seed": seed,
        "fitted_on": len(train_set),
        **how,
        "precision": "bfloat16 (autocast)" if _is_lowered(job.device) else "float32",
    }
    return Probe(job.classify(job.train(train_set, rate), test_set), protocol)


def _is_lowered(device: torch.device) -> bool:
    """Whether the network computes in bfloat16, as in pretraining: on CUDA."""
    return device.type == "cuda"


class _Finetuned(nn.Sequential):
    """A network and its classifier; scores are float32."""

    def forward(self, images: Tensor) -> Tensor:
        """One score per image and class."""
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, _is_lowered(images.device)):
            scores: Tensor = super().forward(images)
        return scores.float()


@dataclass(frozen=True)
class _Job:
    """What every training of one fine-tuning shares."""

    start: Callable[[], nn.Module]  # makes the network to train
    config: FinetuneConfig
    seed: int
    report: Callable[[str], None]
    device: torch.device

    def choose_rate(self, train_set: AnySet) -> tuple[float, dict[str, Any]]:
        """The learning rate, and how it was chosen if there are several."""
        rates, seed = self.config.rates, self.seed
        if len(rates) > 1 and int(torch.bincount(train_set.labels).max()) < 2:
            why = f"nothing: none could be held out, and the first of the rates {rates} was taken"
            return rates[0], {"chosen_on": why, "rate": rates[0]}

        def score(part: AnySet, aside: AnySet) -> Iterator[Tensor]:
            for rate in rates:
                yield self.classify(self.train(part, rate, choosing=True), aside)

        return choose("rate", rates, train_set, self.config.validation, seed, score)

    def train(self, train_set: AnySet, rate: float, *, choosing: bool = False) -> nn.Module:
        """A trained network with a classifier. One number per epoch is read from the device."""
        config, device = self.config, self.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            network = self.start()
            classifier = nn.Linear(width_of(network), len(train_set.classes))
            model = _Finetuned(network, classifier).to(device).requires_grad_(True)
            batch = min(config.batch_size, len(train_set))
            # Batch norm cannot normalise a last batch of one image.
            single = 1 < len(train_set) and len(train_set) % batch == 1
            look: dict[str, Any] = dict.fromkeys(("jitter", "grayscale", "blur"), 0.0)
            look |= {name: getattr(config, name) for name in ("flip", "mean", "std")}
            views = Views(config.size, seed=self.seed, crop=(config.crop_least, 1.0), **look)
            options: dict[str, Any] = {"views": views, "number": 1, "drop_last": single}
            # Worker processes are started in every epoch, which takes longer than to read a few.
            workers = 0 if len(train_set) <= FEW else config.workers
            options |= {"device": device, "workers": workers}
            loader = loader_of(train_set, batch, self.seed, **options)
            optimizer = torch.optim.NAdam(model.parameters(), lr=rate)
            channels = config.channels or train_set.shape[0]
            began = time.perf_counter()
            model.train()
            for epoch in range(config.epochs):
                total = torch.zeros((), device=device)
                for indices, images, labels in loader.epoch(epoch):
                    crops = views(to_channels(images, channels), indices, epoch, views=1)[0]
                    optimizer.zero_grad()
                    loss = cross_entropy(model(crops), labels)
                    loss.backward()
                    optimizer.step()
                    total += loss.detach()
                mean = float(total) / len(loader)
                if not math.isfinite(mean):
                    if choosing:
                        break  # its scores are NaN, so it is not chosen
                    raise ValueError(
                        f"rate={rate:g}: the loss is {mean} after {epoch + 1} epochs; lower it"
                    )
                left = (time.perf_counter() - began) * (config.epochs / (epoch + 1) - 1)
                self.report(
                    f"epoch {epoch + 1} of {config.epochs}, {'trying ' if choosing else ''}rate "
                    f"{rate:g}, loss {mean:.3f}, {left:.0f} s left"
                )
        return model

    def classify(self, model: nn.Module, image_set: AnySet) -> Float64[Tensor, "n k"]:
        """Scores of every image's centre, in evaluation mode."""
        asked = ("size", "resize", "mean", "std", "channels", "batch_size", "workers")
        how = {name: getattr(self.config, name) for name in asked}
        return extract(model, image_set, **how).features.to(torch.float64)
