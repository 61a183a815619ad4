"""The rows of the errata about mutual information, one section each, found by number.

Each shows the corrected statement and, where it can be shown, that the printed one fails. What the
same rows say about the core is in ``tests/core/test_errata.py``.
"""

import math

import pytest
import torch

from flatnce.mi.bounds import (
    cross_fitted_flo,
    donsker_varadhan,
    flatnce,
    flatnce_loss,
    flo,
    infonce,
    optimal_dual,
    row_statistics,
    tuba,
)
from known_gaussians import Gaussians, over_samples

N = 6
every_seed = pytest.mark.parametrize("seed", range(4))
close = torch.testing.assert_close


def draw(seed, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(N, N, generator=generator, dtype=torch.float64)


def gaps(scores):
    """Δ of every row with its negatives."""
    rest = ~torch.eye(len(scores), dtype=torch.bool)
    return (scores - scores.diagonal()[:, None])[rest].reshape(len(scores), -1)


# --- Row 1: where Lemma 3.3 is an equality -------------------------------------------------------


@every_seed
def test_row_1_equality_is_at_the_log_of_the_mean_and_nowhere_else(seed):
    scores = draw(seed)
    rows = row_statistics(scores)
    mean = (scores - scores.diagonal()[:, None]).exp().mean(dim=1)
    close(flo(rows, mean.log(), with_positive=True), infonce(rows))
    for offset in (-0.5, -0.01, 0.01, 0.5):
        assert flo(rows, mean.log() + offset, with_positive=True) < infonce(rows)


# --- Row 2: the constant and the sign in the proof of Lemma 3.3 ----------------------------------


@every_seed
def test_row_2_infonce_carries_the_mean_over_candidates(seed):
    scores = draw(seed)
    ratios = (scores - scores.diagonal()[:, None]).exp()
    close(infonce(scores), -ratios.mean(dim=1).log().mean())
    printed = -ratios.sum(dim=1).log().mean()
    close(infonce(scores) - printed, torch.tensor(math.log(N), dtype=torch.float64))


# --- Row 5: the number behind FlatNCE is biased up, and no bound ---------------------------------


@pytest.mark.parametrize(("information", "printed"), [(4.0, 4.55), (6.0, 7.49)])
def test_row_5_without_it_the_number_is_biased_up_and_grows_with_the_scale(information, printed):
    law = Gaussians(information, dimensions=20)
    found, error = over_samples(lambda x, y: flatnce(law.critic(x, y)), law, 40, 128)
    assert found == pytest.approx(printed, abs=4 * error + 0.01)
    assert found > information + 4 * error
    eight, error = over_samples(lambda x, y: flatnce(8 * law.critic(x, y)), law, 40, 128)
    assert eight > 2 * information + 4 * error  # and so on, as the critic is scaled up


def test_row_5_a_u_that_saw_its_negatives_is_no_bound_and_cross_fitting_mends_it():
    law = Gaussians(4.0, dimensions=20)

    def read(x, y):
        scores, pool = law.critic(x, y), law.critic(x, law.draw(128)[1])
        own = flo(scores, optimal_dual(scores))
        return torch.stack([own, cross_fitted_flo(scores, pool)])

    values = torch.stack([read(*law.draw(128)) for _ in range(40)])
    found, error = values.mean(0), values.std(0) / math.sqrt(40)
    assert found[0] > 4 + 4 * error[0]
    assert found[1] < 4 + 4 * error[1]
    assert found[1] < 1 + math.log(129)


# --- Row 6: the sign in the proof of Corollary 3.4 -----------------------------------------------


def test_row_6_as_printed_the_number_tends_to_minus_the_information():
    law = Gaussians(2.0)
    x, y = law.draw(1500)
    dual = optimal_dual(law.critic(x, y)).mean()
    printed = dual + 1 - 1  # û + I_FLAT − 1
    assert float(printed) == pytest.approx(-2.0, abs=0.15)
    assert float(-dual) == pytest.approx(2.0, abs=0.15)


# --- Row 8: the constant of the FLO bound --------------------------------------------------------


def test_row_8_as_printed_it_would_lie_two_nats_below_the_truth():
    law = Gaussians(1.0)

    def read(x, y):
        scores = law.critic(x, y)
        dual = -scores.diagonal()  # the optimal one of the optimal critic
        inner = dual.mean() + torch.exp(gaps(scores) - dual[:, None]).mean()
        return torch.stack([-(inner - 1), -(inner + 1)])

    found = torch.stack([read(*law.draw(300)) for _ in range(20)]).mean(0)
    assert found.tolist() == pytest.approx([1.0, -1.0], abs=0.1)


# --- Row 9: what the appendix calls Donsker–Varadhan ---------------------------------------------


@every_seed
def test_row_9_donsker_varadhan_takes_one_logarithm_for_all_rows_and_is_smaller(seed):
    scores = draw(seed)
    negatives = scores[~torch.eye(N, dtype=torch.bool)].reshape(N, -1)
    own = scores.diagonal().mean()
    close(donsker_varadhan(scores), own - negatives.exp().mean().log())
    row_by_row = own - negatives.exp().mean(dim=1).log().mean()  # as the appendix prints it
    close(row_by_row, flatnce(scores))
    assert donsker_varadhan(scores) < row_by_row


# --- Row 14: Table 1's row of FL, and its column of biases ---------------------------------------


@every_seed
def test_row_14_the_rows_of_fl_and_flatnce_are_minimised(seed):
    scores = draw(seed).requires_grad_()
    dual = optimal_dual(scores).detach() + 0.3
    printed = dual.mean() + torch.exp(gaps(scores) - dual[:, None]).mean()  # u + Σ…
    close(flo(scores, dual), 1 - printed)
    (slope,) = torch.autograd.grad(printed, scores, retain_graph=True)
    assert (slope.diagonal() < 0).all()  # going down it lifts the partners
    (slope,) = torch.autograd.grad(flatnce_loss(scores), scores)
    assert (slope.diagonal() < 0).all()


# --- Row 18: the optimal u -----------------------------------------------------------------------


@every_seed
def test_row_18_the_optimal_u_has_minus_g(seed):
    scores = draw(seed)
    rows = row_statistics(scores)
    normaliser = rows.negative - math.log(N - 1)
    close(optimal_dual(rows), -rows.positive + normaliser)
    # Under that constraint FLO is TUBA, for every s(x).
    other = torch.linspace(-1, 1, N, dtype=torch.float64)
    close(flo(rows, -rows.positive + other), tuba(rows, other))


def test_row_18_with_plus_g_as_printed_the_bound_is_lost():
    law = Gaussians(2.0)

    def read(x, y):
        scores = law.critic(x, y)  # whose log Z(x) is 0
        return torch.stack([flo(scores, -scores.diagonal()), flo(scores, scores.diagonal())])

    found = torch.stack([read(*law.draw(300)) for _ in range(20)]).mean(0)
    assert float(found[0]) == pytest.approx(2.0, abs=0.1)
    assert float(found[1]) < 0


# --- Row 20: FlatNCE has a number; it is not tight -----------------------------------------------


@pytest.mark.parametrize("claimed", [10.0, 100.0])
def test_row_20_the_number_passes_any_claim_where_the_information_is_two(claimed):
    law = Gaussians(2.0)
    # Two negatives: the partner is most often ahead of both, and by more as the scale grows.
    found, error = over_samples(lambda x, y: flatnce(20 * claimed * law.critic(x, y)), law, 200, 3)
    assert found > claimed + 4 * error
