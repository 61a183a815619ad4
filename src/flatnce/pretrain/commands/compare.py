"""``flatnce compare``: runs side by side, seeds pooled, differences paired by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from flatnce.pretrain.commands.page_server import PageOptions, say, served
from flatnce.pretrain.page.compare import (
    charts_of_runs,
    compare_page,
    differences_of,
    page_of_runs,
)
from flatnce.pretrain.training.saved import RUNS, SWEEP, find_run, runs_in
from flatnce.report.charts import write_figures
from flatnce.report.page import check_place

OUT = Path("comparison.html")


@dataclass(frozen=True)
class CompareOptions:
    """Compare runs: curves laid over each other, seeds pooled, differences paired by seed.

    Arguments:
        runs: Names in runs/, or paths; a sweep stands for all its runs.
        by: Settings to group by, such as objective; by default all that differ, but the seed.
        against: A value of the first of these, whose group the others are compared with; infonce
            by default, or the first run's.
        page: Where the page goes.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    by: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    against: Annotated[str | None, tyro.conf.arg(metavar="VALUE")] = None
    page: Annotated[PageOptions, tyro.conf.arg(name="")] = field(default_factory=PageOptions)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = tyro.cli(
        CompareOptions,
        prog="flatnce compare",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return compare(named_runs(options.runs), options.page, options.by, options.against)


def compare(
    directories: Sequence[Path],
    options: PageOptions,
    by: Sequence[str] = (),
    against: str | None = None,
) -> int:
    """Write the page that compares runs, and figures; return the exit code."""
    out = options.out or OUT
    check_place(out)
    anew = partial(page_of_runs, directories, by=by, against=against)
    with served(directories, anew, options):
        page = compare_page(directories, out, by=by, against=against)
        drawn: Sequence[Path] = ()
        if options.figures is not None:
            charts = charts_of_runs(directories, by=by, against=against)
            drawn = write_figures(charts, options.figures, options.formats)
        found = differences_of(directories, by=by, against=against) if options.json else []
        say(page, drawn, as_json=options.json, differences=found)
    return 0


def named_runs(names: Sequence[str]) -> list[Path]:
    """The directories of runs, each once; a sweep stands for all its runs that have begun."""
    if not names:
        raise ValueError("RUN is missing: name at least one run")
    found: dict[Path, None] = {}
    for name in names:
        sweep = next((p for p in (Path(name), Path(RUNS) / name) if (p / SWEEP).is_file()), None)
        inside = [] if sweep is None else [sweep / one for one in runs_in(sweep)]
        found |= dict.fromkeys(inside or [find_run(name)])
    return list(found)
