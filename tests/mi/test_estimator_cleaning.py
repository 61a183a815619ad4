"""Cleaning and transforms: what is dropped, refused and reported; normal scores."""

import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch

from estimator_reference import normal_scores
from flatnce import mi
from flatnce.mi.best import best_estimate
from flatnce.mi.cleaning import clean, inputs_of, numbers_of


def table(rows=60, columns=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns))


def changed(values, place, value):
    values = np.array(values)
    values[place] = value
    return values


# --- Rows ----------------------------------------------------------------------------------------


def test_rows_with_missing_values_on_either_side_are_left_out_and_counted():
    x, y = table(), table(seed=1)
    x[3, 0] = y[3, 1] = y[7, 0] = np.nan
    found = clean(x, y)
    kept = [row for row in range(60) if row not in (3, 7)]
    assert found.rows.tolist() == kept
    np.testing.assert_array_equal(found.x, x[kept])
    np.testing.assert_array_equal(found.y, y[kept])
    assert (found.report.rows_given, found.report.rows_used) == (60, 58)
    assert found.report.notes == ("2 of 60 rows hold missing values and were left out.",)


# --- Columns -------------------------------------------------------------------------------------


def test_constant_and_duplicate_columns_go_and_are_named():
    x = table(columns=4)
    x[:, 1], x[:, 3] = 7.0, x[:, 0]
    found = clean(x, table(seed=1))
    np.testing.assert_array_equal(found.x, x[:, [0, 2]])
    assert found.report.columns_dropped_x == (1, 3) and found.report.columns_dropped_y == ()
    assert found.report.notes == (
        "Left out of x (constant): column 1 of x.",
        "Left out of x (a copy of another): column 3 of x.",
    )


# --- What comes in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x.astype(np.float32),
        lambda x: torch.from_numpy(x).float(),
        lambda x: torch.from_numpy(x).to(torch.bfloat16).requires_grad_(),
        lambda x: x.astype(np.float32).tolist(),
    ],
    ids=["float32", "torch", "bfloat16 with a gradient", "lists"],
)
def test_any_real_numbers_become_float64_and_the_input_is_not_changed(given):
    x = table()
    before = x.copy()
    found = clean(given(x), table(seed=1))
    assert found.x.dtype == np.float64
    np.testing.assert_allclose(found.x, x, rtol=1e-2)
    np.testing.assert_array_equal(x, before)
    assert found.report.notes == () and found.duplicates is None and found.shared == ()


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool])
def test_whole_numbers_and_truth_values_count(kind):
    values = (np.arange(60) % 2).astype(kind)
    for given in (values, torch.from_numpy(values)):
        np.testing.assert_array_equal(clean(given, table()).x[:, 0], np.arange(60) % 2)


def test_masked_values_are_missing_values():
    x = np.ma.masked_array(table(), mask=np.zeros((60, 2), dtype=bool))
    x[4, 0] = np.ma.masked
    assert clean(x, table(seed=1)).report.rows_used == 59


def test_numbers_of_pandas_types_that_hold_na_are_numbers():
    frame = pd.DataFrame(table()).convert_dtypes()
    frame["whole"] = pd.array([1, None] * 30, dtype="Int64")
    found = numbers_of(frame, "x")
    np.testing.assert_array_equal(found[:, :2], table())
    assert np.isnan(found[1::2, 2]).all() and (found[::2, 2] == 1).all()
    with pytest.raises(ValueError, match="x has dtype object"):
        numbers_of(frame.assign(word="1"), "x")


# --- Refusals: argument, value, remedy -----------------------------------------------------------

NUMBERS = table()
REFUSED = {
    "huge": (changed(NUMBERS, (9, 1), -np.finfo(float).max), NUMBERS, ("x ", "±1e+154 (1 row")),
    "infinite": (changed(NUMBERS, (9, 1), np.inf), NUMBERS, ("x ", "(1 row", "row 10 of", "drop")),
    "different lengths": (NUMBERS, table(61), ("x has 60 rows", "y 61", "same number")),
    "too few rows": (table(49), table(49), ("49 rows", "at least 50")),
    "too few after missing": (
        changed(NUMBERS, slice(0, 11), np.nan),
        NUMBERS,
        ("49 rows without missing", "most are missing in 'column 0 of x'", "at least 50"),
    ),
    "text": (np.array([["a"] * 2] * 60), NUMBERS, ("x ", "<U1", "mi.encode")),
    "objects": (NUMBERS, np.array([["a", 1]] * 60, dtype=object), ("y ", "object", "encode")),
    "dates": (np.arange(60).astype("datetime64[D]"), NUMBERS, ("x ", "datetime64", "numbers")),
    "complex": (NUMBERS * 1j, NUMBERS, ("x ", "complex", "real numbers")),
    "all rows equal": (NUMBERS, np.tile([1.0, 2.0], (60, 1)), ("all rows of y are equal",)),
    "a number": (3.0, NUMBERS, ("x has shape ()", "rows by columns")),
    "no rows": (np.empty((0, 2)), NUMBERS, ("x has shape (0, 2)",)),
    "constant images": (np.zeros((60, 1, 4, 4)), NUMBERS, ("all rows of x are equal",)),
}


