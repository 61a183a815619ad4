"""Fine-tuning: the whole network and a new classifier, from pretrained or from random weights.

The supervised baseline is the same function with ``start="scratch"``: the same architecture,
images, crops, flips, optimizer and epochs; only the initial weights differ.

References:
    The paper, "Transfer Learning via Fine-Tuning" (its "Adam with Nesterov momentum" is NAdam,
    its rate 5e-5) and "Semi-supervised Learning Supervised Baselines".
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatnce.pretrain.data import FolderSet, ImageSet, Resident, Streaming, Views
from flatnce.pretrain.evaluation.features import (
    Features,
    conversion,
    device_of,
    frozen,
    image_batches,
    to_channels,
)
from flatnce.pretrain.evaluation.probe import (
    VALIDATION,
    Probe,
    can_hold_out,
    check_training,
    choose,
    classification_loss,
    goodness,
    validation_split,
)

OPTIMIZERS = ("nadam", "adam", "sgd")
STARTS = ("pretrained", "scratch")
# Up to so many bytes, images of files are decoded once and kept on the device.
LARGEST_KEPT = 4 * 2**30


@dataclass(frozen=True)
class FinetuneConfig:
    """How the whole network is trained on labelled images.

    Arguments:
        size: Side of a crop, in pixels.
        resize: Length of the shorter side of a test image before its centre is cut; ``size`` by
            default. Files are decoded to it for training too.
        mean: Mean to normalise with; that of the pretrained network.
        std: Standard deviation to normalise with.
        channels: Channels that the network takes; by default those of the images.
        epochs: Passes over the training images.
        batch_size: Images per step; all of them if there are fewer.
        optimizer: ``nadam``, ``adam`` or ``sgd`` (Nesterov); momentum 0.9.
        rates: Learning rates; of several, one is chosen on held-out training images. If no class
            has two images, the first is used.
        weight_decay: Weight decay of all parameters.
        crop_least: Least share of the area that a random crop takes.
        flip: Probability of mirroring.
        validation: Share of the training images held out to choose a rate on.
        workers: Processes that decode files; by default one per core.
    """

    size: int
    resize: int | None = None
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.25
    channels: int | None = None
    epochs: int = 100
    batch_size: int = 512
    optimizer: str = "nadam"
    rates: tuple[float, ...] = (5e-5,)
    weight_decay: float = 0.0
    crop_least: float = 0.08
    flip: float = 0.5
    validation: float = VALIDATION
    workers: int | None = None

    def __post_init__(self) -> None:
        """Check the settings; the views check sizes and crops."""
        check_training(self.epochs, self.batch_size, self.rates)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer={self.optimizer!r} is unknown; take one of {', '.join(OPTIMIZERS)}"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay={self.weight_decay} must be at least 0")


@dataclass(frozen=True)
class FinetuneProgress:
    """The state of fine-tuning after an epoch.

    Arguments:
        rate: The learning rate of this training.
        choosing: Whether this training only serves to choose the rate.
        epoch: Epochs done.
        epochs: Epochs in all.
        loss: Mean training loss of the last epoch.
        seconds: Seconds since this training began.
    """

    rate: float
    choosing: bool
    epoch: int
    epochs: int
    loss: float
    seconds: float

    def __str__(self) -> str:
        """One line."""
        what = "trying rate" if self.choosing else "rate"
        left = self.seconds / self.epoch * (self.epochs - self.epoch)
        return (
            f"epoch {self.epoch} of {self.epochs}, {what} {self.rate:g}, loss {self.loss:.3f}, "
            f"{left:.0f} s left"
        )


def finetune(
    backbone: nn.Module,
    train_set: ImageSet | FolderSet,
    test_set: ImageSet | FolderSet,
    config: FinetuneConfig,
    *,
    seed: int = 0,
    start: str = "pretrained",
    fresh: Callable[[], nn.Module] | None = None,
    report: Callable[[FinetuneProgress], None] | None = None,
) -> Probe:
    """Train a copy of the whole network with a linear classifier, then classify the test images.

    The backbone itself does not change. Training uses random resized crops and flips, without
    colour changes; the test images are resized and cut to their centre, and classified in
    evaluation mode. The labels of the test images are not used.

    Arguments:
        backbone: Images to features, with an attribute ``width``.
        train_set: The labelled images.
        test_set: The images to classify.
        config: The settings.
        seed: Seed of the classifier, the order, the crops, the held-out draw and, from scratch,
            of the network.
        start: ``pretrained``, from the backbone's weights; ``scratch``, from random ones.
        fresh: Builds the same architecture with random weights, for ``scratch``. Without it the
            weights of a copy are drawn again.
        report: Called after every epoch.
    """
    if start not in STARTS:
        raise ValueError(f"start={start!r} is unknown; take one of {', '.join(STARTS)}")
    job = _Job(backbone, config, seed, start, fresh, report, device_of(backbone))
    files = isinstance(train_set, FolderSet)
    train_set = _prepared(train_set, config, job.device)
    rate, how = job.choose_rate(train_set)
    protocol = {**_described(config, train_set, seed, start), **how, "rate": rate}
    protocol["precision"] = "bfloat16 (autocast)" if job.lower else "float32"
    if files:
        protocol["crops_from"] = f"centre square of {config.resize or config.size}"
    return Probe(job.classify(job.train(train_set, rate), test_set), protocol)


@dataclass(frozen=True)
class _Job:
    """What every training of one fine-tuning shares."""

    backbone: nn.Module
    config: FinetuneConfig
    seed: int
    start: str
    fresh: Callable[[], nn.Module] | None
    report: Callable[[FinetuneProgress], None] | None
    device: torch.device

    def choose_rate(self, train_set: ImageSet | FolderSet) -> tuple[float, dict[str, Any]]:
        """The learning rate, and how it was chosen if there are several."""
        rates, seed = self.config.rates, self.seed
        if len(rates) == 1:
            return rates[0], {}
        if not can_hold_out(train_set.labels):
            why = (
                "nothing: no class has two labelled images, so none could be held out, and the "
                f"first of the rates {rates} was taken"
            )
            return rates[0], {"chosen_on": why}
        rest, held = validation_split(train_set.labels, self.config.validation, seed)
        part, aside = train_set.subset(rest), train_set.subset(held)

        def score(rate: float) -> tuple[float, float]:
            scores = self.classify(self.train(part, rate, choosing=True), aside)
            return goodness(scores, Features(scores, aside.labels.to(self.device), aside.classes))

        return choose("rate", rates, score, held, seed)

    def train(
        self, train_set: ImageSet | FolderSet, rate: float, *, choosing: bool = False
    ) -> nn.Module:
        """A trained network with a classifier. One number per epoch is read from the device."""
        config, device = self.config, self.device
        with _seeded(self.seed, device):
            model = self._model(len(train_set.classes))
            loader, views = _loader(train_set, config, self.seed, device), self._views()
            optimizer = _optimizer(model, config, rate)
            channels = config.channels or train_set.shape[0]
            began = time.perf_counter()
            model.train()
            for epoch in range(config.epochs):
                total = torch.zeros((), device=device)
                for indices, images, labels in loader.epoch(epoch):
                    crops = views(to_channels(images, channels), indices, epoch, views=1)[0]
                    optimizer.zero_grad()
                    loss = classification_loss(self._scores(model, crops), labels)
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
                if self.report is not None:
                    seconds = time.perf_counter() - began
                    done, most = epoch + 1, config.epochs
                    self.report(FinetuneProgress(rate, choosing, done, most, mean, seconds))
        return model

    def classify(
        self, model: nn.Module, image_set: ImageSet | FolderSet
    ) -> Float64[Tensor, "n k"]:
        """Scores of every image's centre, in evaluation mode."""
        config = self.config
        prepare = Views.evaluation(config.size, config.resize, mean=config.mean, std=config.std)
        channels, side = config.channels or image_set.shape[0], config.resize or config.size
        batches = image_batches(image_set, config.batch_size, self.device, side, config.workers)
        with frozen(model), torch.no_grad():
            parts = [
                self._scores(model, prepare(to_channels(images, channels))) for images in batches
            ]
        return torch.cat(parts).to(torch.float64)

    @property
    def lower(self) -> bool:
        """Whether the network computes in bfloat16, as in pretraining: on CUDA."""
        return self.device.type == "cuda"

    def _scores(self, model: nn.Module, images: Tensor) -> Float[Tensor, "n k"]:
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.lower):
            scores: Tensor = model(images)
        return scores.float()

    def _model(self, classes: int) -> nn.Module:
        if self.start == "scratch":
            network = redrawn(self.backbone, self.fresh).to(self.device)
        else:
            network = copy.deepcopy(self.backbone)
        width: Any = network.width
        model = nn.Sequential(network, nn.Linear(width, classes).to(self.device))
        return model.requires_grad_(True)

    def _views(self) -> Views:
        config = self.config
        return Views.finetune(
            config.size,
            seed=self.seed,
            crop=(config.crop_least, 1.0),
            flip=config.flip,
            mean=config.mean,
            std=config.std,
        )


