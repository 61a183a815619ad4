"""The run directory: what was asked, where it ran, what was measured, what came out.

A run is a folder of plain files, so that a report, another tool or a person can read it without
this package::

    runs/NAME/
      config.json         format_version, kind, config
      environment.json    versions, machine, device, commit, seeds, command
      metrics.jsonl       one JSON object a line, in the order measured
      results.json        format_version and the final numbers; there only once the run is done

Numbers that JSON cannot hold (NaN, infinities) are written as null. Home and working directories
are written as ``~`` and ``.``, so that a run can be handed on without naming its machine's paths.
"""

import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["FORMAT_VERSION", "Run", "RunLog", "environment", "read_run"]

FORMAT_VERSION = 1
"""Raised when a reader of the former layout would misread the new one."""

CONFIG, ENVIRONMENT = "config.json", "environment.json"
METRICS, RESULTS = "metrics.jsonl", "results.json"


@dataclass(frozen=True)
class Run:
    """A run directory, read back.

    Arguments:
        directory: Where it lies.
        kind: What made it, for example ``demo``.
        config: What was asked for.
        environment: Where it ran.
        metrics: The measurements, in order.
        results: The final numbers; None while the run is unfinished.
    """

    directory: Path
    kind: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: dict[str, Any] | None


class RunLog:
    """Writes one run directory.

    Arguments:
        directory: The run's folder; made, with its parents.
        kind: What makes the run, for example ``demo``.
        config: A dataclass or a mapping.
        seeds: The seeds used.
        device: As in :func:`environment`.
        replace: Remove an earlier run of the same kind that is there. Anything else that is
            there is never removed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        kind: str,
        config: Any,  # noqa: ANN401 (a dataclass instance or a mapping)
        seeds: Iterable[int] = (),
        device: str | None = None,
        replace: bool = False,
    ) -> None:
        self.directory = Path(directory)
        _make_room(self.directory, kind, replace)
        header = {"format_version": FORMAT_VERSION, "kind": kind, "config": config}
        _write_json(self.directory / CONFIG, header)
        _write_json(self.directory / ENVIRONMENT, environment(seeds, device))
        (self.directory / METRICS).touch()

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line of measurements; it is on disk when this returns."""
        line = json.dumps(_plain(record), allow_nan=False)
        with (self.directory / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def finish(self, results: Mapping[str, Any]) -> Path:
        """Write the final numbers, all or nothing, and return where they are."""
        path = self.directory / RESULTS
        _write_json(path, {"format_version": FORMAT_VERSION, **results})
        return path


def read_run(path: str | Path) -> Run:
    """Read a run directory, finished or not.

    A last line of measurements cut short by a crash is left out; any other damage is an error.

    Arguments:
        path: The run's folder.
    """
    directory = Path(path)
    header = _read_header(directory)
    results, where = directory / RESULTS, directory / ENVIRONMENT
    return Run(
        directory,
        header["kind"],
        header["config"],
        _read_json(where) if where.is_file() else {},
        _read_lines(directory / METRICS),
        _read_json(results) if results.is_file() else None,
    )


def environment(seeds: Iterable[int] = (), device: str | None = None) -> dict[str, Any]:
    """Where a number came from: versions, machine, device, commit, seeds and command.

    torch is asked only if it is already imported; otherwise its installed version is named.

    Arguments:
        seeds: The seeds used.
        device: What computed, as torch spells it (``cpu``, ``cuda:1``); by default the first GPU
            where there is one.
    """
    torch = sys.modules.get("torch")
    found: dict[str, Any] = {
        "flatnce": _version("flatnce"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": _version("torch") if torch is None else str(torch.__version__),
        "numpy": _version("numpy"),
        "platform": platform.platform(),
        "cpu": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": None if torch is None else torch.get_num_threads(),
        "device": _processor(),
        "seeds": list(seeds),
        "command": _command(sys.argv),
    }
    if torch is not None and torch.cuda.is_available() and device != "cpu":
        found["device"] = torch.cuda.get_device_name(device)
    return dict(_plain(found))


def _make_room(directory: Path, kind: str, replace: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"directory={str(directory)!r} is a file; name a folder for the run")
    if directory.is_dir() and any(directory.iterdir()):
        same = _kind(directory) == kind
        if not same:
            raise ValueError(
                f"directory={str(directory)!r} holds other files than a {kind} run, which are "
                "never removed; name a new folder"
            )
        if not replace:
            raise ValueError(
                f"directory={str(directory)!r} already holds a {kind} run; name a new folder, or "
                "ask for it to be replaced (replace=True)"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)


def _kind(directory: Path) -> str | None:
    """What made the run in a folder; None where there is no run."""
    try:
        return str(_read_header(directory)["kind"])
    except (ValueError, KeyError):
        return None


def _read_header(directory: Path) -> dict[str, Any]:
    if not (directory / CONFIG).is_file():
        raise ValueError(
            f"path={str(directory)!r} is not a run directory (it has no {CONFIG}); pass the "
            "folder of a run, for example runs/demo"
        )
    header = _read_json(directory / CONFIG)
    version = header.get("format_version") if isinstance(header, dict) else None
    if not isinstance(version, int):
        raise ValueError(f"{directory / CONFIG} has no format_version; flatnce did not write it")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{directory} has format_version {version}, this flatnce reads up to "
            f"{FORMAT_VERSION}; upgrade flatnce"
        )
    return dict(header)


def _plain(value: Any) -> Any:  # noqa: ANN401 (JSON in, JSON out)
    """The value in what JSON can hold, without the paths of this machine."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | Path):
        return _shareable(str(value))
    return value


def _shareable(text: str) -> str:
    """The text without the working and home directories of this machine."""
    # The working directory first: it usually lies in the home directory.
    for place, short in ((Path.cwd(), "."), (Path.home(), "~")):
        if place != Path(place.anchor):  # a root is a prefix of everything and names nobody
            whole = rf"(?<![\w./~-]){re.escape(str(place))}(?![^/\\])"
            text = re.sub(whole, short, text)
    return text


def _write_json(path: Path, value: Any) -> None:  # noqa: ANN401 (JSON)
    """Write all or nothing: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.partial")
    text = json.dumps(_plain(value), indent=1, allow_nan=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _read_json(path: Path) -> Any:  # noqa: ANN401 (JSON)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); run it again") from error


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    # Each line ends in a newline, so what follows the last one was cut short.
    whole = path.read_text(encoding="utf-8").split("\n")[:-1]
    records = []
    for number, line in enumerate(whole, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is damaged ({error}); remove it") from error
    return records


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this package is run from; None where it is installed."""
    package = Path(__file__).resolve().parent
    if shutil.which("git") is None:
        return None
    top = _git(package, "rev-parse", "--show-toplevel")
    # Installed into an environment inside someone's repository, their commit is not ours.
    if top is None or Path(top) / "src" / "flatnce" != package:
        return None
    commit = _git(package, "rev-parse", "--verify", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return commit if commit is None or not changed else f"{commit} with changes"


def _git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _command(argv: Sequence[str]) -> list[str]:
    """The command as typed, the program by its name only."""
    program = Path(argv[0]).name if argv and argv[0] else "python"
    # `python -m flatnce` arrives as the path of __main__.py.
    start = ["python", "-m", "flatnce"] if program == "__main__.py" else [program]
    return [*start, *argv[1:]]
