"""Two views' embeddings, read as two tables are."""

import math

import pytest
import torch

from flatnce.core.diagnostics import pool_information
from flatnce.mi import embedding_information


def views(images, noise, seed=0, width=8):
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(images, width, generator=random)
    return (common + noise * torch.randn(2, images, width, generator=random)).unbind()


def test_its_number_is_the_large_pool_information_of_the_pipeline():
    z, calibration = views(300, 0.5), views(300, 0.5, seed=1)
    found = embedding_information(*z, calibration=calibration)
    pool = pool_information(*z, 0.1, calibration=calibration)
    assert found.nats == pytest.approx(pool["pool_mi"], abs=2e-4)  # float64 against float32
    assert found.ceiling == pytest.approx(pool["pool_ceiling"])
    assert 0 < found.lower < found.nats < found.ceiling
    assert found.p_value <= 0.001


def test_a_smaller_pool_has_a_lower_ceiling():
    z, calibration = views(300, 0.2), views(300, 0.2, seed=1)
    whole, cut = (embedding_information(*z, calibration=calibration, pool=k) for k in (None, 60))
    assert cut.ceiling == pytest.approx(math.log(60))
    assert cut.nats < whole.nats
    assert {"infonce", "flo-cross-fitted", "dv-recentred"} <= set(cut.readouts)


def test_embeddings_at_their_ceiling_are_called_saturated():
    z, calibration = views(100, 0.01), views(100, 0.01, seed=1)
    found = embedding_information(*z, calibration=calibration)
    assert found.saturated
    assert found.flagged("saturated")


@pytest.mark.parametrize(
    ("z1", "z2", "names"),
    [
        (torch.randn(30, 4), torch.randn(29, 4), ["z1 and z2", "(30, 4)", "(29, 4)"]),
        (torch.randn(5, 4), torch.randn(5, 4), ["at least 20"]),
        (torch.full((30, 4), torch.nan), torch.randn(30, 4), ["NaN"]),
    ],
)
def test_what_cannot_be_read_is_refused(z1, z2, names):
    with pytest.raises(ValueError) as caught:
        embedding_information(z1, z2, calibration=views(30, 0.5))
    for name in names:
        assert name in str(caught.value)
