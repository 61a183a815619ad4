"""``flatnce demo``: InfoNCE and FlatNCE on data whose mutual information is known."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from flatnce.cli.console import live_line, print_json, print_table, print_topics
from flatnce.cli.options import parse_options
from flatnce.messages import wrapped
from flatnce.paper.demo_config import DemoConfig
from flatnce.pretrain.runs.folder import run_lock


@dataclass(frozen=True)
class DemoOptions:
    """Compare InfoNCE with FlatNCE on data whose mutual information is known.

    Trains small critics on correlated Gaussians that share 10 nats, prints a table and writes a
    page with the curves. It takes about a minute on a CPU.
    """

    # What to run.
    config: Annotated[DemoConfig, tyro.conf.arg(name="")] = field(default_factory=DemoConfig)
    json: bool = False  # Print the results as JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(DemoOptions, "demo", arguments)
    from flatnce.paper.demo import TEXTS, demo_page, run_demo, summary_table

    with live_line(quiet=options.json, log=False) as (update, say):
        with run_lock(options.config.out):
            results = run_demo(options.config, lambda line, last: (say if last else update)(line))
    page = demo_page(options.config.out)
    if options.json:
        print_json(results)
        return 0
    table = summary_table(results)
    print_table(table.caption, table.header, table.rows)
    print("\n" + wrapped(TEXTS["columns"].format(**results)))
    print_topics({finding["topic"]: finding["text"] for finding in results["findings"]})
    print(f"\nDone in {results['seconds']:.0f} s. The curves: {page}")
    return 0
