"""The paper's experiments at smoke scale: every one works, and its results hold together."""

import errno
import itertools
import json
import math
import re
import shutil
from copy import deepcopy
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

from flatnce.cli import main
from flatnce.messages import FlatnceWarning
from flatnce.paper.reproduce import analyses, command, engine
from flatnce.paper.reproduce import store as store_module
from flatnce.paper.reproduce.analyses import evaluations
from flatnce.paper.reproduce.engine import amount_of_work, plan_runs, reproduce
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Setting, TrainingRun
from flatnce.paper.reproduce.page import reproduce_page, table_of
from flatnce.paper.reproduce.store import COMMITTED, Store
from flatnce.pretrain.data import CATALOG, MissingData
from flatnce.pretrain.evaluation import protocols as bench
from flatnce.pretrain.runs import records
from flatnce.pretrain.runs.folder import run_lock
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.sweeping import sweep as sweeping
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.state import TrainingFailed
from paths import ROOT

# Where each experiment is in the paper, and what its charts must name.
IN_THE_PAPER = {
    "fig-mi": ("Figure 1", "InfoNCE|FlatNCE|log 127|log 256"),
    "fig-batch-size": ("Figure 2", "InfoNCE|FlatNCE"),
    "fig-speedup": ("Figures 3 and S2", "batch 64|batch 256|target"),
    "fig-mi-accuracy": ("Figures 4 and S1", "InfoNCE|FlatNCE"),
    "fig-ess": ("Figure 5", "InfoNCE|FlatNCE"),
    "fig-ess-target": ("Figure 6", "ESS held|FlatNCE|InfoNCE"),
    "fig-ess-schedule": ("Algorithm S1", "0.2 held|0.1 to 0.4"),
    "fig-holder": ("Proposition 3.7", "Hölder / FlatNCE at γβ|1 / γ"),
    "table-1": ("Table 1", "DV, dot|NWJ, dot|InfoNCE, dot|FlatNCE, cosine|2 nats"),
    "table-linear": ("Tables 2 and S3", "InfoNCE|FlatNCE"),
    "table-transfer": ("Tables 3 and S2", "InfoNCE|FlatNCE|digits"),
    "table-semi": ("Table S4", "Supervised|InfoNCE|FlatNCE|5%|20%"),
    "table-cost": ("Table S1", "MoCo|SimCLR|CLIP"),
    "primal-dual": ("Appendix", "InfoNCE, dot|FLO, u-head, joint, K = 1, dot|2 nats"),
}
WITHOUT_RUNS = ("table-cost", "table-1", "primal-dual", "fig-holder")  # of `flatnce train`
# Those below train nothing but more runs of the kinds that the others train; from the committed
# records they are drawn in test_committed_records.py.
MORE_RUNS = ("fig-batch-size", "fig-speedup", "fig-ess-target", "fig-ess-schedule")
TO_TRAIN = [
    pytest.param(name, marks=pytest.mark.slow) if name in MORE_RUNS else name
    for name in EXPERIMENTS
]
PROMISED = set("recipe paper claim scale seeds environment runs rows words printed notes".split())


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """The folder of a store that the experiments of this file share."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def committed(tmp_path_factory) -> Store:
    """The committed records, which hold every experiment at smoke scale."""
    return Store(tmp_path_factory.mktemp("nothing") / "store", [ROOT / COMMITTED])


@pytest.fixture(scope="module")
def smoked(tmp_path_factory, shared):
    """Runs an experiment at smoke scale, each once; tests that change it take a copy."""
    place = tmp_path_factory.mktemp("smoked")

    def run_once(name: str) -> Path:
        out = place / name
        return out if out.exists() else reproduce(name, Setting(), out, store=Store(shared))

    return run_once


@pytest.mark.parametrize("name", TO_TRAIN)
def test_an_experiment_works_at_smoke_scale(name, smoked):
    out = smoked(name)
    html = reproduce_page(out).read_text(encoding="utf-8")
    results = read_run(out).results
    assert results.keys() >= PROMISED
    shows = "shows that the code works, and nothing about the paper"
    assert results["scale_shows"].endswith(shows)
    cells = [cell for row in results["rows"] for cell in row["measures"].values()]
    assert cells and all(cell.keys() >= {"mean", "sd", "n", "values", "unit"} for cell in cells)
    assert all(cell["n"] == 1 for cell in cells), "a measure is missing"
    assert results["pictures"], "nothing was drawn"
    assert ("ten epochs of warm-up" in html) == (EXPERIMENTS[name].base == "imagenet")
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.S)]
    assert len(drawn) == len(results["pictures"])
    said = {text.text for svg in drawn for text in svg.iter("text")}
    assert said >= set(IN_THE_PAPER[name][1].split("|"))
    if results["runs"]:
        assert "nothing about the paper" in html


def test_the_list_names_every_figure_and_table(capsys):
    papers = {name: paper for name, (paper, _) in IN_THE_PAPER.items()}
    assert command.run(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    lines = [re.split(r"\s{2,}", line) for line in lines if not line.startswith(" ")]
    assert {name: paper for name, paper, _ in lines} == papers
    assert command.run(["--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["paper"] for row in rows} == papers


@pytest.mark.parametrize(
    "typed, words",
    [
        (["fig-batchsize"], "did you mean 'fig-batch-size'?"),
        (["zzz"], "--list"),
        ([], "name an experiment"),
        (["table-semi", "--scale", "paper"], "--imagenet PATH"),
        (["fig-mi", "--imagenet", "./i"], "fig-mi does not read --imagenet; leave it out"),
        (["table-semi", "--imagenet", "./imagenet"], "scale paper"),
        (["fig-mi", "--seeds", "1", "1"], "a seed twice"),
    ],
)
def test_misuse_is_one_line_and_exit_2(typed, words, capsys):
    assert main(["reproduce", *typed]) == 2
    shown = capsys.readouterr().err
    assert words in shown and shown.count("\n") == 1


def test_the_command_prints_a_table_and_the_page_or_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.run(["table-cost", "--scale", "small"]) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    assert "634,245 $" in shown and "runs/reproduce/table-cost-small/report.html" in shown
    assert command.run(["table-cost", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "table-cost"
    assert (tmp_path / "runs" / "reproduce" / "table-cost" / "report.html").is_file()
    results = read_run(tmp_path / "runs" / "reproduce" / "table-cost").results
    table = table_of(results["rows"], "")
    monkeypatch.setenv("COLUMNS", "50")  # nothing is cut on a narrow terminal
    assert command.run(["table-cost"]) == 0
    shown = capsys.readouterr().out
    assert all(cell in shown for cell in itertools.chain(table.header, *table.rows))


# The store: what was trained is not trained again, and figures need nothing but records.


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """Objective and seed of the runs that are given to `sweep` from now on."""
    names: list[str] = []
    real = sweeping.sweep

    def spy(configs, *arguments, **options):
        names.extend(f"{one.loss.objective} {one.run.seed}" for one in configs.values())
        return real(configs, *arguments, **options)

    monkeypatch.setattr(store_module, "sweep", spy)
    return names


@pytest.fixture
def nothing_trains(monkeypatch):
    monkeypatch.setattr(store_module, "sweep", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr(analyses, "evaluate_run", lambda *_, **__: pytest.fail("evaluated"))


def copied_records(folder: Path, to: Path) -> Path:
    """The records of a store without its weights."""
    to.mkdir()
    for path in folder.glob("*.json"):
        shutil.copy(path, to)
    return to


def told(out: Path):
    """What an experiment found, without when and where it was drawn."""
    return {key: value for key, value in read_run(out).results.items() if key != "seconds"}


@pytest.mark.parametrize("name", TO_TRAIN)
def test_records_draw_the_figure_that_was_drawn_after_training(
    name, smoked, shared, tmp_path, request, monkeypatch
):
    first = smoked(name)
    request.getfixturevalue("nothing_trains")  # from here on
    if EXPERIMENTS[name].shows:
        monkeypatch.setattr(engine, "analyse", lambda *_: pytest.fail("trained"))
    store = Store(copied_records(shared, tmp_path / "records"))
    again = reproduce(name, Setting(), tmp_path / "again", store=store)
    without = {"environment"} if name in ("table-cost", "fig-holder") else set()
    before, after = (
        {k: v for k, v in told(o).items() if k not in without} for o in (first, again)
    )
    assert after == before  # with the pictures, of which the page is a function


def test_an_added_setting_does_not_lose_the_record(smoked, shared, tmp_path):
    smoked("fig-mi")
    plan = plan_runs(EXPERIMENTS["fig-mi"], Setting())
    old = copied_records(shared, tmp_path / "old")
    # Before epoch_samples was added.
    for path in old.glob("digits-*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert record["config"]["data"].pop("epoch_samples") is None
        path.write_text(json.dumps(record))
    assert all(Store(old).find(run).record for run in plan)


@pytest.fixture(scope="module")
def trained_twice(tmp_path_factory, smoked, shared) -> Path:
    """Figure 5 from two seeds and its store, trained once; tests that change it take a copy."""
    place = tmp_path_factory.mktemp("reproduce")
    for run in read_run(smoked("fig-ess")).results["runs"]:
        shutil.copytree(shared / "runs" / run["record"], place / "store" / "runs" / run["record"])
        shutil.copy(shared / f"{run['record']}.json", place / "store")
    reproduce("fig-ess", Setting("smoke", (0, 1)), place / "out", store=Store(place / "store"))
    return place


@pytest.fixture
def copy(trained_twice, tmp_path) -> Path:
    return Path(shutil.copytree(trained_twice, tmp_path / "copy"))


def fig_ess(place: Path, *seeds: int, **settings) -> dict:
    setting = Setting("smoke", seeds, **settings)
    reproduce("fig-ess", setting, place / "out", store=Store(place / "store"))
    return read_run(place / "out").results


def folder_of(place: Path, objective: str, seed: int) -> Path:
    """The folder of a run in a store; its record lies beside ``runs``."""
    for record in records.read_records(place / "store").values():
        if (record["config"]["loss"]["objective"], record["seed"]) == (objective, seed):
            return place / "store" / "runs" / record["name"]
    raise AssertionError


def forget(place: Path, objective: str, seed: int) -> Path:
    """Remove a run's record from a store, and return the run's folder."""
    run = folder_of(place, objective, seed)
    (place / "store" / f"{run.name}.json").unlink()
    return run


def test_two_experiments_with_the_same_runs_train_them_once(copy, trained):
    shutil.rmtree(forget(copy, "flatnce", 1))
    setting = Setting("smoke", (0, 1))
    for name in ("fig-mi", "fig-ess", "fig-mi"):
        reproduce(name, setting, copy / name, store=Store(copy / "store"))
    assert trained == ["flatnce 1"]
    both = [read_run(copy / name).results["runs"] for name in ("fig-mi", "fig-ess")]
    assert both[0] == both[1] and len(both[0]) == 4


def test_only_what_is_not_in_the_store_is_trained(copy, monkeypatch):
    found = []

    def stop(configs, *_, **__):
        found.extend(f"{one.loss.objective} {one.run.seed}" for one in configs.values())
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "sweep", stop)
    with pytest.raises(KeyboardInterrupt):
        reproduce(
            "fig-ess", Setting("smoke", (0, 1, 2)), copy / "out", store=Store(copy / "store")
        )
    assert found == ["infonce 2", "flatnce 2"]


def test_an_unfinished_run_is_resumed_from_its_checkpoint(copy, trained, monkeypatch):
    before, run = fig_ess(copy, 0, 1)["rows"], forget(copy, "flatnce", 1)
    (run / "results.json").unlink()
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    monkeypatch.setattr(sweeping, "train_steps", lambda *_, **__: pytest.fail("from the start"))
    assert fig_ess(copy, 0, 1)["rows"] == before
    assert trained == ["flatnce 1"]


def test_an_interrupted_experiment_keeps_what_is_done(copy, monkeypatch, capsys):
    done, stopped = forget(copy, "infonce", 1), forget(copy, "flatnce", 1)
    shutil.rmtree(stopped)
    monkeypatch.setattr(
        store_module, "sweep", lambda configs, place, **_: sweeping.sweep_states(configs, place)
    )
    typed = ["fig-ess", "--seeds", "1", "--out", str(copy / "out")]
    with pytest.raises(KeyboardInterrupt):
        command.run([*typed, "--store", str(copy / "store")])
    assert "the same command continues" in capsys.readouterr().err
    found = records.read_records(copy / "store")
    assert done.name in found and stopped.name not in found


@pytest.mark.parametrize(("name", "scale"), [("fig-mi", "smoke"), ("fig-ess", "small")])
def test_another_experiment_or_scale_may_not_use_the_folder(copy, name, scale):
    with pytest.raises(ValueError, match=r"holds another reproduce run \(recipe fig-ess.*another"):
        reproduce(name, Setting(scale), copy / "out", store=Store(copy / "store"))


def test_a_run_is_neither_a_store_nor_overwritten(copy):
    run = folder_of(copy, "flatnce", 0)
    before = (run / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"store='.*' is a run; name a folder of records"):
        Store(run)
    with pytest.raises(ValueError, match=r"holds another train run; name another folder$"):
        reproduce("fig-ess", Setting("smoke"), run, store=Store(copy / "store"))
    assert (run / "config.json").read_bytes() == before


def test_a_store_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "analyse", Mock(side_effect=AssertionError("work")))
    (file := tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"store='.*file' is a file; name a folder of records"):
        Store(file)
    with pytest.raises(NotADirectoryError, match="file"):
        reproduce("table-1", Setting(), tmp_path / "out", store=Store(file / "store"))


def test_results_hold_the_numbers_of_each_seed(trained_twice):
    results = read_run(trained_twice / "out").results
    cell = results["rows"][1]["measures"]["ESS of the negatives, last"]
    runs = [folder_of(trained_twice, "flatnce", seed) for seed in (0, 1)]
    ends = [read_run(run).results["last"]["ess_paper"] for run in runs]
    assert cell["values"] == pytest.approx(ends, rel=1e-4) and cell["n"] == 2
    assert cell["mean"] == pytest.approx(sum(cell["values"]) / 2)
    difference = cell["values"][0] - cell["values"][1]
    assert cell["sd"] == pytest.approx(abs(difference) / math.sqrt(2))


@pytest.fixture
def flatnce_run(copy) -> TrainingRun:
    """A trained run, as an experiment sees it."""
    (_, plan) = plan_runs(EXPERIMENTS["fig-ess"], Setting())
    return Store(copy / "store").find(plan)


def test_accuracies_are_evaluated_once_per_question(flatnce_run, monkeypatch):
    before = len(flatnce_run.record["evaluations"])
    few, many = (evaluations(flatnce_run, "knn", neighbours=(k,))[0] for k in (5, 50))
    assert (few["protocol"]["neighbours"], many["protocol"]["neighbours"]) == (5, 50)
    assert 0.5 < few["top1"] <= 1
    monkeypatch.setattr(bench, "evaluate", lambda *_: pytest.fail("evaluated again"))
    read_again = Store(flatnce_run.store.folder).find(flatnce_run)
    assert len(read_again.record["evaluations"]) == before + 2
    assert evaluations(read_again, "knn", neighbours=(5,)) == [few]


def test_results_that_the_run_cannot_save_are_kept_in_the_record(flatnce_run, monkeypatch):
    refused = PermissionError(errno.EACCES, "Permission denied", "results.json")
    monkeypatch.setattr(bench, "add_evaluation", Mock(side_effect=refused))
    with pytest.warns(
        FlatnceWarning, match=r"knn: not saved in .*; the record .* has them"
    ) as said:
        (found,) = evaluations(flatnce_run, "knn", neighbours=(7,))
    assert "evaluate again" not in str(said[0].message)
    monkeypatch.setattr(bench, "evaluate", lambda *_: pytest.fail("evaluated again"))
    read_again = Store(flatnce_run.store.folder).find(flatnce_run)
    assert evaluations(read_again, "knn", neighbours=(7,)) == [found]


def test_protocols_that_are_asked_for_together_share_their_features(flatnce_run, monkeypatch):
    made, extract = [], bench.extract
    monkeypatch.setattr(bench, "extract", lambda *a, **b: made.append(a) or extract(*a, **b))
    both = evaluations(flatnce_run, ("linear-short", "linear-long"), epochs=1, rates=(1.0,))
    assert [one["name"] for one in both] == ["linear-short", "linear-long"]
    assert len(made) == 2  # training and test images


def test_an_evaluation_that_is_not_recorded_trains_again_without_weights(
    smoked, shared, tmp_path, trained
):
    results = read_run(smoked("table-linear")).results
    trained.clear()
    bare = copied_records(shared, tmp_path / "store")
    (lost, kept) = (run["record"] for run in results["runs"])
    shutil.copytree(shared / "runs" / kept, bare / "runs" / kept)
    record = json.loads((bare / f"{lost}.json").read_text(encoding="utf-8"))
    (bare / f"{lost}.json").write_text(json.dumps(record | {"evaluations": []}))
    said: list[str] = []
    out = tmp_path / "out"
    reproduce("table-linear", Setting(), out, store=Store(bare), announce=said.append)
    assert trained == ["infonce 0"]
    assert said[0].startswith("2 runs, 0 of them") and "the weights are missing too" in said[1]
    assert read_run(out).results["rows"] == results["rows"]


def test_a_run_that_diverges_is_a_gap_and_is_not_tried_again(copy, monkeypatch):
    shutil.rmtree(forget(copy, "infonce", 0))

    def diverge(config, directory, **_):
        RunLog(directory, kind="train", config=config)
        raise TrainingFailed("training stopped: the loss is not a number")
        yield

    monkeypatch.setattr(sweeping, "train_steps", diverge)
    infonce, flatnce = (row["measures"] for row in fig_ess(copy, 0)["rows"])
    assert {cell["n"] for cell in infonce.values()} == {0}
    assert {cell["n"] for cell in flatnce.values()} == {1}
    monkeypatch.setattr(store_module, "sweep", lambda *_, **__: pytest.fail("trained again"))
    assert "not a number" in fig_ess(copy, 0)["runs"][0]["failure"]


def test_a_run_that_fails_otherwise_is_an_error(copy, monkeypatch):
    shutil.rmtree(forget(copy, "infonce", 0))

    def full(*_, **__):
        raise OSError("no space left")
        yield

    monkeypatch.setattr(sweeping, "train_steps", full)
    with pytest.raises(ValueError, match=r"objective-infonce-seed-0: .*no space left"):
        fig_ess(copy, 0)


@pytest.mark.parametrize("which", ["the first", "all"])
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in WITHOUT_RUNS])
@pytest.mark.usefixtures("nothing_trains", "plain_charts")
def test_every_experiment_survives_runs_that_diverged(name, which, committed, tmp_path):
    plan = plan_runs(EXPERIMENTS[name], Setting())
    bad, store = plan[:1] if which == "the first" else plan, deepcopy(committed)
    for run in bad:
        # As training leaves it that stops at once: no result, no checkpoint to read.
        store.find(run).record.update(
            {"failure": "the loss is not a number", "results": {}, "metrics": []},
            checkpoints=[],
            evaluations=[],
        )
    out = reproduce(name, Setting(), tmp_path / "out", store=store)
    html, results = reproduce_page(out).read_text(encoding="utf-8"), read_run(out).results
    failed = [run["name"] for run in results["runs"] if run["failure"]]
    assert failed == [run.name for run in bad]
    assert html.count("the loss is not a number") == len(bad)
    if which == "all":
        cells = [cell for row in results["rows"] for cell in row["measures"].values()]
        assert all(cell["mean"] is None for cell in cells)
        assert results["pictures"] == []


@pytest.mark.usefixtures("nothing_trains")
def test_a_recorded_evaluation_that_no_experiment_asked_for_is_left_alone(committed, tmp_path):
    store = deepcopy(committed)
    for run in map(store.find, plan_runs(EXPERIMENTS["table-transfer"], Setting())):
        run.record["evaluations"].append({"name": "knn", "top1": 0.5})
    reproduce("table-transfer", Setting(), tmp_path / "out", store=store)


# Plans.


@pytest.fixture
def all_sets(monkeypatch):
    """Every set to transfer to is on disk."""
    monkeypatch.setattr(engine, "missing_sets", lambda *_: {})


# Images a second on an H200: ResNet-18 at batch 32 10,000, as measured; half of that at batch 16
# and a third with a ResNet-50 are guesses.
def seconds_of(config: TrainConfig) -> float:
    speed = 10_000 * min(1.0, config.run.batch_size / 32)
    images = config.run.epochs * CATALOG[config.data.data].splits[config.data.split]
    return images / (speed if config.model.backbone == "resnet18" else speed / 3)


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_plan_at_every_scale(name, scale, all_sets):
    plan = plan_runs(EXPERIMENTS[name], Setting(scale, imagenet="imagenet"))
    assert len({one.name for one in plan}) == len(plan)
    assert {one.config.run.seed for one in plan} == ({0, 1, 2} if plan else set())
    if scale == "small":  # half an hour of steps at most
        assert sum(seconds_of(one.config) for one in plan) <= 31 * 60
    elif EXPERIMENTS[name].base == "imagenet":
        config = plan[0].config
        assert (config.run.batch_size, config.run.epochs) == (512, 100)
        assert (config.data.data, config.model.backbone) == ("./imagenet", "resnet50")


@pytest.mark.parametrize(
    ("name", "network", "optimizer", "temperature", "batches"),
    [
        ("fig-mi", {"resnet18"}, "adamw", 0.07, {128}),
        ("fig-ess", {"resnet18"}, "adamw", 0.07, {128}),
        ("fig-batch-size", {"resnet50"}, "adamw", 0.07, {16, 32, 64, 128, 256}),
        ("fig-speedup", {"resnet18", "resnet50"}, "adamw", 0.07, {64, 128, 256, 512, 1024}),
        ("table-linear", {"resnet50"}, "lars", 0.1, {512}),
    ],
)
def test_the_papers_scale_has_the_papers_settings(name, network, optimizer, temperature, batches):
    plan = plan_runs(EXPERIMENTS[name], Setting("paper", imagenet="./here"))
    configs = [one.config for one in plan]
    assert {one.model.backbone for one in configs} == network
    assert {one.optimizer.optimizer for one in configs} == {optimizer}
    assert {one.loss.temperature for one in configs} == {temperature}
    assert {one.run.batch_size for one in configs} == batches
    assert {one.model.head_out for one in configs} == {256}
    if optimizer == "adamw":  # without decay it is Adam, whose rate the paper does not scale
        assert {one.optimizer.weight_decay for one in configs} == {0.0}
        assert {one.optimizer.rate for one in configs} == {1e-4}
        rules = {one.optimizer.scaling for one in configs}
        assert rules == {"linear" if name == "fig-speedup" else "none"}


def test_experiments_of_the_same_runs_share_them_at_every_scale():
    for scale in ("smoke", "small", "paper"):
        plans = {
            name: {one.config for one in plan_runs(EXPERIMENTS[name], Setting(scale, (0,), "./i"))}
            for name in ("fig-mi", "fig-ess", "fig-mi-accuracy", "table-linear", "table-semi")
        }
        assert plans["fig-mi"] == plans["fig-ess"] and plans["fig-mi"] <= plans["fig-mi-accuracy"]
        assert plans["table-linear"] == plans["table-semi"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_experiments_on_imagenet_read_its_folder(name, all_sets):
    experiment = EXPERIMENTS[name]
    usual = plan_runs(experiment, Setting("paper", imagenet="./here"))
    if experiment.base == "imagenet":
        assert {one.config.data.data for one in usual} == {"./here"}
    else:
        assert usual == plan_runs(experiment, Setting("paper"))


def test_the_command_says_first_how_much_there_is_to_do(copy, capsys):
    plan = plan_runs(EXPERIMENTS["fig-ess"], Setting("smoke", (0, 1, 2)))
    work = "6 runs, {} of them to be trained: {} epochs in all"
    assert amount_of_work(plan) == work.format(6, 6)
    store = Store(copy / "store")
    assert amount_of_work([store.find(run) for run in plan]) == work.format(2, 2)
    typed = ["fig-ess", "--seeds", "0", "1", "--store", str(store.folder)]
    assert command.run([*typed, "--out", str(copy / "out")]) == 0
    assert capsys.readouterr().out.startswith("4 runs, 0 of them to be trained")


def test_transfer_without_any_set_to_transfer_to_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"none of the sets.*flatnce data cifar100"):
        store = Store(tmp_path / "store")
        reproduce("table-transfer", Setting("small"), tmp_path / "out", store=store)
    assert not list(tmp_path.iterdir())


def test_transfer_of_recorded_runs_without_any_set_to_transfer_to_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "none"))
    store = Store(tmp_path / "store", [Path(__file__).parents[2] / store_module.COMMITTED])
    with pytest.raises(MissingData, match=r"none of the sets.*flatnce data cifar100"):
        reproduce("table-transfer", Setting("small"), tmp_path / "out", store=store)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("typed", [["demo"], ["reproduce", "fig-mi"]])
def test_a_folder_that_another_process_writes_is_refused(typed, tmp_path, capsys):
    out = tmp_path / "out"
    with run_lock(out):
        assert main([*typed, "--out", str(out)]) == 2
    assert f"{out} is being trained by another process" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("typed", [["demo"], ["reproduce", "fig-mi"]])
def test_a_page_that_flatnce_did_not_write_is_refused_before_any_work(typed, tmp_path, capsys):
    (page := tmp_path / "report.html").write_text("mine", encoding="utf-8")
    assert main([*typed, "--out", str(tmp_path)]) == 2
    assert f"--out {page} is a file that flatnce did not write" in capsys.readouterr().err
    assert main([*typed, "--out", str(page)]) == 2
    assert f"--out {page} is a file; name a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [page] and page.read_text(encoding="utf-8") == "mine"


def test_missing_images_are_named_with_the_remedies_and_nothing_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLATNCE_DATA", "none")
    monkeypatch.setattr(store_module, "COMMITTED", Path("nowhere"))
    assert main(["reproduce", "fig-mi", "--scale", "small"]) == 1
    said = capsys.readouterr()
    words = (
        "of the experiment's runs must be trained, but cifar10 is not in",
        "flatnce data cifar10",
        "$FLATNCE_DATA",
        "--store PATH",
        "benchmarks/reproduce/records",
    )
    assert all(word in said.err for word in words) and "root" not in said.err
    assert not said.out and not list(tmp_path.iterdir())


def files_of(place: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in place.iterdir()}


def test_a_result_that_cannot_be_made_again_without_images_stays(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    RunLog(out, kind="reproduce", config={"recipe": "fig-mi", "scale": "small"}).finish(
        {"rows": []}
    )
    before = files_of(out)
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(store_module, "COMMITTED", Path("nowhere"))
    assert main(["reproduce", "fig-mi", "--scale", "small", "--out", str(out)]) == 1
    assert not capsys.readouterr().out and files_of(out) == before


def test_an_earlier_result_stays_until_there_is_a_new_one(copy, monkeypatch):
    before = files_of(copy / "out")
    monkeypatch.setattr(store_module, "sweep", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fig_ess(copy, 0, 1, 2)
    assert files_of(copy / "out") == before
