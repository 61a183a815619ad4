"""Critics of Gaussian pairs of known information: the parts of table-1 and primal-dual."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from flatnce.mi import BOUNDS, tasks
from flatnce.mi.bounds import flo, infonce, jensen_shannon
from flatnce.paper.reproduce.experiment import EXPERIMENTS
from flatnce.paper.reproduce.known_information import (
    Size,
    Stream,
    Variant,
    bias_and_deviation,
    jensen_shannon_truth,
    one_negative,
    printed_words,
    start_critics,
    train_critics,
    true_scores,
)

BOUND_VARIANTS = [Variant(**entry) for entry in EXPERIMENTS["table-1"].variants]

SMALL = Size((2.0,), (0, 1), steps=4, pool=50, batches=2, batch=8, dimensions=3, width=8)


# Training.


INFONCE = Variant("InfoNCE", "infonce")


def test_a_run_sees_and_becomes_the_same_beside_others():
    first = train_critics(INFONCE, SMALL)
    second = train_critics(INFONCE, replace(SMALL, seeds=(1, 2)))
    for name, weights in first.critics.weights.items():
        torch.testing.assert_close(weights[1], second.critics.weights[name][0])
    assert first.held_out[1] == pytest.approx(second.held_out[0], abs=1e-5)


def moved(trained, run):
    """The names of a run's weights that training has changed."""
    start = start_critics(trained.variant, trained.size).weights
    return {
        name
        for name, weights in trained.critics.weights.items()
        if not weights[run].equal(start[name][run])
    }


def test_a_run_that_diverges_is_left_and_the_others_go_on(monkeypatch):
    memories = []

    def loss(self, scores, dual, memory, of_u):
        memories.append(memory)
        return scores.sum() * math.inf if memory is memories[0] else -infonce(scores)

    monkeypatch.setattr(Variant, "loss", loss)
    trained = train_critics(INFONCE, SMALL)
    assert trained.alive.tolist() == [False, True]
    assert trained.unstable() == [1.0, 0.0]
    assert trained.held_out[0] is None and trained.spread[0] is None
    assert trained.held_out[1] is not None
    assert all(weights.isfinite().all() for weights in trained.critics.weights.values())
    assert moved(trained, 1)


@pytest.mark.parametrize("dual", ["free", "critic", "constrained"])
def test_alternating_training_moves_one_side_a_step(dual):
    variant = Variant("FLO", "flo", "dot", dual, alternating=True)
    one, two = (train_critics(variant, replace(SMALL, steps=steps)) for steps in (1, 2))
    names = one.critics.weights
    of_u = {name for name in names if name.startswith(("critic.dual_head", "dual_critic"))}
    assert of_u and not moved(one, 0) & of_u
    assert moved(two, 0) & of_u


# Pairs and bounds.


@pytest.mark.parametrize("nats", [2.0, 6.0])
def test_the_true_critic_is_the_tasks_pointwise_information(nats):
    task = tasks.staircase(nats)
    x, y = task.sample(50, seed=0)
    scores = true_scores(torch.from_numpy(x), torch.from_numpy(y), nats)
    assert np.allclose(scores.diagonal(), task.pointwise(x, y))
    assert np.allclose(scores[3, 7], task.pointwise(x[3:4], y[7:8]))


def test_streams_of_other_purposes_and_seeds_are_others():
    x, y = Stream(SMALL, 0).draw(5, extra=2)
    assert x.shape == (2, 5, 3) and y.shape == (2, 7, 3)
    assert not torch.allclose(x[0], x[1])
    assert not torch.allclose(x, Stream(SMALL, 1).draw(5)[0])


def test_one_negative_is_the_next_rows_partner():
    scores, dual = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    wanted = [
        1 - dual[i] - torch.exp(-dual[i] + scores[i, (i + 1) % 5] - scores[i, i]) for i in range(5)
    ]
    torch.testing.assert_close(flo(one_negative(scores), dual), torch.stack(wanted).mean())


def test_the_table_has_every_objective_of_the_registry_and_says_what_each_is():
    assert {variant.bound for variant in BOUND_VARIANTS} == set(BOUNDS)
    words = {variant.label: variant.is_bound for variant in BOUND_VARIANTS}
    assert words["InfoNCE"] == words["FLO, cross-fitted"] == words["Barber–Agakov"] == "yes"
    assert words["FlatNCE"] == words["DV"] == "in the limit"
    assert words["SMILE"] == "no" and words["Jensen–Shannon"] == "of another divergence"


def test_jensen_shannons_truth_is_the_limit_of_its_bound_at_the_true_critic():
    task = tasks.staircase(2.0)
    found = [
        float(jensen_shannon(true_scores(*map(torch.from_numpy, task.sample(1000, seed)), 2.0)))
        for seed in range(12)
    ]
    u, v = task.sample(200_000, seed=99)
    partners, strangers = (task.pointwise(u, side) for side in (v, np.roll(v, 1, axis=0)))
    truth = jensen_shannon_truth(torch.from_numpy(partners), torch.from_numpy(strangers))
    assert truth == pytest.approx(sum(found) / 12, abs=0.012)  # four standard errors
    assert 0 < truth < math.log(2)


@pytest.mark.parametrize(
    "variant", [variant for variant in BOUND_VARIANTS if variant.is_bound == "yes"], ids=str
)
def test_bounds_have_no_upward_bias_at_the_true_critic(variant):
    size = Size((1.0,), (0,), 1, 1, batches=60, dimensions=3)
    (bias,), (deviation,) = bias_and_deviation(variant, size)[1.0]
    assert bias < 4 * deviation / math.sqrt(60)


def test_the_papers_words_are_those_of_its_table():
    (table,) = printed_words(BOUND_VARIANTS)
    assert len(table["rows"]) == 9 and {len(row) for row in table["rows"]} == {3}
    assert ["NWJ, dot critic", "Low", "Okay"] in table["rows"]
    assert ["InfoNCE, cosine critic", "Large", "Excellent"] in table["rows"]
