"""The run directory: ``config.json``, ``environment.json``, ``metrics.jsonl``, ``results.json``.

Numbers that JSON cannot hold (NaN, infinities) are written as null. Home and working directories
are written as ``~`` and ``.``, so that a run can be shared without the paths of its machine.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from flatnce.environment import environment, plain
from flatnce.files import (
    check_replaceable,
    lock,
    naming_file,
    open_plain,
    read_json,
    replace_text,
    shapes_of,
)
from flatnce.own_code import OBJECT
from flatnce.toml_files import read_toml

__all__ = [
    "AGAIN",
    "CONFIG",
    "EARLIER",
    "FAILURE",
    "FORMAT_VERSION",
    "RESULTS",
    "SHAPES",
    "START",
    "Run",
    "RunLog",
    "add_evaluation",
    "identity",
    "logged_lines",
    "other_files",
    "remove_start",
    "protocol_name",
    "read_results",
    "read_run",
    "score_cells",
    "tested_on",
]

FORMAT_VERSION = 1  # increased when an older reader would misread the new layout
FAILURE = "failure"  # kind of the failure line, which is removed on resume
AGAIN = "It would diverge again when resumed: start another run with other settings"

CONFIG, ENVIRONMENT = "config.json", "environment.json"
METRICS, RESULTS = "metrics.jsonl", "results.json"
LOCK = ".results.lock"  # held while the results are read, changed and written
TRAINING = ".training"  # held while the run is trained, if no lock can be made beside its folder
# In the folder of a run before its first checkpoint (.DS_Store is macOS's), and afterwards.
START = {CONFIG, ENVIRONMENT, METRICS, TRAINING, ".DS_Store"}
START |= {"tensorboard", "wandb", "checkpoints"}
FILES = START | {RESULTS, LOCK, "report.html", "portrait.json", "failure.txt", "exports"}
_OURS = re.compile(
    r"checkpoints/(\.lock|\.?step-[^/]+/(manifest\.json|weights\.safetensors|state\.pt))"
    r"|tensorboard/events\.out\.[^/]+"
    r"|wandb/(settings|latest-run|flatnce-run-id\.txt|debug[^/]*\.log|(offline-)?run-[^/]+/.+)"
    r"|\.[^/]+\.([0-9a-f]{16}|deleted)\.partial|\.earlier\.partial"  # of killed writers
    r"|exports/\.[^/]+\.lock|exports/[^/]+/(README\.md|config\.json|model\.(safetensors|onnx|onnx\.data))"
)

# The run that is being replaced, until the new one has taken a step; and while it is moved.
EARLIER, MOVING, DISCARDED = ".earlier", ".earlier.moving", ".earlier.partial"

SHAPES = shapes_of(read_toml(__file__, "files.toml"))
LONGEST = 1 << 20  # bytes of a line of measurements, so that a damaged file fills no memory
MOST = 50_000  # lines of a kind that are kept in memory, of those kinds that become many
THINNED = {b'{"kind": "train"': "train", b'{"kind": "watch"': "watch"}
# A line of measurements has numbers only; JSON has null for those that are not finite.
_MEASURED = msgspec.json.Decoder(dict[str, float | int | Literal["train", "watch"] | None])


@dataclass(frozen=True)
class Run:
    """The contents of a run directory; ``results`` is None while the run is unfinished.

    Of more than 50,000 lines of training, or of watches, ``metrics`` has an even selection, with
    the first and the last, and ``left_out`` the number of the others; see :func:`logged_lines`.
    """

    directory: Path
    kind: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: dict[str, Any] | None
    left_out: Mapping[str, int] = field(default_factory=Counter)  # by kind

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its own name."""
        return flat_settings(self.config)

    @property
    def objects(self) -> list[str]:
        """The settings that were objects of the program that trained the run."""
        return [k for k, v in self.settings.items() if str(v).startswith(f"{OBJECT}:")]

    @property
    def finished(self) -> bool:
        """Whether it is finished; the results of an unfinished run may hold evaluations only."""
        return "step" in (self.results or {})

    def last(self, kind: str) -> dict[str, Any]:
        """The last line of a kind; empty if there is none."""
        return next((line for line in reversed(self.metrics) if line.get("kind") == kind), {})


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a ``config.json``; names are unique over its sections."""
    sections = [one if isinstance(one, Mapping) else {name: one} for name, one in config.items()]
    return {name: value for section in sections for name, value in section.items()}


class RunLog:
    """Writes one run directory.

    ``kind`` is the command that writes it, for example ``demo``; ``config`` a dataclass or a
    mapping; ``evaluate`` the protocols of the finished run's evaluation, for a later resume.
    ``replace`` sets aside an earlier run of the same kind, with its checkpoints and exports, until
    :meth:`settle` removes it; before that, the end of the run's lock restores it. A folder that
    also holds other files is refused.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        kind: str,
        config: Any,
        seeds: Iterable[int] = (),
        device: str | None = None,
        evaluate: Sequence[str] | None = None,
        replace: bool = False,
    ) -> None:
        self.directory = Path(directory)
        _make_room(self.directory, kind, replace)
        header = {"format_version": FORMAT_VERSION, "kind": kind, "config": config}
        _write_json(self.directory / CONFIG, header)
        asked = {} if evaluate is None else {"evaluate": evaluate}
        _write_json(self.directory / ENVIRONMENT, {**environment(seeds, device), **asked})
        (self.directory / METRICS).touch()

    @classmethod
    def reopen(
        cls, directory: str | Path, *, kind: str, step: int, device: str | None = None
    ) -> "RunLog":
        """Continue the log of a run from a step.

        Lines, results and evaluations of later steps are removed, and the failure line. The
        present environment is added to ``resumed`` in ``environment.json``.
        """
        place = Path(directory)
        found = read_run(place, kind)
        path = place / METRICS
        earlier = (line for line in logged_lines(place) if line.get("step", 0) <= step)
        kept = (line for line in earlier if line.get("kind") != FAILURE)
        replace_text(path, (json.dumps(line, allow_nan=False) + "\n" for line in kept))
        with lock(place / LOCK):
            done = read_results(place).get("evaluations", ())
            evaluations = [one for one in done if one.get("step", step + 1) <= step]
            if evaluations:
                kept_results = {"format_version": FORMAT_VERSION, "evaluations": evaluations}
                _write_json(place / RESULTS, kept_results)
            else:
                (place / RESULTS).unlink(missing_ok=True)
        here = {"step": step, **environment(device=device)}
        resumed = [*found.environment.get("resumed", ()), here]
        _write_json(place / ENVIRONMENT, {**found.environment, "resumed": resumed})
        log = cls.__new__(cls)
        log.directory = place
        return log

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line of measurements to the file."""
        line = json.dumps(plain(record), allow_nan=False)
        path = self.directory / METRICS
        with naming_file(path), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def settle(self) -> None:
        """Remove the run that this one replaces."""
        earlier, discarded = self.directory / EARLIER, self.directory / DISCARDED
        if earlier.is_dir():
            shutil.rmtree(discarded, ignore_errors=True)
            os.rename(earlier, discarded)  # at once: half of a run is never restored
            shutil.rmtree(discarded, ignore_errors=True)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the final numbers atomically after earlier evaluations."""
        self.settle()
        whole = {"format_version": FORMAT_VERSION, **results}
        with lock(self.directory / LOCK):
            there = read_results(self.directory).get("evaluations")
            whole |= {"evaluations": there} if there else {}
            _write_json(self.directory / RESULTS, whole)


