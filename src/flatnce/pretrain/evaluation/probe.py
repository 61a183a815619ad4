"""The linear probe: logistic regression on frozen features, λ chosen on held-out training images.

References:
    Kornblith, Shlens, Le, 2019, "Do better ImageNet models transfer better?", Appendix A
    (L-BFGS, λ from a grid, refitted on all), https://arxiv.org/abs/1805.08974
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from flatnce.pretrain.evaluation.choice import choose, validation_split
from flatnce.pretrain.evaluation.features import Features
from flatnce.pretrain.evaluation.logistic import TOLERANCE, LogisticFit, Regression
from flatnce.pretrain.evaluation.metrics import average_precision, hits

REGULARISATIONS = tuple(10.0**power for power in range(1, -7, -1))
"""Strongest first: of two that do equally well, in accuracy and in loss, the stronger is taken."""

VALIDATION = 0.1
"""Share of the training images on which choices are made."""

# Which λ is best is settled before the last digits of the weights are.
COARSE = 10 * TOLERANCE


@dataclass(frozen=True, eq=False)
class Probe:
    """What a classifier says of the test images, and how it came about.

    Arguments:
        scores: One a test image and class.
        protocol: Everything needed to repeat it, in plain data.
    """

    scores: Float64[Tensor, "n k"]
    protocol: dict[str, Any]


def linear_probe(
    train: Features,
    test: Features | Tensor,
    *,
    regularisations: Sequence[float] = REGULARISATIONS,
    validation: float = VALIDATION,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> Probe:
    """Logistic regression to convergence; one against the rest where images show several classes.

    λ is chosen by accuracy (or mean average precision) on a part of the training images that is
    held out, then the regression is refitted on all of them. The labels of the test images are
    not looked at. See :mod:`flatnce.pretrain.evaluation.logistic` for the formula and for scikit-learn's.

    Arguments:
        train: Features and labels of the training images.
        test: Features of the test images.
        regularisations: λ's to choose from; a single one is taken as it is.
        validation: Share of the training images held out to choose on.
        seed: Of that draw.
        tolerance: When a fit counts as converged.

    Examples:
        >>> import torch
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> x[:, 0] += 3.0 * y
        >>> found = linear_probe(Features(x[:45], y[:45]), x[45:])
        >>> found.scores.shape, found.protocol["converged"]
        (torch.Size([15, 3]), True)
    """
    asked = test.features if isinstance(test, Features) else test
    _check(train, asked, regularisations)
    start, chosen = None, regularisations[0]
    how: dict[str, Any] = {}
    if len(regularisations) > 1:
        start, how = _chosen(train, regularisations, validation, seed)
        chosen = start.regularisation
    fit = Regression(train).fit(chosen, start=start, tolerance=tolerance)
    kind = "logistic regression, one against the rest"
    protocol: dict[str, Any] = {
        "classifier": kind if train.several else "multinomial logistic regression",
        "optimizer": "L-BFGS",
        "features": "standardised by the training images",
        **how,
        "regularisation": chosen,
        "sklearn_C": 1 / (chosen * len(train)) if chosen else None,
        "fitted_on": len(train),
        "converged": fit.converged,
        "iterations": fit.iterations,
        "gradient": fit.gradient,
        "tolerance": tolerance,
        "training_loss": fit.loss,
    }
    return Probe(fit.classifier.scores(asked), protocol)


def _chosen(
    train: Features, regularisations: Sequence[float], validation: float, seed: int
) -> tuple[LogisticFit, dict[str, Any]]:
    """The fit of the best λ on the rest of the images, and how it was chosen."""
    rest, held = validation_split(train.labels, validation, seed)
    fits, aside = _path(train.subset(rest), regularisations), train.subset(held)

    def score(regularisation: float) -> tuple[float, float]:
        return goodness(fits[regularisation].classifier.scores(aside.features), aside)

    choice = choose("regularisation", regularisations, score, held, seed)
    # Of a λ at the end of the grid a better one may lie beyond.
    at_end = choice.value in (min(regularisations), max(regularisations))
    return fits[choice.value], {**choice.protocol, "regularisation_at_end": at_end}


def goodness(scores: Tensor, held: Features) -> tuple[float, float]:
    """How good scores are on held-out images: accuracy (or mAP), then minus the loss."""
    if not bool(scores.isfinite().all()):
        return float("nan"), float("nan")
    labels = held.labels
    if not held.several:
        right = hits(scores, labels, 1).to(torch.float64).mean()
        return float(right), -float(cross_entropy(scores, labels))
    each = [average_precision(scores[:, c], labels[:, c]) for c in range(scores.shape[1])]
    mean = torch.cat(each).nanmean()  # a class that no held-out image shows says nothing
    counted = (labels >= 0).to(scores.dtype)
    present = (labels > 0).to(scores.dtype)
    return float(mean), -float(binary_cross_entropy_with_logits(scores, present, counted))


def _path(train: Features, regularisations: Sequence[float]) -> dict[float, LogisticFit]:
    """Fits at several λ, from the strongest on, each from where the last one ended."""
    regression, last = Regression(train), None
    fits: dict[float, LogisticFit] = {}
    for regularisation in sorted(regularisations, reverse=True):
        last = regression.fit(regularisation, start=last, tolerance=COARSE)
        fits[regularisation] = last
    return fits


def _check(train: Features, asked: Tensor, regularisations: Sequence[float]) -> None:
    train.check()
    width = train.features.shape[1]
    if asked.ndim != 2 or asked.shape[1] != width or asked.device != train.features.device:
        raise ValueError(
            f"test has shape {tuple(asked.shape)} on {asked.device}; pass rows of width {width} "
            f"on {train.features.device}, as the training features"
        )
    if not regularisations or not all(0 <= value < float("inf") for value in regularisations):
        raise ValueError(
            f"regularisations={list(regularisations)} must be numbers of at least 0, one or more"
        )
