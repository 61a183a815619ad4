"""Every function in one place: ``from flatnce import functional as F``.

The functions of the objectives are those of the registry.
"""

from typing import TYPE_CHECKING

from flatnce.core.contrast import Contrast, contrast_from_logits, contrast_of, importance_weights
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
from flatnce.core.objectives import losses as objective_functions
from flatnce.core.objectives.losses import cross_entropy
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.core.pairs import (
    Pairs,
    labelled,
    multi_view,
    own_view,
    two_tower,
    two_view,
    with_queue,
)

if TYPE_CHECKING:
    from flatnce.core.objectives.losses import dcl as dcl
    from flatnce.core.objectives.losses import flatnce as flatnce
    from flatnce.core.objectives.losses import flatnce_plus as flatnce_plus
    from flatnce.core.objectives.losses import infonce as infonce

__all__ = [
    "Contrast",
    "Pairs",
    "alignment",
    "contrast_from_logits",
    "contrast_of",
    "cross_entropy",
    "effective_rank",
    "effective_sample_size",
    "gradient_gain",
    "importance_weights",
    "labelled",
    "multi_view",
    "mutual_information",
    "mutual_information_ceiling",
    "own_view",
    "population_ess",
    "retrieval_top1",
    "saturated_share",
    "solve_for_ess",
    "temperature_for_ess",
    "two_tower",
    "two_view",
    "uniformity",
    "with_queue",
]

for _entry in OBJECTIVES.values():
    if _entry.function:
        if _entry.function not in vars(objective_functions):
            raise ImportError(f"{objective_functions.__file__} lacks {_entry.function}")
        globals()[_entry.function] = getattr(objective_functions, _entry.function)
        __all__.append(_entry.function)
