"""Schedules, the ESS controller, the exact solve, and temperatures that are learned."""

import copy
import dataclasses
import json
import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layouts
import reference
from flatnce import EssController, FlatNCE, KeyQueue, LearnedTemperature, Monitor
from flatnce import functional as F
from flatnce.core import distributed
from flatnce.core.control import Cosine, Schedule
from flatnce.core.direct import MOST_ABOVE
from flatnce.core.objectives.temperature import TemperatureSource, _moments
from flatnce.integrations.lightly import FlatNCELoss
from forked import run_forked
from layouts import random
from saved import saved_and_loaded

FLOAT32 = 1e-6  # relative: a controller's β is a float32


# --- Schedules -----------------------------------------------------------------------------------

HALF_COSINE = Cosine(0.6, 0.2, steps=100)
VALUES = [(Cosine(0.3, 0.3, 5), step, 0.3) for step in (0, 1, 10**9)]
VALUES += [(Cosine(0.1, 0.5, steps=10), 5, 0.3)]
VALUES += [(HALF_COSINE, *at) for at in ((0, 0.6), (50, 0.4), (100, 0.2), (1000, 0.2))]
VALUES += [(HALF_COSINE, 25, 0.4 + 0.2 * math.sqrt(0.5))]


@pytest.mark.parametrize(("schedule", "step", "value"), VALUES)
def test_a_schedule_has_its_value_at_a_step(schedule, step, value):
    found = schedule.at(torch.tensor(step))
    assert isinstance(schedule, Schedule) and found.dtype == torch.float32
    assert float(found) == pytest.approx(value, rel=FLOAT32)


@pytest.mark.parametrize("kernel", ["dense", "chunked"])
def test_a_schedule_as_temperature_is_followed_and_saved(kernel):
    z1, z2 = random(5, 3), random(5, 3, seed=1)
    schedule = Cosine(1.0, 0.2, steps=4)
    loss_fn, expected = FlatNCE(temperature=schedule, kernel=kernel), []
    for step in range(3):
        loss_fn(z1, z2)
        expected.append(0.2 + 0.4 * (1 + math.cos(math.pi * step / 4)))
        assert float(loss_fn.last.temperature) == pytest.approx(expected[-1], rel=FLOAT32)
    restored = FlatNCE(temperature=schedule, kernel=kernel)
    restored.load_state_dict(saved_and_loaded(loss_fn.state_dict()))
    restored(z1, z2)
    later = 0.2 + 0.4 * (1 + math.cos(math.pi * 3 / 4))
    assert float(restored.last.temperature) == pytest.approx(later, rel=FLOAT32)


# --- The controller's step -----------------------------------------------------------------------

POSITIVE = 0.8
NEGATIVES = [[0.9, 0.1, -0.3, 0.4, -0.9, 0.2, 0.5], [-0.4, 0.6, 0.7, -0.1], [0.3]]


def contrast_at(beta: float, rows: list[list[float]] = NEGATIVES) -> F.Contrast:
    """The contrast of the rows above, whose scores come without beta, padded by masks."""
    padded = [[POSITIVE, *row] + [-math.inf] * (7 - len(row)) for row in rows]
    logits = beta * torch.tensor(padded, dtype=torch.float64)
    return F.contrast_from_logits(logits, torch.zeros(len(rows), dtype=torch.long))


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [1.0, 100.0])
@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_the_controller_takes_the_defined_step_every_time(target, start, rate):
    controller = EssController(target, rate=rate, temperature_at_start=1 / start)
    source = TemperatureSource(controller)
    beta, betas, expected = start, [], []
    for _ in range(60):
        source.advance(contrast_at(float(source.beta)))
        beta = reference.control_step(beta, NEGATIVES, target, rate)
        betas.append(float(source.beta))
        expected.append(beta)
    assert betas == pytest.approx(expected, rel=1e-4)
    assert int(source.step) == 60


@pytest.mark.parametrize(("target", "bound"), [(0.01, 0.25), (1.0, 2.0)])
def test_the_temperature_stops_at_its_bounds(target, bound):
    controller = EssController(
        target, rate=0.5, temperature_at_start=1.0, lowest=0.25, highest=2.0
    )
    source = TemperatureSource(controller)
    for _ in range(40):
        source.advance(contrast_at(float(source.beta)))
    assert float(source()) == pytest.approx(bound, rel=FLOAT32)


