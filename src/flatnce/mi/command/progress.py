"""A bar on the terminal while ``flatnce mi`` trains; nothing where nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def showing() -> Iterator[Callable[[Any], None] | None]:
    """What to call with each step of training while a bar is shown; None away from a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[int, TaskID] = {}

        def show(now: Any) -> None:
            for task in [tasks[fold] for fold in tasks if fold != now.fold]:
                bar.update(task, visible=False)
            if now.fold not in tasks:
                tasks[now.fold] = bar.add_task("", total=now.steps)
            task = tasks[now.fold]
            # The number of steps is the most there can be: training stops early as a rule.
            bar.update(task, completed=now.step, description=described(now), visible=True)

        yield show


@contextmanager
def counting() -> Iterator[Callable[[Any], None] | None]:
    """What to call with each row of a benchmark: a line of it on a terminal, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True, highlight=False).status("starting") as status:
        done = 0

        def show(row: Any) -> None:
            nonlocal done
            done += 1
            last = f"{row.task} by {row.method}: {row.mean:.2f} of {row.true:.2f} nats"
            status.update(f"{done} done, last {last}")

        yield show


def described(now: Any) -> str:
    """Where training stands, in a few words."""
    fold = f"fold {now.fold + 1}/{now.folds}  " if now.folds > 1 else ""
    return (
        f"{fold}step {now.step:,} of at most {now.steps:,}  train {now.train:.2f}  "
        f"validation {now.validation:.2f}"
    )
