"""``--devices N``: run the same command in N processes of torchrun.

Launcher and processes share a folder. Ctrl-C reaches only the launcher, which asks the processes
through the folder to stop. A process that meets an error that a restart would repeat leaves it in
the folder, and the launcher prints it once.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from flatnce.files import replace_text

__all__ = ["launch", "stop_requested"]

VARIABLE = "FLATNCE_LAUNCH"  # names the shared folder
# Its files: the launcher's process id, a request to stop, an error.
LAUNCHER, STOP, FAILURE = "launcher", "stop", "failure.json"


def launch(devices: int, command: str, arguments: list[str], device: str = "auto") -> int:
    """Start torchrun on this machine, wait for it, and return the exit code.

    If a process dies, all are restarted, up to three times; the run continues from its last
    checkpoint. The first Ctrl-C lets the run save and stop, the second ends it.
    """
    import torch  # `flatnce --help` must not load it

    there = torch.cuda.device_count()
    if there and device != "cpu" and devices > there:
        raise ValueError(f"--devices {devices}: this machine has only {there} GPUs; use fewer")
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    started += [f"--nproc-per-node={devices}", "--max-restarts=3"]
    started += ["-m", "flatnce", command, *arguments]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // devices))
    with tempfile.TemporaryDirectory(prefix="flatnce-") as folder:
        (Path(folder) / LAUNCHER).write_text(str(os.getpid()))
        shared = {**os.environ, VARIABLE: folder, "OMP_NUM_THREADS": threads}
        # A separate session: torchrun kills its processes on a terminal's Ctrl-C.
        process = subprocess.Popen(started, env=shared, start_new_session=True)
        interrupted = _wait(process, Path(folder))
        failure = Path(folder) / FAILURE
        if failure.is_file():
            said = json.loads(failure.read_text(encoding="utf-8"))
            print(said["message"], file=sys.stderr)
            return int(said["code"])
    return 130 if interrupted else process.returncode


def has_failed() -> bool:
    """Whether a process of this launch met an error that a restart would repeat."""
    folder = os.environ.get(VARIABLE)
    return folder is not None and (Path(folder) / FAILURE).is_file()


def report_failure(message: str, code: int) -> bool:
    """Leave the first error for the launcher to print; False where there is no launcher."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return False
    if not has_failed():
        replace_text(Path(folder) / FAILURE, json.dumps({"message": message, "code": code}))
    return True


def stop_requested() -> bool:
    """Whether the launcher asked its processes to stop, or no longer exists."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return False
    try:
        os.kill(int((Path(folder) / LAUNCHER).read_text()), 0)
    except (OSError, ValueError):  # the folder or the launcher is gone
        return True
    return (Path(folder) / STOP).exists()


def _wait(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait for the processes and pass on a request to stop; whether there was one."""
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
