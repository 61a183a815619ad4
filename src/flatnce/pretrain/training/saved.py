"""What is saved of a training run: its config, its status, its checkpoints, its encoder."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Unpack

import msgspec
import torch

from flatnce.environment import plain
from flatnce.own_code import ARGUMENTS, OBJECT, Named, OwnObjects
from flatnce.pretrain.data import is_path
from flatnce.pretrain.models import Encoder
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.folder import find_run, run_name
from flatnce.pretrain.runs.log import CONFIG, FAILURE, SHAPES, Run, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import normalisation
from flatnce.pretrain.training.learner import build_encoder

__all__ = [
    "CHECKPOINTS",
    "KIND",
    "LoadedEncoder",
    "describe_status",
    "in_brief",
    "load_encoder",
    "own_settings",
    "read_config",
    "run_status",
    "use_objects",
]

KIND = "train"  # kind of run directory that training writes
CHECKPOINTS = "checkpoints"
PATHS = ("data", "root")  # settings that config.json shortens: paths of one machine


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come."""

    finished: bool
    step: int  # of its newest checkpoint; 0 without one
    steps: int | None  # of the whole run; None where its folder does not say
    failure: str = ""
    diverged: bool = False  # whether a number was not finite: it would diverge again


def run_status(given: str | Path | Run) -> RunStatus:
    """How far a run has come, from its folder or what was read there."""
    run = given if isinstance(given, Run) else read_run(given)
    reached = (run.results or {}).get("step")
    if reached is not None:
        return RunStatus(True, reached, reached)
    step = max(checkpoint.steps(run.directory / CHECKPOINTS), default=0)
    failed = run.last(FAILURE)
    config = TrainConfig.from_plain(run.config, run.directory / CONFIG)
    line = next((line for line in run.metrics if line.get("epoch") and line.get("step")), None)
    steps = failed.get("of_steps")
    if steps is None and line is not None:
        steps = round(line["step"] / line["epoch"] * config.run.epochs)
    return RunStatus(False, step, steps, failed.get("message", ""), failed.get("diverged", False))


def describe_status(directory: Path, step: int) -> tuple[dict[str, Any], str]:
    """The status of a run for JSON output, and a line about a checkpoint of an incomplete run."""
    status = run_status(directory)
    data: dict[str, Any] = {"finished": status.finished, "steps": status.steps}
    here = f"step {step:,}" if status.steps is None else f"step {step:,} of {status.steps:,}"
    said = ""
    if status.failure:
        data["failure"] = status.failure
        said = f"the run failed ({in_brief(status.failure)}); this is its {here}"
        said = said if step else f"untrained: {said}"
    elif not step:
        said = f"untrained: this is {here}, before any training"
    elif not status.finished:
        again = f"`flatnce resume {quote(run_name(directory))}`"
        said = f"not finished: this is {here}; continue it: {again}"
    return data, said


def in_brief(failure: str) -> str:
    """The first reason of a failure; metrics.jsonl has the whole message."""
    return textwrap.shorten(failure.partition(";")[0], 160, placeholder="...")


def read_config(directory: str | Path) -> TrainConfig:
    """The config of a run directory, with shortened paths."""
    return TrainConfig.from_plain(read_run(directory, KIND).config, Path(directory) / CONFIG)


def read_saved(
    directory: str | Path, step: int | None = None
) -> tuple[TrainConfig, checkpoint.Checkpoint]:
    """The whole config of a run and a checkpoint of it, by default the newest."""
    mine = read_run(directory, KIND).settings
    found = checkpoint.load(Path(directory) / CHECKPOINTS, step)
    try:
        msgspec.convert(found.state, SHAPES["state"])
    except ValueError as error:
        raise checkpoint.DamagedCheckpoint(f"{found.folder} is damaged ({error})") from error
    config = TrainConfig.from_plain(found.state["config"], found.folder)
    difference = first_difference(plain(config.flat()), mine)
    if difference:
        raise ValueError(
            f"{found.folder} is a checkpoint of another model or run: {difference} in "
            "config.json; restore the run's own files"
        )
    return config.override(**_objects.get(Path(directory).resolve(), {})), found


_objects: dict[Path, dict[str, Any]] = {}  # given in this process, by run and setting


