"""What recipes compute, on hand-made runs whose answers are known."""

from pathlib import Path

import pytest

from flatnce.paper.reproduce import (
    accuracy,
    fig_ess_target,
    fig_mi_accuracy,
    fig_speedup,
    table_linear,
    table_transfer,
)
from flatnce.paper.reproduce.correlation import pearson
from flatnce.paper.reproduce.fig_batch_size import _parting, _when
from flatnce.paper.reproduce.fig_speedup import stepping_seconds
from flatnce.paper.reproduce.readings import Group, chosen, groups, sound
from flatnce.paper.reproduce.recipe import Finished, Planned, Setting
from flatnce.paper.reproduce_page import table_of
from flatnce.pretrain import TrainConfig
from flatnce.pretrain.runs.log import Run


def finished(metrics, variables=None, seed=0, failure="", step=40, epochs=4, **settings):
    config = TrainConfig().override(seed=seed, epochs=epochs, **settings)
    results = {"step": step, "epochs": epochs}
    run = Run(Path("."), "train", {}, {}, metrics, results)
    return Finished(Planned(f"run-seed-{seed}", config, variables or {}), run, failure)


def lines_of(knn, speed, steps_per_epoch=10, wall=1000.0, **more):
    """A check and a line of training an epoch; the wall clock is far from the time in steps."""
    found = []
    for i, value in enumerate(knn, start=1):
        at = {"step": i * steps_per_epoch, "epoch": float(i), "seconds": i * wall}
        found.append({"kind": "watch", **at, "knn": value})
        found.append({"kind": "train", **at, "images_per_second": speed, **more})
    return found


# Speed-ups.


def speed_run(batch, knn, speed, seed=0, failure=""):
    variables = {"backbone": "resnet18", "batch_size": batch}
    return finished(lines_of(knn, speed), variables, seed, failure, batch_size=batch)


def test_time_in_steps_leaves_checks_and_saving_out():
    run = speed_run(64, [0.1, 0.2], speed=128.0)
    assert stepping_seconds(run) == {0: 0.0, 10: 5.0, 20: 10.0}
    slower = finished(
        [
            {"kind": "train", "step": 10, "images_per_second": 64.0},
            {"kind": "watch", "step": 15, "knn": 0.5},
            {"kind": "train", "step": 20, "images_per_second": 32.0},
        ],
        batch_size=64,
    )
    clock = stepping_seconds(slower)
    assert clock == {0: 0.0, 10: 10.0, 20: 30.0}
    assert fig_speedup._at(clock, 15) == 20.0


def read_speed(*runs):
    return fig_speedup.read(runs, Setting())


def test_the_speed_up_is_by_seconds_in_steps_to_the_base_batchs_end():
    # 95 % of 0.8 is 0.76: batch 64 is there at epoch 4 (20 s), batch 256 at 3 (15 s), batch 1024
    # at 2 (5 s), whatever the wall clock says.
    found = read_speed(
        speed_run(64, [0.2, 0.4, 0.7, 0.77], 128.0),
        speed_run(256, [0.3, 0.6, 0.78, 0.8], 512.0),
        speed_run(1024, [0.5, 0.79, 0.8, 0.8], 4096.0),
    )
    cells = [row["measures"] for row in found.rows]
    assert [one["seconds in steps to 76.0%"]["values"] for one in cells] == [[20.0], [15.0], [5.0]]
    assert [one["epochs to 76.0%"]["values"] for one in cells] == [[4.0], [3.0], [2.0]]
    assert found.words["Backbone resnet18"] == (
        "to 76.0% kNN, by seconds in steps: batch 64 is 0.75 times as fast as batch 256; batch "
        "1024 is 3.00 times as fast as batch 256."
    )
    by_time = next(picture for picture in found.pictures if picture["name"].endswith("seconds"))
    assert by_time["lines"][2]["x"] == [2.5, 5.0, 7.5, 10.0]
    assert by_time["references"][0]["y"] == pytest.approx(0.76)


def test_a_collapsed_batch_size_does_not_lower_the_target():
    found = read_speed(
        speed_run(256, [0.3, 0.6, 0.78, 0.8], 512.0), speed_run(1024, [0.1] * 4, 4096.0)
    )
    cell = found.rows[1]["measures"]["seconds in steps to 76.0%"]
    assert (cell["mean"], cell["note"]) == (None, "not reached in 1 of 1 seeds")
    assert "batch 1024 did not reach it in 1 of 1 seeds" in found.words["Backbone resnet18"]


@pytest.mark.parametrize("failure", ["", "diverged"])
def test_no_speed_up_is_stated_where_a_seed_fell_short(failure):
    found = read_speed(
        speed_run(256, [0.3, 0.6, 0.78, 0.8], 512.0),
        speed_run(256, [0.3, 0.6, 0.78, 0.8], 512.0, seed=1),
        speed_run(1024, [0.5, 0.79, 0.8, 0.8], 4096.0),
        speed_run(1024, [0.1] * 4, 4096.0, seed=1, failure=failure),
    )
    said = found.words["Backbone resnet18"]
    assert "batch 1024 did not reach it in 1 of 2 seeds" in said and "times as fast" not in said
    shown = table_of(found.rows, "").rows
    assert "not reached in 1 of 2 seeds" in shown[1]
    if failure:
        assert "80.00 % (n = 1 of 2)" in shown[1]