def test_one_batch_moves_the_temperature_by_eight_times_the_rate_at_most():
    z1, z2 = views()
    z1[1] = z1[0]  # two copies: at a temperature of 0.01 no other pair has any weight
    controller = EssController(0.3, temperature_at_start=0.01)
    for kernel in ("auto", "dense"):
        loss_fn = FlatNCE(temperature=controller, kernel=kernel)
        loss_fn(z1, z2)
        assert float(loss_fn.temperature) == pytest.approx(0.01 * math.exp(0.08), rel=FLOAT32)


def test_a_batch_with_bad_values_leaves_the_temperature_on_a_device_where_it_is(deferred):
    loss_fn = FlatNCE(temperature=EssController(0.3, temperature_at_start=0.5))
    z1, z2 = views()
    loss_fn(z1 * torch.nan, z2)
    assert float(loss_fn.temperature) == 0.5


def gathered_from(batches: Sequence[F.Contrast | Tensor], monkeypatch) -> list[Tensor]:
    """Act as one process per batch: what each gives, which a gathering then returns together."""
    own: list[Tensor] = []
    monkeypatch.setattr(distributed, "is_active", lambda: True)
    monkeypatch.setattr(distributed, "gather", lambda rows: own.append(rows) or rows)
    for batch in batches:
        _moments(batch)
    monkeypatch.setattr(distributed, "gather", lambda rows: torch.cat(own))
    return own


@pytest.mark.parametrize("second", [3.0, 300.0], ids=["near", "so large that it sets the unit"])
def test_the_moments_of_several_processes_have_one_unit(second, monkeypatch):
    """Those of two processes with other scores and rows, and of one without negatives."""
    given = [(1.0, NEGATIVES), (second, NEGATIVES[:2])]
    batches = [contrast_at(beta, rows) for beta, rows in given]
    batches.append(torch.zeros((), dtype=torch.float64))
    own = gathered_from(batches, monkeypatch)
    moments, levels, shares = [], [], []
    for beta, rows in given:
        scores = [[beta * s for s in row] for row in rows]
        several = [row for row in scores if len(row) > 1]
        moments.append(reference.ess_moments(scores))
        means = [float(reference.log_sum_exp(row)) - math.log(len(row)) for row in several]
        levels.append(reference.mean(means))
        shares.append(len(several) / len(rows))
    shown = [float(one[0, 2]) for one in own[:2]]  # a process may take a higher unit itself
    common = sum(s * level for s, level in zip(shares, shown, strict=True)) / sum(shares)
    common = max(common, max(shown) - MOST_ABOVE)
    units = [math.exp(2 * (level - common)) for level in levels]
    expected = [
        sum(unit * each[k] for unit, each in zip(units, moments, strict=True)) / 3 for k in (0, 1)
    ]
    for batch in batches:
        first, second, reachable = _moments(batch)
        assert [float(first), float(second)] == pytest.approx(expected, rel=1e-9)
        assert bool(reachable)
    own[:] = own[2:] * 3
    assert [float(each) for each in _moments(batches[2])] == [0, 0, 1]
    one_each = contrast_at(1.0, NEGATIVES[2:])
    monkeypatch.setattr(distributed, "gather", lambda rows: torch.cat([rows, rows]))
    assert not _moments(one_each)[2]


def test_a_process_without_negatives_does_not_set_the_unit_of_the_others(monkeypatch):
    rows = torch.tensor(NEGATIVES[0], dtype=torch.float64)[None] - 100  # far below its level of 0
    batches = F.contrast_from_logits(rows, torch.tensor([0])), torch.zeros(()).double()
    alone = [float(each) for each in _moments(batches[0])[:2]]
    gathered_from(batches, monkeypatch)
    for batch in batches:
        found = [float(each) for each in _moments(batch)[:2]]
        assert found == pytest.approx([each / 2 for each in alone], rel=1e-9)


# --- The controller inside an objective ----------------------------------------------------------


def views(size: int = 12, width: int = 6) -> tuple[Tensor, Tensor]:
    z = random(size, width)
    return z, z + 0.3 * random(size, width, seed=1)


def driven(loss_fn: FlatNCE, steps: int) -> FlatNCE:
    """The objective after some steps on the same batch."""
    batch = views()
    for _ in range(steps):
        loss_fn(*batch)
    return loss_fn


