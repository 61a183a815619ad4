"""What is saved of a training run: its config, its status, its checkpoints, its encoder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatnce.environment import plain
from flatnce.messages import did_you_mean
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.data.catalog import find, is_path
from flatnce.pretrain.models import Encoder
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import FAILURE, Run, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import normalisation
from flatnce.pretrain.training.learner import build_encoder

__all__ = [
    "CHECKPOINTS",
    "KIND",
    "LoadedEncoder",
    "PATHS",
    "RUNS",
    "SWEEP",
    "describe_status",
    "find_run",
    "in_brief",
    "load_encoder",
    "read_config",
    "read_saved",
    "run_name",
    "run_status",
    "runs_in",
    "with_absolute_paths",
]

KIND = "train"
"""Kind of run directory that training writes."""
CHECKPOINTS = "checkpoints"
RUNS = "runs"
"""Folder of runs that are given by name."""
SWEEP = "sweep.json"
"""File that marks the folder of a sweep."""
PATHS = ("data", "root")
"""Settings that config.json shortens, because they name paths of one machine."""
MOST_NAMED = 8
LONGEST_REASON = 160


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come.

    Arguments:
        finished: Whether it is complete.
        step: The step of its newest checkpoint; 0 without one.
        steps: All steps of the run; None where its folder does not say.
        failure: Why it failed; empty where it did not.
        diverged: Whether a number was not finite: the same steps would diverge again.
    """

    finished: bool
    step: int
    steps: int | None
    failure: str = ""
    diverged: bool = False

    def plain(self) -> dict[str, Any]:
        """The status for JSON output."""
        found: dict[str, Any] = {"finished": self.finished, "steps": self.steps}
        return {**found, "failure": self.failure} if self.failure else found

    def describe(self, step: int, name: str) -> str:
        """A line about a checkpoint of an incomplete run; empty for a finished run."""
        whole = "" if self.steps is None else f" of {self.steps:,}"
        if self.failure:
            what = "untrained: the run" if step == 0 else "the run"
            return f"{what} failed ({in_brief(self.failure)}); this is its step {step:,}{whole}"
        if step == 0:
            return f"untrained: this is step 0{whole}, before any training"
        if self.finished:
            return ""
        return f"not finished: this is step {step:,}{whole}; continue it: `flatnce resume {name}`"


def run_status(directory: str | Path) -> RunStatus:
    """How far a run has come, from its folder."""
    place = Path(directory)
    run = read_run(place)
    kept = checkpoint.steps(place / CHECKPOINTS)
    reached = (run.results or {}).get("step")
    if reached is not None:
        return RunStatus(True, reached, reached)
    failures = [line for line in run.metrics if line.get("kind") == FAILURE]
    failed: dict[str, Any] = failures[-1] if failures else {}
    return RunStatus(
        False,
        kept[-1] if kept else 0,
        _steps_of(run),
        failed.get("message", ""),
        bool(failed.get("diverged", False)),
    )


def _steps_of(run: Run) -> int | None:
    """All steps of an unfinished run, as far as its folder says."""
    for line in run.metrics:
        if line.get("kind") == FAILURE and line.get("of_steps"):
            return int(line["of_steps"])
    config = TrainConfig.from_plain(run.config)
    told = next((line for line in run.metrics if line.get("epoch") and line.get("step")), None)
    if told is not None:
        return round(told["step"] / told["epoch"] * config.run.epochs)
    if config.data.data in CATALOG:
        images = find(config.data.data).splits.get(config.data.split, 0)
        return images // config.run.batch_size * config.run.epochs or None
    return None


def in_brief(failure: str) -> str:
    """The first reason of a failure; metrics.jsonl has the whole message."""
    first = failure.partition(";")[0]
    return first if len(first) <= LONGEST_REASON else f"{first[: LONGEST_REASON - 3]}..."


def read_config(directory: str | Path) -> TrainConfig:
    """The config of a run, with shortened paths.

    Arguments:
        directory: The run's directory.
    """
    return TrainConfig.from_plain(_written(Path(directory)))