def _loader(
    train_set: ImageSet | FolderSet, config: FinetuneConfig, seed: int, device: torch.device
) -> Resident | Streaming:
    n = len(train_set)
    batch = min(config.batch_size, n)
    # Batch norm cannot normalise a last batch of one image.
    single = n > 1 and n % batch == 1
    if isinstance(train_set, ImageSet):
        return Resident(train_set, batch, seed, drop_last=single)
    workers = config.workers
    return Streaming(train_set, batch, seed, drop_last=single, workers=workers, device=device)


def _optimizer(model: nn.Module, config: FinetuneConfig, rate: float) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **options)
    kind = torch.optim.NAdam if config.optimizer == "nadam" else torch.optim.Adam
    return kind(model.parameters(), betas=(0.9, 0.999), **options)


def _prepared(
    image_set: ImageSet | FolderSet, config: FinetuneConfig, device: torch.device
) -> ImageSet | FolderSet:
    """Decode files once if they are few enough: every epoch needs them."""
    if isinstance(image_set, FolderSet):
        side = config.resize or config.size
        if len(image_set) * 3 * side * side > LARGEST_KEPT:
            return image_set.resized(side)
        image_set = image_set.resized(side).decoded()
    return image_set.to(device)


def _described(
    config: FinetuneConfig, train_set: ImageSet | FolderSet, seed: int, start: str
) -> dict[str, Any]:
    trained_by = ("epochs", "optimizer", "weight_decay", "crop_least", "flip")
    channels = train_set.shape[0]
    return {
        "classifier": "linear, and the whole network under it",
        "start": start,
        **{name: getattr(config, name) for name in trained_by},
        "batch_size": min(config.batch_size, len(train_set)),
        "augmentation": "random resized crops and flips",
        "seed": seed,
        "fitted_on": len(train_set),
        "images": {
            "size": config.size,
            "resize": config.resize or config.size,
            "mean": config.mean,
            "std": config.std,
            "channels": conversion(channels, config.channels or channels),
        },
    }


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators inside the block and restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def redrawn(backbone: nn.Module, fresh: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A network of the same architecture with random weights.

    Convolutions are initialised as in ResNets (He et al., normal, fan-out), other layers by their
    ``reset_parameters``. A parameter that no layer initialises, such as the position embedding of
    a vision transformer, is an error; ``fresh`` is the remedy.

    Arguments:
        backbone: The network.
        fresh: Builds it instead; the parameters must have the same names and shapes.

    Examples:
        >>> from flatnce.pretrain.models import backbone
        >>> network = backbone("small", channels=1)
        >>> other = redrawn(network)
        >>> bool((other.layers[0].weight == network.layers[0].weight).any()), other.width
        (False, 128)
    """
    if fresh is not None:
        network = fresh()
        built, wanted = _shapes(network), _shapes(backbone)
        if built != wanted:
            differing = sorted(set(built.items()) ^ set(wanted.items()))[0][0]
            raise ValueError(
                f"fresh builds another architecture than the backbone's: {differing} differs; "
                "build it with the same settings"
            )
        return network
    network = copy.deepcopy(backbone)
    done: set[str] = set()
    for path, part in network.named_modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.LayerNorm | nn.GroupNorm | nn.Embedding | _NormBase):
            part.reset_parameters()
        else:
            continue
        done |= {f"{path}.{name}" if path else name for name, _ in part.named_parameters()}
    kept = [name for name, _ in network.named_parameters() if name not in done]
    if kept:
        raise ValueError(
            f"backbone={type(backbone).__name__}: {kept[0]} and {len(kept) - 1} more parameters "
            "cannot be drawn anew; pass fresh, a function that builds the network"
        )
    return network


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in network.named_parameters()}
