"""The scored methods: our default call and its parts, and other packages through adapters.

A method is a function of x, y, the kinds of their columns and a seed. It returns a record with
``value`` in nats and, where it has them, ``lower`` (one-sided 95 % limit) and ``low``, ``high``
(two-sided 95 % interval), or None if it does not apply. Ours do not get the kinds. Packages are
imported when they are used, because they may be installed in separate environments.
"""

import contextlib
import io
import math
import tempfile

import numpy as np

CATEGORIES = ("category",)
DISCRETE = ("category", "count")


def _plain(value):
    return None if value is None or not math.isfinite(value) else float(value)


def _flatnce(x, y, kinds, seed):
    from flatnce import mi

    found = mi.estimate(x, y, seed=seed, device="cpu", baselines=False)
    best = found.best  # None where it calls the information infinite or too large for the rows
    record = {
        "value": _plain(best and best.nats),
        "low": _plain(best and best.low),
        "high": _plain(best and best.high),
        "chosen": best and best.method,
        "critic": _plain(found.nats),
        "error_bar": _plain(found.standard_error),
        "lower": _plain(found.lower),
        "p": _plain(found.p_value),
        "flags": [flag.name for flag in found.flags],
    }
    return record


def _classical(name, **choices):
    def method(x, y, kinds, seed):
        from flatnce import mi

        return {"value": _plain(getattr(mi, name)(x, y, **choices))}

    return method


def _is(kinds, side, names):
    return all(kind in names for kind in kinds[side])


def _codes(table):
    """Rows of categories as one column of codes."""
    return np.unique(table, axis=0, return_inverse=True)[1].ravel()


def _sklearn(x, y, kinds, seed):
    from sklearn.feature_selection import mutual_info_classif, mutual_info_regression
    from sklearn.metrics import mutual_info_score

    if _is(kinds, 0, CATEGORIES) and _is(kinds, 1, CATEGORIES):
        return {"value": float(mutual_info_score(_codes(x), _codes(y)))}
    if x.shape[1] > 1 or y.shape[1] > 1:
        return None
    function = mutual_info_classif if _is(kinds, 1, CATEGORIES) else mutual_info_regression
    discrete = _is(kinds, 0, DISCRETE)
    found = function(x, y[:, 0], discrete_features=discrete, random_state=seed)
    return {"value": float(found[0])}


def _histogram(x, y, kinds, seed):
    """Equally filled bins, n^(1/3) per side, with the correction of Miller and Madow."""
    if x.shape[1] > 1 or y.shape[1] > 1:
        return None
    codes = []
    for side, table in enumerate((x, y)):
        column = table[:, 0]
        if not _is(kinds, side, DISCRETE):
            count = max(round(len(column) ** (1 / 3)), 2)
            edges = np.unique(np.quantile(column, np.linspace(0, 1, count + 1)[1:-1]))
            column = np.searchsorted(edges, column, side="right")
        codes.append(np.unique(column, return_inverse=True)[1])
    counts = np.zeros((codes[0].max() + 1, codes[1].max() + 1))
    np.add.at(counts, (codes[0], codes[1]), 1)

    def corrected(cells):
        p = cells[cells > 0] / cells.sum()
        return -(p * np.log(p)).sum() + (len(p) - 1) / (2 * cells.sum())

    value = corrected(counts.sum(0)) + corrected(counts.sum(1)) - corrected(counts.ravel())
    return {"value": float(value)}


def _without_ties(x, y, seed, size):
    """Tables with a little noise, for packages that cannot handle equal rows."""
    rng = np.random.default_rng(seed)
    return [table + size * rng.standard_normal(table.shape) for table in (x, y)]


def _standard(table):
    """Columns with mean 0 and spread 1; a column that is constant becomes 0."""
    spread = table.std(axis=0)
    return (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1)


def _infomeasure(x, y, kinds, seed):
    import infomeasure

    if _is(kinds, 0, CATEGORIES) and _is(kinds, 1, CATEGORIES):
        both = _codes(x), _codes(y)
        return {"value": float(infomeasure.mutual_information(*both, approach="miller_madow"))}
    sides = _without_ties(x, y, seed, 1e-8)
    return {"value": float(infomeasure.mutual_information(*sides, approach="ksg"))}


def _latentmi(x, y, kinds, seed):
    import torch
    from latentmi import lmi

    np.NaN = np.nan  # the package was written for numpy 1
    torch.manual_seed(seed)
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        bits = np.nanmean(lmi.estimate(x, y, quiet=True)[0])
    return {"value": float(bits) * math.log(2)}


def _torch_mist(x, y, kinds, seed):
    import torch
    from torch_mist import estimate_mi

    torch.manual_seed(seed)
    np.random.seed(seed)
    sides = [torch.from_numpy(_standard(table)).float() for table in (x, y)]
    # Its checkpoints have the same names in every process, so each fit gets its own folder.
    with tempfile.TemporaryDirectory() as own, contextlib.redirect_stdout(io.StringIO()):
        tempfile.tempdir = own
        try:
            value = estimate_mi(tuple(sides), verbose=False)
        finally:
            tempfile.tempdir = None
    return {"value": _plain(float(value[0] if isinstance(value, tuple) else value))}


def _bmi_ksg(x, y, kinds, seed):
    import bmi

    sides = _without_ties(
        _standard(x), _standard(y), seed, 1e-5
    )  # it computes in single precision
    return {"value": _plain(bmi.estimators.KSGEnsembleFirstEstimator().estimate(*sides))}


def _bmi_cca(x, y, kinds, seed):
    import bmi

    return {"value": _plain(bmi.estimators.CCAMutualInformationEstimator().estimate(x, y))}


def _bmi_infonce(x, y, kinds, seed):
    """Defaults, but a batch of 256 rows is cut to the training half, which must be larger."""
    import bmi

    batch = min(256, len(x) // 2 - 1)
    found = bmi.estimators.InfoNCEEstimator(batch_size=batch, seed=seed, verbose=False)
    return {"value": _plain(found.estimate(x, y))}


def _npeet(x, y, kinds, seed):
    import npeet_plus

    np.random.seed(seed)
    labels = [_is(kinds, side, CATEGORIES) for side in (0, 1)]
    if all(labels):
        return {"value": float(npeet_plus.midd(_codes(x), _codes(y), base=math.e))}
    if labels[1]:
        return {"value": float(npeet_plus.micd(x, _codes(y)[:, None], base=math.e))}
    if labels[0]:
        return {"value": float(npeet_plus.micd(y, _codes(x)[:, None], base=math.e))}
    return {"value": float(npeet_plus.mi(x, y, base=math.e))}


METHODS = {
    "flatnce": _flatnce,
    "cca": _classical("cca"),
    "gaussian-copula": _classical("gaussian_copula"),
    "ksg": _classical("ksg"),
    "ksg-mixed": _classical("ksg", ties="mixed"),
    "scikit-learn": _sklearn,
    "histogram": _histogram,
    "infomeasure": _infomeasure,
    "latentmi": _latentmi,
    "torch-mist": _torch_mist,
    "bmi-ksg": _bmi_ksg,
    "bmi-cca": _bmi_cca,
    "bmi-infonce": _bmi_infonce,
    "npeet": _npeet,
}
