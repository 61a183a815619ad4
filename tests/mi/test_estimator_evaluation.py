"""Numbers read on test rows: sums, read-outs, standard errors and p-values against loops."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from estimator_reference import READOUTS, infonce, jackknife, mean, others, without
from flatnce.mi import SeparableCritic, estimate_each, readouts
from flatnce.mi.fitting import scale_and_floor
from flatnce.mi.readouts import (
    EvaluationPart,
    evaluate,
    group_sums,
    permutation_p_value,
    readouts_of,
)

N, POOL, GROUPS = 17, 11, 4
_first_units = itertools.count(0, 1_000_000)


def units_of(n):
    """Units of one row each, which no other part has."""
    return next(_first_units) + np.arange(n)


class Product(SeparableCritic):
    """Scores are products of the rows themselves; blocks of a few rows where asked."""

    def __init__(self, entries=None):
        super().__init__(nn.Identity(), nn.Identity())
        self.entries = entries

    def blocks(self, x, y, **choices):
        if self.entries:
            choices["entries"] = self.entries
        return super().blocks(x, y, **choices)


def part(size=1.0, entries=None, scale=0.7, seed=0, n=N, groups=GROUPS):
    random = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, n, 3, generator=random, dtype=torch.float64)
    y = (x + y) * size
    pool = size * torch.randn(POOL, 3, generator=random, dtype=torch.float64)
    return EvaluationPart(
        Product(entries), scale, x, y, pool, torch.arange(n) * 7 % groups, units_of(n)
    )


def matrices(given):
    scores = given.scale * given.x @ given.y.T
    return scores.tolist(), (given.scale * given.x @ given.y_pool.T).tolist()


# --- Sums ----------------------------------------------------------------------------------------


def test_a_group_that_holds_almost_all_of_the_sum_can_be_left_out():
    """Subtracting it would leave rounding."""
    given = part()
    y = given.y.clone()
    y[0] = 100 * given.x[1]
    given = dataclasses.replace(given, y=y)
    scores, _ = without(*matrices(given), given.group.tolist(), 0)
    found, _ = group_sums(given).statistics(0)
    wanted = [math.log(math.fsum(map(math.exp, others(row, i)))) for i, row in enumerate(scores)]
    assert found.negative.tolist() == pytest.approx(wanted, rel=1e-12)


# --- Read-outs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [None, 2 * N])
@pytest.mark.parametrize("size", [0.1, 1.0, 4.0])
def test_every_read_out_is_its_definition(size, entries):
    given = part(size, entries)
    found, (scores, pool) = readouts_of([group_sums(given)]), matrices(given)
    assert list(found) == list(READOUTS)
    for name, slow in READOUTS.items():
        assert found[name].name == name
        assert found[name].nats == pytest.approx(slow(scores, pool), rel=1e-9, abs=1e-11)


def test_an_offset_of_the_rows_changes_no_read_out():
    """A critic's c(x): every read-out is indifferent to it, recentred or by itself."""

    class Lifted(Product):
        def _block(self, left, right):
            return super()._block(left, right) + 3 * left[:, :1] + 40

    given = part()
    one = readouts_of([group_sums(given)])
    two = readouts_of([group_sums(dataclasses.replace(given, critic=Lifted()))])
    for name in one:
        assert two[name].nats == pytest.approx(one[name].nats, rel=1e-9)
        assert two[name].standard_error == pytest.approx(one[name].standard_error, rel=1e-7)


def test_the_estimate_of_scores_of_heavy_tails_stays_below_its_ceiling():
    for size in (0.1, 4.0):
        found = evaluate([part(size)], 19, 0)
        assert found.readouts["infonce"].nats <= found.ceiling == pytest.approx(math.log(N))


