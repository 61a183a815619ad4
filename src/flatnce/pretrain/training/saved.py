"""What a run directory holds: the config it was made with, and a checkpoint that belongs to it."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatnce.environment import plain
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
    "RunStatus",
    "SWEEP",
    "find_run",
    "load_encoder",
    "read_config",
    "read_saved",
    "run_status",
    "runs_in",
    "with_absolute_paths",
]

KIND = "train"
"""Kind of run directory that training writes."""
CHECKPOINTS = "checkpoints"
# config.json leaves this machine's paths out; a checkpoint has them.
PATHS = ("data", "root")


@dataclass(frozen=True)
class RunStatus:
    """How far a run came.

    Arguments:
        finished: Whether it reached its end.
        step: Of its newest checkpoint; 0 where it has none.
        steps: Of the whole run; None where its folder does not tell.
        failure: Why it failed; empty where it did not.
        diverged: Whether its numbers ceased to be finite: the same steps would end there again.
    """

    finished: bool
    step: int
    steps: int | None
    failure: str = ""
    diverged: bool = False


def run_status(directory: str | Path) -> RunStatus:
    """How far a run came, from its folder."""
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


def read_config(directory: str | Path) -> TrainConfig:
    """The config of a run, paths shortened.

    Arguments:
        directory: The run's.
    """
    return TrainConfig.from_plain(_written(Path(directory)))


def read_saved(
    directory: str | Path, step: int | None = None
) -> tuple[TrainConfig, checkpoint.Checkpoint]:
    """The whole config of a run and a checkpoint of it, the newest unless a step is named."""
    place = Path(directory)
    written = _written(place)
    found = checkpoint.load(place / CHECKPOINTS, step)
    config = TrainConfig.from_plain(found.state["config"])
    mine = {k: v for part in written.values() for k, v in part.items()}
    theirs = json.loads(json.dumps(plain(config.flat()), allow_nan=False))
    strange = [k for k in theirs if k in mine and k not in PATHS and mine[k] != theirs[k]]
    if strange:
        name = strange[0]
        raise ValueError(
            f"{found.folder} is a checkpoint of another model or run: {name} is {theirs[name]!r} "
            f"in it and {mine[name]!r} in config.json; put the run's own files back"
        )
    return config, found


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The config with paths that mean the same from every working directory."""
    data, root = config.data.data, config.data.root
    if is_path(data):
        config = config.override(data=str(Path(data).expanduser().resolve()))
    if root is not None:
        config = config.override(root=str(Path(root).expanduser().resolve()))
    return config


def _steps_of(run: Run) -> int | None:
    """Steps that a run was to take, as far as its folder tells."""
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


def _written(directory: Path) -> dict[str, dict[str, object]]:
    run = read_run(directory)
    if run.kind != KIND:
        raise ValueError(f"{run.directory} holds a {run.kind} run; name one of `flatnce train`")
    return run.config


RUNS = "runs"
SWEEP = "sweep.json"
"""What a folder of many runs has, and no run."""
MOST_NAMED = 8


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder and what is needed to use it.

    Arguments:
        encoder: In evaluation mode, on the device.
        config: How it was trained.
        step: Steps of training.
        normalisation: Mean and standard deviation of pixels in [0, 1], by channel.
        channels: Colours of an image.
        size: Side of an image it was trained on, in pixels.
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
    """The encoder of a run, at its newest checkpoint or at a step that is kept.

    Arguments:
        directory: The run's.
        step: Which checkpoint.
        device: Where the encoder is wanted.
    """
    place = Path(directory)
    config, found = read_saved(place, step)
    channels, size = found.state["channels"], found.state["size"]
    # The weights come from the checkpoint: published ones are not fetched again.
    model = config.override(pretrained=False).model
    encoder = build_encoder(model, channels=channels, size=size)
    found.restore(encoder, prefix="encoder.")
    encoder.to(device).eval()
    return LoadedEncoder(
        encoder, config, found.step, normalisation(config.data.data), channels, size
    )


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
            one = f", for example {name}/{inside[0]}" if inside else "; none has begun"
            raise ValueError(
                f"RUN={str(name)!r} is a sweep of {len(inside)} runs; name one of them{one}"
            )
    there = runs_in(Path(RUNS))
    sweeps = sorted(path.parent.name for path in Path(RUNS).glob(f"*/{SWEEP}"))
    for sweep in sweeps:
        there += [f"{sweep}/{inside}" for inside in runs_in(Path(RUNS) / sweep)]
    near = difflib.get_close_matches(str(name), [*there, *sweeps], n=1)
    known = f"there are {', '.join(there[:MOST_NAMED])}" if there else f"none is in {RUNS}/"
    known += ", ..." if len(there) > MOST_NAMED else ""
    known = f"did you mean {near[0]!r}?" if near else known
    raise ValueError(f"RUN={str(name)!r} is no run directory and no name of one; {known}")


def runs_in(directory: Path) -> list[str]:
    """Names of the runs in a folder, sorted; those that have begun."""
    return sorted(path.parent.name for path in directory.glob("*/config.json"))
