"""A test part for a folder of images that has none: a fifth of every class, held out.

The draw is the same whatever the options, so that all evaluations of a folder are of the same
images. The encoder may have been pretrained on them, without their labels: a result says so.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from flatnce.pretrain.data import FolderSet, ImageSet, holdout
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.data.folders import has_part
from flatnce.pretrain.evaluation.choice import drawn

SHARE, SEED = 0.2, 0
# Of which a fifth is one image.
FEWEST = 5


def has_no_test(data: str) -> bool:
    """Whether a set is a folder without a test part of its own."""
    return is_path(data) and Path(data).expanduser().is_dir() and not has_part(data, "test")


def split_labels(
    image_set: ImageSet | FolderSet, data: str
) -> tuple[Int64[Tensor, " rest"], Int64[Tensor, " held"]]:
    """The images to train on and those to test on, by class."""
    labels, classes = image_set.labels.cpu(), image_set.classes
    counts = torch.bincount(labels, minlength=len(classes))
    few = [
        f"{name} has {n}" for name, n in zip(classes, counts.tolist(), strict=True) if n < FEWEST
    ]
    why = f"{len(few)} of its {len(classes)} classes are too small for that ({', '.join(few[:3])})"
    if len(classes) < 2:
        why = f"it has one class, {classes[0]}, and nothing to tell it from"
    if few or len(classes) < 2:
        raise ValueError(
            f"{data} has no test part (val or test), and a fifth of every class cannot be held "
            f"out instead: {why}. Put labelled images into {data.rstrip('/')}/train/CLASS and "
            "/val/CLASS, or evaluate on another set: `flatnce evaluate RUN --data NAME`"
        )
    return holdout(labels, SHARE, SEED)


def held_out_part(part: str, held: Int64[Tensor, " m"], own: bool) -> dict[str, Any]:
    """What a result says of such a part."""
    if part == "train":
        return {"split": "train, without the images held out as a test part"}
    how = {"fraction": SHARE, "draw": "stratified", "seed": SEED, "drawn": drawn(held)}
    seen = {"note": "the encoder was pretrained on these images too, without their labels"}
    return {"split": "held out of train", **how, **(seen if own else {})}
