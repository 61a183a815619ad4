"""The 40 laws of the bmi benchmark, under its ids.

An id reads from the outside in: ``spiral-normal_cdf-multinormal-sparse-5-5-2-2.0`` is the spiral
of Φ of a sparse normal law with 5 columns on either side, 2 correlated pairs and strength 2.
The draws are ours (another generator), the laws and therefore the true values are the same.

References:
    Czyż, Grabowski, Vogt, Beerenwinkel, Marx, 2023. Beyond Normal: On the Evaluation of Mutual
    Information Estimators. https://arxiv.org/abs/2306.11078
"""

from collections.abc import Iterator

from flatnce.mi.tasks.laws import Additive, Equicorrelated, Law, PairedNormal, Student
from flatnce.mi.tasks.mapped import Mapped
from flatnce.mi.tasks.maps import (
    asinh,
    half_cube,
    normal_cdf,
    spiral,
    swissroll,
    to_bimodal,
    wiggle_x,
    wiggle_y,
)
from flatnce.mi.tasks.task import Task

STRENGTH = 2.0  # λ of the sparse laws: each pair has correlation λ²/(1 + λ²)
STUDENTS = (  # columns of either side, degrees of freedom
    (1, 1),
    (2, 1),
    (2, 2),
    (3, 2),
    (3, 3),
    (5, 2),
    (5, 3),
)
TAMED_STUDENTS = ((1, 1), (2, 1), (3, 2), (5, 2))


def bmi_tasks() -> Iterator[Task]:
    """All 40, in the order of their base laws."""
    for identifier, law, description in (*_one_by_one(), *_dense(), *_sparse(), *_students()):
        yield Task(identifier, law, description, suite="bmi")


Row = tuple[str, Law, str]


def _one_by_one() -> Iterator[Row]:
    normal, name = PairedNormal((0.75,)), "1v1-normal-0.75"
    about = "two standard normals with correlation 0.75"
    yield name, normal, about
    yield f"normal_cdf-{name}", Mapped(normal, normal_cdf, normal_cdf), f"{about}, made uniform"
    yield f"half_cube-{name}", Mapped(normal, half_cube, half_cube), f"{about}, as z|z|^½"
    yield f"wiggly-{name}", Mapped(normal, wiggle_x, wiggle_y), f"{about}, with sines added"
    rolled = Mapped(normal, normal_cdf.then(swissroll), normal_cdf, x_extra=1)
    roll = f"{about}, made uniform, X rolled up in the plane"
    yield f"swissroll_x-normal_cdf-{name}", rolled, roll
    x_modes, y_modes = to_bimodal((0.3, 0.7), (0.0, 5.0)), to_bimodal((0.5, 0.5), (-1.0, 3.0))
    bimodal = Mapped(normal, x_modes, y_modes)
    yield "1v1-bimodal-0.75", bimodal, f"{about}, each made a mixture of two normals"
    for noise in (0.1, 0.75):
        added = f"X uniform on (0, 1), Y = X + noise uniform on (−{noise}, {noise})"
        yield f"1v1-additive-{noise}", Additive(noise), added


def _dense() -> Iterator[Row]:
    for size in (2, 3, 5, 25, 50):
        law = Equicorrelated(size, 0.5)
        about = f"{size} + {size} normal columns, every two with correlation 0.5"
        yield f"multinormal-dense-{size}-{size}-0.5", law, about


def _sparse() -> Iterator[Row]:
    rho = STRENGTH**2 / (1 + STRENGTH**2)
    x_turn, y_turn = spiral((0, 1)), spiral((1, 2))
    for size in (2, 3, 5, 25):
        normal = PairedNormal((rho, rho) + (0.0,) * (size - 2))
        name = f"multinormal-sparse-{size}-{size}-2-{STRENGTH}"
        about = f"{size} + {size} normal columns, two pairs with correlation {rho:g}"
        yield name, normal, about
        if size == 2:  # Y turns in its columns 1 and 2, so it needs three
            continue
        uniform = Mapped(normal, normal_cdf, normal_cdf)
        yield f"normal_cdf-{name}", uniform, f"{about}, made uniform"
        yield f"half_cube-{name}", Mapped(normal, half_cube, half_cube), f"{about}, as z|z|^½"
        yield f"spiral-{name}", Mapped(normal, x_turn, y_turn), f"{about}, turned by ‖z‖²/d"
        turned = Mapped(uniform, x_turn, y_turn)
        yield f"spiral-normal_cdf-{name}", turned, f"{about}, made uniform, turned by ‖z‖²/d"


def _students() -> Iterator[Row]:
    for size, freedom in STUDENTS:
        law, name = Student(size, size, freedom), f"student-identity-{size}-{size}-{freedom}"
        about = f"{size} + {size} Student columns, ν = {freedom}, uncorrelated with a shared scale"
        yield name, law, about
        if (size, freedom) in TAMED_STUDENTS:
            yield f"asinh-{name}", Mapped(law, asinh, asinh), f"{about}, as asinh"