@pytest.mark.parametrize("x, y, said", REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_by_name_with_its_value(x, y, said):
    with pytest.raises(ValueError) as caught:
        clean(x, y)
    for words in said:
        assert words in str(caught.value)


def test_data_frames_bring_names_and_their_text_is_refused():
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
    values = pandas.DataFrame({"up": NUMBERS[:, 0], "one": 1.0, "down": -NUMBERS[:, 0]})
    found = clean(values, NUMBERS)
    assert found.report.notes == ("Left out of x (constant): one.",)
    np.testing.assert_array_equal(found.x, values[["up", "down"]].to_numpy())
    frame = pandas.DataFrame({"a": ["u", "v"] * 30, "b": range(60)})
    with pytest.raises(ValueError, match=r"x has dtype object.*encode"):
        clean(frame, NUMBERS)


def test_samples_of_any_shape_pass():
    images = table(60, 16).reshape(60, 1, 4, 4)
    images[2, 0, 1, 1] = np.nan
    found = clean(images, table(seed=1))
    assert found.x.shape == (59, 1, 4, 4) and found.x.dtype == np.float32
    assert found.columns[0] is None and found.report.columns_dropped_x == ()


# --- Repeated rows -------------------------------------------------------------------------------


def test_duplicate_rows_of_continuous_data_are_found_and_said():
    x, y = table(80), table(80, seed=1)
    for late, early in ((70, 3), (71, 3), (75, 9)):
        x[late], y[late] = x[early], y[early]
    found = clean(x, y)
    wanted = np.arange(80)
    wanted[[70, 71, 75]] = [3, 3, 9]
    assert found.duplicates.tolist() == wanted.tolist()
    assert any(note.startswith("3 rows repeat an earlier row") for note in found.report.notes)


def rounded(decimals):
    return [side.round(decimals) for side in (table(300, 5), table(300, 5, seed=1))]


def likert(seed=0):
    return np.random.default_rng(seed).integers(1, 6, (300, 6)).astype(float)


@pytest.mark.parametrize(
    "tables",
    [rounded(1), rounded(9), (likert(), likert(1))],
    ids=["one decimal", "nine decimals", "answers from 1 to 5"],
)
@pytest.mark.parametrize("share", [1.0, 0.2], ids=["all twice", "a fifth twice"])
def test_a_file_that_was_joined_to_itself_is_found_whatever_its_columns(tables, share):
    assert clean(*tables).duplicates is None
    more = int(share * 300)
    twice = [np.concatenate([side, side[:more]]) for side in tables]
    assert (clean(*twice).duplicates[300:] == np.arange(more)).all()


CODES = np.random.default_rng(0).integers(0, 500, 2000)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (CODES % 2, 1 - CODES % 2),
        (CODES % 20, np.random.default_rng(1).permutation(20)[CODES % 20]),
        (CODES, np.random.default_rng(1).permutation(500)[CODES]),
        (18 + CODES % 72, (18 + CODES % 72) // 10),
        (CODES % 100, np.random.default_rng(2).integers(0, 30, 2000)),
    ],
    ids=["two values", "twenty categories", "five hundred", "age and decade", "independent"],
)
def test_categories_that_determine_each_other_are_no_copies(x, y):
    assert clean(x.astype(float), y.astype(float)).duplicates is None


@pytest.mark.parametrize("share", [0.03, 0.5, 0.7])
def test_rows_that_are_zero_on_both_sides_are_no_copies_and_carry_information(share):
    random = np.random.default_rng(0)
    wet = (random.random(600) > share)[:, None]
    x, y = np.exp(random.normal(size=(2, 600, 1))) * wet  # rain at two places
    assert clean(x, y).duplicates is None
    doubled = np.vstack((x, x)), np.vstack((y, y))
    found = clean(*doubled).duplicates
    np.testing.assert_array_equal(found[600:][wet[:, 0]], np.flatnonzero(wet))
    truth = float(-share * np.log(share) - (1 - share) * np.log(1 - share))
    best = best_estimate(x, y)
    assert best.low < truth < best.high
    if share > 0.1:
        assert mi.estimate(x, y, steps=40, baselines=False).lower > truth / 2


def test_copies_are_found_among_rows_that_are_zero_on_one_side():
    random = np.random.default_rng(0)
    dry = (random.random(1000) < 0.3)[:, None]
    x = random.exponential(size=(1000, 1)) * ~dry
    y = random.exponential(size=(1000, 1)) * (dry == (random.random((1000, 1)) < 0.1))
    assert clean(x, y).duplicates is None
    places = np.concatenate((np.arange(1000), random.integers(0, 1000, 250)))
    found, wet = clean(x[places], y[places]).duplicates, ((x > 0) | (y > 0))[places, 0]
    np.testing.assert_array_equal(found[wet], places[wet])
    np.testing.assert_array_equal(found[~wet], np.flatnonzero(~wet))


