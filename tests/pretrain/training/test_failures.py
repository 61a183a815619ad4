"""What stops a run says what and why, and loses nothing."""

import errno
import json
import shutil
from unittest.mock import Mock

import pytest
import torch

from flatnce.core.diagnostics import Interval
from flatnce.pretrain import TrainingFailed, load_encoder, preset, resume, train
from flatnce.pretrain.data import MissingData
from flatnce.pretrain.page.run import run_page
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.checkpoint import DamagedCheckpoint
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import RunStatus, run_status
from flatnce.pretrain.training.state import Training
from made_runs import assert_same_run, before_step, quick_config, spoil_weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    train(quick_config(), directory)
    return directory


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def spoil_gradient(training):
    last = training.learner.encoder.head[-1].bias
    last.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ValueError, match=r"^device='cuda:7': there is no GPU 7.* is 2; name anoth"
    ):
        choose_device("cuda:7")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(
        ValueError, match=r"^device='cuda': there is no GPU 2.* one process per GPU"
    ):
        choose_device("auto")


@pytest.mark.parametrize("log_every", [2, 10])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "spoil, words",
    [
        (spoil_weights, "the weights encoder.backbone.layers.0.weight are no longer finite"),
        (spoil_gradient, "the gradient is infinite or not a number since step 5.*of encoder.head"),
    ],
)
def test_a_nan_stops_the_run_names_the_term_and_keeps_the_last_good_checkpoint(
    spoil, words, late, log_every, tmp_path, monkeypatch
):
    if late:  # as on a GPU that is behind
        monkeypatch.setattr(Interval, "arrived", lambda self: False)
    before_step(monkeypatch, 5, spoil)
    with pytest.raises(TrainingFailed, match=words) as caught:
        train(quick_config(log_every=log_every), tmp_path / "run")
    kept = checkpoint.steps(tmp_path / "run" / "checkpoints")
    assert kept and kept[-1] <= 5
    assert f"checkpoint of step {kept[-1]} is good" in str(caught.value)
    weights = checkpoint.load(tmp_path / "run" / "checkpoints").weights
    assert all(torch.isfinite(w).all() for w in weights.values() if w.is_floating_point())
    monkeypatch.undo()
    assert resume(tmp_path / "run").finished


def test_a_failure_after_a_refusal_of_the_objective_gives_one_remedy(tmp_path):
    training = Training(quick_config(), tmp_path / "run", torch.device("cpu"))
    failure = training.failure(3, ValueError("row 0 is NaN; look for a division by zero"))
    assert "contrasted: row 0 is NaN; none is kept. Lower the learning rate" in str(failure)


def test_weights_that_are_finite_and_far_too_large_are_named(tmp_path):
    training = Training(quick_config(), tmp_path / "run", torch.device("cpu"))
    torch.nn.init.constant_(training.learner.encoder.head[-1].bias, -2e25)
    with pytest.raises(
        TrainingFailed, match=r"stopped: the weights \S+bias have grown to 2.0e\+25;"
    ):
        training.check()


def test_a_process_in_which_all_is_well_says_that_another_is_the_reason(tmp_path):
    training = Training(quick_config(), tmp_path / "run", torch.device("cpu"))
    said = str(training.failure(0))
    assert "stopped: a number of another process" in said and "precision" not in said
    training.learner.dtype = torch.bfloat16
    assert str(training.failure(1)).endswith("warm-up, or use precision=float32")
    untrained = str(training.failure(0))  # so the rate is not the cause
    assert untrained.endswith("Check temperature=0.1 and the images, or use precision=float32")


