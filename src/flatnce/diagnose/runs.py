"""A run of ``flatnce train``: its log, and its encoder's embeddings where they can be made."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flatnce.diagnose.embeddings import doctor
from flatnce.diagnose.findings import Diagnosis, Finding, in_order
from flatnce.diagnose.records import NEEDED, findings_on, judgeable
from flatnce.pretrain.data import permutation
from flatnce.pretrain.evaluation import embed_views
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import load_images, views_of
from flatnce.pretrain.training.learner import build_objective
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import (
    KIND,
    LoadedEncoder,
    RunStatus,
    find_run,
    load_encoder,
    run_status,
)

IMAGES = 512
"""Images whose views are embedded: enough to see one false negative in a hundred thousand pairs,
and half a minute for a small ResNet on two cores."""

EMBEDDINGS_ONLY = (
    "broken rows",
    "identical views",
    "duplicates",
    "false negatives",
    "dimensional collapse",
)
"""What is taken from the embeddings. The log, which saw thousands of batches as they were trained
on, knows the rest better."""

# Beside the seeds of training, watching and portraying: views that nobody has drawn.
UNSEEN_VIEWS = 2**35
WATCHED = ("knn", "pool_mi", "pool_ceiling", "pool_top1")


def examine_run(
    name: str | Path, *, embeddings: bool = True, device: str = "auto", images: int = IMAGES
) -> Diagnosis:
    """Judge a run, going on, finished or failed."""
    place = find_run(name)
    run = read_run(place)
    if run.kind != KIND:
        raise ValueError(
            f"{place} holds a {run.kind} run; the doctor reads those of flatnce train"
        )
    config = TrainConfig.from_plain(run.config)
    objective = type(build_objective(config.loss, steps=1)).__name__
    history, numbers = _history(run), _watched(run)
    unknown: list[str] = []
    standing = run_status(place)
    findings = [_failed(standing)] if standing.failure else []
    if history:
        last = {key: value for key, value in history[-1].items() if math.isfinite(value)}
        numbers = {**last, **numbers}
        findings += findings_on(history, objective, available=_available(config, history))
    else:
        unknown.append("the log has no line of training yet: wait for the first interval")
    if embeddings:
        try:
            seen = _embedded(place, device, images, numbers, objective)
        except (OSError, ValueError) as error:  # a run without its data, or without a checkpoint
            unknown.append(f"what only embeddings show, as there are none: {error}")
        else:
            findings += [one for one in seen.findings if one.kind in EMBEDDINGS_ONLY]
            numbers["embeddings"] = dict(seen.numbers)
            unknown += seen.unknown
    else:
        unknown.append("what only embeddings show: they were not asked for")
    judged = bool(history)
    return Diagnosis(f"run {place}", in_order(findings), numbers, tuple(unknown), judged)


def _history(run: Run) -> list[Mapping[str, float | int]]:
    """Lines of training that can be judged; what was not finite is null in them."""
    records = []
    for line in run.metrics:
        if line.get("kind") == "train" and "step" in line:
            lost = {key: math.nan for key in NEEDED if key in line and line[key] is None}
            kept = {key: one for key, one in line.items() if isinstance(one, int | float)}
            records.append({**kept, **lost})
    return judgeable(records)


def _watched(run: Run) -> dict[str, Any]:
    lines = [line for line in run.metrics if line.get("kind") == "watch"]
    return {key: lines[-1][key] for key in WATCHED if lines and key in lines[-1]}


def _available(config: TrainConfig, history: list[Mapping[str, float | int]]) -> int:
    """Directions the embeddings of the last interval could use."""
    seen = int(history[-1].get("steps", 1)) * config.run.batch_size
    return min(config.model.head_out, seen)


def _failed(standing: RunStatus) -> Finding:
    remedies = (
        ("lower the learning rate or lengthen its warm-up", "raise the temperature")
        if standing.diverged
        else ("remove what it names, and go on by `flatnce resume RUN`",)
    )
    return Finding("failed", standing.failure, remedies, standing.step)


def _embedded(
    place: Path, device: str, images: int, numbers: Mapping[str, Any], objective: str
) -> Diagnosis:
    """The doctor on fresh views of some of the images that the run was trained on."""
    run = load_encoder(place, device=choose_device(device))
    config = run.config
    z1, z2 = _views(run, images)
    # Not its labels: they are for evaluation. The better an encoder has sorted the classes, the
    # more of the push members of one class carry. That is no fault of a run that knows no labels.
    return doctor(
        z1,
        z2,
        temperature=numbers.get("temperature", config.loss.temperature),
        batch_size=min(config.run.batch_size, len(z1)),
        objective=objective,
    )


def _views(run: LoadedEncoder, images: int) -> tuple[torch.Tensor, torch.Tensor]:
    config, device = run.config, next(run.encoder.parameters()).device
    source = load_images(config.data, device)
    # No more than there are; the run's own seed, so that the same are looked at again.
    chosen = permutation(len(source), config.run.seed)[:images].sort().values
    part = source.subset(chosen)
    views = replace(views_of(config, run.size), seed=UNSEEN_VIEWS + config.run.seed)
    return embed_views(run.encoder, part, views, run.channels, config.data.workers)