def test_the_lower_limit_and_the_effective_number_of_negatives_are_their_definitions():
    given = part()
    found, scores = evaluate([given], 19, 0), matrices(given)[0]
    primary = found.readouts["infonce"]
    student = 2.3533634348  # 95 % of Student's t of three degrees of freedom lies below
    assert primary.nats > student * primary.standard_error > 0.01
    expected = primary.nats - student * primary.standard_error
    assert found.lower == pytest.approx(expected, rel=1e-8)
    numbers = []
    for i, row in enumerate(scores):
        powers = [math.exp(value) for value in others(row, i)]
        numbers.append(sum(powers) ** 2 / sum(value**2 for value in powers))
    assert found.ess == pytest.approx(sorted(numbers)[N // 2], rel=1e-9)
    assert (found.rows, found.units, found.permutations) == ((N,), N, 19)
    wrong = evaluate([dataclasses.replace(given, scale=-0.7)], 19, 0)
    assert wrong.readouts["infonce"].nats < 0 == wrong.lower
    several = dataclasses.replace(given, units=np.arange(N) // 2)
    assert evaluate([several], 19, 0).units == 9


# --- Labels --------------------------------------------------------------------------------------


def test_the_limit_of_a_label_holds_where_few_test_rows_are_wrong():
    """A label and its copy with 1 % errors: most quarters of 200 rows show none of them."""
    truth = math.log(2) + 0.01 * math.log(0.01) + 0.99 * math.log(0.99)
    random = np.random.default_rng(0)
    label, wrong = random.random((2, 40, 200)) < [[[0.5]], [[0.01]]]
    pairs = zip(1.0 * label, 1.0 * (label ^ wrong), strict=True)
    found = estimate_each([*pairs], steps=20, permutations=19, baselines=False)
    assert sum(one.lower > truth for one in found) <= 2  # 5 % of 40
    assert sum(one.best.low > truth for one in found) <= 4
    assert sum(one.lower > 0.2 for one in found) >= 38
    assert all(one.flagged("few_errors") for one in found)


def label_with_errors(wrong, rows=100):
    """Two classes, of which so many partners are the other class, and a critic of classes."""
    x = torch.eye(2, dtype=torch.float64)[torch.arange(rows) % 2]
    order = torch.from_numpy(np.random.default_rng(wrong).permutation(rows))
    y = x.clone()
    y[order[:wrong]] = 1 - x[order[:wrong]]
    return EvaluationPart(
        Product(), 9.0, x, y, x, torch.arange(rows) // 2 % 20, units_of(rows), 0.02
    )


def test_errors_that_may_be_expected_are_added_to_the_limit_of_a_label():
    special = pytest.importorskip("scipy.special")
    for wrong in range(6):
        part = label_with_errors(wrong)
        plain, few = (evaluate([part], 19, 0, label) for label in (False, True))
        more = special.gammaincinv(wrong + 1, 0.95) - wrong
        nats = few.readouts["infonce"].nats
        cost = more / (100 + more) * (nats - math.log(0.02))
        assert few.few_errors and not plain.few_errors and few.lower < plain.lower
        assert nats - few.lower == pytest.approx(cost, rel=0.02)
    groups = dataclasses.replace(label_with_errors(1), units=np.arange(100) // 2)
    assert (
        evaluate([groups], 19, 0, True).lower < evaluate([label_with_errors(1)], 19, 0, True).lower
    )


def test_the_limit_of_a_label_falls_with_each_further_error():
    parts = [label_with_errors(wrong, 400) for wrong in range(12)]
    limits = [evaluate([part], 19, 0, True).lower for part in parts]
    assert limits == sorted(limits, reverse=True) and 0 < limits[11] < limits[0]


@pytest.mark.parametrize("wrong", [0, 5, 12, 20, 28, 32])
def test_the_limit_of_a_label_is_the_smaller_one_of_two(wrong):
    part = label_with_errors(wrong, 400)
    plain, found = (evaluate([part], 19, 0, label) for label in (False, True))
    assert found.lower <= plain.lower
    assert found.few_errors == (found.lower < plain.lower)
    assert found.few_errors or wrong > 5


def test_the_limit_of_a_label_with_many_errors_is_that_of_student():
    random = np.random.default_rng(0)
    for seed in range(3):
        y = torch.from_numpy(random.integers(2, size=(200, 1)) * 2.0 - 1)
        x = y * 0.7 + torch.from_numpy(random.normal(size=(200, 1)))
        part = EvaluationPart(Product(), 0.7, x, y, y, torch.arange(200) % 20, units_of(200), 0.02)
        plain, few = (evaluate([part], 19, seed, label) for label in (False, True))
        assert few.lower == plain.lower > 0 and not few.few_errors


@pytest.mark.parametrize("expected", [2, 4, 8])
def test_limits_of_labels_are_above_the_truth_in_at_most_5_percent_of_tables(expected):
    random, above = np.random.default_rng(expected), 0
    rate = expected / 100
    truth = math.log(2) + rate * math.log(rate) + (1 - rate) * math.log(1 - rate)
    for _ in range(100):
        validation, part = (label_with_errors(random.binomial(100, rate)) for _ in range(2))
        scores = part.critic(validation.x, validation.y)
        scale, floor = scale_and_floor(scores, 5.0)
        given = dataclasses.replace(part, scale=scale, floor=floor, y_pool=validation.y)
        above += evaluate([given], 1, 0, True).lower > truth
    assert above <= 9  # 5 % of 100, and two standard deviations


def ambiguous_labels(random, rows=200, ambiguous=0.03, wrong=0.005):
    """Labels with few errors; of some rows the critic does not predict the label."""
    left_open, label = random.random(rows) < ambiguous, random.integers(2, size=rows)
    chance = np.where(left_open, 0.45, wrong)
    half = np.where(left_open, math.log(0.55 / 0.45) / 2, 4.5) * np.where(label == 0, 1, -1)
    y = np.eye(2)[label ^ (random.random(rows) < chance)]
    return torch.from_numpy(np.column_stack((half, -half))), torch.from_numpy(y)


def test_ambiguous_rows_do_not_take_the_place_of_errors_that_may_be_expected():
    random, above, nats = np.random.default_rng(0), 0, []
    truth = math.log(2) - sum(
        -share * sum(p * math.log(p) for p in (rate, 1 - rate))
        for share, rate in ((0.03, 0.45), (0.97, 0.005))
    )
    groups = torch.arange(200) % 20
    for _ in range(100):
        (x, y), (other, pool) = ambiguous_labels(random), ambiguous_labels(random)
        scale, floor = scale_and_floor(Product()(other, pool), 1.0)
        given = EvaluationPart(Product(), scale, x, y, pool, groups, np.arange(200), floor=floor)
        found = evaluate([given], 1, 0, True)
        above += found.lower > truth
        nats.append(found.readouts["infonce"].nats)
    assert np.mean(nats) == pytest.approx(truth, abs=0.03)  # the critic is that of the truth
    assert above <= 5


# --- Several parts -------------------------------------------------------------------------------


def slow_mean(parts, slow, left_out=None):
    total, rows = 0.0, 0
    for given in parts:
        scores, pool = without(*matrices(given), given.group.tolist(), left_out)
        total, rows = total + len(scores) * slow(scores, pool), rows + len(scores)
    return total / rows


def test_parts_weigh_by_their_rows_and_the_jackknife_is_the_explicit_loop():
    parts = [part(), part(seed=1, n=12)]
    found = readouts_of([group_sums(given) for given in parts])
    for name, slow in READOUTS.items():
        assert found[name].nats == pytest.approx(slow_mean(parts, slow), rel=1e-10)
        left = [slow_mean(parts, slow, group) for group in range(GROUPS)]
        assert found[name].standard_error == pytest.approx(jackknife(left), rel=1e-7)


def test_of_three_parts_their_own_spread_counts_where_it_is_larger():
    parts = [part(size) for size in (0.01, 1.0, 3.0)]
    found = readouts_of([group_sums(given) for given in parts])["infonce"]
    values = [slow_mean([given], READOUTS["infonce"]) for given in parts]
    spread = math.sqrt(mean((value - mean(values)) ** 2 for value in values) * 3 / 2 / 3)
    left = [slow_mean(parts, READOUTS["infonce"], group) for group in range(GROUPS)]
    assert spread > jackknife(left)
    assert found.standard_error == pytest.approx(spread, rel=1e-9)


# --- Standard errors -----------------------------------------------------------------------------


def permuted_part(n, seed=0, strength=0.0, units=None):
    units = units_of(n) if units is None else units
    random = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(2, n, 2, generator=random, dtype=torch.float64)
    return EvaluationPart(Product(), 0.3, x, strength * x + noise, noise, torch.arange(n), units)


def draws(count, permutations, seed=0):
    random = np.random.default_rng([seed, 0x9E57])
    return [random.permutation(count) for _ in range(permutations)]


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_it_is_infonce_recomputed_under_each_permutation(strength):
    given = permuted_part(14, strength=strength)
    scores = (given.scale * given.x @ given.y.T).numpy()
    true = infonce(scores.tolist())
    values = [infonce(scores[:, order].tolist()) for order in draws(14, 99)]
    wanted = (1 + sum(value >= true - 1e-12 for value in values)) / 100
    assert permutation_p_value([given], 99, 0) == pytest.approx(wanted)


def test_with_a_floor_every_permutation_is_read_with_it():
    """One row whose partner scores very low decides without the floor, and hardly with it."""
    given = permuted_part(12, strength=0.6)
    y = given.y.clone()
    y[3] = -25 * given.x[3]
    scores = (given.scale * given.x @ y.T).tolist()
    results = []
    for floor in (0.0, 0.2):
        values = []
        for order in [range(12), *draws(12, 99)]:
            weights = []
            for i, row in enumerate(scores):
                top = max(row)
                total = math.fsum(math.exp(value - top) for value in row)
                share = math.exp(row[order[i]] - top) / total
                weights.append((1 - floor) * share + floor / 12)
            values.append(math.fsum(map(math.log, weights)))
        results.append(mean(value >= values[0] - 1e-9 for value in values))
        part = dataclasses.replace(given, y=y, floor=floor)
        assert permutation_p_value([part], 99, 0) == pytest.approx(results[-1])
    assert abs(results[0] - results[1]) > 0.1


def test_at_most_two_thousand_rows_are_read():
    for count, expected in ((2048, 2048), (2049, 2048), (5000, 2048)):
        assert len(readouts._chosen_rows(np.arange(count))) == expected


@pytest.mark.parametrize(("behind", "equal"), [(0.5e-12, True), (1.5e-12, False)])
def test_sums_that_differ_by_rounding_are_equal(behind, equal):
    """Two rows have two orders, of which the other one scores a little less than the true one."""
    y = torch.tensor([[0.5, 0.5 - behind], [0.5, 0.5]], dtype=torch.float64)
    x, groups = torch.eye(2, dtype=torch.float64), torch.arange(2)
    part = EvaluationPart(Product(), 1.0, x, y, y, groups, units_of(2))
    same = 1 + sum(order[0] == 0 for order in draws(2, 99))
    assert 0.3 < same / 100 < 0.7
    found = permutation_p_value([part], 99, 0)
    assert found == pytest.approx(1.0 if equal else same / 100)


def test_of_many_rows_as_many_units_are_read_as_fit(monkeypatch):
    monkeypatch.setattr(readouts, "LARGEST_MATRIX_ROWS", 4)
    for units, expected in [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3]),
        ([1, 0, 1, 0, 1, 0], [1, 3, 0, 2]),  # two of each of two units
        ([0, 0, 0, 1, 2], [0, 3, 4]),
    ]:
        assert readouts._chosen_rows(np.array(units)).tolist() == expected


@pytest.mark.parametrize("parts", [1, 2])
def test_under_independence_it_keeps_its_level(parts):
    """400 data sets: shares within 3.5 standard errors of a binomial."""
    count, found = 400, []
    for number in range(count):
        given = [permuted_part(10, seed=1000 * k + number) for k in range(parts)]
        found.append(permutation_p_value(given, 39, number))
    for level in (0.05, 0.5):
        margin = 3.5 * math.sqrt(level * (1 - level) / count)
        assert np.mean(np.array(found) <= level + 1e-9) == pytest.approx(level, abs=margin)


def test_over_all_orders_of_few_rows_every_rank_is_equally_likely(monkeypatch):
    """Each of the 4! pairings in turn the true one, all of them drawn: p takes 24 even values."""
    given = permuted_part(4)
    orders = [np.array(order) for order in itertools.permutations(range(4))]

    class Every(np.random.Generator):
        def __init__(self, _):
            super().__init__(np.random.PCG64(0))
            self.left = iter(orders[1:])  # the first leaves all in place: the true one

        def permutation(self, count):
            return next(self.left)

    monkeypatch.setattr(np.random, "default_rng", Every)
    parts = [dataclasses.replace(given, y=given.y[order]) for order in orders]
    found = sorted(permutation_p_value([part], len(orders) - 1, 0) for part in parts)
    assert found == pytest.approx([rank / 24 for rank in range(1, 25)])


def test_it_is_never_nought_and_never_above_one():
    assert permutation_p_value([permuted_part(30, strength=20.0)], 99, 0) == pytest.approx(0.01)
    constant = dataclasses.replace(permuted_part(30), x=torch.zeros(30, 2).double())
    assert permutation_p_value([constant], 99, 0) == 1.0


@pytest.mark.parametrize("sizes", [[4] * 12, [3, 4, 5, 4] * 3], ids=["even", "uneven"])
def test_rows_that_repeat_within_a_unit_do_not_look_like_information(sizes):
    """Rows of a unit share x and share y, x and y independent: row by row this would be p = 0."""
    found, units = [], np.repeat(np.arange(12), sizes)
    for number in range(150):
        given = permuted_part(12, seed=number)
        whole = dataclasses.replace(given, x=given.x[units], y=given.y[units], units=units)
        found.append(permutation_p_value([whole], 39, number))
    shares = [np.mean(np.array(found) <= level + 1e-9) for level in (0.05, 0.5)]
    assert shares[0] < 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 150)
    assert shares[1] == pytest.approx(0.5, abs=3.5 * math.sqrt(0.25 / 150))


@pytest.mark.parametrize("sizes", [[3] * 8, [1, 2, 3, 4, 5, 9]], ids=["even", "uneven"])
def test_units_move_as_wholes_and_the_rows_that_both_have_meet_in_order(sizes):
    count = len(sizes)
    units, starts = np.repeat(np.arange(count), sizes), np.cumsum([0, *sizes])
    given = permuted_part(24, units=units)
    scores = (given.scale * given.x @ given.y.T).numpy()

    def met(a, b):
        rows = range(min(sizes[a], sizes[b]))
        return np.mean([scores[starts[a] + k, starts[b] + k] for k in rows])

    orders = [np.arange(count), *draws(count, 99)]
    totals = [sum(met(a, order[a]) for a in range(count)) for order in orders]
    wanted = np.mean([total >= totals[0] - 1e-9 for total in totals])
    assert permutation_p_value([given], 99, 0) == pytest.approx(wanted)
    # Units whose rows lie apart, in the same order: the same.
    mixed = np.argsort(np.arange(24) - starts[units], kind="stable")
    apart = dataclasses.replace(given, x=given.x[mixed], y=given.y[mixed], units=units[mixed])
    assert permutation_p_value([apart], 99, 0) == pytest.approx(wanted)


class Side(nn.Module):
    """Half of the log density ratio of a normal pair of correlation r."""

    def __init__(self, r, leads):
        super().__init__()
        self.r, self.leads = r, leads

    def forward(self, values):
        q = 1 - self.r**2
        alone = -(self.r**2) * values.square() / (2 * q)
        ends = (alone, torch.ones_like(alone))
        first = values * (self.r / q) if self.leads else values
        return torch.cat((first, *(ends if self.leads else ends[::-1])), dim=1)


def normal_part(r, n, seed, groups=20):
    random = torch.Generator().manual_seed(seed)
    draws = torch.randn(2, 2, n, 1, generator=random, dtype=torch.float64)
    x, y = draws[:, 0], r * draws[:, 0] + (1 - r * r) ** 0.5 * draws[:, 1]
    critic = SeparableCritic(Side(r, True), Side(r, False))
    return EvaluationPart(critic, 1.0, x[0], y[0], y[1], torch.arange(n) % groups, units_of(n))


@pytest.mark.slow
def test_at_the_true_critic_standard_errors_are_the_spread_over_samples():
    """The spread of 80 samples is known to 8 %; so 30 % is some four of its standard errors."""
    r, samples = 0.8, 80
    found = [readouts_of([group_sums(normal_part(r, 120, seed))]) for seed in range(samples)]
    truth = -math.log(1 - r * r) / 2
    for name in ("infonce", "flo-cross-fitted", "dv-recentred"):
        values = np.array([each[name].nats for each in found])
        errors = np.array([each[name].standard_error for each in found])
        ratio = math.sqrt((errors**2).mean()) / values.std(ddof=1)
        assert 0.7 < ratio < 1.4, name
        assert abs(values.mean() - truth) < 0.04  # a bound at its best is close to the truth
    limits = [
        each["infonce"].nats - 1.7291 * each["infonce"].standard_error  # Student's, 19 degrees
        for each in found
    ]
    covered = np.mean(np.array(limits) <= truth)
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / samples)
