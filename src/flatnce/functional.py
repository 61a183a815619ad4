"""Every function in one place: ``from flatnce import functional as F``."""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.core.contrast import (
        Contrast,
        contrast_from_logits,
        contrast_of,
        importance_weights,
    )
    from flatnce.core.control import solve_for_ess
    from flatnce.core.diagnostics import (
        alignment,
        effective_rank,
        effective_sample_size,
        gradient_gain,
        mutual_information,
        mutual_information_ceiling,
        population_ess,
        retrieval_top1,
        saturated_share,
        temperature_for_ess,
        uniformity,
    )
    from flatnce.core.objectives.losses import cross_entropy, dcl, flatnce, flatnce_plus, infonce
    from flatnce.core.pairs import (
        Pairs,
        labelled,
        multi_view,
        own_view,
        two_tower,
        two_view,
        with_queue,
    )

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
