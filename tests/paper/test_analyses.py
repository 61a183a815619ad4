"""What experiments compute, on hand-made runs whose answers are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from flatnce.paper.charts import line, pearson
from flatnce.paper.reproduce import analyses
from flatnce.paper.reproduce.analyses import (
    Group,
    Runs,
    centred_by_epoch,
    checkpoint_points,
    costs,
    gaps,
    growth,
    mi_and_accuracy,
    speed_up,
)
from flatnce.paper.reproduce.engine import analyse
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Setting, TrainingRun
from flatnce.paper.reproduce.page import table_of
from flatnce.pretrain.training.config import TrainConfig


def finished(metrics, variables=None, seed=0, failure="", step=40, epochs=4, **settings):
    config = TrainConfig().override(seed=seed, epochs=epochs, **settings)
    record = {
        "results": {"step": step, "epochs": epochs},
        "metrics": metrics,
        "failure": failure,
        "checkpoints": [10, 20, 30, 40],
        "evaluations": [],
    }
    return TrainingRun(f"run-seed-{seed}", config, variables or {}, record)


def runs_of(name, made, setting=None):
    return Runs(EXPERIMENTS[name], made, setting or Setting())


def lines_of(knn, **more):
    """A check per epoch of ten steps."""
    return [
        {"step": 10 * i, "epoch": float(i), "knn": value, **more}
        for i, value in enumerate(knn, start=1)
    ]


# Speed-ups.


def speed_run(batch, knn, seed=0, failure=""):
    variables = {"backbone": "resnet18", "batch_size": batch}
    return finished(lines_of(knn), variables, seed, failure, batch_size=batch)


def read_speed(*finished_runs):
    return speed_up(runs_of("fig-speedup", finished_runs))


def test_the_speed_up_is_by_epochs_to_the_base_batchs_end():
    # 95 % of 0.8 is 0.76: batch 64 is there at epoch 4, batch 256 at 3, batch 1024 at 2.
    found = read_speed(
        speed_run(64, [0.2, 0.4, 0.7, 0.77]),
        speed_run(256, [0.3, 0.6, 0.78, 0.8]),
        speed_run(1024, [0.5, 0.79, 0.8, 0.8]),
    )
    cells = [row["measures"] for row in found.rows]
    assert [one["epochs to 76.0%"]["values"] for one in cells] == [[4.0], [3.0], [2.0]]
    assert found.words["Backbone resnet18"] == (
        "to 76.0% kNN, in epochs: batch 64 is 0.75 times as fast as batch 256; batch 1024 is 1.50 "
        "times as fast as batch 256."
    )
    (picture,) = found.pictures
    assert picture["lines"][2]["x"] == [1.0, 2.0, 3.0, 4.0]
    assert picture["references"]["target"] == pytest.approx(0.76)


@pytest.mark.parametrize("failure", ["", "diverged"])
def test_no_speed_up_is_stated_where_a_seed_fell_short(failure):
    found = read_speed(
        speed_run(256, [0.3, 0.6, 0.78, 0.8]),
        speed_run(256, [0.3, 0.6, 0.78, 0.8], seed=1),
        speed_run(1024, [0.5, 0.79, 0.8, 0.8]),
        speed_run(1024, [0.1] * 4, seed=1, failure=failure),
    )
    said = found.words["Backbone resnet18"]
    assert "batch 1024 did not reach it in 1 of 2 seeds" in said and "times as fast" not in said
    shown = table_of(found.rows, "").rows
    assert "not reached in 1 of 2 seeds" in shown[1]
    assert ("80.00 % (n = 1 of 2)" in shown[1]) == bool(failure)


def test_without_the_base_batch_there_is_no_target():
    found = read_speed(speed_run(256, [], failure="diverged"), speed_run(1024, [0.5, 0.8]))
    assert "no target" in found.words["Backbone resnet18"]
    assert list(found.rows[1]["measures"]) == ["kNN at the end"]


# When accuracies are read.


def ess_runs(ess):
    lines = lines_of([0.5] * 4, ess=0.1, ess_with_positive=0.1, temperature=0.1)
    for target, objective in ((0.1, "flatnce"), (0.4, "flatnce"), (None, "infonce")):
        variables = {"objective": objective} | ({} if target is None else {"ess": target})
        yield finished(lines, variables, objective=objective, checkpoint_every=ess)
    yield finished(lines, {"objective": "flatnce"}, objective="flatnce", checkpoint_every=ess)


def test_the_epoch_that_is_named_is_the_one_that_was_read(monkeypatch):
    asked = []

    def evaluated(run, protocol, step=None, **options):
        asked.append(step)
        return [{"top1": 0.5, "top5": 0.9}]

    monkeypatch.setattr(analyses, "evaluations", evaluated)
    experiment = replace(EXPERIMENTS["fig-ess-target"], epoch={"smoke": 0.9})
    findings = analyse(experiment, list(ess_runs(1.0)), Setting())
    assert set(asked) == {10}
    assert findings.pictures[0]["title"] == "Accuracy by ESS target, at epoch 1"
    assert "linear top-1 at epoch 1" in findings.rows[0]["measures"]
    assert list(findings.pictures[0]["references"]) == ["InfoNCE", "FlatNCE"]


# Gaps, points and accuracies.


def test_the_correlation_is_over_the_checkpoints_of_all_runs(monkeypatch):
    accuracies = {"infonce": [0.5, 0.4, 0.3, 0.2], "flatnce": [0.4, 0.3, 0.2, 0.1]}

    def evaluated(run, protocol, step, **options):
        return [{"top1": accuracies[run.config.loss.objective][step // 10 - 1]}]

    monkeypatch.setattr(analyses, "evaluations", evaluated)
    made = []
    for objective, first in (("infonce", 2.0), ("flatnce", 3.0)):
        lines = []
        for i in range(1, 5):
            # A line of training before the checkpoint's step, and one after it that is not read.
            lines.append({"step": 10 * i - 2, "mi": float(i % 2)})
            lines.append({"step": 10 * i, "pool_mi": first + i})
            lines.append({"step": 10 * i + 1, "pool_mi": 9.0})
        made.append(finished(lines, {"objective": objective}, objective=objective))
    runs_made = runs_of("fig-mi-accuracy", made)
    points = checkpoint_points(made[0], runs_made)
    assert points[:2] == [
        {"epoch": 1.0, "pool_mi": 3.0, "mi": 1.0, "top1": 0.5},
        {"epoch": 2.0, "pool_mi": 4.0, "mi": 0.0, "top1": 0.4},
    ]
    found = mi_and_accuracy(runs_made)
    assert found.rows[0]["variables"]["points"] == 8
    cells = found.rows[0]["measures"]
    assert cells["Pearson's ρ"]["mean"] == pytest.approx(-1.0)
    # At every epoch FlatNCE has one nat more and a tenth less: two distinct residuals.
    assert cells["Pearson's ρ, centred by epoch"]["mean"] == pytest.approx(-1.0)
    assert found.words["Large-pool MI (Figure 4)"].startswith("ρ = −1.00, p ")


def test_centring_by_epoch_removes_what_all_runs_share():
    points = [
        {"epoch": epoch, "pool_mi": 5 * epoch + run, "top1": 0.2 * epoch - 0.01 * run}
        for epoch in (1.0, 2.0, 3.0)
        for run in range(3)
    ]
    x, y = (centred_by_epoch(points, name) for name in ("pool_mi", "top1"))
    assert x == [-1.0, 0.0, 1.0] * 3 and y == pytest.approx([0.01, 0.0, -0.01] * 3)
    raw = pearson([one["pool_mi"] for one in points], [one["top1"] for one in points])
    assert raw["rho"] > 0.9 and pearson(x, y)["rho"] == pytest.approx(-1.0)


def test_gaps_between_batch_sizes_stand_beside_the_papers(monkeypatch):
    top1 = {("infonce", 16): 0.80, ("infonce", 128): 0.86, ("flatnce", 128): 0.87}
    monkeypatch.setattr(
        analyses,
        "evaluations",
        lambda run, *_, **__: [{"top1": top1[tuple(run.variables.values())]}],
    )
    made = [
        finished([], {"objective": name, "batch_size": size}, objective=name)
        for name, size in top1
    ]
    (entry,) = [one for one in EXPERIMENTS["fig-batch-size"].words if "pairs" in one]
    found = runs_of("fig-batch-size", made)
    said = gaps(found, "Cost", "linear", entry["pairs"])["Cost"]
    assert said == "InfoNCE at 128 minus InfoNCE at 16: 6.00 % (the paper: 7.5 %)."
    pairs = [{**entry["pairs"][0], "first": {"objective": "infonce"}, "second": {"batch_size": 1}}]
    said = gaps(found, "Cost", "linear", pairs)["Cost"]  # two groups, both of the first end
    assert said == "these batch sizes are not trained at this scale."


@pytest.mark.parametrize(("last", "stops"), [(2.5, False), (2.0, True), (2.0004, True)])
def test_what_is_gained_after_half_of_the_epochs_says_whether_infonce_stops(last, stops):
    lines = [
        {"step": int(10 * epoch), "epoch": epoch, "pool_mi": mi, "mi": 3.0, "mi_ceiling": 4.0}
        for epoch, mi in zip((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 2.25, last), strict=True)
    ]
    flat = [{**line, "pool_mi": line["epoch"] ** 2, "mi": 3.6} for line in lines]
    made = [
        finished(metrics, {"objective": name}, objective=name)
        for name, metrics in (("infonce", lines), ("flatnce", flat))
    ]
    said = analyse(EXPERIMENTS["fig-mi"], made, Setting()).words
    found = said["Large-pool MI in the second half of training"]
    assert found.startswith(
        f"InfoNCE gains {last - 2:.3f} nats, and its K-sample MI ends at 75.00"
    )
    assert "; FlatNCE gains 12.000 nats, and its K-sample MI ends at 90.00 % of log" in found
    assert found.endswith(" of log K." if stops else "is still below log K.")
    assert ("InfoNCE does not stop" in found) == (not stops)
    (said,) = growth(runs_of("fig-mi", made[1:]), "x", "pool-mi", "InfoNCE grows.").values()
    assert said.startswith("FlatNCE gains 12.000") and said.endswith(" of log K.")


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_holders_gradient_is_flatnces_at_gamma_beta_over_gamma(scale):
    found = analyse(EXPERIMENTS["fig-holder"], [], Setting(scale))
    for row in found.rows:
        ratio, distance = row["measures"].values()
        assert ratio["values"] == pytest.approx([1 / row["variables"]["gamma"]] * ratio["n"])
        assert ratio["paper"] == 1.0 and max(distance["values"]) < 1e-12
    assert "need not be tuned as well" in found.words["Identity"]


def pair_of_runs(**settings):
    return [
        finished([], {"objective": name}, objective=name, **settings)
        for name in ("infonce", "flatnce")
    ]


def test_transfer_reads_top_1_and_the_papers_numbers(monkeypatch):
    answers = {"cifar10": {"top1": 0.8}, "voc2007-top1": {"top1": 0.7}}
    asked = []

    def evaluated(run, protocol, step, data, **options):
        asked.append((protocol, data, options))
        return [answers[data[0]]]

    monkeypatch.setattr(analyses, "evaluations", evaluated)
    monkeypatch.setattr(analyses, "missing_sets", lambda sets, _: set(sets) - set(answers))
    infonce, flatnce = pair_of_runs()
    made = [replace(infonce, record=infonce.record | {"failure": "diverged"}), flatnce]
    findings = analyse(EXPERIMENTS["table-transfer"], made, Setting("paper"))
    cells = [row["measures"]["top-1"] for row in findings.rows]
    assert [one["values"] for one in cells] == [[None], [0.8], [None], [0.7]] * 2
    printed = [0.8774, 0.8792, 0.6938, 0.6966]
    assert [one.get("paper") for one in cells[:4]] == pytest.approx(printed)
    assert asked[0] == ("transfer-linear", ("cifar10",), {"size": 224})


def test_the_linear_table_has_the_papers_numbers_and_the_gap_at_the_end(monkeypatch):
    ends = {"infonce": 0.60, "flatnce": 0.62}

    def evaluated(run, protocols, step=None, **options):
        objective = run.config.loss.objective
        return [{"top1": ends[objective] - 0.001 * (40 - step), "top5": 0.8}]

    monkeypatch.setattr(analyses, "evaluations", evaluated)
    made = pair_of_runs(checkpoint_every=10.0, epochs=40)
    findings = analyse(EXPERIMENTS["table-linear"], made, Setting("paper"))
    assert findings.words["top-1, short probe (Table 2)"] == (
        "FlatNCE is ahead by 2.00 points (one seed) at the end."
    )
    printed = [cell["paper"] for cell in findings.rows[-1]["measures"].values()]
    assert printed == [0.4972, 0.5227, 0.7677] and findings.rows[-1]["variables"]["epoch"] == 40
    assert findings.printed[0]["header"][:2] == ["ImageNet, per cent", "10"]
    assert findings.printed[0]["rows"][1][:2] == ["FlatCLR", "39.70"]


# Curves and groups.


def logged(*values):
    return [{"step": i, "epoch": i / 4, "mi": value} for i, value in enumerate(values, start=1)]


def group_of(*members):
    return Group({}, members)


def test_curves_of_seeds_are_joined_by_step():
    curve = group_of(finished(logged(1.0, 2.0)), finished(logged(3.0, 6.0), seed=1)).curve("mi")
    assert curve.epochs == [0.25, 0.5]
    assert curve.by_epoch == [[1.0, 3.0], [2.0, 6.0]]
    assert line("a", curve.epochs, curve.by_epoch)["spread"] == [math.sqrt(2), math.sqrt(8)]
    assert (curve.at(0.2), curve.last()) == ([1.0, 3.0], [2.0, 6.0])


def test_a_long_curve_is_thinned_where_it_is_drawn_and_nowhere_else():
    curve = group_of(finished(logged(*(float(i) for i in range(500))))).curve("mi")
    assert curve.values[0] == [float(i) for i in range(500)]
    assert curve.at(250 / 4) == [249.0]
    drawn = line("a", curve.epochs, curve.by_epoch)
    assert drawn["spread"] is None  # of one seed
    assert len(drawn["x"]) == len(drawn["y"]) == 60
    assert (drawn["x"][0], drawn["x"][-1]) == (0.25, 125.0)
    assert (drawn["y"][0], drawn["y"][-1]) == (0.0, 499.0)


def test_what_a_run_measured_before_it_diverged_does_not_count():
    bad = finished(logged(9.0), seed=1, failure="diverged")
    assert group_of(finished(logged(1.0, 2.0)), bad).curve("mi").last() == [2.0, None]


def test_groups_differ_in_more_than_the_seed():
    names = ("infonce", "infonce", "flatnce", "flatnce")
    made = [finished([], {"objective": n}, seed, objective=n) for seed, n in enumerate(names)]
    groups = runs_of("fig-ess", made).groups
    assert [group.label for group in groups] == ["InfoNCE", "FlatNCE"]
    assert [[run.config.run.seed for run in group.runs] for group in groups] == [[0, 1], [2, 3]]


def test_pearson_agrees_with_its_definition():
    x, y = [0.0, 1.0, 2.0, 4.0, 5.0], [1.0, 0.5, 2.5, 2.0, 4.0]
    found = pearson(x, y)
    assert found["line"]["note"].startswith("ρ = 0.8")
    expected = stats.pearsonr(x, y)
    assert (found["rho"], found["p"]) == pytest.approx((expected.statistic, expected.pvalue))
    fitted = found["line"]["slope"], found["line"]["intercept"]
    assert fitted == pytest.approx(tuple(np.polyfit(x, y, 1)))


def test_without_spread_there_is_no_correlation():
    assert pearson([0.0, 1.0], [0.0, 1.0]) is None
    assert pearson([1.0] * 4, [0.0, 1.0, 2.0, 3.0]) is None


# Sums of each row of the paper's tables, and sums by place (1 x the first + 2 x the second + ...).
SUMS = {
    ("table-linear", 0, "infonce"): (496.25, 2860.56),
    ("table-linear", 0, "flatnce"): (508.05, 2934.60),
    ("table-linear", 1, "infonce"): (517.37, 2983.76),
    ("table-linear", 1, "flatnce"): (535.64, 3091.31),
    ("table-linear", 2, "infonce"): (762.43, 4322.95),
    ("table-linear", 2, "flatnce"): (778.24, 4413.84),
    ("table-transfer", 0, "infonce"): (441.71, 1482.22),
    ("table-transfer", 0, "flatnce"): (446.11, 1503.35),
    ("table-transfer", 1, "infonce"): (391.40, 1115.83),
    ("table-transfer", 1, "flatnce"): (398.54, 1137.46),
    ("table-semi", 0, "supervised"): (47.23, 89.21),
    ("table-semi", 1, "supervised"): (81.45, 148.50),
    ("table-semi", 0, "infonce"): (88.06, 142.68),
    ("table-semi", 1, "infonce"): (141.18, 221.07),
    ("table-semi", 0, "flatnce"): (92.86, 149.37),
    ("table-semi", 1, "flatnce"): (145.91, 227.23),
}


@pytest.mark.parametrize("name, number, objective", SUMS)
def test_the_papers_rows_have_the_sums_they_have_in_the_paper(name, number, objective):
    entry = EXPERIMENTS[name].printed[number]
    total, by_place = SUMS[name, number, objective]
    numbers = entry[objective]
    assert len(numbers) == len(entry["columns"])
    assert sum(numbers) == pytest.approx(total, abs=1e-6)
    weighed = sum(place * number for place, number in enumerate(numbers, start=1))
    assert weighed == pytest.approx(by_place, abs=1e-6)


# Table S1.

COSTS = EXPERIMENTS["table-cost"].variants


def agrees(row, price):
    """Whether the cost that the paper prints is devices x hours x price, rounded."""
    return abs(row["devices"] * row["hours"] * price - row["printed"]) <= row["rounded_to"] / 2


def test_the_printed_costs_follow_from_the_prices():
    assert all(agrees(row, row["price"]) and not agrees(row, 3 * row["price"]) for row in COSTS)
    found = costs(runs_of("table-cost", []))
    cells = [row["measures"]["cost"] for row in found.rows]
    assert [round(cell["mean"]) for cell in cells] == [22_856, 1_720, 634_245]
    assert [cell["paper"] for cell in cells] == [23_000, 1_720, 634_000]


def test_one_price_in_whole_cents_gives_both_gpu_rows():
    rows = [row for row in COSTS if row["device"] == "V100 GPU"]
    fits = [cents for cents in range(1, 1000) if all(agrees(row, cents / 100) for row in rows)]
    assert fits == [248] and {row["price"] for row in rows} == {2.48}
