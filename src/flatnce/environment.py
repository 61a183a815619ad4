"""Where a number came from, and how to say it without naming the paths of this machine."""

import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["available_memory", "environment", "installed_version", "memory_of_machine", "plain"]


def environment(seeds: Iterable[int] = (), device: str | None = None) -> dict[str, Any]:
    """Where a number came from: versions, machine, device, commit, seeds and command.

    torch is asked only if it is already imported. ``device`` is what computed, as torch spells it
    (``cpu``, ``cuda:1``); by default the first GPU where there is one.
    """
    torch = sys.modules.get("torch")
    program = Path(*sys.argv[:1]).name or "python"  # by its name only
    # `python -m flatnce` arrives as the path of __main__.py.
    start = ["python", "-m", "flatnce"] if program == "__main__.py" else [program]
    found: dict[str, Any] = {
        "flatnce": installed_version("flatnce"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": installed_version("torch") if torch is None else str(torch.__version__),
        "numpy": installed_version("numpy"),
        "platform": platform.platform(),
        "cpu": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": None if torch is None else torch.get_num_threads(),
        "device": _processor(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "launch": os.environ.get("TORCHELASTIC_RUN_ID"),
        "seeds": list(seeds),
        "command": [*start, *sys.argv[1:]],
    }
    if torch is not None and torch.cuda.is_available() and device != "cpu":
        found["device"] = torch.cuda.get_device_name(device)
    return dict(plain(found))


def plain(value: Any, *, paths: bool = False) -> Any:
    """The value in what JSON can hold, without the paths of this machine unless they are asked."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), paths=paths)
    if isinstance(value, Mapping):
        return {str(key): plain(item, paths=paths) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, paths=paths) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | Path):
        return str(value) if paths else _shareable(str(value))
    return value


def _shareable(text: str) -> str:
    """The text without the working and home directories of this machine."""
    # The working directory first: it usually lies in the home directory.
    for place, short in ((Path.cwd(), "."), (Path.home(), "~")):
        if place != Path(place.anchor):  # a root is a prefix of everything and names nobody
            whole = rf"(?<![\w./~-]){re.escape(str(place))}(?![^/\\])"
            text = re.sub(whole, short, text)
    return text


def installed_version(package: str) -> str | None:
    """The version of a package, which is not imported; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this package is run from; None where it is installed."""
    package = Path(__file__).resolve().parent
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


CONTAINER = "/sys/fs/cgroup"
_CONTAINER_FILES = (  # its limit and its use, in bytes, by version 2 and 1 of control groups
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Bytes of memory that are free without swapping; None if the system does not say.

    In a container its own limit counts where that is smaller.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail")]
    for files in _CONTAINER_FILES:
        try:
            limit, used = (int(Path(CONTAINER, file).read_text()) for file in files)
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
        known.append(limit - used)
    return max(1, min(known)) if known else None


def memory_of_machine() -> float:
    """The bytes of memory of this machine, or of its container; infinite if neither is known."""
    limits = [math.inf]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    for limit, _ in _CONTAINER_FILES:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            limits.append(float(Path(CONTAINER, limit).read_text()))
    return min(limits)
