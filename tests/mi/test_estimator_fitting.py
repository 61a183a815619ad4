"""Training: side by side as alone, the best weights and no others, breakdowns, calibration."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from estimator_reference import infonce as slow_infonce
from estimator_reference import running_means
from flatnce.mi import SeparableCritic, critic_for
from flatnce.mi.bounds import finite_infonce, infonce
from flatnce.mi.critics import gaussian_critic
from flatnce.mi.fitting import FitSettings, FittedCritic, TrainingCase, _Adam, calibrated, fit
from flatnce.mi.registry import METHODS


def pairs(n, seed, correlation=0.8):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=random)
    return x, correlation * x + (1 - correlation**2) ** 0.5 * torch.randn(n, 2, generator=random)


def critic(kind, seed=0, dual=None):
    torch.manual_seed(seed)
    if kind == "gaussian":
        tables = [tuple(side.numpy() for side in pairs(60, s)) for s in (seed + 50, seed + 60)]
        return gaussian_critic(*tables, hidden=(8,), features=4)
    return critic_for(kind, (2, 2), hidden=(8,), features=4, dual=dual)


def member(seed=0, made=None, kind="dot", n=64, dual=None):
    made = critic(kind, seed, dual) if made is None else made
    return TrainingCase(made, *pairs(n, seed), *pairs(48, 1000 + seed), seed)


def settings(method="infonce", **changes):
    usual = {"batch_size": 16, "steps": 12, "every": 3, "rate": 1e-2}
    return FitSettings(METHODS[method], **(usual | changes))


def weights(found):
    return {name: value.detach().clone() for name, value in found.critic.state_dict().items()}


# --- Side by side --------------------------------------------------------------------------------

CASES = [
    ("infonce", "dot"),
    ("flatnce", "cosine"),
    ("auto", "gaussian"),
    ("flo", "dot"),
    ("tuba", "dot"),
    ("mine", "dot"),
    ("nwj", "dot"),
    ("infonce", "joint"),
]
INDIFFERENT = ("infonce", "auto", "mine")


def in_float64(one):
    """The same member in double precision, where the order of a sum does not show."""
    sides = (one.x, one.y, one.x_validation, one.y_validation)
    return TrainingCase(one.critic.double(), *(side.double() for side in sides), one.seed)


@pytest.mark.parametrize("method, kind", CASES, ids=[" ".join(case) for case in CASES])
def test_training_side_by_side_is_training_alone(method, kind):
    dual = METHODS[method].dual
    chosen = settings(method)
    members = [in_float64(member(seed, kind=kind, dual=dual)) for seed in range(3)]
    for seed, found in enumerate(fit(members, chosen)):
        (alone,) = fit([in_float64(member(seed, kind=kind, dual=dual))], chosen)
        assert (found.step, found.diverged) == (alone.step, alone.diverged) == (alone.step, False)
        assert found.scale == pytest.approx(alone.scale, rel=1e-6)
        for one, other in zip(found.history, alone.history, strict=True):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-7, nan_ok=True)
        rows = in_float64(member(seed))
        with torch.no_grad():
            mine, theirs = (each.critic(rows.x, rows.y) for each in (found, alone))
        if method in INDIFFERENT:  # weights that only make c(x) follow rounding: they have no pull
            mine, theirs = (each - each.mean(dim=1, keepdim=True) for each in (mine, theirs))
        else:
            for name, value in weights(found).items():
                torch.testing.assert_close(value, weights(alone)[name], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


# --- What is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_the_kept_weights_are_those_of_the_best_look(count):
    chosen = settings(steps=60, rate=5e-2)  # overfits, so that the best is not the last
    for seed, found in enumerate(fit([member(k, n=24) for k in range(count)], chosen)):
        values = {int(record["step"]): record["validation"] for record in found.history}
        best = max(values, key=values.get)
        assert found.step == best < max(values) and found.validation == values[best]
        rows = member(seed, n=24)
        with torch.no_grad():
            scores = found.critic(rows.x_validation, rows.y_validation)
        assert float(infonce(found.scale * scores)) == pytest.approx(found.validation, abs=1e-5)


def test_the_kept_weights_are_a_copy():
    (longer,) = fit([member(0, n=24)], settings(steps=60, rate=5e-2))
    assert 0 < longer.step < 60
    rows = member(0, n=24)
    (shorter,) = fit([rows], settings(steps=longer.step, rate=5e-2))
    with torch.no_grad():
        for weight in rows.critic.parameters():
            weight.fill_(math.nan)
    for name, value in weights(shorter).items():  # as they were, whatever was trained on
        torch.testing.assert_close(weights(longer)[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("average", [0.6, 0.99])
def test_the_read_weights_are_a_running_mean(average):
    made = SeparableCritic(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    chosen = settings(steps=25, every=1, rate=3e-3, average=average)
    seen = []

    def note(module, _):
        if module.training:
            seen.append(module.weight.detach().double().clone())

    made.left.register_forward_pre_hook(note)
    (found,) = fit([member(0, made)], chosen)
    assert found.step == 25  # so slow that every look is better
    path = [*seen, made.left.weight.detach().double()]
    torch.testing.assert_close(
        found.critic.left.weight.double(), running_means(path, average), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("count", [1, 2])
def test_an_epoch_holds_each_row_once_and_the_next_another_order(count):
    members = [member(k, n=20) for k in range(count)]
    seen = [[] for _ in members]
    members = [
        dataclasses.replace(rows, critic=SeparableCritic(Seen(told), Seen([])))
        for rows, told in zip(members, seen, strict=True)
    ]
    fit(members, settings(batch_size=5, steps=8, every=8))
    for rows, told in zip(members, seen, strict=True):
        epochs = torch.cat(told[:4]), torch.cat(told[4:])
        for epoch in epochs:
            assert sorted(epoch.tolist()) == sorted(rows.x.tolist())
        assert not torch.equal(*epochs)


class Seen(nn.Module):
    """A tower that notes what it is trained on."""

    def __init__(self, told):
        super().__init__()
        self.told, self.weight = told, nn.Parameter(torch.eye(2))

    def forward(self, values):
        if self.training:
            self.told.append(values.detach().clone())
        return values @ self.weight


# --- Breakdowns ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["infonce", "nwj"])
def test_a_critic_that_breaks_down_is_marked_and_does_not_hurt_the_others(method):
    broken = member(1)
    broken = dataclasses.replace(broken, x=broken.x * 1e30, y=broken.y * 1e30)
    chosen = settings(method)
    one, bad, two = fit([member(0), broken, member(2)], chosen)
    assert bad.diverged and not one.diverged and not two.diverged
    assert all(torch.isfinite(weight).all() for weight in bad.critic.parameters())
    assert math.isfinite(bad.validation)
    for seed, found in ((0, one), (2, two)):
        (alone,) = fit([member(seed)], chosen)
        assert found.validation == pytest.approx(alone.validation, abs=1e-3)
        assert found.step == alone.step


def test_a_clear_fall_of_the_validation_value_stops_training_early():
    # Steps this large ruin the critic at once: every evaluation counts twice.
    (found,) = fit([member(kind="gaussian")], settings("auto", steps=100, every=1, rate=3.0))
    values = [record["validation"] for record in found.history]
    falls = sum(value < 0.99 * max(values) - 0.005 for value in values)
    assert falls >= 4 and len(values) <= 1 + found.step + FitSettings.patience - falls // 2


# --- Calibration ---------------------------------------------------------------------------------


def scores_of(size, n=40, seed=0, dtype=torch.float64):
    x, y = pairs(n, seed)
    return (size * (x @ y.T)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 30.0, 1e3])
def test_the_calibrated_scale_is_the_best_of_a_fine_grid(size, dtype):
    scores = scores_of(size, dtype=dtype)
    scale, value = calibrated(scores, 1.0, tolerance=1e-4)
    grid = torch.logspace(-4, 4, 4001, dtype=torch.float64)
    scaled = grid[:, None, None] * scores.double()
    losses = scaled.logsumexp(dim=2) - scaled.diagonal(dim1=1, dim2=2)
    values = math.log(len(scores)) - losses.mean(dim=1)
    best = grid[values.argmax()]
    assert scale == pytest.approx(float(best), rel=5e-3)
    assert value == pytest.approx(float(values.max()), abs=1e-5)
    assert value == pytest.approx(slow_infonce((scale * scores.double()).tolist()), abs=1e-4)


def test_scores_that_are_no_numbers_are_worth_nothing():
    scores = scores_of(1.0)
    scores[3, 5] = math.nan
    assert calibrated(scores, 7.0) == (7.0, -math.inf)


# --- Shortcuts of training -----------------------------------------------------------------------


def test_adam_is_that_of_torch_and_leaves_weights_without_gradient():
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    own, known, unused = start.clone().requires_grad_(), start.clone().requires_grad_(), start[0]
    before, mine = unused.clone(), _Adam([own, unused], 0.1)
    theirs = torch.optim.Adam([known], lr=0.1)
    for step in range(5):
        for weight in (own, known):
            weight.grad = None
            (weight.sin() * (step + 1)).sum().backward()
        mine.step()
        theirs.step()
    torch.testing.assert_close(own, known)
    assert torch.equal(unused, before)


def test_information_of_scores_that_are_not_finite_is_refused():
    fitted = FittedCritic(SeparableCritic(nn.Identity(), nn.Identity()))
    rows = torch.tensor([[1.0], [2.0], [math.nan], [3.0]])
    with pytest.raises(ValueError, match=r"row 2: .* hold NaN"):
        fitted.information(rows, torch.ones(4, 1))


@pytest.mark.parametrize("size", [0.1, 3.0, 200.0])
def test_infonce_of_finite_scores_is_infonce(size):
    scores = size * torch.randn(9, 12, dtype=torch.float64)
    torch.testing.assert_close(finite_infonce(scores), infonce(scores, reduction="none"))
