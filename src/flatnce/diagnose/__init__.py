"""The doctor: what is wrong with embeddings, a run, a folder of curves or an installation.

:func:`doctor` looks at embeddings; :func:`examine` at whatever a path names. Both answer with a
:class:`Diagnosis`: a verdict, findings with evidence and remedies in order, the numbers, and what
could not be known. The rules on numbers are those of :mod:`flatnce.core.diagnostics`; what is added
here is what only embeddings show.

The package is not called ``doctor``, so that importing a part of it never puts a module in the
place of the function ``flatnce.doctor``. Its names are imported when first touched: whoever has
a broken torch wants to hear it from :func:`examine_installation`, not from an import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatnce.diagnose.archive import read_embeddings
    from flatnce.diagnose.embeddings import doctor
    from flatnce.diagnose.examination import examine
    from flatnce.diagnose.findings import KINDS, Diagnosis, Finding
    from flatnce.diagnose.installation import examine_installation

__all__ = [
    "KINDS",
    "Diagnosis",
    "Finding",
    "doctor",
    "examine",
    "examine_installation",
    "read_embeddings",
]

_HOMES = {
    "KINDS": "findings",
    "Diagnosis": "findings",
    "Finding": "findings",
    "doctor": "embeddings",
    "examine": "examination",
    "examine_installation": "installation",
    "read_embeddings": "archive",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first touched, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flatnce.diagnose' has no attribute {name!r}")
    value = getattr(import_module(f"flatnce.diagnose.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
