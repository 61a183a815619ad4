"""The paper's experiments at smoke scale: every one works, and its results hold together."""

import json
import math
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flatnce.cli import main
from flatnce.paper.reproduce import command, engine
from flatnce.paper.reproduce.analyses import negatives_of
from flatnce.paper.reproduce.engine import amount_of_work, plan_runs, reproduce
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Setting, TrainingRun
from flatnce.paper.reproduce.page import reproduce_page
from flatnce.paper.reproduce.runs import evaluations
from flatnce.pretrain.data import CATALOG, MissingData
from flatnce.pretrain.evaluation import protocols as bench
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.loop import Outcome
from flatnce.pretrain.training.state import TrainingFailed

# Where each experiment is in the paper, and what its charts must name.
IN_THE_PAPER = {
    "fig-mi": ("Figure 1", "InfoNCE|FlatNCE|log 127|log 256"),
    "fig-batch-size": ("Figure 2", "InfoNCE|FlatNCE|batch 64|batch 128"),
    "fig-speedup": ("Figures 3 and S2", "batch 64|batch 256|target"),
    "fig-mi-accuracy": ("Figures 4 and S1", "InfoNCE|FlatNCE"),
    "fig-ess": ("Figure 5", "InfoNCE|FlatNCE"),
    "fig-ess-target": ("Figure 6", "ESS held|FlatNCE|InfoNCE"),
    "fig-ess-schedule": ("Algorithm S1", "0.2 held|0.1 to 0.4"),
    "fig-learning-rate": ("Section 4", "126 neg.|254 neg.|191 neg.|575 neg.|by batch|by queue"),
    "fig-holder": ("Proposition 3.7", "Hölder|FlatNCE"),
    "table-1": ("Table 1", "DV|NWJ|InfoNCE|FlatNCE|SMILE|16|64|2 nats"),
    "table-linear": ("Tables 2 and S3", "InfoNCE|FlatNCE"),
    "table-transfer": ("Tables 3 and S2", "InfoNCE|FlatNCE|digits"),
    "table-semi": ("Table S4", "Supervised|InfoNCE|FlatNCE|5%|20%"),
    "table-cost": ("Table S1", "MoCo|SimCLR|CLIP"),
    "primal-dual": ("Appendix", "InfoNCE|FlatNCE|u-head|second critic|joint, K = 1|nats"),
}
WITHOUT_RUNS = ("table-cost", "table-1", "primal-dual")  # of `flatnce train`
PROMISED = set("recipe paper claim scale seeds environment runs rows words printed notes".split())


@pytest.fixture(scope="module", autouse=True)
def _same_config_once(tmp_path_factory):
    """Train every config once: another run of the same config is a copy of the first."""
    place, real, known = tmp_path_factory.mktemp("trained"), engine.train, {}

    def train(config, directory, **options):
        key = json.dumps(config.plain(), sort_keys=True, default=str)
        if key not in known or options["replace"]:
            outcome = real(config, directory, **options)
            known.setdefault(key, shutil.copytree(directory, tempfile.mkdtemp(dir=place) + "/run"))
            return outcome
        shutil.copytree(known[key], directory)
        return Outcome(Path(directory), True, read_run(directory).results["step"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "train", train)
        yield


@pytest.fixture(scope="module")
def smoked(tmp_path_factory):
    """Runs an experiment at smoke scale, each once; tests that change it take a copy."""
    place = tmp_path_factory.mktemp("smoked")

    def run_once(name: str) -> Path:
        out = place / name
        return out if out.exists() else reproduce(name, Setting("smoke"), out)

    return run_once


@pytest.mark.parametrize("name", EXPERIMENTS)
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
    assert ("centre square" in html) == (EXPERIMENTS[name].base == "imagenet")
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.S)]
    assert len(drawn) == len(results["pictures"])
    said = {text.text for svg in drawn for text in svg.iter("text")}
    assert said >= set(IN_THE_PAPER[name][1].split("|"))
    if results["runs"]:
        assert "nothing about the paper" in html


