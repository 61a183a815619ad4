"""The functions of the core, for ``from flatnce import functional as F``."""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.core.contrast import Contrast as Contrast
    from flatnce.core.contrast import contrast_from_logits as contrast_from_logits
    from flatnce.core.contrast import contrast_of as contrast_of
    from flatnce.core.contrast import importance_weights as importance_weights
    from flatnce.core.control import solve_for_ess as solve_for_ess
    from flatnce.core.diagnostics import alignment as alignment
    from flatnce.core.diagnostics import effective_rank as effective_rank
    from flatnce.core.diagnostics import effective_sample_size as effective_sample_size
    from flatnce.core.diagnostics import gradient_gain as gradient_gain
    from flatnce.core.diagnostics import mutual_information as mutual_information
    from flatnce.core.diagnostics import mutual_information_ceiling as mutual_information_ceiling
    from flatnce.core.diagnostics import population_ess as population_ess
    from flatnce.core.diagnostics import retrieval_top1 as retrieval_top1
    from flatnce.core.diagnostics import saturated_share as saturated_share
    from flatnce.core.diagnostics import temperature_for_ess as temperature_for_ess
    from flatnce.core.diagnostics import uniformity as uniformity
    from flatnce.core.objectives.losses import cross_entropy as cross_entropy
    from flatnce.core.objectives.losses import dcl as dcl
    from flatnce.core.objectives.losses import flatnce as flatnce
    from flatnce.core.objectives.losses import flatnce_plus as flatnce_plus
    from flatnce.core.objectives.losses import infonce as infonce
    from flatnce.core.pairs import Pairs as Pairs
    from flatnce.core.pairs import labelled as labelled
    from flatnce.core.pairs import multi_view as multi_view
    from flatnce.core.pairs import own_view as own_view
    from flatnce.core.pairs import two_tower as two_tower
    from flatnce.core.pairs import two_view as two_view
    from flatnce.core.pairs import with_queue as with_queue

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
