"""Read the pickles of CIFAR's python layout without running what they might say.

A pickle is a program: loaded plainly, a file from a stranger can do anything. CIFAR's need four
names to rebuild a dictionary of lists and numpy arrays; only those are given, and a file that
asks for any other is refused before it gets it.
"""

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from flatnce.pretrain.data.errors import DamagedData

RECONSTRUCT = np.zeros(0).__reduce__()[0]  # numpy's own, whose module has moved between versions


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 spells bytes in a pickle that Python 2 can read."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are spelled in {encoding!r}, not in latin1")
    return codecs.latin_1_encode(text)[0]


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    """An unpickler that knows only what a dictionary of arrays is made of."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a file of CIFAR's python layout, its keys as text."""
    try:
        with path.open("rb") as file:
            # Python 2 wrote them: its strings are bytes.
            content = _Restricted(file, encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        why = str(error) or type(error).__name__
        raise DamagedData(
            f"{path} is not a whole data file of CIFAR's python layout ({why}); nothing in it was "
            "run. Fetch the set again"
        ) from error
    if not isinstance(content, dict):
        raise DamagedData(f"{path} holds a {type(content).__name__}, not CIFAR's dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
