"""A trained encoder out of its run directory."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flatnce.pretrain.models import Encoder
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import normalisation
from flatnce.pretrain.training.learner import build_encoder
from flatnce.pretrain.training.saved import read_saved

__all__ = ["RUNS", "SWEEP", "runs_in"]

RUNS = "runs"
SWEEP = "sweep.json"
"""What a folder of many runs has, and no run."""
MOST_NAMED = 8


@dataclass(frozen=True)
class Trained:
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


def trained(
    directory: str | Path, step: int | None = None, device: torch.device | str = "cpu"
) -> Trained:
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
    return Trained(encoder, config, found.step, normalisation(config.data.data), channels, size)


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
