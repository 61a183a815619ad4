"""``--devices N``: the same command in N processes of torchrun."""

import subprocess
import sys

import torch

__all__ = ["launch"]

RESTARTS = 3


def launch(devices: int, command: str, arguments: list[str]) -> int:
    """Start torchrun on this machine and return its exit code.

    A process that dies is replaced, with all others, up to three times; the run then goes on from
    its last checkpoint.

    Arguments:
        devices: How many processes, each on a GPU of its own where there are any.
        command: Of flatnce.
        arguments: Of that command.
    """
    there = torch.cuda.device_count()
    if there and devices > there:
        raise ValueError(
            f"--devices {devices} but this machine has {there} GPUs; use at most that"
        )
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    started += [f"--nproc-per-node={devices}", f"--max-restarts={RESTARTS}"]
    started += ["-m", "flatnce", command, *arguments]
    return subprocess.call(started)
