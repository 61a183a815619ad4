"""Nearest neighbours against the definition as loops, exactly."""

import math

import numpy as np
import pytest
import torch

from flatnce.pretrain.evaluation import Features, knn_predict, knn_scores
from flatnce.pretrain.evaluation import knn as module


def plain_knn(features, labels, queries, k, temperature, classes):
    """The definition: loops, one number at a time; ties to the lower number, the lower class."""
    predictions, votes = [], []
    for query in queries.tolist():
        similarities = []
        for row in features.tolist():
            product = sum(a * b for a, b in zip(query, row, strict=True))
            similarities.append(product / (math.hypot(*query) * math.hypot(*row)))
        nearest = sorted(range(len(features)), key=lambda j: (-round(similarities[j], 12), j))[:k]
        total = [0.0] * classes
        for j in nearest:
            total[labels[j]] += math.exp(similarities[j] / temperature)
        best = 0
        for c in range(classes):
            if round(total[c] / max(total), 9) > round(total[best] / max(total), 9):
                best = c
        predictions.append(best)
        votes.append(total)
    return np.array(predictions), np.array(votes)


def drawn(n, width, classes, seed, whole=False):
    generator = np.random.default_rng(seed)
    # Whole numbers, few of them: many images are then exactly equally near.
    draw = generator.integers(-1, 2, (n, width)) if whole else generator.normal(size=(n, width))
    draw = draw.astype(np.float32)
    draw[~draw.any(axis=1), 0] = 1.0
    return draw, generator.integers(0, classes, n)


@pytest.mark.parametrize("k", [1, 2, 7, 60])
@pytest.mark.parametrize("whole", [False, True], ids=["reals", "ties"])
@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_it_equals_a_plain_numpy_version_exactly(k, whole, temperature):
    features, labels = drawn(60, 5, 4, seed=1, whole=whole)
    queries, _ = drawn(25, 5, 4, seed=2, whole=whole)
    expected, votes = plain_knn(features, labels, queries, k, temperature, 4)
    train = Features(torch.from_numpy(features), torch.from_numpy(labels), tuple("abcd"))
    got = knn_predict(train, torch.from_numpy(queries), k, temperature)
    assert got.tolist() == expected.tolist()
    scores = knn_scores(train, torch.from_numpy(queries), (k,), temperature)[k]
    shares = scores.clamp_min(0.0)  # no vote is minus infinity
    shares = shares / shares.sum(1, keepdim=True)
    np.testing.assert_allclose(shares, votes / votes.sum(1, keepdims=True), atol=1e-9)


def test_several_k_at_once_and_blocks_of_queries_change_nothing(monkeypatch):
    features, labels = drawn(80, 6, 3, seed=3)
    train = Features(torch.from_numpy(features), torch.from_numpy(labels))
    queries = torch.from_numpy(drawn(17, 6, 3, seed=4)[0])
    together = knn_scores(train, queries, (20, 3))
    assert list(together) == [20, 3]
    monkeypatch.setattr(module, "BLOCK", 160)  # two queries at a time
    for k, scores in together.items():
        assert torch.equal(scores, knn_scores(train, queries, (k,))[k])


def test_a_class_without_a_vote_scores_minus_infinity():
    train = Features(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), tuple("abc"))
    scores = knn_scores(train, torch.tensor([[1.0, 0.1]]), (1,))[1]
    assert scores.tolist() == [[1.0, -math.inf, -math.inf]]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"neighbours": (4,)}, "from 1 to the 3 training samples"),
        ({"neighbours": (0,)}, r"neighbours=\[0\]"),
        ({"neighbours": ()}, r"neighbours=\[\]"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"queries": torch.zeros(2, 5)}, "rows of width 2"),
        ({"labels": torch.zeros(3, 2)}, "one label per row"),
        ({"labels": torch.tensor([0, -1, 1])}, "without a label"),
        ({"features": torch.full((3, 2), math.nan)}, "diverged"),
    ],
)
def test_bad_input_is_named(change, words):
    parts = {"features": torch.randn(3, 2), "labels": torch.tensor([0, 1, 1])}
    asked = {"queries": torch.randn(2, 2), "neighbours": (1,)}
    for name, value in change.items():
        (parts if name in parts else asked)[name] = value
    with pytest.raises(ValueError, match=words):
        knn_scores(Features(**parts), **asked)
