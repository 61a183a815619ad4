"""How a text file writes a table: encoding, separator, header, decimal sign."""

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 1 << 20
LINES_LOOKED_AT = 50
SEPARATORS = (",", ";", "\t", "|")
WHITESPACE = r"\s+"
NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?|nan|[-+]?inf", re.I)


@dataclass(frozen=True)
class Dialect:
    """How to read the file, and what its head says about the rest.

    Arguments:
        encoding: Of the text.
        separator: Between cells; a regular expression for white space.
        decimal: The sign before decimals.
        names: Of the columns, as the first line gives them, or numbers from 0 on.
        skipped: Lines before the first row of numbers.
        row_bytes: Length of a line, on average, in the text.
        text_bytes: Length of the whole text, about.
    """

    encoding: str
    separator: str
    decimal: str
    names: tuple[str, ...]
    skipped: int
    row_bytes: float
    text_bytes: int


def dialect_of(path: Path, header: bool = True) -> Dialect:
    """How a file writes its table."""
    raw, ratio = _head(path)
    encoding, text = _decoded(raw, path)
    if not text.strip():
        raise ValueError(f"{path} is empty; a table needs a line of names and rows of numbers")
    whole = len(raw) < HEAD_BYTES
    separator = _separator(text, whole, tabs_first=".tsv" in path.suffixes)
    skipped, rows = _rows(text, separator, whole)
    if header and _is_numpy_header(text, rows, separator):
        last = [line for line in text.splitlines() if line.startswith("#")][-1]
        rows.insert(0, _cells(last.lstrip("# "), separator))
        skipped -= 1
    names = _names(rows[0], path) if header else tuple(map(str, range(len(rows[0]))))
    if header and len(rows) == 1 and whole:
        raise ValueError(f"{path} holds names and no rows of numbers")
    body = rows[1:] if header else rows
    _check_width(body, names, path)
    row_bytes = len(text.encode()) / max(1, len(text.splitlines()))
    size = int(path.stat().st_size * ratio)
    decimal = _decimal(body, separator)
    return Dialect(encoding, separator, decimal, names, skipped + header, row_bytes, size)


def _head(path: Path) -> tuple[bytes, float]:
    """The first bytes of the text, and how much longer the text is than the file."""
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            return file.read(HEAD_BYTES), 1.0
    try:
        with path.open("rb") as file, gzip.open(file) as text:
            head = text.read(HEAD_BYTES)
            return head, max(1.0, len(head) / max(file.tell(), 1))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise OSError(f"{path} is not a whole gzip file ({error}); compress it again") from error


def _decoded(raw: bytes, path: Path) -> tuple[str, str]:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16", raw[: len(raw) // 2 * 2].decode("utf-16", errors="ignore")
    if raw[:2] == b"PK" or b"\0" in raw:
        raise ValueError(f"{path} is not text; save the table as CSV (from a spreadsheet: export)")
    for encoding in ("utf-8-sig", "cp1252", "latin-1"):
        # A letter of several bytes may be cut at the end of the head.
        for end in range(len(raw), max(len(raw) - 4, 0) - 1, -1):
            try:
                return encoding, raw[:end].decode(encoding)
            except UnicodeDecodeError:
                continue
    return "latin-1", raw.decode("latin-1")


def _rows(text: str, separator: str, whole: bool) -> tuple[int, list[list[str]]]:
    """The first rows as cells, and how many lines of comment or nothing stand before them."""
    if separator == WHITESPACE:
        every: Iterator[list[str]] = (line.split() for line in text.splitlines())
    else:
        lines = io.StringIO(text, newline="")
        every = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    skipped = 0
    rows: list[list[str]] = []
    for cells in every:
        if cells and not (len(cells) == 1 and not cells[0].strip()):
            if rows or not cells[0].startswith("#"):
                rows.append(cells)
                if len(rows) > LINES_LOOKED_AT:
                    break
                continue
        skipped += not rows
    if not whole and len(rows) <= LINES_LOOKED_AT and len(rows) > 2:
        rows.pop()  # it may be cut short
    return skipped, rows or [[]]


def _is_numpy_header(text: str, rows: list[list[str]], separator: str) -> bool:
    """Whether a comment is the line of names, as numpy.savetxt writes it."""
    comments = [line for line in text.splitlines()[:LINES_LOOKED_AT] if line.startswith("#")]
    if not comments or not all(NUMBER.fullmatch(cell.strip()) for cell in rows[0]):
        return False
    return len(_cells(comments[-1].lstrip("# "), separator)) == len(rows[0])


def _separator(text: str, whole: bool, tabs_first: bool) -> str:
    """What cuts every line into as many cells, and into the most of them."""
    order = ("\t", *SEPARATORS) if tabs_first else SEPARATORS
    best, most, steadiest = "", 1, 0.0
    for candidate in order:
        rows = _rows(text, candidate, whole)[1]
        width, count = Counter(map(len, rows)).most_common(1)[0]
        steady = count / len(rows)
        if width > 1 and (steady, width) > (steadiest, most):
            best, most, steadiest = candidate, width, steady
    if best:
        return best
    widths = Counter(map(len, _rows(text, WHITESPACE, whole)[1]))
    return WHITESPACE if len(widths) == 1 and widths.most_common(1)[0][0] > 1 else ","


def _cells(line: str, separator: str) -> list[str]:
    if separator == WHITESPACE:
        return line.split()
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _names(first: list[str], path: Path) -> tuple[str, ...]:
    cells = [" ".join(cell.split()) for cell in first]
    numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in cells)
    if numbers and 2 * numbers >= len(cells) and not _counting(cells):
        raise ValueError(
            f"the first line of {path} holds numbers ({', '.join(cells[:4])}) and no names; if it "
            "has no header, say --no-header and choose columns by number (--x 0:3 --y 3)"
        )
    return tuple(cell or f"Unnamed: {place}" for place, cell in enumerate(cells))


def _counting(cells: list[str]) -> bool:
    """Whether names are whole numbers that go up by one: 0, 1, 2 ... or years."""
    if not all(cell.isdecimal() for cell in cells) or len(cells) < 2:
        return False
    return [int(cell) for cell in cells] == list(range(int(cells[0]), int(cells[0]) + len(cells)))


def _check_width(body: list[list[str]], names: tuple[str, ...], path: Path) -> None:
    """Refuse a first line that cannot be the names of what follows."""
    widths = Counter(len(row) - (row[-1:] == [""]) for row in body)
    usual = widths.most_common(1)[0][0] if widths else len(names)
    if usual > len(names):
        raise ValueError(
            f"{path} has {len(names)} names in its first line and {usual} cells in the rows; "
            "delete what stands above the names, or give every column one"
        )


def _decimal(rows: list[list[str]], separator: str) -> str:
    if separator == ",":
        return "."
    cells = [cell.strip() for row in rows for cell in row]
    with_comma = sum(re.fullmatch(r"[-+]?\d+,\d+", cell) is not None for cell in cells)
    with_point = sum(re.fullmatch(r"[-+]?\d+\.\d+", cell) is not None for cell in cells)
    return "," if with_comma > with_point else "."
