"""Tables, progress lines and JSON, on a terminal or in a file."""

import json
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

__all__ = ["column_lines", "console_of", "live_line", "print_json", "print_verdict", "text_table"]

BAR_WIDTH = 60
FILE_WIDTH = 118  # where the output is not a terminal

Say = Callable[[str], None]
Update = Callable[..., None]  # of a text, and the share of the work that is done

STYLES = {"healthy": "green", "undecided": "yellow"}  # of a verdict; of any other: red


def print_json(value: object) -> None:
    """Print one line of JSON; numbers that are not finite become null."""
    print(json.dumps(plain(value, paths=True), allow_nan=False), flush=True)


def column_lines(
    columns: Mapping[str, Sequence[str]], dispensable: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """The lines of a table by its columns, and the columns left out on a narrow terminal.

    Words are aligned at the left, numbers at the right; nothing is cut, and empty columns are not
    shown. rich's tables would take seconds for thousands of rows.
    """
    room = shutil.get_terminal_size((0, 0)).columns or None
    kept, left_out = {one: cells for one, cells in columns.items() if any(cells)}, list[str]()
    widths = {head: max(map(len, (head, *cells))) for head, cells in columns.items()}
    for heading in dispensable:
        whole = sum(widths[one] + 2 for one in kept) - 2
        if room is not None and whole > room and heading in kept:
            del kept[heading]
            left_out.append(heading)
    padded = []
    for number, (heading, cells) in enumerate(kept.items()):
        words = not number or any(cell[:1].isalpha() or cell[:2] == "./" for cell in cells)
        align, width = str.ljust if words else str.rjust, widths[heading]
        padded.append([align(text, width) for text in (heading, *cells)])
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)], left_out


def console_of() -> Console:
    """The console of standard output."""
    return Console(width=shutil.get_terminal_size((FILE_WIDTH, 24)).columns, highlight=False)


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    title: str | None = None,
) -> Table:
    """A table without a frame; all but the ``left`` first columns are aligned to the right."""
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.title_justify = "left"
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=not number)
    table.show_header = any(header)
    for row in rows:
        table.add_row(*row)
    return table


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
                    shown.add_row(ProgressBar(1.0, share, width=BAR_WIDTH))
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
    console_of().print(shown, soft_wrap=True)


def _ignore(text: str, share: float | None = None) -> None:
    pass


def _print_on(text: str, share: float | None = None) -> None:
    """Print a line; where the reader, such as head, has left, the work goes on without one."""
    try:
        say(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
