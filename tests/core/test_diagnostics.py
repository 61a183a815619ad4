"""Diagnostics against the slow definition, the gradient meter, the monitor and the verdict."""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import layouts
import reference
from flatnce import DHEL, EssController, FlatNCE, InfoNCE, Monitor
from flatnce import functional as F
from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics import Snapshot, Verdict, verdict_on
from flatnce.core.diagnostics.geometry import rank_of_gram
from flatnce.core.diagnostics.monitor import FORMER_MEANS, _step_of
from flatnce.core.diagnostics.registry import DIAGNOSTICS, SATURATED_ROW, Rows
from flatnce.core.diagnostics.verdict import (
    COLLAPSED_RANK,
    COLLAPSED_UNIFORMITY,
    IDLE_SHARE,
    PEAKED_ESS,
    PEAKED_NEGATIVES,
    SATURATED_GAIN,
    UNIFORM_ESS,
    verdicts_on,
)
from flatnce.core.objectives.registry import OBJECTIVES, ess_target
from layouts import random
from saved import saved_and_loaded

Slow = Callable[[reference.Row], float]
CASES = [f"{layout}: plain" for layout in layouts.LAYOUTS] + [
    "two views: ids masked shared",
    "two towers: raw ids masked own",
    "labels, out: masked shared",
]
every_case = pytest.mark.parametrize("name", CASES)


def close(expected: object) -> object:
    if isinstance(expected, list | Tensor):
        expected = torch.as_tensor(expected, dtype=torch.float64).tolist()
    return pytest.approx(expected, rel=1e-10, abs=1e-12)


# --- Rows against the slow definition ------------------------------------------------------------


def pooled(row: reference.Row) -> float:
    """All positives of a row as one score, which is the score itself where there is one."""
    return reference.log_sum_exp(row.positives)


def ess_with_positive(row: reference.Row) -> float:
    first, *others = row.positives
    return reference.effective_sample_size(first, [*others, *row.negatives], with_positive=True)


def ceiling(row: reference.Row) -> float:
    """log K with one positive; a guess among m + P candidates finds one of P positives."""
    return math.log((len(row.negatives) + len(row.positives)) / len(row.positives))


READERS: dict[str, tuple[Callable[..., Tensor], Slow]] = {
    "ess": (
        F.effective_sample_size,
        lambda row: reference.effective_sample_size(row.positive, row.negatives),
    ),
    "ess with positive": (
        lambda c, reduction="mean": F.effective_sample_size(
            c, with_positive=True, reduction=reduction
        ),
        ess_with_positive,
    ),
    "gain": (F.gradient_gain, lambda row: reference.gradient_gain(pooled(row), row.negatives)),
    "mi": (
        F.mutual_information,
        lambda row: ceiling(row) - reference.infonce(pooled(row), row.negatives),
    ),
    "mi ceiling": (F.mutual_information_ceiling, ceiling),
}
SHARES: dict[str, tuple[Callable[[F.Contrast], Tensor], Slow]] = {
    "saturated": (
        F.saturated_share,
        lambda row: float(reference.gradient_gain(pooled(row), row.negatives) < SATURATED_ROW),
    ),
    "half asleep": (
        lambda c: F.saturated_share(c, threshold=0.5),
        lambda row: float(reference.gradient_gain(pooled(row), row.negatives) < 0.5),
    ),
    "top1": (F.retrieval_top1, lambda row: float(max(row.positives) > max(row.negatives))),
}
every_reader = pytest.mark.parametrize("reader", list(READERS))
# Scores a tenth, a few and a few hundred wide: flat, ordinary and saturated.
every_temperature = pytest.mark.parametrize("temperature", [10.0, 0.4, 0.005])


@every_case
@pytest.mark.parametrize("reader", [*READERS, *SHARES])
@every_temperature
def test_a_mean_diagnostic_equals_the_slow_definition(name, reader, temperature):
    fast, slow = {**READERS, **SHARES}[reader]
    case = layouts.case_of(name)
    expected = reference.mean([slow(row) for row in layouts.rows_of(case, temperature)])
    assert float(fast(F.contrast_of(case.build(case.inputs), temperature))) == close(expected)


@every_reader
def test_reductions_are_the_rows_their_sum_and_their_mean(reader):
    fast, slow = READERS[reader]
    case = layouts.case_of("two views: masked")
    contrast = F.contrast_of(case.build(case.inputs), 0.4)
    expected = [slow(row) for row in layouts.rows_of(case, 0.4)]
    assert fast(contrast, reduction="none").tolist() == close(expected)
    assert float(fast(contrast, reduction="sum")) == close(math.fsum(expected))


# --- The ESS of the population -------------------------------------------------------------------


