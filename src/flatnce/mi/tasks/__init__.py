"""Tasks with known mutual information, to test estimators.

``TASKS`` holds them by id, in six suites: "bmi" (the 40 tasks of that benchmark, same ids, same
true values), "staircase" and "cubic" (20 columns, 2 to 10 nats), "flo" (the grid of the FLO
paper), "null" (independent) and "mixture". Every task has ``id``, ``dimensions``, ``mi`` (the true
value in nats, from the distribution), ``description``, ``sample(n, seed)`` and
``pointwise(x, y)``, the true log density ratio.

An id of bmi reads from the outside in: ``spiral-normal_cdf-multinormal-sparse-5-5-2-2.0`` is the
spiral of Φ of a sparse normal distribution with 5 columns per side, 2 correlated pairs and
strength 2. The draws are ours (another generator). The mixtures are our own.

References:
    Czyż, Grabowski, Vogt, Beerenwinkel, Marx, 2023. Beyond Normal: On the Evaluation of Mutual
    Information Estimators. https://arxiv.org/abs/2306.11078
"""

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import SupportsIndex

import numpy as np

from flatnce.messages import check_at_least, check_choice, did_you_mean
from flatnce.mi.tasks import laws

__all__ = [
    "TASKS",
    "SUITES",
    "Task",
    "find",
    "suite",
    "staircase",
    "flo",
    "null",
    "wave",
    "galaxy",
]


@dataclass(frozen=True)
class Task:
    """A distribution to draw pairs from, and its true mutual information."""

    id: str  #: its name in the registry
    law: laws.Law  #: distribution of the pairs
    description: str  #: one line of text
    suite: str  #: the suite it belongs to, such as "bmi" or "staircase"

    @cached_property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        x, y = self.sample(1, 0)
        return x.shape[1], y.shape[1]

    @cached_property
    def mi(self) -> float:
        """The true I(X;Y) in nats, to 1e-12 for a closed form and 1e-9 for an integral."""
        return self.law.information()

    def sample(self, n: SupportsIndex, seed: SupportsIndex) -> laws.Sample:
        """``n`` independent pairs: X of shape (n, dx) and Y of shape (n, dy), float64.

        Tasks that differ by maps of X and Y only share the underlying pairs for one seed.
        """
        rows, start = _whole("n", n, 1), _whole("seed", seed, 0)
        return self.law.draw(np.random.default_rng(start), rows)

    def pointwise(self, x: np.ndarray, y: np.ndarray) -> laws.Ratios:
        """The true log p(y|x)/p(y) of each pair, in nats: the optimal critic.

        Its mean over many pairs of ``sample`` is ``mi``. It holds for any x (n, dx) and y (n, dy),
        partners or not; −∞ for a pair that cannot occur.
        """
        for name, rows, size in zip(("x", "y"), (x, y), self.dimensions, strict=True):
            if rows.ndim != 2 or rows.shape[1] != size or len(rows) != len(x):
                wanted = f"{self.id} takes ({len(x)}, {size})"
                raise ValueError(f"{name} has shape {rows.shape}; {wanted}")
        return self.law.pointwise(x.astype(np.float64), y.astype(np.float64))


def _whole(name: str, value: SupportsIndex, least: int) -> int:
    try:
        check_at_least(name, operator.index(value), least)
    except TypeError:
        raise ValueError(f"{name}={value!r}: give a whole number") from None
    return operator.index(value)


Row = tuple[str, laws.Law, str]  # id, law and description of a task of bmi


def _both(law: laws.Law, injection: laws.Injection) -> laws.Mapped:
    return laws.Mapped(law, injection, injection)


