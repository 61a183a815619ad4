"""The doctor: what is wrong with embeddings, a run or an installation.

Not called ``doctor``, so that importing a part never replaces the function ``flatnce.doctor``.
Names are imported when first used: the installation is examined with a broken torch, too.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.diagnose.embeddings import doctor as doctor
    from flatnce.diagnose.embeddings import read_embeddings as read_embeddings
    from flatnce.diagnose.findings import KINDS as KINDS
    from flatnce.diagnose.findings import Diagnosis as Diagnosis
    from flatnce.diagnose.findings import Finding as Finding
    from flatnce.diagnose.records import examine as examine

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
