"""The laws of the suite: pairs (X, Y) of every kind of column, with their true information.

``LAWS[name].sample(n, rng)`` returns x, y and the kind of each column. The truth is a closed form
or an integral. ``draw`` also returns the log density ratio of every row, log p(x, y)/(p(x) p(y)),
which is computed from the density and not from the truth: its mean over many rows is a slow,
independent definition of the truth, and tests compare the two.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from flatnce.mi import tasks
from flatnce.mi.tasks.laws import Additive, PairedNormal

Array = NDArray[np.float64]
Draw = tuple[Array, Array, Array]  # x, y and the log density ratio of each row
Kinds = tuple[tuple[str, ...], tuple[str, ...]]  # of each column of x and of y


@dataclass(frozen=True)
class SuiteLaw:
    """A law of the suite."""

    name: str
    family: str
    about: str
    draw: Callable[[int, np.random.Generator], Draw]
    information: Callable[[], float]
    x_kind: str = "number"  # number, category, count or circular
    y_kind: str = "number"

    @cached_property
    def truth(self) -> float:
        """I(X;Y) in nats."""
        return self.information()

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array, Kinds]:
        """Draw n independent pairs, rows by columns, and name the kind of each column."""
        x, y, _ = self.draw(n, rng)
        return x, y, ((self.x_kind,) * x.shape[1], (self.y_kind,) * y.shape[1])


LAWS: dict[str, SuiteLaw] = {}


def _add(name, family, about, draw, information, x_kind="number", y_kind="number"):
    LAWS[name] = SuiteLaw(name, family, about, draw, information, x_kind, y_kind)


def _task(name, family, task_name):
    """A law of flatnce.mi.tasks, which has its own tests."""
    task = tasks.find(task_name)

    def draw(n, rng):
        x, y = task.law.draw(rng, n)
        return x, y, task.law.pointwise(x, y)

    _add(name, family, task.description, draw, lambda: task.mi)


def entropy(*shares):
    """Entropy in nats of a category with these shares."""
    p = np.array(shares)
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def information_of_table(joint):
    """Information of a table of joint probabilities."""
    joint = np.asarray(joint)
    return entropy(*joint.sum(0)) + entropy(*joint.sum(1)) - entropy(*joint.ravel())


def _integral(function, low, high, pieces=400, nodes=20):
    """Gauss–Legendre in equal pieces; the function takes an array."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    width = (high - low) / pieces
    at = low + width * (np.arange(pieces)[:, None] + (points + 1) / 2)
    return float((function(at.ravel()) * np.tile(weights, pieces)).sum() * width / 2)


def _normal(z, spread=1.0):
    return np.exp(-((z / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))


def _normal_cdf(z):
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in np.ravel(z)])


def _rotation(size, seed):
    """A fixed orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


# Categories on both sides.


def _table_law(name, family, about, joint):
    joint = np.asarray(joint, dtype=float)
    assert abs(joint.sum() - 1) < 1e-12
    log_ratio = np.log(np.maximum(joint, 1e-300) / (joint.sum(1)[:, None] * joint.sum(0)))

    def draw(n, rng):
        cell = rng.choice(joint.size, size=n, p=joint.ravel())
        row, column = np.divmod(cell, joint.shape[1])
        return row[:, None].astype(float), column[:, None].astype(float), log_ratio[row, column]

    _add(name, family, about, draw, lambda: information_of_table(joint), "category", "category")


def _channel(shares, kept):
    """Y = X with a probability, else a new draw of X's law."""
    p = np.asarray(shares)
    return np.diag(p) * kept + np.outer(p, p) * (1 - kept)


def _xor_categories(n, rng):
    x = rng.integers(0, 2, (n, 2))
    flipped = rng.uniform(size=n) < 0.1
    y = x.sum(axis=1) % 2 ^ flipped
    return x.astype(float), y[:, None].astype(float), np.log(np.where(flipped, 0.2, 1.8))


_table_law(
    "categories-3x3",
    "categories",
    "three against three categories, moderate dependence",
    np.array([[20, 5, 3], [4, 18, 8], [2, 10, 30]]) / 100,
)
_table_law(
    "categories-channel-10",
    "categories",
    "ten symbols; Y is X with probability 0.7, else another draw",
    _channel(np.full(10, 0.1), 0.7),
)
_zipf = 1 / np.arange(1, 31)
_table_law(
    "categories-zipf-30",
    "categories",
    "thirty words with Zipf frequencies; Y is X with probability 0.4, else another draw",
    _channel(_zipf / _zipf.sum(), 0.4),
)
_table_law(
    "categories-independent",
    "categories",
    "four against five categories, independent",
    np.outer((0.4, 0.3, 0.2, 0.1), (0.3, 0.3, 0.2, 0.15, 0.05)),
)
_add(
    "categories-xor",
    "categories",
    "two binary columns; Y is their XOR, 10 % flipped",
    _xor_categories,
    lambda: math.log(2) - entropy(0.1, 0.9),
    "category",
    "category",
)