def _one_by_one() -> Iterator[Row]:
    normal, name = laws.PairedNormal((0.75,)), "1v1-normal-0.75"
    about = "two standard normals with correlation 0.75"
    yield name, normal, about
    uniform = _both(normal, laws.normal_cdf)
    yield f"normal_cdf-{name}", uniform, f"{about}, made uniform"
    yield f"half_cube-{name}", _both(normal, laws.half_cube), f"{about}, as z|z|^½"
    wiggly = laws.Mapped(normal, laws.wiggle_x, laws.wiggle_y)
    yield f"wiggly-{name}", wiggly, f"{about}, with sines added"
    rolled = laws.Mapped(uniform, x_map=laws.swissroll)
    roll = f"{about}, made uniform, X rolled up in the plane"
    yield f"swissroll_x-normal_cdf-{name}", rolled, roll
    x_modes = laws.to_bimodal((0.3, 0.7), (0.0, 5.0))
    bimodal = laws.Mapped(normal, x_modes, laws.to_bimodal((0.5, 0.5), (-1.0, 3.0)))
    yield "1v1-bimodal-0.75", bimodal, f"{about}, each made a mixture of two normals"
    for noise in (0.1, 0.75):
        added = f"X uniform on (0, 1), Y = X + noise uniform on (−{noise}, {noise})"
        yield f"1v1-additive-{noise}", laws.Additive(noise), added


def _dense() -> Iterator[Row]:
    for size in (2, 3, 5, 25, 50):
        law = laws.Equicorrelated(size, 0.5)
        about = f"{size} + {size} normal columns, every two with correlation 0.5"
        yield f"multinormal-dense-{size}-{size}-0.5", law, about


def _sparse() -> Iterator[Row]:
    rho = 2.0**2 / (1 + 2.0**2)  # of strength 2
    x_turn, y_turn = laws.spiral((0, 1)), laws.spiral((1, 2))
    for size in (2, 3, 5, 25):
        normal = laws.PairedNormal((rho, rho) + (0.0,) * (size - 2))
        name = f"multinormal-sparse-{size}-{size}-2-2.0"
        about = f"{size} + {size} normal columns, two pairs with correlation {rho:g}"
        yield name, normal, about
        if size == 2:  # Y turns in its columns 1 and 2, so it needs three
            continue
        uniform = _both(normal, laws.normal_cdf)
        yield f"normal_cdf-{name}", uniform, f"{about}, made uniform"
        yield f"half_cube-{name}", _both(normal, laws.half_cube), f"{about}, as z|z|^½"
        yield f"spiral-{name}", laws.Mapped(normal, x_turn, y_turn), f"{about}, turned by ‖z‖²/d"
        turned = laws.Mapped(uniform, x_turn, y_turn)
        yield f"spiral-normal_cdf-{name}", turned, f"{about}, made uniform, turned by ‖z‖²/d"


def _students() -> Iterator[Row]:
    for size, freedom in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 3)):
        law, name = laws.Student(size, size, freedom), f"student-identity-{size}-{size}-{freedom}"
        about = f"{size} + {size} Student columns, ν = {freedom}, uncorrelated with a shared scale"
        yield name, law, about
        if (size, freedom) in ((1, 1), (2, 1), (3, 2), (5, 2)):
            yield f"asinh-{name}", _both(law, laws.asinh), f"{about}, as asinh"


def staircase(nats: float | int, *, size: int = 20, cubic: bool = False) -> Task:
    """Normal columns, X_i and Y_i with the correlation √(1 − e^{−2I/d}) that gives I nats in all.

    References:
        Poole et al., 2019, https://arxiv.org/abs/1905.06922; Song and Ermon, 2020,
        https://arxiv.org/abs/1910.06222

    Arguments:
        nats: I, at least zero.
        size: Columns of X, and of Y.
        cubic: Whether Y is cubed, which changes no information and defeats estimators that count
            on correlation.
    """
    check_at_least("size", size, 1)
    # Far beyond, 1 − ρ² is lost in the rounding of ρ: at 5 nats a column its error is 1e-11.
    if not 0 <= nats <= 5 * size:
        raise ValueError(f"nats={nats!r}: give 0 to {5 * size} for {size} columns, 5 per column")
    rho = math.sqrt(-math.expm1(-2 * nats / size))
    normal = laws.PairedNormal((rho,) * size)
    name = "cubic" if cubic else "staircase"
    ending = "" if size == 20 else f"-{size}d"
    about = f"{size} + {size} normal columns, pairs with correlation {rho:.4f}"
    return Task(
        id=f"{name}-{nats:g}{ending}",
        law=laws.Mapped(normal, y_map=laws.cube) if cubic else normal,
        description=f"{about}, Y cubed" if cubic else about,
        suite=name,
    )


