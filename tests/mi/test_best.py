"""The best estimate: which method is chosen, and how near it comes on laws of known truth."""

import math

import numpy as np
import pytest

from flatnce import mi
from flatnce.mi import best
from flatnce.mi.best import CriticValues, best_estimate


def _table(joint, n, seed=0):
    joint = np.array(joint)
    cell = np.random.default_rng(seed).choice(joint.size, size=n, p=joint.ravel())
    return [code[:, None].astype(float) for code in np.divmod(cell, joint.shape[1])]


def _critic(**values):
    known = {"nats": 0.5, "standard_error": 0.05, "lower": 0.4, "start": 0.5, "validation": 0.5}
    known["train"] = values.get("nats", 0.5)
    return CriticValues(**known | values)


def _labelled(centres, n, spread=1.0, seed=0):
    random = np.random.default_rng(seed)
    label = random.integers(0, len(centres), n)
    noise = random.normal(size=(n, len(centres[0])))
    return np.array(centres)[label] + spread * noise, label[:, None].astype(float)


@pytest.mark.parametrize("n, tolerance", [(200, 0.1), (5000, 0.02)])
def test_a_rare_condition_and_a_good_test(n, tolerance):
    x, y = _table([[0.97 * 0.99, 0.97 * 0.01], [0.03 * 0.01, 0.03 * 0.99]], n)
    found = best_estimate(x, y)
    assert found.method == "plug-in"
    assert found.nats == pytest.approx(0.110, abs=tolerance)
    assert found.low <= 0.110 <= found.high


def test_counts_of_independent_categories_are_not_below_nothing_and_nearly_nothing():
    values = []
    for seed in range(20):
        x, y = _table(np.outer((0.4, 0.3, 0.2, 0.1), (0.5, 0.3, 0.2)), 200, seed)
        values.append(best_estimate(x, y).nats)
    assert min(values) >= 0 and np.mean(values) < 0.02


def test_sparse_tables_of_categories_are_not_overstated():
    # Ten symbols, 200 rows for 100 cells: the plain plug-in is 0.2 too high.
    joint = 0.7 * np.eye(10) / 10 + 0.3 / 100
    truth = float((joint * np.log(100 * joint)).sum())
    values = [best_estimate(*_table(joint, 200, seed)).nats for seed in range(20)]
    assert np.mean(values) == pytest.approx(truth, abs=0.06)


def test_labels_of_gaussian_classes_and_of_others():
    x, y = _labelled(((0, 0, 0, 0), (8, 0, 0, 0), (0, 8, 0, 0)), 400)
    found = best_estimate(x, y)
    assert found.method in ("gaussian-classes", "label-neighbours")
    assert found.nats == pytest.approx(math.log(3), abs=0.03)
    assert best_estimate(y, x).nats == pytest.approx(found.nats, abs=1e-6)
    random = np.random.default_rng(0)
    label = random.integers(0, 5, 1000)
    found = best_estimate((label + random.uniform(0, 2, 1000))[:, None], label[:, None] * 1.0)
    assert found.method == "label-neighbours"
    assert found.nats == pytest.approx(math.log(5) - 0.8 * math.log(2), abs=0.05)


def test_of_many_rows_a_label_takes_a_subset_and_categories_take_all(monkeypatch):
    monkeypatch.setattr(best, "NEIGHBOUR_ROWS", 400)
    seen, whole = [], best._labelled
    monkeypatch.setattr(best, "_labelled", lambda *sides: seen.append(sides) or whole(*sides))
    x, y = _labelled(((0.0,), (2.0,)), 2000)
    found = best_estimate(x, y)  # truth 0.369
    assert [len(side.table) for side in seen[0]] == [400, 400]
    assert found.low <= 0.369 <= found.high and found.nats == pytest.approx(0.369, abs=0.08)
    assert best_estimate(y, x).nats == pytest.approx(found.nats, abs=1e-6)
    joint = _table([[0.3, 0.2], [0.1, 0.4]], 2000)
    narrow = best_estimate(*joint)
    monkeypatch.setattr(best, "NEIGHBOUR_ROWS", 5000)
    assert narrow == best_estimate(*joint)


