"""The true values by other means: determinants, integrals, inverses of maps, margins."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from flatnce.mi import tasks
from flatnce.mi.tasks.laws import Additive, Mapped, Student


def covariance_of(id):
    """The joint covariance that a normal task's name stands for, written out."""
    kind, *numbers = id.removeprefix("multinormal-").removeprefix("1v1-").split("-")
    size = tasks.find(id).dimensions[0]
    joint, rho, pairs = np.eye(2 * size), 0.0, size
    if kind == "dense":
        return 0.5 * joint + 0.5
    if kind == "normal":
        rho = 0.75
    elif kind == "sparse":
        rho, pairs = 0.8, 2
    elif kind == "staircase":
        rho = math.sqrt(1 - math.exp(-2 * float(numbers[0]) / 20))
    elif kind == "flo":
        rho = np.linspace(0, 0.99, 20)[round(float(numbers[1]) * 19 / 0.99)]
    cross = np.diag([rho] * pairs + [0.0] * (size - pairs))
    joint[:size, size:] = joint[size:, :size] = cross
    return joint


NORMALS = [
    task.id
    for task in tasks.TASKS.values()
    if task.id.startswith(("1v1-normal", "multinormal", "staircase", "flo", "null"))
]


@pytest.mark.parametrize("id", NORMALS)
def test_normal_information_is_that_of_the_determinants(id):
    task, joint = tasks.find(id), covariance_of(id)
    size = task.dimensions[0]
    parts = (joint[:size, :size], joint[size:, size:], joint)
    x, y, both = (np.linalg.slogdet(part)[1] for part in parts)
    assert task.mi == pytest.approx((x + y - both) / 2, abs=1e-11)


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.5, 0.75, 2.0])
def test_additive_information_is_the_entropy_that_the_noise_leaves(noise):
    points = 400_000
    y = -noise + (1 + 2 * noise) * (np.arange(points) + 0.5) / points
    overlap = np.minimum(1, y + noise) - np.maximum(0, y - noise)
    density = overlap / (2 * noise)
    entropy = -(density * np.log(density)).mean() * (1 + 2 * noise)
    assert Additive(noise).information() == pytest.approx(entropy - math.log(2 * noise), abs=1e-8)


@pytest.mark.parametrize(
    ("law", "exact"),
    [(Student(1, 1, 1), math.log(8 * math.pi) - 3), (Student(2, 2, 2), math.log(2) - 0.5)],
)
def test_student_information_in_elementary_terms(law, exact):
    assert law.information() == pytest.approx(exact, abs=1e-13)


@pytest.mark.parametrize("id", [task.id for task in tasks.suite("mixture")])
def test_an_integral_is_as_accurate_as_the_documentation_says(id):
    task = tasks.find(id)
    law = task.law.base if isinstance(task.law, Mapped) else task.law
    finer = replace(law, step=0.07)
    assert abs(task.mi - finer.information()) < 1e-9


ROWS = 20_000
NORMAL = "1v1-normal-0.75"


def unwind(plane):
    def undo(w):
        i, j = plane
        z, angle = w.copy(), -(w**2).sum(axis=1) / w.shape[1]
        turned = (w[:, i] + 1j * w[:, j]) * np.exp(1j * angle)
        z[:, i], z[:, j] = turned.real, turned.imag
        return z

    return undo


def unroll(w):
    t = 21 * np.hypot(w[:, :1], w[:, 1:])
    return ndtri((t / (1.5 * math.pi) - 1) / 2)


def mixture_cdf(weights, centres):
    def cdf(w):
        return sum(share * ndtr(w - c) for share, c in zip(weights, centres, strict=True))

    return cdf


X_MODES, Y_MODES = mixture_cdf((0.3, 0.7), (0, 5)), mixture_cdf((0.5, 0.5), (-1, 3))

