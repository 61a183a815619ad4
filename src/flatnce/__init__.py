"""Contrastive learning that keeps learning once InfoNCE's gradient has died.

The few names a training script needs. They are imported when first touched (PEP 562), so that
``import flatnce`` and ``flatnce --help`` do not pay for torch. Everything else lives in the
modules, see ``flatnce.functional`` for the pure functions under the classes.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce import functional as functional
    from flatnce import mi as mi
    from flatnce import pretrain as pretrain
    from flatnce.core.control import EssController as EssController
    from flatnce.core.diagnostics import Monitor as Monitor
    from flatnce.core.objectives import DCL as DCL
    from flatnce.core.objectives import FlatNCE as FlatNCE
    from flatnce.core.objectives import FlatNCEPlus as FlatNCEPlus
    from flatnce.core.objectives import HolderFlatNCE as HolderFlatNCE
    from flatnce.core.objectives import InfoNCE as InfoNCE
    from flatnce.core.objectives import LearnedTemperature as LearnedTemperature
    from flatnce.core.pairs import KeyQueue as KeyQueue
    from flatnce.diagnose import doctor as doctor

__version__ = "0.1.0"

_OBJECTIVES = "flatnce.core.objectives"

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "FlatNCE": _OBJECTIVES,
        "InfoNCE": _OBJECTIVES,
        "DCL": _OBJECTIVES,
        "HolderFlatNCE": _OBJECTIVES,
        "FlatNCEPlus": _OBJECTIVES,
        "Monitor": "flatnce.core.diagnostics",
        "EssController": "flatnce.core.control",
        "KeyQueue": "flatnce.core.pairs",
        "LearnedTemperature": _OBJECTIVES,
        "doctor": "flatnce.diagnose",
        "functional": "flatnce.functional",
        "mi": "flatnce.mi",
        "pretrain": "flatnce.pretrain",
    },
)
__all__ += ["__version__"]
