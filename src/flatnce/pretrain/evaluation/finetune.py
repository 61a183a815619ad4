"""Settings of fine-tuning, every number checked once, and what it reports on the way."""

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
    choose,
    classification_loss,
    goodness,
    validation_split,
)

__all__ = []

OPTIMIZERS = ("nadam", "adam", "sgd")


@dataclass(frozen=True)
class FinetuneConfig:
    """How the whole network is trained on labelled images.

    Arguments:
        size: Side of a crop, in pixels.
        resize: What the shorter side of a test image is resized to before its centre is cut;
            ``size`` by default. Files are decoded to it for training too.
        mean: To normalise with; of the pretrained network.
        std: Likewise.
        channels: What the network takes; by default what the images have.
        epochs: Passes over the training images.
        batch_size: Images of a step; all of them where there are fewer.
        optimizer: ``nadam``, ``adam`` or ``sgd`` (Nesterov); momentum 0.9.
        rates: Learning rates; of several, one is chosen on held-out training images. Where
            no class has two images to hold one out of, the first is taken.
        weight_decay: Of all parameters.
        crop_least: Least share of the area that a random crop takes.
        flip: Probability of mirroring.
        validation: Share of the training images held out to choose a rate on.
        workers: Processes that decode files; by default one a core.
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
        """Check the settings; sizes and crops are checked by the views."""
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer={self.optimizer!r} is unknown; take one of {', '.join(OPTIMIZERS)}"
            )
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates={self.rates} must be positive numbers, one or more")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay={self.weight_decay} must be at least 0")


@dataclass(frozen=True)
class FinetuneProgress:
    """Where fine-tuning is.

    Arguments:
        rate: The learning rate of this training, one of those to choose from or the chosen one.
        choosing: Whether it is on the way to the choice.
        epoch: Epochs done.
        epochs: Of how many.
        loss: Mean training loss of the last one.
        seconds: Since this training began.
    """

    rate: float
    choosing: bool
    epoch: int
    epochs: int
    loss: float
    seconds: float

    def __str__(self) -> str:
        """A line for a person."""
        what = "trying rate" if self.choosing else "rate"
        left = self.seconds / self.epoch * (self.epochs - self.epoch)
        return (
            f"epoch {self.epoch} of {self.epochs}, {what} {self.rate:g}, loss {self.loss:.3f}, "
            f"{left:.0f} s left"
        )


def redrawn(backbone: nn.Module, fresh: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A network of the same architecture whose weights know nothing.

    Convolutions of the copy draw as ResNets do (He et al., normal, fan-out), other layers by
    their ``reset_parameters``; running statistics start again. A parameter that no layer draws,
    such as a vision transformer's position embedding, would keep what it has learned: that is an
    error, and ``fresh`` the remedy.

    Arguments:
        backbone: What to copy.
        fresh: Builds it anew instead; what it builds must have the same parameters.

    Examples:
        >>> from flatnce.pretrain.models import backbone
        >>> network = backbone("small", channels=1)
        >>> other = redrawn(network)
        >>> bool((other.layers[0].weight == network.layers[0].weight).any()), other.width
        (False, 128)
    """
    if fresh is not None:
        network = fresh()
        found, wanted = _shapes(network), _shapes(backbone)
        if found != wanted:
            differing = sorted(set(found.items()) ^ set(wanted.items()))[0][0]
            raise ValueError(
                f"fresh builds another architecture than the backbone's: {differing} differs; "
                "build it with the same settings"
            )
        return network
    network = copy.deepcopy(backbone)
    drawn: set[str] = set()
    for path, part in network.named_modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.LayerNorm | nn.GroupNorm | nn.Embedding | _NormBase):
            part.reset_parameters()
        else:
            continue
        drawn |= {f"{path}.{name}" if path else name for name, _ in part.named_parameters()}
    kept = [name for name, _ in network.named_parameters() if name not in drawn]
    if kept:
        raise ValueError(
            f"backbone={type(backbone).__name__}: {kept[0]} and {len(kept) - 1} more parameters "
            "cannot be drawn anew; pass fresh, a function that builds the network"
        )
    return network


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in network.named_parameters()}


STARTS = ("pretrained", "scratch")
# Sets of files that are decoded once and kept on the device, in bytes.
HELD = 4 * 2**30


Report = Callable[[FinetuneProgress], None]


