"""The doctor: what is wrong with embeddings, a run or an installation.

Not called ``doctor``, so that importing a part never replaces the function ``flatnce.doctor``.
Names are imported when first used: the installation is examined with a broken torch, too.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.diagnose.embeddings import doctor, read_embeddings
    from flatnce.diagnose.findings import KINDS, Diagnosis, Finding
    from flatnce.diagnose.records import examine

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