def test_without_the_base_batch_there_is_no_target():
    found = read_speed(
        speed_run(256, [], 1.0, failure="diverged"), speed_run(1024, [0.5, 0.8], 4096.0)
    )
    assert "no target" in found.words["Backbone resnet18"]
    assert list(found.rows[1]["measures"]) == ["kNN at the end"]


# When accuracies are read.


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(accuracy.checkpoint, "steps", lambda _: [0, 10, 20, 30, 40])


@pytest.mark.parametrize("epoch, step", [(1.0, 10), (1.4, 10), (2.6, 30), (4.0, 40), (0.5, 10)])
def test_the_nearest_checkpoint_is_read(kept, epoch, step):
    run = finished([], checkpoint_every=1.0)
    assert accuracy.step_at(run, epoch) == step


@pytest.mark.parametrize("epoch", [0.0, 5.0, 500.0])
def test_an_epoch_without_a_checkpoint_is_refused(kept, epoch):
    with pytest.raises(ValueError, match="has no checkpoint near it; its nearest is of epoch"):
        accuracy.step_at(finished([], checkpoint_every=1.0), epoch)


@pytest.mark.parametrize("epoch", [0.0, -1.0, 500.0])
def test_an_epoch_outside_the_runs_is_refused_before_training(epoch):
    with pytest.raises(ValueError, match=rf"epoch={epoch:g}: .* have 15 epochs.*--epoch"):
        fig_ess_target.plan(Setting("small", epoch=epoch))


def ess_runs(ess):
    lines = lines_of([0.5] * 4, 1.0, ess=0.1, ess_with_positive=0.1, temperature=0.1)
    for target, objective in ((0.1, "flatnce"), (0.4, "flatnce"), (None, "infonce")):
        variables = {"objective": objective} | ({} if target is None else {"ess": target})
        yield finished(lines, variables, objective=objective, checkpoint_every=ess)
    yield finished(lines, {"objective": "flatnce"}, objective="flatnce", checkpoint_every=ess)


def test_the_epoch_that_is_named_is_the_one_that_was_read(kept, monkeypatch):
    asked = []

    def score(run, protocol, step=None, **options):
        asked.append(step)
        return {"top1": 0.5, "top5": 0.9}

    monkeypatch.setattr(accuracy, "score", score)
    found = fig_ess_target.read(list(ess_runs(1.0)), Setting(epoch=0.9))
    assert set(asked) == {10}
    assert found.pictures[0]["title"] == "Accuracy by ESS target, at epoch 1"
    assert "linear top-1 at epoch 1" in found.rows[0]["measures"]
    labels = [reference["label"] for reference in found.pictures[0]["references"]]
    assert labels == ["InfoNCE", "FlatNCE"]


# Choices.


def test_the_choice_is_made_on_held_out_training_images():
    said = chosen({"a": [0.6, 0.7], "b": [0.5, 0.5]}, {"a": [0.6, 0.7], "b": [0.9, 0.9]}, "top-1")
    assert said == (
        "a: kNN 65.00 ± 7.07 % on held-out training images, the highest; top-1 65.00 ± 7.07 % on "
        "the test set"
    )


def test_a_setting_that_diverged_is_not_chosen_unless_all_did():
    assert chosen({"a": [0.9, None], "b": [0.5, 0.5]}, {"b": [0.4, 0.4]}, "top-1")[0] == "b"
    said = chosen({"a": [0.9, None], "b": [None, 0.5]}, {"a": [0.8, None]}, "top-1")
    assert said.startswith("a: kNN 90.00 % (n = 1 of 2)") and "80.00 % (n = 1 of 2)" in said
    assert chosen({"a": [None]}, {"a": [None]}, "top-1") == "none: every run diverged"


def test_the_first_sound_run():
    bad, good = finished([], failure="diverged"), finished([], seed=1)
    assert sound([bad, good]) is good and sound([bad]) is None


# Gaps, points and accuracies.


def pair_of(infonce, flatnce, mi):
    """Two groups of one run: their checks, and how far InfoNCE's information has come."""
    lines = {
        "infonce": [
            one | ({"mi": share * 2.0, "mi_ceiling": 2.0} if one["kind"] == "train" else {})
            for one, share in zip(
                lines_of(infonce, 1.0), [s for s in mi for _ in "ab"], strict=True
            )
        ],
        "flatnce": lines_of(flatnce, 1.0),
    }
    return [
        Group({"objective": name}, (finished(found, {"objective": name}, objective=name),))
        for name, found in lines.items()
    ]


def test_where_the_objectives_part():
    cloud = _parting("batch 32", *pair_of([0.4, 0.5], [0.41, 0.55], mi=[0.5, 0.95]), 0)
    assert cloud["x"] == pytest.approx([0.5, 0.95])
    assert cloud["y"] == pytest.approx([1.0, 5.0])
    assert _when([cloud]) == (
        "below 90% of log K, FlatNCE's kNN minus InfoNCE's is +1.00 points (n = 1); from 90% on, "
        "FlatNCE's kNN minus InfoNCE's is +5.00 points (n = 1)."
    )