def identity(directory: Path) -> tuple[int, int] | None:
    """Distinguishes a run from one that replaces it: a config is written once, then only moved."""
    found = (directory / CONFIG).stat() if (directory / CONFIG).is_file() else None
    return None if found is None else (found.st_ino, found.st_mtime_ns)


def add_evaluation(
    directory: str | Path, evaluation: Mapping[str, Any], run: tuple[int, int] | None = None
) -> None:
    """Append to ``evaluations`` in a run's results atomically.

    An evaluation of the same step, data and protocol is replaced. The results of an unfinished run
    have only evaluations. A run whose :func:`identity` is not ``run`` is refused.
    """
    place = Path(directory)
    with lock(place / LOCK):
        if run not in (None, identity(place)):
            said = "was replaced or removed while it was evaluated; the result is not kept"
            raise ValueError(f"{place} {said}. Evaluate the run that is there now")
        results = read_results(place) or {"format_version": FORMAT_VERSION}
        new = plain(evaluation)  # with paths as they are kept
        others = [one for one in results.get("evaluations", ()) if _what(one) != _what(new)]
        results["evaluations"] = [*others, new]
        _write_json(place / RESULTS, results)


def _what(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """Step, data and protocol of an evaluation."""
    return one.get("step"), one.get("data"), protocol_name(one), one.get("name")


def read_run(path: str | Path, kind: str | None = None) -> Run:
    """Read a run directory, finished or not; refuse another kind of run than the one given.

    A last line cut short by a crash is ignored; other damage in the lines it keeps is an error.
    """
    directory = Path(path)
    header = read_header(directory / CONFIG, "config")
    if kind not in (None, header["kind"]):
        raise ValueError(f"{directory} holds a {header['kind']} run; name one of `flatnce {kind}`")
    machine = _read(directory / ENVIRONMENT, "environment")
    metrics, left_out = _read_metrics(directory / METRICS)
    results = read_results(directory) or None
    return Run(directory, header["kind"], header["config"], machine, metrics, results, left_out)


def _make_room(directory: Path, kind: str, replace: bool) -> None:
    for leftover in directory.glob(f".{CONFIG}*.partial"):  # of a start that was killed
        leftover.unlink(missing_ok=True)
    there = [path for path in directory.glob("*") if path.name not in (TRAINING, DISCARDED)]
    directory.mkdir(parents=True, exist_ok=True)
    if there:
        refuse_others(directory, FILES)
        same = read_header(directory / CONFIG, "config")["kind"] == kind
        what = f"a {kind} run" + ", which flatnce.resume continues" * (same and kind == "train")
        check_replaceable(str(directory), what, same, replace)
        moving = directory / MOVING
        moving.mkdir()
        for path in there:
            os.rename(path, moving / path.name)
        os.rename(moving, directory / EARLIER)


def restore_earlier(directory: Path) -> None:
    """Put back a run whose replacement has not taken a step; call it under the run's lock."""
    earlier, moving = directory / EARLIER, directory / MOVING
    if earlier.is_dir() and not earlier.is_symlink():
        remove_start(directory)
        os.rename(earlier, moving)
    if moving.is_dir() and not moving.is_symlink():
        for path in moving.iterdir():
            os.rename(path, directory / path.name)
        moving.rmdir()


def remove_start(directory: Path) -> None:
    """Remove the files of a run that has not taken a step; other files and folders stay."""
    for path in directory.glob("*"):
        if path.name in FILES - {TRAINING} or _OURS.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def other_files(directory: Path, known: Collection[str]) -> list[str]:
    """Files that are not of a run, without what a killed writer left.

    ``known`` has the names in the folder itself that are ours.
    """
    found = []
    for name in os.listdir(directory) if directory.is_dir() else ():
        if name not in known and not _OURS.fullmatch(name):
            found.append(name)
        elif name in FILES and not (directory / name).is_symlink():
            for place, _, files in os.walk(directory / name):
                inside = (os.path.relpath(os.path.join(place, one), directory) for one in files)
                found += [one for one in inside if not _OURS.fullmatch(one)]
    return sorted(found)


def refuse_others(directory: Path, known: Collection[str]) -> None:
    """Refuse to remove a folder with :func:`other_files`."""
    if others := other_files(directory, known):
        named = ", ".join(others[:3])
        raise OSError(f"{directory} also holds {named}, which flatnce did not write; move it away")


def read_header(path: Path, kind: str = "header") -> dict[str, Any]:
    """The JSON file that makes its folder one of flatnce; another program's file is refused."""
    if not path.is_file():
        raise ValueError(
            f"path={str(path.parent)!r} is not a run directory (it has no {path.name}); pass the "
            "folder of a run, for example runs/demo"
        )
    return read_json(path, SHAPES[kind], "restore it, or name another folder", FORMAT_VERSION)


def _write_json(path: Path, value: Any) -> None:
    replace_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def read_results(directory: Path) -> dict[str, Any]:
    """The content of ``results.json``; empty where there is none."""
    return _read(directory / RESULTS, "results")


def _read(path: Path, kind: str) -> dict[str, Any]:
    """What a file of a run holds; empty where there is none."""
    return read_json(path, SHAPES[kind], "remove or restore it") if path.exists() else {}


def add_paper_ess(metrics: Sequence[dict[str, Any]]) -> None:
    """Name the ESS in lines of older versions what it is, the paper's form."""
    for line in metrics:
        if "ess" in line:
            line.setdefault("ess_paper", line["ess"])


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The lines of a log, thinned if they are many, and how many of each kind are left out."""
    counts = Counter(line[:16] for _, line in _lines_of(path))  # the kind comes first
    read, seen, left_out = [], Counter[bytes](), Counter[str]()
    for number, line in _lines_of(path):
        start = line[:16]
        # A run may add the first line of a kind between the two passes.
        every = max(1, ceil(counts[start] / MOST)) if start in THINNED else 1
        seen[start] += 1
        if (seen[start] - 1) % every == 0 or seen[start] == counts[start]:
            read.append(_checked(path, number, line))
        else:
            left_out[THINNED[start]] += 1
    return read, left_out


def logged_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """All lines of a run's log, one at a time."""
    path = directory / METRICS
    return (_checked(path, *line) for line in _lines_of(path))


def _lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers, without a last one that was cut short."""
    if not path.exists():
        return
    with open_plain(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
            if len(line) == LONGEST:  # refused now, as the file may have no end
                _checked(path, number, line)
            if line.endswith(b"\n"):
                yield number, line


def _checked(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """What a line of a log says; the error of a damaged one has its number."""
    try:
        return read_line(line)
    except (ValueError, RecursionError) as error:
        said = str(error).replace("`", "")
        raise ValueError(f"{path}, line {number} is damaged ({said}); remove this line") from error


def read_line(line: bytes) -> dict[str, Any]:
    """A line of ``metrics.jsonl``."""
    try:
        found: dict[str, Any] = _MEASURED.decode(line)
    except msgspec.ValidationError:
        found = msgspec.json.decode(line, type=dict[str, Any])
        if found.get("kind") in ("train", "watch"):
            raise
    msgspec.convert(found, SHAPES["line"])
    add_paper_ess([found])
    return found


def protocol_name(result: Mapping[str, Any]) -> str:
    """The protocol's own name, which distinguishes its rows: "knn, k = 20"."""
    protocol = result.get("protocol")
    described = protocol.get("name") if isinstance(protocol, Mapping) else protocol
    return str(described or result.get("name") or "unnamed")


def tested_on(results: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """What the results are measured on, and a note if the encoder was pretrained on it."""
    protocols = [one["protocol"] for one in results if isinstance(one.get("protocol"), Mapping)]
    tests = [(one.get("data"), one.get("test") or one.get("pool") or {}) for one in protocols]
    held = [(data, part) for data, part in tests if str(part.get("split")).startswith("held out")]
    too = "the encoder was pretrained on them too, without their labels."
    seen = any("note" in part for _, part in tests)
    if not held:
        return "On the test set", f"This is the split of training: {too}" if seen else ""
    some, names = len(held) < len(tests), dict.fromkeys(Path(str(data)).name for data, _ in held)
    note = f"{', '.join(names)} has no test part. These samples were held out of it"
    note += f", and {too}" if seen else "."
    return f"On {'the test set and ' if some else ''}held-out training samples", note


class ScoreCells(NamedTuple):
    """The cells of an evaluation in a table; empty where the result does not say."""

    name: str
    data: str
    measure: str
    score: str
    interval: str  # of 95 %; for information, the one-sided lower limit
    top5: str
    test_images: str


def score_cells(result: Mapping[str, Any], percent: str = "{:.2f} %") -> ScoreCells:
    """The cells of an evaluation in a table; ``percent`` formats accuracies from 0 to 100."""

    def share(value: Any) -> str:
        return percent.format(100 * value) if isinstance(value, int | float) else ""

    protocol = result.get("protocol")
    described = protocol if isinstance(protocol, Mapping) else {}
    measure, score = "top-1" if "top1" in result else "", share(result.get("top1"))
    interval = " to ".join(map(share, result.get("interval") or ()))
    if not score and result.get("pool_mi") is not None:
        ceiling = result.get("pool_ceiling")
        most = "" if ceiling is None else f" of {ceiling:.2f}"
        measure, score = "mutual information, nats", f"{result['pool_mi']:.2f}{most} nats"
        interval = "" if result.get("lower") is None else f"≥ {result['lower']:.2f}"
    count = result.get("test_images")
    return ScoreCells(
        name=protocol_name(result),
        data=str(result.get("data", described.get("data")) or ""),
        measure=str(result.get("measure", measure)),
        score=score,
        interval=interval,
        top5=share(result.get("top5")),
        test_images="" if count is None else f"{count:,}",
    )
