"""Rules on histories, runs, and the installation."""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from flatnce.core.diagnostics import verdict_on
from flatnce.diagnose import Diagnosis, examine, installation, records
from flatnce.diagnose.findings import finding
from flatnce.diagnose.installation import examine_installation
from flatnce.diagnose.records import examine_run
from flatnce.diagnose.rules import findings_on
from flatnce.pretrain import preset, train
from flatnce.pretrain.runs.log import RunLog
from made_runs import quick_config

GOOD = {
    "mi": 3.0,
    "mi_ceiling": 4.84,
    "gain": 0.4,
    "ess": 0.3,
    "negatives": 126.0,
    "uniformity": -3.5,
    "effective_rank": 60.0,
    "temperature": 0.1,
}


def kinds_of(*changes, **options):
    history = [{"step": 10 * i, **GOOD, **change} for i, change in enumerate(changes)]
    return [finding.kind for finding in findings_on(history, **options)]


@pytest.mark.parametrize(
    "change, kinds",
    [
        ({}, []),
        ({"gain": 0.01}, ["saturated"]),
        ({"gain": 0.01, "ess": 0.001}, ["saturated", "temperature too low"]),
        ({"uniformity": -0.01, "ess": 0.99, "mi": 0.0}, ["collapsed"]),
        ({"ess": 0.99}, ["temperature too high"]),
        ({"ess": 0.99, "mi": 0.0}, ["temperature too high"]),
        ({"ess": 0.99, "mi": 0.0, "uniformity": -0.3}, ["not learning"]),
        ({"mi": 0.0}, ["not learning"]),
        ({"negatives": 6.0, "mi_ceiling": 1.95, "mi": 1.0, "ess": 0.3}, ["too few negatives"]),
        (
            {"negatives": 6.0, "mi_ceiling": 1.95, "mi": 1.0, "ess": 0.075, "ess_paper": 0.23},
            ["too few negatives"],
        ),
        ({"temperature": 0.001}, ["temperature too low"]),
        ({"temperature": 5.0}, ["temperature too high"]),
        ({"temperature": 0.01}, []),
        ({"temperature": float(torch.tensor(1.0))}, []),
        ({"temperature": 0.001, "ess": 0.99}, ["temperature too low"]),
        ({"temperature": 5.0, "ess": 0.001}, ["temperature too high"]),
        ({"negatives": 1.0, "ess": 1.0, "mi": 0.0}, ["not learning", "too few negatives"]),
        ({"effective_rank": 5.0}, ["dimensional collapse"]),
    ],
)
def test_a_record_has_the_findings_that_hold_and_not_their_consequences(change, kinds):
    assert kinds_of(change, available=128) == kinds
    if kinds == ["dimensional collapse"]:
        assert kinds_of(change) == []  # its width is not known


@pytest.mark.parametrize("idle, kinds", [(True, ["not learning"]), (False, [])])
def test_a_wrong_temperature_hides_idleness_unless_somebody_tried_a_better_one(idle, kinds):
    found = kinds_of({"ess": 0.99, "mi": 0.0}, idle=idle)
    assert found == [*kinds, "temperature too high"]


