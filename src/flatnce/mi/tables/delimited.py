"""CSV, TSV and other text: encoding, separator, header and decimal sign are detected."""

import codecs
import csv
import gzip
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from flatnce.mi.tables.cells import MISSING
from flatnce.mi.tables.files import CHUNK_CELLS, NUMBER_BYTES, TableFile

HEAD_BYTES = 1 << 20
LINES_LOOKED_AT = 50
WHITESPACE = r"\s+"
NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?|nan|[-+]?inf", re.I)


class DelimitedFile(TableFile):
    """A table as text, perhaps compressed with gzip.

    Arguments:
        path: The file.
        header: Whether its first line holds names.
    """

    typed = False

    def __init__(self, path: Path, header: bool = True) -> None:
        raw, ratio = _head(path)
        whole = len(raw) < HEAD_BYTES
        self.encoding, text = _decode(raw, path)
        self.text_bytes = int(path.stat().st_size * ratio)
        lines = io.StringIO(text, newline=None).readlines()
        filled = (i for i, line in enumerate(lines) if line.strip() and line[0] != "#")
        self.skipped = next(filled, len(lines))
        if self.skipped == len(lines):
            raise ValueError(f"{path} is empty; a table needs a line of names and rows of numbers")
        comment = lines[self.skipped - 1].lstrip("# ") if self.skipped else ""
        table = lines[self.skipped :]
        self.separator = _separator(table, whole, tabs_first=".tsv" in path.suffixes)
        rows = _cells(table, self.separator, whole)
        if header and _is_header(comment, rows[0], self.separator):
            rows = _cells([comment], self.separator, True) + rows
        elif header:
            self.skipped += 1
        names = _names(rows[0], path) if header else [str(i) for i in range(len(rows[0]))]
        if header and len(rows) == 1 and whole:
            raise ValueError(f"{path} holds names and no rows of numbers")
        _check_width(rows[header:], names, path)
        self.decimal = _decimal(rows[header:], self.separator)
        super().__init__(path, tuple(names), round(self.text_bytes * len(lines) / len(raw)))
        if self.encoding not in ("utf-8-sig", "utf-16"):
            self.notes.append(f"{path.name} is not UTF-8; it was read as {self.encoding}.")
        if self.decimal == ",":
            self.notes.append(f"{path.name} has decimal commas and was read accordingly.")

    def buffer_bytes(self, columns: Sequence[int]) -> int:
        """Return the memory of a chunk, in which all columns are parsed."""
        return self.copies * min(self.text_bytes, CHUNK_CELLS * NUMBER_BYTES)

    def chunks(self, columns: Sequence[int], size: int) -> Iterator[pd.DataFrame]:
        """Yield blocks of lines.

        pandas parses all columns: with ``usecols`` it would silently cut rows with too many cells.
        """
        try:
            with pd.read_csv(
                self.path,
                sep=self.separator,
                engine="c",
                header=None,
                names=range(len(self.names)),
                skiprows=self.skipped,
                index_col=False,
                na_values=MISSING,
                decimal=self.decimal,
                encoding=self.encoding,
                skipinitialspace=True,
                low_memory=False,
                chunksize=size,
            ) as reader:
                for chunk in reader:
                    yield chunk[list(columns)]
        except pd.errors.EmptyDataError:
            raise ValueError(f"{self.path} holds names and no rows of numbers") from None
        except pd.errors.ParserError as error:
            reason = str(error).splitlines()[0].strip()
            raise ValueError(f"{self.path} is not a table: {reason}; correct that line") from error
        except UnicodeDecodeError as error:
            encoding = self.encoding.removesuffix("-sig")
            raise ValueError(
                f"{self.path} is not {encoding} throughout ({error.reason}); save it as UTF-8"
            ) from error
        except EOFError as error:
            raise OSError(f"{self.path} is cut short ({error}); copy it again") from error


def _head(path: Path) -> tuple[bytes, float]:
    """Return the first bytes of the text, and how much longer the text is than the file."""
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            return file.read(HEAD_BYTES), 1.0
    try:
        with path.open("rb") as file, gzip.open(file) as text:
            head = text.read(HEAD_BYTES)
            return head, max(1.0, len(head) / max(file.tell(), 1))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise OSError(f"{path} is not a whole gzip file ({error}); compress it again") from error