def test_the_list_names_every_figure_and_table(capsys):
    papers = {name: paper for name, (paper, _) in IN_THE_PAPER.items()}
    assert command.run(["--list"]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
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
        (["fig-mi", "--epoch", "5"], "fig-mi does not read --epoch; leave it out"),
        (["table-semi", "--imagenet", "./imagenet"], "scale paper"),
        (["fig-ess-target", "--epoch", "0"], "epoch=0"),
        (["fig-mi", "--seeds", "1", "1"], "a seed twice"),
        (["fig-ess-target", "--epoch", "500"], "at most 1 (--epoch)"),
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


# Going on, and what may not be mixed.


@pytest.fixture(scope="module")
def trained_twice(tmp_path_factory) -> Path:
    """Figure 5 from two seeds, trained once; tests that change it take a copy."""
    out = tmp_path_factory.mktemp("reproduce") / "fig-ess"
    return reproduce("fig-ess", Setting("smoke", (0, 1)), out)


@pytest.fixture
def copy(trained_twice, tmp_path) -> Path:
    return Path(shutil.copytree(trained_twice, tmp_path / "copy"))


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """Names of runs that are trained or resumed from now on."""
    names: list[str] = []
    for how in ("train", "resume"):
        real = getattr(engine, how)

        def spy(*arguments, real=real, how=how, **options):
            names.append(f"{how} {Path(arguments[-1]).name}")
            return real(*arguments, **options)

        monkeypatch.setattr(engine, how, spy)
    return names


def test_another_seed_trains_only_its_own_runs(copy, trained):
    reproduce("fig-ess", Setting("smoke", (0, 1, 2)), copy)
    assert trained == ["train objective-infonce-seed-2", "train objective-flatnce-seed-2"]
    (_, flatnce) = read_run(copy).results["rows"]
    assert {cell["n"] for cell in flatnce["measures"].values()} == {3}


@pytest.mark.parametrize("how", ["resume", "train"])
def test_an_unfinished_run_is_resumed_from_its_checkpoint(copy, trained, how):
    run = copy / "runs" / "objective-flatnce-seed-1"
    before = read_run(copy).results["rows"]
    (run / "results.json").unlink()
    if how == "train":
        shutil.rmtree(run / "checkpoints")
    reproduce("fig-ess", Setting("smoke", (0, 1)), copy)
    assert trained == [f"{how} objective-flatnce-seed-1"]
    assert read_run(copy).results["rows"] == before


def test_an_interrupted_experiment_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    real, calls = engine.train, []

    def train_once(config, directory, **options):
        calls.append(directory)
        if len(calls) == 1:
            return real(config, directory, **options)
        return Outcome(Path(directory), False, 3)

    monkeypatch.setattr(engine, "train", train_once)
    with pytest.raises(KeyboardInterrupt):
        command.run(["fig-ess", "--out", str(tmp_path / "out")])
    assert "the same command continues" in capsys.readouterr().err
    assert read_run(tmp_path / "out" / "runs" / "objective-infonce-seed-0").results


@pytest.mark.parametrize(
    "name, setting, words",
    [
        ("fig-mi", Setting("smoke"), r"holds another reproduce run \(recipe fig-ess.*another"),
        ("fig-ess", Setting("small"), "holds another reproduce run"),
        ("fig-ess", Setting("smoke", (0, 1), rate=0.123), "was trained with another rate.*--out"),
    ],
)
def test_another_experiment_scale_or_setting_may_not_use_the_folder(copy, name, setting, words):
    with pytest.raises(ValueError, match=words):
        reproduce(name, setting, copy)


def test_results_hold_the_numbers_of_each_seed(trained_twice):
    cell = read_run(trained_twice).results["rows"][1]["measures"]["ESS of the negatives, last"]
    runs = [trained_twice / "runs" / f"objective-flatnce-seed-{seed}" for seed in (0, 1)]
    ends = [read_run(run).results["last"]["ess"] for run in runs]
    assert cell["values"] == pytest.approx(ends) and cell["n"] == 2
    assert cell["mean"] == pytest.approx(sum(ends) / 2)
    assert cell["sd"] == pytest.approx(abs(ends[0] - ends[1]) / math.sqrt(2))


@pytest.fixture
def flatnce_run(trained_twice, tmp_path) -> TrainingRun:
    """A copy of a trained run, as an experiment sees it."""
    folder = shutil.copytree(trained_twice / "runs" / "objective-flatnce-seed-0", tmp_path / "run")
    (plan, *_) = plan_runs(EXPERIMENTS["fig-ess"], Setting())
    return replace(plan, log=read_run(folder))


def test_accuracies_are_evaluated_once_per_question(flatnce_run, monkeypatch):
    few, many = (evaluations(flatnce_run, "knn", neighbours=(k,))[0] for k in (5, 50))
    assert (few["protocol"]["neighbours"], many["protocol"]["neighbours"]) == (5, 50)
    assert len(read_run(flatnce_run.log.directory).results["evaluations"]) == 2
    monkeypatch.setattr(bench, "evaluate", lambda *_: pytest.fail("evaluated again"))
    assert evaluations(flatnce_run, "knn", neighbours=(5,)) == [json.loads(json.dumps(few))]
    assert 0.5 < few["top1"] <= 1


def test_protocols_that_are_asked_for_together_share_their_features(flatnce_run, monkeypatch):
    made, extract = [], bench.extract
    monkeypatch.setattr(bench, "extract", lambda *a, **b: made.append(a) or extract(*a, **b))
    both = evaluations(flatnce_run, ("linear-short", "linear-long"), epochs=1, rates=(1.0,))
    assert [one["name"] for one in both] == ["linear-short", "linear-long"]
    assert len(made) == 2  # training and test images


def test_a_run_that_diverges_is_a_gap_and_is_not_tried_again(tmp_path, monkeypatch):
    real = engine.train

    def diverge(config, directory, **options):
        if config.loss.objective == "infonce":
            RunLog(directory, kind="train", config=config)
            raise TrainingFailed("training stopped: the loss is not a number")
        return real(config, directory, **options)

    monkeypatch.setattr(engine, "train", diverge)
    out = reproduce("fig-ess", Setting("smoke"), tmp_path / "out")
    infonce, flatnce = (row["measures"] for row in read_run(out).results["rows"])
    assert {cell["n"] for cell in infonce.values()} == {0}
    assert {cell["n"] for cell in flatnce.values()} == {1}
    monkeypatch.setattr(engine, "train", lambda *_, **__: pytest.fail("trained again"))
    assert reproduce("fig-ess", Setting("smoke"), out)


@pytest.mark.parametrize("which", ["the first", "all"])
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in WITHOUT_RUNS])
def test_every_experiment_survives_runs_that_diverged(name, which, smoked, tmp_path, monkeypatch):
    out = shutil.copytree(smoked(name), tmp_path / "out")
    runs = [run["name"] for run in read_run(out).results["runs"]]
    bad = runs[:1] if which == "the first" else runs
    with (out / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for run in bad:
            line = {"kind": "diverged", "run": run, "failure": "the loss is not a number"}
            file.write(json.dumps(line) + "\n")
            # As training leaves it that stops at once: no result, no checkpoint to read.
            (out / "runs" / run / "results.json").unlink()
            shutil.rmtree(out / "runs" / run / "checkpoints")
            (out / "runs" / run / "metrics.jsonl").write_text("")
    for how in ("train", "resume"):
        monkeypatch.setattr(engine, how, lambda *_, **__: pytest.fail("trained again"))
    html = reproduce_page(reproduce(name, Setting("smoke"), out)).read_text(encoding="utf-8")
    results = read_run(out).results
    assert [run["name"] for run in results["runs"] if run["failure"]] == bad
    assert html.count("the loss is not a number") == len(bad)
    if which == "all":
        cells = [cell for row in results["rows"] for cell in row["measures"].values()]
        assert all(cell["mean"] is None for cell in cells)
        assert results["pictures"] == []


def test_what_is_known_of_a_removed_run_is_forgotten(copy, trained):
    name = "objective-flatnce-seed-1"
    with (copy / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "diverged", "run": name, "failure": "at rate 3"}) + "\n")
    shutil.rmtree(copy / "runs" / name)
    for _ in range(2):
        reproduce("fig-ess", Setting("smoke", (0, 1)), copy)
        assert trained == [f"train {name}"]
    assert not any(run["failure"] for run in read_run(copy).results["runs"])


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


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_which_options_change_it(name, all_sets):
    experiment = EXPERIMENTS[name]
    usual = plan_runs(experiment, Setting("paper", imagenet="./here"))
    changed = plan_runs(experiment, Setting("paper", imagenet="./here", rate=0.1234))
    assert ("rate" in experiment.options) == (usual != changed)
    if "imagenet" in experiment.options:
        assert {one.config.data.data for one in usual} == {"./here"}
    else:
        assert usual == plan_runs(experiment, Setting("paper"))


