"""Critics of Gaussian pairs, trained side by side: the parts of table-1 and primal-dual."""

import itertools
import math

import numpy as np
import pytest
import torch

from flatnce.mi import BOUNDS, tasks
from flatnce.mi.bounds import flo, infonce, jensen_shannon
from flatnce.mi.critics import critic_for
from flatnce.paper.reproduce import primal_dual_images, table_1
from flatnce.paper.reproduce.attempts import ATTEMPTS, DUALS, Attempt
from flatnce.paper.reproduce.known_pairs import Size, Stream, critics_of, one_negative, true_scores
from flatnce.paper.reproduce.known_training import train_critics
from flatnce.paper.reproduce.primal_dual_images import train_on_images
from flatnce.paper.reproduce.readings import measure
from flatnce.paper.reproduce.table_1_words import SPREAD, TRUE_BIAS, verdicts
from flatnce.paper.reproduce.ways import WAYS, Way, jensen_shannon_truth
from flatnce.paper.side_by_side import SideBySide
from flatnce.pretrain import preset

SMALL = Size((2.0,), (0, 1), steps=4, pool=50, batches=2, batch=8, dimensions=3, width=8)


def only(size, seed):
    return Size(size.nats, (seed,), size.steps, size.pool, 2, 8, 3, 8)


# --- Side by side --------------------------------------------------------------------------------


@pytest.mark.parametrize("dual", [None, "free", "constrained"])
def test_a_stack_scores_as_its_critics_do_and_gives_each_its_own_gradient(dual):
    critics = [critic_for("dot", (3, 3), hidden=(8,), features=4, dual=dual) for _ in range(3)]
    stack = SideBySide(critics)
    x, y = torch.randn(2, 3, 6, 3)
    scores, duals = stack(x, y)
    (infonce(scores[0]) + infonce(scores[2]) + 0 * scores[1].sum()).backward()
    for run, critic in enumerate(critics):
        torch.testing.assert_close(scores[run], critic(x[run], y[run]))
        wanted = critic.dual(x[run], y[run]) if dual else torch.zeros(6)
        torch.testing.assert_close(duals[run], wanted)
    infonce(critics[2](x[2], y[2])).backward()
    for name, weight in critics[2].named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(stack.weights[f"critic.{name}"].grad[2], weight.grad)
    lengths = stack.gradient_norms()
    assert lengths[1] == 0 and lengths[0] > 0
    stack.drop_gradients(torch.tensor([True, False, False]))
    assert stack.gradient_norms()[0] == 0 and stack.gradient_norms()[2] == lengths[2]


def test_u_may_be_a_second_critics_score_of_partners():
    critics, seconds = ([critic_for("dot", (3, 3), hidden=(8,)) for _ in range(2)] for _ in "ab")
    x, y = torch.randn(2, 2, 6, 3)
    _, duals = SideBySide(critics, seconds)(x, y)
    torch.testing.assert_close(duals[1], seconds[1].paired(x[1], y[1]))


def test_a_run_sees_and_becomes_the_same_alone_as_beside_others():
    def loss(run, scores, dual, of_u):
        return -infonce(scores)

    both = train_critics(critics_of(SMALL, "dot"), SMALL, loss)
    alone = train_critics(critics_of(only(SMALL, 1), "dot"), only(SMALL, 1), loss)
    for name, weights in both.critics.weights.items():
        torch.testing.assert_close(weights[1], alone.critics.weights[name][0])
    assert both.held_out[1] == pytest.approx(alone.held_out[0], abs=1e-5)


def test_a_run_that_diverges_is_left_and_the_others_go_on():
    def loss(run, scores, dual, of_u):
        return scores.sum() * math.inf if run == 0 else -infonce(scores)

    start = critics_of(SMALL, "dot")
    before = {name: weights.detach().clone() for name, weights in start.weights.items()}
    course = train_critics(start, SMALL, loss)
    assert course.alive.tolist() == [False, True]
    assert course.unstable() == [1.0, 0.0]
    assert course.held_out[0] is None and course.spread[0] is None
    assert course.held_out[1] is not None
    assert all(weights.isfinite().all() for weights in start.weights.values())
    moved = [
        not torch.equal(weights[1], before[name][1]) for name, weights in start.weights.items()
    ]
    assert any(moved)


def test_training_ends_when_every_run_has_diverged():
    course = train_critics(critics_of(SMALL, "dot"), SMALL, lambda r, s, u, t: s.sum() * math.nan)
    assert course.held_out == [None, None] and course.unstable() == [1.0, 1.0]


