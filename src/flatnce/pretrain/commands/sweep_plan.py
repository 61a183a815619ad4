"""``flatnce sweep --dry-run``: which runs there would be, how they stand, what they would take."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flatnce.pretrain.commands.sweep_table import show_tables
from flatnce.pretrain.sweeping.room import SLACK, Plan, plan, workspace
from flatnce.pretrain.sweeping.summary import over_seeds, rows_of
from flatnce.pretrain.sweeping.sweep import states_of
from flatnce.pretrain.training import TrainConfig
from flatnce.pretrain.training.images import sharing_images


def show_plan(
    configs: Mapping[str, TrainConfig], at_once: int | None, *, as_json: bool, taken: str
) -> int:
    """Name the runs of a sweep that is not begun, and return the exit code."""
    with sharing_images():
        decided = plan(configs, at_once)
    if as_json:
        runs = {name: config.plain() for name, config in configs.items()}
        print(json.dumps({"runs": runs, "at_once": decided.at_once, "bytes": decided.bytes}))
        return 0
    for name in configs:
        print(name)
    print(f"\n{_said(configs, decided)}")
    if taken:
        print(f"but {taken}")
    return 0


def show_standing(
    configs: Mapping[str, TrainConfig], directory: Path, at_once: int | None, *, as_json: bool
) -> int:
    """Show the table of a sweep as it stands, and return the exit code."""
    with sharing_images():
        decided = plan(configs, at_once)
    runs = states_of(configs, directory)
    rows = rows_of(runs)
    left = sum(run.state != "done" for run in runs)
    decided = replace(decided, at_once=min(decided.at_once, left))
    if as_json:
        print(json.dumps({"runs": rows, "at_once": decided.at_once, "bytes": decided.bytes}))
        return 0
    show_tables(rows, over_seeds(runs, rows))
    if left:
        print(f"\n{_said(configs, decided, taken=sum(run.step for run in runs))}")
    else:
        print(f"\n{len(runs)} runs, {decided.steps:,} steps in all, all done")
    return 0


def _said(configs: Mapping[str, TrainConfig], decided: Plan, taken: int = 0) -> str:
    extra = workspace(decided.device)
    own = round((decided.bytes - extra) / SLACK)
    done = f" ({taken:,} of them done)" if taken else ""
    return (
        f"{len(configs)} runs, {decided.steps:,} steps in all{done}, {decided.at_once} at once "
        f"on {decided.device}\nthe largest is expected to take {_size(decided.bytes)} beside the "
        f"images: {SLACK:g} times the {_size(own)} of its network, activations and scores, and "
        f"{_size(extra)} for libraries, kNN and the pool"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