def read_saved(
    directory: str | Path, step: int | None = None
) -> tuple[TrainConfig, checkpoint.Checkpoint]:
    """The whole config of a run and a checkpoint of it, by default the newest."""
    place = Path(directory)
    written = _written(place)
    found = checkpoint.load(place / CHECKPOINTS, step)
    config = TrainConfig.from_plain(found.state["config"])
    mine = {k: v for part in written.values() for k, v in part.items()}
    theirs = json.loads(json.dumps(plain(config.flat()), allow_nan=False))
    differing = [k for k in theirs if k in mine and k not in PATHS and mine[k] != theirs[k]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"{found.folder} is a checkpoint of another model or run: {name} is {theirs[name]!r} "
            f"in it and {mine[name]!r} in config.json; restore the run's own files"
        )
    return config, found


def _written(directory: Path) -> dict[str, dict[str, object]]:
    run = read_run(directory)
    if run.kind != KIND:
        raise ValueError(f"{run.directory} holds a {run.kind} run; name one of `flatnce train`")
    return run.config


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The config with paths that do not depend on the working directory."""
    data, root = config.data.data, config.data.root
    if is_path(data):
        config = config.override(data=str(Path(data).expanduser().resolve()))
    if root is not None:
        config = config.override(root=str(Path(root).expanduser().resolve()))
    return config


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder and what is needed to use it.

    Arguments:
        encoder: In evaluation mode, on the device.
        config: The config it was trained with.
        step: Steps of training.
        normalisation: Mean and standard deviation of pixels in [0, 1], by channel.
        channels: Channels of an image.
        size: Side of an image in training, in pixels.
    """

    encoder: Encoder
    config: TrainConfig
    step: int
    normalisation: tuple[Sequence[float], Sequence[float]]
    channels: int
    size: int


def load_encoder(
    directory: str | Path, step: int | None = None, device: torch.device | str = "cpu"
) -> LoadedEncoder:
    """Load the encoder of a run from a checkpoint, by default the newest.

    Arguments:
        directory: The run's directory.
        step: The step of a checkpoint that was kept.
        device: The encoder's device.
    """
    place = Path(directory)
    config, found = read_saved(place, step)
    channels, size = found.state["channels"], found.state["size"]
    # The weights come from the checkpoint: do not download published ones.
    model = config.override(pretrained=False).model
    encoder = build_encoder(model, channels=channels, size=size)
    found.restore(encoder, prefix="encoder.")
    encoder.to(device).eval()
    pixels = normalisation(config.data.data)
    return LoadedEncoder(encoder, config, found.step, pixels, channels, size)


def find_run(name: str | Path) -> Path:
    """The directory of a run, given as a path or as a name in ``runs/``.

    Arguments:
        name: As typed.
    """
    given = Path(name)
    for place in (given, Path(RUNS) / given):
        if (place / "config.json").is_file():
            return place
        if (place / SWEEP).is_file():
            inside = runs_in(place)
            one = f", for example {name}/{inside[0]}" if inside else "; none has started"
            raise ValueError(
                f"RUN={str(name)!r} is a sweep of {len(inside)} runs; name one of them{one}"
            )
    there = runs_in(Path(RUNS))
    sweeps = sorted(path.parent.name for path in Path(RUNS).glob(f"*/{SWEEP}"))
    for sweep in sweeps:
        there += [f"{sweep}/{inside}" for inside in runs_in(Path(RUNS) / sweep)]
    known = f"there are {', '.join(there[:MOST_NAMED])}" if there else f"none is in {RUNS}/"
    known += ", ..." if len(there) > MOST_NAMED else ""
    hint = did_you_mean(str(name), [*there, *sweeps], known)
    raise ValueError(f"RUN={str(name)!r} is not a run directory or the name of one; {hint}")


def run_name(directory: Path) -> str:
    """How a run is named on the command line: in ``runs/`` without that folder."""
    inside = directory.parts[:1] == (RUNS,)
    return str(Path(*directory.parts[1:])) if inside else str(directory)


def runs_in(directory: Path) -> list[str]:
    """Names of the runs that have started in a folder, sorted."""
    return sorted(path.parent.name for path in directory.glob("*/config.json"))


def describe_status(directory: Path, step: int) -> tuple[dict[str, Any], str]:
    """The status of a run for JSON output, and a line about one of its checkpoints."""
    status = run_status(directory)
    return status.plain(), status.describe(step, run_name(directory))
