"""Laws that were held back: they are scored once, on an estimator that is fixed by then.

They were written and committed before any estimator was run on them, by an author who had not read
how our estimator chooses its method. The interface is that of ``laws.py``: a truth that is a
closed form or an integral, and the log density ratio of every drawn row as its slow definition.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from laws import Array, Draw, Kinds, SuiteLaw, entropy, information_of_table
from laws import _folded_density as folded_density
from laws import _integral as integral
from laws import _normal as normal
from scipy.special import digamma, expit, gammaln, i0e, log_ndtr, ndtr

HELD_OUT: dict[str, SuiteLaw] = {}
NORMAL_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of spread 1


@dataclass(frozen=True)
class MixedLaw(SuiteLaw):
    """A law whose columns of x are of different kinds."""

    x_kinds: tuple[str, ...] = ()

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Array, Array, Kinds]:
        """Draw n independent pairs, rows by columns, and name the kind of each column."""
        x, y, (_, y_kinds) = super().sample(n, rng)
        return x, y, (self.x_kinds, y_kinds)


def _add(law: SuiteLaw) -> None:
    HELD_OUT[law.name] = law


def _column(values: Array) -> Array:
    return np.asarray(values, dtype=float)[:, None]


def _legendre(low: float, high: float, nodes: int) -> tuple[Array, Array]:
    """Points and weights of one Gauss–Legendre rule."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return low + (high - low) * (points + 1) / 2, weights * (high - low) / 2


def _entropy_integral(density: Callable[[Array], Array], low: float, high: float) -> float:
    """Differential entropy of a density of one variable."""

    def integrand(at: Array) -> Array:
        p = density(at)
        return -p * np.log(np.maximum(p, 1e-300))

    return integral(integrand, low, high, pieces=200)


def _binary_entropy(p: Array) -> Array:
    p = np.clip(p, 1e-300, 1 - 1e-16)
    return -p * np.log(p) - (1 - p) * np.log1p(-p)


def _label_information(chance: Callable[[Array], Array]) -> float:
    """Information of a label that is 1 with a chance which depends on a standard normal."""
    share = integral(lambda t: normal(t) * chance(t), -10, 10)
    left = integral(lambda t: normal(t) * _binary_entropy(chance(t)), -10, 10)
    return entropy(share, 1 - share) - left


# Categories: a treatment and a group that matter only together.

_TREATMENT = np.array((0.3, 0.25, 0.2, 0.1, 0.1, 0.05))
_GROUP = np.array((0.4, 0.3, 0.2, 0.1))


def _interaction_table() -> Array:
    """Joint probabilities of treatment, group and outcome."""
    i, j, k = np.ogrid[0:6, 0:4, 0:3]
    odds = np.exp(1.5 * np.cos(math.pi * (i + 2 * j + 2 * k) / 3))
    given = odds / odds.sum(axis=2, keepdims=True)
    return _TREATMENT[:, None, None] * _GROUP[:, None] * given


def _interaction(n: int, rng: np.random.Generator) -> Draw:
    joint = _interaction_table()
    cell = rng.choice(joint.size, size=n, p=joint.ravel() / joint.sum())
    treatment, group, outcome = np.unravel_index(cell, joint.shape)
    given = joint / joint.sum(axis=2, keepdims=True) / joint.sum(axis=(0, 1))
    x = np.stack((treatment, group), axis=1).astype(float)
    return x, _column(outcome), np.log(given[treatment, group, outcome])


_add(
    SuiteLaw(
        "categories-treatment-group",
        "categories",
        "one of six treatments and one of four groups against three outcomes, with interaction",
        _interaction,
        lambda: information_of_table(_interaction_table().reshape(24, 3)),
        "category",
        "category",
    )
)


# Rare events: an outcome of 3 % whose logit is linear in two of three skewed measurements.


def _rare_chance(t: Array) -> Array:
    return expit(-5.5 + 2.2 * t)


