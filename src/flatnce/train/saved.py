"""What a run directory holds: the config it was made with, and a checkpoint that belongs to it."""

import json
from pathlib import Path

from flatnce import checkpoint
from flatnce.data.catalog import is_path
from flatnce.environment import plain
from flatnce.runlog import read_run
from flatnce.train.config import TrainConfig
from flatnce.train.recorder import KIND

__all__ = ["CHECKPOINTS", "PATHS", "read_config", "read_saved", "with_whole_paths"]

CHECKPOINTS = "checkpoints"
# config.json leaves this machine's paths out; a checkpoint has them.
PATHS = ("data", "root")


def read_config(directory: str | Path) -> TrainConfig:
    """The config of a run, paths shortened.

    Arguments:
        directory: The run's.
    """
    return TrainConfig.from_plain(_written(Path(directory)))


def read_saved(
    directory: str | Path, step: int | None = None
) -> tuple[TrainConfig, checkpoint.Checkpoint]:
    """The whole config of a run and a checkpoint of it, the newest unless a step is named.

    Arguments:
        directory: The run's.
        step: Which checkpoint.
    """
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
    """The config with paths that mean the same from every working directory.

    Arguments:
        config: As typed.
    """
    data, root = config.data.data, config.data.root
    if is_path(data):
        config = config.override(data=str(Path(data).expanduser().resolve()))
    if root is not None:
        config = config.override(root=str(Path(root).expanduser().resolve()))
    return config


def _written(directory: Path) -> dict[str, dict[str, object]]:
    run = read_run(directory)
    if run.kind != KIND:
        raise ValueError(f"{run.directory} holds a {run.kind} run; name one of `flatnce train`")
    return run.config
