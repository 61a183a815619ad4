"""The exported folder: its files, its config, and writing it all or nothing."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["MARK", "describe_check", "read_config"]

FORMAT_VERSION = 1  # increased when an older reader would misread the layout
CARD, CONFIG, WEIGHTS, ONNX_MODEL = "README.md", "config.json", "model.safetensors", "model.onnx"
MARK = "flatnce"  # the entry of config.json that flatnce reads


class ExportError(OSError):
    """An export could not be written or read; the message says what to do."""


def describe_check(check: Mapping[str, float] | None) -> str:
    """How the features of an export, loaded back, compare with those of the network."""
    if check is None:
        return "not checked, as onnxruntime is not installed (pip install 'flatnce[onnx]')"
    if check["largest_difference"] == 0:
        return "the same features to the bit"
    relative = check["largest_difference"] / max(1.0, check["largest_feature"])
    return f"features differ by at most {relative:.2g} of the largest"


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write ``config.json``."""
    text = json.dumps(config, indent=2, allow_nan=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the ``config.json`` of an exported folder; refuse one that flatnce did not write."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(
            f"folder={str(folder)!r} is not an exported backbone (it has no {CONFIG}); pass what "
            "`flatnce export` wrote"
        )
    try:
        config = json.loads(path.read_bytes())
        version = config[MARK]["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"{path} is damaged, or flatnce did not write it; export the run again"
        ) from error
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ExportError(
            f"{path} has format_version {version}, this flatnce reads up to {FORMAT_VERSION}; "
            f"upgrade flatnce (it was written by {config[MARK].get('flatnce', 'an unknown one')})"
        )
    return dict(config)


def _is_export(folder: Path) -> bool:
    """Whether a folder holds an export and nothing else."""
    files = {CARD, CONFIG, WEIGHTS, ONNX_MODEL, f"{ONNX_MODEL}.data"}
    try:
        return {entry.name for entry in folder.iterdir()} <= files and bool(read_config(folder))
    except (OSError, ValueError):
        return False


def file_record(path: Path) -> dict[str, Any]:
    """Name, size and checksum of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}


def check_room(out: Path, replace: bool) -> None:
    """Refuse a place that is not empty, before any work is done."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"out={str(out)!r} is a file; name a folder for the export")
    if not any(out.iterdir()):
        return
    if not _is_export(out):
        raise ValueError(
            f"out={str(out)!r} holds other files than an export, which are never removed; name a "
            "new folder"
        )
    if not replace:
        raise ValueError(
            f"out={str(out)!r} already holds an export; name a new folder, or ask for it to be "
            "replaced (replace=True, --replace)"
        )


@contextmanager
def new_folder(out: Path, replace: bool) -> Iterator[Path]:
    """A temporary folder, renamed when the block succeeds and removed otherwise."""
    check_room(out, replace)
    place = out.resolve()  # a link to a folder stays a link
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        check_room(out, replace)  # another process may have written there
        _put_in_place(temporary, place)
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"{out} was not written ({error}); export again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, place: Path) -> None:
    """Rename the folder; remove an earlier export only after that."""
    if not place.exists():
        os.rename(temporary, place)
        return
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.replaced")
    os.rename(place, aside)
    try:
        os.rename(temporary, place)
    except OSError:
        os.rename(aside, place)
        raise
    shutil.rmtree(aside, ignore_errors=True)
