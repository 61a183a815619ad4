"""Every bound and objective by name: what it promises, what it needs, what it costs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from flatnce.mi import bounds, bounds_entrywise, bounds_losses
from flatnce.mi.blocks import Rows

__all__ = ["BOUNDS"]

Promise = Literal["expected", "limit", "none"]

INFORMATION = "mutual information"


@dataclass(frozen=True)
class Bound:
    """One way to read or to train a critic.

    Arguments:
        name: Its name.
        promise: ``expected``: the mean over samples lies below the truth for every critic and n;
            ``limit``: the large-sample limit does, a sample's value is biased up; ``none``.
        on: What it bounds, or what it is.
        value: The number, from scores (or row statistics, see ``reads``) and what it ``needs``.
        loss: What to minimise; minus the value where nothing else is said.
        needs: Names of the arguments without a default beside the scores.
        reads: ``rows``: row statistics, which many bounds share; ``scores``: every score, in a
            pass of its own; ``densities``: no scores.
        passes: Passes over the scores for the value.
        ceiling: The most it can say with c columns, in nats; None where there is no such limit.
        free_of_offset: Whether a c(x) added to the critic leaves it alone; else recentre first.
        note: What to bear in mind, in a sentence.
    """

    name: str
    promise: Promise
    on: str
    value: Callable[..., Tensor]
    loss: Callable[..., Any]
    note: str
    needs: tuple[str, ...] = ()
    reads: Literal["rows", "scores", "densities"] = "rows"
    passes: int = 1
    ceiling: Callable[[int], float] | None = None
    free_of_offset: bool = False

    @property
    def is_lower_bound(self) -> bool:
        """Whether its expectation lies below mutual information, for every critic and n."""
        return self.promise == "expected" and self.on == INFORMATION


def _minus(value: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def loss(*arguments: Any, **options: Any) -> Tensor:
        return -value(*arguments, **options)

    loss.__doc__ = f"Minus :func:`{value.__name__}`."
    return loss


def _holder(rows: Rows, power: float, reduction: str = "mean") -> Tensor:
    return bounds.flatnce(bounds_entrywise.holder_statistics(rows, power), reduction)


_ALL = (
    Bound(
        "dv",
        "limit",
        INFORMATION,
        bounds.donsker_varadhan,
        _minus(bounds.donsker_varadhan),
        "High variance; the logarithm of a sample's mean is biased up.",
    ),
    Bound(
        "mine",
        "limit",
        INFORMATION,
        bounds.donsker_varadhan,
        bounds_losses.mine_loss,
        "Donsker–Varadhan's value; the loss keeps a moving average and returns it.",
    ),
    Bound(
        "nwj",
        "expected",
        INFORMATION,
        bounds.nwj,
        _minus(bounds.nwj),
        "High variance; collapses on a critic whose scale is off.",
    ),
    Bound(
        "tuba",
        "expected",
        INFORMATION,
        bounds.tuba,
        _minus(bounds.tuba),
        "The baseline must not depend on these y's.",
        needs=("log_baseline",),
    ),
    Bound(
        "tuba-alpha",
        "expected",
        INFORMATION,
        bounds_entrywise.interpolated,
        _minus(bounds_entrywise.interpolated),
        "Never above log((c − 1)/alpha) with c columns; alpha trades bias for variance.",
        needs=("log_baseline", "alpha"),
        reads="scores",
    ),
    Bound(
        "ba",
        "expected",
        INFORMATION,
        bounds.barber_agakov,
        _minus(bounds.barber_agakov),
        "Needs a normalised model of y given x and the exact density or entropy of Y.",
        needs=("log_conditional", "log_marginal or entropy"),
        reads="densities",
        passes=0,
    ),
    Bound(
        "infonce",
        "expected",
        INFORMATION,
        bounds.infonce,
        _minus(bounds.infonce),
        "Low variance; near log K it says only that there is at least as much.",
        ceiling=math.log,
        free_of_offset=True,
    ),
    Bound(
        "flatnce",
        "limit",
        INFORMATION,
        bounds.flatnce,
        bounds_losses.flatnce_loss,
        "Biased up and unbounded in the critic's scale; read its critic through another.",
        free_of_offset=True,
    ),
    Bound(
        "holder-flatnce",
        "none",
        "for powers of 1 and more, mutual information in the limit",
        _holder,
        bounds_losses.holder_flatnce_loss,
        "As FlatNCE; below a power of 1 not even its limit is a bound.",
        needs=("power",),
        reads="scores",
        passes=2,
        free_of_offset=True,
    ),
    Bound(
        "flo",
        "expected",
        INFORMATION,
        bounds.flo,
        _minus(bounds.flo),
        "One pass of the critic and one of u; u must not depend on these negatives.",
        needs=("dual",),
        # A c(x) leaves the scores' differences alone; a u that is learned apart stays right too.
        free_of_offset=True,
    ),
    Bound(
        "flo-cross-fitted",
        "expected",
        INFORMATION,
        bounds.cross_fitted_flo,
        _minus(bounds.cross_fitted_flo),
        "A second pass, over the pool; never above 1 + log(k + 1) with k y's in the pool.",
        needs=("pool",),
        passes=2,
        free_of_offset=True,
    ),
    Bound(
        "js",
        "expected",
        "the Jensen–Shannon divergence of p(x, y) from p(x)p(y)",
        bounds_entrywise.jensen_shannon,
        bounds_losses.jensen_shannon_loss,
        "Not mutual information: read the critic through InfoNCE or NWJ.",
        reads="scores",
        ceiling=lambda columns: math.log(2),
    ),
    Bound(
        "smile",
        "none",
        "an estimate with an unknown bias of either sign",
        bounds_entrywise.smile,
        bounds_losses.smile_loss,
        "Clipping lifts the value above the truth; wrong by any amount with an offset c(x).",
        reads="scores",
        passes=2,
    ),
)

BOUNDS: Mapping[str, Bound] = MappingProxyType({entry.name: entry for entry in _ALL})
"""Every bound and objective, by name."""


def bound_named(name: str) -> Bound:
    """An entry of :data:`BOUNDS`, or an error with the nearest names.

    Arguments:
        name: For example ``infonce``.

    Examples:
        >>> bound_named("nwj").is_lower_bound, bound_named("smile").is_lower_bound
        (True, False)
    """
    if name in BOUNDS:
        return BOUNDS[name]
    near = get_close_matches(name, BOUNDS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"bound {name!r} is unknown; {hint}choose from {', '.join(BOUNDS)}")
