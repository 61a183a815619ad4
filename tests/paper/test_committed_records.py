"""The committed records: every figure is drawn from them, and settings do not outgrow them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from flatnce.core.diagnostics.verdict import IDLE_SHARE
from flatnce.paper.reproduce import analyses, engine
from flatnce.paper.reproduce import store as store_module
from flatnce.paper.reproduce.engine import plan_runs, reproduce
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Setting
from flatnce.paper.reproduce.page import reproduce_page
from flatnce.paper.reproduce.store import COMMITTED, Store
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.runs.records import read_records, settings_of
from flatnce.pretrain.training.config import TrainConfig

FOLDER = Path(__file__).parents[2] / COMMITTED

DRAWN = [(name, "smoke") for name in EXPERIMENTS] + [
    (name, "small")
    for name in "fig-mi fig-ess table-linear table-1 primal-dual table-cost fig-holder".split()
]
"""Experiment and scale of what needs no training in a clone."""


@pytest.fixture(scope="module")
def committed(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("records") / "store", [FOLDER])


@pytest.mark.parametrize(("name", "scale"), DRAWN)
def test_a_figure_is_drawn_without_training(name, scale, committed, tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "sweep", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr(analyses, "evaluate_run", lambda *_, **__: pytest.fail("evaluated"))
    if EXPERIMENTS[name].shows:
        monkeypatch.setattr(engine, "analyse", lambda *_: pytest.fail("trained"))
    out = reproduce(name, Setting(scale), tmp_path / "out", store=committed)
    assert read_run(out).results["rows"] and not committed.folder.exists()
    page = reproduce_page(out).read_text(encoding="utf-8")
    assert "<svg" in page
    assert "`" not in re.sub("<script>.*?</script>", "", page, flags=re.DOTALL)
    configs = [run.config for run in plan_runs(EXPERIMENTS[name], Setting(scale))]
    shared = {
        "batch size": {config.run.batch_size for config in configs},
        "temperature": {
            config.loss.temperature if config.loss.ess is None else None for config in configs
        },
        "epochs": {config.run.epochs for config in configs},
    }
    stated = [
        f"{label} {values.pop()}"
        for label, values in shared.items()
        if len(values) == 1 and None not in values
    ]
    assert not stated or f"All runs have {', '.join(stated)}<" in page
    assert stated or "All runs have" not in page


def test_the_page_of_experiments_quotes_figures_1_and_5(committed, tmp_path):
    page = (FOLDER.parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    quoted = {
        "fig-mi": ("large-pool MI", "{:.2f} ± {:.2f}"),
        "fig-ess": ("ESS of the negatives, last", "{:.3f} ± {:.3f}"),
    }
    for name, (measure, form) in quoted.items():
        out = reproduce(name, Setting("small"), tmp_path / name, store=committed)
        for row in read_run(out).results["rows"]:
            cell = row["measures"][measure]
            assert form.format(cell["mean"], cell["sd"]) in page
    infonce, flatnce = (row["measures"] for row in read_run(tmp_path / "fig-mi").results["rows"])
    sampled = [f"{own['K-sample MI']['mean']:.2f}" for own in (flatnce, infonce)]
    assert f"below the ceiling log 63 = 4.14 ({' and '.join(sampled)})" in page
    end, gain = read_run(tmp_path / "fig-mi").results["words"].values()
    ahead = re.search(r"FlatNCE is ahead by (\S+ ± \S+) nats \(in all 3 seeds\)", end)
    behind = {0}  # epochs
    for seed in (0, 1, 2):
        infonce, flatnce = (
            {
                round(one["epoch"]): one["pool_mi"]
                for one in run.record["metrics"]
                if "pool_mi" in one
            }
            for run in map(
                committed.find, plan_runs(EXPERIMENTS["fig-mi"], Setting("small", (seed,)))
            )
        )
        assert infonce.keys() == flatnce.keys() == {*range(1, 21)}
        behind |= {epoch for epoch in infonce if flatnce[epoch] <= infonce[epoch]}
    since = f"and is better in all seeds at every epoch from {max(behind) + 1} on."
    assert f"FlatNCE is better by {ahead[1]} in all seeds, {since}" in " ".join(page.split())
    infonce, flatnce = (row["measures"] for row in read_run(tmp_path / "fig-ess").results["rows"])
    negatives, both = "ESS of the negatives, first", "ESS with the positive, last"
    first = " and ".join(f"{own[negatives]['mean']:.2f}" for own in (flatnce, infonce))
    assert f"The ESS of the negatives starts at {first}" in page
    (last,) = {f"{own[both]['mean']:.2f}" for own in (flatnce, infonce)}
    assert f"With the positive among the candidates both fall to {last}." in page
    assert len(gains := re.findall(r"gains (\S+ ± \S+) nats", gain)) == 2
    assert f"it gains {gains[0]} nats, and FlatNCE {gains[1]}." in page and "does not stop" in gain


def test_the_page_of_experiments_quotes_correlations_times_and_sums(committed, tmp_path):
    page = (FOLDER.parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    out = reproduce("fig-mi-accuracy", Setting("smoke"), tmp_path / "out", store=committed)
    large = read_run(out).results["rows"][0]["measures"]
    rho, centred = (large[f"Pearson's ρ{end}"]["mean"] for end in ("", ", centred by epoch"))
    assert f"first is {rho:.2f} and the second −{-centred:.2f}." in page
    out = reproduce("fig-holder", Setting("small"), tmp_path / "holder", store=committed)
    assert max(row["measures"]["distance after scaling by γ"]["mean"]
               for row in read_run(out).results["rows"]) < 1e-15  # fmt: skip
    assert "both agree to 1e-15 of their norm" in page
    described = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    rows = {cells[1].strip("` "): cells for line in page.splitlines()
            if len(cells := line.split("|")) == 8}  # fmt: skip
    for name in ("fig-mi", "table-linear"):
        (line,) = (line for line in described.splitlines() if f"| `small` | `{name}`" in line)
        seconds = re.search(r"(\d+) s\b", line)[1]
        assert f"run ({seconds} s)" in rows[name][3]
    minutes = [int(cells[4]) for cells in rows.values() if cells[4].strip().isdigit()]
    assert f"take about {sum(minutes)} minutes of training" in page


def test_the_page_of_experiments_quotes_tables_2_and_s3(committed, tmp_path):
    page = (FOLDER.parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    out = reproduce("table-linear", Setting("small"), tmp_path / "out", store=committed)
    rows = read_run(out).results["rows"]
    columns = list(rows[0]["measures"])
    by_objective = {}
    for row in rows:
        by_objective.setdefault(row["variables"]["objective"], []).append(row["measures"])
    for column, digits in zip(columns, ("± {:.2f} %", "± {:.2f} %", "%"), strict=True):
        ends = [measures[-1][column] for measures in by_objective.values()]
        for end in ends:
            shown = f"{100 * end['mean']:.2f} " + digits.format(100 * end["sd"])
            assert shown in page
    for column in columns[:2]:  # ahead at each checkpoint
        infonce, flatnce = by_objective["infonce"], by_objective["flatnce"]
        for one, other in zip(infonce, flatnce, strict=True):
            assert one[column]["mean"] < other[column]["mean"]
        apart = [
            own - other
            for own, other in zip(
                flatnce[-1][column]["values"], infonce[-1][column]["values"], strict=True
            )
        ]
        assert min(apart) > 0
        assert f"{100 * fmean(apart):.2f} ± {100 * stdev(apart):.2f}" in page


def test_the_page_of_experiments_computes_times_from_measured_speeds():
    page = (FOLDER.parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    rows = {cells[1].strip("` "): cells for line in page.splitlines()
            if len(cells := line.split("|")) == 8}  # fmt: skip
    measured = json.loads((FOLDER.parents[1] / "throughput" / "results.json").read_text("utf-8"))
    speed = {row["batch"]: row["images_per_second"] for row in measured["parts"]["train"]["rows"]
             if row["backbone"] == "resnet18"}  # fmt: skip
    known = ", as were {:,.0f} at batch 64, {:,.0f} at 128 and {:,.0f} at 512, which is also used"
    assert known.format(*(speed[size] for size in (64, 128, 512))) in " ".join(page.split())
    speed |= {16: 12_500, 32: 25_000, 1024: speed[512]}
    for scale, unit, place in (("small", 60, 4), ("paper", 3600, 6)):
        trained = set()
        for name in list(rows)[2:]:
            runs = plan_runs(EXPERIMENTS[name], Setting(scale, imagenet="./imagenet"))
            new = {repr(run.config): run.config for run in runs if repr(run.config) not in trained}
            trained |= new.keys()
            lost = scale == "small" and name == "table-transfer"  # their weights were not kept
            if scale == "small" and "run (" in rows[name][3]:
                new = {}
            seconds = 0.0
            for config in [run.config for run in runs] if lost else new.values():
                if config.data.data == "./imagenet":
                    seconds += config.run.epochs * 1_281_167 / 2_500
                else:
                    slower = 3 if config.model.backbone == "resnet50" else 1
                    seconds += config.run.epochs * 50_000 * slower / speed[config.run.batch_size]
            time = seconds / unit
            shown = f"{time:.1f}" if 0 < time < 0.95 else f"{int(time + 0.5)}"
            assert rows[name][place].strip() == shown, (name, scale)


def test_the_page_of_experiments_says_what_transfer_prints_for_missing_sets(
    committed, monkeypatch
):
    page = (FOLDER.parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    experiment, setting = EXPERIMENTS["table-transfer"], Setting("smoke")
    known = {"digits": "Digits", "cifar100": "CIFAR-100", "stl10": "STL-10",
             "fashion-mnist": "Fashion-MNIST"}  # fmt: skip
    sets = listed([known[name] for name in experiment.sets["small"]])
    assert f"evaluates on {sets}. It uses those of them that are on disk" in page
    absent = ["cifar100", "stl10"]
    monkeypatch.setattr(analyses, "missing_sets", lambda *_: absent)
    runs = [committed.find(run) for run in plan_runs(experiment, setting)]
    more = replace(experiment, sets={"smoke": ["digits", *absent]})
    ((title, words),) = engine.analyse(more, runs, setting).words.items()
    assert f'"{title}: {words}"' in " ".join(page.split())


def listed(words):
    *others, last = words
    return f"{', '.join(others)} and {last}"


def test_the_changelog_gives_the_verdicts_of_the_image_study(study_modules):
    from hypotheses import HERE, decided, together
    from records import read_all

    changes = " ".join((FOLDER.parents[2] / "CHANGELOG.md").read_text("utf-8").split())
    found = list(read_all(HERE / "records").values())
    verdicts = {"supported": [], "refuted": []}
    for name, pairs in decided(found).items():
        verdicts[together([verdict for _, verdict in pairs])].append(name)
    supported, (refuted,) = verdicts.values()
    assert f"{listed(supported)} are supported, {refuted} is refuted" in changes


def test_no_committed_record_is_left_over(committed):
    wanted = set()
    for experiment in EXPERIMENTS.values():
        for scale in ("smoke", "small"):
            found = (committed.find(run) for run in plan_runs(experiment, Setting(scale)))
            wanted |= {run.record["name"] for run in found if run.record}
    there = {name for name, one in read_records(FOLDER).items() if "findings" not in one}
    assert there == wanted


@pytest.mark.parametrize("folder", ["reproduce", "image_study"])
def test_committed_records_have_settings_that_there_are(folder, anchor_objectives):
    for record in read_records(FOLDER.parents[1] / folder / "records").values():
        if "findings" not in record:
            TrainConfig.from_plain({"all": settings_of(record)})


def test_no_committed_run_is_still_enough_to_be_called_not_learning():
    changes = []
    for folder in ("reproduce", "image_study"):
        for record in read_records(FOLDER.parents[1] / folder / "records").values():
            logged = [one for one in record["metrics"] if "mi" in one and "mi_ceiling" in one]
            mi = [one["mi"] for one in logged]
            if mi:
                changes.append((max(mi) - min(mi)) / logged[-1]["mi_ceiling"])
    assert len(changes) > 100 and min(changes) > 2 * IDLE_SHARE


def test_records_name_no_path_of_a_machine():
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r'["\s=:,(](?:/\w[^"\s]*/|[A-Za-z]:\\)[^"\s]*', text)
        assert not found, f"{path}: absolute paths {found}"
