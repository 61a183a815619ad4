"""The registry of bounds, and of the methods that train critics with them.

:data:`METHODS` is derived from the bounds; ``auto`` and the classical estimators are added.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from flatnce.messages import check_choice
from flatnce.mi import bounds

__all__ = ["BOUNDS", "Method", "method_named"]

Promise = Literal["expected", "limit", "none"]

# Maps scores (critics, pairs, pairs), u of the partners (critics, pairs) or None, and a state to
# one loss per critic and the next state.
Loss = Callable[[Tensor, Tensor | None, Any], tuple[Tensor, Any]]

INFORMATION = "mutual information"


@dataclass(frozen=True)
class Method:
    """A way to estimate mutual information.

    Arguments:
        note: One sentence on what it is.
        name: Its name.
        critic: The kind of critic that it trains by default; None for a classical estimator.
        loss: What several critics at once minimise; None for a classical estimator.
        dual: How u is learned: ``free``, ``constrained`` or not at all (None).
        clip: Largest norm of a gradient, for objectives whose gradients have heavy tails.
    """

    note: str
    name: str = ""
    critic: str | None = None
    loss: Loss | None = None
    dual: str | None = None
    clip: float | None = None

    @property
    def classical(self) -> bool:
        """Whether no critic is trained."""
        return self.loss is None


@dataclass(frozen=True)
class Bound:
    """A bound or objective, as a function of a critic's scores.

    Arguments:
        name: Its name.
        promise: ``expected``, ``limit`` or ``none``, see :mod:`flatnce.mi.bounds`.
        value: Function from scores (or row statistics) and what it ``needs`` to the number.
        note: One sentence on what to keep in mind.
        loss: What to minimise; by default minus the value.
        on: What it bounds.
        needs: Names of the required arguments beside the scores.
        reads: ``rows`` (row statistics, which many bounds share), ``scores`` or ``densities``.
        passes: Passes over the scores to compute the value.
        ceiling: Function from the number of columns to the largest possible value, in nats.
        free_of_offset: Whether a c(x) added to the critic changes nothing; else recentre first.
        method: How :func:`flatnce.mi.estimate` trains a critic with it; None if it does not.
    """

    name: str
    promise: Promise
    value: Callable[..., Tensor]
    note: str
    loss: Callable[..., Any] = None  # type: ignore[assignment]
    on: str = INFORMATION
    needs: tuple[str, ...] = ()
    reads: Literal["rows", "scores", "densities"] = "rows"
    passes: int = 1
    ceiling: Callable[[int], float] | None = None
    free_of_offset: bool = False
    method: Method | None = None

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", lambda *given, **more: -self.value(*given, **more))
        if self.method is not None:
            loss = self.method.loss or _per_critic(self.loss)
            object.__setattr__(self, "method", replace(self.method, name=self.name, loss=loss))

    @property
    def is_lower_bound(self) -> bool:
        """Whether its expectation lies below mutual information, for every critic and n."""
        return self.promise == "expected" and self.on == INFORMATION


def _infonce(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """Minus :func:`flatnce.mi.bounds.infonce`, for all critics at once and without its checks."""
    rows = scores.logsumexp(dim=2) - scores.diagonal(dim1=1, dim2=2)
    return rows.mean(dim=1) - math.log(scores.shape[2]), state


def _flatnce(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    """:func:`flatnce.mi.bounds.flatnce_loss`, for all critics at once and without its checks."""
    partner = torch.eye(scores.shape[2], dtype=torch.bool, device=scores.device)
    gap = scores.masked_fill(partner, -torch.inf).logsumexp(2) - scores.diagonal(dim1=1, dim2=2)
    objective, value = gap.mean(dim=1), _infonce(scores.detach(), None, None)[0]
    return objective - objective.detach() + value, state


def _mine(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
    averages = [None] * len(scores) if state is None else state
    results = [bounds.mine_loss(*pair) for pair in zip(scores, averages, strict=True)]
    return torch.stack([loss for loss, _ in results]), [average for _, average in results]


def _per_critic(loss: Callable[..., Tensor]) -> Loss:
    """Apply a loss of one critic's scores (and u, if any) to each critic in turn."""

    def loss_of_all(scores: Tensor, duals: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        inputs = zip(scores) if duals is None else zip(scores, duals, strict=True)
        return torch.stack([loss(*one) for one in inputs]), state

    return loss_of_all


def _tuba(scores: Tensor, dual: Tensor) -> Tensor:
    # The constraint is u = −g + s(x): s, the log baseline, is u plus the partner's score.
    return -bounds.tuba(scores, dual + scores.diagonal())


_BOUNDS = (
    Bound(
        "infonce",
        "expected",
        bounds.infonce,
        "Low variance; near log K it only says that there is at least as much.",
        ceiling=math.log,
        free_of_offset=True,
        method=Method("InfoNCE on a product of perceptrons.", critic="dot", loss=_infonce),
    ),
    Bound(
        "flatnce",
        "limit",
        bounds.flatnce,
        "Biased upward and unbounded in the critic's scale; read its critic through another.",
        bounds.flatnce_loss,
        free_of_offset=True,
        method=Method(
            "FlatNCE on a cosine of bounded scale: keeps learning in small batches.",
            critic="cosine",
            loss=_flatnce,
        ),
    ),
    Bound(
        "holder-flatnce",
        "none",
        bounds.holder_flatnce,
        "Like FlatNCE; below a power of 1 not even its limit is a bound.",
        bounds.holder_flatnce_loss,
        on="for powers of 1 and more, mutual information in the limit",
        needs=("power",),
        reads="scores",
        passes=2,
        free_of_offset=True,
        method=Method(
            "FlatNCE of power 2.",
            critic="cosine",
            loss=_per_critic(lambda scores: bounds.holder_flatnce_loss(scores, 2.0)),
        ),
    ),
    Bound(
        "dv",
        "limit",
        bounds.donsker_varadhan,
        "High variance; the logarithm of a sample mean is biased upward.",
        method=Method("Donsker–Varadhan.", critic="dot", clip=5.0),
    ),
    Bound(
        "mine",
        "limit",
        bounds.donsker_varadhan,
        "Donsker–Varadhan's value; the loss takes and returns a moving average.",
        bounds.mine_loss,
        method=Method(
            "Donsker–Varadhan with a moving average.", critic="dot", loss=_mine, clip=5.0
        ),
    ),
    Bound(
        "nwj",
        "expected",
        bounds.nwj,
        "High variance; collapses on a critic with the wrong scale.",
        method=Method("Nguyen–Wainwright–Jordan.", critic="dot", clip=5.0),
    ),
    Bound(
        "tuba",
        "expected",
        bounds.tuba,
        "The baseline must not depend on these y's.",
        needs=("log_baseline",),
        method=Method(
            "NWJ with a learned baseline a(x).",
            critic="dot",
            loss=_per_critic(_tuba),
            dual="constrained",
            clip=5.0,
        ),
    ),
    Bound(
        "tuba-alpha",
        "expected",
        bounds.interpolated,
        "Never above log((c − 1)/alpha) with c columns; alpha trades bias for variance.",
        needs=("log_baseline", "alpha"),
        reads="scores",
    ),
    Bound(
        "ba",
        "expected",
        bounds.barber_agakov,
        "Needs a normalised model of y given x and the exact density or entropy of Y.",
        needs=("log_conditional", "log_marginal or entropy"),
        reads="densities",
        passes=0,
    ),
    Bound(
        "flo",
        "expected",
        bounds.flo,
        "One pass of the critic and one of u; u must not depend on these negatives.",
        needs=("dual",),
        # A c(x) cancels in score differences, and a u that is learned separately stays right.
        free_of_offset=True,
        method=Method(
            "Fenchel–Legendre with a learned u(x, y).", critic="dot", dual="free", clip=5.0
        ),
    ),
    Bound(
        "flo-cross-fitted",
        "expected",
        bounds.cross_fitted_flo,
        "A second pass, over the pool; never above 1 + log(k + 1) with k y's in the pool.",
        needs=("pool",),
        passes=2,
        free_of_offset=True,
    ),
    Bound(
        "js",
        "expected",
        bounds.jensen_shannon,
        "Not mutual information: read the critic through InfoNCE or NWJ.",
        bounds.jensen_shannon_loss,
        on="the Jensen–Shannon divergence of p(x, y) from p(x)p(y)",
        reads="scores",
        ceiling=lambda columns: math.log(2),
        method=Method("Jensen–Shannon.", critic="dot"),
    ),
    Bound(
        "smile",
        "none",
        bounds.smile,
        "Clipping lifts the value above the truth; wrong by any amount with an offset c(x).",
        bounds.smile_loss,
        on="an estimate with an unknown bias of either sign",
        reads="scores",
        passes=2,
        method=Method("Trained as Jensen–Shannon.", critic="dot"),
    ),
)

_METHODS = (
    Method(
        "InfoNCE on a critic that starts from the best Gaussian one.",
        "auto",
        critic="gaussian",
        loss=_infonce,
    ),
    *(bound.method for bound in _BOUNDS if bound.method is not None),
    Method("Nearest neighbours (Kraskov, algorithm 1).", "ksg"),
    Method("Canonical correlations, bias removed: Gaussian dependence only.", "cca"),
    Method("Correlations of normal scores, bias removed.", "gaussian-copula"),
)

BOUNDS: Mapping[str, Bound] = MappingProxyType({bound.name: bound for bound in _BOUNDS})
"""Every bound and objective, by name."""

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _METHODS})
"""Every method of :func:`flatnce.mi.estimate`, by name."""


def bound_named(name: str) -> Bound:
    """Look up an entry of :data:`BOUNDS`, for example ``infonce``."""
    check_choice("name", name, BOUNDS)
    return BOUNDS[name]


def method_named(name: str) -> Method:
    """Look up an entry of :data:`METHODS`."""
    check_choice("method", name, METHODS)
    return METHODS[name]
