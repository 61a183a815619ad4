"""What the paper prints and what holds, one section per erratum that concerns the core.

Each test shows the corrected statement, and where it can be shown, that the printed one fails.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from flatnce import functional as F
from reference import ROWS, row_gradient

every_row = pytest.mark.parametrize(("positive", "negatives"), list(ROWS.values()), ids=list(ROWS))


def close(expected: object) -> object:
    return pytest.approx(
        torch.as_tensor(expected, dtype=torch.float64).tolist(), rel=1e-9, abs=1e-12
    )


def algorithm_one(positive: Tensor, negatives: Tensor) -> Tensor:
    """Algorithm 1's loss, line by line."""
    clogits = torch.logsumexp(negatives - positive, dim=0)
    return torch.exp(clogits - clogits.detach())


def logits_of(
    positive: float, negatives: list[float], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """One row of logits with the positive in column 0, and its target."""
    logits = torch.tensor([[positive, *negatives]], dtype=dtype, requires_grad=True)
    return logits, torch.tensor([0])


def gradient_of_logits(
    read: Callable[[F.Contrast], Tensor], *row: object, dtype: torch.dtype = torch.float64
) -> list[float]:
    logits, target = logits_of(*row, dtype)
    (gradient,) = torch.autograd.grad(read(F.contrast_from_logits(logits, target)), logits)
    return gradient[0].tolist()


def embeddings(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def flatnce_number(positive: float, negatives: list[float]) -> float:
    """The number behind FlatNCE, -u at the optimum without the positive."""
    return -reference.dual_optimum(positive, negatives, with_positive=False)


# --- Erratum 1: where Lemma 3.3 is an equality ---------------------------------------------------


@every_row
def test_the_dual_equals_infonce_at_the_log_of_the_mean_and_nowhere_else(positive, negatives):
    u = reference.dual_optimum(positive, negatives)
    information = reference.mutual_information(positive, negatives)
    assert reference.dual_bound(positive, negatives, u) == close(information)
    for offset in (-1.0, -0.01, 0.01, 1.0):
        assert reference.dual_bound(positive, negatives, u + offset) < information
    printed = reference.dual_bound(positive, negatives, math.exp(u))  # the logarithm is missing
    assert information - printed >= 1.0 / math.e


def test_the_least_miss_of_the_printed_u_is_one_over_e():
    row = (0.4, [0.4, 0.4, 0.4])  # mean exp(Delta) = 1, where the miss is least
    printed = reference.dual_bound(*row, math.exp(reference.dual_optimum(*row)))
    assert reference.mutual_information(*row) - printed == close(1.0 / math.e)


# --- Erratum 3: the sign in Prop. 3.1 ------------------------------------------------------------


@every_row
def test_flatnce_plus_has_minus_the_gradient_of_the_infonce_bound(positive, negatives):
    def bound(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        pool = torch.cat([s_positive[None], s_negatives])
        return s_positive - torch.logsumexp(pool, dim=0) + math.log(len(pool))

    expected = [-entry for entry in row_gradient(bound, positive, negatives)]
    assert gradient_of_logits(F.flatnce_plus, positive, negatives) == close(expected)


# --- Erratum 4: the gradient in Prop. 3.2, with beta ---------------------------------------------


@pytest.mark.parametrize("beta", [0.5, 1.0, 7.0])
def test_flatnces_gradient_subtracts_the_gradient_of_the_positive_and_carries_beta(beta):
    keys = torch.from_numpy(embeddings(5, 3, seed=1))
    anchor = torch.from_numpy(embeddings(3, seed=2)).requires_grad_()
    scores = beta * keys @ anchor
    (gradient,) = torch.autograd.grad(algorithm_one(scores[0], scores[1:]), anchor)

    average = reference.softmax(scores[1:].detach()) @ keys[1:]
    torch.testing.assert_close(gradient, beta * (average - keys[0]))
    printed = average - float(keys[0] @ anchor.detach())  # "- g" where "- grad g" is meant
    assert not torch.allclose(gradient, printed, rtol=1e-2)


# --- Erratum 5: the number behind FlatNCE is no bound --------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_only_without_the_positive_the_number_grows_with_the_critics_scale(scale):
    critic = (1.0, [0.5, -0.3, 0.2])  # the hardest negative is 0.5 behind
    row = reference.scaled(*critic, scale)
    doubled = flatnce_number(*reference.scaled(*critic, 2.0 * scale))
    assert doubled - flatnce_number(*row) >= 0.5 * scale
    assert -reference.dual_optimum(*row) == close(reference.mutual_information(*row))
    assert -reference.dual_optimum(*row) <= math.log(4)


# --- Erratum 7: the factor in Prop. 3.7 ----------------------------------------------------------


@every_row
@pytest.mark.parametrize("gamma", [-2.0, -0.5, 0.5, 3.0])
def test_holders_gradient_is_flatnces_at_gamma_g_divided_by_gamma(positive, negatives, gamma):
    def holder(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        mean = (s_negatives - s_positive).exp().pow(gamma).mean().pow(1.0 / gamma)
        return mean / mean.detach()

    def annealed(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        return algorithm_one(gamma * s_positive, gamma * s_negatives)

    gradient = row_gradient(holder, positive, negatives)
    printed = row_gradient(annealed, positive, negatives)
    assert gradient == close([entry / gamma for entry in printed])
    assert gradient != pytest.approx(printed, rel=0.1)
    exact = row_gradient(partial(reference.holder_gap, gamma=gamma), positive, negatives)
    assert exact == close(gradient)


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


# --- Errata 11 and 12: what ESS is divided by, and two effective sample sizes --------------------


@pytest.mark.parametrize("count", [1, 2, 9])
def test_ess_is_divided_by_the_number_of_negatives(count):
    equal, dominated = (3.0, [0.5] * count), (3.0, [60.0] + [0.0] * (count - 1))
    assert reference.effective_sample_size(*equal) == close(1.0)
    assert reference.effective_sample_size(*dominated) == close(1.0 / count)
    contrast = F.contrast_from_logits(*logits_of(*equal))
    assert F.effective_sample_size(contrast).item() == close(1.0)
    squares = sum(weight**2 for weight in reference.importance_weights(*equal))
    printed = 1.0 / ((count + 1) * squares)  # divided by K, which cannot reach one
    assert printed == close(count / (count + 1))


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
    gradient = row_gradient(table_one_corrected, positive, negatives)
    assert gradient == close(row_gradient(reference.gap, positive, negatives))
    assert gradient == close(row_gradient(algorithm_one, positive, negatives))


@pytest.mark.parametrize(("positive", "sign"), [(0.2, -1.0), (0.9, -1.0), (1.1, 1.0), (8.0, 1.0)])
def test_table_one_as_printed_pushes_the_positive_down_once_it_exceeds_the_mean(positive, sign):
    negatives = [0.0, 0.0, 0.0]  # so that m = 1
    gradient = row_gradient(table_one_as_printed, positive, negatives)
    assert math.copysign(1.0, gradient[0]) == sign  # a loss pushes down what has gradient above 0
    assert gradient_of_logits(F.flatnce, positive, negatives)[0] == close(-1.0)


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


@every_row
def test_flatnce_with_the_positive_among_its_negatives_is_infonce_again(positive, negatives):
    def with_positive(s_positive: Tensor, s_negatives: Tensor) -> Tensor:
        return reference.gap(s_positive, torch.cat([s_positive[None], s_negatives]))

    gradient = row_gradient(with_positive, positive, negatives)
    assert gradient == close(row_gradient(reference.infonce, positive, negatives))


# --- Erratum 19: what rounding takes from cross-entropy ------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "lead", "tolerance"),
    [(torch.float32, 22.0, 1e-5), (torch.bfloat16, 10.0, 1e-2)],
    ids=["float32", "bfloat16"],
)
def test_only_cross_entropy_rounds_the_positives_gradient_away(dtype, lead, tolerance):
    row = (lead, [0.0, 0.0, 0.0])
    logits, target = logits_of(*row, dtype)
    loss = torch.nn.functional.cross_entropy(logits, target)
    (rounded,) = torch.autograd.grad(loss, logits)
    exact = row_gradient(reference.infonce, *row)
    assert exact[0] < 0.0 and rounded[0, 0].item() == 0.0
    assert rounded[0, 1:].tolist() == pytest.approx(exact[1:], rel=tolerance)
    kept = gradient_of_logits(F.infonce, *row, dtype=dtype)
    assert kept == pytest.approx(exact, rel=tolerance)
    full = gradient_of_logits(F.flatnce, *row, dtype=dtype)
    assert full == pytest.approx([-1.0, 1 / 3, 1 / 3, 1 / 3], rel=tolerance)


# --- Erratum 20: FlatNCE has a number, and it is not tight ---------------------------------------


@every_row
def test_the_dual_without_the_positive_gives_flatnces_number(positive, negatives):
    number = flatnce_number(positive, negatives)
    bound = reference.dual_bound(positive, negatives, -number, with_positive=False)
    assert bound == close(number)  # the sign of erratum 6
    assert number == close(math.log(len(negatives)) - reference.gap(positive, negatives))
