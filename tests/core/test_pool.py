"""Mutual information over a large pool against the dense definition."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from flatnce.core.diagnostics import best_scale, pool_information
from flatnce.core.diagnostics import pool as module


def pairs(n, width=16, noise=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, width, generator=generator)
    return tuple(shared + noise * torch.randn(n, width, generator=generator) for _ in range(2))


def bound(z1, z2, scale):
    """The definition, in float64, with the whole matrix."""
    cosines = normalize(z1.double(), dim=1) @ normalize(z2.double(), dim=1).T
    lost = (scale * cosines).logsumexp(1) - scale * cosines.diagonal()
    return math.log(len(z1)) - float(lost.mean())


@pytest.mark.parametrize("n", [64, 2500], ids=["dense", "in blocks"])
def test_it_is_the_dense_definition(n):
    z1, z2 = pairs(n)
    found = pool_information(z1, z2, 0.2, calibration=pairs(n, seed=1))
    assert found["pool_mi_at_temperature"] == pytest.approx(bound(z1, z2, 5.0), abs=1e-4)
    assert found["pool_mi"] == pytest.approx(bound(z1, z2, found["pool_scale"]), abs=1e-4)
    assert found["pool"] == n and found["pool_ceiling"] == pytest.approx(math.log(n))
    assert found["pool_mi"] > found["pool_mi_at_temperature"]
    similarity = normalize(z1, dim=1) @ normalize(z2, dim=1).T
    top1 = float((similarity.argmax(1) == torch.arange(n)).float().mean())
    assert found["pool_top1"] == pytest.approx(top1)


def test_nothing_of_the_size_of_the_pool_squared_is_held(monkeypatch):
    most = 0
    matmul = torch.Tensor.__matmul__

    def watched(first, second):
        nonlocal most
        made = matmul(first, second)
        most = max(most, made.numel())
        return made

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    monkeypatch.setattr(module, "CALIBRATION_SCORES", 2**20)
    z1, z2 = pairs(6000, width=4)
    pool_information(z1, z2, 0.1, calibration=(z1[:3000], z2[:3000]))
    assert 0 < most <= 2**21  # 36 million would be the whole matrix


def test_the_scale_comes_from_the_other_pairs_alone():
    calibration = pairs(300, seed=1)
    first = pool_information(*pairs(200), 0.1, calibration=calibration)
    second = pool_information(*pairs(200, noise=2.0, seed=5), 0.1, calibration=calibration)
    assert first["pool_scale"] == second["pool_scale"]
    z1, z2 = (normalize(z, dim=1) for z in calibration)
    assert first["pool_scale"] == best_scale(z1 @ z2.T, 10.0)


def test_views_that_share_nothing_have_no_information():
    z1, z2 = pairs(500)
    found = pool_information(z1, z2.roll(1, 0), 0.1, calibration=pairs(500, seed=1))
    assert found["pool_mi"] < 0.05


@pytest.mark.parametrize("which", ["z1", "calibration"])
@pytest.mark.parametrize("bad", [torch.randn(3, 4), torch.randn(4), torch.randn(4, 5)])
def test_views_that_do_not_fit_are_named(which, bad):
    good = torch.randn(4, 4)
    given = {"z1": good, "calibration": (good, good[:2])}
    given[which] = bad if which == "z1" else (bad[:, :3] if bad.ndim == 2 else bad, good)
    with pytest.raises(ValueError, match=rf"{which}.* has shape"):
        pool_information(given["z1"], good, 0.1, calibration=given["calibration"])


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_are_named(number, bad):
    good = torch.eye(4)
    with pytest.raises(ValueError, match="NaN"):
        pool_information(bad * good, good, 0.1, calibration=(good, good))
    calibration = [good.clone(), good.clone()]
    calibration[number][2, 1] = bad
    with pytest.raises(ValueError, match=rf"calibration\[{number}\] holds NaN or infinite"):
        pool_information(good, good, 0.1, calibration=tuple(calibration))