@every_case
@every_temperature
@pytest.mark.parametrize("kernel", ["dense", "chunked"])
def test_the_population_ess_equals_the_slow_definition(name, temperature, kernel):
    case = layouts.case_of(name)
    rows = [row.negatives for row in layouts.rows_of(case, temperature)]
    contrast = F.contrast_of(case.build(case.inputs), temperature, kernel=kernel)
    assert float(F.population_ess(contrast)) == close(reference.population_ess(rows))


def test_rows_with_less_than_two_negatives_do_not_count_in_the_population_ess():
    rows = random(4, 6)
    rows[1, 2:] = -math.inf  # one negative
    rows[3, 3:] = -math.inf  # two negatives
    contrast = F.contrast_from_logits(rows, torch.zeros(4, dtype=torch.long))
    expected = reference.population_ess([rows[0, 1:], rows[1, 1:2], rows[2, 1:], rows[3, 1:3]])
    assert float(F.population_ess(contrast)) == close(expected)
    assert expected == close(reference.population_ess([rows[0, 1:], rows[2, 1:], rows[3, 1:3]]))
    rows[1:, 2:] = -math.inf
    contrast = F.contrast_from_logits(0.5 * rows, torch.zeros(4, dtype=torch.long))
    expected = reference.population_ess([0.5 * rows[0, 1:]])
    assert float(F.population_ess(contrast)) == close(expected) and expected < 0.95
    for dtype in (torch.float32, torch.float64):
        only = F.contrast_from_logits(rows[:, :2].to(dtype), torch.zeros(4, dtype=torch.long))
        assert float(F.population_ess(only)) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [-3000.0, 0.0, 3000.0])
def test_the_population_ess_does_not_overflow(dtype, shift):
    rows = random(5, 9).to(dtype) + shift
    rows[1] += 400.0  # in exponentials the only row that counts
    contrast = F.contrast_from_logits(rows, torch.zeros(5, dtype=torch.long))
    expected = reference.population_ess([rows[1, 1:] - 400 - shift])
    rounding = 1e-3 if dtype == torch.float32 else 1e-9
    assert float(F.population_ess(contrast)) == pytest.approx(expected, rel=rounding)


# --- Geometry ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_geometry_equals_the_slow_definition(shape):
    z, other = random(*shape), random(*shape, seed=1)
    found = (
        F.alignment(reference.unit(z), reference.unit(other)),
        F.uniformity(reference.unit(z)),
        F.effective_rank(z),
    )
    slow = reference.alignment(z, other), reference.uniformity(z)
    assert [float(value) for value in found] == close([*slow, reference.effective_rank(z)])
    gram = z.T @ z if len(z) > z.shape[1] else z @ z.T
    assert float(rank_of_gram(gram)) == pytest.approx(float(found[2]), rel=1e-8)


def test_uniformity_is_exact_in_float32_and_moves_rows_as_its_definition_does():
    for shape in ((2, 128), (9, 4)):
        rows = reference.unit(random(*shape))
        single = rows.float().requires_grad_()
        apart = torch.pdist(rows.requires_grad_()).square()
        expected = (-2 * apart).exp().mean().log()
        (gradient,) = torch.autograd.grad(expected, rows)
        found = F.uniformity(single)
        torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(*torch.autograd.grad(found, single), gradient.float())
    far = F.uniformity(torch.tensor([[3.0, 0.0], [0.0, 3.0]]))  # also of rows of another length
    assert float(far) == pytest.approx(-36)


# --- Monitor -------------------------------------------------------------------------------------

FROM_SNAPSHOT = {*DIAGNOSTICS, "step", "steps"}
OF_A_LOSS = FROM_SNAPSHOT - {"uniformity", "effective_rank"}
FROM_CONTRAST = OF_A_LOSS - {"alignment", "objective_loss"}


def batches(steps: int, size: int = 8, width: int = 5) -> list[tuple[Tensor, Tensor]]:
    """Views that grow alike over the steps, so that no two steps have the same numbers."""
    found = []
    for step in range(steps):
        z = random(size, width, seed=10 + step)
        found.append((z, z + 0.8 / (step + 1) * random(size, width, seed=50 + step)))
    return found


def call(loss_fn: FlatNCE, *views: Tensor) -> Snapshot:
    loss_fn(*views)
    return loss_fn.last


def watched(monitor: Monitor, steps: int = 4, **options) -> list[Snapshot]:
    """What a monitor was shown."""
    loss_fn = FlatNCE(temperature=0.3, **options)
    shown = []
    for z1, z2 in batches(steps):
        loss_fn(z1, z2)
        monitor.update(loss_fn.last)
        shown.append(loss_fn.last)
    return shown


