"""``flatnce report``: an offline page about a run, or a page that compares several runs."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from flatnce.cli.options import parse_options
from flatnce.pretrain.commands import RunNames
from flatnce.pretrain.commands.compare import PageOptions, compare, page_place, publish
from flatnce.pretrain.runs.folder import named_runs
from flatnce.pretrain.runs.log import read_run


@dataclass(frozen=True)
class ReportOptions:
    """Write an offline page about a run, or for several runs a page that compares them."""

    runs: RunNames  # Names in runs/, or paths; a sweep stands for all its runs.
    # Do not inspect the encoder (similarities, 2-D picture, nearest neighbours).
    no_portrait: bool = False
    images: int = 1000  # Number of test samples to inspect the encoder with.
    no_pictures: bool = False  # Show the labels of neighbours without small pictures.
    step: int | None = None  # Which checkpoint to inspect; the newest by default.
    device: str = "auto"  # auto, cpu, cuda or cuda:1.
    # The file of the page; by default report.html in the run's directory, for several runs
    # comparison.html here (none with --json).
    out: Path | None = None
    # What is done with the page.
    page: Annotated[PageOptions, tyro.conf.arg(name="")] = field(default_factory=PageOptions)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(ReportOptions, "report", arguments)
    directories = named_runs(options.runs)
    if len(directories) > 1:
        if options.step is not None:
            raise ValueError(f"step={options.step} is for one run; leave it out to compare runs")
        return compare(directories, page_place(options.out, options.page.json), options.page)
    from flatnce.pretrain.page.run import page_of_run

    (directory,) = directories
    return publish(
        directories,
        options.out or directory / "report.html",
        partial(page_of_run, directory),
        options.page,
        partial(_inspect, directory, options),
    )


def _inspect(directory: Path, options: ReportOptions) -> str:
    """Inspect the encoder; the reason if that is not possible and no step was named."""
    from flatnce.pretrain.page.inspection import inspect_encoder, is_current

    asked: dict[str, Any] = {"images": options.images, "pictures": not options.no_pictures}
    if options.no_portrait or is_current(directory, options.step, **asked):
        return ""
    try:
        inspect_encoder(directory, **asked, step=options.step, device=options.device)
    except (OSError, ValueError) as error:
        expected = isinstance(error, OSError) or read_run(directory).objects
        if options.step is not None or not expected:
            raise
        return f"the encoder was not inspected: {error}"
    return ""
