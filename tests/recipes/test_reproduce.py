"""The paper's experiments at smoke scale: every recipe works, and its results hold together."""

import json
import math
import re
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flatnce.cli import main
from flatnce.cli import reproduce as command
from flatnce.data import MissingData
from flatnce.recipes.reproduce import accuracy, execute, printed, table_transfer
from flatnce.recipes.reproduce.bases import cifar, imagenet
from flatnce.recipes.reproduce.catalogue import CATALOGUE, entry
from flatnce.recipes.reproduce.correlation import pearson
from flatnce.recipes.reproduce.execute import reproduce
from flatnce.recipes.reproduce.fig_learning_rate import _largest_borne
from flatnce.recipes.reproduce.readings import Group, curve, groups, points
from flatnce.recipes.reproduce.recipe import Finished, Planned, Setting, grid
from flatnce.report import reproduce_page
from flatnce.runlog import Run, RunLog, read_run
from flatnce.train import Outcome, TrainConfig, TrainingFailed

# What every figure and table of the paper's experiments is found under.
IN_THE_PAPER = {
    "Figure 1": "fig-mi",
    "Figure 2": "fig-batch-size",
    "Figures 3 and S2": "fig-speedup",
    "Figures 4 and S1": "fig-mi-accuracy",
    "Figure 5": "fig-ess",
    "Figure 6": "fig-ess-target",
    "Tables 2 and S3": "table-linear",
    "Tables 3 and S2": "table-transfer",
    "Table S4": "table-semi",
    "Table S1": "table-cost",
    "Algorithm S1": "fig-ess-schedule",
    "Section 4": "fig-learning-rate",
    "Proposition 3.7": "fig-holder",
}
# Lines, clouds or bars that the pictures of each must name.
SERIES = {
    "fig-mi": {"InfoNCE", "FlatNCE", "log 127", "log 256"},
    "fig-batch-size": {"InfoNCE", "FlatNCE", "batch 64", "batch 128"},
    "fig-speedup": {"batch 64", "batch 256", "target"},
    "fig-mi-accuracy": {"InfoNCE", "FlatNCE"},
    "fig-ess": {"InfoNCE", "FlatNCE"},
    "fig-ess-target": {"FlatNCE", "InfoNCE"},
    "fig-ess-schedule": {"0.2 held", "0.1 to 0.4"},
    "fig-learning-rate": {"126 neg.", "254 neg.", "largest"},
    "fig-holder": {"Hölder", "FlatNCE"},
    "table-linear": {"InfoNCE", "FlatNCE"},
    "table-transfer": {"InfoNCE", "FlatNCE", "digits"},
    "table-semi": {"Supervised", "InfoNCE", "FlatNCE", "5%", "20%"},
    "table-cost": {"MoCo", "SimCLR", "CLIP", "the paper’s"},
}
PROMISED = {
    "recipe",
    "paper",
    "claim",
    "scale",
    "scale_shows",
    "seeds",
    "environment",
    "runs",
    "rows",
    "pictures",
    "words",
    "printed",
    "notes",
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_recipe_works_at_smoke_scale(name, tmp_path):
    out = reproduce(name, Setting("smoke"), tmp_path / name)
    html = reproduce_page(out).read_text(encoding="utf-8")
    results = read_run(out).results
    assert results.keys() >= PROMISED
    assert results["scale_shows"].endswith(
        "shows that the code works, and nothing about the paper"
    )
    cells = [cell for row in results["rows"] for cell in row["measures"].values()]
    assert cells and all(cell.keys() >= {"mean", "sd", "n", "values", "unit"} for cell in cells)
    assert all(cell["n"] == 1 for cell in cells), "a measure is missing"
    assert results["pictures"], "nothing was drawn"
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.S)]
    assert len(drawn) == len(results["pictures"])
    said = {text.text for svg in drawn for text in svg.iter("text")}
    assert said >= SERIES[name]
    if results["runs"]:
        assert "nothing about the paper" in html


