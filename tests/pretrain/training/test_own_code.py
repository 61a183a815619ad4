"""Runs on a user's own network, data and augmentation."""

import json
import re
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import flatnce
import own_things
from flatnce.cli import main
from flatnce.own_code import TRUSTED, Named, is_own, own_object
from flatnce.pretrain import (
    OwnSet,
    TrainConfig,
    TrainingFailed,
    extract,
    load_encoder,
    resume,
    train,
    use_objects,
)
from flatnce.pretrain.data import ReadyViews
from flatnce.pretrain.evaluation import Bench, Options, evaluate_run
from flatnce.pretrain.exporting import export, load_exported
from flatnce.pretrain.page.inspection import inspect_encoder, read_inspection
from flatnce.pretrain.page.run import run_page
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training import saved
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.images import load_images, shared_images
from flatnce.pretrain.training.loop import Outcome
from flatnce.pretrain.training.named import print_results
from flatnce.pretrain.training.state import EAGER_STEPS, CudaGraphStep, Step, Training
from forked import Forked
from made_runs import assert_same_run, quick_config
from paths import ROOT

pytestmark = pytest.mark.usefixtures("plain_charts")

QUICK = {"epochs": 2, "batch_size": 24, "log_every": 1, "checkpoint_every": 0.5, "pool": 32}
QUICK |= {"watch_every": 1.0, "tensorboard": False, "device": "cpu", "workers": 0, "head_out": 8}
NAMES = {
    "backbone": "own_things:Network",
    "data": "own_things:Rows",
    "augment": "own_things:shake",
}
CPU = torch.device("cpu")


def quick(**settings):
    return TrainConfig().override(**{**QUICK, **settings})


# Names.


def test_an_object_goes_by_its_import_path_or_its_kind():
    def local(x):
        return x

    assert Named(own_things.shake) == "own_things:shake"
    assert Named(own_things.Network) == "own_things:Network"
    assert Named(own_things.Rows()) == "object:Rows"
    assert Named(local) == "object:local" and Named(lambda x: x) == "object:_lambda_"
    assert own_object("augment", Named(local)) is local
    assert all(map(is_own, ("a.b:c", "object:Rows", "a:B.c", "ü:Ä", Named(local))))
    assert not any(map(is_own, ("./a:b", "C:\\photos", "resnet18", "hf-hub:timm/vit", "a:b c")))


def test_a_name_is_imported_only_if_it_is_typed_given_to_train_or_trusted(
    tmp_path, monkeypatch, capsys
):
    train(quick(**NAMES), tmp_path / "run")
    export(tmp_path / "run", "torch", tmp_path / "export")
    asked = {
        "evaluate": ["--protocol", "knn"],
        "report": [],
        "export": ["--to", "torch", "--out", str(tmp_path / "again")],
    }
    monkeypatch.delenv(TRUSTED)
    for command, options in asked.items():
        assert main([command, str(tmp_path / "run"), *options]) == 2, command
        assert "--trust-code" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "run")]) == 0  # without what the network would show
    assert "--trust-code" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match="trust_code"):
        load_exported(tmp_path / "export")
    assert main(["evaluate", str(tmp_path / "run"), "--protocol", "knn", "--trust-code"]) == 0
    monkeypatch.delenv(TRUSTED)