@pytest.mark.parametrize("shares", [(50, 50, 50), (120, 25, 5)])
def test_nothing_says_more_about_a_label_than_its_entropy(shares):
    y = np.repeat((0.0, 1.0, 2.0), shares)[:, None]
    surprise = np.repeat(-np.log(np.array(shares) / 150), shares)
    entropy = min(surprise.mean() + 2 / 300, math.log(3))
    high = min(surprise.mean() + 2 / 300 + 1.96 * surprise.std() / 150**0.5, math.log(3))
    sure = _critic(nats=1.2, standard_error=0.2, lower=0.4, units=np.arange(150) // 4)
    x = 9 * y + np.random.default_rng(0).normal(size=(150, 1))
    for found in (best_estimate(x, y, sure), best_estimate(y, x, sure)):
        assert found.low <= found.nats == pytest.approx(entropy)
        assert found.high == pytest.approx(high)


def test_a_column_may_be_constant_in_a_class():
    x, y = _labelled(((0.0, 0.0), (4.0, 0.0)), 300)
    x[:, 1] *= y[:, 0]
    found = best_estimate(x, y)
    assert found.method == "gaussian-classes" and found.nats == pytest.approx(
        math.log(2), abs=0.02
    )


@pytest.mark.parametrize(
    "name, method",
    [
        ("1v1-normal-0.75", "gaussian-copula"),
        ("half_cube-1v1-normal-0.75", "gaussian-copula"),
        ("1v1-additive-0.1", "neighbours"),
        ("mixture-wave", "neighbours"),
    ],
)
def test_few_columns(name, method):
    task = mi.tasks.find(name)
    found = best_estimate(*task.sample(1000, seed=1))
    assert found.method == method and found.low <= task.mi <= found.high
    assert found.nats == pytest.approx(task.mi, abs=0.08)


def test_correlations_are_of_all_rows_where_neighbours_take_a_subset(monkeypatch):
    monkeypatch.setattr(best, "NEIGHBOUR_ROWS", 500)
    near, neighbours = [], best._neighbours
    monkeypatch.setattr(best, "_neighbours", lambda *a: near.append(neighbours(*a)) or near[0])
    x, y = mi.tasks.find("1v1-normal-0.75").sample(4000, seed=0)
    found = best_estimate(x, y)
    assert found.method == "gaussian-copula"
    assert found.nats == pytest.approx(mi.gaussian_copula(x, y), abs=1e-12)
    # 1.96 errors of 4,000 rows to each side, and above what neighbours of the subset find more.
    error = math.sqrt((2 * found.nats + 1.96**2 / 4000) / 4000 + 1 / (2 * 4000**2))
    missed = max(near[0].nats - found.nats, 0.0)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error + missed, rel=1e-6)


@pytest.mark.parametrize("columns, correlation", [(1, 0.1), (1, 0.2), (3, 0.1)])
def test_the_interval_of_correlations_holds_the_truth_near_independence_too(columns, correlation):
    held, random = 0, np.random.default_rng(0)
    truth = -columns * math.log1p(-(correlation**2)) / 2
    for _ in range(200):
        x, noise = random.normal(size=(2, 200, columns))
        value = best._gaussian(x, correlation * x + (1 - correlation**2) ** 0.5 * noise)
        low, high = value.interval
        held += max(low, 0) <= truth <= high
    assert held >= 0.93 * 200


def test_in_many_columns_correlations_stand_unless_held_out_rows_say_more():
    x, y = mi.tasks.find("multinormal-dense-5-5-0.5").sample(400, seed=0)
    plain = best_estimate(x, y, _critic())
    assert plain.method == "gaussian-copula"
    # What critics confirm less of has a wider interval, and so has what training rows show.
    unsure = best_estimate(x, y, _critic(start=0.45, validation=0.45, nats=0.45, lower=0.1))
    assert unsure.method == "gaussian-copula" and unsure.low < plain.low
    open_end = best_estimate(x, y, _critic(train=0.9))
    assert open_end.nats == plain.nats and open_end.high > plain.high + 0.3
    learned = best_estimate(x, y, _critic(validation=1.0, nats=0.9, lower=0.8, train=1.1))
    assert learned.method == "critic" and learned.nats == pytest.approx(1.0)  # of own and other
    assert learned.high > 1.1


def test_few_rows_of_many_correlated_columns_do_not_take_the_little_that_neighbours_find():
    task = mi.tasks.find("cubic-2")
    for seed in range(3):
        little = _critic(start=0.06, validation=0.11, nats=0.1, lower=0.0, train=0.6)
        found = best_estimate(*task.sample(200, seed=seed), little)
        assert found.method == "gaussian-copula" and found.low <= 2 <= found.high
        assert found.nats == pytest.approx(2, abs=0.5)


