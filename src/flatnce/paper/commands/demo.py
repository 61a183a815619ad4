"""``flatnce demo``: progress, the table, the findings, and where the page is."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import jinja2  # noqa: F401 (missing packages are reported before training, not after)
import tyro

from flatnce.cli.console import console_of, live_line, text_table
from flatnce.paper.demo.page import NAMES, case_cells, demo_page
from flatnce.paper.demo.training import DemoConfig, run_demo

CAPTION = """beta: inverse temperature; rate: learning rate; ± standard deviation over seeds.
ESS: share of the negatives that carry the gradient; ESS+: with the positive.
gain: the factor by which InfoNCE multiplies a row's gradient.
top-1: partner found among {pool:,}."""


@dataclass(frozen=True)
class DemoOptions:
    """InfoNCE against FlatNCE where the truth is known.

    Trains small critics on correlated Gaussians that share 10 nats, prints a table and writes a
    page with the curves. About a minute on a CPU.

    Arguments:
        config: What to run.
        json: Print the results as JSON and nothing else.
    """

    config: Annotated[DemoConfig, tyro.conf.arg(name="")] = field(default_factory=DemoConfig)
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = tyro.cli(DemoOptions, prog="flatnce demo", args=arguments)
    with live_line(quiet=options.json, log=False) as (update, say):

        def progress(line: str, last: bool) -> None:
            (say if last else update)(line)

        results = run_demo(options.config, progress)
    page = demo_page(options.config.out)
    if options.json:
        print(json.dumps(results))
        return 0
    header = ["setting", "trained\nwith", "K-sample\nMI/log K", "large-pool\nMI", "ESS", "ESS+"]
    header += ["gain", "top-1", "FlatNCE\n− InfoNCE"]
    title = (
        f"After {results['steps']:,} steps, {len(results['seeds'])} seeds, on held-out pairs. The "
        f"truth: {results['nats']:g} nats."
    )
    caption = CAPTION.format(pool=results["pool"])
    console = console_of()
    console.print()
    console.print(text_table(header, _rows(results), left=2, title=title, caption=caption))
    for finding in results["findings"]:
        console.print(f"\n[bold]{finding['topic']}.[/bold] {finding['text']}")
    print(f"\nDone in {results['seconds']:.0f} s. The curves: {page}")
    return 0


def _rows(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for case in results["cases"]:
        setting = (
            f"K {case['candidates']}, beta {case['inverse_temperature']:g}",
            f"rate {case['learning_rate']:g}",
        )
        for part, (objective, name) in zip(setting, NAMES.items(), strict=True):
            task, *cells = case_cells(case, objective)
            rows.append([part, name, task.replace(" of ", "/"), *cells])
        rows.append([])
    return rows