@pytest.mark.parametrize("start", [1.0, 100.0])
def test_from_both_sides_the_controller_reaches_what_the_exact_solve_says(start):
    controller = EssController(0.2, rate=0.05, temperature_at_start=1 / start)
    loss_fn = driven(FlatNCE(temperature=controller), 310)
    solved = 1 / float(F.temperature_for_ess(F.two_view(*views()), 0.2))
    assert float(loss_fn.temperature_source.beta) == pytest.approx(solved, rel=0.0201)
    assert float(loss_fn.last.ess) == pytest.approx(0.2, abs=0.005)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_loss_that_has_changed_is_not_computed_again_in_the_backward_pass(reentrant):
    z1, z2 = (z.requires_grad_() for z in views())

    def gradient(loss_fn, recomputed):
        step = partial(checkpoint, loss_fn, use_reentrant=reentrant) if recomputed else loss_fn
        z1.grad = None
        step(z1, z2).backward()
        return z1.grad

    for state in ({"temperature": EssController(0.3)}, {"queue": KeyQueue(32, z1.shape[1])}):
        loss_fn = FlatNCE(**state)
        said = "^FlatNCE was called in the backward pass.*; checkpoint the encoder and call"
        with pytest.raises(RuntimeError, match=said):
            gradient(loss_fn, recomputed=True)
        loss_fn.eval()
        torch.testing.assert_close(gradient(loss_fn, True), gradient(loss_fn, False))
    monitor, fixed = Monitor(), FlatNCE(0.2)

    def more(*z):
        return fixed(*z) + z[0].square().mean()

    torch.testing.assert_close(gradient(more, True), gradient(more, False))
    gradient(more, True)
    monitor.update(fixed.last)  # after the backward pass, which calls the loss again
    assert monitor.compute()["steps"] == 1


def test_a_loss_that_a_backward_pass_calls_first_or_without_a_change_before_is_computed():
    class Cached(torch.autograd.Function):  # gradient caching by hand
        @staticmethod
        def forward(ctx, z1, z2):
            ctx.save_for_backward(z1, z2)
            return z1.sum()

        @staticmethod
        def backward(ctx, _):
            z1, z2 = (z.detach().requires_grad_() for z in ctx.saved_tensors)
            with torch.enable_grad():
                return torch.autograd.grad(cached(z1, z2), (z1, z2))

    def gradients(call):
        batch = [z.detach().requires_grad_() for z in views()]
        call(*batch).backward()
        return [z.grad for z in batch]

    width = views()[0].shape[1]
    for state in ({"temperature": EssController(0.3)}, {"queue": KeyQueue(32, width).double()}):
        plain, cached = FlatNCE(**state), copy.deepcopy(FlatNCE(**state))
        for _ in range(2):
            torch.testing.assert_close(gradients(Cached.apply), gradients(plain))
        for loss_fn in (plain, cached):
            loss_fn(*views())
            loss_fn.eval()
        torch.testing.assert_close(gradients(Cached.apply), gradients(plain))
    torch.manual_seed(0)
    bank = FlatNCELoss(memory_bank_size=(32, width)).double()
    again = copy.deepcopy(bank)  # it changes only where there is a gradient
    for _ in range(2):
        found = gradients(partial(checkpoint, again, use_reentrant=True))
        torch.testing.assert_close(found[0], gradients(bank)[0])
        assert torch.equal(again.queue.keys, bank.queue.keys)


def test_beta_is_a_buffer_that_a_checkpoint_restores():
    controller = EssController(Cosine(0.9, 0.3, steps=50))
    whole = driven(FlatNCE(temperature=controller), 20)
    saved = saved_and_loaded(whole.state_dict())
    assert set(saved) == {"temperature_source.beta", "temperature_source.step"}
    restored = FlatNCE(temperature=controller)
    restored.load_state_dict(saved)
    driven(whole, 20), driven(restored, 20)
    assert restored.temperature_source.beta.item() == whole.temperature_source.beta.item()
    assert restored.temperature_source.step.item() == 40
    assert list(whole.parameters()) == []
    assert whole.temperature_source.beta.item() != saved["temperature_source.beta"].item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_controller_keeps_its_precision_when_its_loss_is_cast(dtype):
    controller = EssController(0.05, rate=0.003, temperature_at_start=0.3)
    plain, cast = (driven(FlatNCE(temperature=controller), 20) for _ in range(2))
    driven(plain, 20), driven(cast.to(dtype), 20)
    moved = float(plain.temperature)
    assert float(cast.temperature) == pytest.approx(moved, rel=FLOAT32) and moved < 0.299
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # as trainers do that build a model in half precision
    try:
        built = FlatNCE(temperature=controller)
    finally:
        torch.set_default_dtype(before)
    assert float(driven(built, 40).temperature) == pytest.approx(moved)
    fixed = TemperatureSource(torch.tensor(0.07)).to(dtype)
    assert float(fixed()) == float(torch.tensor(0.07))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_controller_keeps_its_precision_when_a_state_is_assigned(dtype):
    loss_fn = driven(FlatNCE(temperature=EssController(0.3)), 3)
    state = {
        name: v.to(dtype) if v.is_floating_point() else v
        for name, v in loss_fn.state_dict().items()
    }
    assigned, copied = FlatNCE(EssController(0.3)), FlatNCE(EssController(0.3))
    assigned.load_state_dict(state, assign=True)
    copied.load_state_dict(state)
    wide = torch.promote_types(dtype, torch.float32)
    assert assigned.temperature_source.beta.dtype == wide
    assert state["temperature_source.beta"].dtype == dtype  # the state itself does not change
    driven(assigned, 20), driven(copied, 20)
    assert float(assigned.temperature) == pytest.approx(float(copied.temperature), rel=FLOAT32)


