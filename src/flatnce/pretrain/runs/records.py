"""Records of runs: one small JSON file per run, which is kept when its weights are not.

A record holds a versioned key of the config, the config, the seed, the results, thinned metrics
and the environment.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flatnce.files import read_json, replace_text
from flatnce.pretrain.runs.log import SHAPES, Run, add_paper_ess, flat_settings, logged_lines
from flatnce.pretrain.training.config import BOOKKEEPING, UNMEASURED, DataConfig

__all__ = ["FORMAT_VERSION", "key_of", "read_records", "record_of", "settings_of", "write_record"]

FORMAT_VERSION = 2  # since 2, a line of metrics has its step

# Settings that the keys of committed records lack; those runs had the defaults.
ADDED = {name: getattr(DataConfig(), name) for name in ("skip_unreadable", "stream", "decode")}

# In the key of a run with a target of the ESS, which is that of the population. Runs whose keys
# lack it held the paper's form.
ESS_RULE = "population"

LEFT_OUT = "kind seconds steps objective_loss images_per_second".split()  # of lines of metrics
RESULTS = ("step", "epochs", "images", "seconds", "verdict")


def key_of(config: Mapping[str, Mapping[str, Any]], *, measured: bool = False) -> str:
    """A key of a config, equal for equal learning; it begins with its version.

    With ``measured`` it also distinguishes runs by what is measured in them, and when.
    """
    settings = flat_settings(config)
    for name in UNMEASURED if measured else BOOKKEEPING:
        settings.pop(name, None)
    settings = {name: v for name, v in settings.items() if name not in ADDED or v != ADDED[name]}
    rule = "" if settings.get("ess") is None else f"{ESS_RULE}-"
    text = rule + json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return f"v1-{rule}{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def settings_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a record; an older ESS target is one of the paper's form."""
    settings = flat_settings(record["config"])
    if settings.get("ess") is not None and ESS_RULE not in record["key"]:
        settings["ess_paper"] = settings.pop("ess")
    return settings


def thinned(metrics: Iterable[Mapping[str, Any]], every: float) -> list[dict[str, Any]]:
    """Every check, and lines of training at least ``every`` epochs apart, with the last.

    A check has the numbers of the training since the line before.
    """
    read = [one for one in metrics if one.get("kind") in ("train", "watch")]
    read.sort(key=lambda one: (one["step"], one["kind"]))  # a line may arrive after a later check
    lines: list[dict[str, Any]] = [{"step": 0, "epoch": -every}]
    waiting: dict[str, Any] = {}
    for one in read:
        waiting |= {name: _rounded(one[name]) for name in one if name not in LEFT_OUT}
        is_early = one["epoch"] - lines[-1]["epoch"] < every - 1e-9
        if one["kind"] == "train" and is_early and one is not read[-1]:
            continue
        same = lines[-1]["step"] == one["step"]
        lines.append((lines.pop() if same else {}) | waiting)
        waiting = {}
    return lines[1:]


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def record_of(name: str, run: Run, *, every: float, measured: bool = False) -> dict[str, Any]:
    """The record of a run, in plain data, with a line of metrics ``every`` so many epochs."""
    config = {**run.config, "data": {**run.config["data"], "root": None}}
    results = run.results or {}
    lines = logged_lines(run.directory) if any(run.left_out.values()) else run.metrics
    return {
        "format_version": FORMAT_VERSION,
        "key": key_of(config, measured=measured),
        "name": name,
        "seed": config["run"]["seed"],
        "config": config,
        "results": {key: _rounded(results[key]) for key in RESULTS if key in results},
        "metrics": thinned(lines, every),
        "environment": run.environment,
    }


def write_record(record: Mapping[str, Any], folder: str | Path) -> Path:
    """Write a record into a folder, a line of metrics per line; return its path."""
    path = Path(folder) / f"{record['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**record, "metrics": []}, indent=1, allow_nan=False)
    lines = ",\n".join(f"  {json.dumps(one, allow_nan=False)}" for one in record["metrics"])
    replace_text(path, text.replace('"metrics": []', f'"metrics": [\n{lines}\n ]') + "\n")
    return path


def read_records(folder: str | Path) -> dict[str, dict[str, Any]]:
    """All records of a folder by name, also those of earlier formats."""
    found = {}
    for path in sorted(Path(folder).glob("*.json")):
        found[path.stem] = read_json(path, SHAPES["record"], "remove it", FORMAT_VERSION)
        add_paper_ess(found[path.stem]["metrics"])
    return found
