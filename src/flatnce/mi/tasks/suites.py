"""Tasks beyond the bmi benchmark: high information, grids, independence, mixtures.

Each function makes one task of its family, for parameters of your own too; the registry holds
those that the literature uses.
"""

import math
from collections.abc import Iterator

from flatnce.mi.tasks.laws import PairedNormal
from flatnce.mi.tasks.mapped import Mapped
from flatnce.mi.tasks.maps import cube, spiral
from flatnce.mi.tasks.mixtures import Clusters, Concentric, Cross, Inliers
from flatnce.mi.tasks.task import Task

STAIRS = (2, 4, 6, 8, 10)
FLO_POINTS, FLO_LAST = 20, 0.99
SHELLS = ((3, 5), (5, 5), (3, 10), (5, 10), (25, 5))
INLIERS = ((5, 0.2), (25, 0.2), (5, 0.5), (25, 0.5))


def staircase(nats: float | int, *, size: int = 20, cubic: bool = False) -> Task:
    """Normal columns, X_i and Y_i with the correlation that gives so many nats in all.

    ρ = √(1 − e^{−2I/d}). The cubic form cubes Y, which changes no information and defeats
    estimators that count on correlation.

    References:
        Poole et al., 2019. On Variational Bounds of Mutual Information, Section 3.
        https://arxiv.org/abs/1905.06922
        Song and Ermon, 2020. Understanding the Limitations of Variational Mutual Information
        Estimators, Section 6.1. https://arxiv.org/abs/1910.06222

    Arguments:
        nats: I, at least zero.
        size: Columns of X, and of Y.
        cubic: Whether Y is cubed.

    Examples:
        >>> round(staircase(6).mi, 9), round(staircase(6, cubic=True).mi, 9)
        (6.0, 6.0)
    """
    _check_size(size)
    # Far beyond, 1 − ρ² is lost in the rounding of ρ: at 5 nats a column its error is 1e-11.
    if not 0 <= nats <= 5 * size:
        raise ValueError(f"nats={nats!r}: give 0 to {5 * size} for {size} columns, 5 a column")
    rho = math.sqrt(-math.expm1(-2 * nats / size))
    normal = PairedNormal((rho,) * size)
    name = "cubic" if cubic else "staircase"
    ending = "" if size == 20 else f"-{size}d"
    about = f"{size} + {size} normal columns, pairs with correlation {rho:.4f}"
    return Task(
        id=f"{name}-{nats:g}{ending}",
        law=Mapped(normal, y_map=cube) if cubic else normal,
        description=f"{about}, Y cubed" if cubic else about,
        suite=name,
    )


def flo(size: int, correlation: float) -> Task:
    """A point of the FLO grid: ``size`` pairs of normal columns with one correlation.

    References:
        Guo et al., 2022. Tight Mutual Information Estimation With Contrastive Fenchel-Legendre
        Optimization. https://arxiv.org/abs/2107.01131

    Arguments:
        size: Columns of X, and of Y; 1 ("2D") and 10 ("20D") in the paper.
        correlation: ρ, strictly between −1 and 1; 20 points from 0 to 0.99 in the paper.
    """
    _check_size(size)
    if not -1 < correlation < 1:
        raise ValueError(f"correlation={correlation!r}: give a number between −1 and 1")
    return Task(
        id=f"flo-{size}v{size}-{correlation:.3f}",
        law=PairedNormal((correlation,) * size),
        description=f"{size} + {size} normal columns, pairs with correlation {correlation:.4f}",
        suite="flo",
    )


def null(size: int) -> Task:
    """Independent normal columns: the truth is 0, the bias and the size of a test are seen.

    Arguments:
        size: Columns of X, and of Y.
    """
    _check_size(size)
    law = PairedNormal((0.0,) * size)
    return Task(f"null-{size}v{size}", law, f"{size} + {size} independent normal columns", "null")


def cross(correlation: float) -> Task:
    """An X-shaped cloud, see ``Cross``.

    Arguments:
        correlation: ρ of one arm, above 0 and at most 0.99.
    """
    if not 0 < correlation <= 0.99:  # thinner arms need a grid of gigabytes
        raise ValueError(f"correlation={correlation!r}: give a number above 0, at most 0.99")
    about = f"two normals with correlation {correlation:g} or −{correlation:g} by lot"
    return Task(f"mixture-cross-{correlation:g}", Cross(correlation), about, "mixture")


def concentric(size: int, shells: int) -> Task:
    """Shells around the origin and their noisy numbers, see ``Concentric``.

    Arguments:
        size: Columns of X.
        shells: How many; at least two.
    """
    _check_size(size)
    if shells < 2:
        raise ValueError(f"shells={shells!r}: give at least 2")
    about = f"X normal in {size} columns with scale k, Y about k, k from 1 to {shells} by lot"
    law = Concentric(size, shells)
    return Task(f"mixture-concentric-{size}v1-{shells}", law, about, "mixture")


def inliers(size: int, share: float) -> Task:
    """Two correlated pairs and rows whose Y says nothing, see ``Inliers``.

    Arguments:
        size: Columns of X, and of Y; at least two.
        share: Of rows whose Y is drawn afresh, strictly between 0 and 1.
    """
    if size < 2:
        raise ValueError(f"size={size!r}: two pairs need at least 2 columns")
    if not 0 < share < 1:
        raise ValueError(f"share={share!r}: give a number between 0 and 1")
    about = f"{size} + {size} normal columns, two pairs with correlation 0.8 but for {share:.0%}"
    law = Inliers(size, share)
    return Task(f"mixture-inliers-{size}v{size}-{share:g}", law, f"{about} of rows", "mixture")


def wave() -> Task:
    """Twelve clusters along a wave: X nearly fixes Y, and Y leaves several places for X."""
    centres = tuple((float(k), 1.5 * math.sin(math.pi * k / 3)) for k in range(12))
    about = "twelve normal clusters along two periods of a sine"
    return Task("mixture-wave", Clusters(centres, 0.4, 0.3), about, "mixture")


def galaxy() -> Task:
    """Two clouds wound into spiral arms in the plane of X; Y says, with noise, which one."""
    base = Clusters(((-2.0, -1.0), (2.0, 1.0)), 1.0, 0.6, idle=1)
    law = Mapped(base, x_map=spiral((0, 1), speed=0.3))
    about = "two normal clouds of the plane wound by 0.3‖x‖², Y a noisy sign of the cloud"
    return Task("mixture-galaxy", law, about, "mixture")


def extra_tasks() -> Iterator[Task]:
    """Those of the registry: staircases, the FLO grid, nulls and mixtures."""
    for cubic in (False, True):
        yield from (staircase(nats, cubic=cubic) for nats in STAIRS)
    for size in (1, 10):
        for point in range(FLO_POINTS):
            yield flo(size, FLO_LAST * point / (FLO_POINTS - 1))
    yield from map(null, (1, 5, 20))
    yield cross(0.9)
    yield from (concentric(*shells) for shells in SHELLS)
    yield from (inliers(*shares) for shares in INLIERS)
    yield from (wave(), galaxy())


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size={size!r}: give at least 1 column")