def test_the_list_names_every_figure_and_table(capsys):
    assert command.run(["--list"]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert {paper: name for name, paper, _ in lines} == IN_THE_PAPER


def test_the_list_as_json(capsys):
    assert command.run(["--list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(CATALOGUE)


def test_the_list_loads_no_torch(run_python):
    code = (
        "import sys; from flatnce.cli.reproduce import run; run(['--list']); "
        "print('torch' in sys.modules)"
    )
    assert run_python(code).splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "typed, words",
    [
        (["fig-batchsize"], "did you mean 'fig-batch-size'?"),
        (["zzz"], "--list"),
        ([], "name a recipe"),
        (["table-semi", "--scale", "paper"], "--imagenet PATH"),
    ],
    ids=["misspelt", "unknown", "no name", "no ImageNet"],
)
def test_misuse_is_one_line_and_exit_2(typed, words, capsys):
    assert main(["reproduce", *typed]) == 2
    shown = capsys.readouterr().err
    assert words in shown and shown.count("\n") == 1


def test_the_command_prints_a_table_and_names_the_page(tmp_path, capsys):
    assert command.run(["table-cost", "--out", str(tmp_path / "cost")]) == 0
    shown = capsys.readouterr().out
    assert "634,245 $" in shown and str(tmp_path / "cost" / "report.html") in shown.replace(
        "\n", ""
    )


def test_json_is_all_there_is_on_standard_output(tmp_path, capsys):
    assert command.run(["table-cost", "--json", "--out", str(tmp_path / "cost")]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "table-cost"


def test_each_scale_has_its_own_folder():
    options = command.ReproduceOptions("fig-mi")
    assert command._default_place(options) == Path("runs/reproduce/fig-mi")
    small = replace(options, scale="small")
    assert command._default_place(small) == Path("runs/reproduce/fig-mi-small")


# Going on, and what may not be mixed.


@pytest.fixture(scope="module")
def cooked(tmp_path_factory) -> Path:
    """Figure 5 from two seeds, once; tests that change it take a copy."""
    out = tmp_path_factory.mktemp("reproduce") / "fig-ess"
    return reproduce("fig-ess", Setting("smoke", (0, 1)), out)


@pytest.fixture
def copy(cooked, tmp_path) -> Path:
    return Path(shutil.copytree(cooked, tmp_path / "copy"))


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """Names of runs that are trained or resumed from now on."""
    names: list[str] = []
    for how in ("train", "resume"):
        real = getattr(execute, how)

        def spy(*arguments, real=real, how=how, **options):
            names.append(f"{how} {Path(arguments[-1]).name}")
            return real(*arguments, **options)

        monkeypatch.setattr(execute, how, spy)
    return names


def test_finished_runs_are_not_trained_again(copy, trained):
    before = read_run(copy).results["rows"]
    reproduce("fig-ess", Setting("smoke", (0, 1)), copy)
    assert trained == []
    assert read_run(copy).results["rows"] == before


def test_another_seed_trains_only_its_own_runs(copy, trained):
    reproduce("fig-ess", Setting("smoke", (0, 1, 2)), copy)
    assert trained == ["train objective-infonce-seed-2", "train objective-flatnce-seed-2"]
    (_, flatnce) = read_run(copy).results["rows"]
    assert {cell["n"] for cell in flatnce["measures"].values()} == {3}


def test_an_unfinished_run_is_resumed(copy, trained):
    run = copy / "runs" / "objective-flatnce-seed-1"
    before = read_run(copy).results["rows"]
    (run / "results.json").unlink()
    reproduce("fig-ess", Setting("smoke", (0, 1)), copy)
    assert trained == ["resume objective-flatnce-seed-1"]
    assert read_run(copy).results["rows"] == before


def test_a_run_killed_before_its_first_checkpoint_is_trained_anew(copy, trained):
    run = copy / "runs" / "objective-flatnce-seed-1"
    (run / "results.json").unlink()
    shutil.rmtree(run / "checkpoints")
    reproduce("fig-ess", Setting("smoke", (0, 1)), copy)
    assert trained == ["train objective-flatnce-seed-1"]


def test_an_interrupted_recipe_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    real, calls = execute.train, []

    def train_once(config, directory, **options):
        calls.append(directory)
        if len(calls) == 1:
            return real(config, directory, **options)
        return Outcome(Path(directory), False, 3)

    monkeypatch.setattr(execute, "train", train_once)
    with pytest.raises(KeyboardInterrupt):
        command.run(["fig-ess", "--out", str(tmp_path / "out")])
    assert "the same command goes on" in capsys.readouterr().err
    assert read_run(tmp_path / "out" / "runs" / "objective-infonce-seed-0").results


@pytest.mark.parametrize(
    "name, setting", [("fig-mi", Setting("smoke")), ("fig-ess", Setting("small"))]
)
def test_another_recipe_or_scale_may_not_use_the_folder(copy, name, setting):
    with pytest.raises(ValueError, match=r"holds another reproduce run \(recipe fig-ess.*another"):
        reproduce(name, setting, copy)


def test_a_run_of_other_settings_is_not_taken_for_ours(copy):
    with pytest.raises(ValueError, match="was trained with another rate"):
        reproduce("fig-ess", Setting("smoke", (0, 1), rate=0.123), copy)


def test_results_hold_the_numbers_of_each_seed(cooked):
    results = read_run(cooked).results
    cell = results["rows"][1]["measures"]["ESS of the negatives, last"]
    ends = [
        read_run(cooked / "runs" / f"objective-flatnce-seed-{seed}").results["last"]["ess"]
        for seed in (0, 1)
    ]
    assert cell["values"] == pytest.approx(ends)
    assert cell["mean"] == pytest.approx(sum(ends) / 2)
    assert cell["sd"] == pytest.approx(abs(ends[0] - ends[1]) / math.sqrt(2))
    assert cell["n"] == 2


def test_accuracies_are_evaluated_once(cooked, monkeypatch, tmp_path):
    folder = shutil.copytree(cooked / "runs" / "objective-flatnce-seed-0", tmp_path / "run")
    config = grid(cifar(Setting()).override(batch_size=64), Setting(), objective=("flatnce",))
    run = Finished(config[0], read_run(folder))
    first = accuracy.score(run, "knn", neighbours=(5,))
    monkeypatch.setattr(accuracy, "evaluate", lambda *_: pytest.fail("evaluated again"))
    assert accuracy.score(run, "knn", neighbours=(5,)) == json.loads(json.dumps(first))
    assert 0.5 < first["top1"] <= 1


def test_another_question_is_another_evaluation(cooked, tmp_path):
    folder = shutil.copytree(cooked / "runs" / "objective-flatnce-seed-0", tmp_path / "run")
    config = grid(cifar(Setting()).override(batch_size=64), Setting(), objective=("flatnce",))
    run = Finished(config[0], read_run(folder))
    few, many = (accuracy.score(run, "knn", neighbours=(k,)) for k in (1, 50))
    assert (few["protocol"]["neighbours"], many["protocol"]["neighbours"]) == (1, 50)
    assert len(read_run(folder).results["evaluations"]) == 2


def test_a_run_that_diverges_is_a_gap_and_is_not_tried_again(tmp_path, monkeypatch):
    real = execute.train

    def diverge(config, directory, **options):
        if config.optimizer.rate == 3.0 and config.run.batch_size == 64:
            RunLog(directory, kind="train", config=config)
            raise TrainingFailed("training stopped: the loss is not a number")
        return real(config, directory, **options)

    monkeypatch.setattr(execute, "train", diverge)
    out = reproduce("fig-learning-rate", Setting("smoke"), tmp_path / "out")
    results = read_run(out).results
    by_rate = {
        (row["variables"]["batch_size"], row["variables"]["rate"]): row["measures"]
        for row in results["rows"]
    }
    assert by_rate[64, 3.0]["kNN at the end"]["mean"] is None
    assert by_rate[64, 0.1]["kNN at the end"]["n"] == 1
    assert "not a number" in reproduce_page(out).read_text(encoding="utf-8")
    monkeypatch.setattr(execute, "train", lambda *_, **__: pytest.fail("trained again"))
    assert reproduce("fig-learning-rate", Setting("smoke"), out)


# The parts.


def run_of(metrics, seed=0, failure="") -> Finished:
    planned = Planned(f"seed-{seed}", TrainConfig().override(seed=seed), {"objective": "flatnce"})
    return Finished(planned, Run(Path("."), "train", {}, {}, metrics, {"step": 4}), failure)


def lines_of(*values, key="mi"):
    return [
        {"kind": "train", "step": i, "epoch": i / 4, key: value}
        for i, value in enumerate(values, start=1)
    ]


def test_curves_of_seeds_are_joined_by_step():
    group = Group({}, (run_of(lines_of(1.0, 2.0)), run_of(lines_of(3.0, 6.0), seed=1)))
    found = curve(group, "mi")
    assert found.epochs == [0.25, 0.5]
    assert [one["mean"] for one in found.spreads] == [2.0, 4.0]
    assert (found.at(0.2), found.last()) == ([1.0, 3.0], [2.0, 6.0])


def test_a_long_curve_keeps_its_ends():
    found = curve(Group({}, (run_of(lines_of(*(float(i) for i in range(500)))),)), "mi")
    assert len(found.epochs) == 60
    assert (found.values[0][0], found.values[0][-1]) == (0.0, 499.0)


def test_what_a_run_measured_before_it_diverged_does_not_count():
    good, bad = run_of(lines_of(1.0, 2.0)), run_of(lines_of(9.0), seed=1, failure="diverged")
    assert curve(Group({}, (good, bad)), "mi").last() == [2.0, None]
    assert curve(Group({}, (bad,)), "mi").last() == [None]


def test_points_have_a_band_where_there_are_several_seeds():
    assert points("a", [1.0, 2.0], [[1.0, 3.0], [2.0, 2.0]], 0)["spread"] == [math.sqrt(2), 0.0]
    assert points("a", [1.0, 2.0], [[1.0], [2.0]], 0)["spread"] is None


def test_groups_differ_in_more_than_the_seed():
    plan = grid(TrainConfig(), Setting(seeds=(3, 4)), objective=("infonce", "flatnce"))
    runs = [Finished(one, Run(Path("."), "train", {}, {}, [], None)) for one in plan]
    found = groups(runs)
    assert [group.label for group in found] == ["InfoNCE", "FlatNCE"]
    assert [[run.planned.seed for run in group.runs] for group in found] == [[3, 4], [3, 4]]


@pytest.mark.parametrize(
    "ends, largest",
    [
        ({0.1: [0.80], 0.3: [0.81], 1.0: [0.795], 3.0: [0.5]}, 1.0),
        ({0.1: [0.80], 0.3: [0.81, None]}, 0.1),
        ({0.1: [None]}, None),
    ],
    ids=["within two points", "one seed diverged", "nothing"],
)
def test_the_largest_rate_that_is_borne(ends, largest):
    assert _largest_borne(ends) == largest


def test_pearson_agrees_with_its_definition():
    x, y = [0.0, 1.0, 2.0, 4.0, 5.0], [1.0, 0.5, 2.5, 2.0, 4.0]
    found = pearson(x, y)
    mx, my = sum(x) / 5, sum(y) / 5
    sxy = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    sxx, syy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)
    assert found.rho == pytest.approx(sxy / math.sqrt(sxx * syy))
    assert found.slope == pytest.approx(sxy / sxx)
    assert found.intercept == pytest.approx(my - sxy / sxx * mx)
    # The p-value is that of Student's t with n - 2 degrees of freedom, here 3: closed form.
    t = found.rho * math.sqrt(3 / (1 - found.rho**2))
    upper = 0.5 - (t / (math.sqrt(3) * (1 + t * t / 3)) + math.atan(t / math.sqrt(3))) / math.pi
    assert found.p == pytest.approx(2 * upper)


@pytest.mark.parametrize("x, y", [([0.0, 1.0], [0.0, 1.0]), ([1.0] * 4, [0.0, 1.0, 2.0, 3.0])])
def test_without_spread_there_is_no_correlation(x, y):
    assert pearson(x, y) is None


def test_the_papers_tables_are_whole():
    rows = [*printed.TABLE_2.values(), *(r for t in printed.TABLE_S3.values() for r in t.values())]
    assert {len(row) for row in rows} == {len(printed.EPOCHS)}
    ends = {printed.printed_at(100.0, row) for row in rows}
    assert ends == {0.5462, 0.5674, 0.5713, 0.5974, 0.81, 0.8318}
    widths = {len(row) for table in printed.TRANSFER.values() for row in table.values()}
    assert widths == {len(printed.TRANSFER_COLUMNS)}


def test_at_the_papers_scale_its_numbers_stand_beside_ours():
    group = Group({"objective": "flatnce"}, (run_of([]),))
    from flatnce.recipes.reproduce.table_linear import COLUMNS, _cells, _picture

    table = {name: [{"top1": [0.5], "top5": [0.8]}] for name in ("linear-short", "linear-long")}
    cells = _cells(group, table, 0, 100.0)
    assert [cell["paper"] for cell in cells.values()] == [0.5674, 0.5974, 0.8318]
    name = next(iter(COLUMNS))
    (picture,) = _picture(name, [100.0], [group], {"FlatNCE": [[0.5]]}, True)
    assert [line["label"] for line in picture["lines"]] == ["FlatNCE", "paper, FlatNCE"]


def test_imagenet_is_asked_for_by_its_folder():
    with pytest.raises(ValueError, match="--imagenet PATH"):
        imagenet(Setting("paper"))
    config = imagenet(Setting("paper", imagenet="pictures"))
    assert (config.data.data, config.run.batch_size, config.run.epochs) == ("./pictures", 512, 100)
    assert (config.model.backbone, config.model.head_out) == ("resnet50", 256)


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_recipe_has_a_plan_at_every_scale(name, scale, monkeypatch):
    monkeypatch.setattr(table_transfer, "missing_sets", lambda *_: {})  # none of them is here
    recipe = import_module(entry(name).module).RECIPE
    plan = recipe.plan(Setting(scale, imagenet="./imagenet"))
    assert len({one.name for one in plan}) == len(plan)
    assert {one.seed for one in plan} == ({0, 1, 2} if plan else set())


def test_transfer_without_any_set_to_transfer_to_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"none of the sets.*flatnce data cifar100"):
        reproduce("table-transfer", Setting("small"), tmp_path / "out")


@pytest.mark.parametrize(
    "options, words",
    [({"scale": "huge"}, "smoke, small, paper"), ({"seeds": (1, 1)}, "a seed twice")],
)
def test_a_setting_is_checked(options, words):
    with pytest.raises(ValueError, match=words):
        Setting(**options)