@pytest.mark.parametrize(
    "error, message",
    [
        (TrainingFailed("training stopped: why"), "training stopped: why"),
        (RuntimeError("a fault\nof many lines"), "RuntimeError: a fault"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_failure_is_kept_in_the_run_and_forgotten_once_it_goes_on(
    error, message, finished, tmp_path, monkeypatch, plain_charts
):
    # At 8, a step that is saved, so that the line is not of a later step than that.
    for go in (lambda: train(quick_config(), tmp_path / "run"), lambda: resume(tmp_path / "run")):
        before_step(monkeypatch, 8, error)
        with pytest.raises(type(error)):
            go()
        monkeypatch.undo()
        (line,) = (x for x in read_run(tmp_path / "run").metrics if x["kind"] == "failure")
        assert line["step"] == 8 and line["message"] == message
    found = run_status(tmp_path / "run")
    diverged = isinstance(error, TrainingFailed)
    assert found == RunStatus(False, 8, 14, failure=message, diverged=diverged)
    assert "failure" in (tmp_path / "run" / "metrics.jsonl").read_text()
    run_page(tmp_path / "run")  # readers take it in their stride
    resume(tmp_path / "run")
    assert run_status(tmp_path / "run") == RunStatus(True, 14, 14)

    assert_same_run(tmp_path / "run", finished)


def test_a_log_that_cannot_be_written_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    before_step(monkeypatch, 1, TrainingFailed("the reason"))
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(RunLog, "log", Mock(side_effect=full))
    with pytest.raises(TrainingFailed, match="the reason"):
        train(quick_config(), tmp_path / "run")


@pytest.mark.parametrize("log_every, steps", [(4, [2, 6, 10, 14]), (7, [7, 14]), (99, [14])])
def test_lines_are_counted_from_the_end_so_that_the_last_is_of_a_full_interval(
    log_every, steps, tmp_path
):
    train(quick_config(log_every=log_every), tmp_path / "run")
    run = read_run(tmp_path / "run")
    lines = [line for line in run.metrics if line["kind"] == "train"]
    assert [line["step"] for line in lines] == steps
    assert lines[-1]["steps"] == min(log_every, 14)  # means over as many
    # A first line of fewer steps gives no verdict.
    full = [step for step in steps if step >= min(log_every, 14)]
    assert next(line for line in run.metrics if line["kind"] == "verdict")["step"] == full[0]


def test_how_long_a_run_was_to_be_is_told_by_its_folder_where_it_can(tmp_path):
    config = preset("digits").override(epochs=10)
    log = RunLog(tmp_path / "run", kind="train", config=config)
    assert run_status(tmp_path / "run") == RunStatus(False, 0, None)
    log.log({"kind": "train", "step": 11, "epoch": 0.5})
    assert run_status(tmp_path / "run").steps == 220


@pytest.mark.parametrize(
    "settings, error, words",
    [
        ({"backbone": "resnet19"}, ValueError, "resnet19.*did you mean"),
        ({"data": "cifar1O"}, ValueError, "cifar1O.*did you mean"),
        ({"data": "cifar10"}, MissingData, "flatnce data cifar10"),
        ({"split": "valid"}, ValueError, "valid"),
        ({"device": "gpu"}, ValueError, "device='gpu'"),
        ({"device": "meta"}, ValueError, "device='meta'"),
        ({"head_out": 10**12}, ValueError, "head_out=1,000,000,000,000: .* needs"),
        ({"backbone": "vit_tiny_patch16_224"}, ValueError, "timm cannot build vit_tiny"),
        ({"crop_least": 2.0}, ValueError, "crop"),
        ({"batch_size": 5000}, ValueError, "batch_size=5000 is larger than the data set"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    settings, error, words, tmp_path, monkeypatch
):
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "empty"))
    with pytest.raises(error, match=words):
        train(quick_config(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


every_reader = pytest.mark.parametrize("use", [resume, load_encoder])


@every_reader
def test_a_damaged_checkpoint_is_named_with_the_one_before(use, run):
    path = sorted((run / "checkpoints").glob("step-*"))[-1] / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedCheckpoint, match="cut short or changed; use step 12 instead"):
        use(run)


@every_reader
def test_a_checkpoint_of_another_model_is_refused(use, run):
    header = json.loads((run / "config.json").read_text())
    header["config"]["model"]["head_out"] = 64
    (run / "config.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match=r"another model.*head_out is 128 there and 64 in config"):
        use(run)


@every_reader
def test_a_config_that_was_edited_to_another_data_set_is_refused(use, run):
    header = json.loads((run / "config.json").read_text())
    header["config"]["data"]["data"] = "cifar10"
    (run / "config.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match=r"data is 'digits' there and 'cifar10' in config"):
        use(run)


@pytest.mark.parametrize("use", [load_encoder, run_page])
def test_a_run_of_another_kind_is_refused(use, tmp_path):
    RunLog(tmp_path / "demo", kind="demo", config={})
    with pytest.raises(ValueError, match=r"holds a demo run; .*flatnce train"):
        use(tmp_path / "demo")


def test_an_encoder_comes_out_as_it_was_trained(finished):
    found = load_encoder(finished)
    assert found.step == 14 and found.size == 8 and found.channels == 1
    assert not found.encoder.training
    weights = checkpoint.load(finished / "checkpoints").weights
    for name, tensor in found.encoder.state_dict().items():
        assert torch.equal(tensor, weights[f"encoder.{name}"])
