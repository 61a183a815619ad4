"""Tables of numbers from files: CSV, TSV, parquet, npy and npz."""

from flatnce.extras import require_extra

require_extra("pandas", "reading a table", "mi")

from flatnce.mi.tables.cells import ENCODINGS  # noqa: E402
from flatnce.mi.tables.columns import select  # noqa: E402
from flatnce.mi.tables.files import FORMATS  # noqa: E402
from flatnce.mi.tables.read import (  # noqa: E402
    ColumnInfo,
    Tables,
    describe_columns,
    read_table,
    read_tables,
)

__all__ = [
    "ENCODINGS",
    "FORMATS",
    "ColumnInfo",
    "Tables",
    "describe_columns",
    "read_table",
    "read_tables",
    "select",
]