def test_a_folder_that_is_not_a_run_of_train_is_named(tmp_path):
    with pytest.raises(ValueError, match="is not a run directory"):
        examine(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json .*flatnce did not write"):
        examine(tmp_path)
    RunLog(tmp_path / "demo", kind="demo", config={})
    with pytest.raises(ValueError, match="holds a demo run"):
        examine(tmp_path / "demo")


@pytest.fixture
def logged(tmp_path):
    """A run with a log and no checkpoint."""

    def write(*lines, objective="infonce", **settings):
        config = preset("digits").override(objective=objective, batch_size=64, **settings)
        log = RunLog(tmp_path / "first", kind="train", config=config, replace=True)
        log.settle()
        for line in lines:
            log.log(line)
        return log.directory

    return write


def test_a_run_is_judged_by_its_log_and_lacking_embeddings_are_said(logged):
    line = {"kind": "train", "step": 100, "steps": 100, **GOOD, "gain": 0.01}
    watch = {"kind": "watch", "step": 100, "knn": 0.9}
    lost = {**line, "step": 40, "gain": math.nan}  # finite ones follow
    directory = logged(lost, {**line, "step": 50, "gain": 0.4}, line, watch)
    found = examine(directory)
    assert found.kinds == ("saturated",) and found.findings[0].since == 100
    assert "InfoNCE scales" in found.findings[0].evidence and found.numbers["knn"] == 0.9
    assert any("checkpoint" in reason for reason in found.unknown)
    with pytest.raises(ValueError, match=r"temperature=0\.5 is for embeddings"):
        examine(directory, temperature=0.5)
    with pytest.raises(ValueError, match="layout=two_tower is for embeddings"):
        examine(directory, layout="two_tower")


@pytest.mark.parametrize("objective, takes_queue", [("flatnce", True), ("dhel", False)])
def test_a_queue_is_advised_only_for_a_run_whose_layout_takes_one(logged, objective, takes_queue):
    line = {"kind": "train", "step": 100, "steps": 100, **GOOD, "gain": 0.01}
    lines = [line, {**line, "step": 200, "negatives": 6.0}]
    found = examine_run(logged(*lines, objective=objective), embeddings=False)
    assert found.kinds == ("saturated", "too few negatives")
    for one in found.findings:
        assert ("KeyQueue" in "".join(one.remedies)) == takes_queue
    said = verdict_on([{"step": 100, **GOOD, "gain": 0.01}], objective).message
    assert ("KeyQueue" in said) == takes_queue


def test_a_short_run_is_not_called_collapsed_and_a_head_is_advised_only_where_there_is_none(
    logged,
):
    line = {"kind": "train", "step": 50, "steps": 50, "epoch": 2.0, **GOOD, "effective_rank": 5.0}
    assert examine_run(logged(line), embeddings=False).verdict == "undecided"
    long = [{**line, "step": step} for step in (50, 100)]
    (found,) = examine_run(logged(*long), embeddings=False).findings
    assert found.kind == "dimensional collapse" and len(found.remedies) == 2
    assert "augmentation" in found.remedies[0] and "head" not in "".join(found.remedies)
    (found,) = findings_on([{"step": 1, **GOOD, "effective_rank": 5.0}], available=128)
    assert "projection head" in found.remedies[0]


def test_the_log_of_a_run_without_a_head_does_not_show_how_wide_its_embeddings_are(
    logged, monkeypatch
):
    line = {"kind": "train", "steps": 50, "epoch": 2.0, **GOOD, "effective_rank": 11.1}
    directory = logged(*({**line, "step": step} for step in (50, 100)), head_layers=0)
    assert examine_run(directory, embeddings=False).verdict == "healthy"
    seen = Diagnosis("views", (finding("dimensional collapse", rank=2.0, available=32),))
    monkeypatch.setattr(records, "_embedded", lambda *given: seen)
    (found,) = examine_run(directory).findings
    assert "2.0 of 32 directions" in found.evidence


def test_a_failed_run_says_why_first(logged):
    assert examine_run(logged(), embeddings=False).verdict == "undecided"
    failure = {"kind": "failure", "step": 7, "message": "the loss is nan", "diverged": True}
    found = examine_run(logged(failure), embeddings=False)
    assert found.kinds == ("failed",) and "nan" in found.findings[0].evidence


def test_a_run_that_ends_in_nan_has_failed(logged):
    good = {"kind": "train", "step": 1, "steps": 1, **GOOD}
    bad = [{**good, "step": step, "gain": math.nan, "mi": math.inf} for step in (2, 3)]
    found = examine_run(logged(good, *bad), embeddings=False)
    assert found.kinds == ("failed",) and found.findings[0].since == 2
    assert found.findings[0].evidence == "gain, mi not finite at the end"
    assert "gain" not in found.numbers and str(found)


def test_what_the_log_shows_is_not_said_to_be_found_by_embedding(logged, monkeypatch):
    seen = Diagnosis("views", (finding("dimensional collapse", rank=14.2, available=128),))
    monkeypatch.setattr(records, "_embedded", lambda *given: seen)
    line = {"kind": "train", "steps": 50, "epoch": 2.0, **GOOD}
    for rank, said in ((5.0, ("5.0 of 128", False)), (90.0, ("14.2 of 128", True))):
        lines = [{**line, "step": step, "effective_rank": rank} for step in (50, 100)]
        (found,) = examine_run(logged(*lines)).findings
        assert found.kind == "dimensional collapse" and found.evidence.count("of 128") == 1
        assert (said[0] in found.evidence, "found by embedding" in found.evidence) == (
            True,
            said[1],
        )


def test_a_trained_run_is_embedded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "IMAGES", 64)
    outcome = train(quick_config(), tmp_path / "run")
    found = examine_run(outcome.directory, device="cpu")
    seen = found.numbers["embeddings"]
    assert seen["samples"] == 64 and seen["copied_views"] == 0
    assert "false_negative_rate_by_label" not in seen  # labels of a run are for evaluation
    assert set(found.kinds) & {"duplicates", "identical views"} == set()


