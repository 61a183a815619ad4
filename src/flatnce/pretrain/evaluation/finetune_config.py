"""Settings of fine-tuning, every number checked once, and what it reports on the way."""

import math
from dataclasses import dataclass

from flatnce.pretrain.evaluation.probe import VALIDATION

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
