"""Is it working? Effective sample size, saturation, geometry, a monitor and a verdict."""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.core.diagnostics.geometry import alignment, effective_rank, uniformity
    from flatnce.core.diagnostics.measures import (
        effective_sample_size,
        gradient_gain,
        mutual_information,
        mutual_information_ceiling,
        population_ess,
        retrieval_top1,
        saturated_share,
        temperature_for_ess,
    )
    from flatnce.core.diagnostics.monitor import Interval, Monitor, Snapshot
    from flatnce.core.diagnostics.pool import best_scale, pool_information
    from flatnce.core.diagnostics.verdict import Verdict, verdict_on

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