@pytest.fixture
def whole(monkeypatch):
    """An installation in which nothing is wrong, to be broken one way at a time."""
    versions = {"torch": "2.15.0", "torchvision": "0.30.0", "numpy": "2.4"}
    monkeypatch.setattr(installation, "installed_version", versions.get)
    monkeypatch.setattr(installation.metadata, "requires", lambda name: ["numpy", "torch==2.15.0"])
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"/usr/bin/{name}")
    card = SimpleNamespace(
        is_available=lambda: False,
    )
    fake = SimpleNamespace(
        version=SimpleNamespace(cuda=None), cuda=card, zeros=torch.zeros, __version__="2.15.0"
    )
    monkeypatch.setattr(installation, "import_module", lambda name: fake)
    monkeypatch.delenv("CXX", raising=False)
    return SimpleNamespace(versions=versions, torch=fake, card=card)


@pytest.mark.parametrize(
    "change, kind",
    [
        ({}, None),
        ({"torch": "2.15.0+cu130"}, None),
        ({"lightning": "2.6.1"}, None),
        ({"lightning": "2.6.3", "torch": "2.0"}, "lightning 2.6.3 is malicious"),
        ({"torch": None}, "torch is missing"),
        ({"torch": "2.9.1"}, "torch is too old"),
        ({"torch": "2.14.0"}, "torchvision does not fit torch"),
        ({"torch": "2.15.0+cpu"}, "torchvision does not fit torch"),  # which is built for CUDA
        ({"tensorboard": "2.19.0"}, "tensorboard is too old"),
        ({"lightly": "1.5.20"}, "lightly's DCLLoss is another loss"),
    ],
)
def test_a_version_that_does_not_fit_is_named_first(whole, change, kind):
    whole.versions.update(change)
    assert examine_installation().verdict == (kind or "healthy")


def test_a_cuda_build_without_a_driver_is_a_finding_only_beside_a_card(
    whole, tmp_path, monkeypatch
):
    whole.torch.version.cuda = "13.0"
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(installation.shutil, "which", lambda name: name if name == "g++" else None)
    for place in ("PCI", "DEVICES"):
        monkeypatch.setattr(installation, place, tmp_path)
    found = examine_installation()
    assert found.verdict == "healthy" and "no sign of an NVIDIA card" in found.unknown[0]
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "vendor").write_text("0x10de\n", encoding="utf-8")
    found = examine_installation()
    assert found.kinds == ("no GPU for this torch",) and not found.unknown


def test_a_card_without_triton_is_named(whole):
    whole.torch.version.cuda = "13.0"
    whole.card.is_available = lambda: True
    assert examine_installation().kinds == ("Triton is missing",)
    whole.versions["triton"] = "3.9"
    assert examine_installation().verdict == "healthy"


def test_a_missing_compiler_is_named(whole, monkeypatch):
    monkeypatch.setattr(installation.shutil, "which", lambda name: None)
    assert examine_installation().kinds == ("no C++ compiler",)


def test_a_numpy_that_does_not_fit_is_named(whole):
    whole.torch.zeros = Mock(side_effect=RuntimeError("Numpy is not available"))
    assert examine_installation().verdict == "numpy does not fit torch"


def test_this_installation_is_looked_at_for_real():
    found = examine_installation()
    assert found.numbers["torch"] == torch.__version__
    assert not {"torch is missing", "torch is broken"} & set(found.kinds)


def test_a_finished_run_whose_log_lost_its_end_is_said_to_have_lost_it(tmp_path):
    train(quick_config(watch_every=0.0), tmp_path / "run")
    whole = examine_run(tmp_path / "run", embeddings=False)
    assert not any("metrics.jsonl is missing" in said for said in whole.unknown)
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20], encoding="utf-8")
    cut = examine_run(tmp_path / "run", embeddings=False)
    assert any("a part of metrics.jsonl is missing" in said for said in cut.unknown)