def use_objects(run: str | Path, **objects: Unpack[OwnObjects]) -> None:
    """Set the objects that the names in a run's config stand for, in this process.

    ``train`` and ``resume`` do that with their arguments. Call it before other functions on a run
    that was trained with objects which cannot be imported.

    Arguments:
        run: A run's name in the folder of runs, or its path.
        **objects: ``encoder``, ``data``, ``test_data``, ``augment``, ``batch_augment``,
            ``prepare``; of the kinds that the run was trained with.
    """
    given = own_settings(objects)
    if not given:
        return
    directory = find_run(run)
    there = read_run(directory, KIND).settings
    for setting, value in given.items():
        # Code of a program that was run itself is recorded by its own name only.
        names = [name.rpartition(":")[2].rpartition(".")[2] for name in (value, there[setting])]
        of_program = there[setting].startswith(f"{OBJECT}:") and names[0] == names[1]
        if value != there[setting] and not of_program:
            raise ValueError(
                f"{ARGUMENTS.get(setting, setting)} is {value}, and {directory} was trained with "
                f"{there[setting]}; give an object of that kind"
            )
    _objects.setdefault(directory.resolve(), {}).update(given)


def own_settings(objects: OwnObjects) -> dict[str, Any]:
    """Arguments that are objects, as settings of a config."""
    settings = {argument: setting for setting, argument in ARGUMENTS.items()}
    unknown = [name for name in objects if name not in OwnObjects.__annotations__]
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}")
    return {
        settings.get(name, name): value if isinstance(value, str) else Named(value)
        for name, value in objects.items()
        if value is not None
    }


def remember_objects(directory: Path, config: TrainConfig) -> None:
    """Use the objects of a config for its run from now on."""
    settings = {**vars(config.data), **vars(config.model)}
    found = {name: value for name, value in settings.items() if isinstance(value, Named)}
    _objects[directory.resolve()] = found


def first_difference(
    there: Mapping[str, Any], here: Mapping[str, Any], but: Collection[str] = PATHS
) -> str:
    """The first setting that differs, in words; empty where all that both have agree."""
    for name, value in there.items():
        other = here.get(name, value)
        if name == "data" and name in but and str(other) not in (".", "~"):
            value, other = Path(str(value)).name, Path(str(other)).name  # a path may be shortened
        elif name in but:
            continue
        if value != other:
            return f"{name} is {value!r} there and {other!r}"
    return ""


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The config with paths that do not depend on the working directory."""
    paths = {"root": config.data.root}
    if is_path(config.data.data):
        paths["data"] = config.data.data
    whole = {name: str(Path(path).expanduser().resolve()) for name, path in paths.items() if path}
    return config.override(**whole)


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder and what is needed to use it."""

    encoder: Encoder  #: In evaluation mode, on the device.
    config: TrainConfig  #: The config it was trained with.
    step: int  #: Steps of training.
    #: Mean and standard deviation of pixels in [0, 1], by channel.
    normalisation: tuple[Sequence[float], Sequence[float]]
    channels: int  #: Channels of an image.
    size: int  #: Side of an image in training, in pixels.
    shape: tuple[int, ...]  #: Shape of an input in training.
    ready: bool = False  #: Whether a user's own code made the views.


def load_encoder(
    directory: str | Path, step: int | None = None, device: torch.device | str = "cpu"
) -> LoadedEncoder:
    """Load the encoder of a run from a checkpoint, by default the newest.

    Arguments:
        directory: The run's directory.
        step: The step of a checkpoint that was kept.
        device: The encoder's device.
    """
    config, found = read_saved(directory, step)
    channels, size = found.state["channels"], found.state["size"]
    model = config.override(pretrained=False).model  # do not download published weights
    shape = tuple(found.state.get("shape", (channels, size, size)))
    example = torch.zeros(2, *shape, dtype=getattr(torch, found.state.get("dtype", "float32")))
    encoder = build_encoder(model, example)
    found.restore(encoder, prefix="encoder.")
    encoder.to(device).eval()
    ready = found.state.get("ready", False)
    pixels = normalisation(config.data.data, channels, ready)
    return LoadedEncoder(encoder, config, found.step, pixels, channels, size, shape, ready)
