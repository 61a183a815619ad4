"""``sweep.json``: which runs a sweep has, so that it can go on after anything.

Written before the first run starts, all or nothing; it changes only where runs are added::

    format_version, kind
    base     the settings of the first run, by section
    runs     each run's name, with its settings that are not the same in all runs
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.encoders import RUNS, SWEEP
from flatnce.pretrain.training.lock import LOCK

__all__ = ["SWEEP", "find_sweep", "read_sweep", "varied"]

FORMAT_VERSION = 1
PARTIAL = f".{SWEEP}.partial"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
LONGEST_NAME = 200
MOST_NAMED = 8
"""Sweeps that are named where another was asked for."""


def varied(configs: Mapping[str, TrainConfig]) -> list[str]:
    """The settings that are not the same in all runs."""
    every = [config.flat() for config in configs.values()]
    return [name for name, first in every[0].items() if any(one[name] != first for one in every)]


def check_names(configs: Mapping[str, TrainConfig]) -> None:
    """Refuse an empty sweep, names that are no names of folders, and what is no config."""
    if not isinstance(configs, Mapping):
        raise ValueError(
            f"configs is a {type(configs).__name__}; give the runs by name: "
            '{"first": config, "second": config.override(seed=1)}'
        )
    if not configs:
        raise ValueError("configs is empty; give at least one run")
    for name, config in configs.items():
        if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            raise ValueError(
                f"configs: the name {name!r} is no name of a folder; use letters, digits and "
                f". _ + - (up to {LONGEST_NAME}), beginning with a letter or a digit"
            )
        if not isinstance(config, TrainConfig):
            raise ValueError(
                f"configs: {name!r} is a {type(config).__name__}; give a TrainConfig, such as "
                'preset("digits").override(seed=1)'
            )


def check_place(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Refuse a directory that holds another sweep, or anything else.

    One whose runs are all among these, as they were, is this sweep with fewer runs.
    """
    if (directory / SWEEP).is_file():
        _refuse_others(directory, configs)
    elif directory.is_dir():
        strange = [path.name for path in directory.iterdir() if path.name not in (LOCK, PARTIAL)]
        if strange:
            raise ValueError(
                f"directory={str(directory)!r} is no sweep and holds {min(strange)}; name a new "
                "folder"
            )
    elif directory.exists():
        raise ValueError(f"directory={str(directory)!r} is a file; name a folder for the sweep")


def write_sweep(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Write the file, unless it is there and says the same."""
    if (directory / SWEEP).is_file() and read_sweep(directory) == dict(configs):
        return
    names = varied(configs)
    base = next(iter(configs.values()))
    runs = {key: {name: one.flat()[name] for name in names} for key, one in configs.items()}
    content = {"format_version": FORMAT_VERSION, "kind": "sweep", "base": base.plain()}
    text = json.dumps({**content, "runs": runs}, indent=1) + "\n"
    (directory / PARTIAL).write_text(text, encoding="utf-8")
    os.replace(directory / PARTIAL, directory / SWEEP)


def read_sweep(directory: str | Path) -> dict[str, TrainConfig]:
    """The runs of a sweep, by name."""
    path = Path(directory) / SWEEP
    if not path.is_file():
        raise ValueError(
            f"{directory} is no sweep (it has no {SWEEP}); name one of `flatnce sweep`"
        )
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = int(found["format_version"])
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{path} has format_version {version}, this flatnce reads up to {FORMAT_VERSION}; "
                "upgrade flatnce"
            )
        base = TrainConfig.from_plain(found["base"])
        return {name: base.override(**changes) for name, changes in found["runs"].items()}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); begin the sweep anew") from error


def find_sweep(name: str | Path) -> Path:
    """The directory of a sweep, given as a path or as a name in ``runs/``."""
    for place in (Path(name), Path(RUNS) / name):
        if (place / SWEEP).is_file():
            return place
    there = sorted(path.parent.name for path in Path(RUNS).glob(f"*/{SWEEP}"))
    near = difflib.get_close_matches(str(name), there, n=1)
    if near:
        known = f"did you mean {near[0]!r}?"
    else:
        named = ", ".join(there[:MOST_NAMED]) or "none"
        more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
        known = f"there are {named}{more} in {RUNS}/"
    raise ValueError(f"resume={str(name)!r} is no sweep and no name of one; {known}")


def _refuse_others(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    there = read_sweep(directory)
    remedy = "name another directory, or go on with that sweep: runs may be added, none changed"
    missing = next((name for name in there if name not in configs), None)
    if missing is not None:
        raise ValueError(f"{directory} holds another sweep, which has the run {missing}; {remedy}")
    name = next((name for name in there if there[name] != configs[name]), None)
    if name is None:
        return
    one, two = there[name].flat(), configs[name].flat()
    leaf = next(leaf for leaf in one if one[leaf] != two[leaf])
    raise ValueError(
        f"{directory} holds another sweep: {leaf} of the run {name} is {one[leaf]!r} there and "
        f"{two[leaf]!r} here; {remedy}"
    )
