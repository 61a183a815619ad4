"""Disturb every command at random moments, and compare the remaining files.

    python benchmarks/trust/faults.py --injections 500 --processes 2 --out faults.json

Each injection works on a copy of a small run. Afterwards the command that continues the work is
run once, undisturbed. It must give bitwise the files of an undisturbed run. Otherwise the
disturbed command must have ended with one line that says what to do, and with the earlier files.
No temporary file may be left. A command that ends by a signal that the harness did not send is a
failure. If memory runs out, a library may end a command with a traceback, which is counted. If a
file of the run was removed or changed, the continuing command may also end with one line, and
nothing is compared. An injection depends on its number only (``--only NUMBER``). One that came
too late to disturb is counted as not taken. The record is written after every injection.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from options import Series  # noqa: E402

from forked import Forked  # noqa: E402
from made_runs import assert_same_run  # noqa: E402

TRAIN = "train digits --epochs 1 --batch-size 96 --log-every 2 --checkpoint-every 0.25 --pool 64"
TRAIN += " --watch-every 0 --device cpu --evaluate knn --quiet"
SEED, OTHER = f"{TRAIN} --seed 0", f"{TRAIN} --seed 1"
SWEEP = f"sweep digits {TRAIN.partition('--evaluate')[0].partition('digits ')[2]} --seed 0 1"
LEFT = (".partial", ".staging", ".replaced", ".earlier", ".moving")

# Runs in a process that is forked after the imports: sets the limit, then runs the command.
STARVED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]  # which only a privileged process may raise
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), hard))
from flatnce.cli import main
sys.exit(main(sys.argv[2:]))
"""
# Dies at the n-th call of a function that writes checkpoints.
DYING = """
import os, signal, sys
from flatnce.cli import main
from flatnce.pretrain.runs import checkpoint
owner, name = {"file": (checkpoint, "_write_file"), "sync": (checkpoint, "_sync_folder"),
               "rename": (os, "rename"), "discard": (checkpoint, "_discard")}[sys.argv[1]]
whole, left = getattr(owner, name), [int(sys.argv[2])]
def deadly(*given):
    left[0] -= 1
    if left[0] == 0:
        if name == "_write_file":
            given[0].write_bytes(given[1][: len(given[1]) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*given)
setattr(owner, name, deadly)
sys.exit(main(sys.argv[3:]))
"""
# Makes every sync and every rename slow, and prints their number.
SLOW = """
import os, sys, time
from pathlib import Path
from flatnce.cli import main
pause, said, calls = float(sys.argv[1]), Path(sys.argv[2]), []
def slowed(whole):
    def slow(*given, **named):
        calls.append(1)
        time.sleep(pause)
        return whole(*given, **named)
    return slow
for name in ("fsync", "rename", "replace"):
    setattr(os, name, slowed(getattr(os, name)))
code = main(sys.argv[3:])
said.write_text(str(len(calls)))
sys.exit(code)
"""
# Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, so that file permissions also hold for root.
OBEDIENT = """
import ctypes, sys
libc = ctypes.CDLL(None)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, data)
data[0] &= ~0b110
libc.capset(header, data)  # where it may not, the fault counts as not taken
from flatnce.cli import main
sys.exit(main(sys.argv[1:]))
"""
# Limits the additional memory of the process, in bytes.
POOR = """
import resource, sys
from pathlib import Path
from flatnce.cli import main
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), hard))
sys.exit(main(sys.argv[2:]))
"""
# Replaces what torchrun calls after parsing its command line; may kill one of the two workers.
TWO = """
import os, signal, sys, threading, warnings
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from flatnce.cli import main
def die():  # the launcher may report only the end of the other worker
    os.write(2, b"flatnce worker: -9\\n")
    os.kill(os.getpid(), signal.SIGKILL)
def work(victim, delay, *typed):
    timer = threading.Timer(float(delay), die)
    if os.environ["RANK"] == victim:
        timer.start()
    if done := main(list(typed)):
        sys.exit(done)
    timer.cancel()
warnings.resetwarnings()  # torchrun's processes bear the warnings of torch
meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "start_method": "fork"}
launch = LaunchConfig(1, 1, 2, max_restarts=0, run_id=os.environ["FLATNCE_RUNS"], **meeting)
try:
    elastic_launch(launch, work)(*sys.argv[1:])
except ChildFailedError as error:
    sys.exit(f"workers ended with {[one.exitcode for one in error.failures.values()]}")
"""