def _rare_logistic(n: int, rng: np.random.Generator) -> Draw:
    z = rng.standard_normal((n, 3))
    chance = _rare_chance((z[:, 0] + z[:, 1]) / math.sqrt(2))
    event = rng.uniform(size=n) < chance
    share = integral(lambda t: normal(t) * _rare_chance(t), -10, 10)
    ratio = np.where(event, np.log(chance / share), np.log((1 - chance) / (1 - share)))
    return np.exp(0.8 * z), _column(event), ratio


_add(
    SuiteLaw(
        "rare-logistic",
        "rare events",
        "an outcome of about 3 % with a logistic law in two of three log-normal measurements",
        _rare_logistic,
        lambda: _label_information(_rare_chance),
        "number",
        "category",
    )
)


# Labels against numbers.

_WAITING_SHARES, _WAITING_RATES = np.array((0.5, 0.3, 0.2)), np.array((1.0, 2.0, 5.0))
_WAITS = 4


def _waiting_logs(total: Array) -> Array:
    """Log density of the four times in each class; it depends on their sum only."""
    return _WAITS * np.log(_WAITING_RATES) - total[:, None] * _WAITING_RATES


def _waiting(n: int, rng: np.random.Generator) -> Draw:
    label = rng.choice(3, size=n, p=_WAITING_SHARES)
    x = rng.exponential(size=(n, _WAITS)) / _WAITING_RATES[label][:, None]
    each = _waiting_logs(x.sum(axis=1))
    whole = np.logaddexp.reduce(each + np.log(_WAITING_SHARES), axis=1)
    return x, _column(label), each[np.arange(n), label] - whole


def _waiting_information() -> float:
    def integrand(total: Array) -> Array:
        each = _waiting_logs(total)
        whole = np.logaddexp.reduce(each + np.log(_WAITING_SHARES), axis=1)
        volume = total ** (_WAITS - 1) / math.factorial(_WAITS - 1)  # of times with this sum
        return volume * (np.exp(each) * _WAITING_SHARES * (each - whole[:, None])).sum(axis=1)

    return integral(integrand, 0, 80)


_add(
    SuiteLaw(
        "labels-waiting-times",
        "labels",
        "four exponential waiting times whose rate depends on one of three classes",
        _waiting,
        _waiting_information,
        "number",
        "category",
    )
)

_MOON_SHARES, _MOON_SPREAD = np.array((0.6, 0.4)), 0.2


def _moon_points(label: Array, angle: Array) -> Array:
    upper = np.stack((np.cos(angle), np.sin(angle)), axis=-1)
    return np.where(label[..., None] == 0, upper, np.array((1.0, 0.5)) - upper)


def _moon_densities(at: Array) -> Array:
    """Density of each of the two classes at points of the plane."""
    angles, weights = _legendre(0, math.pi, 60)
    each = []
    for label in (0, 1):
        centres = _moon_points(np.full(60, label), angles)
        kernel = normal(at[:, None] - centres, _MOON_SPREAD).prod(axis=2)
        each.append(kernel @ weights / math.pi)
    return np.stack(each, axis=1)


def _moons(n: int, rng: np.random.Generator) -> Draw:
    label = rng.choice(2, size=n, p=_MOON_SHARES)
    x = _moon_points(label, rng.uniform(0, math.pi, n))
    x = x + _MOON_SPREAD * rng.standard_normal((n, 2))
    each = _moon_densities(x)
    return x, _column(label), np.log(each[np.arange(n), label] / (each @ _MOON_SHARES))


def _moon_information() -> float:
    step = 0.04
    grids = np.arange(-3, 4, step), np.arange(-2.5, 3, step)
    points = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, 2)
    each = np.maximum(_moon_densities(points), 1e-300)
    logs = np.log(each / (each @ _MOON_SHARES)[:, None])
    return float((each * _MOON_SHARES * logs).sum()) * step**2


