"""What goes into training and what comes out of it."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from flatnce.mi.critics_base import Critic
from flatnce.mi.estimator.methods import Method


@dataclass(frozen=True)
class Progress:
    """Where training stands.

    Arguments:
        fold: Of the critic that is reported, from 0.
        folds: How many there are.
        step: Steps taken.
        steps: Most steps there will be; it stops early where nothing more is gained.
        train: InfoNCE on the last batch, in nats.
        validation: InfoNCE on validation rows at the best scale, in nats.
    """

    fold: int
    folds: int
    step: int
    steps: int
    train: float
    validation: float


@dataclass(frozen=True)
class FitSettings:
    """How critics are trained.

    Arguments:
        method: What is minimised.
        batch_size: Pairs in a batch.
        steps: Most steps.
        every: Steps between looks at the validation rows.
        patience: Looks without a gain before it stops.
        rate: Adam's step size.
        average: Weight of the past in the running mean of weights, which is what is read.
    """

    method: Method
    batch_size: int
    steps: int = 3000
    every: int = 50
    patience: int = 10
    rate: float = 5e-4
    average: float = 0.99


@dataclass(frozen=True)
class Member:
    """One critic to be trained, with its rows."""

    critic: Critic
    x: Tensor
    y: Tensor
    x_validation: Tensor
    y_validation: Tensor
    seed: int


@dataclass
class Fitted:
    """A trained critic: the weights of its best look, and how it came there.

    Arguments:
        critic: In evaluation mode.
        scale: What its scores are multiplied by, chosen on validation rows.
        validation: InfoNCE there, at that scale.
        step: When the weights were taken.
        diverged: Whether training broke down; the weights are from before.
        history: One record a look.
    """

    critic: Critic
    scale: float = 1.0
    validation: float = -math.inf
    step: int = 0
    diverged: bool = False
    history: list[dict[str, float | int]] = field(default_factory=list)
