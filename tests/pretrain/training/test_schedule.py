"""The learning rate by step and by batch, against the formulas."""

import math

import pytest
import torch

from flatnce.core.control import Cosine, Schedule
from flatnce.pretrain.training.optim import WarmupCosine, scaled_rate

SCHEDULES = {
    "plain": WarmupCosine(0.3, 40),
    "warm": WarmupCosine(0.3, 40, warmup=10),
    "one step of warm-up": WarmupCosine(2.0, 7, warmup=1, end=0.5),
    "almost all warm-up": WarmupCosine(1.0, 8, warmup=7, end=0.1),
    "one step": WarmupCosine(1.0, 1),
}
every_schedule = pytest.mark.parametrize("rate", SCHEDULES.values(), ids=SCHEDULES)


def definition(rate: WarmupCosine, step: int) -> float:
    if step < rate.warmup:
        return rate.peak * (step + 1) / rate.warmup
    if step >= rate.steps:
        return rate.end
    angle = math.pi * (step - rate.warmup) / (rate.steps - rate.warmup)
    return rate.end + (rate.peak - rate.end) * 0.5 * (1 + math.cos(angle))


@every_schedule
@pytest.mark.parametrize("step", [0, 1, 6, 7, 9, 10, 25, 39, 40, 41, 10**6])
def test_numbers_and_tensors_follow_the_definition(rate, step):
    expected = definition(rate, step)
    assert rate.at(step) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    found = rate.at(torch.tensor(step))
    assert found.dtype == torch.float32 and found.shape == ()
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


@every_schedule
def test_it_starts_above_zero_reaches_the_peak_and_ends_at_the_end(rate):
    values = [rate.at(step) for step in range(rate.steps + 1)]
    assert values[0] > 0
    assert max(values) == rate.peak == values[max(rate.warmup - 1, 0)]
    assert values[-1] == pytest.approx(rate.end, abs=1e-15)


def test_a_step_beyond_what_a_float32_can_count_is_not_rounded():
    rate = WarmupCosine(1.0, 2**25, warmup=2**24 + 1)
    step = 2**24 + 1 + 3
    assert rate.at(torch.tensor(step)).item() == pytest.approx(rate.at(step), rel=1e-6)


def test_without_a_warm_up_it_is_the_cosine_of_control():
    step = torch.arange(0, 50, 7)
    ours = torch.stack([WarmupCosine(0.4, 40, end=0.1).at(s) for s in step])
    theirs = torch.stack([Cosine(0.4, 0.1, steps=40).at(s) for s in step])
    torch.testing.assert_close(ours, theirs)


def test_it_is_a_schedule_like_those_of_control():
    assert isinstance(WarmupCosine(0.1, 10), Schedule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peak": 0.0, "steps": 5}, "peak=0.0 must be a positive"),
        ({"peak": math.inf, "steps": 5}, "peak=inf"),
        ({"peak": 0.1, "steps": 0}, "steps=0 must be at least 1"),
        ({"peak": 0.1, "steps": 5, "warmup": 5}, r"warmup=5 must lie in \[0, steps=5\)"),
        ({"peak": 0.1, "steps": 5, "warmup": -1}, "warmup=-1"),
        ({"peak": 0.1, "steps": 5, "end": 0.2}, "end=0.2 must lie in"),
    ],
)
def test_bad_schedules_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        WarmupCosine(**options)


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("linear", 256, 0.3),
        ("linear", 4096, 4.8),
        ("linear", 32, 0.0375),
        ("sqrt", 4096, 1.2),
        ("sqrt", 64, 0.15),
        ("none", 4096, 0.3),
    ],
)
def test_the_rate_grows_with_the_batch(rule, batch, expected):
    assert scaled_rate(0.3, batch, rule=rule) == pytest.approx(expected)


def test_another_base_batch_may_be_given():
    assert scaled_rate(0.1, 64, base_batch=32) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("base", "batch", "options", "message"),
    [
        (-0.1, 32, {}, "base=-0.1"),
        (0.1, 0, {}, "batch=0 must be at least 1"),
        (0.1, 32, {"base_batch": 0}, "base_batch=0"),
        (0.1, 32, {"rule": "cubic"}, "rule='cubic' is unknown; take one of linear, sqrt, none"),
    ],
)
def test_bad_scalings_are_refused(base, batch, options, message):
    with pytest.raises(ValueError, match=message):
        scaled_rate(base, batch, **options)