_add(
    SuiteLaw(
        "labels-moons",
        "labels",
        "two noisy half circles that interlock, 60 % and 40 %",
        _moons,
        _moon_information,
        "number",
        "category",
    )
)


# Mixed columns.

_SLOPES, _OFFSETS, _SPREADS = (1.0, -0.6), (0.0, 0.5), (0.5, 0.8)


def _slopes_density(y: Array) -> Array:
    """Density of the outcome: a mixture of the two groups."""
    parts = zip(_SLOPES, _OFFSETS, _SPREADS, strict=True)
    return sum(normal(y - b, math.hypot(a, s)) / 2 for a, b, s in parts)


def _slopes(n: int, rng: np.random.Generator) -> Draw:
    group, age, visits = rng.integers(0, 2, n), rng.standard_normal(n), rng.poisson(3, n)
    slope, offset, spread = (np.array(v)[group] for v in (_SLOPES, _OFFSETS, _SPREADS))
    noise = rng.standard_normal(n)
    y = offset + slope * age + spread * noise
    ratio = np.log(normal(noise) / spread) - np.log(_slopes_density(y))
    return np.stack((group, age, visits), axis=1).astype(float), _column(y), ratio


_add(
    MixedLaw(
        "mixed-two-slopes",
        "mixed",
        "a group, a number and an irrelevant count; the slope of Y depends on the group",
        _slopes,
        lambda: (
            _entropy_integral(_slopes_density, -12, 12)
            - NORMAL_ENTROPY
            - sum(math.log(s) for s in _SPREADS) / 2
        ),
        x_kinds=("category", "number", "count"),
    )
)

_RAIN_OFFSET, _RAIN_SLOPE, _RAIN_LOAD, _RAIN_SPREAD = -0.6, 1.2, 0.8, 0.6


def _log_wet_density(amount: Array) -> Array:
    """Log of the density of log amounts on wet days times the share of wet days."""
    whole = math.hypot(_RAIN_LOAD, _RAIN_SPREAD)
    mean, spread = _RAIN_LOAD * amount / whole**2, _RAIN_SPREAD / whole
    wet = log_ndtr((_RAIN_OFFSET + _RAIN_SLOPE * mean) / math.hypot(1, _RAIN_SLOPE * spread))
    return -((amount / whole) ** 2) / 2 - math.log(whole * math.sqrt(2 * math.pi)) + wet


def _wet_share() -> float:
    return float(ndtr(_RAIN_OFFSET / math.hypot(1, _RAIN_SLOPE)))


def _rain(n: int, rng: np.random.Generator) -> Draw:
    x, noise = rng.standard_normal((2, n))
    wet = rng.standard_normal(n) < _RAIN_OFFSET + _RAIN_SLOPE * x
    amount = _RAIN_LOAD * x + _RAIN_SPREAD * noise
    rained = log_ndtr(_RAIN_OFFSET + _RAIN_SLOPE * x) + np.log(normal(noise) / _RAIN_SPREAD)
    rained = rained - _log_wet_density(amount)
    dry = log_ndtr(-_RAIN_OFFSET - _RAIN_SLOPE * x) - math.log(1 - _wet_share())
    return _column(x), _column(np.where(wet, np.exp(amount), 0)), np.where(wet, rained, dry)


def _rain_information() -> float:
    share = _wet_share()
    amounts = _entropy_integral(lambda a: np.exp(_log_wet_density(a)) / share, -12, 12)
    amounts -= NORMAL_ENTROPY + math.log(_RAIN_SPREAD)
    return _label_information(lambda x: ndtr(_RAIN_OFFSET + _RAIN_SLOPE * x)) + share * amounts


_add(
    SuiteLaw(
        "mixed-rainfall",
        "mixed",
        "humidity against rain: zero on dry days, log-normal on wet ones, both depend on X",
        _rain,
        _rain_information,
    )
)


