"""``flatnce reproduce``: train, measure and draw a figure or table of the paper."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2  # noqa: F401 (missing packages are reported before training, not after)
import tyro

from flatnce.cli.console import print_json, print_table, print_topics, word_lines
from flatnce.cli.options import parse_options
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Setting, find_experiment
from flatnce.paper.reproduce.page import reproduce_page, table_of
from flatnce.pretrain.runs.folder import run_lock, runs_folder
from flatnce.pretrain.runs.log import read_run
from flatnce.report.page import check_folder
from flatnce.report.text import capitalised


@dataclass(frozen=True)
class ReproduceOptions:
    """Train, measure and draw one figure or table of the paper; finished runs are not repeated."""

    # The name of the experiment; --list shows the names.
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    # smoke trains on digits for seconds on a CPU and shows only that the code works; small trains
    # on CIFAR-10 on one GPU for half an hour; paper uses the paper's own settings.
    scale: Literal["smoke", "small", "paper"] = "smoke"
    # Seeds, each of which trains every run; by default 0 at scale smoke, else 0 1 2.
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = ()
    # Folder of the results; by default runs/reproduce/NAME, or NAME-SCALE above smoke.
    out: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    # Folder of trained runs and their records, which are not trained again; by default
    # runs/reproduce/store and, read only, the committed benchmarks/reproduce/records of a clone.
    store: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    # ImageNet's folder, for the tables at scale paper.
    imagenet: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    list: bool = False  # List the experiments.
    json: bool = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(ReproduceOptions, "reproduce", arguments, renamed={"seed": "seeds"})
    if options.list:
        rows = [{"name": e.name, "paper": e.paper, "title": e.title} for e in EXPERIMENTS.values()]
        if options.json:
            print_json(rows)
        else:
            print("\n".join(word_lines([list(row.values()) for row in rows])))
        return 0
    if options.name is None:
        raise ValueError(
            "name an experiment: `flatnce reproduce fig-mi`; --list shows all of them"
        )
    directory = _reproduce(options)
    page = reproduce_page(directory)
    results = read_run(directory).results or {}
    if options.json:
        print_json(results)
        return 0
    _show(results)
    print(f"\nThe page: {page}")
    return 0


def _reproduce(options: ReproduceOptions) -> Path:
    experiment = find_experiment(str(options.name))
    if options.imagenet is not None and experiment.base != "imagenet":
        raise ValueError(f"{experiment.name} does not read --imagenet; leave it out")
    if options.imagenet is not None and options.scale != "paper":
        raise ValueError(f"--imagenet is for scale paper, and this is scale {options.scale}")
    # These import torch, which --list and a misspelt name do not need.
    from flatnce.paper.reproduce.engine import reproduce
    from flatnce.paper.reproduce.store import Store, committed_records
    from flatnce.pretrain.sweeping.display import sweep_progress

    name = experiment.name if options.scale == "smoke" else f"{experiment.name}-{options.scale}"
    folder = runs_folder() / "reproduce"
    others = committed_records() if options.store is None else []
    store = Store(Path(options.store or folder / "store"), others)
    out = Path(options.out or folder / name)
    check_folder(out)
    setting = Setting(options.scale, options.seeds, options.imagenet)
    progress = partial(sweep_progress, quiet=options.json)
    say = (lambda _: None) if options.json else print
    try:
        with run_lock(out):
            return reproduce(
                experiment.name, setting, out, store=store, progress=progress, announce=say
            )
    except KeyboardInterrupt:
        kept = f"Trained runs are kept in {store.folder}; the same command continues."
        print(kept, file=sys.stderr)
        raise


def _show(results: Mapping[str, Any]) -> None:
    seeds = ", ".join(str(seed) for seed in results["seeds"])
    content = table_of(results["rows"], f"{results['paper']}: {results['title']}. Seeds: {seeds}.")
    print_table(content.caption, content.header, content.rows)
    words = dict(results["words"])
    if results["runs"] or results["trains_itself"]:
        words[f"scale {results['scale']}"] = f"{results['scale_shows']}."
    print_topics({capitalised(topic): capitalised(text) for topic, text in words.items()})