READINGS = ("mi", "mi_ceiling", "ess_paper", "ess_with_positive", "gain", "saturated", "top1")
STEP_VALUES: dict[str, Callable[[Snapshot], Tensor]] = {
    "loss": lambda last: last.mi_ceiling - last.mi,
    "objective_loss": lambda last: last.loss,
    **{name: attrgetter(name) for name in (*READINGS, "temperature")},
}


@pytest.mark.parametrize("key", list(STEP_VALUES))
def test_the_monitor_holds_the_mean_over_steps(key):
    monitor = Monitor()
    shown = watched(monitor)
    expected = reference.mean([float(STEP_VALUES[key](last)) for last in shown])
    assert monitor.compute()[key] == close(expected)


def negatives_of(z1: Tensor, z2: Tensor, temperature: float) -> list[Tensor]:
    """The scores of each row's negatives, of two views."""
    z = torch.cat([reference.unit(z1), reference.unit(z2)])
    scores, b = z @ z.T / temperature, len(z1)
    return [
        torch.stack([row[j] for j in range(2 * b) if (j - i) % b]) for i, row in enumerate(scores)
    ]


def test_the_monitors_ess_is_a_ratio_of_sums_over_steps():
    monitor = Monitor()
    watched(monitor)
    moments = [reference.ess_moments(negatives_of(*batch, 0.3)) for batch in batches(4)]
    first, second = (math.fsum(each) for each in zip(*moments, strict=True))
    assert monitor.compute()["ess"] == close(first / second)


def test_a_step_at_another_level_weighs_as_much_in_the_monitors_ess():
    # The cosines of one step are near 1: in sums of exponentials the other would not be seen.
    far, near = batches(1)[0], [z / 50 + 1 for z in batches(1)[0]]
    monitor, found = Monitor(), {}
    for name, steps in {"far": [far], "near": [near], "both": [far, near]}.items():
        for z1, z2 in steps:
            monitor.update(F.contrast_of(F.two_view(z1, z2), 0.2))
        found[name] = monitor.compute()["ess"]
    assert found["far"] < 0.4 and found["near"] > 0.95
    assert found["far"] + 0.04 < found["both"] < found["near"] - 0.3


def test_one_batch_with_duplicates_does_not_decide_the_monitors_ess():
    monitor = Monitor()
    for step in range(200):
        z1, z2 = random(16, 32, seed=2 * step), random(16, 32, seed=2 * step + 1)
        if step == 100:
            z1[1] = z1[0]
        monitor.update(F.contrast_of(F.two_view(z1, z2), 0.05))
        if step == 99:
            before = monitor.compute(reset=False)["ess"]
    assert monitor.compute()["ess"] > 0.8 * before


def test_the_monitors_alignment_and_rank_are_those_of_all_steps():
    monitor = Monitor()
    watched(monitor)
    numbers = monitor.compute()
    alignments = [reference.alignment(z1, z2) for z1, z2 in batches(4)]
    assert numbers["alignment"] == close(reference.mean(alignments))
    everything = torch.cat([reference.unit(z1) for z1, _ in batches(4)])
    expected = reference.effective_rank(everything).item()
    assert numbers["effective_rank"] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("rows", [2, 3, 8, 256])
def test_the_monitors_uniformity_pools_potentials_of_the_first_rows(rows):
    monitor = Monitor(rows)
    watched(monitor)
    potentials = [math.exp(reference.uniformity(z1[:rows])) for z1, _ in batches(4)]
    expected = math.log(reference.mean(potentials))
    assert monitor.compute()["uniformity"] == close(expected)


@pytest.mark.parametrize(("rows", "keys"), [(256, FROM_SNAPSHOT), (0, OF_A_LOSS)])
def test_a_record_of_a_loss_has_these_keys_and_plain_numbers(rows, keys):
    monitor = Monitor(rows)
    watched(monitor)
    numbers = monitor.compute()
    assert set(numbers) == keys
    assert {type(value) for value in numbers.values()} <= {int, float}


def test_a_contrast_can_be_followed_and_keeps_its_graph():
    z1, z2 = (z.requires_grad_() for z in batches(1)[0])
    contrast, monitor = F.contrast_of(F.two_view(z1, z2), 0.3), Monitor()
    monitor.update(contrast)
    numbers = monitor.compute()
    assert set(numbers) == FROM_CONTRAST
    assert numbers["loss"] == close(float(F.infonce(contrast).detach()))
    F.flatnce(contrast).backward()
    assert z1.grad is not None and not monitor.totals.requires_grad


