"""``flatnce compare``: runs side by side, seeds pooled, differences paired by seed."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from flatnce.cli.options import parse_options
from flatnce.messages import check_choice
from flatnce.pretrain.commands import RunNames
from flatnce.pretrain.page import loopback_of
from flatnce.pretrain.runs.folder import named_runs
from flatnce.report.charts import FORMATS, write_figures
from flatnce.report.page import Page, check_place, write_page


@dataclass(frozen=True)
class PageOptions:
    """Where a page is written, and what is written with it."""

    # The file; by default report.html in the run's directory, of several runs
    # comparison.html here.
    out: Path | None = None
    watch: bool = False  # Serve the page on this machine and follow the run while it goes on.
    host: str = "127.0.0.1"  # Where to serve: 127.0.0.1 or another loopback address.
    port: int = 0  # Where to serve; any free port by default.
    figures: Path | None = None  # Also write every chart for a paper into this folder.
    formats: tuple[str, ...] = FORMATS  # Formats of these figures.
    json: bool = False  # Print what was found as JSON and nothing else.

    def __post_init__(self) -> None:
        loopback_of(self.host)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port} must be from 0 (any free one) to {2**16 - 1}")
        for name in self.formats:
            check_choice("formats", name, FORMATS)


@dataclass(frozen=True)
class CompareOptions:
    """Compare runs: curves laid over each other, seeds pooled, differences paired by seed."""

    runs: RunNames  # Names in runs/, or paths; a sweep stands for all its runs.
    # Settings to group by, such as objective; by default all that differ, but the seed.
    by: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    # A value of the first of these, whose group the others are compared with; infonce by
    # default, or the first run's.
    against: Annotated[str | None, tyro.conf.arg(metavar="VALUE")] = None
    # Where the page goes.
    page: Annotated[PageOptions, tyro.conf.arg(name="")] = field(default_factory=PageOptions)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(CompareOptions, "compare", arguments)
    return compare(named_runs(options.runs), options.page, options.by, options.against)


def compare(
    directories: Sequence[Path],
    options: PageOptions,
    by: Sequence[str] = (),
    against: str | None = None,
) -> int:
    """Write the page that compares runs, and figures; return the exit code."""
    from flatnce.pretrain.page.compare import differences_of, page_of_runs

    asked: dict[str, Any] = {"by": by, "against": against}
    return publish(
        directories,
        options.out or Path("comparison.html"),
        partial(page_of_runs, directories, **asked),
        options,
        # A paper has no list of letters beside the chart.
        paper=partial(page_of_runs, directories, **asked, whole_names=True),
        differences=differences_of(directories, **asked) if options.json else [],
    )


def publish(
    directories: Sequence[Path],
    out: Path,
    page: Callable[[], Page],
    options: PageOptions,
    first: Callable[[], str] = lambda: "",
    paper: Callable[[], Page] | None = None,
    **more: object,
) -> int:
    """Write a page and its figures and print where.

    ``first`` runs before and may return a note; ``paper`` is the page with figures for a paper,
    where they differ.
    """
    check_place(out)
    with served(directories, page, options):
        note = first()
        made = page()
        write_page(made, out)
        figures: Sequence[Path] = ()
        if options.figures is not None:
            sections = (paper() if paper else made).sections
            charts = [figure.chart for section in sections for figure in section.figures]
            figures = write_figures(charts, options.figures, options.formats)
        if options.json:
            plain = {"page": str(out), "figures": list(map(str, figures)), "left_out": note}
            print(json.dumps({**plain, **more}), flush=True)
        else:
            lines = [note] if note else []
            lines.append(f"the page: {out}")
            if figures:
                lines.append(f"{len(figures)} figures in {figures[0].parent}")
            print("\n".join(lines), flush=True)
    return 0


@contextmanager
def served(
    directories: Sequence[Path], page: Callable[[], Page], options: PageOptions
) -> Iterator[None]:
    """With ``--watch``, serve a page during the block and then until Ctrl-C."""
    if not options.watch:
        yield
        return
    from flatnce.pretrain.page.serve import serve

    with serve(directories, page, host=options.host, port=options.port) as (address, answering):
        if not options.json:
            print(f"{address} follows the run; stop with Ctrl-C", flush=True)
        yield
        if options.json:
            print(json.dumps({"address": address}), flush=True)
        with suppress(KeyboardInterrupt):
            while answering.is_alive():
                answering.join(1.0)  # with a timeout, so that Ctrl-C is noticed
