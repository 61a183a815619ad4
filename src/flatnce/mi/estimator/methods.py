"""The ways to train a critic, by name: objective, default critic, and whether it learns a u."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from flatnce.mi import bounds, bounds_losses
from flatnce.mi.bounds_registry import BOUNDS

__all__ = ["method_named", "refuse_classical"]

Loss = Callable[[Tensor, Tensor | None, Any], tuple[Tensor, Any]]
"""From scores (critics, pairs, pairs), u of the partners (critics, pairs) or None, and a state
to what each critic minimises and the next state."""


@dataclass(frozen=True)
class Method:
    """A way to get a number.

    Arguments:
        name: Its name.
        note: What it is, in a sentence.
        critic: The kind of critic it trains by default; None for a classical estimator.
        loss: What critics that train side by side minimise, see :data:`Loss`.
        dual: How u is learned: ``free``, ``constrained`` or not at all.
        clip: Largest norm of a gradient, for objectives whose gradients have heavy tails.
    """

    name: str
    note: str
    critic: str | None = None
    loss: Loss | None = None
    dual: str | None = None
    clip: float | None = None

    @property
    def classical(self) -> bool:
        """Whether no critic is trained."""
        return self.loss is None


def _each(loss: Callable[[Tensor, Tensor | None], Tensor]) -> Loss:
    """A loss of one critic's scores and u, for each critic in turn."""

    def of_all(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        given: Any = [None] * len(scores) if duals is None else duals
        return torch.stack([loss(*pair) for pair in zip(scores, given, strict=True)]), state

    return of_all


def _plain(loss: Callable[[Tensor], Tensor]) -> Loss:
    return _each(lambda scores, _: loss(scores))


def _infonce(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """Minus :func:`flatnce.mi.bounds.infonce`, for all critics at once and without its checks."""
    rows = scores.logsumexp(dim=2) - scores.diagonal(dim1=1, dim2=2)
    return rows.mean(dim=1) - math.log(scores.shape[2]), state


def _flatnce(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """:func:`flatnce.mi.bounds_losses.flatnce_loss`, for all critics at once."""
    own = torch.eye(scores.shape[2], dtype=torch.bool, device=scores.device)
    gap = scores.masked_fill(own, -torch.inf).logsumexp(2) - scores.diagonal(dim1=1, dim2=2)
    objective, shown = gap.mean(dim=1), _infonce(scores.detach(), None, None)[0]
    return objective - objective.detach() + shown, state


def _mine(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    averages = [None] * len(scores) if state is None else state
    found = [bounds_losses.mine_loss(*pair) for pair in zip(scores, averages, strict=True)]
    return torch.stack([loss for loss, _ in found]), [average.detach() for _, average in found]


def _flo(scores: Tensor, dual: Tensor | None) -> Tensor:
    assert dual is not None
    return -bounds.flo(scores, dual)


def _tuba(scores: Tensor, dual: Tensor | None) -> Tensor:
    assert dual is not None
    # The constraint is u = −g + s(x), so that s, the log baseline, is u plus the partner's score.
    return -bounds.tuba(scores, dual + scores.diagonal())


def _holder(scores: Tensor) -> Tensor:
    return bounds_losses.holder_flatnce_loss(scores, 2.0)


_ALL = (
    Method(
        "auto",
        "InfoNCE on a critic that starts from the best Gaussian one.",
        "gaussian",
        _infonce,
    ),
    Method("infonce", "InfoNCE on a product of perceptrons.", "dot", _infonce),
    Method(
        "flatnce",
        "FlatNCE on a cosine of bounded scale: keeps learning in small batches.",
        "cosine",
        _flatnce,
    ),
    Method("holder-flatnce", "FlatNCE of power 2.", "cosine", _plain(_holder)),
    Method("dv", "Donsker–Varadhan.", "dot", _plain(BOUNDS["dv"].loss), clip=5.0),
    Method("mine", "Donsker–Varadhan with a moving average.", "dot", _mine, clip=5.0),
    Method("nwj", "Nguyen–Wainwright–Jordan.", "dot", _plain(BOUNDS["nwj"].loss), clip=5.0),
    Method(
        "tuba", "NWJ with a learned baseline a(x).", "dot", _each(_tuba), "constrained", clip=5.0
    ),
    Method(
        "flo", "Fenchel–Legendre with a learned u(x, y).", "dot", _each(_flo), "free", clip=5.0
    ),
    Method("js", "Jensen–Shannon.", "dot", _plain(bounds_losses.jensen_shannon_loss)),
    Method("smile", "Trained as Jensen–Shannon.", "dot", _plain(bounds_losses.smile_loss)),
    Method("ksg", "Nearest neighbours (Kraskov, algorithm 1)."),
    Method("cca", "Canonical correlations, bias removed: Gaussian dependence only."),
    Method("gaussian-copula", "Correlations of normal scores, bias removed."),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})
"""Every method, by name."""

CLASSICAL: tuple[str, ...] = tuple(name for name, method in METHODS.items() if method.classical)


def method_named(name: str) -> Method:
    """An entry of :data:`METHODS`, or an error with the nearest name."""
    if name in METHODS:
        return METHODS[name]
    near = get_close_matches(str(name), METHODS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"method={name!r} is unknown; {hint}choose from {', '.join(METHODS)}")


def refuse_classical(name: str, purpose: str) -> None:
    """An error where a study needs limits and p-values, which classical methods do not give."""
    if method_named(name).classical:
        raise ValueError(
            f"method={name!r} gives no limits and p-values, which {purpose} needs; use "
            "method='auto', or call the classical function directly"
        )
