"""``flatnce compare``: compare runs whose other settings are equal, paired by seed."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from flatnce.cli.console import column_lines, print_json
from flatnce.cli.options import parse_options
from flatnce.messages import say, wrapped
from flatnce.pretrain.commands import RunNames
from flatnce.pretrain.runs.folder import named_runs
from flatnce.report.charts import write_figures
from flatnce.report.page import Page, check_place, write_page

if TYPE_CHECKING:
    from flatnce.pretrain.page.compare import Comparison


@dataclass(frozen=True)
class PageOptions:
    """How a page is shown, and what is written with it."""

    watch: bool = False  # Serve the page on this machine and update it during training.
    port: int = 0  # The port of the page; any free port by default.
    # Also write every chart for a paper into this folder, as PDF, SVG and PNG.
    figures: Path | None = None
    json: bool = False  # Print what was found as JSON and nothing else.

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port} must be from 0 (any free one) to {2**16 - 1}")


@dataclass(frozen=True)
class CompareOptions:
    """Compare runs whose other settings are equal, paired by seed, in a table and on a page."""

    runs: RunNames  # Names in runs/, patterns such as 'flat*', or paths; a sweep means its runs.
    # Settings to compare together, such as objective; by default each that differs, separately.
    by: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    # The value that the others are compared with; infonce by default, or else the first.
    against: Annotated[str | None, tyro.conf.arg(metavar="VALUE")] = None
    pool: bool = False  # Average each seed over all values of the other settings.
    replace: bool = False  # Replace an earlier page of that name.
    # The file of the page; by default comparison.html here (none with --json).
    out: Path | None = None
    # What is done with the page.
    page: Annotated[PageOptions, tyro.conf.arg(name="")] = field(default_factory=PageOptions)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(CompareOptions, "compare", arguments)
    asked = {name: getattr(options, name) for name in ("by", "against", "pool")}
    out = page_place(options.out, options.page.json, options.replace)
    return compare(named_runs(options.runs), out, options.page, **asked)


def compare(
    directories: Sequence[Path], out: Path | None, options: PageOptions, **asked: Any
) -> int:
    """Print the contrasts of runs, write the page and figures; return the exit code."""
    from flatnce.pretrain.page.compare import compare_runs

    found = compare_runs(directories, **asked)
    if not options.json:
        print("\n".join([*difference_lines(found), ""]))

    def page() -> Page:
        return compare_runs(directories, **asked).page()

    return publish(directories, out, page, options, differences=found.plain())


def page_place(out: Path | None, json: bool, replace: bool = False) -> Path | None:
    """The file of the page: a new name, unless an earlier one is to be replaced.

    With ``--json`` a page is written only where ``--out`` says.
    """
    if out is not None and out.is_file() and not replace:
        remedy = "name another, or replace it (`flatnce compare ... --replace`)"
        raise ValueError(f"--out {out} already exists; {remedy}")
    if out is not None or json:
        return out
    usual = Path("comparison.html")
    numbered = (usual.with_stem(f"{usual.stem}-{number}") for number in itertools.count(2))
    free = (path for path in itertools.chain([usual], numbered) if replace or not path.exists())
    return next(free)


def difference_lines(found: "Comparison") -> list[str]:
    """The contrasts of the first measure, a table per pair of values."""
    from flatnce.pretrain.page.compare import TEXT, by_name, difference_columns

    main, apart = found.main(), [wrapped(found.apart), ""] if found.apart else []
    if not main:
        return [*apart, wrapped(TEXT["no_contrast"])]
    lines = [*apart, main[0].measure.heading, "Means, and differences paired by seed."]
    for name, rows in by_name(main).items():
        columns = difference_columns(rows, name, [one.place for one in rows])
        if len(name) > 30:  # too long for the heading of a column
            lines += ["", wrapped(name)]
            columns = {"runs": columns.pop(name), **columns}
        lines += ["", *column_lines(columns, names=list(columns)[:1])]
    others = dict.fromkeys(one.measure.label for one in found.contrasts)
    del others[main[0].measure.label]
    also = f"The page and --json also have: {'; '.join(others)}."
    return [*lines, "", wrapped(also)] if others else lines


def publish(
    directories: Sequence[Path],
    out: Path | None,
    page: Callable[[], Page],
    options: PageOptions,
    first: Callable[[], str] = lambda: "",
    **more: object,
) -> int:
    """Write a page and its figures and print where; ``first`` runs before, its note is printed."""
    if out is not None:
        check_place(out)
    with served(directories, page, options):
        note = first()
        made = page()
        figures: Sequence[Path] = ()
        if options.figures is not None:
            charts = [figure.chart for section in made.sections for figure in section.figures]
            figures = write_figures(charts, options.figures)
        if out is not None:
            write_page(made, out)
        if options.json:
            print_json({"page": out, "figures": figures, "left_out": note, **more})
        else:
            lines = [*filter(None, [note]), f"the page: {out}"]
            if figures:
                lines.append(f"{len(figures)} figures in {figures[0].parent}")
            say("\n".join(lines))
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

    with serve(directories, page, options.port) as (address, answering):
        if not options.json:
            say(f"{address} follows the run; stop with Ctrl-C")
        yield
        if options.json:
            print_json({"address": address})
        with suppress(KeyboardInterrupt):
            while answering.is_alive():
                answering.join(1.0)  # with a timeout, so that Ctrl-C is noticed
