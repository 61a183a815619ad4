"""Effective sample size, saturation, geometry, a monitor and a verdict."""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.core.diagnostics.geometry import alignment as alignment
    from flatnce.core.diagnostics.geometry import effective_rank as effective_rank
    from flatnce.core.diagnostics.geometry import uniformity as uniformity
    from flatnce.core.diagnostics.measures import effective_sample_size as effective_sample_size
    from flatnce.core.diagnostics.measures import gradient_gain as gradient_gain
    from flatnce.core.diagnostics.measures import mutual_information as mutual_information
    from flatnce.core.diagnostics.measures import (
        mutual_information_ceiling as mutual_information_ceiling,
    )
    from flatnce.core.diagnostics.measures import population_ess as population_ess
    from flatnce.core.diagnostics.measures import retrieval_top1 as retrieval_top1
    from flatnce.core.diagnostics.measures import saturated_share as saturated_share
    from flatnce.core.diagnostics.measures import temperature_for_ess as temperature_for_ess
    from flatnce.core.diagnostics.monitor import Interval as Interval
    from flatnce.core.diagnostics.monitor import Monitor as Monitor
    from flatnce.core.diagnostics.monitor import Snapshot as Snapshot
    from flatnce.core.diagnostics.pool import best_scale as best_scale
    from flatnce.core.diagnostics.pool import pool_information as pool_information
    from flatnce.core.diagnostics.verdict import Verdict as Verdict
    from flatnce.core.diagnostics.verdict import verdict_on as verdict_on

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
