"""What the paper prints and what holds, one section per erratum that concerns the core.

Each test shows the corrected statement, and where it can be shown, that the printed one fails.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from flatnce import functional as F

ROWS = {
    "balanced": (0.3, [0.1, -0.4, 0.9, 0.2]),
    "positive far ahead": (8.0, [0.5, -1.0, 0.0, 0.7, -0.2]),
    "positive far behind": (-3.0, [2.0, 1.5, -0.5]),
}
every_row = pytest.mark.parametrize(("positive", "negatives"), list(ROWS.values()), ids=list(ROWS))
close = partial(pytest.approx, rel=1e-9, abs=1e-12)


def autograd(
    function: Callable[[Tensor, Tensor], Tensor], positive: float, negatives: list[float]
) -> list[float]:
    """The gradient of a torch expression, by the positive first, then by each negative."""
    s_positive = torch.tensor(positive, dtype=torch.float64, requires_grad=True)
    s_negatives = torch.tensor(negatives, dtype=torch.float64, requires_grad=True)
    gradients = torch.autograd.grad(function(s_positive, s_negatives), (s_positive, s_negatives))
    return [gradients[0].item(), *gradients[1].tolist()]


def algorithm_one(positive: Tensor, negatives: Tensor) -> Tensor:
    """Algorithm 1's loss, line by line."""
    clogits = torch.logsumexp(negatives - positive, dim=0)
    return torch.exp(clogits - clogits.detach())


def flat(gradient: reference.Gradient) -> list[float]:
    return [gradient[0], *gradient[1]]


