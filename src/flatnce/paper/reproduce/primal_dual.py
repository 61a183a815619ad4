"""The appendix's failed attempts: primal and dual critics, joint or in turn, with K = 1 too."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flatnce.mi.bounds import flo
from flatnce.paper.reproduce.attempts import ATTEMPTS, Attempt
from flatnce.paper.reproduce.known_pairs import Size, Stream, critics_of
from flatnce.paper.reproduce.known_training import Course, train_critics
from flatnce.paper.reproduce.primal_dual_images import Outcome, train_on_images, untrained
from flatnce.paper.reproduce.primal_dual_words import (
    CALIBRATED,
    LINEAR,
    gaussians,
    pictures_of,
    words_of,
)
from flatnce.paper.reproduce.readings import Values, measure
from flatnce.paper.reproduce.recipe import Findings, Finished, Recipe, Setting, no_runs
from flatnce.pretrain.training.config import TrainConfig, preset


def size_of(setting: Setting) -> Size:
    """How much each scale does on Gaussians."""
    return setting.pick(
        smoke=Size((2.0,), setting.seeds, steps=6, pool=100, batches=4, width=16),
        small=Size((2.0, 4.0, 6.0), setting.seeds, steps=800, pool=2_000, batches=50),
        paper=Size((2.0, 4.0, 6.0), setting.seeds, 10_000, 4_000, batches=400, width=256),
    )


def images_of(setting: Setting) -> TrainConfig:
    """What is trained on images."""
    digits = preset("digits").override(batch_size=64)
    return setting.pick(
        smoke=digits.override(epochs=1),
        small=digits.override(epochs=8),
        paper=preset("cifar10").override(epochs=100),
    )


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Every attempt on Gaussians, then on images."""
    size, config = size_of(setting), images_of(setting)
    # At smoke scale every u, joint and alternating, one negative and all, but not each with each.
    few = ATTEMPTS[:3] + ATTEMPTS[6::3]
    tried = setting.pick(smoke=few, small=ATTEMPTS, paper=ATTEMPTS)
    courses = {one: _trained(one, size) for one in tried}
    # On images all critics are cosines: what differs in the critic alone would be there twice.
    on_images = [one for one in tried if one.dual or one.critic == "cosine"]
    if setting.scale == "smoke":
        on_images = on_images[::3]
    outcomes = {
        one: [train_on_images(one, config.override(seed=seed)) for seed in setting.seeds]
        for one in on_images
    }
    rows = [
        _gaussian_row(one, nats, course) for nats in size.nats for one, course in courses.items()
    ]
    start = [untrained(config.override(seed=seed)) for seed in setting.seeds]
    data = config.data.data
    rows.append(_image_row({"objective": "untrained"}, data, start))
    rows += [
        _image_row({**one.variables, "critic": "cosine"}, data, found)
        for one, found in outcomes.items()
    ]
    return Findings(rows, pictures_of(rows, size, data), words_of(rows, size.nats[-1], data))


# Gaussians.


def _trained(one: Attempt, size: Size) -> Course:
    return train_critics(
        critics_of(size, one.critic, one.dual),
        size,
        lambda run, scores, dual, of_u: one.loss(scores, dual, of_u),
        alternating=one.alternating,
    )


def _gaussian_row(one: Attempt, nats: float, course: Course) -> dict[str, Any]:
    measures = {
        CALIBRATED: measure(course.of(nats, course.held_out), "nats"),
        "unstable": measure(course.of(nats, course.unstable()), "share"),
        "gradient's spread": measure(course.of(nats, course.spread), "rounded"),
    }
    if one.dual:
        measures["FLO as trained"] = measure(course.of(nats, _flo_values(course)), "nats")
    return {
        "variables": {"data": gaussians(nats), **one.variables},
        "measures": measures,
    }


@torch.no_grad()
def _flo_values(course: Course) -> Values:
    """FLO of the critic and its u on held-out batches, with all negatives: a bound."""
    size, total = course.size, torch.zeros(course.critics.count, dtype=torch.float64)
    stream = Stream(size, purpose=3)
    for _ in range(size.batches):
        scores, dual = course.critics(*stream.draw(size.batch))
        for run in course.alive.nonzero().flatten().tolist():
            total[run] += flo(scores[run].double(), dual[run].double()) / size.batches
    return [
        float(value) if lives and value.isfinite() else None
        for value, lives in zip(total, course.alive, strict=True)
    ]


# Images.


def _image_row(
    variables: Mapping[str, str], data: str, found: Sequence[Outcome]
) -> dict[str, Any]:
    return {
        "variables": {"data": data, **variables},
        "measures": {
            LINEAR: measure([outcome.linear for outcome in found], "share"),
            "kNN top-1, all labels": measure([outcome.knn for outcome in found], "share"),
            "unstable": measure([float(outcome.diverged) for outcome in found], "share"),
        },
    }


RECIPE = Recipe(
    claim="Joint training of primal and dual critics with one negative works reasonably well and "
    "stays about 2 points top-1 below InfoNCE on MNIST and CIFAR; alternating updates, and u on "
    "the manifold of its optimum, destabilise training: estimators explode after a few epochs.",
    plan=no_runs,
    read=read,
    notes=(
        "The paper prints the manifold as u = g + s(x); its optimum is −g + log Z(x) (erratum "
        "18), and −g + s(x) is trained here.",
        "One rate for all, not tuned for any objective or critic, and few steps: this is about "
        "who learns fastest at these settings, not about who ends highest.",
        "Same budget: as many batches of the same size for every attempt. In alternating training "
        "every other one is of u alone. With one negative a row's only negative is the next row's "
        "partner.",
        "Calibrated InfoNCE is among all held-out pairs, at the scale that is best on others. FLO "
        "as trained is the bound that critic and u give together, on held-out batches with all "
        "negatives.",
        "On images, all critics are cosines at temperature 0.1, trained by Adam at rate 0.001, "
        "which was not tuned for any of them; views are those of the preset. The linear probe has "
        "5 % of the labels (mean of five draws, λ = 0.01), as with all of them an untrained "
        "encoder does nearly as well on digits; kNN has all. Nothing was chosen on test images.",
        "Unstable means scores or gradients that are not finite or, on Gaussians, an end below "
        "half of what the run had reached.",
    ),
    shows={
        "smoke": "small critics and one epoch of digits, seconds on a CPU: shows that the code "
        "works, and nothing about the paper",
        "small": "2, 4 and 6 nats and 8 epochs of digits, minutes on two CPU cores: the "
        "appendix's question, in small",
        "paper": "2, 4 and 6 nats and 100 epochs of CIFAR-10; the paper gives no settings",
    },
)
