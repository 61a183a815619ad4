"""Processes that start in a moment: forked from one that has already imported torch and flatnce.

The shape checks that pytest hooks into flatnce are not in them. What is about the start itself
(imports, warnings while importing, what a module loads) needs ``run_python``.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

# Imported once in the process that the others are forked from.
READY = [
    "torch",
    "torch._dynamo",
    "flatnce.pretrain.commands.train",
    "flatnce.pretrain.commands.sweep",
    "flatnce.pretrain.evaluation.protocols",
    "flatnce.pretrain.page.run",
    "flatnce.pretrain.sweeping.display",
    "sklearn.datasets",
]


def _work(job: dict[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(job["heard"], name), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))
    if job["session"]:
        os.setsid()
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    torch.set_num_threads(job["threads"])
    # A shell that starts a process in the background lets it ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()
    warnings.simplefilter("error")
    sys.argv = ["-c", *job["arguments"]]
    if job["code"] is None:
        from flatnce.cli import main

        sys.exit(main(job["arguments"]))
    exec(compile(job["code"], "<forked>", "exec"), {"__name__": "__main__"})


class Forked:
    """A process that runs code, or the ``flatnce`` command where no code is given.

    With ``session`` it leads a session of its own, as a terminal's command does; its ``pid`` is
    then also that of the group a Ctrl-C goes to.
    """

    def __init__(self, *arguments: object, code: str | None = None, session: bool = False) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(READY)  # where it runs already, that is as it was
        self._heard = tempfile.TemporaryDirectory(prefix="flatnce-forked-")
        for name in ("out", "err"):  # there even if it dies before it can say anything
            Path(self._heard.name, name).touch()
        job = {
            "arguments": list(map(str, arguments)),
            "code": code,
            "session": session,
            "heard": self._heard.name,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "threads": torch.get_num_threads(),
        }
        self._process = context.Process(target=_work, args=(job,))
        self._process.start()
        self.pid = self._process.pid
        self.said = Path(self._heard.name, "out")  # what it has printed so far

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def is_running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess:
        """Its end; a process that takes longer is killed, and the test fails."""
        self._process.join(timeout)
        late = self._process.exitcode is None
        if late:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        out, err = (Path(self._heard.name, n).read_text() for n in ("out", "err"))
        self._heard.cleanup()
        assert not late, f"not done in {timeout} s\n{out}\n{err}"
        return subprocess.CompletedProcess([], code, out, err)


def wait_for_lines(path: Path, lines: int = 1) -> None:
    """Wait until another process has written so many lines to a file."""
    for _ in range(4500):
        if path.is_file() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} does not grow")


def run_forked(code: str, *arguments: object, timeout: float = 300) -> str:
    """As ``run_python``, in a process that starts with torch and flatnce imported."""
    done = Forked(*arguments, code=code).wait(timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
