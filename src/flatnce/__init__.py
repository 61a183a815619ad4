"""Contrastive losses whose gradient does not vanish when InfoNCE's does, and their diagnostics.

This package exports the names that a training script needs. They are imported on first access
(PEP 562), so that ``import flatnce`` and ``flatnce --help`` do not import torch. The functions
that the classes call are in ``flatnce.functional``.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce import functional as functional
    from flatnce import integrations as integrations
    from flatnce import mi as mi
    from flatnce import pretrain as pretrain
    from flatnce.core.control import EssController as EssController
    from flatnce.core.diagnostics import Monitor as Monitor
    from flatnce.core.objectives.losses import DCL as DCL
    from flatnce.core.objectives.losses import DHEL as DHEL
    from flatnce.core.objectives.losses import CrossEntropyLoss as CrossEntropyLoss
    from flatnce.core.objectives.losses import FlatNCE as FlatNCE
    from flatnce.core.objectives.losses import FlatNCEPlus as FlatNCEPlus
    from flatnce.core.objectives.losses import HolderFlatNCE as HolderFlatNCE
    from flatnce.core.objectives.losses import InfoNCE as InfoNCE
    from flatnce.core.objectives.losses import SigLIP as SigLIP
    from flatnce.core.objectives.temperature import LearnedTemperature as LearnedTemperature
    from flatnce.core.pairs import KeyQueue as KeyQueue
    from flatnce.diagnose import doctor as doctor
    from flatnce.pretrain.embedding import load as load
    from flatnce.pretrain.training.named import resume as resume
    from flatnce.pretrain.training.named import train as train

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
__all__ += ["__version__"]
