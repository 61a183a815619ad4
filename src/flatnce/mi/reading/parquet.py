"""Parquet files: kinds from the schema, and only the columns that are asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatnce.extras import needed
from flatnce.mi.reading.source import Part, Sample, Source, gathered

BATCH_ROWS = 100_000
# Decoded pages, a batch, its DataFrame, all of them joined, the table of numbers: as measured.
COPIES = 5


class ParquetFile(Source):
    """A table in parquet.

    Arguments:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        arrow = needed("pyarrow", "reading parquet", "mi")
        parquet = needed("pyarrow.parquet", "reading parquet", "mi")
        try:
            self.file = parquet.ParquetFile(path)
        except arrow.ArrowException as error:
            said = str(error).splitlines()[0]
            raise ValueError(f"{path} is no parquet file ({said}); write it again") from error
        super().__init__(path, tuple(self.file.schema_arrow.names))
        if not self.names or not self.file.metadata.num_rows:
            raise ValueError(f"{path} is empty; a table needs columns and rows")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ValueError(f"{path} has several columns of the name {twice[0]!r}; rename them")

    def kinds(self) -> tuple[str, ...]:
        """As the schema says."""
        types = needed("pyarrow", "reading parquet", "mi").types
        return tuple(_kind(field.type, types) for field in self.file.schema_arrow)

    def bytes_needed(self, chosen: Sequence[int], rows: int | None) -> int:
        """From the sizes in the file's own description."""
        about = self.file.metadata
        names = {self.names[i] for i in chosen}
        share = 1.0 if rows is None else min(1.0, rows / about.num_rows)
        text = 0
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            for place in range(group.num_columns):
                column = group.column(place)
                if column.path_in_schema.partition(".")[0] in names:
                    text += column.total_uncompressed_size
        return int(share * COPIES * max(8 * about.num_rows * len(chosen), text))

    def read(self, chosen: Sequence[int], sample: Sample) -> Part:
        """Batch by batch."""
        names = [self.names[i] for i in chosen]
        batches = self.file.iter_batches(BATCH_ROWS, columns=names)
        frames = (
            batch.select(names).to_pandas(date_as_object=False).set_axis(list(chosen), axis=1)
            for batch in batches
        )
        return gathered(frames, sample)


def _kind(form: Any, types: Any) -> str:
    if types.is_boolean(form):
        return "boolean"
    if types.is_integer(form) or types.is_floating(form) or types.is_decimal(form):
        return "number"
    if types.is_timestamp(form) or types.is_date(form) or types.is_time(form):
        return "dates"
    if types.is_duration(form):
        return "durations"
    if types.is_nested(form):
        return "lists"
    return "empty" if types.is_null(form) else "words"
