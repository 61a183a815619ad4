"""Accuracies, intervals and average precision against their definitions."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from flatnce.pretrain.evaluation import measure, measure_several, wilson_interval
from flatnce.pretrain.evaluation.metrics import average_precision, hits


def plain_average_precision(scores, labels):
    """VOC2007's development kit, as loops."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    order = [i for i in order if labels[i] >= 0]
    positives = sum(labels[i] > 0 for i in order)
    if not positives:
        return math.nan
    points, found = [], 0
    for seen, i in enumerate(order, start=1):
        found += labels[i] > 0
        points.append((found, found / seen))
    total = 0.0
    for tenth in range(11):
        reached = [p for found, p in points if 10 * found >= tenth * positives]
        total += max(reached, default=0.0) / 11
    return total


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


def test_accuracy_by_class_averages_to_the_whole():
    labels = torch.tensor([0, 0, 0, 1, 2])
    scores = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 1, 1]), 4).float()
    found = measure(scores, labels, classes=("a", "b", "c", "d"), per_class=True)
    assert found["top1"] == 0.6 and found["top5"] == 1.0 and found["top5_of"] == 4
    assert found["per_class"] == {"a": pytest.approx(2 / 3), "b": 1.0, "c": 0.0, "d": None}


def test_classes_of_one_name_stay_apart():
    found = measure(torch.eye(2), torch.arange(2), classes=("crane", "crane"), per_class=True)
    assert found["per_class"] == {"0 crane": 1.0, "1 crane": 1.0}


@pytest.mark.parametrize("right, total", [(0, 10), (10, 10), (1, 3), (348, 359), (9_213, 10_000)])
def test_the_interval_is_wilsons(right, total):
    expected = stats.binomtest(right, total).proportion_ci(method="wilson")
    assert wilson_interval(right, total) == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_is_the_development_kits(seed):
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 30, 80).astype(np.float64)  # some ties
    labels = generator.choice([1.0, 0.0, -1.0], 80, p=[0.2, 0.6, 0.2])
    got = average_precision(torch.from_numpy(scores), torch.from_numpy(labels))
    assert got.item() == pytest.approx(plain_average_precision(scores, labels), abs=1e-12)


def test_weights_count_an_image_several_times():
    scores, labels = torch.rand(30), (torch.rand(30) < 0.4).float()
    times = torch.randint(3, (30,))
    repeated = times.repeat_interleave(times).new_tensor(
        [i for i, t in enumerate(times.tolist()) for _ in range(t)]
    )
    expected = average_precision(scores[repeated], labels[repeated])
    got = average_precision(scores, labels, times.double()[None])
    assert got.item() == pytest.approx(expected.item(), abs=1e-12)


def test_mean_average_precision_leaves_out_a_class_that_no_image_shows():
    scores = torch.rand(50, 3)
    labels = torch.stack([torch.ones(50), (torch.rand(50) < 0.5).float(), torch.zeros(50)], 1)
    found = measure_several(scores, labels, classes=("a", "b", "c"), per_class=True)
    each = found["per_class"]
    assert each["c"] is None and each["a"] == 1.0
    assert found["map"] == pytest.approx((each["a"] + each["b"]) / 2)
    assert found["measure"] == "mAP, 11-point" and found["test_images"] == 50
    low, high = found["interval"]
    assert low < found["map"] < high
    assert found == measure_several(scores, labels, classes=("a", "b", "c"), per_class=True)


@pytest.mark.parametrize("measured", [measure, measure_several])
def test_scores_that_are_not_numbers_are_refused(measured):
    labels = torch.zeros(2, 3) if measured is measure_several else torch.zeros(2).long()
    with pytest.raises(ValueError, match="scores holds NaN"):
        measured(torch.full((2, 3), math.nan), labels)


def test_labels_that_show_nothing_are_refused():
    with pytest.raises(ValueError, match="nothing to measure"):
        measure_several(torch.rand(4, 2), torch.zeros(4, 2))
