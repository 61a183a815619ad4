"""CSV, TSV and other text, read in pieces of which only the columns asked for are kept.

pandas is not told which columns those are: it would then cut a row with too many cells without a
word, and a cell that holds the separator would shift its row.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flatnce.extras import needed
from flatnce.mi.reading.dialect import Dialect, dialect_of
from flatnce.mi.reading.kinds import MISSING, kind_of
from flatnce.mi.reading.source import Part, Sample, Source, gathered

HEAD_ROWS = 1_000
CHUNK_CELLS = 2_000_000
NUMBER_BYTES, TEXT_BYTES = 8, 72
# While pieces are joined there are two copies, and a third as the table of numbers.
COPIES = 3


class DelimitedFile(Source):
    """A table as text.

    Arguments:
        path: The file, perhaps compressed with gzip.
        header: Whether its first line holds names.
    """

    def __init__(self, path: Path, header: bool = True) -> None:
        self.dialect: Dialect = dialect_of(path, header)
        super().__init__(path, self.dialect.names)
        if self.dialect.encoding not in ("utf-8-sig", "utf-16"):
            self.notes.append(f"{path.name} is not UTF-8; it was read as {self.dialect.encoding}.")
        if self.dialect.decimal == ",":
            self.notes.append(f"{path.name} writes decimals after a comma, and was read so.")

    def kinds(self) -> tuple[str, ...]:
        """Judged by the first thousand rows."""
        return tuple(kind_of(self._first_rows.iloc[:, i]) for i in range(len(self.names)))

    @cached_property
    def _first_rows(self) -> Any:
        return next(self._chunks(range(len(self.names)), HEAD_ROWS, HEAD_ROWS))

    def bytes_needed(self, chosen: Sequence[int], rows: int | None) -> int:
        """From the length of the text and of its first lines."""
        about = int(self.dialect.text_bytes / max(self.dialect.row_bytes, 1.0))
        about = about if rows is None else min(rows, about)
        kinds = self.kinds()
        numeric = ("number", "boolean", "empty")
        each = sum(NUMBER_BYTES if kinds[i] in numeric else TEXT_BYTES for i in chosen)
        piece = min(self.dialect.text_bytes, CHUNK_CELLS * NUMBER_BYTES)
        return COPIES * (about * each + piece)

    def read(self, chosen: Sequence[int], sample: Sample) -> Part:
        """Piece by piece."""
        size = max(1_000, CHUNK_CELLS // len(self.names))
        part = gathered(self._chunks(chosen, size), sample)
        if not part.total:
            raise ValueError(f"{self.path} holds names and no rows of numbers")
        return part

    def _chunks(self, chosen: Sequence[int], size: int, rows: int | None = None) -> Iterator[Any]:
        pandas = needed("pandas", "reading a table", "mi")
        how = self.dialect
        try:
            with pandas.read_csv(
                self.path,
                sep=how.separator,
                engine="c",
                header=None,
                names=range(len(how.names)),
                skiprows=how.skipped,
                index_col=False,
                na_values=list(MISSING),
                decimal=how.decimal,
                encoding=how.encoding,
                skipinitialspace=True,
                low_memory=False,
                chunksize=size,
                nrows=rows,
                on_bad_lines="error",
            ) as reader:
                for chunk in reader:
                    yield chunk[list(chosen)]
        except pandas.errors.EmptyDataError:
            raise ValueError(f"{self.path} holds names and no rows of numbers") from None
        except pandas.errors.ParserError as error:
            raise ValueError(
                f"{self.path} is no table throughout: {str(error).splitlines()[0].strip()}; "
                "correct that line"
            ) from error
        except UnicodeDecodeError as error:
            called = how.encoding.removesuffix("-sig")
            raise ValueError(
                f"{self.path} is not {called} throughout ({error.reason}); save it as UTF-8"
            ) from error
        except EOFError as error:
            raise OSError(f"{self.path} is cut short ({error}); copy it again") from error