def test_a_controller_is_widened_with_its_loss():
    source = FlatNCE(EssController(0.3)).double().temperature_source
    assert source.beta.dtype == torch.float64
    assert source.to(torch.bfloat16).beta.dtype == torch.float64  # nothing is lost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_learned_temperature_is_a_parameter_that_is_cast(dtype):
    loss_fn = FlatNCE(LearnedTemperature(0.25)).to(dtype)
    loss_fn(random(8, 4).to(dtype), random(8, 4, seed=1).to(dtype)).backward()
    (parameter,) = loss_fn.parameters()
    assert parameter.dtype == parameter.grad.dtype == dtype and parameter.grad != 0


@pytest.mark.parametrize("rule", [EssController(0.3), Cosine(1.0, 0.2, steps=4)], ids=str)
def test_a_rule_stands_still_in_eval_mode_and_shows_the_temperature_that_was_used(rule):
    loss_fn = driven(FlatNCE(temperature=rule), 3)
    before = {name: value.item() for name, value in loss_fn.state_dict().items()}
    used = float(loss_fn.last.temperature)
    driven(loss_fn.eval(), 3)
    assert {name: value.item() for name, value in loss_fn.state_dict().items()} == before
    assert float(loss_fn.last.temperature) != used  # the next one, which training had set