def test_a_config_carries_objects_and_writes_their_names():
    rows = own_things.Rows()
    config = quick(data=rows, backbone=own_things.Network(), augment=own_things.shake)
    assert config.data.data.value is rows and config.override(seed=1).data.data.value is rows
    written = json.loads(json.dumps(config.plain()))
    assert written["data"]["data"] == "object:Rows" and type(config.flat()["data"]) is str
    assert TrainConfig.from_plain(written) == config

    def über(row):
        return row

    other = config.override(augment=über).plain()
    assert TrainConfig.from_plain(other).data.augment == "object:über"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": "no_such:thing"}, "data='no_such:thing' cannot be imported .*No module named"),
        ({"data": "own_things:nothing"}, "data='own_things:nothing' cannot be imported .*nothing"),
        ({"data": "os:system"}, "data='os:system' is in Python's standard library"),
        ({"data": "own_things:number"}, "own_things:number is a int, which has neither"),
        ({"data": "own_things:unlabelled"}, "own_things:unlabelled holds single inputs"),
        ({"augment": "own_things:number"}, "augment=3 cannot be called"),
        ({"augment": "shake"}, "augment='shake' does not name code of your own; give package"),
        ({"test_data": "cifar10"}, "test_data='cifar10' does not name code of your own"),
        (
            {"epoch_samples": 9},
            "epoch_samples=9 is for an iterable data set, which own_things:Rows is not; leave it",
        ),
        ({"data": "own_things:scalars"}, "own_things:scalars: item 0 is one number; give inputs"),
        (
            {"backbone": "own_things:frozen", "head_layers": 0},
            r"no parameter to train: .*requires_grad.*\(head_layers=2\)",
        ),
        ({"backbone": "own_things:no_network"}, "backbone='own_things:no_network' .*makes a int"),
        (
            {"backbone": "own_things:with_argument"},
            r"with_argument' .*\(b, 8\).*missing 1 required",
        ),
        ({"backbone": "own_things:maps"}, r"returns a Tensor of shape \(2, 2, 4\) for 2 inputs"),
        (
            {"backbone": "own_things:network", "pretrained": True},
            "pretrained=True is not for .*; load its weights",
        ),
        (
            {"backbone": "resnet18"},
            r"^backbone=resnet18 takes images; items of own_things:Rows have shape \(8,\): "
            r"give backbone=package.module:Name \(in Python also `encoder=net`\)$",
        ),
        (
            {"data": "object:Rows"},
            r"data='object:Rows' is an object of the program.*resume\(run, d",
        ),
    ],
)
def test_bad_names_are_refused_and_leave_no_run(settings, said, tmp_path):
    settings = {**NAMES, **settings}
    if settings["data"] != "own_things:Rows":
        settings["augment"] = None
    with pytest.raises(ValueError, match=said):
        train(quick(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Widths(nn.Module):
    """Uses attributes of its own that are called as those of a backbone."""

    def __init__(self):
        super().__init__()
        self.width, self.input_shape = 4, 8
        self.layer = nn.Linear(2, 16)

    def forward(self, rows):
        return self.layer(rows.reshape(-1, self.width, self.input_shape // 4)).mean(1)


def test_the_attributes_and_the_names_of_the_weights_of_a_users_network_stay(tmp_path):
    config = quick(data=own_things.Rows(), backbone=Widths(), augment=own_things.shake)
    train(config, tmp_path / "run")
    loaded = load_encoder(tmp_path / "run").encoder
    assert (loaded.width, loaded.backbone.width, loaded.backbone.input_shape) == (16, 4, 8)
    assert loaded.backbone.state_dict().keys() == Widths().state_dict().keys()
    assert loaded(torch.zeros(3, 8))[0].shape == (3, 16)
    assert flatnce.load(tmp_path / "run").embed(own_things.Rows().rows).shape == (96, 16)
    with pytest.raises(ValueError, match=r"item has shape \(7,\), and .* shape \(8,\)"):
        flatnce.load(tmp_path / "run").embed(torch.zeros(3, 7))


def test_a_micro_batch_that_a_norm_refuses_is_named_as_what_it_is(tmp_path):
    config = quick_config(queue=8, momentum_encoder=0.9, micro_batch=1)
    with pytest.raises(ValueError, match=r"^step 1, in epoch 1, failed: ValueError: Expected"):
        train(config, tmp_path / "run")


def test_settings_of_own_data_need_own_data(tmp_path):
    with pytest.raises(ValueError, match="augment='a:b' is for data of your own, not for data='d"):
        TrainConfig().override(augment="a:b")
    with pytest.raises(TypeError, match="'encodr'"):
        train(quick(**NAMES), tmp_path / "run", encodr=nn.Identity())


# After training.


@pytest.mark.parametrize("missing", ["rich", "jinja2", "safetensors"])
def test_calls_that_lack_an_extra_name_it_before_the_training(missing, tmp_path, monkeypatch):
    """Also with quiet, and not only when the page is written after the training."""
    monkeypatch.chdir(tmp_path)
    for name in [missing, *(one for one in sys.modules if one.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    remedy = rf"{missing}, which is not installed: pip install 'flatnce\[cli,report,train\]'$"
    own = {"data": own_things.Rows(), "encoder": own_things.Network(), **QUICK}
    for given in ({"data": "digits"}, own, {"data": "digits", "quiet": True}):
        with pytest.raises(ModuleNotFoundError, match=f"^flatnce.train needs {remedy}"):
            flatnce.train(**given)
    with pytest.raises(ModuleNotFoundError, match=f"^flatnce.resume needs {remedy}"):
        flatnce.resume("runs/none")
    assert not list(tmp_path.iterdir())


def test_what_is_said_to_be_next_can_be_done(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pairs = [(x, y) for x, y, _ in own_things.pairs("train")]
    flatnce.train(pairs, encoder=own_things.Network(), name="vectors", **QUICK)
    said = capsys.readouterr().out
    assert "next: flatnce.load('vectors').embed(inputs)\n" in said
    assert "use_objects('vectors', data=..., encoder=...)" in said
    assert "flatnce evaluate" not in said and "flatnce export" not in said
    assert read_run("runs/vectors").results["own_views"] is True
    assert flatnce.load("vectors").embed(torch.randn(5, 8)).shape == (5, 16)
    saved._objects.clear()  # as in another process
    flatnce.pretrain.use_objects("vectors", data=pairs, encoder=own_things.Network())
    assert flatnce.load("vectors").embed(torch.randn(5, 8)).shape == (5, 16)
    saved._objects.clear()
    assert main(["report", "vectors"]) == 0  # without the portrait
    said = " ".join(capsys.readouterr().out.split())
    assert "the encoder was not inspected: backbone='object:Network'" in said
    assert main(["report", "vectors", "--step", "0"]) == 2

    train(quick(**{**NAMES, "data": "own_things:pairs", "augment": None}), "runs/named")
    (tmp_path / "runs/named/results.json").write_text(
        json.dumps({**read_run("runs/named").results, "labelled": False, "evaluations": []})
    )
    print_results(Outcome(tmp_path / "runs/named", finished=True, step=8))
    *_, last = capsys.readouterr().out.splitlines()
    assert last.strip().startswith("flatnce export") and last.endswith("--to torch --trust-code")
    assert main(["evaluate", "named", "--protocol", "mi", "--trust-code"]) == 0  # the other one


class Broken(own_things.Rows):
    def __getitem__(self, number):
        return {17: None}[number] if number == 18 else super().__getitem__(number)


class Tired(nn.Linear):
    """Fails in its fourth forward pass in training."""

    taken = 0

    def forward(self, rows):
        self.taken += self.training
        if self.taken == 4:
            raise RuntimeError("too tired\nto go on")
        return super().forward(rows)


class BrokenStream(IterableDataset):
    def __iter__(self):
        yield own_things.Rows()[0]
        raise LookupError("no more")


def broken_function(split):
    raise KeyError(split)


def refuse(rows):
    raise ZeroDivisionError("refused")


@pytest.mark.parametrize(
    ("given", "said", "cause"),
    [
        ({"data": Broken()}, "object:Broken: item 18 cannot be used: KeyError: 18", KeyError),
        (
            {"encoder": Tired(8, 4)},
            "step 4, in epoch 1, failed: RuntimeError: too",
            RuntimeError,
        ),
        (
            {"encoder": nn.Linear(7, 4)},
            r"encoder='object:Linear' cannot be used with inputs of shape \(b, 8\): RuntimeError"
            r".*; it must take a batch of that shape in its forward$",
            RuntimeError,
        ),
        (
            {"encoder": lambda: nn.Linear(7, 4)},
            r"cannot be used with inputs of shape \(b, 8\): .*; it must take a batch of that",
            RuntimeError,
        ),
        (
            {"encoder": lambda: 7},
            r"TypeError: it makes a int; it must be a torch module, or a class or function that",
            TypeError,
        ),
        ({"augment": refuse}, "item 0 cannot be used: ZeroDivisionError", ZeroDivisionError),
        (
            {"augment": None, "batch_augment": refuse},
            r"batch_augment failed on a batch of shape \(1, 8\): Zero",
            ZeroDivisionError,
        ),
        ({"data": broken_function}, "data='.*:broken_function' failed for split='tr", KeyError),
        ({"data": BrokenStream()}, "first items cannot be read: LookupError: no", LookupError),
    ],
    ids=["data", "step", "encoder", "made", "maker", "augment", "batch", "function", "stream"],
)
def test_an_error_of_a_users_code_is_the_cause_of_one_that_says_where(
    given, said, cause, tmp_path
):
    objects = {"data": own_things.Rows(), "augment": own_things.shake, **given}
    objects.setdefault("encoder", own_things.Network())
    with pytest.raises(ValueError, match=said) as raised:
        train(quick(), tmp_path / "run", **objects)
    found = raised.value
    assert type(found.__cause__) is cause and found.__cause__.__context__ is None
    assert "\n" not in str(found) and len(str(found)) < 300


BAD = "item 37 gives NaN or infinite values"
PLAIN = {"backbone": own_things.plain, "head_layers": 0, "watch_every": 0.0}


def rows_with(value):
    rows = own_things.Rows()
    rows.rows[37, 2] = value
    return rows


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_item_that_is_not_finite_is_named(value, tmp_path):
    rows = rows_with(value)
    said = f"training stopped: object:Rows: {BAD} in the output of augment; the checkpoint of step"
    remedy = r"is good and is kept\. Correct the item or augment"
    with pytest.raises(TrainingFailed, match=rf"^{said} \d+ {remedy}$"):
        train(quick(data=rows, augment=own_things.shake, **PLAIN), tmp_path / "run")
    half = OwnSet(rows, name="rows", augment=own_things.shake).subset(range(30, 60))
    with pytest.raises(ValueError, match=rf"^rows: {BAD}; correct or remove the item$"):
        extract(own_things.plain(), half, size=1)
    half = replace(half, prepare=torch.abs)
    with pytest.raises(ValueError, match=rf"{BAD} in the output of prepare; correct the item or"):
        extract(own_things.plain(), half, size=1)


def test_an_item_of_the_test_data_that_is_not_finite_is_named(tmp_path):
    config = quick(data=own_things.Rows(), test_data=rows_with(torch.nan), **PLAIN)
    train(config.override(augment=own_things.shake), tmp_path / "run")
    with pytest.raises(ValueError, match=rf"^object:Rows: {BAD}; correct or remove the item$"):
        evaluate_run(tmp_path / "run", "knn", device="cpu")


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_item_that_is_not_finite_may_be_that_of_another_process(world_size, tmp_path):
    batch_size, rows = len(own_things.Rows()), rows_with(torch.nan)
    settings = {**PLAIN, "batch_size": batch_size, "precision": "bfloat16"}
    said = rf"^training stopped: object:list: {BAD}; .*\. Correct or remove the item$"
    data = [(row, row) for row, _ in rows]
    training = Training(quick(data=data, **settings), tmp_path / "run", CPU)
    loader = training.images.loader
    for rank in range(world_size):
        loader.batching = replace(loader.batching, rank=rank, world_size=world_size)
        with pytest.raises(TrainingFailed, match=said):
            raise training.failure(0)


def test_of_a_pair_that_is_not_finite_both_items_are_named(tmp_path):
    positives = [(number + 1) % own_things.COUNT for number in range(own_things.COUNT)]
    own = OwnSet(rows_with(torch.nan), positives=positives)
    config = quick(data=own, **{**PLAIN, "batch_size": len(own)})
    training = Training(config, tmp_path / "run", CPU)
    assert re.search("item 3[67] or its positive gives NaN", str(training.failure(0)))


def test_ids_belong_to_the_items_of_a_subset(tmp_path):
    ids = [number // 3 for number in range(own_things.COUNT)]
    numbers = torch.arange(own_things.COUNT).flip(0)[4:]
    own = OwnSet(own_things.Rows(), ids=ids, augment=own_things.shake).subset(numbers)
    training = Training(quick(data=own, **PLAIN), tmp_path / "run", CPU)
    batch, _ = next(training.batches())
    assert training.learner.ids is not None
    assert torch.equal(training.learner.ids[batch.indices], numbers[batch.indices] // 3)


def test_an_item_that_cannot_be_read_again_leaves_the_failure_as_it_is(tmp_path):
    own = OwnSet(rows_with(torch.nan), augment=Mock(side_effect=own_things.shake))
    training = Training(quick(data=own, **PLAIN), tmp_path / "run", CPU)
    own.augment.side_effect = LookupError
    said = "training stopped: .*; none is kept. Check temperature=0.1 and the images$"
    assert re.fullmatch(said, str(training.failure(0)))


def test_a_run_resumed_from_python_is_evaluated_and_has_a_page(tmp_path, monkeypatch, capsys):
    def stop(line):
        if line["kind"] == "train" and line["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.chdir(tmp_path)
    objects = {"data": own_things.Rows(), "encoder": own_things.Network()}
    objects["augment"] = lambda row: row + 0.1 * torch.randn(8)
    stopped = flatnce.train(**objects, name="rows", evaluate=["knn"], report=stop, **QUICK)
    assert not stopped.finished and not (tmp_path / "runs/rows/report.html").exists()
    saved._objects.clear()  # as in another process
    capsys.readouterr()
    with pytest.raises(ValueError, match="knn"):
        flatnce.resume("rows", evaluate=["knnn"], **objects)
    with pytest.raises(ValueError, match="holds a train run, which flatnce"):
        flatnce.train(**objects, name="rows", **QUICK)
    saved._objects.clear()
    assert main(["resume", "rows"]) == 2
    shown = capsys.readouterr()
    assert shown.out.strip() == "" and "`flatnce.resume(run, data=...)`" in shown.err
    assert main(["evaluate", "rows", "--trust-code"]) == 2
    assert "use_objects(run, encoder=...)`" in capsys.readouterr().err
    assert flatnce.resume("rows", **objects).finished  # evaluates as train was told
    said = capsys.readouterr().out
    assert said.startswith("the run continues from step 5 of 8\n")
    assert "epoch 2.0/2" in said and "knn, k = 20" in said and "next: flatnce.load" in said
    assert (tmp_path / "runs/rows/report.html").is_file()
    assert len(read_run("runs/rows").results["evaluations"]) == 2
    written = (tmp_path / "runs/rows/results.json").read_bytes()
    assert flatnce.resume("rows", **objects).finished  # says so, and does not evaluate again
    said = " ".join(capsys.readouterr().out.split())
    assert "runs/rows is finished, at step 8: nothing is left" in said
    assert "Its results are in runs/rows/results.json" in said and "knn, k = 20" in said
    assert (tmp_path / "runs/rows/results.json").read_bytes() == written
    flatnce.resume("rows", evaluate=["linear"], quiet=True, **objects)  # unless asked
    assert len(read_run("runs/rows").results["evaluations"]) == 3


# Training.


def resumed_after_a_stop(config, tmp_path, **objects):
    """A run that was stopped in its second epoch and continued, and one that was not."""
    train(config, tmp_path / "whole", **objects)

    def stop(line):
        if line["kind"] == "train" and line["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    train(config, tmp_path / "stopped", report=stop, **objects)
    saved._objects.clear()  # as in another process
    torch.manual_seed(99)
    resume(tmp_path / "stopped", **objects)
    return tmp_path / "whole", tmp_path / "stopped"


CASES = {
    "pairs": {**NAMES, "data": "own_things:pairs", "augment": None},
    "ids, batches": {
        **{**NAMES, "augment": None, "data": "own_things:grouped"},
        "batch_augment": "own_things:shake_all",
    },
    "stream": {**NAMES, "data": "own_things:Endless", "epoch_samples": 100, "queue": 48},
}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_continues_bit_for_bit(case, tmp_path, monkeypatch):
    monkeypatch.setattr("flatnce.pretrain.data.own_set.KEPT", 64)
    data = {"Endless": {"data": own_things.Endless()}}.get(
        CASES[case]["data"].partition(":")[2], {}
    )
    whole, stopped = resumed_after_a_stop(quick(**CASES[case]), tmp_path, **data)
    assert_same_run(whole, stopped)
    watched = [line for line in read_run(whole).metrics if line["kind"] == "watch"]
    assert len(watched) == 2 and watched[-1]["knn"] > 0.7
    assert read_run(whole).results["images"] == (100 if case == "stream" else 96)


def test_the_samples_of_an_epoch_are_those_of_the_stream_and_not_of_its_test_data(tmp_path):
    objects = {"data": own_things.Endless(), "test_data": own_things.Rows("test")}
    train(quick(**CASES["stream"], epochs=1), tmp_path / "run", **objects)
    found = evaluate_run(tmp_path / "run", ["knn", "mi"], device="cpu")
    assert [one["test_images"] for one in found] == [96] * len(found)


KILLED = """
import os, runpy, signal, sys
def report(line):
    if line["kind"] == "train" and line["step"] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
runpy.run_path(sys.argv[1])["main"](sys.argv[2], report=report, evaluate=())
"""


def test_the_example_with_own_data_is_killed_and_ends_as_if_it_were_not(tmp_path, monkeypatch):
    monkeypatch.setenv("FLATNCE_RUNS", str(tmp_path))
    torch.manual_seed(0)
    example = str(ROOT / "examples" / "own_data.py")
    ends = [("whole", -1, 0), *(("killed", step, -signal.SIGKILL) for step in (2, 12))]
    for name, step, code in [*ends, ("killed", -1, 0)]:
        done = Forked(example, name, step, code=KILLED).wait()
        assert done.returncode == code, done.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert read_run(tmp_path / "whole").results["watch"]["knn"] > 0.6


def test_ids_reach_the_objective_and_objects_are_not_changed(tmp_path, monkeypatch):
    monkeypatch.setenv(TRUSTED, "*")
    network = own_things.Network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    config = quick(**{**NAMES, "data": "own_things:grouped", "backbone": network})
    training = Training(config, tmp_path, CPU)
    assert isinstance(training.images.views, ReadyViews)
    batch = next(training.images.loader.epoch(0))
    z = torch.randn(2, len(batch.indices), 8)
    expected = training.learner.objective(z[0], z[1], ids=batch.indices // 4)
    assert torch.equal(training.learner.loss(z, batch.indices), expected)
    training.take_step(batch, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    found = estimate_run(config, CPU)
    assert found.images == 96 and found.activation_bytes > 0 and found.loss_bytes > 0


def test_two_runs_with_objects_of_one_kind_have_their_own_data(tmp_path):
    for shift in (0, 100):
        rows = [(x + shift, x + shift + 1) for x in own_things.unlabelled("train")]
        train(quick(epochs=1), tmp_path / str(shift), encoder=own_things.Network, data=rows)
    config, _ = saved.read_saved(tmp_path / "0")
    assert config.data.data.value[0][0].mean() < 50


def test_shared_images_are_not_those_of_other_objects_of_the_same_name():
    rows, first, second = own_things.Rows(), (lambda x: x), (lambda x: -x)
    base = TrainConfig().override(data=rows)
    configs = [base.override(augment=one).data for one in (first, second, first)]
    with shared_images():
        one, other, again = map(load_images, configs)
        assert one.augment is first and other.augment is second and again is one
        tests = [base.override(split="test", test_data=[*rows][:n]).data for n in (24, 32)]
        assert [len(load_images(data)) for data in tests] == [24, 32]


@pytest.mark.parametrize("asked, expected", [(None, 3), (0, 0)])
def test_the_workers_of_a_set_are_used_unless_the_run_says_otherwise(asked, expected):
    config = TrainConfig().override(data=OwnSet(own_things.Rows(), workers=3), workers=asked)
    assert load_images(config.data).workers == expected


# What comes after training.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with an augmentation, whose network and data are objects."""
    place = tmp_path_factory.mktemp("runs") / "own"
    train(
        quick(augment="own_things:shake", data=own_things.Rows()),
        place,
        encoder=own_things.Network(),
    )
    return place


def test_a_run_on_objects_is_evaluated_inspected_and_shown(run, capsys):
    found = {one["name"]: one for one in evaluate_run(run, ["knn", "linear", "mi"], device="cpu")}
    assert found["linear"]["top1"] > 0.9 and found["mi"]["pool_mi"] > 0
    assert found["knn"]["protocol"]["test"]["split"] == "held out of train"
    assert found["knn"]["protocol"]["images"] == {"prepared_by": "object:Rows"}
    inspect_encoder(run)
    assert read_inspection(run)["neighbours"][0]["picture"] is None
    assert "object:Rows" in run_page(run).read_text()
    assert main(["doctor", str(run)]) in (0, 1)
    assert "fine-tunes" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="protocol='finetune' fine-tunes on crops of images"):
        evaluate_run(run, "finetune")
    with pytest.raises(ValueError, match="resize=9 is for images that flatnce prepares, and obj"):
        evaluate_run(run, "knn", options=Options(resize=9))


def test_objects_must_be_given_again_in_another_process(run, monkeypatch):
    kept = dict(saved._objects)
    saved._objects.clear()
    with pytest.raises(
        ValueError, match=r"flatnce.resume\(run, encoder=\.\.\.\)`, or before any other call `fl"
    ):
        load_encoder(run)
    with pytest.raises(
        ValueError, match=r"encoder is object:Linear, and .* was trained with object:N"
    ):
        use_objects(run, encoder=nn.Linear(8, 8))
    use_objects(run, encoder=own_things.Network(), data=own_things.Rows())
    loaded = load_encoder(run)
    assert loaded.encoder.width == 16 and loaded.normalisation[0] == (0.0,) * 8
    saved._objects.update(kept)


def test_embed_takes_the_inputs_that_evaluation_takes(run, tmp_path):
    rows = own_things.Rows()
    bench = Bench(load_encoder(run))
    expected = bench.extract(bench._read(bench.data, "train")).features
    encoder = flatnce.load(run, device="cpu")
    for given in (rows.rows, rows.rows.double().numpy(), list(rows.rows)):
        torch.testing.assert_close(encoder.embed(given), expected, rtol=0, atol=1e-6)
    for bad, said in ((rows.rows[0].numpy(), r"\(1,\)"), (rows.rows[:, :7], r"\(7,\)")):
        with pytest.raises(
            ValueError, match=rf"a prepared item has shape {said}, and .* shape \(8,\)"
        ):
            encoder.embed(bad)
    with pytest.raises(ValueError, match=r"^images: an item has type int; an input is a tensor"):
        encoder.embed([1, 2])
    broken = replace(encoder, prepare=lambda row: row.nothing)
    with pytest.raises(ValueError, match=r"^prepare failed on a Tensor: AttributeError.*line \d+"):
        broken.embed(rows.rows)


def larger(image):
    """A view of another size than the image, which evaluation must not be resized to."""
    return nn.functional.interpolate(image[None].float(), (6, 6))[0] / 255


def test_embed_does_not_resize_where_evaluation_does_not(tmp_path):
    images = [torch.randint(256, (1, 9, 9), dtype=torch.uint8) for _ in range(24)]
    objects = {"data": images, "augment": larger}
    train(quick(epochs=1, backbone="small", batch_size=12), tmp_path / "run", **objects)
    backbone = load_encoder(tmp_path / "run").encoder.backbone
    expected = backbone(torch.stack(images) / 255)
    encoder = flatnce.load(tmp_path / "run", device="cpu")
    for given in (images, torch.stack(images), torch.stack(images, 0).permute(0, 2, 3, 1).numpy()):
        torch.testing.assert_close(encoder.embed(given), expected, rtol=0, atol=1e-6)


def test_evaluation_does_not_need_the_augmentation_and_code_of_a_program_may_be_imported(
    tmp_path, monkeypatch
):
    def shake(row):
        return own_things.shake(row)

    train(quick(**NAMES | {"augment": None}), tmp_path / "run", augment=shake)
    assert read_run(tmp_path / "run").config["data"]["augment"] == "object:shake"
    monkeypatch.setattr(saved, "_objects", {})  # as in another process
    found = evaluate_run(tmp_path / "run", ["knn", "linear"], device="cpu")
    assert found[-1]["top1"] > 0.9
    with pytest.raises(ValueError, match="augment='object:shake' is an object of the program"):
        evaluate_run(tmp_path / "run", "mi", device="cpu")
    with pytest.raises(ValueError, match=r"augment is own_things:shake_all, and .*object:shake"):
        use_objects(tmp_path / "run", augment=own_things.shake_all)
    use_objects(tmp_path / "run", augment=own_things.shake)
    assert evaluate_run(tmp_path / "run", "mi", device="cpu")


def test_inputs_that_are_not_square_are_exported_and_loaded_in_their_shape(tmp_path):
    pairs = [(torch.rand(3, 8, 12), torch.rand(3, 8, 12)) for _ in range(64)]
    train(quick(data=pairs, backbone="small", watch_every=0.0), tmp_path / "run")
    folder = export(tmp_path / "run", "torch", tmp_path / "out")
    described = json.loads((folder / "config.json").read_text())["flatnce"]
    assert described["input"]["shape"] == [3, 8, 12]
    assert flatnce.load(tmp_path / "run").shape == (3, 8, 12)


def test_an_encoder_by_its_import_path_is_exported_and_one_that_is_an_object_is_not(run, tmp_path):
    train(quick(**NAMES, epochs=1, warmup_epochs=1.0), tmp_path / "named")
    folder = export(tmp_path / "named", "torch", tmp_path / "out")
    rows, card = torch.randn(5, 8), (folder / "README.md").read_text()
    assert 'trust_code("own_things:Network")' in card and "warm-up of 1 epoch, cosine" in card
    assert "```\n\nThe code of the network is not in this folder: its module must be imp" in card
    assert torch.equal(
        load_exported(folder)(rows), load_encoder(tmp_path / "named").encoder.eval().backbone(rows)
    )
    with pytest.raises(ValueError, match="to='torch' is not possible for an object"):
        export(run, "torch", tmp_path / "other")


# The command line.


def test_the_commands_take_import_paths_in_the_working_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "tests" / "own_things.py").read_text()
    (tmp_path / "my_things.py").write_text(text)
    typed = "--backbone my_things:Network --augment my_things:shake --name mine --epochs 1"
    more = "--batch-size 24 --pool 32 --workers 0 --no-tensorboard --device cpu"
    assert main(["train", "my_things:Rows", *typed.split(), *more.split()]) == 0
    shown = capsys.readouterr().out
    assert "linear" in shown and "my_things" in shown
    assert main(["train", "--data", "my_things:Rows", "--dry-run", *typed.split()[:4]]) == 0
    assert "96 samples" in capsys.readouterr().out
    assert main(["evaluate", "mine", "--protocol", "knn"]) == 0
    assert main(["train", "my_things:Rowz"]) == 2
    assert "'my_things:Rowz' cannot be imported" in capsys.readouterr().err
    for more in ((), ("--dry-run",)):
        assert main(["train", "my_things:Rows", *typed.split()[2:4], "--name", "two", *more]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "have shape (8,): give --backbone package.module:Name (in Python also" in said
        assert not (tmp_path / "runs" / "two").exists()
    assert import_module("my_things")


def test_a_step_that_cannot_be_captured_runs_eagerly_with_one_note(monkeypatch):
    """As on a GPU whose capture is refused, for example because a network reads a number."""
    stream = Mock(device_index=0)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator := Mock(),))
    monkeypatch.setattr(torch.cuda, "set_stream", (chosen := Mock()))
    for name in ("current_stream", "default_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def refuse(*_, **__):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    notes, taken = [], Mock(spec=Step, optimizer=Mock())
    step = CudaGraphStep(taken, notes.append)
    for number in range(EAGER_STEPS + 3):
        step(torch.full((2, 3), float(number)), torch.arange(2), torch.tensor(0))
    assert taken.call_count == EAGER_STEPS + 3 and taken.call_args.args[0][0, 0] == EAGER_STEPS + 2
    (note,) = notes
    assert "runs eagerly: operation not permitted when stream is capturing" in note
    assert "more" not in note
    chosen.assert_called_once_with(stream)
    generator.graphsafe_set_state.assert_called_once_with(generator.clone_state())


class Reading(own_things.Network):
    """Reads a number from the device in every call, and draws for its dropout."""

    def forward(self, rows):
        return super().forward(rows) * (1.0 + 0.0 * rows.mean().item())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("network", [own_things.Network, Reading])
def test_an_own_run_on_a_gpu_is_captured_unless_the_network_reads_a_number(network, tmp_path):
    lines = []
    settings = {**NAMES, "backbone": network, "device": "cuda", "epochs": 4}
    train(quick(**settings), tmp_path / "run", report=lines.append)
    notes = [line["note"] for line in lines if line["kind"] == "note"]
    assert [("runs eagerly" in note) for note in notes] == ([True] if network is Reading else [])
    results = read_run(tmp_path / "run").results
    assert results["step"] == 16 and results["watch"]["knn"] > 0.7
