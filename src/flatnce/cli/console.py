"""Tables, progress lines and JSON, on a terminal or in a file."""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flatnce.environment import plain
from flatnce.messages import say, wrapped

__all__ = [
    "column_lines",
    "live_line",
    "print_json",
    "print_table",
    "print_topics",
    "print_verdict",
    "word_lines",
]

NAME_WIDTH = 24  # to which a long name may be shortened

Say = Callable[[str], None]
Update = Callable[..., None]  # of a text, and the share of the work that is done

STYLES = {"healthy": "green", "undecided": "yellow"}  # of a verdict; of any other: red


def print_json(value: object) -> None:
    """Print one line of JSON; numbers that are not finite become null."""
    whole = partial(plain, paths=True)
    try:  # without a pass over what JSON can hold, which takes seconds for thousands of runs
        text = json.dumps(value, allow_nan=False, default=whole)
    except ValueError:
        text = json.dumps(whole(value), allow_nan=False)
    print(text, flush=True)


def column_lines(
    columns: Mapping[str, Sequence[str]],
    dispensable: Iterable[str] = (),
    names: Iterable[str] = (),
) -> list[str]:
    """The lines of a table by its columns; columns without content are not shown.

    Words are aligned at the left, numbers at the right. On a narrow terminal, long cells in the
    columns of names lose their middle; then dispensable columns are left out, which a last line
    names; then further columns go into a second table, after the names again. rich's tables
    would take seconds for thousands of rows.
    """
    room = shutil.get_terminal_size((0, 0)).columns or math.inf
    kept, left_out = {one: cells for one, cells in columns.items() if any(cells)}, list[str]()
    widths = {head: max(map(len, (head, *cells))) for head, cells in kept.items()}
    for heading in [one for one in names if one in kept]:
        over = sum(widths.values()) + 2 * len(widths) - 2 - room
        if over > 0 and widths[heading] > NAME_WIDTH:
            width = max(NAME_WIDTH, len(heading), widths[heading] - int(over))
            kept[heading] = _shortened(kept[heading], width)
            widths[heading] = max(map(len, (heading, *kept[heading])))
    for heading in dispensable:
        if sum(widths.values()) + 2 * len(widths) - 2 > room and heading in kept:
            cells = columns[heading]
            same = f" (all {cells[0]})" if len(set(cells)) == 1 < len(cells) else ""
            left_out.append(heading + same)
            del kept[heading], widths[heading]
    tables: list[list[list[str]]] = [[]]
    repeated = 2 if any(len(set(cells)) < len(cells) for cells in [*kept.values()][:1]) else 1
    for number, (heading, cells) in enumerate(kept.items()):
        words = not number or any(cell[:1].isalpha() or cell[:2] == "./" for cell in cells)
        align, width = str.ljust if words else str.rjust, widths[heading]
        if number > repeated and sum(len(one[0]) + 2 for one in tables[-1]) + width > room:
            tables.append(tables[0][:repeated])
        tables[-1].append([align(text, width) for text in (heading, *cells)])
    lines = []
    for table in tables:
        lines += ["", *("  ".join(line).rstrip() for line in zip(*table, strict=True))]
    note = f"not shown: {', '.join(left_out)}; --json has {'them' if left_out[1:] else 'it'}"
    return lines[1:] + (["", wrapped(note, then="  ")] if left_out else [])


def _shortened(names: Sequence[str], width: int) -> Sequence[str]:
    """Names without the middle of long ones; as they are where two would look alike."""
    half = (width - 1) // 2
    short = [one if len(one) <= width else f"{one[: width // 2]}…{one[-half:]}" for one in names]
    return short if len(set(short)) == len(set(names)) else names


def print_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, given by its rows, under its caption."""
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    print("\n".join(["", wrapped(caption), *column_lines(columns)]))


def print_topics(topics: Mapping[str, str]) -> None:
    """Print a paragraph on each topic, which is bold on a terminal."""
    for topic, text in topics.items():
        said = Text(f"\n{wrapped(f'{topic}: {text}')}")
        said.stylize("bold", 0, len(topic) + 2)
        Console(highlight=False).print(said, soft_wrap=True)


def word_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of words in aligned columns, of which the last is wrapped."""
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)][:-1]
    starts = ["".join(map(str.ljust, row, widths)) for row in rows]
    return [
        wrapped(row[-1], start, " " * sum(widths)) for row, start in zip(rows, starts, strict=True)
    ]


@contextmanager
def live_line(*, quiet: bool = False, log: bool = True) -> Iterator[tuple[Update, Say]]:
    """Two functions for the block: one updates a line on a terminal, the other prints a line.

    A bar is shown above the line where the share of the work that is done is passed, too. Where
    there is no terminal, updates are printed if ``log``; nothing is shown if ``quiet``.
    """
    if sys.stderr.isatty() and not quiet:
        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=4, transient=True) as live:

            def update(text: str, share: float | None = None) -> None:
                shown = Table.grid()
                if share is not None:
                    shown.add_row(ProgressBar(1.0, share, width=60))
                shown.add_row(Text(text))
                live.update(shown)

            yield update, partial(console.print, markup=False)
    else:
        show = _ignore if quiet else _print_on
        yield (show if log else _ignore), show


def print_verdict(before: str, verdict: str, after: str = "") -> None:
    """Print a verdict, in colour on a terminal unless NO_COLOR is set."""
    kind = verdict.partition(" since ")[0]
    lines = f"{before}{verdict}{after}".split("\n")
    shown = Text("\n".join(map(wrapped, lines)))  # a line ends in place of a space
    shown.stylize(STYLES.get(kind, "red"), len(before), len(before + verdict))
    Console(highlight=False).print(shown, soft_wrap=True)


def _ignore(text: str, share: float | None = None) -> None:
    pass


def _print_on(text: str, share: float | None = None) -> None:
    """Print a line; where the reader, such as head, has left, the work goes on without one."""
    try:
        say(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