def test_with_a_queue_nothing_but_the_number_of_negatives_differs(smoked):
    plan = plan_runs(EXPERIMENTS["fig-learning-rate"], Setting("smoke"))
    queued = [one.config for one in plan if one.config.model.queue]
    alike = {one.override(queue=128, rate=0.1) for one in queued}
    assert len(alike) == 1 and len({one.model.queue for one in queued}) == 2
    configs = {one.name: one.config for one in plan}
    out = smoked("fig-learning-rate")
    for run in read_run(out).results["runs"]:
        logged = read_run(out / run["directory"]).results["last"]["negatives"]
        assert logged == negatives_of(configs[run["name"]])


def test_the_command_says_first_how_much_there_is_to_do(copy, tmp_path, capsys):
    plan = plan_runs(EXPERIMENTS["fig-ess"], Setting("smoke", (0, 1, 2)))
    work = "6 runs, {} of them to be trained: {} epochs in all"
    assert amount_of_work(plan, tmp_path) == work.format(6, 6)
    assert amount_of_work(plan, copy) == work.format(2, 2)
    assert command.run(["fig-ess", "--seeds", "0", "1", "--out", str(copy)]) == 0
    assert capsys.readouterr().out.startswith("4 runs, 0 of them to be trained")


def test_transfer_without_any_set_to_transfer_to_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"none of the sets.*flatnce data cifar100"):
        reproduce("table-transfer", Setting("small"), tmp_path / "out")
