"""Methods on tasks of known truth: error, spread, coverage, cost."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flatnce.mi.estimator import Estimate, estimate_each
from flatnce.mi.estimator.methods import method_named
from flatnce.mi.studies.layout import aligned
from flatnce.mi.tasks import SUITES, Task, find, suite


@dataclass(frozen=True)
class BenchmarkRow:
    """One method on one task.

    Arguments:
        task: Its id.
        method: Its name.
        true: The true information.
        rows: Pairs drawn.
        seeds: The seeds of data and critics.
        estimates: One for each seed.
        lower: Lower limits (NaN for a classical method).
        standard_errors: As reported with each estimate.
        p_values: As reported.
        flags: How often each was raised.
        seconds: For all seeds together.
    """

    task: str
    method: str
    true: float
    rows: int
    seeds: tuple[int, ...]
    estimates: tuple[float, ...]
    lower: tuple[float, ...]
    standard_errors: tuple[float, ...]
    p_values: tuple[float, ...]
    flags: dict[str, int]
    seconds: float

    @property
    def mean(self) -> float:
        """Mean estimate."""
        return float(np.mean(self.estimates))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; NaN for one."""
        return float(np.std(self.estimates, ddof=1)) if len(self.estimates) > 1 else float("nan")

    @property
    def covered(self) -> float:
        """Share of lower limits that lie below the truth; NaN where there are none."""
        limits = np.array(self.lower)
        return float((limits <= self.true).mean()) if np.isfinite(limits).all() else float("nan")


@dataclass(frozen=True)
class BenchmarkResult:
    """All rows of a benchmark."""

    rows: tuple[BenchmarkRow, ...]

    def table(self) -> str:
        """A text table, in nats."""
        lines = []
        for row in self.rows:
            covered = "–" if np.isnan(row.covered) else f"{row.covered:.0%}"
            spread = "–" if np.isnan(row.spread) else f"{row.spread:.3f}"
            lines.append(
                [
                    row.task,
                    row.method,
                    f"{row.true:.3f}",
                    f"{row.mean:.3f}",
                    spread,
                    f"{row.mean - row.true:+.3f}",
                    covered,
                    f"{row.seconds / len(row.seeds):.1f}",
                    ", ".join(f"{name} {count}" for name, count in sorted(row.flags.items())),
                ]
            )
        header = [
            "task",
            "method",
            "true",
            "mean",
            "sd",
            "error",
            "limit ≤ true",
            "s each",
            "flags",
        ]
        return aligned(header, lines, names=2)

    def plain(self) -> dict[str, Any]:
        """Everything as plain data for JSON, in nats; None for what a method does not give."""
        return {
            "unit": "nats",
            "rows": [
                {
                    name: _plain(value)
                    for name, value in {
                        **asdict(row),
                        "mean": row.mean,
                        "spread": row.spread,
                        "covered": row.covered,
                    }.items()
                }
                for row in self.rows
            ],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def tasks_named(names: Sequence[str | Task]) -> list[Task]:
    """Tasks by id or by the name of a suite.

    Arguments:
        names: Ids, suites or tasks.

    Examples:
        >>> [task.id for task in tasks_named(["null", "staircase-2"])]
        ['null-1v1', 'null-5v5', 'null-20v20', 'staircase-2']
    """
    found: list[Task] = []
    for name in names:
        if isinstance(name, Task):
            found.append(name)
        elif name in SUITES:
            found += suite(name)
        else:
            found.append(find(name))
    return found


def benchmark(
    methods: Sequence[str] = ("auto",),
    tasks: Sequence[str | Task] = ("bmi",),
    n: int = 10_000,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    progress: Callable[[BenchmarkRow], None] | None = None,
    **choices: Any,
) -> BenchmarkResult:
    """Run methods on tasks of known truth; the seeds of a task are trained side by side.

    Arguments:
        methods: Names of :data:`flatnce.mi.METHODS`.
        tasks: Ids, suites (:data:`flatnce.mi.tasks.SUITES`) or tasks.
        n: Pairs drawn from each.
        seeds: Of the data and, from the first on, of the critics.
        progress: Called with each row when it is there.
        choices: Those of :class:`flatnce.mi.MutualInformation`.
    """
    chosen = tasks_named([tasks] if isinstance(tasks, str | Task) else tasks)
    names = [methods] if isinstance(methods, str) else list(methods)
    for name in names:
        method_named(name)
    if not chosen or not names or not seeds:
        raise ValueError("benchmark needs at least one method, one task and one seed")
    choices.setdefault("baselines", False)
    rows = []
    for task in chosen:
        pairs = [task.sample(n, seed) for seed in seeds]
        for name in names:
            began = time.perf_counter()
            found = estimate_each(pairs, method=name, seed=seeds[0], **choices)
            rows.append(_row(task, name, n, seeds, found, time.perf_counter() - began))
            if progress is not None:
                progress(rows[-1])
    return BenchmarkResult(tuple(rows))


def _row(
    task: Task, name: str, n: int, seeds: Sequence[int], found: Sequence[Estimate], seconds: float
) -> BenchmarkRow:
    raised = [flag.name for each in found for flag in each.flags if flag.name != "no_limit"]
    return BenchmarkRow(
        task.id,
        name,
        task.mi,
        n,
        tuple(seeds),
        tuple(each.nats for each in found),
        tuple(each.lower for each in found),
        tuple(each.standard_error for each in found),
        tuple(each.p_value for each in found),
        {flag: raised.count(flag) for flag in dict.fromkeys(raised)},
        seconds,
    )