def logits_of(
    positive: float, negatives: list[float], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """One row of logits with the positive in column 0, and its target."""
    logits = torch.tensor([[positive, *negatives]], dtype=dtype, requires_grad=True)
    return logits, torch.tensor([0])


def embeddings(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# --- Erratum 1: where Lemma 3.3 is an equality ---------------------------------------------------


@every_row
def test_the_dual_equals_infonce_at_the_log_of_the_mean(positive, negatives):
    u = reference.dual_optimum(positive, negatives)
    information = reference.mutual_information(positive, negatives)
    assert reference.dual_bound(positive, negatives, u) == close(information)


@every_row
@pytest.mark.parametrize("offset", [-1.0, -0.01, 0.01, 1.0])
def test_the_dual_lies_below_infonce_at_any_other_u(positive, negatives, offset):
    u = reference.dual_optimum(positive, negatives) + offset
    information = reference.mutual_information(positive, negatives)
    assert reference.dual_bound(positive, negatives, u) < information


@every_row
def test_the_dual_at_the_printed_u_misses_infonce_by_at_least_one_over_e(positive, negatives):
    u = reference.dual_optimum_as_printed(positive, negatives)
    information = reference.mutual_information(positive, negatives)
    assert information - reference.dual_bound(positive, negatives, u) >= 1.0 / math.e


def test_the_least_miss_of_the_printed_u_is_one_over_e():
    positive, negatives = 0.4, [0.4, 0.4, 0.4]  # mean exp(Delta) = 1, where the miss is least
    u = reference.dual_optimum_as_printed(positive, negatives)
    information = reference.mutual_information(positive, negatives)
    miss = information - reference.dual_bound(positive, negatives, u)
    assert miss == close(1.0 / math.e)


# --- Erratum 3: the sign in Prop. 3.1 ------------------------------------------------------------


@every_row
def test_flatnce_plus_has_minus_the_gradient_of_the_infonce_bound(positive, negatives):
    def bound(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        pool = torch.cat([s_positive[None], s_negatives])
        return s_positive - torch.logsumexp(pool, dim=0) + math.log(len(pool))

    expected = [-entry for entry in autograd(bound, positive, negatives)]
    assert flat(reference.flatnce_plus_gradient(positive, negatives)) == close(expected)


@every_row
def test_flatnce_plus_has_the_gradient_of_the_cross_entropy_loss(positive, negatives):
    logits, target = logits_of(positive, negatives)
    loss = F.flatnce_plus(F.contrast_from_logits(logits, target))
    (gradient,) = torch.autograd.grad(loss, logits)
    entropy = torch.nn.functional.cross_entropy(logits, target)
    (expected,) = torch.autograd.grad(entropy, logits)
    torch.testing.assert_close(gradient, expected)


# --- Erratum 4: the gradient in Prop. 3.2, with beta ---------------------------------------------


@pytest.mark.parametrize("beta", [0.5, 1.0, 7.0])
def test_flatnces_gradient_subtracts_the_gradient_of_the_positive_and_carries_beta(beta):
    keys = torch.from_numpy(embeddings(5, 3, seed=1))
    anchor = torch.from_numpy(embeddings(3, seed=2)).requires_grad_()
    scores = beta * keys @ anchor
    (gradient,) = torch.autograd.grad(algorithm_one(scores[0], scores[1:]), anchor)

    critic = (keys @ anchor).tolist()
    weights = reference.importance_weights(critic[0], critic[1:])
    tempered = reference.tempered_weights(weights, beta)
    average = torch.tensor(tempered, dtype=torch.float64) @ keys[1:]
    torch.testing.assert_close(gradient, beta * (average - keys[0]))
    printed = average - critic[0]  # "- g" where "- grad g" is meant
    assert not torch.allclose(gradient, printed, rtol=1e-2)


# --- Erratum 5: the number behind FlatNCE is no bound --------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_the_number_without_the_positive_grows_in_step_with_the_critics_scale(scale):
    positive, negatives = 1.0, [0.5, -0.3, 0.2]  # the hardest negative is 0.5 behind
    number = reference.flatnce_number(*reference.scaled(positive, negatives, scale))
    doubled = reference.flatnce_number(*reference.scaled(positive, negatives, 2.0 * scale))
    assert doubled - number >= 0.5 * scale


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_the_number_with_the_positive_stays_below_log_k_at_any_scale(scale):
    row = reference.scaled(1.0, [0.5, -0.3, 0.2], scale)
    assert -reference.dual_optimum(*row) == close(reference.mutual_information(*row))
    assert -reference.dual_optimum(*row) <= math.log(4)


def expectation_over_a_noisy_channel(
    number: Callable[[float, list[float]], float], correct: float, negatives: int
) -> tuple[float, float]:
    """The exact expectation of a row's number under the optimal critic, and the true information.

    Four letters, uniform; a letter arrives as itself with probability ``correct``, else as any
    other. The negatives are drawn from the uniform marginal, all of them enumerated.
    """
    letters = range(4)
    arrival = [[correct if x == y else (1.0 - correct) / 3 for y in letters] for x in letters]
    critic = [[math.log(4 * arrival[x][y]) for y in letters] for x in letters]
    expected, information = 0.0, 0.0
    for x, y in itertools.product(letters, letters):
        joint = arrival[x][y] / 4
        information += joint * critic[x][y]
        for drawn in itertools.product(letters, repeat=negatives):
            share = joint / 4**negatives
            expected += share * number(critic[x][y], [critic[x][j] for j in drawn])
    return expected, information


@pytest.mark.parametrize("correct", [0.5, 0.85, 0.97])
def test_the_number_without_the_positive_is_biased_up_even_for_the_optimal_critic(correct):
    number = reference.flatnce_number
    expected, information = expectation_over_a_noisy_channel(number, correct, negatives=4)
    assert expected > information + 0.01


@pytest.mark.parametrize("correct", [0.5, 0.85, 0.97])
def test_the_number_with_the_positive_bounds_the_information_from_below(correct):
    number = reference.mutual_information
    expected, information = expectation_over_a_noisy_channel(number, correct, negatives=4)
    assert 0.0 < expected < information


# --- Erratum 7: the factor in Prop. 3.7 ----------------------------------------------------------


@every_row
@pytest.mark.parametrize("gamma", [-2.0, -0.5, 0.5, 3.0])
def test_holders_gradient_is_flatnces_at_gamma_g_divided_by_gamma(positive, negatives, gamma):
    def holder(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        mean = (s_negatives - s_positive).exp().pow(gamma).mean().pow(1.0 / gamma)
        return mean / mean.detach()

    def annealed(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        return algorithm_one(gamma * s_positive, gamma * s_negatives)

    gradient = autograd(holder, positive, negatives)
    printed = autograd(annealed, positive, negatives)
    assert gradient == close([entry / gamma for entry in printed])
    assert gradient != pytest.approx(printed, rel=0.1)
    assert flat(reference.holder_gradient(positive, negatives, gamma)) == close(gradient)


# --- Erratum 10: which way Algorithm S1 turns ----------------------------------------------------

SCORES = (1.0, [0.9, 0.6, 0.1, -0.2, -0.5, 0.3])
every_start = pytest.mark.parametrize("start", [0.2, 5.0, 30.0])


def scheduled(step: Callable[..., float], start: float, steps: int = 2000) -> float:
    """Where a scheduler has taken beta after so many steps towards an ESS of one half."""
    beta = start
    for _ in range(steps):
        beta = step(beta, *SCORES, target=0.5)
    return beta


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("with_positive", [False, True])
def test_ess_falls_as_beta_grows(beta, with_positive):
    ess = partial(reference.effective_sample_size, with_positive=with_positive)
    assert ess(*reference.scaled(*SCORES, 1.5 * beta)) < ess(*reference.scaled(*SCORES, beta))


@every_start
def test_the_corrected_schedule_reaches_the_target(start):
    beta = scheduled(reference.ess_step, start)
    reached = reference.effective_sample_size(*reference.scaled(*SCORES, beta))
    assert reached == pytest.approx(0.5, abs=0.01)
    assert beta == pytest.approx(reference.beta_of_ess([SCORES], 0.5), rel=0.02)


@every_start
@pytest.mark.parametrize("scores_carry_beta", [False, True])
def test_the_printed_schedule_diverges(start, scores_carry_beta):
    step = partial(reference.ess_step_as_printed, scores_carry_beta=scores_carry_beta)
    assert abs(math.log(scheduled(step, start))) > math.log(1e6)


# --- Erratum 11: what ESS is divided by ----------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 9])
def test_ess_of_equal_negatives_is_one(count):
    assert reference.effective_sample_size(3.0, [0.5] * count) == close(1.0)
    contrast = F.contrast_from_logits(*logits_of(3.0, [0.5] * count))
    assert F.effective_sample_size(contrast).item() == close(1.0)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_ess_divided_by_k_as_printed_cannot_reach_one(count):
    weights = reference.importance_weights(3.0, [0.5] * count)
    printed = 1.0 / ((count + 1) * sum(weight**2 for weight in weights))
    assert printed == close(count / (count + 1))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_ess_of_one_dominant_negative_is_one_over_the_count(count):
    negatives = [60.0] + [0.0] * (count - 1)
    assert reference.effective_sample_size(3.0, negatives) == close(1.0 / count)


# --- Erratum 12: two effective sample sizes ------------------------------------------------------


def test_ess_with_and_without_the_positive_are_far_apart_on_the_same_scores():
    positive, negatives = 10.0, embeddings(127, seed=5).tolist()
    with_positive = reference.effective_sample_size(positive, negatives, with_positive=True)
    assert with_positive < 0.02
    assert reference.effective_sample_size(positive, negatives) > 0.2


# --- Erratum 13: FlatNCE's row of Table 1 --------------------------------------------------------


def table_one_as_printed(positive: Tensor, negatives: Tensor) -> Tensor:
    difference = negatives.exp().mean() - positive
    return difference / difference.detach()


def table_one_corrected(positive: Tensor, negatives: Tensor) -> Tensor:
    difference = negatives.exp().mean().log() - positive
    return (difference - difference.detach()).exp()


@every_row
def test_table_one_corrected_has_flatnces_gradient(positive, negatives):
    gradient = autograd(table_one_corrected, positive, negatives)
    assert gradient == close(flat(reference.flatnce_gradient(positive, negatives)))
    assert gradient == close(autograd(algorithm_one, positive, negatives))


@pytest.mark.parametrize(("positive", "sign"), [(0.2, -1.0), (0.9, -1.0), (1.1, 1.0), (8.0, 1.0)])
def test_table_one_as_printed_pushes_the_positive_down_once_it_exceeds_the_mean(positive, sign):
    negatives = [0.0, 0.0, 0.0]  # so that m = 1
    gradient = autograd(table_one_as_printed, positive, negatives)
    expected = reference.table_one_flatnce_gradient_as_printed(positive, negatives)
    assert gradient == close(flat(expected))
    assert math.copysign(1.0, gradient[0]) == sign  # a loss pushes down what has gradient above 0


@pytest.mark.parametrize("positive", [0.2, 0.9, 1.1, 8.0])
def test_flatnce_pulls_the_positive_up_wherever_it_stands(positive):
    logits, target = logits_of(positive, [0.0, 0.0, 0.0])
    loss = F.flatnce(F.contrast_from_logits(logits, target))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, 0].item() == close(-1.0)


# --- Erratum 15: the constant of Eq. 3 -----------------------------------------------------------


@every_row
def test_eq_3_is_eq_1_up_to_the_log_of_all_candidates(positive, negatives):
    candidates = [math.exp(score) for score in (positive, *negatives)]
    eq_1 = math.log(math.exp(positive) / (sum(candidates) / len(candidates)))
    eq_3 = reference.infonce(positive, negatives)
    assert eq_1 + eq_3 == close(math.log(len(negatives) + 1))


@pytest.mark.parametrize("count", [1, 7, 127])
def test_information_rises_above_the_printed_ceiling_to_the_corrected_one(count):
    contrast = F.contrast_from_logits(*logits_of(60.0, [0.0] * count))
    information = F.mutual_information(contrast).item()
    assert information > math.log(count)
    assert information == close(math.log(count + 1))
    assert F.mutual_information_ceiling(contrast).item() == close(math.log(count + 1))


# --- Erratum 16: Algorithm 1 must not draw the anchor --------------------------------------------


def test_drawing_as_printed_meets_the_positive_among_the_negatives():
    assert 3 in reference.draw_negatives_as_printed(5, 200, np.random.default_rng(0))


def test_drawing_leaves_out_the_anchor_and_nothing_else():
    drawn = reference.draw_negatives(3, 5, 200, np.random.default_rng(0))
    assert set(drawn) == {0, 1, 2, 4}


@every_row
def test_flatnce_with_the_positive_among_its_negatives_is_infonce_again(positive, negatives):
    by_positive, by_pool = reference.flatnce_gradient(positive, [positive, *negatives])
    gradient = [by_positive + by_pool[0], *by_pool[1:]]  # the positive is two of the scores
    assert gradient == close(flat(reference.infonce_gradient(positive, negatives)))


# --- Erratum 19: what rounding takes from cross-entropy ------------------------------------------

ROUNDED = {"float32": (torch.float32, 22.0, 1e-5), "bfloat16": (torch.bfloat16, 10.0, 1e-2)}
every_precision = pytest.mark.parametrize(
    ("dtype", "lead", "tolerance"), list(ROUNDED.values()), ids=list(ROUNDED)
)


@every_precision
def test_cross_entropy_rounds_only_the_positives_gradient_away(dtype, lead, tolerance):
    logits, target = logits_of(lead, [0.0, 0.0, 0.0], dtype)
    loss = torch.nn.functional.cross_entropy(logits, target)
    (gradient,) = torch.autograd.grad(loss, logits)
    by_positive, by_negatives = reference.infonce_gradient(lead, [0.0, 0.0, 0.0])
    assert gradient[0, 0].item() == 0.0
    assert by_positive < 0.0
    assert gradient[0, 1:].tolist() == pytest.approx(by_negatives, rel=tolerance)


@every_precision
def test_infonce_as_softplus_of_the_gap_keeps_the_whole_gradient(dtype, lead, tolerance):
    logits, target = logits_of(lead, [0.0, 0.0, 0.0], dtype)
    loss = F.infonce(F.contrast_from_logits(logits, target))
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = flat(reference.infonce_gradient(lead, [0.0, 0.0, 0.0]))
    assert gradient[0].tolist() == pytest.approx(expected, rel=tolerance)


@every_precision
def test_flatnce_removes_the_small_factor_as_well(dtype, lead, tolerance):
    logits, target = logits_of(lead, [0.0, 0.0, 0.0], dtype)
    loss = F.flatnce(F.contrast_from_logits(logits, target))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0].tolist() == pytest.approx([-1.0, 1 / 3, 1 / 3, 1 / 3], rel=tolerance)


# --- Erratum 20: FlatNCE has a number, and it is not tight ---------------------------------------


@every_row
def test_the_dual_without_the_positive_gives_flatnces_number(positive, negatives):
    u = reference.dual_optimum(positive, negatives, with_positive=False)
    number = reference.flatnce_number(positive, negatives)
    constant = reference.flatnce(positive, negatives)
    assert reference.dual_bound(positive, negatives, u, with_positive=False) == close(number)
    assert number == close(1.0 - u - constant)  # the sign of erratum 6
    assert number == close(math.log(len(negatives)) - reference.gap(positive, negatives))


@pytest.mark.parametrize("claimed", [10.0, 100.0, 1000.0])
def test_flatnces_number_exceeds_any_claim_on_the_same_four_candidates(claimed):
    row = reference.scaled(1.0, [0.5, -0.3, 0.2], 2.0 * claimed)
    assert reference.flatnce_number(*row) > claimed