def finetune(
    backbone: nn.Module,
    train_set: ImageSet | FolderSet,
    test_set: ImageSet | FolderSet,
    config: FinetuneConfig,
    *,
    seed: int = 0,
    start: str = "pretrained",
    fresh: Callable[[], nn.Module] | None = None,
    report: Report | None = None,
) -> Probe:
    """Train a copy of the whole network with a linear classifier, then classify the test images.

    The backbone itself is left as it is. Training sees random resized crops and flips, no colour
    changes; the test images their resized centre, by a network in evaluation mode. The labels of
    the test images are not looked at.

    Arguments:
        backbone: Images to features, with an attribute ``width``.
        train_set: The labelled images.
        test_set: The images to classify.
        config: How.
        seed: Of the classifier, the order, the crops, the held-out draw and, from scratch, of
            the network.
        start: ``pretrained``, from the backbone's weights; ``scratch``, from random ones.
        fresh: Builds the same architecture anew, for ``scratch``. Without it the layers of a
            copy draw their weights again, where every layer knows how to.
        report: Called after every epoch.
    """
    if start not in STARTS:
        raise ValueError(f"start={start!r} is unknown; take one of {', '.join(STARTS)}")
    job = _Job(backbone, config, seed, start, fresh, report, device_of(backbone))
    files = isinstance(train_set, FolderSet)
    train_set = _held(train_set, config, job.device)
    rate, how = _rate(job, train_set)
    protocol = {**_described(config, train_set, seed, start), **how, "rate": rate}
    protocol["precision"] = "bfloat16 (autocast)" if job.lower else "float32"
    if files:
        protocol["crops_from"] = f"centre square of {config.resize or config.size}"
    return Probe(job.classify(job.train(train_set, rate), test_set), protocol)


def _rate(job: "_Job", train_set: ImageSet | FolderSet) -> tuple[float, dict[str, Any]]:
    """The learning rate, and how it was chosen where there are several."""
    rates, seed = job.config.rates, job.seed
    if len(rates) == 1:
        return rates[0], {}
    if not can_hold_out(train_set.labels):
        why = (
            "nothing: no class has two labelled images, so none could be held out, and the first "
            f"of the rates {rates} was taken"
        )
        return rates[0], {"chosen_on": why}
    rest, held = validation_split(train_set.labels, job.config.validation, seed)
    part, aside = train_set.subset(rest), train_set.subset(held)

    def score(rate: float) -> tuple[float, float]:
        scores = job.classify(job.train(part, rate, choosing=True), aside)
        return goodness(scores, Features(scores, aside.labels.to(job.device), aside.classes))

    choice = choose("rate", rates, score, held, seed)
    return choice.value, choice.protocol


@dataclass(frozen=True)
class _Job:
    """What every training of one fine-tuning shares."""

    backbone: nn.Module
    config: FinetuneConfig
    seed: int
    start: str
    fresh: Callable[[], nn.Module] | None
    report: Report | None
    device: torch.device

    def train(
        self, train_set: ImageSet | FolderSet, rate: float, *, choosing: bool = False
    ) -> nn.Module:
        """A network and a classifier on top, trained. The host reads one number an epoch."""
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
                        break  # its scores will say so, and it will not be chosen
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
        """Scores of every image's centre, by the network in evaluation mode."""
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
        """Whether the network computes in bfloat16, as it did in pretraining: on CUDA."""
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
    # A last batch of one image has no statistics for a batch norm to normalise by.
    lonely = n > 1 and n % batch == 1
    if isinstance(train_set, ImageSet):
        return Resident(train_set, batch, seed, drop_last=lonely)
    workers = config.workers
    return Streaming(train_set, batch, seed, drop_last=lonely, workers=workers, device=device)


def _optimizer(model: nn.Module, config: FinetuneConfig, rate: float) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **options)
    kind = torch.optim.NAdam if config.optimizer == "nadam" else torch.optim.Adam
    return kind(model.parameters(), betas=(0.9, 0.999), **options)


def _held(
    image_set: ImageSet | FolderSet, config: FinetuneConfig, device: torch.device
) -> ImageSet | FolderSet:
    """Files decoded once, where they are few enough: they are wanted in every epoch."""
    if isinstance(image_set, FolderSet):
        side = config.resize or config.size
        if len(image_set) * 3 * side * side > HELD:
            return image_set.resized(side)
        image_set = image_set.resized(side).decoded()
    return image_set.to(device)


def _described(
    config: FinetuneConfig, train_set: ImageSet | FolderSet, seed: int, start: str
) -> dict[str, Any]:
    trained_by = ("epochs", "optimizer", "weight_decay", "crop_least", "flip")
    found = train_set.shape[0]
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
            "channels": conversion(found, config.channels or found),
        },
    }


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's generators at a seed inside, as they were after."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