def test_the_gap_of_the_linear_table_is_that_of_the_last_epoch():
    ends = {"FlatNCE": [[0.9, 0.9], [0.62, 0.64]], "InfoNCE": [[0.1, 0.1], [0.60, 0.61]]}
    assert table_linear._gap(ends) == (
        "FlatNCE is ahead by 2.50 ± 0.71 points (in all 2 seeds) at the end."
    )


def test_a_checkpoint_is_a_point_of_what_was_measured_at_its_step(kept, monkeypatch):
    top1 = {10: 0.5, 20: 0.6, 30: 0.7}
    monkeypatch.setattr(fig_mi_accuracy, "score", lambda run, p, step, **_: {"top1": top1[step]})
    metrics = [
        {"kind": "train", "step": 8, "mi": 1.0},
        {"kind": "watch", "step": 10, "pool_mi": 2.0},
        {"kind": "train", "step": 12, "mi": 9.0},
        {"kind": "watch", "step": 20, "pool_mi": 3.0},
        {"kind": "watch", "step": 25, "pool_mi": 9.0},
        {"kind": "train", "step": 30, "mi": 5.0},
        {"kind": "watch", "step": 30, "pool_mi": 4.0},
    ]
    assert fig_mi_accuracy._points(finished(metrics), Setting()) == [
        {"pool_mi": 2.0, "mi": 1.0, "top1": 0.5},
        {"pool_mi": 3.0, "mi": 9.0, "top1": 0.6},
        {"pool_mi": 4.0, "mi": 5.0, "top1": 0.7},
    ]


def test_the_correlation_is_over_the_checkpoints_of_all_runs(kept, monkeypatch):
    values = {"infonce": [2.0, 3.0, 4.0, 5.0], "flatnce": [3.0, 4.0, 5.0, 6.0]}
    accuracies = {"infonce": [0.5, 0.4, 0.3, 0.2], "flatnce": [0.4, 0.3, 0.2, 0.1]}

    def score(run, protocol, step, **options):
        return {"top1": accuracies[run.planned.config.loss.objective][step // 10 - 1]}

    monkeypatch.setattr(fig_mi_accuracy, "score", score)
    runs = []
    for objective, information in values.items():
        lines = []
        for i, one in enumerate(information, start=1):
            lines.append({"kind": "watch", "step": 10 * i, "pool_mi": one})
            lines.append({"kind": "train", "step": 10 * i, "mi": float(i % 2)})
        variables = {"objective": objective}
        runs.append(finished(lines, variables, objective=objective))
    found = fig_mi_accuracy.read(runs, Setting())
    assert found.rows[0]["variables"]["points"] == 8
    assert found.rows[0]["measures"]["Pearson's ρ"]["mean"] == pytest.approx(-1.0)
    assert found.words["Large-pool MI (Figure 4)"].startswith("ρ = −1.00, p ")


def test_a_negative_correlation_has_a_true_minus_and_the_p_value_none():
    assert pearson([0.0, 1.0, 2.0], [2.0, 1.0, 0.1]).note.startswith("ρ = −1.00, p = 0.0")
    assert (
        "p = 6.4e-19"
        in pearson([*map(float, range(9))], [0.01 * (i % 3) - i for i in range(9)]).note
    )


def test_transfer_reads_mean_average_precision_where_there_is_no_top1(monkeypatch):
    answers = {"cifar10": {"top1": 0.8}, "voc2007": {"map": 0.7}}
    asked = []

    def score(run, protocol, data, **options):
        asked.append((protocol, data, options))
        return answers[data[0]]

    monkeypatch.setattr(table_transfer, "score", score)
    group = Group({}, (finished([]), finished([], seed=1, failure="diverged")))
    for data, expected in (("cifar10", 0.8), ("voc2007", 0.7)):
        found = table_transfer._accuracy(group, "transfer-linear", data, Setting("paper"))
        assert found == [expected, None]
    assert asked[0] == ("transfer-linear", ("cifar10",), {"size": 224})


@pytest.mark.parametrize(
    "protocol, objective, data, share",
    [
        ("transfer-linear", "infonce", "cifar10", 0.8774),
        ("transfer-linear", "flatnce", "sun397", 0.5131),
        ("transfer-finetune", "flatnce", "voc2007-top1", 0.7073),
        ("transfer-finetune", "flatnce", "caltech101", None),
        ("transfer-linear", "flatnce", "voc2007", None),
    ],
)
def test_the_papers_number_stands_beside_the_set_it_is_of(protocol, objective, data, share):
    found = table_transfer._printed(protocol, objective, data, Setting("paper"))
    assert found == (None if share is None else pytest.approx(share))
    assert table_transfer._printed(protocol, objective, data, Setting("small")) is None


def test_runs_are_grouped_by_what_they_vary():
    runs = [finished([], {"batch_size": size}, seed) for size in (16, 32) for seed in (0, 1)]
    assert [len(group.runs) for group in groups(runs)] == [2, 2]