# Labels against numbers: Gaussian classes whose centres lie in a plane of the columns.


def _class_density(at, priors, centres):
    """Density of classes with unit spread around points of the plane, and of each class."""
    each = np.exp(-np.square(at[:, None] - centres[None]).sum(axis=2) / 2) / (2 * math.pi)
    return each @ priors, each


def _gaussian_classes(name, family, about, priors, centres, columns, mix=False):
    priors, centres = np.array(priors), np.array(centres, dtype=float)
    turn = _rotation(columns, 7)
    if mix:  # columns of different sizes that are correlated within a class
        turn = turn * np.linspace(0.5, 3, columns)

    def draw(n, rng):
        label = rng.choice(len(priors), size=n, p=priors)
        z = rng.standard_normal((n, columns))
        z[:, :2] += centres[label]
        whole, each = _class_density(z[:, :2], priors, centres)
        ratio = np.log(each[np.arange(n), label] / whole)
        return z @ turn.T, label[:, None].astype(float), ratio

    def information():
        step = 0.1
        grids = [np.arange(c.min() - 9, c.max() + 9, step) for c in centres.T]
        points = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, 2)
        total = 0.0
        for part in np.array_split(points, len(points) // 20_000 + 1):
            whole, each = _class_density(part, priors, centres)
            logs = np.log(np.maximum(each, 1e-300)) - np.log(np.maximum(whole, 1e-300))[:, None]
            total += float((each * priors * logs).sum()) * step**2
        return total

    _add(name, family, about, draw, information, "number", "category")


def _scale_classes(name, family, about, priors, scales, columns):
    """Classes that differ by their spread only: the information is in ‖x‖."""
    priors, scales = np.array(priors), np.array(scales)

    def logs(radius):  # log densities of x in each class, without the constant that all share
        return -((radius[:, None] / scales) ** 2) / 2 - columns * np.log(scales)

    def draw(n, rng):
        label = rng.choice(len(priors), size=n, p=priors)
        x = scales[label][:, None] * rng.standard_normal((n, columns))
        each = logs(np.linalg.norm(x, axis=1))
        whole = np.logaddexp.reduce(each + np.log(priors), axis=1)
        return x, label[:, None].astype(float), each[np.arange(n), label] - whole

    def information():
        surface = 2 * math.pi ** (columns / 2) / math.gamma(columns / 2)
        constant = surface / (2 * math.pi) ** (columns / 2)

        def integrand(radius):
            each = logs(radius)
            whole = np.logaddexp.reduce(each + np.log(priors), axis=1)
            weights = np.exp(each) * priors * constant * radius[:, None] ** (columns - 1)
            return (weights * (each - whole[:, None])).sum(axis=1)

        return _integral(integrand, 0, 12 * scales.max())

    _add(name, family, about, draw, information, "number", "category")


def _on_circle(count, radius):
    angle = 2 * math.pi * np.arange(count) / count
    return radius * np.stack((np.cos(angle), np.sin(angle)), axis=1)


_gaussian_classes(
    "labels-separated",
    "labels",
    "three separated classes (0.5, 0.3, 0.2) in four columns",
    (0.5, 0.3, 0.2),
    ((0, 0), (8, 0), (0, 8)),
    4,
)
_gaussian_classes(
    "labels-overlapping",
    "labels",
    "three overlapping classes in four correlated columns",
    (0.45, 0.2, 0.35),
    ((0, 0), (2, 0.5), (3.5, 3)),
    4,
    mix=True,
)
_gaussian_classes(
    "labels-ten-classes",
    "labels",
    "ten classes on a circle in a plane of twenty columns",
    np.full(10, 0.1),
    _on_circle(10, 4.0),
    20,
)
_scale_classes(
    "labels-rings",
    "labels",
    "three classes that differ by their spread (1, 2, 4) in two columns",
    (0.4, 0.3, 0.3),
    (1.0, 2.0, 4.0),
    2,
)

# Rare events.

_table_law(
    "rare-test",
    "rare events",
    "a condition of 3 % and a test with 1 % errors",
    [[0.97 * 0.99, 0.97 * 0.01], [0.03 * 0.01, 0.03 * 0.99]],
)
_gaussian_classes(
    "rare-shift",
    "rare events",
    "a label of 3 % whose rows lie 3 standard deviations away, in two columns",
    (0.97, 0.03),
    ((0, 0), (3, 0)),
    2,
)
_scale_classes(
    "rare-spread",
    "rare events",
    "a label of 5 % whose rows have three times the spread, in three columns",
    (0.95, 0.05),
    (1.0, 3.0),
    3,
)


# Mixed laws: counts, point masses, zero-inflated, censored and rounded numbers.


def _steps(n, rng, levels=5):
    x = rng.integers(0, levels, n)
    y = x + rng.uniform(0, 2, n)
    cell = np.floor(y).astype(int)
    covering = (cell < levels).astype(int) + (cell >= 1)  # x's in {cell − 1, cell}
    return x[:, None].astype(float), y[:, None], np.log(levels / covering)


_add(
    "mixed-steps",
    "mixed",
    "X one of five steps, Y uniform on [X, X + 2]",
    _steps,
    lambda: math.log(5) - 0.8 * math.log(2),
    "category",
)

_INFLATION = 0.15
_LOG_FACTORIAL = np.array([math.lgamma(k + 1) for k in range(200)])


def _inflated_given(y, x):
    poisson = np.exp(y * np.log(x) - x - _LOG_FACTORIAL[y])
    return _INFLATION * (y == 0) + (1 - _INFLATION) * poisson


def _inflated(n, rng):
    x = rng.exponential(size=n)
    y = np.where(rng.uniform(size=n) < _INFLATION, 0, rng.poisson(x))
    margin = _INFLATION * (y == 0) + (1 - _INFLATION) * 0.5 ** (y + 1)
    return x[:, None], y[:, None].astype(float), np.log(_inflated_given(y, x) / margin)


def _inflated_information():
    total = 0.0
    for count in range(100):
        margin = _INFLATION * (count == 0) + (1 - _INFLATION) * 0.5 ** (count + 1)

        def integrand(x, count=count, margin=margin):
            given = _inflated_given(np.full(x.shape, count), x)
            return np.exp(-x) * given * np.log(np.maximum(given, 1e-300) / margin)

        total += _integral(integrand, 0, 120, pieces=600)
    return total


_add(
    "mixed-zero-inflated",
    "mixed",
    "X exponential, Y Poisson with mean X, but 15 % zeros",
    _inflated,
    _inflated_information,
    "number",
    "count",
)


def _point_masses(n, rng):
    table = np.array([[0.4, 0.1], [0.1, 0.4]])
    cell = rng.choice(4, size=n, p=table.ravel())
    normal = PairedNormal((0.9,))
    x, y = normal.draw(rng, n)
    discrete = rng.uniform(size=n) < 0.5
    ratio = np.where(discrete, np.log(table.ravel()[cell] / 0.25), normal.pointwise(x, y))
    x = np.where(discrete, cell // 2, x[:, 0])[:, None]
    y = np.where(discrete, cell % 2, y[:, 0])[:, None]
    return x, y, ratio + math.log(2)  # both sides tell which half it is


_add(
    "mixed-point-masses",
    "mixed",
    "half the rows are pairs of 0 and 1, half are normal with correlation 0.9",
    _point_masses,
    lambda: (
        math.log(2) + (math.log(2) - entropy(0.2, 0.8) + PairedNormal((0.9,)).information()) / 2
    ),
)


def _count_ratio(x, y, shape=2.0, rate=0.4):
    gamma = np.vectorize(math.lgamma)
    joint = gamma(shape + x + y) - (shape + x + y) * math.log(rate + 2)
    single = gamma(shape + x) + gamma(shape + y) - (2 * shape + x + y) * math.log(rate + 1)
    return joint - single + math.lgamma(shape) - shape * math.log(rate)


def _counts(n, rng):
    mean = rng.gamma(2.0, 1 / 0.4, n)
    x, y = rng.poisson(mean), rng.poisson(mean)
    return x[:, None].astype(float), y[:, None].astype(float), _count_ratio(x, y)


def _count_information(shape=2.0, rate=0.4):
    count = np.arange(180)
    gamma = np.vectorize(math.lgamma)
    x, y = count[:, None], count[None]
    log_joint = gamma(shape + x + y) - math.lgamma(shape) - gamma(x + 1) - gamma(y + 1)
    log_joint = log_joint + shape * math.log(rate) - (shape + x + y) * math.log(rate + 2)
    return information_of_table(np.exp(log_joint))


_add(
    "mixed-counts",
    "mixed",
    "two Poisson counts with one mean, which is Gamma(2) with mean 5",
    _counts,
    _count_information,
    "count",
    "count",
)

_CENSORED = 0.8  # correlation


def _censored(n, rng):
    normal = PairedNormal((_CENSORED,))
    x, y = (np.maximum(side, 0) for side in normal.draw(rng, n))
    ratio = normal.pointwise(x, y)
    one = (x[:, 0] == 0) ^ (y[:, 0] == 0)
    seen = np.where(x > 0, x, y)[:, 0]
    left = _normal_cdf(-_CENSORED * seen / math.sqrt(1 - _CENSORED**2))
    ratio = np.where(one, np.log(left / 0.5), ratio)
    both = 0.25 + math.asin(_CENSORED) / (2 * math.pi)
    return x, y, np.where((x[:, 0] == 0) & (y[:, 0] == 0), math.log(4 * both), ratio)


def _censored_information():
    both = 0.25 + math.asin(_CENSORED) / (2 * math.pi)
    left = math.sqrt(1 - _CENSORED**2)

    def single(seen):
        share = _normal_cdf(-_CENSORED * seen / left)
        return _normal(seen) * share * np.log(np.maximum(share, 1e-300) / 0.5)

    def outer(xs):
        normal = PairedNormal((_CENSORED,))
        values = []
        for x in xs:

            def inner(y, x=x):
                ratio = normal.pointwise(np.full((len(y), 1), x), y[:, None])
                return np.exp(ratio) * _normal(x) * _normal(y) * ratio

            values.append(_integral(inner, 0, 12, pieces=30))
        return np.array(values)

    singles = 2 * _integral(single, 0, 12)
    return both * math.log(4 * both) + singles + _integral(outer, 0, 12, pieces=30)


_add(
    "mixed-censored",
    "mixed",
    "normals with correlation 0.8, both cut off at a detection limit of 0",
    _censored,
    _censored_information,
)

_GRID = 0.5


@cache
def _rounded_table():
    """Probabilities of cells of width 0.5 from −10 to 10, of normals with correlation 0.8."""
    rho, points, weights = 0.8, *np.polynomial.legendre.leggauss(20)
    edges = (np.arange(-20, 22) - 0.5) * _GRID
    at = edges[:-1, None] + _GRID * (points + 1) / 2
    table = np.empty((len(at), len(at)))
    for k, row in enumerate(at):
        upto = _normal_cdf((edges[None] - rho * row[:, None]) / math.sqrt(1 - rho**2))
        inside = np.diff(upto.reshape(len(row), -1), axis=1)
        table[k] = (weights * _normal(row)) @ inside * _GRID / 2
    return table


def _rounded(n, rng):
    cells = [np.rint(side[:, 0] / _GRID) for side in PairedNormal((0.8,)).draw(rng, n)]
    table = _rounded_table()
    place = [cell.astype(int) + 20 for cell in cells]
    ratio = np.log(table[place[0], place[1]] / (table.sum(1)[place[0]] * table.sum(0)[place[1]]))
    return cells[0][:, None] * _GRID, cells[1][:, None] * _GRID, ratio


_add(
    "mixed-rounded",
    "mixed",
    "normals with correlation 0.8, rounded to halves",
    _rounded,
    lambda: information_of_table(_rounded_table()),
)


# Circular variables, in degrees.


def _log_bessel(kappa):
    return math.log(float(np.i0(kappa)))


def _mises_information(kappa):
    """Information of an angle and the same angle with von Mises noise."""
    peak = _integral(lambda t: np.cos(t) * np.exp(kappa * np.cos(t)), 0, math.pi) / math.pi
    return kappa * peak / float(np.i0(kappa)) - _log_bessel(kappa)


def _angles(n, rng, kappa):
    x, noise = rng.uniform(0, 2 * math.pi, n), rng.vonmises(0, kappa, n)
    return x, (x + noise) % (2 * math.pi), kappa * np.cos(noise) - _log_bessel(kappa)


def _two_angles(n, rng):
    x, y, ratio = _angles(n, rng, 4.0)
    return np.degrees(x)[:, None], np.degrees(y)[:, None], ratio


_add(
    "circular-two-angles",
    "circular",
    "a direction and the same with von Mises noise (κ = 4), in degrees",
    _two_angles,
    lambda: _mises_information(4.0),
    "circular",
    "circular",
)


def _folded_density(y, function, spread, points=512):
    """Density of function(U) + normal noise, U uniform on a period."""
    at = function((np.arange(points) + 0.5) / points)
    parts = np.array_split(y, len(y) // 500 + 1)
    return np.concatenate([_normal(part[:, None] - at, spread).mean(axis=1) for part in parts])


def _folded(name, family, about, function, periods, spread, degrees):
    def draw(n, rng):
        u = rng.uniform(size=n)
        y = function(periods * u) + spread * rng.standard_normal(n)
        ratio = np.log(_normal(y - function(periods * u), spread))
        ratio -= np.log(_folded_density(y, function, spread))
        return (360 * u if degrees else u)[:, None], y[:, None], ratio

    def information():
        def integrand(y):
            p = _folded_density(y, function, spread)
            return -p * np.log(np.maximum(p, 1e-300))

        noise = 0.5 * math.log(2 * math.pi * math.e * spread**2)
        return _integral(integrand, -1 - 9 * spread, 1 + 9 * spread, pieces=60) - noise

    _add(name, family, about, draw, information, "circular" if degrees else "number")


_folded(
    "circular-cosine",
    "circular",
    "Y the cosine of a direction, with noise",
    lambda u: np.cos(2 * math.pi * u),
    1,
    0.3,
    True,
)


# Few columns.


def _tent(n, rng):
    law = Additive(0.5)
    u, y = law.draw(rng, n)
    x = np.where(rng.uniform(size=(n, 1)) < 0.5, u / 2, 1 - u / 2)
    return x, y, law.pointwise(u, y)


def _signs(columns):
    def draw(n, rng):
        x = rng.standard_normal((n, columns))
        flipped = rng.uniform(size=n) < 0.1
        sign = np.sign(x).prod(axis=1) * np.where(flipped, -1, 1)
        y = np.abs(rng.standard_normal(n)) * sign
        return x, y[:, None], np.log(np.where(flipped, 0.2, 1.8))

    return draw


def _cauchy(n, rng):
    x, noise = rng.standard_cauchy(n), rng.standard_cauchy(n)
    y = x + noise
    ratio = -np.log(math.pi * (1 + noise**2)) + np.log(2 * math.pi * (1 + (y / 2) ** 2))
    return x[:, None], y[:, None], ratio


_task("few-normal", "few columns", "1v1-normal-0.75")
_task("few-additive", "few columns", "1v1-additive-0.1")
_task("few-swissroll", "few columns", "swissroll_x-normal_cdf-1v1-normal-0.75")
_task("few-spiral", "few columns", "spiral-multinormal-sparse-3-3-2-2.0")
_task("few-student", "few columns", "student-identity-2-2-1")
_task("few-wave", "few columns", "mixture-wave")
_add("few-triangle", "few columns", "Y a tent of X plus uniform noise", _tent, lambda: 0.5)
_add(
    "few-xor-signs",
    "few columns",
    "the sign of Y is the product of the signs of two normal columns, 10 % flipped",
    _signs(2),
    lambda: math.log(2) - entropy(0.1, 0.9),
)
_add(
    "few-parity-3",
    "few columns",
    "the sign of Y is the product of the signs of three normal columns, 10 % flipped",
    _signs(3),
    lambda: math.log(2) - entropy(0.1, 0.9),
)
_add("few-cauchy", "few columns", "X Cauchy, Y = X + Cauchy", _cauchy, lambda: math.log(2))
_folded(
    "few-sine-8",
    "few columns",
    "eight periods of a sine with noise of 0.2",
    lambda u: np.sin(2 * math.pi * u),
    8,
    0.2,
    False,
)


# Many columns.


def _embedded(name, about, correlations, columns, curve):
    """Correlated normals u and v, each mapped injectively into many columns with nuisance."""
    law = PairedNormal(correlations)

    def draw(n, rng):
        pair = law.draw(rng, n)
        tables = [
            curve(side, rng.standard_normal((n, columns)), number)
            for number, side in enumerate(pair)
        ]
        return tables[0], tables[1], law.pointwise(*pair)

    _add(name, "many columns", about, draw, law.information)


def _helix(u, rest, number):
    angle = 2 * math.pi * 1.5 * _normal_cdf(u).reshape(-1)
    height = 3 * angle / (2 * math.pi * 1.5) - 1.5
    rest[:, :3] = np.stack((2 * np.cos(angle), 2 * np.sin(angle), height), axis=1)
    return rest @ _rotation(rest.shape[1], 11 + number)


def _rotated(u, rest, number):
    rest[:, : u.shape[1]] = u
    return rest @ _rotation(rest.shape[1], 21 + number)


def _warped(u, rest, number):
    mixed = _rotated(u, rest, number)
    mixed = mixed + 0.45 * np.sin(2 * mixed)  # increasing, so the map is injective
    return mixed @ _rotation(rest.shape[1], 31 + number)


_RANK_3 = (math.sqrt(-math.expm1(-4 / 3)),) * 3  # 2 nats in all
_embedded(
    "many-helix",
    "1.5 turns of a helix in 50 columns a side, 47 of noise, rotated",
    (0.9,),
    50,
    _helix,
)
_embedded("many-rank-3", "rank 3 in 100 + 100 rotated normal columns", _RANK_3, 100, _rotated)
_embedded("many-warped", "rank 3 in 100 + 100, bent and rotated again", _RANK_3, 100, _warped)
_task("many-sparse", "many columns", "multinormal-sparse-25-25-2-2.0")
_task("many-dense", "many columns", "multinormal-dense-25-25-0.5")
_task("many-cubic", "many columns", "cubic-2")
_task("many-spiral", "many columns", "spiral-multinormal-sparse-25-25-2-2.0")


# Small images, 8 × 8 pixels as 64 columns.


@cache
def _digit_pools():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return [images[labels == label] for label in range(10)]


def _digits(n, rng):
    label = rng.integers(0, 10, n)
    pools = _digit_pools()
    sides = [np.stack([pools[k][rng.integers(len(pools[k]))] for k in label]) for _ in range(2)]
    noisy = [side + 0.5 * rng.standard_normal(side.shape) for side in sides]
    return noisy[0], noisy[1], np.full(n, math.log(10))


def _bars(n, rng):
    joint = _channel(np.full(8, 1 / 8), 0.8)
    cell = rng.choice(64, size=n, p=joint.ravel())
    images = rng.standard_normal((2, n, 8, 8))
    images[0, np.arange(n), cell // 8, :] += 4
    images[1, np.arange(n), :, cell % 8] += 4
    return *images.reshape(2, n, 64), np.log(64 * joint.ravel()[cell])


def _blobs(n, rng):
    law = PairedNormal((0.9, 0.9))
    pair = law.draw(rng, n)
    pixel = np.arange(8)
    images = []
    for side in pair:
        centre = 7 * _normal_cdf(side).reshape(side.shape)
        bumps = np.exp(-((pixel - centre[:, :, None]) ** 2) / (2 * 1.5**2))
        images.append((bumps[:, 0, :, None] * bumps[:, 1, None, :]).reshape(n, 64))
    return images[0], images[1], law.pointwise(*pair)


_add(
    "images-digits",
    "small images",
    "two scanned digits of one class with pixel noise; the class can be told from either",
    _digits,
    lambda: math.log(10),
)
_add(
    "images-bars",
    "small images",
    "a horizontal and a vertical bar in noise; positions agree in 80 % of the rows",
    _bars,
    lambda: information_of_table(_channel(np.full(8, 1 / 8), 0.8)),
)
_add(
    "images-blobs",
    "small images",
    "two smooth blobs whose two coordinates have correlation 0.9",
    _blobs,
    PairedNormal((0.9, 0.9)).information,
)


# Series: independent windows, so that rows are independent and the truth is defined.


def _windows(n, rng, memory=0.8, past=8, future=4):
    series = np.empty((n, past + future))
    series[:, 0] = rng.standard_normal(n)
    for step in range(1, past + future):
        noise = math.sqrt(1 - memory**2) * rng.standard_normal(n)
        series[:, step] = memory * series[:, step - 1] + noise
    last, first = series[:, past - 1 : past], series[:, past : past + 1]
    return series[:, :past], series[:, past:], PairedNormal((memory,)).pointwise(last, first)


def _oscillators(n, rng):
    first, second, ratio = _angles(n, rng, 6.0)
    time = 2 * math.pi * np.arange(16) / 16
    return np.sin(time + first[:, None]), np.sin(2 * time + second[:, None]), ratio


_add(
    "series-windows",
    "series",
    "eight values of an AR(0.8) series and the next four, independent windows",
    _windows,
    PairedNormal((0.8,)).information,
)
_add(
    "series-oscillators",
    "series",
    "windows of two oscillators whose phases are locked with noise (κ = 6)",
    _oscillators,
    lambda: _mises_information(6.0),
)
