"""The files for a cluster, with stand-ins of Slurm's commands: two launchers on this machine."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flatnce.pretrain.runs.log import read_run
from paths import ROOT

CLUSTER = ROOT / "examples" / "cluster"
QUICK = "--epochs 1 --batch-size 96 --log-every 2 --watch-every 0 --pool 64 --no-tensorboard"
QUICK += " --rate 0.05 --device cpu --evaluate"
# One process per node, as srun starts them; the second node waits for nobody.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
for node in $(seq "$SLURM_NNODES"); do "$@" > "$PLACE/node-$node.log" 2>&1 & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
"""
# More lines than a pipe holds, so that a reader that stops at the first one is an error.
SCONTROL = """#!/usr/bin/env bash
[[ "$*" == "show hostnames $SLURM_JOB_NODELIST" ]] && echo localhost && seq -f 'node-%g' 20000
"""


@pytest.fixture
def slurm(tmp_path):
    """An environment in which Slurm's commands and those of this Python are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name, module in (("torchrun", "torch.distributed.run"), ("flatnce", "flatnce")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        **os.environ,
        **{"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
        **{"PYTHONPATH": str(ROOT / "src"), "PLACE": str(tmp_path), "PORT": str(port)},
        **{"SLURM_JOB_ID": "1234", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_NNODES": "2"},
        "FLATNCE_RUNS": str(tmp_path / "runs"),
    }


def submit(script, arguments, slurm):
    """What sbatch does: run the script in the folder of the submission."""
    command = [shutil.which("bash"), CLUSTER / script, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=slurm, capture_output=True, text=True, timeout=600
    )
    logs = "\n".join(p.read_text()[-3000:] for p in Path(slurm["PLACE"]).glob("node-*.log"))
    assert done.returncode == 0, done.stderr[-3000:] + logs
    return logs


@pytest.mark.parametrize("script", sorted(path.name for path in CLUSTER.iterdir()))
def test_the_scripts_are_valid_and_executable(script):
    path = CLUSTER / script
    assert os.access(path, os.X_OK)
    subprocess.run([shutil.which("bash"), "-n", path], check=True)
    text = path.read_text(encoding="utf-8")
    after = text.partition("\nset -euo pipefail\n")[2]
    # Slurm stops reading its options at the first command.
    assert after and not re.search("^#SBATCH", after, re.MULTILINE)


@pytest.mark.slow
def test_two_launchers_train_what_one_process_does_and_a_requeued_job_continues(slurm):
    runs = Path(slurm["FLATNCE_RUNS"])
    submit("train.sbatch", ["train", "digits", "--name", "two", *QUICK.split()], slurm)
    environment = read_run(runs / "two").environment
    assert environment["launch"] == "slurm-1234"
    alone = [sys.executable, "-m", "flatnce", "train", "digits", "--name", "one", *QUICK.split()]
    subprocess.run(alone, env=slurm, check=True, capture_output=True)
    curves = [
        torch.tensor([x["loss"] for x in read_run(runs / n).metrics if x["kind"] == "train"])
        for n in ("two", "one")
    ]
    torch.testing.assert_close(*curves, rtol=1e-4, atol=1e-4)  # as in test_torchrun.py
    submit("train.sbatch", ["train", "digits", "--name", "two", *QUICK.split()], slurm)
    assert read_run(runs / "two").results["step"] == 14


@pytest.mark.slow
def test_a_sweep_is_submitted_again_to_continue(slurm):
    node = {**slurm, "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    typed = [*"digits --name study --seed 0 1".split(), *QUICK.split()[:-1]]
    submit("sweep.sbatch", typed, node)
    assert "trained 0 of 2 runs" in submit("sweep.sbatch", typed, node)
    runs = Path(slurm["FLATNCE_RUNS"]) / "study"
    assert {read_run(run).results["step"] for run in runs.glob("flatnce-*")} == {14}