def flo(size: int, correlation: float) -> Task:
    """A point of the FLO grid: ``size`` pairs of normal columns with one correlation.

    References:
        Guo et al., 2022, https://arxiv.org/abs/2107.01131

    Arguments:
        size: Columns of X, and of Y; 1 ("2D") and 10 ("20D") in the paper.
        correlation: ρ, strictly between −1 and 1; 20 points from 0 to 0.99 in the paper.
    """
    check_at_least("size", size, 1)
    if not -1 < correlation < 1:
        raise ValueError(f"correlation={correlation!r}: give a number between −1 and 1")
    return Task(
        id=f"flo-{size}v{size}-{correlation:.3f}",
        law=laws.PairedNormal((correlation,) * size),
        description=f"{size} + {size} normal columns, pairs with correlation {correlation:.4f}",
        suite="flo",
    )


def null(size: int) -> Task:
    """Independent normal columns, ``size`` on each side: the truth is 0."""
    check_at_least("size", size, 1)
    law = laws.PairedNormal((0.0,) * size)
    return Task(f"null-{size}v{size}", law, f"{size} + {size} independent normal columns", "null")


def wave() -> Task:
    """Twelve clusters along a wave: X nearly fixes Y, and Y leaves several places for X."""
    centres = tuple((float(k), 1.5 * math.sin(math.pi * k / 3)) for k in range(12))
    about = "twelve normal clusters along two periods of a sine"
    return Task("mixture-wave", laws.Clusters(centres, 0.4, 0.3), about, "mixture")


def galaxy() -> Task:
    """Two clouds wound into spiral arms in the plane of X; Y says, with noise, which one."""
    base = laws.Clusters(((-2.0, -1.0), (2.0, 1.0)), 1.0, 0.6, idle=1)
    law = laws.Mapped(base, x_map=laws.spiral((0, 1), speed=0.3))
    about = "two normal clouds of the plane wound by 0.3‖x‖², Y a noisy sign of the cloud"
    return Task("mixture-galaxy", law, about, "mixture")


def _tasks() -> Iterator[Task]:
    for identifier, law, description in (*_one_by_one(), *_dense(), *_sparse(), *_students()):
        yield Task(identifier, law, description, suite="bmi")
    for cubic in (False, True):
        yield from (staircase(nats, cubic=cubic) for nats in (2, 4, 6, 8, 10))
    for size in (1, 10):
        yield from (flo(size, 0.99 * point / 19) for point in range(20))
    yield from (null(size) for size in (1, 5, 20))
    yield from (wave(), galaxy())


TASKS: Mapping[str, Task] = MappingProxyType({task.id: task for task in _tasks()})
SUITES: tuple[str, ...] = tuple(dict.fromkeys(task.suite for task in TASKS.values()))


def find(id: str) -> Task:
    """Look up a task by its id in ``TASKS``; the error names the closest ids."""
    if id in TASKS:
        return TASKS[id]
    hint = did_you_mean(id.lower(), TASKS, "flatnce.mi.tasks.TASKS lists all", cutoff=0.5, most=3)
    raise ValueError(f"id={id!r} is not a task; {hint}")


def suite(name: str) -> tuple[Task, ...]:
    """Return the tasks of one suite, in the order of the registry."""
    check_choice("name", name, SUITES)
    return tuple(task for task in TASKS.values() if task.suite == name)
