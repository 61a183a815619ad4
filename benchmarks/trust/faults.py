"""Kill, starve and double every command at random moments, and compare what is left.

    python benchmarks/trust/faults.py --injections 500 --out benchmarks/trust/faults.json

Each injection works on a copy of a small run. Afterwards the command that continues the work is
run once, undisturbed. It must end with the bits of the run that was never disturbed, or the
disturbed command must have ended with one line that says what to do and the earlier files; no
temporary file may be left. An injection is made from its number alone (``--only NUMBER``).
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from forked import Forked  # noqa: E402
from made_runs import assert_same_run  # noqa: E402

TRAIN = "train digits --epochs 1 --batch-size 96 --log-every 2 --checkpoint-every 0.25 --pool 64"
TRAIN += " --watch-every 0 --device cpu --evaluate knn --quiet"
SEED, OTHER = f"{TRAIN} --seed 0", f"{TRAIN} --seed 1"
SWEEP = f"sweep digits {TRAIN.partition('--evaluate')[0].partition('digits ')[2]} --seed 0 1"
LEFT = (".partial", ".staging", ".replaced", ".earlier", ".moving")

# Runs in a process that is forked after the imports: the limit, then the command.
STARVED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
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


@dataclass(frozen=True)
class Case:
    """A command, the state it starts from, and what continues or repeats it."""

    name: str
    start: str  # the prepared folder that is copied: nothing, begun, done
    command: str
    again: Callable[[Path], str]  # the command that follows, given the folder of runs
    check: Callable[[Path, Path], None]  # given the folder of runs and that of the prepared ones


def continued(runs: Path) -> str:
    begun = any((runs / "run" / "checkpoints").glob("step-*"))
    return "resume run --evaluate knn --quiet" if begun else f"{SEED} --name run --replace"


def same_run(runs: Path, prepared: Path) -> None:
    assert_same_run(runs / "run", prepared / "done" / "run")


def replaced_or_earlier(runs: Path, prepared: Path) -> None:
    """The run is the earlier one, untouched, or the new one, whole."""
    seed = json.loads((runs / "run" / "config.json").read_text())["config"]["run"]["seed"]
    assert_same_run(runs / "run", prepared / ("done" if seed == 0 else "other") / "run")


def evaluated(runs: Path, prepared: Path) -> None:
    same_run(runs, prepared)
    found = json.loads((runs / "run" / "results.json").read_text())["evaluations"]
    names = [one["protocol"]["name"] for one in found]
    assert len(names) == len(set(names)) and any("k = 5" in name for name in names), names


def exported(runs: Path, prepared: Path) -> None:
    from flatnce.pretrain.exporting import load_exported

    same_run(runs, prepared)
    load_exported(runs / "run" / "exports" / "run-torch")


def reported(runs: Path, prepared: Path) -> None:
    same_run(runs, prepared)
    page = (runs / "run" / "report.html").read_text()
    assert page.rstrip().endswith("</html>")


def swept_again(runs: Path) -> str:
    begun = (runs / "grid" / "sweep.json").is_file()
    return "sweep --resume grid" if begun else f"{SWEEP} --name grid"


def swept(runs: Path, prepared: Path) -> None:
    for one in sorted((prepared / "swept" / "grid").iterdir()):
        if one.is_dir():
            assert_same_run(runs / "grid" / one.name, one)


EVALUATE, EXPORT = "evaluate run --protocol knn --neighbours 5", "export run --to torch --replace"
REPORT = "report run --no-portrait"
CASES = (
    Case("train", "nothing", f"{SEED} --name run", continued, same_run),
    Case("resume", "begun", "resume run --evaluate knn --quiet", continued, same_run),
    Case("replace", "done", f"{OTHER} --name run --replace", continued, replaced_or_earlier),
    Case("evaluate", "done", EVALUATE, lambda _: EVALUATE, evaluated),
    Case("export", "done", EXPORT, lambda _: EXPORT, exported),
    Case("report", "done", REPORT, lambda _: REPORT, reported),
    Case("sweep", "nothing", f"{SWEEP} --name grid", swept_again, swept),
)
FAULTS = ("kill", "term", "full disk", "in a checkpoint", "twice")


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
        ):
            self.run(self.prepared / name, command)
        shutil.copytree(self.prepared / "done", self.prepared / "begun")
        begun = self.prepared / "begun" / "run"
        (begun / "results.json").unlink()
        for step in sorted((begun / "checkpoints").glob("step-*"))[2:]:
            shutil.rmtree(step)
        for case in CASES:
            place = self.copy_of(case.start)
            began = time.monotonic()
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
        """Run the command under a fault, and return how it ended."""
        if fault in ("kill", "term"):
            started = self.begin(place, case.command)
            time.sleep(chance.uniform(0, self.seconds[case.name]))
            number = signal.SIGKILL if fault == "kill" else signal.SIGTERM
            try:
                started.send_signal(number)
            except ProcessLookupError:
                pass
            done = started.wait()
            assert "Traceback" not in done.stderr, done.stderr
            return f"ended with {done.returncode}"
        if fault == "full disk":
            limit = str(int(10 ** chance.uniform(3, 6)))
            done = self.begin(place, case.command, STARVED, limit).wait()
            assert done.returncode in (0, 1, 2), done.stderr
            # A sweep says in its table which of its runs failed.
            said = one_line(done.stderr) or (case.name == "sweep" and "failed" in done.stdout)
            assert not done.returncode or said, f"{done.stderr} {done.stdout}"
            return "one line" if done.returncode else "done"
        if fault == "in a checkpoint":
            where = chance.choice(("file", "sync", "rename", "discard"))
            done = self.begin(place, case.command, DYING, where, str(chance.randint(1, 8))).wait()
            assert "Traceback" not in done.stderr, done.stderr
            return f"ended with {done.returncode}"
        both = [self.begin(place, case.command) for _ in range(2)]
        ended = [one.wait() for one in both]
        assert any(one.returncode == 0 for one in ended), [one.stderr for one in ended]
        for one in ended:
            assert one.returncode == 0 or one_line(one.stderr), one.stderr
        return " and ".join(sorted("done" if not one.returncode else "one line" for one in ended))

    def inject(self, number: int) -> tuple[str, str, str]:
        """Injection ``number``: case, fault, and the failure, or how the command ended."""
        chance = random.Random(number)
        case = CASES[number % len(CASES)]
        fault = FAULTS[number // len(CASES) % len(FAULTS)]
        place = self.copy_of(case.start)
        try:
            ended = self.disturb(place, case, fault, chance)
            again = self.begin(place, case.again(place)).wait()
            assert again.returncode == 0, f"afterwards: {again.stderr}"
            case.check(place, self.prepared)
            left = [path for path in place.rglob("*") if path.name.endswith(LEFT)]
            assert not left, f"left: {[path.name for path in left]}"
        except AssertionError as error:
            return case.name, fault, f"FAILED {' '.join(str(error).split())[:600]}"
        finally:
            shutil.rmtree(place.parent)
        return case.name, fault, ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--injections", type=int, default=35)
    parser.add_argument("--start", type=int, default=0, help="number of the first injection")
    parser.add_argument("--only", type=int, help="a single injection")
    parser.add_argument("--out", type=Path, help="write the counts as JSON")
    given = parser.parse_args()
    numbers = range(given.start, given.start + given.injections)
    if given.only is not None:
        numbers = range(given.only, given.only + 1)
    began, counts, failures = time.time(), Counter[str](), dict[int, str]()
    ends: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder))
        for number in numbers:
            case, fault, ended = harness.inject(number)
            counts[f"{case}, {fault}"] += 1
            ends.setdefault(fault, Counter())[ended.partition(":")[0][:60]] += 1
            if ended.startswith("FAILED"):
                failures[number] = f"{case}, {fault}: {ended}"
                print(f"{number}: {failures[number]}", flush=True)
            if given.out:
                record = {
                    "injections": sum(counts.values()),
                    "failures": failures,
                    "by_case": dict(sorted(counts.items())),
                    "ends": {name: dict(found) for name, found in ends.items()},
                    "seconds": round(time.time() - began),
                }
                given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{sum(counts.values())} injections, {len(failures)} failures")
    return int(bool(failures))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
