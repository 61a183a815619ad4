"""From files to two tables of numbers: CSV, TSV, parquet, npy and npz."""

from flatnce.mi.reading.columns import select
from flatnce.mi.reading.encoding import ENCODINGS
from flatnce.mi.reading.opening import FORMATS
from flatnce.mi.reading.tables import (
    ColumnInfo,
    OneTable,
    Tables,
    describe_columns,
    read_table,
    read_tables,
)

__all__ = [
    "ENCODINGS",
    "FORMATS",
    "ColumnInfo",
    "OneTable",
    "Tables",
    "describe_columns",
    "read_table",
    "read_tables",
    "select",
]