def test_so_few_rows_say_that_they_are_a_lower_bound_only():
    x, y = np.random.default_rng(0).normal(size=(2, 90, 50))
    nothing = _critic(start=0.0, validation=0.0, nats=0.0, lower=0.0)
    found = best_estimate(x, y, nothing)
    assert "lower bound only" in found.why and found.high >= math.log(90)


@pytest.mark.parametrize("name", ["mixture-galaxy", "student-identity-1-1-1"])
def test_neighbours_are_not_worse_than_on_the_plain_numbers_and_the_interval_holds(name):
    task = mi.tasks.find(name)
    tables = [task.sample(300, seed=seed) for seed in range(12)]
    found = [best_estimate(*table) for table in tables]
    ours = [each.nats - task.mi for each in found]
    plain = [mi.ksg(*table) - task.mi for table in tables]
    assert np.mean(np.square(ours)) < 1.2 * np.mean(np.square(plain))
    assert sum(each.low <= task.mi <= each.high for each in found) >= 10


def test_the_terms_of_correlations_are_the_log_density_ratio():
    stats = pytest.importorskip("scipy.stats")
    x, y = mi.tasks.find("multinormal-dense-2-2-0.5").sample(50, seed=0)
    spread = np.cov(np.hstack((x, y)).T, bias=True)
    centre = np.hstack((x, y)).mean(axis=0)
    parts = (slice(0, 4), 1), (slice(0, 2), -1), (slice(2, 4), -1)
    wanted = sum(
        sign
        * stats.multivariate_normal(centre[part], spread[part, part]).logpdf(
            np.hstack((x, y))[:, part]
        )
        for part, sign in parts
    )
    np.testing.assert_allclose(best._gaussian_terms(x, y), wanted, atol=1e-9)


def test_few_rows_that_carry_the_variance_widen_the_error():
    even = np.tile((-1.0, 1.0), 50)
    assert best._error(even) == pytest.approx(0.1, rel=0.02)
    rare = np.where(np.arange(100) < 3, 10.0, 0.0)
    assert best._error(rare) > 1.2 * rare.std() / 10


def test_columns_that_are_not_normal_take_neighbours_or_the_critic():
    random = np.random.default_rng(0)
    angle = random.uniform(0, 2 * np.pi, 500)
    other = angle + random.vonmises(0, 6, 500)
    time = np.arange(8) * np.pi / 4
    x, y = np.sin(time + angle[:, None]), np.sin(time + other[:, None])
    found = best_estimate(x, y, _critic())  # truth 1.266
    assert found.method == "neighbours" and found.nats == pytest.approx(1.27, abs=0.15)
    known = _critic(start=1.0, validation=1.3, nats=1.3, lower=1.0)
    assert best_estimate(x, y, known).method == "critic"


def _beside_normal_columns(columns, n, seed=0):
    """Six pairs of normal columns (1.339 nats), with columns of two values on one side."""
    x, noise = np.random.default_rng(seed).normal(size=(2, n, 6))
    return np.hstack((x, columns)), 0.6 * x + 0.8 * noise


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_independent_columns_of_two_values_leave_correlations(scale):
    flags = np.random.default_rng(1).integers(0, 2, size=(600, 2))
    x, y = _beside_normal_columns(flags, 600)
    known = _critic(start=1.1, validation=1.05, nats=1.0, lower=0.8, train=1.2)
    found = best_estimate(x * np.r_[[scale] * 3, [1.0] * 5], y, known)
    assert found.method == "gaussian-copula" and abs(found.nats - 1.339) < 0.15


def test_the_columns_of_words_beside_normal_columns_do_not_take_correlations():
    words = np.random.default_rng(1).integers(0, 4, size=600)[:, None] == np.arange(4)
    x, y = _beside_normal_columns(words, 600)
    known = _critic(start=1.1, validation=1.05, nats=1.0, lower=0.8, train=1.2)
    assert best_estimate(x, y, known).method == "critic"


def test_rows_that_belong_together_leave_the_critic_only():
    x, y = mi.tasks.find("1v1-normal-0.75").sample(100, seed=0)
    found = best_estimate(x, y, _critic(units=np.arange(len(x)) // 4))
    assert found.method == "critic" and found.nats == 0.5


def test_a_certified_limit_above_the_chosen_method_replaces_it():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 300, 1))
    found = best_estimate(x, y, _critic(lower=0.45, nats=0.6))
    assert found.method == "critic" and "certified" in found.why and found.nats == 0.6