@pytest.mark.parametrize("logits", [True, False], ids=["logits", "rows of any length"])
def test_what_a_batch_does_not_tell_is_left_out(logits):
    monitor, loss_fn = Monitor(), FlatNCE(normalize=False)
    if logits:
        monitor.update(F.contrast_from_logits(random(4, 5), torch.arange(4)))
    else:
        monitor.update(call(loss_fn, *batches(1)[0]))
    numbers = monitor.compute()
    assert "alignment" not in numbers and ("temperature" in numbers) is not logits


def test_an_interval_ends_with_compute_unless_it_goes_on():
    monitor, alone = Monitor(), Monitor()
    watched(monitor, steps=4)
    first = monitor.compute(step=4100)
    assert (first["step"], first["steps"]) == (4100, 4)
    watched(monitor, steps=2)
    unfinished = monitor.compute(reset=False)
    watched(monitor, steps=2)
    second = monitor.compute()
    watched(alone, steps=2)
    watched(alone, steps=2)
    assert second == {**alone.compute(), "step": second["step"]}
    assert monitor.history == [first, unfinished, second]


def test_steps_of_an_interval_that_goes_on_are_counted_once():
    monitor = Monitor()
    watched(monitor, steps=2)
    monitor.compute(step=100)
    for expected in (102, 104):
        watched(monitor, steps=2)
        assert monitor.compute(reset=False)["step"] == expected
    watched(monitor, steps=2)
    interval = monitor.close()
    assert monitor.compute(interval=interval)["step"] == 106
    watched(monitor, steps=2)
    assert monitor.compute(reset=False)["step"] == 108
    resumed = Monitor()
    resumed.load_state_dict(saved_and_loaded(monitor.state_dict()))
    for one in (monitor, resumed):
        watched(one, steps=1)
        assert one.compute(reset=False)["step"] == 109
        one.reset()
        watched(one, steps=1)
        assert one.compute()["step"] == 110


def test_an_interval_that_was_closed_is_read_while_the_next_one_goes_on():
    monitor, alone = Monitor(), Monitor()
    watched(monitor, steps=4)
    watched(alone, steps=4)
    interval = monitor.close()
    watched(monitor, steps=2)
    assert interval.arrived()  # on the CPU at once
    assert monitor.compute(step=4, interval=interval) == alone.compute(step=4)
    watched(alone, steps=2)
    assert monitor.compute(step=6) == alone.compute(step=6)


def test_a_monitor_takes_batches_before_and_after_a_new_temperature(deferred):
    monitor, loss_fn, losses = Monitor(), FlatNCE(), []
    for temperature in (EssController(0.6), 0.2):
        loss_fn.temperature = temperature
        losses.append(loss_fn(random(5, 3), random(5, 3, seed=1)))
        monitor.update(loss_fn.last)
    assert monitor.compute()["loss"] == pytest.approx(float(sum(losses)) / 2)


def test_a_fault_belongs_to_the_interval_it_was_found_in(deferred):
    monitor, spoiled = Monitor(), random(4, 3)
    spoiled[2] = math.nan
    monitor.update(call(FlatNCE(), spoiled, random(4, 3)))
    faulty = monitor.close()
    monitor.update(call(FlatNCE(), random(4, 3), random(4, 3, seed=1)))
    assert math.isfinite(monitor.compute()["loss"])
    with pytest.raises(ValueError, match="nonfinite"):
        monitor.compute(interval=faulty)


@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("kernel", ["auto", "dense"])
def test_a_monitor_that_was_updated_in_inference_mode_is_read_outside(kernel, steps):
    loss_fn, inside, outside = FlatNCE(kernel=kernel), Monitor(), Monitor()
    for _ in range(2):
        for _ in range(steps):
            z1, z2 = torch.randn(2, 8, 4)
            loss_fn(z1, z2)
            outside.update(loss_fn.last)
            with torch.inference_mode():
                loss_fn(z1, z2)
                inside.update(loss_fn.last)
        assert inside.compute() == outside.compute()


def test_a_monitor_says_what_it_needs():
    with pytest.raises(ValueError, match=r"has no steps yet; call update\(loss_fn.last\) first"):
        Monitor().compute()
    monitor = Monitor()
    monitor.update(call(FlatNCE(), random(4, 3), random(4, 3, seed=1)))
    monitor.compute()
    with pytest.raises(ValueError, match=r"no steps since the last compute; call update"):
        monitor.compute()
    with pytest.raises(ValueError, match=r"history is empty; call Monitor.compute at least once"):
        verdict_on([])
    for rows in (-1, 1):
        with pytest.raises(ValueError, match=f"rows={rows} must be 0"):
            Monitor(rows)


def test_a_saved_monitor_goes_on_where_it_stopped():
    stopped, whole = Monitor(), Monitor()
    for monitor in (stopped, whole):
        watched(monitor, steps=3)
        monitor.compute()
        watched(monitor, steps=2)
    restored = Monitor()
    restored.load_state_dict(saved_and_loaded(stopped.state_dict()))
    for monitor in (restored, whole):
        watched(monitor, steps=4)
    assert restored.compute() == whole.compute()
    assert restored.history == whole.history
    assert restored.verdict() == whole.verdict()


