"""The tables of a sweep: no number is ever cut; where room is short, columns are left out."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.pretrain.sweeping.summary import MEASURED

Row = Mapping[str, Any]

FORMATS = {"loss": ".3f", "ess": ".2f", "gain": ".2f", "knn": ".1%", "mi": ".2f", "pool_mi": ".2f"}
FORMATS |= {"mi_ceiling": ".2f", "pool_ceiling": ".2f", "images_per_second": ",.0f"}
HEADINGS = {"loss": "loss", "ess": "ESS", "gain": "gain", "knn": "kNN", "mi": "MI"}
HEADINGS |= {"mi_ceiling": "ceiling", "pool_mi": "pool MI", "images_per_second": "images/s"}
# What goes first where a terminal is narrow: what the others tell too, or the name of the run.
DISPENSABLE = ("images/s", "gain", "ESS", "epochs")
GAP = "  "


@dataclass(frozen=True)
class Column:
    """One column of text.

    Arguments:
        heading: What stands above it.
        cells: Its text, row by row.
        left: Whether text begins at the left; numbers end at the right.
    """

    heading: str
    cells: tuple[str, ...]
    left: bool = False

    @property
    def width(self) -> int:
        """Of the longest text."""
        return max(map(len, (self.heading, *self.cells)))

    def lines(self) -> list[str]:
        """Heading and cells, all of one width."""
        align = str.ljust if self.left else str.rjust
        return [align(text, self.width) for text in (self.heading, *self.cells)]


def show_tables(rows: Sequence[Row], means: Sequence[Row]) -> None:
    """Print the runs, and below them the means over seeds where there are any."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    tables = [("", _of_runs(rows))]
    if means:
        tables.append(("mean over seeds ± standard deviation", _of_means(means)))
    left_out: dict[str, None] = {}
    for title, columns in tables:
        kept, gone = fitted(columns, room, list(rows[0]["settings"]))
        left_out |= dict.fromkeys(gone)
        print(f"\n{title}" if title else "")
        for line in zip(*(column.lines() for column in kept), strict=True):
            print(GAP.join(line).rstrip())
    if left_out:
        print(f"\nno room for {', '.join(left_out)}; --json has them")


def fitted(
    columns: Sequence[Column], room: int | None, settings: Sequence[str]
) -> tuple[list[Column], list[str]]:
    """The columns that there is room for, and the headings of the others."""
    kept, gone = list(columns), []
    for heading in (*DISPENSABLE, *map(_option, reversed(settings))):
        if room is None or sum(c.width for c in kept) + len(GAP) * (len(kept) - 1) <= room:
            break
        fewer = [kept[0], *(column for column in kept[1:] if column.heading != heading)]
        gone += [heading] if len(fewer) < len(kept) else []
        kept = fewer
    return kept, gone


def _of_runs(rows: Sequence[Row]) -> list[Column]:
    numbers = ("loss", "ess", "gain", "knn", "mi", "mi_ceiling", "pool_mi", "images_per_second")
    return [
        _column("run", rows, lambda row: row["run"], left=True),
        *(column for column in _settings(rows) if column.heading != "epochs"),
        _column("epochs", rows, lambda row: f"{row['epoch']:.1f}/{row['epochs']}"),
        *(_numbers(name, rows) for name in numbers),
        _column("state", rows, _state, left=True),
    ]


def _of_means(means: Sequence[Row]) -> list[Column]:
    columns = [
        _column("runs", means, lambda mean: mean["runs"], left=True),
        *_settings(means),
        _column("seeds", means, lambda mean: str(len(mean["seeds"]))),
    ]
    for name in MEASURED:
        columns.append(_numbers(name, means, f"{name}_spread"))
        columns += [_numbers("mi_ceiling", means)] if name == "mi" else []
    return columns


def _column(
    heading: str, rows: Sequence[Row], text: Callable[[Row], str], left: bool = False
) -> Column:
    return Column(heading, tuple(map(text, rows)), left)


def _settings(rows: Sequence[Row]) -> list[Column]:
    """What is varied, by the name of its option."""
    found = []
    for name in rows[0]["settings"]:
        values = [row["settings"][name] for row in rows]
        left = any(isinstance(value, str) for value in values)
        found.append(Column(_option(name), tuple(map(str, values)), left))
    return found


def _option(name: str) -> str:
    return name.replace("_", "-")


def _numbers(name: str, rows: Sequence[Row], spread: str | None = None) -> Column:
    def shown(row: Row) -> str:
        if row[name] is None:
            return ""
        text = format(row[name], FORMATS[name])
        return text if spread is None else f"{text} ± {format(row[spread], FORMATS[name])}"

    return _column(HEADINGS[name], rows, shown)


def _state(row: Row) -> str:
    """How it ended, and what is wrong with it if anything is."""
    unwell = row["verdict"] not in (None, "healthy") and row["state"] != "failed"
    return f"{row['state']}, {row['verdict']}" if unwell else str(row["state"])