def test_the_gradient_of_a_controlled_step_is_at_the_beta_the_loss_was_taken_at():
    # The buffer is written before backward runs; backward must not see that.
    gradients = []
    for temperature in (EssController(0.3, temperature_at_start=0.5, rate=0.5), 0.5):
        z1, z2 = (z.clone().requires_grad_() for z in views())
        FlatNCE(temperature=temperature)(z1, z2).backward()
        gradients.append(z1.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("kernel", ["dense", "chunked"])
def test_the_gradient_of_a_step_is_at_the_queue_the_loss_was_taken_at(in_batch, kernel):
    gradients = []
    for training in (True, False):  # in training mode the step overwrites the whole queue
        queue = KeyQueue(12, 6).double()
        queue.enqueue(random(12, 6, seed=5), torch.arange(12))
        loss_fn = FlatNCE(queue=queue, in_batch=in_batch, kernel=kernel).train(training)
        query, key = (z.clone().requires_grad_() for z in views())
        loss_fn(query, key, ids=torch.arange(6, 18)).backward()
        gradients.append(query.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("target", [0.3, 1e-3])
def test_control_needs_one_row_with_two_negatives(target):
    left, right = (z[:3] for z in views())
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = mask[2, 0] = False  # one negative a row, in both directions
    refused = FlatNCE(temperature=EssController(target), layout="two_tower")
    with pytest.raises(ValueError, match=rf"target={target:g} of .*two negatives"):
        refused(left, right, false_negatives=mask)
    mask[0, 2] = False
    accepted = FlatNCE(temperature=EssController(target), layout="two_tower")
    assert math.isfinite(float(accepted(left, right, false_negatives=mask)))


# --- The exact solve -----------------------------------------------------------------------------

SOLVED = ["two views: plain", "two towers: raw ids masked own", "labels, out: plain"]
ESTIMATORS = {
    "population": lambda rows: reference.population_ess([negatives for _, negatives in rows]),
    "paper": reference.mean_ess,
}


@pytest.mark.parametrize("name", SOLVED)
@pytest.mark.parametrize("target", [0.4, 0.6, 0.8])
@pytest.mark.parametrize(
    ("estimator", "kernel"),
    [("population", "dense"), ("population", "chunked"), ("paper", "dense")],
)
def test_the_solve_equals_the_slow_definition(name, target, estimator, kernel):
    case = layouts.case_of(name)
    rows = [(row.positive, row.negatives) for row in layouts.rows_of(case, 1.0)]
    expected = 1 / reference.beta_of_ess(rows, target, ESTIMATORS[estimator])
    pairs = case.build(case.inputs)
    found = F.temperature_for_ess(pairs, target, estimator=estimator, kernel=kernel)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_beyond_the_bracket_the_nearer_end_is_returned():
    like = torch.zeros((), dtype=torch.float64)
    always = torch.ones((), dtype=torch.float64)
    assert float(F.solve_for_ess(lambda beta: always, 0.5, like)) == pytest.approx(1e5, rel=1e-9)
    assert float(F.solve_for_ess(lambda beta: 0 * always, 0.5, like)) == pytest.approx(1e-3)
    on_device = torch.tensor(0.25, dtype=torch.float64)
    found = F.solve_for_ess(lambda beta: 1 / beta, on_device, like)
    assert float(found) == pytest.approx(4.0, rel=1e-10)


def test_the_solve_keeps_the_precision_of_its_embeddings_and_has_no_gradient():
    rows = [z.float().requires_grad_() for z in views()]
    found = F.temperature_for_ess(F.two_view(*rows), 0.5)
    exact = F.temperature_for_ess(F.two_view(*views()), 0.5)
    assert found.dtype == torch.float32 and not found.requires_grad
    assert float(found) == pytest.approx(float(exact), rel=1e-4)


def test_the_solve_refuses_what_no_temperature_reaches():
    with pytest.raises(
        ValueError, match=r"^target=0\.0625 .* above 0\.0625,"
    ):  # one of 16 negatives
        F.temperature_for_ess(F.two_view(*views(9)), 1 / 16, estimator="paper")
    with pytest.raises(ValueError, match=r"^target=.* no anchor has two negatives"):
        F.temperature_for_ess(F.two_tower(*views(2)), 0.3)
    with pytest.raises(ValueError, match=r"^target=0\.9 .* above 1,"):  # one negative has all
        F.temperature_for_ess(F.two_tower(*views(2)), 0.9, estimator="paper")


def test_the_solve_halves_forty_times():
    asked = []
    like = torch.zeros((), dtype=torch.float64)
    found = F.solve_for_ess(lambda beta: asked.append(float(beta)) or 1 / beta, 0.25, like)
    assert len(asked) == 40
    assert float(found) == pytest.approx(4, rel=3e-11)
    assert asked[0] == pytest.approx(10.0)  # the middle of 1e-3 and 1e5


def test_rows_with_one_negative_do_not_count_in_the_solve():
    z, mask = views(4), torch.zeros(4, 4, dtype=torch.bool)
    mask[0, 1:3] = True  # leaves one negative to the first anchor
    (pairs,) = F.two_tower(*z, directions="left", false_negatives=mask)
    rows = zip(pairs.anchors @ pairs.keys.T, pairs.negatives.block(), strict=True)
    scores = [row[~out].tolist() for row, out in rows]
    assert [len(row) for row in scores] == [1, 3, 3, 3]
    beta = 1 / float(F.temperature_for_ess(pairs, 0.5))
    found = reference.population_ess([[beta * s for s in row] for row in scores])
    assert found == pytest.approx(0.5, rel=1e-9)


def test_two_negatives_are_enough_for_the_solve():
    pairs, scores = F.two_tower(*views(3), directions="left"), []
    for i, row in enumerate(pairs[0].anchors @ pairs[0].keys.T):
        scores.append([float(s) for j, s in enumerate(row) if j != i])
    beta = 1 / float(F.temperature_for_ess(pairs, 0.5))
    found = reference.population_ess([[beta * s for s in row] for row in scores])
    assert found == pytest.approx(0.5, rel=1e-9)


def test_equal_weights_take_the_largest_temperature_that_is_searched():
    for estimator in ESTIMATORS:
        found = F.temperature_for_ess(F.two_view(*views()), 1.0, estimator=estimator)
        assert float(found) == pytest.approx(1e3, rel=1e-9)


# --- A temperature that is learned ---------------------------------------------------------------


@pytest.mark.parametrize("start", [0.05, 0.2, 5.0])
def test_a_learned_temperature_may_start_at_a_bound(start):
    source = LearnedTemperature(start, lowest=min(start, 0.2), highest=max(start, 0.2))
    assert float(source().detach()) == pytest.approx(start, rel=FLOAT32)


@pytest.mark.parametrize(("log_beta", "bound"), [(50.0, 0.01), (-50.0, 10.0)])
def test_a_step_beyond_the_bounds_is_taken_back(log_beta, bound):
    learned = LearnedTemperature()
    with torch.no_grad():
        learned.log_beta.fill_(log_beta)
    assert float(learned().detach()) == pytest.approx(bound, rel=1e-5)
    assert float(learned.log_beta.detach()) == pytest.approx(-math.log(bound), rel=1e-5)
    restored = LearnedTemperature()
    restored.load_state_dict(saved_and_loaded(learned.state_dict()))
    assert float(restored().detach()) == float(learned().detach())


# Fresh pairs every step, the second view a little off the first; nothing holds β but its gradient.
TRAINING = """
import json, sys, torch
from flatnce import FlatNCE, LearnedTemperature

def betas(gradient, steps, enough):
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    encoder = torch.nn.Linear(8, 4)
    learned = LearnedTemperature(0.1, lowest=1e-30, highest=1e30)
    loss_fn = FlatNCE(temperature=learned, temperature_gradient=gradient)
    optimizer = torch.optim.Adam([*encoder.parameters(), *loss_fn.parameters()], lr=1e-2)
    found = []
    while len(found) < steps and (not found or found[-1] < enough):
        x = torch.randn(16, 8, generator=draw).repeat(2, 1)
        z1, z2 = encoder(x + 0.2 * torch.randn(32, 8, generator=draw)).chunk(2)
        optimizer.zero_grad()
        loss_fn(z1, z2).backward()
        optimizer.step()
        found.append(learned.log_beta.exp().item())
    return found

safe, own = betas("infonce", 5000, 1e9), betas("own", 5000, 1e5)
print(json.dumps({"safe": [len(safe), max(safe), safe[-1]], "own": [len(own), own[-1]]}))
"""


def test_a_learned_temperature_stays_bounded_where_the_naive_one_runs_away(record_property):
    found = json.loads(run_forked(TRAINING))
    record_property("betas", found)
    (steps, largest, last), (naive_steps, naive_last) = found["safe"], found["own"]
    assert steps == 5000 and largest < 40 and last < 30
    assert naive_steps < 1600 and naive_last > 1e5


# --- Ranges of the arguments ---------------------------------------------------------------------

BETWEEN = r"temperature_at_start=0\.1 must lie between lowest="


@pytest.mark.parametrize(
    ("accepted", "refused", "words"),
    [
        ({"target": 1e-9}, {"target": 0.0}, "target=0.0 is not an ESS"),
        ({"target": 1.0}, {"target": 1.0001}, "target=1.0001 is not an ESS"),
        ({"rate": 1e-9}, {"rate": 0.0}, "rate=0.0 must lie in"),
        ({"rate": 0.999}, {"rate": 1.0}, "rate=1.0 must lie in"),
        ({"lowest": 0.1}, {"lowest": 0.1001}, BETWEEN),
        ({"lowest": 1e-300}, {"lowest": 0.0}, BETWEEN),
        ({"highest": 0.1}, {"highest": 0.0999}, BETWEEN),
        ({"highest": 1e300}, {"highest": math.inf}, BETWEEN),
    ],
    ids=str,
)
def test_a_controller_takes_arguments_up_to_their_ends(accepted, refused, words):
    assert vars(EssController(**{"target": 0.3, **accepted})).items() >= accepted.items()
    with pytest.raises(ValueError, match=words):
        EssController(**{"target": 0.3, **refused})


TARGETS = """
from fractions import Fraction
import numpy as np
import torch
from flatnce import EssController, FlatNCE
from flatnce.core.control import Cosine
falling = Cosine(torch.tensor(0.6), torch.tensor(0.2), torch.tensor(100))
assert abs(float(EssController(falling).target_at(torch.tensor(50))) - 0.4) < 1e-6
right = np.float32(0.25), np.float64(0.25), np.int64(1), Fraction(1, 4), torch.tensor(0.25)
for target in right:
    controller = EssController(target=target)
    assert type(controller.target) is float and controller.target == float(target)
    FlatNCE(controller)(torch.eye(4), torch.eye(4))
start = torch.tensor(0.5, requires_grad=True)
held = EssController(0.3, rate=Fraction(1, 4), temperature_at_start=start, highest=1000)
assert held == EssController(0.3, rate=0.25, temperature_at_start=0.5)
assert all(type(number) is float for number in vars(held).values())
wrong = "0.3", None, True, np.True_, torch.tensor(True), np.array([0.3]), torch.tensor([0.3])
for target in (*wrong, np.float32("nan"), np.float32(1.5), torch.tensor(0.0), 10**400):
    try:
        EssController(target=target)
    except ValueError as error:
        assert str(error) == f"target={target!r} is not an ESS; pass a number in (0, 1]"
    else:
        raise AssertionError(target)
"""


def test_a_number_is_of_any_real_type_and_anything_else_is_refused_at_once():
    run_forked(TARGETS)


def test_a_controller_of_ones_own_may_have_further_settings():
    @dataclasses.dataclass(frozen=True)
    class Mine(EssController):
        warm: int = 10

    assert Mine(0.3, warm=5) == Mine(target=0.3, rate=0.01, warm=5)


def test_a_controller_of_an_earlier_version_may_hold_a_whole_number():
    held = EssController(0.3)
    object.__setattr__(held, "target", 1)  # as pickle restores it
    loss_fn = FlatNCE(copy.deepcopy(held))
    loss_fn(torch.eye(4), torch.eye(4))
    assert float(loss_fn.temperature) == pytest.approx(0.1)


def test_a_schedule_takes_at_least_one_step():
    assert float(Cosine(0.6, 0.2, steps=1).at(torch.tensor(1))) == pytest.approx(0.2)
    for steps in (0, -1):
        with pytest.raises(ValueError, match=f"steps={steps} must be at least 1"):
            Cosine(0.6, 0.2, steps=steps)


def test_the_defaults_of_a_controller_and_of_a_learned_temperature():
    usual = EssController(0.3, rate=0.01, temperature_at_start=0.1, lowest=1e-3, highest=1e3)
    assert EssController(0.3) == usual
    learned = LearnedTemperature()
    assert float(learned().detach()) == pytest.approx(0.07, rel=FLOAT32)
    assert (learned.lowest, learned.highest) == (0.01, 10.0)
    assert repr(learned) == "LearnedTemperature(lowest=0.01, highest=10.0)"


@pytest.mark.parametrize("excess", [-100.0, -8.1, -7.9, 0.0, 7.9, 8.1, 100.0, math.nan])
def test_a_controllers_factor_is_the_same_from_a_number_and_from_a_tensor(excess):
    controller = EssController(0.3, rate=0.25)
    expected = 1.0 if math.isnan(excess) else math.exp(0.25 * min(max(excess, -8.0), 8.0))
    on_device = controller.factor(torch.tensor(excess, dtype=torch.float64))
    assert float(on_device) == pytest.approx(expected, rel=1e-12)
    if not math.isnan(excess):  # a number that is not one has been refused before
        assert controller.factor(excess) == pytest.approx(expected, rel=1e-12)


# --- What a source holds -------------------------------------------------------------------------


def test_a_number_of_another_type_is_held_as_a_float():
    for given in (0.5, np.float64(0.5)):
        source = TemperatureSource(given)
        assert type(source()) is float and repr(source) == "TemperatureSource(0.5)"
        assert not source.state_dict() and source.learned() is None and not source.moves


@pytest.mark.parametrize("kind", [float, lambda t: torch.tensor(t, dtype=torch.float64)])
@pytest.mark.parametrize(
    ("temperature", "beta"), [(1.1e-30, 1 / 1.1e-30), (1e-30, None), (0.25, 4.0)]
)
def test_an_inverse_temperature_is_read_above_the_least_temperature(kind, temperature, beta):
    found = TemperatureSource(kind(temperature)).beta_now(torch.device("cpu"), True, None)
    assert found == (None if beta is None else pytest.approx(beta, rel=1e-12))


@pytest.mark.parametrize(
    "temperature", [math.inf, math.nan, -1.0, 0.0], ids=["infinite", "NaN", "negative", "0"]
)
def test_a_tensor_that_is_no_temperature_has_no_inverse(temperature):
    source = TemperatureSource(torch.tensor(temperature))
    assert source.beta_now(torch.device("cpu"), True, None) is None


@pytest.mark.parametrize("rule", [EssController(0.3), Cosine(1.0, 0.2, steps=4)], ids=str)
def test_the_state_of_a_rule_moves_to_the_device_of_the_batch(rule):
    device, source = torch.device("meta"), TemperatureSource(rule)
    source.follow(torch.device("cpu"))
    assert {held.device.type for held in source.buffers()} == {"cpu"}
    if isinstance(rule, EssController):
        source.beta = source.beta.to(device)  # one of its two buffers
    with torch.inference_mode():
        assert source.beta_now(device, False, None).device == device
    assert {held.device for held in source.buffers()} == {device}
    assert not any(held.is_inference() for held in source.buffers())  # training writes them


def test_a_tensor_is_saved_as_a_buffer_unless_it_has_a_gradient():
    fixed, learned = torch.tensor([0.25]), torch.tensor([0.25], requires_grad=True)
    assert set(FlatNCE(fixed).state_dict()) == {"temperature_source.source"}
    assert not FlatNCE(learned).state_dict()
    assert TemperatureSource(fixed).learned() is None
    for source in (TemperatureSource(fixed), TemperatureSource(learned)):
        assert source().shape == () and float(source().detach()) == 0.25
        assert repr(source).startswith("TemperatureSource(") and not source.moves
    assert TemperatureSource(learned).learned().requires_grad
    named = TemperatureSource(LearnedTemperature())
    assert named.extra_repr() == "" and named.learned().requires_grad


@pytest.mark.parametrize("rows", [4, 1])
@pytest.mark.parametrize("kernel", ["auto", "dense"])
@pytest.mark.parametrize(
    "learned", [LearnedTemperature(), nn.Parameter(torch.tensor(0.1))], ids=["module", "own"]
)
def test_a_learned_temperature_is_collective_only_where_it_has_a_gradient(
    learned, kernel, rows, monkeypatch
):
    collected = []
    monkeypatch.setattr(distributed, "mean", lambda slope: collected.append(slope) or slope)
    loss_fn = FlatNCELoss(learned)
    loss_fn.kernel = kernel
    with torch.no_grad():
        without = loss_fn(*views(rows))
    assert not collected
    torch.testing.assert_close(loss_fn(*views(rows)).detach(), without)
    assert len(collected) == 1


def test_over_several_processes_a_controller_is_not_read_on_the_host(monkeypatch):
    monkeypatch.setattr(distributed, "is_active", lambda: True)
    here = torch.device("cpu"), True, None
    assert TemperatureSource(EssController(0.3)).beta_now(*here) is None
    assert TemperatureSource(torch.tensor(0.25)).beta_now(*here) == 4.0


# --- Targets that a schedule reaches -------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["auto", "dense"])
@pytest.mark.parametrize("place", ["here", "deferred"])
@pytest.mark.parametrize(
    ("target", "accepted"), [(0.0, False), (1e-3, True), (1.0, True), (1.001, False)]
)
def test_a_target_of_a_schedule_is_checked_at_every_step(target, accepted, place, kernel, request):
    if place == "deferred":
        request.getfixturevalue(place)
    schedule = SimpleNamespace(at=lambda step: torch.full((), target))
    loss_fn = FlatNCE(EssController(schedule), kernel=kernel)
    if accepted:
        loss_fn(*views())
        assert float(loss_fn.last.ess) > 0 and int(loss_fn.temperature_source.step) == 1
    elif place == "here":
        with pytest.raises(ValueError, match=rf"target={target:g} of EssController is not in"):
            loss_fn(*views())
    else:
        loss_fn(*views())
        with pytest.raises(ValueError, match="ess_target"):
            _ = loss_fn.last.ess


@pytest.mark.parametrize("kernel", ["auto", "dense"])
def test_a_constant_schedule_is_its_number(kernel):
    targets = 0.25, Cosine(0.25, 0.25, 1)  # a number without rounding
    both = [driven(FlatNCE(EssController(one), kernel=kernel), 20) for one in targets]
    assert torch.equal(*(loss_fn.temperature_source.beta for loss_fn in both))


@pytest.mark.parametrize("kernel", ["auto", "dense"])
def test_two_negatives_are_enough_for_control(kernel):
    for loss_fn, size in (
        (FlatNCE(EssController(0.3), kernel=kernel), 2),
        (FlatNCE(EssController(0.3), kernel=kernel, layout="two_tower"), 3),
    ):
        assert loss_fn(*views(size)).isfinite() and loss_fn.last.contrast.count[0] == 2


def test_a_batch_without_negatives_does_not_move_the_temperature():
    source = TemperatureSource(EssController(0.3))
    assert source.advance(torch.zeros(())) is None
    assert float(source()) == pytest.approx(0.1, rel=FLOAT32) and int(source.step) == 1