# Few columns.

_HETERO = 0.9


def _log_size_density(w: Array) -> Array:
    """Density of log |Y| = 0.9 X + log |noise|."""
    at, weights = _legendre(-9, 9, 300)
    parts = []
    for part in np.array_split(w, len(w) // 500 + 1):
        size = np.exp(np.minimum(part[:, None] - _HETERO * at, 6))
        parts.append((2 * normal(size) * size) @ (weights * normal(at)))
    return np.concatenate(parts)


def _hetero(n: int, rng: np.random.Generator) -> Draw:
    x, noise = rng.standard_normal((2, n))
    y = np.exp(_HETERO * x) * noise
    given = np.log(2 * normal(noise) * np.abs(noise))
    return _column(x), _column(y), given - np.log(_log_size_density(np.log(np.abs(y))))


def _hetero_information() -> float:
    """The sign is independent of X, so I(X;Y) = h(log |Y|) − h(log |noise|)."""
    # E log |noise| = −(γ + log 2)/2, and h(log |noise|) = h(|noise|) − E log |noise|.
    noise = NORMAL_ENTROPY - math.log(2) + (np.euler_gamma + math.log(2)) / 2
    return _entropy_integral(_log_size_density, -45, 14) - noise


_add(
    SuiteLaw(
        "few-heteroscedastic",
        "few columns",
        "Y is noise whose spread is exp(0.9 X); X and Y are uncorrelated",
        _hetero,
        _hetero_information,
    )
)

_RING_SPREAD = 0.25


def _wave(u: Array) -> Array:
    return np.cos(2 * math.pi * u)


def _ring_log_density(radius: Array) -> Array:
    """Log density of a point of the plane at this distance from the centre of the ring."""
    peak = np.log(i0e(radius / _RING_SPREAD**2)) - (radius - 1) ** 2 / (2 * _RING_SPREAD**2)
    return peak - math.log(2 * math.pi * _RING_SPREAD**2)


def _ring(n: int, rng: np.random.Generator) -> Draw:
    angle = rng.uniform(0, 2 * math.pi, n)
    x, y = np.stack((np.cos(angle), np.sin(angle))) + _RING_SPREAD * rng.standard_normal((2, n))
    margins = sum(np.log(folded_density(side, _wave, _RING_SPREAD)) for side in (x, y))
    return _column(x), _column(y), _ring_log_density(np.hypot(x, y)) - margins


def _ring_information() -> float:
    one = _entropy_integral(lambda x: folded_density(x, _wave, _RING_SPREAD), -4, 4)

    def integrand(radius: Array) -> Array:
        logs = _ring_log_density(radius)
        return -2 * math.pi * radius * np.exp(logs) * logs

    return 2 * one - integral(integrand, 0, 4)


_add(
    SuiteLaw(
        "few-noisy-ring",
        "few columns",
        "the two coordinates of a point on a noisy ring",
        _ring,
        _ring_information,
    )
)


def _pareto(n: int, rng: np.random.Generator) -> Draw:
    size, growth = rng.exponential(size=(2, n))
    # log Y has the density s exp(−s), and exp(size − s) given log X = size.
    return (
        _column(np.exp(size)),
        _column(np.exp(size + growth)),
        size - np.log(size + growth),
    )


_add(
    SuiteLaw(
        "few-pareto-growth",
        "few columns",
        "X Pareto with infinite mean, Y = X times another such factor, so that Y ≥ X",
        _pareto,
        lambda: float(np.euler_gamma),  # 1 − ψ(2)
    )
)

_SHARES = np.array((0.6, 1.5, 0.8, 2.0, 1.2))  # X holds the first two, Y the next two


def _dirichlet_parts() -> tuple[Array, Array]:
    """Parameters of X with its remainder, and of Y with its remainder."""
    of_x = np.append(_SHARES[:2], _SHARES[2:].sum())
    return of_x, np.append(_SHARES[2:4], _SHARES[[0, 1, 4]].sum())


def _dirichlet_constant(parts: Array) -> float:
    return float(gammaln(parts).sum() - gammaln(parts.sum()))


def _dirichlet_entropy(parts: Array) -> float:
    total = parts.sum()
    spread = (total - len(parts)) * digamma(total) - ((parts - 1) * digamma(parts)).sum()
    return _dirichlet_constant(parts) + float(spread)


def _shares(n: int, rng: np.random.Generator) -> Draw:
    share = rng.gamma(_SHARES, size=(n, 5))
    share /= share.sum(axis=1, keepdims=True)
    x, y, rest = share[:, :2], share[:, 2:4], share[:, 4:]
    ratio = np.log(share) @ (_SHARES - 1) - _dirichlet_constant(_SHARES)
    sums = np.concatenate((y, rest), axis=1), np.concatenate((x, rest), axis=1)
    for side, others, parts in zip((x, y), sums, _dirichlet_parts(), strict=True):
        whole = np.column_stack((side, others.sum(axis=1)))
        ratio -= np.log(whole) @ (parts - 1) - _dirichlet_constant(parts)
    return x, y, ratio


_add(
    SuiteLaw(
        "few-shares",
        "few columns",
        "two against two of the five shares of a whole (Dirichlet)",
        _shares,
        lambda: (
            sum(_dirichlet_entropy(parts) for parts in _dirichlet_parts())
            - _dirichlet_entropy(_SHARES)
        ),
    )
)


# Many columns.


class JointNormal:
    """Columns with a joint normal law of mean 0, the first ``split`` of which are X."""

    def __init__(self, covariance: Array, split: int) -> None:
        self.blocks = [covariance[:split, :split], covariance[split:, split:], covariance]
        self.split = split

    def information(self) -> float:
        """I(X;Y) in nats."""
        x, y, both = (float(np.linalg.slogdet(block)[1]) for block in self.blocks)
        return (x + y - both) / 2

    def pointwise(self, columns: Array) -> Array:
        """Log density ratio of each row."""
        sides = columns[:, : self.split], columns[:, self.split :], columns
        x, y, both = (
            np.einsum("ij,ij->i", side @ np.linalg.inv(block), side)
            for side, block in zip(sides, self.blocks, strict=True)
        )
        return self.information() + (x + y - both) / 2


_LOADED = 40  # columns a side


def _loadings() -> tuple[Array, Array]:
    """Loadings of 80 columns on two shared factors, and the spread of their own noise."""
    place = np.arange(2 * _LOADED)
    loads = 0.45 * np.stack((np.cos(0.7 * place), np.sin(1.1 * place + 0.4)), axis=1)
    return loads, 0.6 + 0.3 * (place % 4)


def _expression_normal() -> JointNormal:
    loads, spread = _loadings()
    return JointNormal(loads @ loads.T + np.diag(spread**2), _LOADED)


def _expression(n: int, rng: np.random.Generator) -> Draw:
    loads, spread = _loadings()
    z = rng.standard_normal((n, 2)) @ loads.T + spread * rng.standard_normal((n, len(spread)))
    warped = z.copy()
    warped[:, 0::3] = np.exp(1.2 * z[:, 0::3])  # as concentrations
    warped[:, 1::3] = np.tanh(z[:, 1::3])  # as a detector that saturates
    return warped[:, :_LOADED], warped[:, _LOADED:], _expression_normal().pointwise(z)


_add(
    SuiteLaw(
        "many-expression",
        "many columns",
        "two factors in 40 + 40 noisy columns; a third of them log-normal, a third saturating",
        _expression,
        lambda: _expression_normal().information(),
    )
)

_INDEX_SPREAD = 0.4


def _square_density(y: Array) -> Array:
    """Density of t² + noise, t standard normal."""
    at, weights = _legendre(0, 9, 800)
    parts = np.array_split(y, len(y) // 500 + 1)
    weights = 2 * weights * normal(at)
    return np.concatenate(
        [normal(part[:, None] - at**2, _INDEX_SPREAD) @ weights for part in parts]
    )


def _square_index(n: int, rng: np.random.Generator) -> Draw:
    x, noise = rng.standard_normal((n, 20)), _INDEX_SPREAD * rng.standard_normal(n)
    y = (x[:, :5].sum(axis=1) / math.sqrt(5)) ** 2 + noise
    return x, _column(y), np.log(normal(noise, _INDEX_SPREAD)) - np.log(_square_density(y))


_add(
    SuiteLaw(
        "many-square-of-index",
        "many columns",
        "Y is the square of a sum of five of twenty normal columns, with noise",
        _square_index,
        lambda: (
            _entropy_integral(_square_density, -5, 80) - NORMAL_ENTROPY - math.log(_INDEX_SPREAD)
        ),
    )
)


# Spectra and small images.

_CHANNELS, _CHANNEL_SPREAD, _ABOVE = 40, 0.7, 0.7


def _spectral_parts() -> Array:
    """Three overlapping lines and a baseline with a slope, each with a random strength."""
    place = np.arange(_CHANNELS)
    lines = [np.exp(-((place - centre) ** 2) / 18) for centre in (12, 17, 28)]
    return np.stack((*lines, np.ones(_CHANNELS), (place - 19.5) / 20))


def _strength_weights() -> tuple[Array, float]:
    """Weights of the channels in the mean of the first strength given X, and its variance."""
    parts = _spectral_parts()
    covariance = parts.T @ parts + _CHANNEL_SPREAD**2 * np.eye(_CHANNELS)
    weights = np.linalg.solve(covariance, parts[0])
    return weights, 1 - float(parts[0] @ weights)


def _spectrum(n: int, rng: np.random.Generator) -> Draw:
    parts = _spectral_parts()
    strength = rng.standard_normal((n, len(parts)))
    x = strength @ parts + _CHANNEL_SPREAD * rng.standard_normal((n, _CHANNELS))
    above = strength[:, 0] > _ABOVE
    weights, left = _strength_weights()
    logit = (x @ weights - _ABOVE) / math.sqrt(left)
    ratio = np.where(above, log_ndtr(logit), log_ndtr(-logit))
    return x, _column(above), ratio - np.where(above, log_ndtr(-_ABOVE), log_ndtr(_ABOVE))


def _spectrum_information() -> float:
    _, left = _strength_weights()
    return _label_information(lambda t: ndtr((math.sqrt(1 - left) * t - _ABOVE) / math.sqrt(left)))


_add(
    SuiteLaw(
        "spectrum-threshold",
        "spectra",
        "a spectrum of forty channels and whether one substance exceeds a threshold",
        _spectrum,
        _spectrum_information,
        "number",
        "category",
    )
)

_GRATINGS = np.array(((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2)))  # waves along the axes


def _grating_table() -> Array:
    """Joint probabilities of the grating and its reported label: 15 % are wrong."""
    return (np.eye(6) * 0.82 + 0.03) / 6


def _gratings(n: int, rng: np.random.Generator) -> Draw:
    joint = _grating_table()
    shown, said = np.divmod(rng.choice(36, size=n, p=joint.ravel()), 6)
    row, column = np.divmod(np.arange(64), 8)
    phase = _GRATINGS[shown] @ np.stack((row, column)) * 2 * math.pi / 8
    phase = phase + rng.uniform(0, 2 * math.pi, (n, 1))
    x = 1.5 * np.cos(phase) + 0.5 * rng.standard_normal((n, 64))
    return x, _column(said), np.log(36 * joint[shown, said])


_add(
    SuiteLaw(
        "images-gratings",
        "small images",
        "8 × 8 gratings of six directions and any phase, in noise, with labels 15 % wrong",
        _gratings,
        lambda: information_of_table(_grating_table()),
        "number",
        "category",
    )
)


# Series: independent windows, so that rows are independent.

_CALM, _STORM = 1.0, 2.5
_REGIMES = np.array([[0.65, 0.06], [0.06, 0.23]])  # of the past and the next window
_PAST, _NEXT = 12, 4


def _regime_logs(square: Array, columns: int) -> Array:
    """Log density of a window in each regime, without the constant that both share."""
    spreads = np.array((_CALM, _STORM))
    return -square[:, None] / (2 * spreads**2) - columns * np.log(spreads)


def _regimes(n: int, rng: np.random.Generator) -> Draw:
    before, after = np.divmod(rng.choice(4, size=n, p=_REGIMES.ravel()), 2)
    spreads = np.array((_CALM, _STORM))
    x = spreads[before][:, None] * rng.standard_normal((n, _PAST))
    y = spreads[after][:, None] * rng.standard_normal((n, _NEXT))
    of_x, of_y = (np.exp(_regime_logs((side**2).sum(axis=1), side.shape[1])) for side in (x, y))
    both = np.einsum("ni,ij,nj->n", of_x, _REGIMES, of_y)
    return x, y, np.log(both / (of_x @ _REGIMES.sum(1)) / (of_y @ _REGIMES.sum(0)))


def _regime_information() -> float:
    sides = []
    for columns in (_PAST, _NEXT):
        radius, weights = _legendre(0, 12 * _STORM, 800)
        log_surface = (1 - columns / 2) * math.log(2) - math.lgamma(columns / 2)
        volume = np.exp(log_surface) * radius ** (columns - 1)
        sides.append(np.exp(_regime_logs(radius**2, columns)) * (volume * weights)[:, None])
    both = sides[0] @ _REGIMES @ sides[1].T
    apart = np.outer(sides[0] @ _REGIMES.sum(1), sides[1] @ _REGIMES.sum(0))
    logs = np.log(np.maximum(both, 1e-300) / np.maximum(apart, 1e-300))
    return float((both * logs).sum())


_add(
    SuiteLaw(
        "series-regimes",
        "series",
        "twelve returns and the next four; both windows are calm or stormy, mostly alike",
        _regimes,
        _regime_information,
    )
)

_BURN, _DRIVER, _FOLLOWER = 60, 10, 4


def _driven(noise: Array) -> Array:
    """The driver's last ten values and the follower's next four, from (steps, 2, …) noise."""
    steps = len(noise)
    driver, follower = np.zeros((2, steps, *noise.shape[2:]))
    for t in range(2, steps):
        driver[t] = 0.7 * driver[t - 1] + math.sqrt(0.51) * noise[t, 0]
        follower[t] = 0.5 * follower[t - 1] + 0.7 * driver[t - 2] + 0.5 * noise[t, 1]
    past = driver[_BURN : _BURN + _DRIVER]
    return np.concatenate((past, follower[_BURN + _DRIVER :]))


def _driver_normal() -> JointNormal:
    """The series are linear in their noise: the responses to unit noise give the covariance."""
    steps = _BURN + _DRIVER + _FOLLOWER
    response = _driven(np.eye(2 * steps).reshape(steps, 2, 2 * steps))
    return JointNormal(response @ response.T, _DRIVER)


def _driver(n: int, rng: np.random.Generator) -> Draw:
    windows = _driven(rng.standard_normal((_BURN + _DRIVER + _FOLLOWER, 2, n))).T
    return windows[:, :_DRIVER], windows[:, _DRIVER:], _driver_normal().pointwise(windows)


_add(
    SuiteLaw(
        "series-driver",
        "series",
        "ten values of an AR(0.7) series and the next four of one that follows it two steps later",
        _driver,
        lambda: _driver_normal().information(),
    )
)
