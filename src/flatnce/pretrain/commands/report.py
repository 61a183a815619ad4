"""``flatnce report``: one offline page about a run; of several runs, the page that compares."""

from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import tyro

from flatnce.cli.console import print_json
from flatnce.cli.options import parse_options
from flatnce.pretrain.commands import RunNames
from flatnce.pretrain.commands.compare import PageOptions, compare, publish
from flatnce.pretrain.page import InspectionOptions
from flatnce.pretrain.runs.folder import named_runs
from flatnce.pretrain.runs.log import read_run

# The pages of other kinds of run, as (module, function): imported on demand, since this package
# does not depend on theirs.
OTHER_PAGES = {
    "demo": ("flatnce.paper.demo", "demo_page"),
    "reproduce": ("flatnce.paper.reproduce.page", "reproduce_page"),
}


@dataclass(frozen=True)
class ReportOptions:
    """Write one offline page about a run; of several runs, the page that compares them."""

    runs: RunNames  # Names in runs/, or paths; a sweep stands for all its runs.
    # Inspect the encoder (similarities, 2-D picture, nearest neighbours); --no-portrait
    # leaves it out.
    portrait: bool = True
    # How much is inspected.
    inspection: Annotated[InspectionOptions, tyro.conf.arg(name="")] = field(
        default_factory=InspectionOptions
    )
    step: int | None = None  # Which checkpoint to inspect; the newest by default.
    device: str = "auto"  # auto, cpu, cuda or cuda:1.
    # Where the page goes.
    page: Annotated[PageOptions, tyro.conf.arg(name="")] = field(default_factory=PageOptions)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(ReportOptions, "report", arguments)
    directories = named_runs(options.runs)
    if len(directories) > 1:
        return compare(directories, options.page)
    from flatnce.pretrain.page.run import page_of_run

    (directory,), asked = directories, options.page
    kind = read_run(directory).kind
    if kind not in OTHER_PAGES:
        return publish(
            directories,
            asked.out or directory / "report.html",
            partial(page_of_run, directory),
            asked,
            partial(_inspect, directory, options),
        )
    if asked.out or asked.watch or asked.figures:
        raise ValueError(
            f"{str(directory)!r} is a {kind} run: --out, --watch and --figures are for runs of "
            "`flatnce train`; its page is report.html in its folder"
        )
    module, name = OTHER_PAGES[kind]
    page = str(getattr(import_module(module), name)(directory))
    (print_json if asked.json else print)({"page": page} if asked.json else f"the page: {page}")
    return 0


def _inspect(directory: Path, options: ReportOptions) -> str:
    """Inspect the encoder; the reason if that is not possible and no step was named."""
    from flatnce.pretrain.page.inspection import inspect_encoder, is_current

    if not options.portrait or is_current(directory, options.inspection, options.step):
        return ""
    try:
        inspect_encoder(directory, options.inspection, step=options.step, device=options.device)
    except OSError as error:
        if options.step is not None:
            raise
        return f"the encoder was not looked at: {error}"
    return ""
