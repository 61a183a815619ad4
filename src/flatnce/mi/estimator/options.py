"""The options of an estimation, checked before any work is done, and the critic they give."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flatnce.mi.critics import BoundedScale, Critic, SeparableCritic, critic_for
from flatnce.mi.estimator.cleaning import TRANSFORMS
from flatnce.mi.estimator.fitting import FitSettings
from flatnce.mi.gaussian_critic import gaussian_critic
from flatnce.mi.registry import Method, method_named

CRITICS = ("auto", "gaussian", "dot", "cosine", "bilinear", "joint")

CriticChoice = str | Critic | Callable[[], Critic]

LEAST = {"batch_size": 2, "steps": 1, "seed": 0, "permutations": 19, "pool": 50}
"""Smallest value of each option that is a whole number."""


@dataclass(frozen=True)
class EstimationOptions:
    """The arguments of :class:`flatnce.mi.MutualInformation`, except ``blocks``."""

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
        for name, least in LEAST.items():
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and (not whole or value < least):
                raise ValueError(f"{name}={value!r}: give a whole number, at least {least}")
        for name in ("rate", "scale"):
            value = getattr(self, name)
            if value is not None and not 0 < float(value) < float("inf"):
                raise ValueError(f"{name}={value!r}: give a positive number")
        self.torch_device()

    @property
    def chosen_method(self) -> Method:
        """The entry of the registry."""
        return method_named(self.method)

    @property
    def critic_kind(self) -> str:
        """The kind of critic, as it is recorded in the settings."""
        if not isinstance(self.critic, str):
            return "given"
        return (self.chosen_method.critic or "none") if self.critic == "auto" else self.critic

    def torch_device(self) -> torch.device:
        """Return the device to compute on."""
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

    def fit_settings(self, train_rows: int) -> FitSettings:
        """Return the training settings for this many rows."""
        usual = 256 if train_rows < 100_000 else 1024
        batch = self.batch_size or min(usual, max(train_rows // 2, 2))
        three_epochs = 3 * train_rows // batch
        steps = self.steps or min(max(3000, three_epochs), 10_000)
        every = 50 if self.steps is None else max(min(50, steps // 10), 1)
        # Small batches see fewer pairs per step: take more steps, with as many evaluations.
        if self.steps is None and batch < 64:
            steps, every = 3 * steps, 3 * every
        rate = FitSettings.rate if self.rate is None else float(self.rate)
        return FitSettings(self.chosen_method, batch, steps, every, rate=rate)

    def new_critic(self, x: NDArray[np.float32], y: NDArray[np.float32], seed: int) -> Critic:
        """Make a critic for these training rows, with weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if not isinstance(self.critic, str):
                return self._given_critic(self.critic)
            if max(x.ndim, y.ndim) > 2:
                raise ValueError(
                    f"samples have shapes {x.shape[1:]} and {y.shape[1:]}: for anything but "
                    "tables pass critic=, for example mi.SeparableCritic(network_x, network_y)"
                )
            if self.critic_kind == "gaussian":
                # Correlations come from rows that neither gave the directions nor stop training.
                most = len(x) - max(len(x) // 5, min(len(x) // 2, 50))
                return gaussian_critic((x[:most], y[:most]), (x[most:], y[most:]))
            widths = x.shape[1], y.shape[1]
            dual = self.chosen_method.dual
            critic = critic_for(self.critic_kind, widths, scale=self.scale, dual=dual)
            if isinstance(critic, SeparableCritic) and critic.scale is not None:
                # FlatNCE would raise a learned scale to its bound; calibration finds it instead.
                highest = max(100.0, self.scale)
                critic.scale = BoundedScale(self.scale, highest=highest, learn=False)
            return critic

    def _given_critic(self, critic: Critic | Callable[[], Critic]) -> Critic:
        if isinstance(critic, torch.nn.Module) and not isinstance(critic, Critic):
            raise ValueError(
                f"critic is a {type(critic).__name__}; wrap your modules: "
                "mi.SeparableCritic(network_x, network_y), one network per side"
            )
        made: Any = copy.deepcopy(critic) if isinstance(critic, Critic) else critic()
        if not isinstance(made, Critic):
            raise ValueError(
                f"critic gives a {type(made).__name__}; pass a flatnce.mi Critic, for example "
                "SeparableCritic(network_x, network_y), or a function that makes one"
            )
        if self.chosen_method.dual is not None and made.dual_head is None:
            raise ValueError(
                f"method={self.method!r} learns u, but the critic has no u-head; pass dual="
            )
        return made
