"""The choices of an estimation, checked before any work is done."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flatnce.mi.critics import SeparableCritic
from flatnce.mi.critics_base import Critic
from flatnce.mi.critics_gaussian import gaussian_critic
from flatnce.mi.critics_joint import critic_for
from flatnce.mi.critics_scale import BoundedScale
from flatnce.mi.estimator.members import FitSettings
from flatnce.mi.estimator.methods import Method, method_named
from flatnce.mi.estimator.transforms import TRANSFORMS

CRITICS = ("auto", "gaussian", "dot", "cosine", "bilinear", "joint")

CriticChoice = str | Critic | Callable[[], Critic]

Sides = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class Plan:
    """Everything that is chosen beside the data; see :func:`flatnce.mi.estimate`."""

    method: str = "auto"
    critic: CriticChoice = "auto"
    transform: str = "copula"
    folds: int = 1
    batch_size: int | None = None
    steps: int | None = None
    rate: float | None = None
    scale: float = 20.0
    seed: int = 0
    device: str = "auto"
    permutations: int = 1999
    baselines: bool = True
    pool: int = 20_000

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name."""
        method = method_named(self.method)
        if self.transform not in TRANSFORMS:
            raise ValueError(
                f"transform={self.transform!r} is unknown; choose from {', '.join(TRANSFORMS)}"
            )
        if isinstance(self.critic, str) and self.critic not in CRITICS:
            raise ValueError(
                f"critic={self.critic!r} is unknown; choose from {', '.join(CRITICS)}, or pass a "
                "Critic"
            )
        if self.critic == "gaussian" and method.dual is not None:
            raise ValueError(f"critic='gaussian' has no u, which method={self.method!r} learns")
        least = {"batch_size": 2, "steps": 1, "seed": 0, "permutations": 19, "pool": 50}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is None:
                continue
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not whole or value < lowest:
                raise ValueError(f"{name}={value!r}: give a whole number, at least {lowest}")
        for name in ("rate", "scale"):
            value = getattr(self, name)
            if value is not None and not 0 < float(value) < float("inf"):
                raise ValueError(f"{name}={value!r}: give a positive number")
        self.place()

    @property
    def chosen(self) -> Method:
        """The method."""
        return method_named(self.method)

    @property
    def critic_kind(self) -> str:
        """The kind of critic, in words."""
        if not isinstance(self.critic, str):
            return "given"
        return (self.chosen.critic or "none") if self.critic == "auto" else self.critic

    def place(self) -> torch.device:
        """Where to compute."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device={self.device!r} is not available here ({str(error).splitlines()[0]}); "
                "choose auto, cpu or cuda"
            ) from error
        return device

    def settings(self, train_rows: int) -> FitSettings:
        """How to train on so many rows."""
        usual = 256 if train_rows < 100_000 else 1024
        batch = self.batch_size or min(usual, max(train_rows // 2, 2))
        epochs = 3 * train_rows // batch
        steps = self.steps or min(max(3000, epochs), 10_000)
        every = 50 if self.steps is None else max(min(50, steps // 10), 1)
        # Small batches see fewer pairs a step: as many looks, further apart.
        if self.steps is None and batch < 64:
            steps, every = 3 * steps, 3 * every
        chosen = FitSettings(self.chosen, batch, steps, every)
        return (
            chosen
            if self.rate is None
            else FitSettings(self.chosen, batch, steps, every, rate=float(self.rate))
        )

    def new_critic(self, train: Sides, seed: int) -> Critic:
        """A critic to train, its weights drawn by the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if not isinstance(self.critic, str):
                return self._given(self.critic)
            if any(side.ndim > 2 for side in train):
                shapes = " and ".join(str(side.shape[1:]) for side in train)
                raise ValueError(
                    f"samples have shapes {shapes}: for anything but tables pass critic=, for "
                    "example mi.SeparableCritic(network_x, network_y)"
                )
            if self.critic_kind == "gaussian":
                # Correlations from rows that neither gave the directions nor stop the critic.
                x, y = train
                most = len(x) - max(len(x) // 5, min(len(x) // 2, 50))
                return gaussian_critic((x[:most], y[:most]), (x[most:], y[most:]))
            widths = train[0].shape[1], train[1].shape[1]
            critic = critic_for(self.critic_kind, widths, scale=self.scale, dual=self.chosen.dual)
            if isinstance(critic, SeparableCritic) and critic.scale is not None:
                # Through FlatNCE a learned scale climbs to its bound: calibration finds it.
                highest = max(100.0, self.scale)
                critic.scale = BoundedScale(self.scale, highest=highest, learn=False)
            return critic

    def _given(self, critic: Critic | Callable[[], Critic]) -> Critic:
        if isinstance(critic, torch.nn.Module) and not isinstance(critic, Critic):
            raise ValueError(
                f"critic is a {type(critic).__name__}; wrap your modules: "
                "mi.SeparableCritic(network_x, network_y), one network a side"
            )
        made: Any = copy.deepcopy(critic) if isinstance(critic, Critic) else critic()
        if not isinstance(made, Critic):
            raise ValueError(
                f"critic gives a {type(made).__name__}; pass a flatnce.mi Critic, for example "
                "SeparableCritic(network_x, network_y), or a function that makes one"
            )
        if self.chosen.dual is not None and made.dual_head is None:
            raise ValueError(
                f"method={self.method!r} learns u, but the critic has no u-head; pass dual="
            )
        return made