@pytest.mark.parametrize("dual", ["free", "critic", "constrained"])
def test_alternating_training_moves_one_side_a_step(dual):
    one = Attempt("flo", "dot", dual, alternating=True)
    critics = critics_of(SMALL, "dot", dual)
    moves = []
    for steps in (1, 2):
        critics = critics_of(SMALL, "dot", dual)
        before = {name: weights.detach().clone() for name, weights in critics.weights.items()}
        size = Size((2.0,), (0, 1), steps, 50, 2, 8, 3, 8)
        train_critics(critics, size, lambda r, s, u, t: one.loss(s, u, t), alternating=True)
        moves.append(
            {name for name, weights in critics.weights.items() if not weights.equal(before[name])}
        )
    of_u = {n for n in critics.weights if n.startswith(("critic.dual_head", "second"))}
    assert of_u and not moves[0] & of_u
    assert moves[1] & of_u


# --- Pairs and objectives ------------------------------------------------------------------------


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
    torch.testing.assert_close(x, Stream(SMALL, 0).draw(5, extra=2)[0])


def test_one_negative_is_the_next_rows_partner():
    scores, dual = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    wanted = [
        1 - dual[i] - torch.exp(-dual[i] + scores[i, (i + 1) % 5] - scores[i, i]) for i in range(5)
    ]
    torch.testing.assert_close(flo(one_negative(scores), dual), torch.stack(wanted).mean())


def test_the_table_has_every_objective_of_the_registry_and_says_what_each_is():
    assert {way.bound for way in WAYS} == set(BOUNDS)
    words = {way.label: way.is_bound for way in WAYS}
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


@pytest.mark.parametrize("way", [way for way in WAYS if way.is_bound == "yes"], ids=str)
def test_bounds_have_no_upward_bias_at_the_true_critic(way):
    size = Size((1.0,), (0,), 1, 1, batches=60, dimensions=3)
    (bias,), (deviation,) = table_1._at_the_true_critic(way, size, (64,))[1.0, 64]
    assert bias < 4 * deviation / math.sqrt(60)


def row(way, nats, bias, spread=0.1, unstable=0.0):
    variables = {"objective": way.label, "critic": way.critic, "bound?": "", "nats": nats}
    cells = {TRUE_BIAS: bias, SPREAD: spread, "unstable": unstable}
    measures = {name: measure([value]) for name, value in cells.items()}
    return {"variables": variables, "measures": measures}


@pytest.mark.parametrize(
    ("bias", "spread", "unstable", "here"),
    [
        (0.1, 0.1, 0.0, ["Low (+5%)", "Excellent (10%)", "bias"]),
        (-1.0, 0.1, 0.0, ["Large (−50%)", "Excellent (10%)", "nothing"]),
        (0.1, 0.5, 0.0, ["Low (+5%)", "Okay (50%)", "bias and stability"]),
        (0.1, 2.0, 0.0, ["Low (+5%)", "Poor (200%)", "bias and stability"]),
        (0.1, 0.1, 1 / 3, ["Low (+5%)", "Poor (a run is lost)", "bias and stability"]),
    ],
)
def test_the_papers_words_are_held_against_the_numbers_by_one_rule(bias, spread, unstable, here):
    way = next(way for way in WAYS if way.label == "InfoNCE" and way.critic == "dot")
    (line,) = verdicts([row(way, 2.0, bias, spread, unstable), row(way, 4.0, 0.0)])["rows"]
    assert [line[0], line[1], line[3]] == ["InfoNCE, dot critic", "Large", "Excellent"]
    assert [line[2], line[4], line[5]] == here


# --- The failed attempts -------------------------------------------------------------------------


def test_every_u_is_tried_joint_and_alternating_with_all_negatives_and_with_one():
    tried = {(one.dual, one.alternating, one.single) for one in ATTEMPTS if one.dual}
    assert tried == set(itertools.product(DUALS, (False, True), (False, True)))
    assert len({one.label for one in ATTEMPTS}) == len(ATTEMPTS)


def test_an_encoder_that_diverges_is_said_to_have_diverged(monkeypatch):
    config = preset("digits").override(batch_size=64, epochs=1, device="cpu")
    monkeypatch.setattr(Attempt, "loss", lambda self, scores, dual, of_u: scores.sum() * math.nan)
    monkeypatch.setattr(primal_dual_images, "_classified", lambda *_: pytest.fail("classified"))
    found = train_on_images(Attempt("infonce", "cosine"), config)
    assert found.diverged and found.knn is None and found.linear is None


def test_ways_are_keys_so_that_two_critics_of_one_objective_stay_apart():
    assert len(set(WAYS)) == len(WAYS)
    assert Way("InfoNCE", "infonce") != Way("InfoNCE", "infonce", critic="cosine")
