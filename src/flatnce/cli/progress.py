"""The progress of a run on a terminal or in a file."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.messages import duration_text

__all__ = ["progress_line", "seconds_left", "show_progress", "warning_of"]


@contextmanager
def show_progress(
    epochs: int, *, quiet: bool = False
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that shows each line of a run, during the block.

    On a terminal a bar and one line on standard error are kept up to date; elsewhere each line is
    printed. Notes and verdicts that something is wrong are printed separately.
    """
    from flatnce.cli.console import live_line  # needs rich; the pages import this module without

    watched: dict[str, Any] = {}
    with live_line(quiet=quiet) as (update, say):

        def report(line: Mapping[str, Any]) -> None:
            if line["kind"] == "watch":
                watched.update(line)
            elif line["kind"] == "train":
                update(progress_line(line, watched, epochs), line["epoch"] / epochs)
            elif line["kind"] == "started":
                trained = f"training {line['backbone']} on {line['data']}, on {line['device']}"
                when = f"the first line of numbers comes after step {line['first_line']}"
                say(f"{trained}: {line['of_steps']:,} steps; {when}")
            elif line["kind"] == "resumed":
                say(f"the run continues from step {line['step']:,} of {line['of_steps']:,}")
            elif warning := warning_of(line):
                say(warning)

        yield report
        say("")


def warning_of(line: Mapping[str, Any], name: str = "") -> str:
    """The text of a note or of a verdict that something is wrong; empty for other lines."""
    before = f"{name}: " if name else ""
    if line["kind"] == "note":
        return f"{before}{line['note']}"
    if line["kind"] != "verdict" or line["verdict"] in ("healthy", "undecided"):
        return ""
    remedies = "; or ".join(line["remedies"])
    return f"! {before}{line['verdict']}: {line['evidence']}. To do: {remedies}"


def progress_line(line: Mapping[str, Any], watched: Mapping[str, Any], epochs: int) -> str:
    """The state of a run in one line."""
    known = [entry.line for name, entry in DIAGNOSTICS.items() if entry.line and name in line]
    parts = [f"epoch {line['epoch']:.1f}/{epochs}", *(shown.format(**line) for shown in known)]
    if "knn" in watched:
        parts.append(f"kNN {watched['knn']:.1%}")
    if "pool_mi" in watched:
        parts.append(f"pool MI {watched['pool_mi']:.2f} of {watched['pool_ceiling']:.2f}")
    parts.append(f"{line['images_per_second']:,.0f} samples/s")
    parts.append(f"{duration_text(seconds_left(line, epochs))} left")
    return "  ".join(parts)


def seconds_left(line: Mapping[str, Any], epochs: int) -> float:
    """The time left, extrapolated from all time so far, kNN and checkpoints included."""
    return line["seconds"] / line["epoch"] * (epochs - line["epoch"])
