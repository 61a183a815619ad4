"""``--devices N``: the same command in N processes of torchrun, which behave as one.

Launcher and processes share a folder. A Ctrl-C reaches the launcher alone, which asks the
processes through it to stop; an error that a restart would only repeat is left in it by the first
process to meet it, and said once.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

import torch

from flatnce.pretrain.training.processes import LAUNCH_VARIABLE, LAUNCHER, STOP

__all__ = ["launch"]

RESTARTS = 3
FAILURE = "failure.json"


def launch(devices: int, command: str, arguments: list[str], device: str = "auto") -> int:
    """Start torchrun on this machine, wait for it, and return the exit code.

    A process that dies is replaced, with all others, up to three times; the run then goes on from
    its last checkpoint. The first Ctrl-C lets the run save and stop, the second ends it.
    """
    there = torch.cuda.device_count()
    if there and device != "cpu" and devices > there:
        raise ValueError(f"--devices {devices}: this machine has {there} GPUs; use at most that")
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    started += [f"--nproc-per-node={devices}", f"--max-restarts={RESTARTS}"]
    started += ["-m", "flatnce", command, *arguments]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // devices))
    with tempfile.TemporaryDirectory(prefix="flatnce-") as folder:
        (Path(folder) / LAUNCHER).write_text(str(os.getpid()))
        shared = {**os.environ, LAUNCH_VARIABLE: folder, "OMP_NUM_THREADS": threads}
        # A session of its own: a terminal's Ctrl-C would make torchrun kill what it started.
        process = subprocess.Popen(started, env=shared, start_new_session=True)
        interrupted = _wait(process, Path(folder))
        failure = Path(folder) / FAILURE
        if failure.is_file():
            said = json.loads(failure.read_text(encoding="utf-8"))
            print(said["message"], file=sys.stderr)
            return int(said["code"])
    return 130 if interrupted else process.returncode


def has_given_up() -> bool:
    """Whether a process of this launch met an error that a restart would repeat."""
    folder = os.environ.get(LAUNCH_VARIABLE)
    return folder is not None and (Path(folder) / FAILURE).is_file()


def give_up(message: str, code: int) -> None:
    """Leave an error for the launcher to say, if there is one and none was left before."""
    folder = os.environ.get(LAUNCH_VARIABLE)
    if folder is not None and not has_given_up():
        mine = Path(folder) / f"{FAILURE}.{os.getpid()}"
        mine.write_text(json.dumps({"message": message, "code": code}), encoding="utf-8")
        os.replace(mine, Path(folder) / FAILURE)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait for the processes, passing a request to stop on; whether there was one."""
    asked = 0

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            (folder / STOP).touch()
        else:
            process.terminate()

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return asked > 0
