"""What a person sees of a run: one line that means something, on a terminal or in a file."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flatnce.core.diagnostics.verdict import RULES
from flatnce.pretrain.training.config import TrainConfig

__all__ = ["EARLY", "progress_line", "showing"]

Report = Callable[[Mapping[str, Any]], None]

EARLY = tuple(rule.kind for rule in RULES if rule.normal_early)
"""Verdicts that are not announced in the first epoch."""


@contextmanager
def showing(config: TrainConfig, *, quiet: bool = False) -> Iterator[Report]:
    """What to call with each line of a run, while it lasts.

    On a terminal one line is kept up to date on standard error; elsewhere each interval is a
    line of standard output. A verdict that something is wrong is always a line of its own.
    """
    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield _Lines(config, lambda text: live.update(Text(text)), console.print)
    elif quiet:
        yield lambda _: None
    else:
        yield _Lines(config, _say, _say)


def _say(text: str) -> None:
    print(text, flush=True)


class _Lines:
    """LogLines of a run to text: progress to one place, what needs attention to another."""

    def __init__(
        self, config: TrainConfig, progress: Callable[[str], None], attention: Callable[..., None]
    ) -> None:
        self.config, self.progress, self.attention = config, progress, attention
        self.watched: Mapping[str, Any] = {}

    def __call__(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "watch":
            self.watched = line
        elif line["kind"] == "train":
            self.progress(progress_line(line, self.watched, self.config.run.epochs))
        elif line["kind"] == "note":
            self.attention(line["note"])
        elif line["kind"] == "verdict":
            early = line["epoch"] < 1 and line["verdict"] in EARLY
            if line["verdict"] != "healthy" and not early:
                remedies = "; or ".join(line["remedies"])
                self.attention(f"! {line['verdict']}: {line['evidence']}. To do: {remedies}")


def progress_line(line: Mapping[str, Any], watched: Mapping[str, Any], epochs: int) -> str:
    """Where a run stands, in one line."""
    parts = [
        f"epoch {line['epoch']:.1f}/{epochs}",
        f"loss {line['loss']:.3f}",
        f"MI {line['mi']:.2f} of {line['mi_ceiling']:.2f}",
        f"ESS {line['ess']:.2f}",
        f"gain {line['gain']:.2f}",
        f"T {line['temperature']:.3g}",
    ]
    if "knn" in watched:
        parts.append(f"kNN {watched['knn']:.1%}")
    if "pool_mi" in watched:
        parts.append(f"pool MI {watched['pool_mi']:.2f} of {watched['pool_ceiling']:.2f}")
    parts.append(f"{line['images_per_second']:,.0f} images/s")
    # The whole time so far, kNN and checkpoints included, foretells the rest best.
    left = line["seconds"] / line["epoch"] * (epochs - line["epoch"])
    parts.append(f"{_clock(left)} left")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
