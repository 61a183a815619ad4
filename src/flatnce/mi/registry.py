"""The registry of bounds, and of the methods that train critics with them.

The bounds are described in ``bounds.toml``. :data:`METHODS` is derived from them; ``auto`` and the
classical estimators are added.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from flatnce.messages import check_choice
from flatnce.mi import bounds
from flatnce.toml_files import read_entries

__all__ = ["BOUNDS"]

# Maps scores (critics, pairs, pairs), u of the partners (critics, pairs) or None, and a state to
# one loss per critic and the next state.
Loss = Callable[[Tensor, Tensor | None, Any], tuple[Tensor, Any]]

INFORMATION = "mutual information"


@dataclass(frozen=True)
class Method:
    """A way to estimate mutual information."""

    name: str  #: its name
    note: str  #: one sentence on what it is
    critic: str | None = None  #: kind of critic trained by default; None for a classical estimator
    loss: Loss | None = None  #: what several critics at once minimise; None if it is classical
    dual: str | None = None  #: how u is learned: ``free``, ``constrained`` or not at all (None)
    clip: float | None = None  #: largest norm of a gradient, where gradients have heavy tails

    @property
    def classical(self) -> bool:
        """Whether no critic is trained."""
        return self.loss is None


@dataclass(frozen=True)
class Bound:
    """A bound or objective, as a function of a critic's scores."""

    name: str  #: its name
    promise: Literal["expected", "limit", "none"]  #: see :mod:`flatnce.mi.bounds`
    value: Callable[..., Tensor]  #: the number, from scores (or row statistics) and ``needs``
    note: str  #: one sentence on what to keep in mind
    loss: Callable[..., Any]  #: what to minimise: minus the value, or a loss of its own
    on: str = INFORMATION  #: what it bounds
    needs: tuple[str, ...] = ()  #: names of the required arguments beside the scores
    #: ``rows`` (row statistics, which many bounds share), ``scores`` or ``densities``
    reads: Literal["rows", "scores", "densities"] = "rows"
    passes: int = 1  #: passes over the scores to compute the value
    ceiling: Callable[[int], float] | None = None  #: largest value in nats, by number of columns
    free_of_offset: bool = False  #: a c(x) added to the critic changes nothing; else recentre
    method: Method | None = None  #: how :func:`flatnce.mi.estimate` trains a critic with it

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


# Losses of several critics at once; other bounds apply their own loss to each critic in turn.
_LOSSES: Mapping[str, Loss] = {
    "infonce": _infonce,
    "flatnce": _flatnce,
    "holder-flatnce": _per_critic(lambda scores: bounds.holder_flatnce_loss(scores, 2.0)),
    "mine": _mine,
    # The constraint is u = −g + s(x): s, the log baseline, is u plus the partner's score.
    "tuba": _per_critic(lambda scores, u: -bounds.tuba(scores, u + scores.diagonal())),
}
_CEILINGS: Mapping[str, Callable[[int], float]] = {
    "log c": math.log,
    "log 2": lambda columns: math.log(2),
}


def _bound(name: str, **entry: Any) -> Bound:
    value: Callable[..., Tensor] = getattr(bounds, entry.pop("value"))
    loss: Callable[..., Any] = lambda *given, **more: -value(*given, **more)  # noqa: E731
    if "loss" in entry:
        loss = getattr(bounds, entry.pop("loss"))
    made = dict(entry, name=name, value=value, loss=loss, needs=tuple(entry.get("needs", ())))
    if "ceiling" in entry:
        made["ceiling"] = _CEILINGS[entry["ceiling"]]
    if "method" in entry:
        of_all = _LOSSES.get(name) or _per_critic(loss)
        made["method"] = Method(name=name, loss=of_all, **entry["method"])
    return Bound(**made)


BOUNDS: Mapping[str, Bound] = MappingProxyType(read_entries(__file__, "bounds.toml", _bound))
"""Every bound and objective, by name."""

_METHODS = (
    Method(
        "auto", "InfoNCE on a critic that starts from the best Gaussian one.", "gaussian", _infonce
    ),
    *(bound.method for bound in BOUNDS.values() if bound.method is not None),
    Method("ksg", "Nearest neighbours (Kraskov, algorithm 1)."),
    Method("cca", "Canonical correlations, bias removed: Gaussian dependence only."),
    Method("gaussian-copula", "Correlations of normal scores, bias removed."),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _METHODS})
"""Every method of :func:`flatnce.mi.estimate`, by name."""


def method_named(name: str) -> Method:
    """Look up an entry of :data:`METHODS`."""
    check_choice("method", name, METHODS)
    return METHODS[name]
