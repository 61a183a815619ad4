"""What a run directory holds: the config it was made with, and a checkpoint that belongs to it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatnce.environment import plain
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.data.catalog import find, is_path
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import FAILURE, Run, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.recorder import KIND

__all__ = ["CHECKPOINTS", "PATHS", "Standing", "read_saved", "standing_of", "with_whole_paths"]

CHECKPOINTS = "checkpoints"
# config.json leaves this machine's paths out; a checkpoint has them.
PATHS = ("data", "root")


@dataclass(frozen=True)
class Standing:
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


def standing_of(directory: str | Path) -> Standing:
    """How far a run came, from its folder."""
    place = Path(directory)
    run = read_run(place)
    kept = checkpoint.steps(place / CHECKPOINTS)
    reached = (run.results or {}).get("step")
    if reached is not None:
        return Standing(True, reached, reached)
    failures = [line for line in run.metrics if line.get("kind") == FAILURE]
    failed: dict[str, Any] = failures[-1] if failures else {}
    return Standing(
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


def with_whole_paths(config: TrainConfig) -> TrainConfig:
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