def test_the_interval_does_not_reach_below_the_certified_limit():
    x, y = mi.tasks.find("1v1-normal-0.75").sample(100, seed=0)
    for nats in (0.5, 0.3):
        found = best_estimate(
            x, y, _critic(nats=nats, lower=0.4, validation=0.4, units=np.arange(len(x)) // 4)
        )
        assert found.low == 0.4 and found.nats == max(nats, 0.4) <= found.high


def test_the_default_call_holds_it_and_prints_nothing_below_zero():
    random = np.random.default_rng(3)
    x, y = random.normal(size=(2, 120))
    found = mi.estimate(x, y, steps=20, permutations=19, baselines=False)
    assert found.best is not None and found.best.nats >= 0 and found.best.low == 0
    assert "-" not in found.sentence().replace("nats", "")
    assert mi.estimate(x, y, method="infonce", steps=20, permutations=19).best is None


def _few(name, n, seed):
    random = np.random.default_rng(seed)
    if name == "triangle":
        u = random.uniform(size=n)
        x = np.where(random.uniform(size=n) < 0.5, u / 2, 1 - u / 2)
        return x[:, None], (u + random.uniform(-0.5, 0.5, n))[:, None]
    if name == "cauchy":
        x, noise = random.standard_cauchy((2, n, 1))
        return x, x + noise
    x = random.normal(size=(n, 2 if name == "xor" else 3))
    sign = np.sign(x).prod(axis=1) * np.where(random.uniform(size=n) < 0.1, -1, 1)
    return x, (np.abs(random.normal(size=n)) * sign)[:, None]


@pytest.mark.parametrize(
    "name, truth, before",  # before: what the trained critic alone had said
    [
        ("triangle", 0.5, 0.42),
        ("xor", 0.368, 0.25),
        ("parity", 0.368, 0.12),
        ("cauchy", 0.693, 0.53),
    ],
)
def test_laws_of_few_columns_that_a_critic_misses(name, truth, before):
    values = [best_estimate(*_few(name, 2000, seed)).nats for seed in range(3)]
    assert abs(np.mean(values) - truth) < 0.75 * (truth - before)


def test_a_critic_replaces_another_method_only_outside_its_interval():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 500, 1))  # independent: correlations may say less than 0
    values = {"standard_error": 0.01, "start": 0.0, "validation": 0.0, "train": 0.3}
    without = best_estimate(x, y)
    kept = best_estimate(x, y, CriticValues(nats=0.0, lower=1e-9, **values))
    assert kept.method == without.method != "critic" and kept.high == without.high > 0.001
    replaced = best_estimate(x, y, CriticValues(nats=0.3, lower=0.2, **values))
    assert replaced.method == "critic" and replaced.nats == 0.3


def test_independent_columns_that_are_not_normal_have_no_open_interval():
    x, y = np.random.default_rng(0).uniform(size=(2, 400, 3)) ** 4
    x[:, 1:] *= x[:, :1]  # within x alone
    little = _critic(start=0.0, validation=0.01, nats=0.002, lower=0.0, train=0.1)
    found = best_estimate(x, y, little)
    assert found.nats < 0.1 and found.high < 0.5


def test_counts_of_many_values_are_not_read_as_categories():
    random, found = np.random.default_rng(0), []
    for _ in range(4):
        rate = random.gamma(4.0, 2.0, size=(3000, 1))
        x, y = random.poisson(rate, size=(2, 3000, 1)).astype(float)
        found.append(best_estimate(x, y))
    assert not any(each.method == "plug-in" for each in found)
    # Negative binomials with a common gamma rate: summed over a grid of counts.
    assert np.mean([each.nats for each in found]) == pytest.approx(
        _shared_rate(4.0, 2.0), abs=0.02
    )


def _shared_rate(shape, scale, most=80):
    stats = pytest.importorskip("scipy.stats")
    grid = (np.arange(20_000) + 0.5) / 20_000
    rates = stats.gamma(shape, scale=scale).ppf(grid)
    one = stats.poisson.pmf(np.arange(most)[:, None], rates)
    joint = one @ one.T / len(rates)
    margin = joint.sum(axis=1)
    return float((joint * np.log(joint / np.outer(margin, margin))).sum())