def _decode(raw: bytes, path: Path) -> tuple[str, str]:
    """Return the encoding and the text of the first bytes."""
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        encodings = ["utf-16"]
    elif raw[:2] == b"PK" or b"\0" in raw:
        raise ValueError(f"{path} is not text; save the table as CSV (from a spreadsheet: export)")
    else:
        encodings = ["utf-8-sig", "cp1252"]
    for encoding in encodings:
        try:  # an incremental decoder accepts a character that is cut off at the end
            return encoding, codecs.getincrementaldecoder(encoding)().decode(raw)
        except UnicodeDecodeError:
            continue
    return "latin-1", raw.decode("latin-1")


def _cells(lines: Sequence[str], separator: str, whole: bool) -> list[list[str]]:
    """Split the first lines into cells; the last line may be cut off unless the text is whole."""
    if separator == WHITESPACE:
        every: Iterator[list[str]] = (line.split() for line in lines)
    else:
        every = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    filled = (cells for cells in every if any(cell.strip() for cell in cells) or len(cells) > 1)
    rows = list(itertools.islice(filled, LINES_LOOKED_AT + 1))
    cut_off = not whole and 2 < len(rows) <= LINES_LOOKED_AT
    return rows[:-1] if cut_off else rows


def _separator(lines: Sequence[str], whole: bool, tabs_first: bool) -> str:
    """Return the separator that splits the most lines into the same number of cells."""
    best, most_regular = "", (0.0, 1)
    for candidate in ("\t", ",", ";", "|") if tabs_first else (",", ";", "\t", "|"):
        rows = _cells(lines, candidate, whole)
        width, count = Counter(map(len, rows)).most_common(1)[0]
        regular = (count / len(rows), width)
        if width > 1 and regular > most_regular:
            best, most_regular = candidate, regular
    if best:
        return best
    widths = {len(cells) for cells in _cells(lines, WHITESPACE, whole)}
    return WHITESPACE if len(widths) == 1 and widths != {1} else ","


def _is_header(comment: str, first: list[str], separator: str) -> bool:
    """Whether the comment above the first row holds the names, as numpy.savetxt writes them."""
    if not comment.strip() or not all(NUMBER.fullmatch(cell.strip()) for cell in first):
        return False
    return len(_cells([comment], separator, True)[0]) == len(first)


def _names(first: list[str], path: Path) -> list[str]:
    cells = [" ".join(cell.split()) for cell in first]
    numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in cells)
    # Whole numbers that increase by one, such as 0, 1, 2 or years, are names.
    start = int(cells[0]) if cells[0].isdecimal() and len(cells) > 1 else None
    counting = start is not None and cells == [str(start + i) for i in range(len(cells))]
    if numbers and 2 * numbers >= len(cells) and not counting:
        raise ValueError(
            f"the first line of {path} holds numbers ({', '.join(cells[:4])}), not names; if it "
            "has no header, add --no-header and choose columns by number (--x 0:3 --y 3)"
        )
    return [cell or f"Unnamed: {place}" for place, cell in enumerate(cells)]


def _check_width(rows: list[list[str]], names: list[str], path: Path) -> None:
    """Refuse a first line that cannot be the names of the columns below it."""
    widths = Counter(len(row) - (row[-1:] == [""]) for row in rows)
    usual = widths.most_common(1)[0][0] if widths else len(names)
    if usual > len(names):
        raise ValueError(
            f"{path} has {len(names)} names in its first line and {usual} cells in the rows; "
            "delete the lines above the names, or name every column"
        )


def _decimal(rows: list[list[str]], separator: str) -> str:
    if separator == ",":
        return "."
    cells = [cell.strip() for row in rows for cell in row]
    found = (re.fullmatch(r"[-+]?\d+([.,])\d+", cell) for cell in cells)
    signs = Counter(match[1] for match in found if match)
    return "," if signs[","] > signs["."] else "."
