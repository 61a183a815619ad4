"""Files that are written as a whole."""

import os
import secrets
from pathlib import Path

__all__ = ["replace_text"]


def replace_text(path: Path, text: str) -> None:
    """Write a text file atomically: a reader never sees half of it.

    The temporary file beside it has a random name and must not exist, so that a link in a folder
    from elsewhere is never written through. A link at ``path`` itself is replaced.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
