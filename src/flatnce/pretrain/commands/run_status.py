"""What a command says of a run: its name, and that it is not finished where it is not."""

from pathlib import Path
from typing import Any

from flatnce.pretrain.training.saved import RUNS, RunStatus, run_status

__all__ = ["in_brief"]

LONGEST = 160


def stand_of(directory: Path, step: int) -> tuple[dict[str, Any], str]:
    """How a run stands, for a program; and a line for a person, empty where all is well."""
    found = run_status(directory)
    plain: dict[str, Any] = {"finished": found.finished, "steps": found.steps}
    if found.failure:
        plain["failure"] = found.failure
    return plain, _line(found, step, run_name(directory))


def run_name(directory: Path) -> str:
    """How a run is named on the command line: within runs/ without that folder."""
    inside = directory.parts[:1] == (RUNS,)
    return str(Path(*directory.parts[1:])) if inside else str(directory)


def in_brief(failure: str) -> str:
    """The first reason of a failure; the whole is in the run's metrics.jsonl."""
    first = failure.partition(";")[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."


def _line(found: RunStatus, step: int, name: str) -> str:
    whole = "" if found.steps is None else f" of {found.steps:,}"
    if found.failure:
        what = "untrained: the run" if step == 0 else "the run"
        return f"{what} failed ({in_brief(found.failure)}); this is its step {step:,}{whole}"
    if step == 0:
        return f"untrained: this is step 0{whole}, before any training"
    if found.finished:
        return ""
    return f"not finished: this is step {step:,}{whole}; go on with it by `flatnce resume {name}`"
