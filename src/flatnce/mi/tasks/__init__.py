"""Tasks with known mutual information, to test estimators.

``TASKS`` holds them by id, in six suites: "bmi" (the 40 laws of that benchmark, same ids, same
true values), "staircase" and "cubic" (20 columns, 2 to 10 nats), "flo" (the grid of the FLO
paper), "null" (independent) and "mixture". Every task has ``id``, ``dimensions``, ``mi`` (the true
value in nats, computed from the law), ``accuracy``, ``description``, ``sample(n, seed)`` and
``pointwise(x, y)``, the true log density ratio. For data with unknown information,
:func:`self_consistency` derives tables whose information is 0, 1 or 2 times that of yours.

The mixtures are our own laws. For the cross, the shells and the inliers we chose parameters that
give the values listed for bmi's second tier within 0.004 (those come from 100,000 draws, with
standard errors of 0.002 to 0.003): the same values need not mean the same laws.
"""

from collections.abc import Mapping
from types import MappingProxyType

from flatnce.messages import did_you_mean
from flatnce.mi.tasks.catalogue import (
    Task,
    bmi_tasks,
    concentric,
    cross,
    extra_tasks,
    flo,
    galaxy,
    inliers,
    null,
    staircase,
    wave,
)
from flatnce.mi.tasks.consistency import Consistency, self_consistency

__all__ = [
    "TASKS",
    "SUITES",
    "Consistency",
    "Task",
    "find",
    "suite",
    "staircase",
    "flo",
    "null",
    "cross",
    "concentric",
    "inliers",
    "wave",
    "galaxy",
    "self_consistency",
]

TASKS: Mapping[str, Task] = MappingProxyType(
    {task.id: task for task in (*bmi_tasks(), *extra_tasks())}
)
SUITES: tuple[str, ...] = tuple(dict.fromkeys(task.suite for task in TASKS.values()))


def find(id: str) -> Task:
    """Look up a task by id; the error names the closest ids.

    Arguments:
        id: An id of ``TASKS``.

    Examples:
        >>> find("staircase-6").dimensions
        (20, 20)
    """
    if id in TASKS:
        return TASKS[id]
    hint = _nearest(id, TASKS)
    raise ValueError(
        f"id={id!r} is not a task{hint}; flatnce.mi.tasks.TASKS lists all {len(TASKS)} of them, "
        f"in the suites {', '.join(SUITES)}"
    )


def suite(name: str) -> tuple[Task, ...]:
    """Return the tasks of one suite, in the order of the registry.

    Arguments:
        name: "bmi", "staircase", "cubic", "flo", "null" or "mixture".

    Examples:
        >>> [task.id for task in suite("null")]
        ['null-1v1', 'null-5v5', 'null-20v20']
    """
    if name not in SUITES:
        hint = _nearest(name, SUITES)
        raise ValueError(f"name={name!r} is not a suite{hint}; there are {', '.join(SUITES)}")
    return tuple(task for task in TASKS.values() if task.suite == name)


def _nearest(name: str, known: Mapping[str, Task] | tuple[str, ...]) -> str:
    hint = did_you_mean(name.lower(), known, cutoff=0.5, most=3)
    return f"; {hint}" if hint else ""
