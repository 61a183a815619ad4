"""``flatnce evaluate``: a run by one or several protocols, as a table or as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from flatnce.cli.console import column_lines, live_line, print_json
from flatnce.cli.options import parse_options, print_short_help
from flatnce.messages import say, wrapped
from flatnce.pretrain.commands import RunName
from flatnce.pretrain.evaluation import PURPOSES, Options, expand, refuse_unused
from flatnce.pretrain.runs.folder import find_run
from flatnce.pretrain.runs.log import score_cells, tested_on

__all__ = ["results_table"]


@dataclass(frozen=True)
class EvaluateOptions:
    """Evaluate a run's encoder on the test set; the results are added to its results.json."""

    run: RunName  # A run's name or directory.
    # One protocol or several.
    protocol: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("linear",)
    # Data sets to evaluate on; by default the run's own, or for transfer those of the paper.
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    step: int | None = None  # Which checkpoint; the newest by default.
    device: str = "auto"  # auto, cpu, cuda or cuda:1.
    # Settings.
    options: Annotated[Options, tyro.conf.arg(name="")] = field(default_factory=Options)
    quiet: bool = False  # Print only the table of results.
    json: bool = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        usual, lists = EvaluateOptions("RUN"), {"protocols": PURPOSES}
        return print_short_help(arguments, "evaluate", usual, lists)
    options = parse_options(EvaluateOptions, "evaluate", arguments, renamed={"name": "data"})
    refuse_unused(options.options, options.protocol)  # and unknown names, before all else
    from flatnce.pretrain.evaluation import NotSaved, evaluate_run
    from flatnce.pretrain.page.run import run_page
    from flatnce.pretrain.training.saved import describe_status

    directory, failure = find_run(options.run), None
    with live_line(quiet=options.json or options.quiet, log=False) as (show, _):
        how: Any = {"step": options.step, "device": options.device, "report": show}
        try:
            found = evaluate_run(directory, options.protocol, options.data, options.options, **how)
        except NotSaved as error:
            found, failure = error.results, error
    stands, said = describe_status(directory, found[0]["step"])
    if options.json:
        print_json({"run": str(directory), "step": found[0]["step"], **stands, "results": found})
    else:
        if said:
            say(said)
        results_table(found)
    if failure is not None:
        raise failure
    page = run_page(directory)
    if options.json or options.quiet:
        return 0
    print()
    shown = dict.fromkeys(one["name"] for one in found)
    for name in shown:
        print(wrapped(f"{name}: {PURPOSES[name]}", then="  "))
    if left_out := set(expand(options.protocol)) - shown.keys():
        say(f"{', '.join(sorted(left_out))}: left out (no labels, or views of your own)")
    say(f"\nadded to {directory / 'results.json'} and {page}")
    return 0


def results_table(results: Sequence[Mapping[str, Any]]) -> None:
    """Print results as one table."""
    step = {result.get("step") for result in results}
    after = f" at step {step.pop():,}" if len(step) == 1 and None not in step else ""
    said = "top-1 accuracy in per cent unless the table says otherwise, with 95 % intervals."
    measured_on, note = tested_on(results)
    print(wrapped(f"{measured_on}{after}: {said}"))
    header = ("protocol", "data", "score", "interval", "top-5", "samples", "seconds")
    columns = dict(zip(header, zip(*map(result_row, results), strict=True), strict=True))
    same = ["data"] if len(set(columns["data"])) == 1 else []
    dispensable = ("seconds", *same, "top-5", "samples", "data")
    print("\n".join(column_lines(columns, dispensable, names=["data"])), flush=True)
    for line in filter(None, [note, *dict.fromkeys(map(_left_out, results))]):
        print(wrapped(line))


def _left_out(result: Mapping[str, Any]) -> str:
    """Which shares of the labels a protocol left out, and why; empty if none."""
    how = result.get("protocol")
    labels = how.get("labels") if isinstance(how, Mapping) else None
    if not isinstance(labels, Mapping) or "left_out" not in labels:
        return ""
    return f"{result.get('name')} on {result.get('data')} leaves out {labels['left_out']}."


def result_row(result: Mapping[str, Any]) -> list[str]:
    """The cells of one result."""
    cells, seconds = score_cells(result, "{:.1f}"), result.get("seconds")
    took = "" if seconds is None else f"{seconds:.1f}"
    numbers = (cells.score or "-", cells.interval, cells.top5, cells.test_images)
    return [cells.name, cells.data, *numbers, took]
