"""Records of the image study: one small JSON file per run.

A record holds a versioned key of the config, the config, the seed, the results on held-out
training images or test images, thinned metrics, and where the run was executed.
"""

import hashlib
import json
import math
from pathlib import Path

FORMAT_VERSION = 1
CONFIG_VERSION = 1
"""Version of the names of the settings in a key; a rename raises it and migrates the records."""

# Settings that do not change what a run learns.
NOT_IN_KEY = ("root", "workers", "device", "log_every", "watch_every", "checkpoint_every", "keep")
NOT_IN_KEY += ("tensorboard", "pool", "knn_neighbours", "skip_unreadable")
KEPT = ("loss", "mi", "mi_ceiling", "ess", "ess_with_positive", "gain", "temperature", "rate")
KEPT += ("alignment", "uniformity", "effective_rank", "images_per_second")
WATCHED = ("knn", "pool_mi", "pool_ceiling", "pool_scale")
DIGITS = 5


def settings_of(config):
    """The settings that decide what a run learns, by name."""
    flat = {name: value for part in config.values() for name, value in part.items()}
    return {name: flat[name] for name in sorted(flat) if name not in NOT_IN_KEY}


def key_of(config):
    """A versioned key of a config: equal for runs that learn the same."""
    text = json.dumps(settings_of(config), sort_keys=True, separators=(",", ":"))
    return f"v{CONFIG_VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def thinned(metrics):
    """One line per epoch: the last training line of the epoch, with what was watched then."""
    by_epoch = {}
    for line in metrics:
        if line.get("kind") not in ("train", "watch"):
            continue
        epoch = math.ceil(line["epoch"] - 1e-9)
        names = KEPT if line["kind"] == "train" else WATCHED
        found = {name: rounded(line[name]) for name in names if line.get(name) is not None}
        by_epoch.setdefault(epoch, {"epoch": epoch}).update(found)
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def rounded(value):
    """A number with a few significant digits; anything else as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def record_of(name, piece, step, run, evaluation, where):
    """The record of one run, in plain data.

    Arguments:
        name: Of the run.
        piece: Of the programme, as the protocol numbers it.
        step: Of the piece.
        run: As :func:`flatnce.pretrain.runs.log.read_run` gives it.
        evaluation: Its results, with the images they are on.
        where: Commit and versions.
    """
    config = {section: dict(values) for section, values in run.config.items()}
    config["data"]["root"] = None
    results = run.results
    return {
        "format_version": FORMAT_VERSION,
        "key": key_of(config),
        "name": name,
        "piece": piece,
        "piece_step": step,
        "purpose": "tuning" if evaluation["on"] == "held-out training images" else "evaluation",
        "seed": config["run"]["seed"],
        "config": config,
        "evaluation": evaluation,
        "results": {
            "steps": results["step"],
            "epochs": results["epochs"],
            "images": results["images"],
            "seconds": rounded(results["seconds"]),
            "verdict": results["verdict"],
        },
        "metrics": thinned(run.metrics),
        "environment": where,
    }


def write(record, folder):
    """Write a record under a folder; return its path."""
    path = Path(folder) / f"{record['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def read_all(folder):
    """All records under a folder, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path(folder).glob("*.json"))
    }