def test_ends_of_columns_are_no_copies_but_a_code_for_missing_values_is():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 600, 1)) + 20
    lost = random.random(600) < 0.2
    censored = [np.where(lost[:, None], side.min() - 0.5, side) for side in (x, y)]
    assert clean(*censored).duplicates is None  # below the limit of detection
    coded = [np.where(lost[:, None], -999.0, side) for side in (x, y)]
    found = clean(*coded).duplicates
    np.testing.assert_array_equal(found[lost], np.flatnonzero(lost)[0])
    np.testing.assert_array_equal(found[~lost], np.flatnonzero(~lost))


def test_tables_in_another_order_are_refused():
    pandas = pytest.importorskip("pandas")
    x, y = pandas.DataFrame(table(80)), pandas.DataFrame(table(80, seed=1))
    clean(x, y)
    with pytest.raises(ValueError, match=r"different indexes.*loc\[x\.index\]"):
        clean(x, y.sample(frac=1, random_state=0))


# --- Ties ----------------------------------------------------------------------------------------


def test_the_share_of_tied_values_is_that_of_the_worst_column():
    x = table(60)
    x[:15, 1] = 1.0
    x[15:21, 1] = 2.0
    assert clean(x, table(seed=1)).tied == pytest.approx(21 / 60)


@pytest.mark.parametrize("levels", [3, 10, 1000])
def test_the_copula_gives_normal_scores_and_ties_share_their_mean_rank(levels):
    column = np.random.default_rng(0).integers(0, levels, 57).astype(float)
    values = np.stack([column, -column], axis=1)
    found = inputs_of(values, np.sort(values, axis=0))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], normal_scores(column.tolist()), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[:, 1], -found[:, 0], rtol=1e-6, atol=1e-7)


def test_samples_that_are_no_tables_stay_as_they_are():
    values = np.random.default_rng(0).normal(size=(20, 1, 2))
    np.testing.assert_array_equal(inputs_of(values, None), values.astype(np.float32))
    with pytest.raises(ValueError, match=r"samples hold 2e\+12, too large for a critic; scale"):
        inputs_of(np.full((2, 1, 2), 2e12), None)


def test_ranks_are_those_among_training_rows_only_and_a_copy_by_pickle_scores_alike():
    x, y = mi.tasks.find("1v1-normal-0.75").sample(100, seed=0)
    made = mi.MutualInformation(steps=2, folds=3, baselines=False, permutations=19).fit(x, y)
    for fold in made._fitted_job.folds:
        for side, training in zip((x, y), fold.training, strict=True):
            np.testing.assert_array_equal(training, np.sort(side[fold.split.train], axis=0))
    assert pickle.loads(pickle.dumps(made)).score(x, y) == made.score(x, y)


RISING = {
    "exp": np.exp,
    "affine": lambda values: 1e6 * values - 12,
    "steps apart": lambda values: values + 100 * (values > 0),
}


@pytest.mark.parametrize("rising", RISING.values(), ids=RISING)
def test_the_estimate_does_not_change_under_rising_maps_of_the_columns(rising):
    x, y = mi.tasks.find("1v1-normal-0.75").sample(120, seed=0)
    choices = {"steps": 8, "baselines": False, "permutations": 99}
    before = mi.estimate(x, y, **choices)
    after = mi.estimate(rising(x), rising(y), **choices)
    assert (after.nats, after.lower, after.p_value) == (before.nats, before.lower, before.p_value)
    assert after.readouts == before.readouts


def _survey(seed, rows=720):
    random = np.random.default_rng(seed)
    age, sex = random.integers(18, 80, rows), random.integers(0, 2, rows)
    education = np.clip(np.round(random.normal(12, 3, rows)), 6, 20)
    income = np.round(np.exp(random.normal(9.4 + 0.08 * education, 0.6)), -2)
    return np.stack((age, education, income), axis=1), sex[:, None].astype(float)


def test_ordinary_surveys_are_not_called_duplicated_and_planted_copies_are_found():
    alarms = sum(clean(*_survey(seed)).duplicates is not None for seed in range(100))
    assert alarms <= 1
    for seed in range(5):
        x, y = _survey(seed)
        x[-15:], y[-15:] = x[:15], y[:15]
        assert clean(x, y).duplicates is not None


def test_a_large_table_takes_few_copies():
    x, y = table(20_000, 12), np.asfortranarray(table(20_000, 12, seed=1))
    given = x.nbytes + y.nbytes
    # NumPy traces the memory of LAPACK, which it has always taken, since version 2.5.
    ours = 2.6 if np.lib.NumpyVersion(np.__version__) < "2.5.0" else 3.1
    for function, most in ((clean, 1.2), (mi.cca, ours), (mi.gaussian_copula, ours)):
        function(x[:100], y[:100])  # imports are not counted
        tracemalloc.start()
        found = function(x, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most * given, (function, peak / given)
        assert function is not clean or np.shares_memory(found.y, y)  # nothing was dropped