@dataclass(frozen=True)
class Case:
    """A command, the state it starts from, and the command that continues or repeats it."""

    name: str
    start: str  # the prepared folder that is copied: nothing, begun, done
    command: str
    again: Callable[[Path], str]  # the command that follows, given the folder of runs
    check: Callable[[Path, Path], None]  # given the folder of runs and that of the prepared ones
    folder: str = "run"  # what it writes, in the folder of runs
    checkpoints: bool = True  # whether it writes checkpoints


def continued(runs: Path) -> str:
    begun = any((runs / "run" / "checkpoints").glob("step-*"))
    return "resume run --evaluate knn --quiet" if begun else f"{SEED} --name run --replace"


def same_run(runs: Path, prepared: Path) -> None:
    assert_same_run(runs / "run", prepared / "done" / "run")


def replaced_or_earlier(runs: Path, prepared: Path) -> None:
    """Whether the run is the unchanged earlier one or the complete new one."""
    seed = json.loads((runs / "run" / "config.json").read_text())["config"]["run"]["seed"]
    assert_same_run(runs / "run", prepared / ("done" if seed == 0 else "other") / "run")


def timeless(value: Any) -> Any:
    """Results without the entries that differ between two equal runs."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if "second" not in key}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def results_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = timeless(json.loads((folder / "results.json").read_text()))
    return found


def evaluated(runs: Path, prepared: Path) -> None:
    same_run(runs, prepared)
    found, expected = (
        sorted(results_of(place)["evaluations"], key=lambda one: str(one["protocol"]["name"]))
        for place in (runs / "run", prepared / "evaluated" / "run")
    )
    assert found == expected, f"{found} {expected}"


def exported(runs: Path, prepared: Path) -> None:
    from flatnce.pretrain.exporting import load_exported

    same_run(runs, prepared)
    found, expected = (
        load_exported(place / "run" / "exports" / "run-torch").state_dict()
        for place in (runs, prepared / "exported")
    )
    assert found.keys() == expected.keys(), f"{found.keys()} {expected.keys()}"
    differ = [name for name in found if not torch.equal(found[name], expected[name])]
    assert not differ, f"exported weights differ: {differ}"


def reported(runs: Path, prepared: Path) -> None:
    same_run(runs, prepared)
    page = (runs / "run" / "report.html").read_text()
    assert page.rstrip().endswith("</html>")


def same_results(folder: str, start: str, runs: Path, prepared: Path) -> None:
    found, expected = (results_of(place / folder) for place in (runs, prepared / start))
    assert found == expected, f"{found} {expected}"


def same_two(runs: Path, prepared: Path) -> None:
    assert_same_run(runs / "run", prepared / "two" / "run")


def swept_again(runs: Path) -> str:
    begun = (runs / "grid" / "sweep.json").is_file()
    return "sweep --resume grid" if begun else f"{SWEEP} --name grid"


def swept(runs: Path, prepared: Path) -> None:
    for one in sorted((prepared / "swept" / "grid").iterdir()):
        if one.is_dir():
            assert_same_run(runs / "grid" / one.name, one)


EVALUATE, EXPORT = "evaluate run --protocol knn --neighbours 5", "export run --to torch --replace"
REPORT = "report run --no-portrait"
DEMO = "demo --steps 6 --seeds 2 --candidates 4 --temperatures 0.1 --width 8 --every 3 --pool 64"
REPRODUCE = "reproduce fig-ess"
CASES = (
    Case("train", "nothing", f"{SEED} --name run", continued, same_run),
    Case("resume", "begun", "resume run --evaluate knn --quiet", continued, same_run),
    Case("replace", "done", f"{OTHER} --name run --replace", continued, replaced_or_earlier),
    Case("evaluate", "done", EVALUATE, lambda _: EVALUATE, evaluated, checkpoints=False),
    Case("export", "done", EXPORT, lambda _: EXPORT, exported, checkpoints=False),
    Case("report", "done", REPORT, lambda _: REPORT, reported, checkpoints=False),
    Case("sweep", "nothing", f"{SWEEP} --name grid", swept_again, swept, "grid"),
    Case(
        "demo",
        "nothing",
        DEMO,
        lambda _: DEMO,
        partial(same_results, "demo", "demo"),
        "demo",
        False,
    ),
    Case(
        "reproduce",
        "nothing",
        REPRODUCE,
        lambda _: REPRODUCE,
        partial(same_results, "reproduce/fig-ess", "reproduced"),
        "reproduce/fig-ess",
        False,
    ),
)
TORCHRUN = Case("train under torchrun", "nothing", f"{SEED} --name run", continued, same_two)
FAULTS = (
    "kill",
    "term",
    "full disk",
    "in a checkpoint",
    "twice",
    "read-only folder",
    "slow disk",
    "little memory",
    "changed file",
)
PAIRS = [
    (case, fault)
    for fault in FAULTS
    for case in CASES
    if case.checkpoints or fault != "in a checkpoint"
]
PAIRS += [(TORCHRUN, "worker killed")] * 3


def one_line(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) == 1 and lines[0].startswith("flatnce ")


class Harness:
    """Prepares undisturbed runs once, and injects faults into copies of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.prepared = folder, folder / "prepared"
        self.seconds: dict[str, float] = {}
        for name, command in (
            ("done", f"{SEED} --name run"),
            ("other", f"{OTHER} --name run"),
            ("swept", f"{SWEEP} --name grid"),
            ("demo", DEMO),
            ("reproduced", REPRODUCE),
        ):
            self.run(self.prepared / name, command)
        for name, command in (("evaluated", EVALUATE), ("exported", EXPORT)):
            shutil.copytree(self.prepared / "done", self.prepared / name)
            self.run(self.prepared / name, command)
        done = self.begin(self.prepared / "two", TORCHRUN.command, TWO, "none", "0").wait()
        assert done.returncode == 0, done.stderr
        shutil.copytree(self.prepared / "done", self.prepared / "begun")
        begun = self.prepared / "begun" / "run"
        (begun / "results.json").unlink()
        for step in sorted((begun / "checkpoints").glob("step-*"))[2:]:
            shutil.rmtree(step)
        for case in (*CASES, TORCHRUN):
            place = self.copy_of(case.start)
            began = time.monotonic()
            if case is TORCHRUN:
                self.begin(place, case.command, TWO, "none", "0").wait()
            else:
                self.run(place, case.command)
            self.seconds[case.name] = time.monotonic() - began
            case.check(place, self.prepared)

    def copy_of(self, start: str) -> Path:
        """A folder of runs in a prepared state."""
        place = Path(tempfile.mkdtemp(dir=self.folder)) / "runs"
        if start == "nothing":
            place.mkdir()
        else:
            shutil.copytree(self.prepared / start, place)
        return place

    def begin(self, place: Path, command: str, code: str | None = None, *first: str) -> Forked:
        """Start a command on a folder of runs."""
        place.mkdir(parents=True, exist_ok=True)
        os.environ["FLATNCE_RUNS"] = str(place)
        return Forked(*first, *command.split(), code=code)

    def run(self, place: Path, command: str) -> None:
        """Run a command that must succeed."""
        done = self.begin(place, command).wait()
        assert done.returncode == 0, f"{command}: {done.returncode} {done.stderr}"

    def disturb(self, place: Path, case: Case, fault: str, chance: random.Random) -> str:
        """Run the command under a fault, and return how it ended, or "not taken"."""
        if fault in ("kill", "term"):
            started = self.begin(place, case.command)
            self.pause(case, chance)
            number = signal.SIGKILL if fault == "kill" else signal.SIGTERM
            try:
                started.send_signal(number)
            except ProcessLookupError:
                pass
            return self.killed(started.wait(), number)
        if fault == "in a checkpoint":
            where = chance.choice(("file", "sync", "rename", "discard"))
            done = self.begin(place, case.command, DYING, where, str(chance.randint(1, 3))).wait()
            return self.killed(done, signal.SIGKILL)
        if fault == "worker killed":
            victim, delay = chance.choice("01"), chance.uniform(0, self.seconds[case.name])
            done = self.begin(place, case.command, TWO, victim, str(delay)).wait()
            if "flatnce worker: -9" in done.stderr:
                return "ended with -9"
            assert done.returncode == 0, f"{done.returncode} {done.stderr}"
            return "not taken"
        if fault == "twice":
            both = [self.begin(place, case.command) for _ in range(2)]
            ended = [one.wait() for one in both]
            assert any(one.returncode == 0 for one in ended), [one.stderr for one in ended]
            said = [
                "done" if self.ended(case, one) == "not taken" else "one line" for one in ended
            ]
            return " and ".join(sorted(said))
        if fault == "slow disk":
            heard = place.parent / "calls"
            pause = str(chance.uniform(0.01, 0.05))
            done = self.begin(place, case.command, SLOW, pause, str(heard)).wait()
            assert done.returncode == 0, done.stderr
            return "done, slowly" if int(heard.read_text()) else "not taken"
        if fault == "read-only folder":
            return self.ended(case, self.make_read_only(place, case, chance))
        if fault == "changed file":
            return self.change(place, case, chance)
        if fault == "little memory":
            more = str(int(10 ** chance.uniform(6, 8.5)))
            done = self.begin(place, case.command, POOR, more).wait()
            assert done.returncode >= 0, f"ended by signal {-done.returncode}: {done.stderr}"
            if not done.returncode:
                return "not taken"
            # Libraries may raise anything when memory runs out; the files must still be complete.
            return "one line" if one_line(done.stderr) else "more than one line"
        limit = str(int(10 ** chance.uniform(3, 6)))
        return self.ended(case, self.begin(place, case.command, STARVED, limit).wait())

    def killed(self, done: subprocess.CompletedProcess[str], number: signal.Signals) -> str:
        """How a command ended after a signal was sent."""
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, -number) or done.returncode > 0, f"{done.returncode}"
        return f"ended with {done.returncode}" if done.returncode else "not taken"

    def ended(self, case: Case, done: subprocess.CompletedProcess[str]) -> str:
        """How a command ended that must say in one line why it failed."""
        # The table of a sweep names the runs that failed.
        said = one_line(done.stderr) or (case.name == "sweep" and "failed" in done.stdout)
        assert not done.returncode or said, f"{done.returncode} {done.stderr} {done.stdout}"
        return "one line" if done.returncode else "not taken"

    def pause(self, case: Case, chance: random.Random) -> None:
        """Wait until a random moment of a command."""
        time.sleep(chance.uniform(0, self.seconds[case.name]))

    def make_read_only(
        self, place: Path, case: Case, chance: random.Random
    ) -> subprocess.CompletedProcess[str]:
        """Remove write permission from all folders and files, at once or later."""
        later = chance.random() < 0.5
        if not later:
            os.system(f"chmod -R a-w {place}")
        started = self.begin(place, case.command, OBEDIENT)
        if later:
            self.pause(case, chance)
            os.system(f"chmod -R a-w {place}")
        done = started.wait()
        os.system(f"chmod -R u+w {place}")
        return done

    def change(self, place: Path, case: Case, chance: random.Random) -> str:
        """Remove, cut or overwrite a file of the run at a random moment.

        The fault is taken if the file existed and the command was still running.
        """
        started = self.begin(place, case.command)
        self.pause(case, chance)
        files = sorted(path for path in (place / case.folder).rglob("*") if path.is_file())
        files = [path for path in files if not path.name.endswith(("lock", ".partial"))]
        taken = False
        if files and started.is_running():
            path, way = chance.choice(files), chance.choice(("remove", "cut", "overwrite"))
            taken = self.changed(path, way) and started.is_running()
        end = self.ended(case, started.wait())
        return "done" if taken and end == "not taken" else end

    def changed(self, path: Path, way: str) -> bool:
        """Change a file, and return whether it existed."""
        try:
            if way == "remove":
                path.unlink()
            elif way == "cut":
                os.truncate(path, path.stat().st_size // 2)
            else:
                with path.open("r+b") as file:  # does not create the file
                    file.truncate(file.write(b"[1, 2, 3]\n"))
        except FileNotFoundError:
            return False
        return True

    def follow(self, place: Path, case: Case, fault: str) -> None:
        """Continue the work undisturbed, and compare its files with the undisturbed run."""
        if fault == "worker killed":
            again = self.begin(place, case.again(place), TWO, "none", "0").wait()
        else:
            again = self.begin(place, case.again(place)).wait()
        if fault == "changed file":  # it may end with one line about the lost file
            self.ended(case, again)
        else:
            assert again.returncode == 0, f"afterwards: {again.stderr}"
            case.check(place, self.prepared)
        left = [path for path in place.rglob("*") if path.name.endswith(LEFT)]
        assert not left, f"left: {[path.name for path in left]}"

    def inject(self, number: int) -> tuple[str, str, str]:
        """Injection ``number``: case, fault, and the failure, or how the command ended."""
        chance = random.Random(number)
        case, fault = PAIRS[number % len(PAIRS)]
        place = self.copy_of(case.start)
        try:
            ended = self.disturb(place, case, fault, chance)
            self.follow(place, case, fault)
        except Exception as error:  # also errors of the harness: the other injections continue
            said = " ".join(str(error).split())[:600]
            return case.name, fault, f"FAILED {type(error).__name__}: {said}"
        finally:
            shutil.rmtree(place.parent, ignore_errors=True)
        return case.name, fault, ended


Ended = tuple[int, str, str, str]  # number, case, fault, how it ended


def prepare(folder: Path) -> None:
    """Prepare the undisturbed runs of this process."""
    global harness
    harness = Harness(Path(tempfile.mkdtemp(dir=folder)))


def inject(number: int, deadline: float) -> Ended | None:
    """Run an injection, unless the time is over."""
    if time.time() > deadline:
        return None
    ended = (number, *harness.inject(number))
    if "FAILED" in ended[3]:
        print(*ended, sep=": ", flush=True)
    return ended


def record_of(given: list[Ended | None]) -> dict[str, Any]:
    """The counts of finished injections."""
    found = [one for one in given if one]
    ends: dict[str, Counter[str]] = {}
    for _, _, fault, ended in found:
        ends.setdefault(fault, Counter())["FAILED" if "FAILED" in ended else ended] += 1
    return {
        "injections": len(found),
        "not_taken": sum(one[3] == "not taken" for one in found),
        "failures": {one[0]: ": ".join(one[1:]) for one in found if "FAILED" in one[3]},
        "by_case": dict(sorted(Counter(f"{one[1]}, {one[2]}" for one in found).items())),
        "ends": {name: dict(some) for name, some in ends.items()},
    }


def main() -> int:
    series = Series(argparse.ArgumentParser(description=__doc__), "injections", 35)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(
            series.processes, initializer=prepare, initargs=(Path(folder),)
        ) as pool,
    ):
        waiting = [pool.submit(inject, number, series.deadline) for number in series.numbers]
        record = series.follow(waiting, record_of)
    print(json.dumps({key: value for key, value in record.items() if key != "by_case"}, indent=1))
    return int(bool(record["failures"]) or not record["every_process_ended"])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
