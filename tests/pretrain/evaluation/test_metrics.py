"""Accuracies and intervals against their definitions."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from flatnce.pretrain.evaluation import measure
from flatnce.pretrain.evaluation.metrics import hits


@pytest.mark.parametrize("k", [1, 2, 5])
def test_hits_are_those_among_the_k_best(k):
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 4, (200, 6)).astype(np.float64)  # many ties
    labels = generator.integers(0, 6, 200)
    best = [sorted(range(6), key=lambda c, row=row: (-row[c], c))[:k] for row in scores]
    expected = [label in few for label, few in zip(labels, best, strict=True)]
    assert hits(torch.from_numpy(scores), torch.from_numpy(labels), k).tolist() == expected


def test_a_class_at_minus_infinity_is_never_a_hit():
    scores = torch.tensor([[1.0, -math.inf, -math.inf]])
    assert not hits(scores, torch.tensor([1]), 3).item()


def test_accuracy_is_the_share_of_hits():
    labels = torch.tensor([0, 0, 0, 1, 2])
    scores = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 1, 1]), 4).float()
    found = measure(scores, labels)
    assert found["top1"] == 0.6 and "top5" not in found


@pytest.mark.parametrize("classes", [5, 6])
def test_top_5_is_measured_with_more_than_5_classes(classes):
    labels = torch.arange(classes)
    found = measure(torch.arange(classes).double().repeat(classes, 1), labels)
    assert found.get("top5") == (5 / 6 if classes == 6 else None)


@pytest.mark.parametrize("right, total", [(0, 10), (10, 10), (1, 3), (348, 359), (9_213, 10_000)])
def test_the_interval_is_wilsons(right, total):
    expected = stats.binomtest(right, total).proportion_ci(method="wilson")
    scores = torch.tensor([[1.0, 0.0]]).expand(total, 2)
    found = measure(scores, (torch.arange(total) >= right).long())
    assert found["top1"] == right / total
    assert found["interval"] == pytest.approx(list(expected), abs=1e-12)


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="scores holds NaN"):
        measure(torch.full((2, 3), math.nan), torch.zeros(2).long())


def test_rows_without_a_label_are_refused():
    with pytest.raises(ValueError, match="labels holds -1"):
        measure(torch.rand(2, 3), torch.tensor([0, -1]))