FUNCTIONS = {
    "line": lambda x: 3 * x + 1,
    "sine": np.sin,
    "exponential": np.exp,
    "two branches": lambda x: x**2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [200, 1000])
def test_a_function_without_noise_has_no_upper_end(name, n):
    x = np.random.default_rng(n).normal(size=(n, 1))
    for sides in ((x, FUNCTIONS[name](x)), (FUNCTIONS[name](x), x)):
        assert best_estimate(*sides).high == math.inf
    other = np.random.default_rng(n + 1).normal(size=(n, 1))
    assert best_estimate(np.hstack((x, other)), x + other).high == math.inf


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("n", [200, 1000])
def test_a_function_with_noise_that_the_rows_resolve_has_an_upper_end(noise, n):
    random = np.random.default_rng(n)
    x = random.normal(size=(n, 2))
    y = x[:, :1] + noise * random.normal(size=(n, 1))
    truth = math.log1p(noise**-2) / 2
    for found in (best_estimate(x[:, :1], y), best_estimate(x, y)):
        assert found.low < truth < found.high < truth + 1.6


@pytest.mark.parametrize("rows", [4, 6, 10])
def test_near_copies_of_rows_are_not_taken_for_a_function(rows):
    random = np.random.default_rng(rows)
    person = random.permutation(np.repeat(np.arange(600 // rows), rows))
    sides = random.normal(size=(2, 600 // rows, 1))[:, person]
    x, y = sides + 0.01 * random.normal(size=(2, 600, 1))
    assert best_estimate(x, y).high < math.inf


def test_a_column_of_few_values_that_is_a_function_has_its_entropy_as_upper_end():
    x = np.random.default_rng(0).uniform(size=(1000, 1))
    found = best_estimate(x, np.floor(40 * x) + 0.5 * (x > 0.5))
    assert found.high <= math.log(41)


def test_the_answer_of_a_function_is_its_lower_limit_and_no_estimate():
    x = np.random.default_rng(0).normal(size=400)
    found = mi.estimate(x, 3 * x + 1, steps=20, permutations=99, baselines=False)
    assert found.flagged("unresolved") and found.best is None and found.lower > 1
    assert "infinite or larger than nearest neighbours can resolve" in found.sentence()
    assert f"≥ {math.floor(100 * found.lower) / 100:.2f}" in found.sentence()
    assert "Report the certified lower limit" in found.summary() and "≈" not in found.summary()
    assert found.meaning == {} and found.plain()["best"] is None
    assert not found.flagged("disagree")


@pytest.mark.parametrize("values, n", [(20, 200), (40, 1000)])
def test_words_are_counted_however_many_they_are(values, n):
    joint = 0.5 * np.eye(values) / values + 0.5 / values**2
    truth = float((joint * np.log(joint * values**2)).sum())
    errors = []
    for seed in range(3):
        x, y = ((code == np.unique(code)).astype(float) for code in _table(joint, n, seed))
        found = best_estimate(x, y, _critic(nats=0.1, lower=0.0, start=0.1, validation=0.1))
        assert found.method == "plug-in" and found.low < truth < found.high
        errors.append(found.nats - truth)
    assert math.sqrt(np.mean(np.square(errors))) < 0.15


def test_several_columns_of_words_are_not_counted_together():
    codes = np.random.default_rng(0).integers(0, 6, size=(2, 3, 1000, 1))
    codes[1, 0] = codes[0, 0]
    x, y = (np.hstack([one == np.arange(6) for one in side]).astype(float) for side in codes)
    assert best_estimate(x, y, _critic(nats=1.7, lower=1.6)).method != "plug-in"


def test_all_rows_are_searched_before_a_value_is_called_too_large():
    random = np.random.default_rng(0)
    x = random.normal(size=(20_000, 1))
    y = x + 0.0005 * random.normal(size=(20_000, 1))
    assert best_estimate(x[:5000], y[:5000]).high == math.inf
    found = best_estimate(x, y)
    assert found.low < math.log1p(0.0005**-2) / 2 < found.high < math.inf


@pytest.mark.parametrize("noise, n", [(0.02, 200), (0.01, 1000), (0.0008, 20_000)])
def test_the_interval_of_correlations_reaches_up_where_neighbours_lose_much(noise, n):
    held = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        x = random.normal(size=(n, 1))
        found = best_estimate(x, x + noise * random.normal(size=(n, 1)))
        held += found.low < math.log1p(noise**-2) / 2 < found.high
    assert held >= 8


def test_a_column_of_numbers_on_both_sides_has_no_upper_end():
    numbers = np.random.default_rng(0).normal(size=(400, 6))
    critic = _critic(nats=2.0, lower=1.5)
    assert best_estimate(numbers, numbers[:, :1], critic).high == math.inf
    labels = np.hstack((numbers > 0, numbers)).astype(float)
    assert best_estimate(labels, labels[:, :1], critic).high < 1  # of two values


def test_what_other_methods_find_in_grouped_rows_raises_the_upper_end_alone():
    random = np.random.default_rng(204)  # the critic of this table learns nothing
    x = random.normal(size=(400, 1))
    y = np.sin(4 * x) + 0.5 * random.normal(size=(400, 1))  # 0.535 nats
    nothing = {"nats": 0.01, "lower": 0.0, "start": 0.0, "validation": 0.0, "train": 0.02}
    units = np.arange(400) // 2
    found = best_estimate(x, y, _critic(**nothing, standard_error=0.01, units=units))
    assert (found.method, found.nats, found.low) == ("critic", pytest.approx(0.015), 0.0)
    assert 0.535 < found.high < 1.2
    still = _critic(**nothing | {"nats": 0.0, "train": 0.0}, standard_error=0.0, units=units)
    assert best_estimate(*random.normal(size=(2, 400, 1)), still).high > 0
    copies = np.repeat(random.normal(size=(2, 200, 1)), 2, axis=1)  # neighbours find them
    assert best_estimate(*copies, still).high < 0.3


def test_a_function_has_no_upper_end_in_grouped_rows_either():
    random = np.random.default_rng(0)
    x, few = random.normal(size=(800, 1)), random.normal(size=(200, 1))
    sure = {"nats": 3.0, "lower": 2.5, "start": 3.0, "validation": 3.0}
    grouped = _critic(**sure, units=np.arange(800) // 4)
    assert best_estimate(x, 3 * x + 1, grouped).high == math.inf
    # Noise that 800 rows resolve and 200 do not, nearly equal rows of a unit, and few units.
    noisy = x + 0.01 * random.normal(size=(800, 1))
    alike = [
        np.repeat(one, 4, axis=0) + 1e-6 * random.normal(size=(800, 1)) for one in (few, few**2)
    ]
    alike[1] += np.repeat(random.normal(size=(200, 1)), 4, axis=0)
    for sides, units in (((x, noisy), 4), (alike, 4), ((x, 3 * x + 1), 20)):
        critic = _critic(**sure, units=np.arange(800) // units)
        assert best_estimate(*sides, critic).high <= math.log(800)


@pytest.mark.parametrize("grouped", [False, True])
def test_rare_values_that_the_searched_rows_miss_end_in_no_error(grouped):
    random = np.random.default_rng(0)
    rare, numbers = np.zeros((20_000, 1)), random.normal(size=(20_000, 1))
    rare[[0, 7000]] = 1
    still = {"nats": 0.0, "lower": 0.0, "start": 0.0, "validation": 0.0, "standard_error": 0.01}
    critic = _critic(**still, units=np.arange(20_000) // 4 if grouped else None)
    found = best_estimate(numbers, rare, critic)
    assert 0 <= found.low <= found.nats <= found.high < 0.0025  # of its entropy
    coin = (random.random((20_000, 1)) < 0.5).astype(float)
    assert best_estimate(np.hstack((rare, numbers)), coin, critic).high < 0.1


def test_yes_and_no_questions_of_many_patterns_are_not_words():
    x, y = np.random.default_rng(0).integers(0, 2, size=(2, 600, 5)).astype(float)
    assert best_estimate(x, y, _critic(nats=0.0, lower=0.0)).method != "plug-in"


def test_the_reason_says_what_was_tested():
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 3))
    found = best_estimate(x[:, :1], x[:, :1] ** 2 + 0.3 * x[:, 1:2])
    assert found.why == "2 columns; correlations disagree with them row by row"
    known = _critic(start=1.0, validation=1.3, nats=1.3, lower=1.0)
    found = best_estimate(x, x[:, :1] ** 2 + random.normal(size=(500, 1)), known)
    assert found.method == "critic" and "correlations find less" in found.why
