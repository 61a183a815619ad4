"""The mixtures of benchmarks/mutual_information have the truths that they state."""

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from paths import ROOT

SPEC = importlib.util.spec_from_file_location(
    "mixtures", ROOT / "benchmarks" / "mutual_information" / "mixtures.py"
)
mixtures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mixtures)

DRAWS = 20_000


# Listed by others from 100,000 draws; the errors of such a mean are 0.002 to 0.003.
@pytest.mark.parametrize(
    ("id", "listed"),
    [
        ("cross-0.9", 0.409),
        ("concentric-3v1-5", 0.456),
        ("concentric-5v1-5", 0.626),
        ("concentric-3v1-10", 0.556),
        ("concentric-5v1-10", 0.749),
        ("concentric-25v1-5", 1.190),
        ("inliers-5v5-0.2", 0.633),
        ("inliers-25v25-0.2", 0.634),
        ("inliers-5v5-0.5", 0.2695),
    ],
)
def test_mixtures_agree_with_the_rough_values_listed_for_them(id, listed):
    assert mixtures.MIXTURES[f"mixture-{id}"].mi == pytest.approx(listed, abs=0.005)


@pytest.mark.parametrize("id", mixtures.MIXTURES)
def test_the_integral_and_the_mean_of_the_pointwise_information_agree(id):
    task = mixtures.MIXTURES[id]
    finer = {"pieces": 3} if isinstance(task.law, mixtures.Inliers) else {"step": 0.07}
    assert abs(task.mi - replace(task.law, **finer).information()) < 1e-9
    ratios = task.pointwise(*task.sample(DRAWS, seed=11))
    error = ratios.std() / math.sqrt(DRAWS)
    assert abs(ratios.mean() - task.mi) <= 4.5 * error


@pytest.mark.parametrize("id", ["cross-0.9", "concentric-3v1-5", "inliers-5v5-0.5"])
def test_the_ratio_of_strangers_averages_to_one(id):
    task = mixtures.MIXTURES[f"mixture-{id}"]
    x, y = task.sample(DRAWS, seed=12)[0], task.sample(DRAWS, seed=13)[1]
    ratios = np.exp(task.pointwise(x, y))
    assert abs(ratios.mean() - 1) < 4.5 * ratios.std() / math.sqrt(DRAWS)


@pytest.mark.parametrize("id", ["cross-0.9", "inliers-5v5-0.5"])
def test_a_margin_is_normal(id):
    columns = np.sort(mixtures.MIXTURES[f"mixture-{id}"].sample(DRAWS, seed=6)[1], axis=0)
    ideal = (np.arange(DRAWS)[:, None] + 0.5) / DRAWS
    # Kolmogorov's distance: √n times it exceeds 2.2 once in 8,000 columns.
    assert np.abs(ndtr(columns) - ideal).max() * math.sqrt(DRAWS) < 2.2
