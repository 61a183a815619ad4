"""Tables and progress lines, on a terminal or in a file."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["console_of", "live_line", "text_table"]

FILE_WIDTH = 118  # where the output is not a terminal

Say = Callable[[str], None]


def console_of() -> Console:
    """The console of standard output."""
    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table without a frame; all but the ``left`` first columns are aligned to the right."""
    table = Table(title=title, caption=caption, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=not number)
    table.show_header = any(header)
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def live_line(*, quiet: bool = False, log: bool = True) -> Iterator[tuple[Say, Say]]:
    """Two functions for the block: one updates a line on a terminal, the other prints a line.

    Where there is no terminal, updates are printed too if ``log``; nothing is if ``quiet``.
    """
    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield lambda text: live.update(Text(text)), partial(console.print, markup=False)
    else:
        say = _ignore if quiet else partial(print, flush=True)
        yield (say if log else _ignore), say


def _ignore(text: str) -> None:
    pass
