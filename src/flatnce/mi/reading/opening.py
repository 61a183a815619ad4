"""Which reader a file gets, by its suffix; and files that get none, with the reason."""

import difflib
from pathlib import Path

from flatnce.mi.reading.arrays import ArrayArchive, ArrayFile
from flatnce.mi.reading.delimited import DelimitedFile
from flatnce.mi.reading.parquet import ParquetFile
from flatnce.mi.reading.source import Source

TEXT = (".csv", ".tsv", ".txt")
FORMATS = (*TEXT, *(f"{suffix}.gz" for suffix in TEXT), ".parquet", ".npy", ".npz")
"""Suffixes of the files that can be read."""

PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin")
SHEETS = (".xls", ".xlsx", ".xlsm", ".ods")


def open_source(path: str | Path, header: bool = True) -> Source:
    """The file's reader, opened as far as the names of its columns."""
    place = Path(path)
    _check_is_file(place)
    suffix = place.suffix.lower()
    if suffix == ".gz":
        suffix = Path(place.stem).suffix.lower() + ".gz"
    if suffix.removesuffix(".gz") not in TEXT and not header:
        raise ValueError(f"--no-header is for text; {place} is {suffix or 'of another format'}")
    if suffix.removesuffix(".gz") in TEXT:
        return DelimitedFile(place, header)
    if suffix == ".parquet":
        return ParquetFile(place)
    if suffix == ".npy":
        return ArrayFile(place)
    if suffix == ".npz":
        return ArrayArchive(place)
    raise ValueError(_refusal(place, suffix))


def _check_is_file(place: Path) -> None:
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder; name a file ({', '.join(FORMATS)})")
    if not place.exists():
        folder = place.parent
        there = [p.name for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
        close = difflib.get_close_matches(place.name, there, n=1, cutoff=0.6)
        hint = f"; did you mean {folder / close[0]}?" if close else ""
        raise FileNotFoundError(f"{place} does not exist{hint}")


def _refusal(place: Path, suffix: str) -> str:
    readable = ", ".join(FORMATS)
    if suffix in PICKLES:
        return (
            f"{place} seems to be a pickle, which is never opened: it may run code. Save the "
            f"numbers as .npy or .csv"
        )
    if suffix in SHEETS:
        return f"{place} is a spreadsheet; save the sheet as CSV"
    called = f"its suffix {suffix!r} is none of these" if suffix else "it has no suffix"
    return f"{place}: {called}: {readable}; save or rename it"
