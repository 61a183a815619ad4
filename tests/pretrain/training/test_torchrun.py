"""Several processes by torchrun: the same run as one process, and one that survives a death."""

import json
import os
import subprocess
import sys

import pytest
import torch

from flatnce.pretrain import resume, train
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import read_run
from forked import Forked
from made_runs import assert_same_run, quick_config

WORKER = """
import json, os, signal, sys
import torch
import flatnce.pretrain as t

torch.cuda.stream = None  # a run on the CPU must not start CUDA

def work(directory, settings, victim, more):
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_life and os.environ["RANK"] == "1" and victim:
        from flatnce.pretrain.training.state import Training
        take = Training.take_step
        def fatal(self, batch, epoch):
            if self.step == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            take(self, batch, epoch)
        Training.take_step = fatal
    config = t.TrainConfig.from_plain(settings)
    t.train(config, directory)
    for number in range(more):  # a script may train more than once
        t.train(config.override(seed=number + 1), f"{directory}-{number}")

given = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if "RANK" in os.environ:
    work(*given)
else:  # what torchrun calls once it has read its command line
    import warnings
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    warnings.resetwarnings()  # torchrun's processes bear the warnings of torch
    meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "start_method": "fork"}
    launch = LaunchConfig(1, 1, 2, max_restarts=int(sys.argv[5]), run_id=sys.argv[1], **meeting)
    elastic_launch(launch, work)(*given)
"""
SHORT = {"log_every": 1, "watch_every": 1.0}


def elastic(config, directory, restarts=0, victim=0, more=0):
    """Torchrun's processes and their replacement, without a fresh interpreter for each."""
    given = (directory, json.dumps(config.plain()), victim, more, restarts)
    done = Forked(*given, code=WORKER).wait()
    assert done.returncode == 0, done.stderr[-9000:]


def torchrun(tmp_path, config, directory):
    """The command, as it is typed."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    arguments = [str(script), str(directory), json.dumps(config.plain()), "0", "0"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-9000:]


def curve(directory):
    lines = read_run(directory).metrics
    return torch.tensor([line["loss"] for line in lines if line["kind"] == "train"])


def weights(directory):
    return checkpoint.load(directory / "checkpoints").weights


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 0.05},
        # Both read the data set of a user, and augment it in their workers.
        pytest.param(
            {"data": "own_things:Rows", "augment": "own_things:shake", "split": "train"}
            | {"backbone": "own_things:plain", "batch_size": 24, "epochs": 3, "rate": 0.05},
            marks=pytest.mark.slow,
        ),
        # Without batch norm, which would see other micro-batches.
        pytest.param(
            {"queue": 192, "momentum_encoder": 0.9, "learn_temperature": True, "micro_batch": 17}
            | {"backbone": "test_convnext", "view_size": 32, "head_norm": False, "rate": 0.05},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["simclr", "own data", "moco, cached, learned temperature"],
)
def test_two_processes_train_as_one_does(settings, tmp_path):
    # Sums are in another order in two processes, and rounding grows as training goes on: over
    # these 14 steps the losses stay within 1e-4 and the weights within 1e-3, relatively.
    config = quick_config(**SHORT, **settings)
    alone = config.override(micro_batch=None)
    train(alone, tmp_path / "one")
    if settings == {"rate": 0.05}:
        torchrun(tmp_path, config, tmp_path / "two")
    else:
        elastic(config, tmp_path / "two")
    torch.testing.assert_close(
        curve(tmp_path / "two"), curve(tmp_path / "one"), rtol=1e-4, atol=1e-4
    )
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        if tensor.is_floating_point():
            # Of a vector near zero (a bias that has hardly moved) only the size can be asked for.
            error = (two[name] - tensor).norm() / tensor.norm().clamp_min(1e-2)
            assert error < 1e-3, name


def test_a_process_that_dies_is_replaced_and_the_run_goes_on(tmp_path):
    # The line of step 9 begins before the checkpoint of step 8, and ends after it.
    config = quick_config(log_every=5, watch_every=1.0)
    elastic(config, tmp_path / "killed", restarts=1, victim=9)
    elastic(config, tmp_path / "whole", more=1)
    assert read_run(tmp_path / "whole-0").results is not None
    run = read_run(tmp_path / "killed")
    assert run.results is not None and run.results["step"] == 14
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    whole = curve(tmp_path / "whole")
    resume(tmp_path / "whole", step=8)  # by one process, with the mean of the sums of both
    torch.testing.assert_close(curve(tmp_path / "whole"), whole, rtol=1e-4, atol=1e-4)