SIGNED_ROOT = (lambda w: np.sign(w) * np.abs(w) ** (2 / 3),) * 2
UNIFORM = (ndtri, ndtri)
UNWIND = (unwind((0, 1)), unwind((1, 2)))
MAPPED = [  # the mapped task, its base, what undoes the maps of X and of Y
    (f"normal_cdf-{NORMAL}", NORMAL, UNIFORM),
    (f"half_cube-{NORMAL}", NORMAL, SIGNED_ROOT),
    (f"swissroll_x-normal_cdf-{NORMAL}", NORMAL, (unroll, ndtri)),
    ("1v1-bimodal-0.75", NORMAL, (lambda w: ndtri(X_MODES(w)), lambda w: ndtri(Y_MODES(w)))),
    *((f"cubic-{nats}", f"staircase-{nats}", (lambda w: w, np.cbrt)) for nats in (2, 4, 6, 8, 10)),
    *(
        (f"asinh-student-identity-{name}", f"student-identity-{name}", (np.sinh, np.sinh))
        for name in ("1-1-1", "2-2-1", "3-3-2", "5-5-2")
    ),
    *(
        (f"{name}{base}-multinormal-sparse-{d}-{d}-2-2.0", target.format(d), undo)
        for name, base, target, undo in (
            ("normal_cdf", "", "multinormal-sparse-{0}-{0}-2-2.0", UNIFORM),
            ("half_cube", "", "multinormal-sparse-{0}-{0}-2-2.0", SIGNED_ROOT),
            ("spiral", "", "multinormal-sparse-{0}-{0}-2-2.0", UNWIND),
            ("spiral", "-normal_cdf", "normal_cdf-multinormal-sparse-{0}-{0}-2-2.0", UNWIND),
        )
        for d in (3, 5, 25)
    ),
]


@pytest.mark.parametrize(("id", "base", "undo"), MAPPED, ids=[row[0] for row in MAPPED])
def test_undoing_the_maps_returns_the_pairs_of_the_base(id, base, undo):
    mapped, plain = tasks.find(id), tasks.find(base)
    for side in (0, 1):
        back = undo[side](mapped.sample(2000, seed=4)[side])
        assert np.allclose(back, plain.sample(2000, seed=4)[side], rtol=1e-8, atol=1e-8)
    assert mapped.mi == plain.mi


def test_the_wiggles_rise_everywhere_and_are_the_stated_sines():
    law = tasks.find(f"wiggly-{NORMAL}").law
    z = np.linspace(-8, 8, 100_001)[:, None]
    assert np.diff(law.x_map.forward(z), axis=0).min() > 0.16 * 16 / 100_000
    assert np.diff(law.y_map.forward(z), axis=0).min() > 0.53 * 16 / 100_000
    at_zero = np.zeros((1, 1))
    x_zero = 0.2 * math.sin(1) - 0.03 * math.sin(2.5)
    y_zero = 0.17 * math.sin(3.5) - 0.02 * math.sin(2.5)
    assert law.x_map.forward(at_zero).item() == pytest.approx(x_zero)
    assert law.y_map.forward(at_zero).item() == pytest.approx(y_zero)


def test_the_quantiles_of_a_mixture_hold_far_out():
    z = np.array([[-30.0], [-8.0], [8.0], [30.0]])
    law = tasks.find("1v1-bimodal-0.75").law
    # Far to the left only the left normal counts, with its weight; to the right the right one.
    left, right = law.x_map.forward(z)[[0, 3], 0]
    assert left == pytest.approx(-30 - math.log(0.3) / 30, abs=1e-3)
    assert right == pytest.approx(35 + math.log(0.7) / 30, abs=1e-3)
    assert np.isfinite(law.y_map.forward(z)).all()


MARGINS = [  # task, side, the margin's distribution function; maps are undone above
    (NORMAL, 0, ndtr),
    (NORMAL, 1, ndtr),
    ("1v1-additive-0.75", 0, stats.uniform.cdf),
    # It rises from -0.75 to 0.25 and falls from 0.75 to 1.75.
    ("1v1-additive-0.75", 1, stats.trapezoid(0.4, 0.6, loc=-0.75, scale=2.5).cdf),
    ("student-identity-1-1-1", 0, stats.t(1).cdf),
    ("student-identity-5-5-2", 1, stats.t(2).cdf),
    ("student-identity-5-5-3", 0, stats.t(3).cdf),
    ("multinormal-dense-25-25-0.5", 1, ndtr),
    ("multinormal-sparse-25-25-2-2.0", 1, ndtr),
    ("staircase-6", 1, ndtr),
]


@pytest.mark.parametrize(("id", "side", "cdf"), MARGINS)
def test_a_margin_has_the_stated_law(id, side, cdf):
    columns = np.sort(tasks.find(id).sample(ROWS, seed=6)[side], axis=0)
    ideal = (np.arange(ROWS)[:, None] + 0.5) / ROWS
    # Kolmogorov's distance: √n times it exceeds 2.2 once in 8,000 columns.
    assert np.abs(cdf(columns) - ideal).max() * math.sqrt(ROWS) < 2.2