CASTS = {
    "float": nn.Module.float,
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "to a dtype": lambda module: module.to(torch.float32),
    "to a device and a dtype": lambda module: module.to("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("rows", [256, 0])
@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS.keys())
def test_a_monitor_keeps_its_precision_when_its_model_is_cast(cast, rows):
    model, plain = nn.ModuleDict({"monitor": Monitor(rows)}), Monitor(rows)
    for monitor in (model["monitor"], plain):
        watched(monitor, steps=3)
    cast(model)
    for monitor in (model["monitor"], plain):
        watched(monitor, steps=20)
    copied = deepcopy(model["monitor"])
    assert [held.dtype for held in copied.buffers()] == [held.dtype for held in plain.buffers()]
    assert copied.compute() == plain.compute()


def test_a_monitor_keeps_its_precision_when_a_state_is_assigned():
    monitor, saved = Monitor(), Monitor()
    watched(saved, steps=3)
    state = saved.state_dict()
    half = {k: v.bfloat16() if k in ("totals", "gram") else v for k, v in state.items()}
    monitor.load_state_dict(half, assign=True)
    assert monitor.totals.dtype == monitor.gram.dtype == torch.float64
    assert torch.equal(monitor.totals, half["totals"].double())


def test_a_cast_monitor_still_moves_to_a_device():
    moved = Monitor().to("meta", torch.bfloat16)
    assert {held.device.type for held in moved.buffers()} == {"meta"}
    assert moved.totals.dtype == moved.gram.dtype == torch.float64
    assert {held.device.type for held in moved.to_empty(device="cpu").buffers()} == {"cpu"}


LAYOUTS = {
    "two_view": FlatNCE(5.0),
    "two_tower": FlatNCE(5.0, layout="two_tower"),
    "two_tower, ids": FlatNCE(5.0, layout="two_tower"),
    "own_view": DHEL(5.0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_monitors_verdict_proposes_only_what_its_layout_takes(layout):
    loss_fn, monitor = LAYOUTS[layout], Monitor()
    ids = {"ids": torch.arange(8)} if layout.endswith("ids") else {}
    for step in range(100):
        loss_fn(random(8, 4, seed=step), random(8, 4, seed=step + 1), **ids)
        monitor.update(loss_fn.last)
    monitor.compute()
    resumed = Monitor()
    resumed.load_state_dict(saved_and_loaded(monitor.state_dict()))
    assert resumed.verdict() == monitor.verdict() and monitor.verdict().kind == "uniform"
    assert ("EssController" in monitor.verdict().message) == (layout == "two_view")
    monitor.history[-1]["gain"] = 0.01
    assert monitor.verdict().kind == "saturated"
    assert ("KeyQueue" in monitor.verdict().message) == (layout == "two_view")


def saved_by_the_version_before(monitor: Monitor) -> dict:
    """A state with totals in a fixed order and without names; the ESS was the paper's form."""
    state = monitor.state_dict()
    extra = dict(state["_extra_state"])
    totals = dict(zip(extra.pop("means"), state["totals"], strict=True))
    totals["ess"] = totals["ess_paper"]
    former = torch.stack([totals[name] for name in FORMER_MEANS])
    return {**state, "totals": former, "_extra_state": extra}


def test_a_state_of_the_version_before_is_loaded():
    saved, restored = Monitor(), Monitor()
    watched(saved)
    restored.load_state_dict(saved_by_the_version_before(saved))
    expected = saved.compute()
    del expected["objective_loss"]  # it was not kept then
    assert restored.compute() == {**expected, "ess": expected["ess_paper"]}
    watched(restored)
    watched(saved)
    assert restored.compute() == saved.compute()


def test_a_state_may_lack_a_diagnostic_or_have_an_unknown_one():
    saved, restored = Monitor(), Monitor()
    watched(saved)
    state = saved.state_dict()
    names = ["unheard-of" if name == "gain" else name for name in state["_extra_state"]["means"]]
    extra = {**state["_extra_state"], "means": names}
    restored.load_state_dict({**state, "_extra_state": extra})
    expected = saved.compute()
    del expected["gain"]
    assert restored.compute() == expected


@pytest.mark.parametrize("options", [{}, {"form": "out"}, {"normalize": False}])
def test_steps_that_are_computed_together_have_the_numbers_of_steps_alone(options):
    alone, together = Monitor(), Monitor()
    shown = watched(alone, steps=5, **options)
    steps = [_step_of(last, limit=256).copy() for last in shown]
    assert len({step.signature() for step in steps}) == 1
    together._take(steps)
    together.steps += len(steps)
    assert together.compute() == pytest.approx({**alone.compute(), "step": 5}, rel=1e-12)


# --- Verdict -------------------------------------------------------------------------------------

HEALTHY = {"mi": 3.0, "mi_ceiling": 4.84, "gain": 0.3, "ess": 0.3}
GEOMETRY = {"uniformity": -2.0, "effective_rank": 40.0}
SICK: dict[str, dict[str, float]] = {
    "failed": {"gain": math.nan, "mi": -math.inf},
    "collapsed": {"uniformity": -0.01, "effective_rank": 1.1},
    "saturated": {"gain": 0.008, "mi": 4.79},
    "peaked": {"ess": 0.01},
    "uniform": {"ess": 0.99},
    "not learning": {"mi": 0.1},
    "healthy": {},
}
every_kind = pytest.mark.parametrize("kind", list(SICK))


def record(step: int, *kinds: str, geometry: bool = True) -> dict[str, float]:
    numbers = {"step": step, **HEALTHY, **(GEOMETRY if geometry else {})}
    for kind in kinds:
        numbers |= SICK[kind]
    return numbers


def judged(step: int, **numbers: float) -> str:
    return verdict_on([{**record(step), **numbers}]).kind


@every_kind
def test_each_finding_is_made_on_made_up_numbers(kind):
    found = verdict_on([record(7, kind)])
    assert found.kind == kind
    assert kind == "collapsed" or verdict_on([record(7, kind, geometry=False)]).kind == kind
    if kind == "healthy":
        assert found == Verdict("healthy", 7, "MI 3.00 of 4.84 nats, gain 0.30, ESS 0.30")
        assert "do one of" not in found.message
    else:
        assert len(found.remedies) >= 2 and found.message.endswith("; ".join(found.remedies))


@pytest.mark.parametrize("kind", ["collapsed", "uniform", "not learning"])
def test_what_wrong_pairs_lead_to_advises_to_check_the_pairs(kind):
    found = verdict_on([record(100, kind) | {"mi": 0.0}])
    assert found.kind == kind
    assert any("row i of both inputs is the same sample" in one for one in found.remedies)


def test_a_run_is_not_judged_before_there_is_evidence():
    for kind in ("peaked", "uniform", "not learning", "healthy"):
        early = verdict_on([record(7, kind) | {"steps": 7}])
        assert early.kind == "undecided" and not early.remedies
        assert "100 steps" in early.message
        parts = [record(step, kind) | {"steps": 50} for step in (50, 100)]
        assert verdict_on(parts).kind == kind
        assert verdict_on([parts[0], {**parts[1], "epoch": 0.9}]).kind == "undecided"
    assert verdict_on([record(7, "saturated") | {"steps": 7}]).kind == "saturated"


THRESHOLDS = [
    ("uniformity", "collapsed", COLLAPSED_UNIFORMITY, +1),
    ("effective_rank", "collapsed", COLLAPSED_RANK, -1),
    ("gain", "saturated", SATURATED_GAIN, -1),
    ("mi", "not learning", IDLE_SHARE * 4.84, -1),
    ("ess", "peaked", PEAKED_NEGATIVES / math.expm1(4.84), -1),
    ("ess", "uniform", UNIFORM_ESS, +1),
]


@pytest.mark.parametrize(("number", "kind", "threshold", "beyond"), THRESHOLDS)
def test_a_threshold_separates_a_finding_from_healthy(number, kind, threshold, beyond):
    assert judged(1, **{number: threshold + 1e-6 * beyond}) == kind
    assert judged(1, **{number: threshold - 1e-6 * beyond}) == "healthy"


@pytest.mark.parametrize(
    ("kinds", "first"),
    [
        (("collapsed", "failed"), "failed"),
        (("collapsed", "saturated"), "collapsed"),
        (("saturated", "uniform"), "saturated"),
        (("peaked", "not learning"), "peaked"),
        (("uniform", "not learning"), "uniform"),
    ],
)
def test_of_two_findings_the_graver_is_told(kinds, first):
    assert verdict_on([record(1, *kinds)]).kind == first


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((2.0, 2.1, 1.9, 2.05, 2.0), "not learning"),
        ((2.0, 2.1, 1.9, 2.05), "healthy"),  # too few records
        ((2.0, 2.1, 1.8, 2.05, 2.0), "healthy"),  # 0.3 of 4.84 is more than 5 %
        ((1.0, 2.1, 2.1, 2.1, 2.1, 2.1), "healthy"),  # a plateau after a rise
        ((3.95, 4.01, 4.0, 4.0, 4.01), "healthy"),  # a task that is solved from the start
        ((2.45, 2.45, 2.45, 2.45, 2.45), "healthy"),  # more than half of 4.84
    ],
)
def test_mi_that_never_changes_is_not_learning(values, kind):
    history = [{**record(100 * place), "mi": mi} for place, mi in enumerate(values, start=1)]
    found = verdict_on(history)
    assert found.kind == kind
    assert [one.kind for one in verdicts_on(history)] == [kind] * (kind != "healthy")
    if kind != "healthy":
        assert found.since == 100
        assert found.evidence == "MI 2.00 of 4.84 nats, and 1.90 to 2.10 in all 5 records"
    saturated = [{**one, "gain": 0.01} for one in history]
    assert [one.kind for one in verdicts_on(saturated)] == ["saturated"]
    moving = [{**one, "temperature": 0.1 - 0.0017 * place} for place, one in enumerate(history)]
    assert verdict_on(moving).kind == "healthy"  # the temperature may hold MI
    # Since it has settled, the same can be said, but it may still follow the encoder.
    started = {**record(50), "mi": 3.0, "temperature": 0.2}
    settled = [started, *({**one, "temperature": 0.1} for one in history)]
    unsure = verdict_on(settled)
    assert unsure.kind == "healthy"
    assert ("not known whether the encoder learns" in unsure.evidence) == (kind != "healthy")
    for broken in (0.0, -0.1, math.inf, math.nan):  # a verdict never fails on a number
        assert verdict_on([*settled, {**history[-1], "temperature": broken}]).kind == "healthy"
    fixed = [{**one, "temperature": 0.1 - 0.001 * place} for place, one in enumerate(history)]
    assert verdict_on(fixed).kind == kind
    assert verdict_on([*fixed[:1], *history[1:]]).kind == kind  # one record knows it
    early = [{**one, "steps": 10} for one in history]
    assert verdict_on(early).kind == "undecided"


@every_kind
def test_since_counts_the_unbroken_stretch(kind):
    other = "saturated" if kind == "healthy" else "healthy"
    kinds = [kind, other, kind, kind, kind]
    history = [record(100 * place, each) for place, each in enumerate(kinds)]
    assert verdict_on(history).since == 200


@pytest.mark.parametrize("key", ["gain", "ess", "mi", "mi_ceiling"])
@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_number_that_is_not_finite_is_a_failure_and_never_healthy(key, value):
    last = {**record(2), key: value}
    if value is None:  # a Monitor leaves NaN out
        del last[key]
    found = verdict_on([record(1), last])
    assert (found.kind, found.since, found.evidence) == ("failed", 2, f"{key} not finite")


LIVING = [
    name
    for entry in OBJECTIVES.values()
    if entry.gradient_lives
    for name in (entry.name, entry.class_name, *entry.other_names)
]
DYING = ["InfoNCE", "infonce", "FlatNCEPlus", "NTXentLoss", "ClipLoss", "MyInfoNCE"]
REMEDIES = {name: f"continue training ({name}'s gradient does not shrink)" for name in LIVING}
REMEDIES |= dict.fromkeys(DYING, "replace the loss by FlatNCE (one line)")
REMEDIES[""] = "replace the loss by FlatNCE (one line), unless it is FlatNCE or DCL already"


@pytest.mark.parametrize(("objective", "first"), REMEDIES.items())
def test_only_a_dying_gradient_is_to_be_replaced_by_flatnce(objective, first):
    found = verdict_on([record(1, "saturated")], objective)
    assert found.remedies[0].startswith(first)
    assert any("replace" in remedy for remedy in found.remedies) == (objective not in LIVING)
    scales = "InfoNCE scales" if objective.lower() == "infonce" else "InfoNCE would scale"
    assert found.evidence.endswith(f"{scales} gradients by 0.008")


@pytest.mark.parametrize(("noise", "kind"), [(5.0, "healthy"), (1.0, "saturated")])
@pytest.mark.parametrize("batch", [3, 8, 32])
def test_a_flatnce_run_that_holds_its_target_is_not_told_to_raise_the_ess(batch, noise, kind):
    generator = torch.Generator().manual_seed(0)
    loss_fn = FlatNCE(EssController(ess_target("FlatNCE"), temperature_at_start=0.1))
    monitor = Monitor()
    for step in range(900):
        z1 = torch.randn(batch, 64, generator=generator)
        loss_fn(z1, z1 + noise * torch.randn(batch, 64, generator=generator))
        if step >= 300:
            monitor.update(loss_fn.last)
    ess, found = monitor.compute()["ess"], monitor.verdict()
    assert ess == pytest.approx(0.075, abs=0.015)
    assert found.kind == kind
    assert not any(re.search("raise the temperature|ESS", said) for said in found.remedies)


def test_a_temperature_is_corrected_to_the_target_of_the_objective():
    for kind in ("peaked", "uniform"):
        for name, target in (("FlatNCE", 0.075), ("DCL", 0.075), ("NTXentLoss", 0.3)):
            first = verdict_on([record(1, kind)], name).remedies[0]
            assert f"hold an ESS of {target} (" in first and "CIFAR-10" in first
            assert first.count("for images") == 1
        unknown = verdict_on([record(1, kind)]).remedies[0]
        assert "0.075 for FlatNCE" in unknown and "0.3 for InfoNCE" in unknown
    assert PEAKED_ESS < min(map(ess_target, OBJECTIVES))


def test_few_effective_negatives_are_to_be_compared_where_the_gradient_lives():
    for name in ("FlatNCE", "DCL"):
        assert verdict_on([record(1, "peaked")], name).remedies[0].startswith("compare with")
    for name in ("InfoNCE", ""):
        assert verdict_on([record(1, "peaked")], name).remedies[0].startswith("raise the temp")


@pytest.mark.parametrize(("kind", "start"), [("peaked", "higher"), ("uniform", "lower")])
def test_a_controller_is_not_advised_where_the_scale_is_learned(kind, start):
    learned = {name for name, entry in OBJECTIVES.items() if entry.learns_scale}
    assert learned == {"siglip"}
    for name in (*learned, "SigLIP", "SigLipLoss", "FlatClipLoss", "ClipLoss"):
        remedies = verdict_on([record(1, kind)], name).remedies
        assert f"learned scale start at a {start} temperature" in remedies[0]
        assert not any("EssController" in remedy for remedy in remedies)
    for name in ("SigLIP", "ClipLoss"):
        remedies = verdict_on([record(1, "saturated")], name).remedies
        assert not any("raise the temperature" in remedy for remedy in remedies)
    for name in {*OBJECTIVES} - learned:
        advised = "EssController" in verdict_on([record(1, kind)], name).remedies[0]
        assert advised == (OBJECTIVES[name].layout == "two_view")


def test_many_negatives_of_labelled_rows_are_not_called_peaked():
    loss_fn, monitor = FlatNCE(temperature=0.5), Monitor()
    labels = torch.arange(64) % 4
    loss_fn(random(64, 8), labels=labels)
    monitor.update(loss_fn.last)
    assert monitor.compute()["negatives"] == 48
    assert monitor.verdict().kind != "peaked"


def test_the_last_batch_is_printed_on_one_line_with_its_numbers():
    loss_fn = FlatNCE(temperature=0.25)
    loss = loss_fn(torch.randn(8, 4), torch.randn(8, 4))
    said, last = repr(loss_fn.last), loss_fn.last
    assert said.startswith("Snapshot(objective='FlatNCE', rows=16, embeddings=(8, 4)")
    for name, value in {
        "negatives": 14.0,
        "loss": float(loss),
        "gain": float(last.gain),
        "ess": float(last.ess),
        "temperature": 0.25,
    }.items():
        found = re.search(rf"{name}=([\d.e+-]+)", said)
        assert found is not None and float(found[1]) == pytest.approx(value, rel=1e-3)
    assert "tensor" not in said and len(said) < 160


ROWS = ("positive", "negative", "negative2", "count", "hardest")


def test_printing_the_last_batch_never_reads_a_device():
    loss_fn = InfoNCE()
    loss_fn(torch.randn(8, 4), torch.randn(8, 4))
    # Numbers on this device do not exist, so whoever reads one raises.
    gone = Contrast(**{name: torch.ones(16, device="meta") for name in ROWS}, beta=torch.ones(()))
    loss, embeddings = torch.ones((), device="meta"), loss_fn.last.embeddings
    elsewhere = Snapshot(gone, loss, embeddings, objective="InfoNCE")
    assert repr(elsewhere) == (
        "Snapshot(objective='InfoNCE', rows=16, embeddings=(8, 4), on meta, numbers not read)"
    )
    exported = replace(elsewhere, loss=FakeTensorMode().from_tensor(torch.ones(())))
    assert repr(exported).endswith("on cpu, numbers not read)")


def test_a_row_at_the_threshold_is_not_saturated():
    contrast = F.contrast_from_logits(torch.zeros(1, 2), torch.tensor([0]))  # a gain of a half
    assert float(F.saturated_share(contrast, 0.5)) == 0
    assert float(F.saturated_share(contrast, 0.51)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_moments_of_rows_with_one_negative_are_zero_in_every_precision(dtype):
    contrast = F.contrast_of(F.two_tower(*torch.eye(4, dtype=dtype).split(2)), 0.5)
    assert all(bool((each == 0).all()) for each in Rows.of(contrast).moments())
