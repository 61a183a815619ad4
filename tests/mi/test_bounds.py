"""Each bound against its definition as loops over floats, and what holds between them."""

import math
from functools import partial

import pytest
import torch

from estimator_reference import donsker_varadhan as slow_dv
from estimator_reference import flo_cross_fitted, mean, others
from estimator_reference import infonce as infonce_reference
from flatnce.core import faults
from flatnce.mi.bounds import (
    ScoreBlocks,
    barber_agakov,
    blocks_of,
    cross_fitted_flo,
    donsker_varadhan,
    dual_from_pool,
    finite_infonce,
    flatnce,
    flatnce_loss,
    flo,
    flo_alternating_losses,
    holder_flatnce,
    holder_flatnce_loss,
    holder_statistics,
    infonce,
    jensen_shannon,
    jensen_shannon_loss,
    mine_loss,
    nwj,
    optimal_dual,
    pool_log_sum,
    recentre,
    row_statistics,
    smile,
    smile_loss,
    tuba,
    with_floor,
)
from flatnce.mi.registry import BOUNDS
from forked import run_forked

N, WIDER, POOL = 5, 8, 6

# --- The definitions: plain loops ----------------------------------------------------------------


def pairs(s):
    return [(i, j) for i in range(len(s)) for j in range(len(s[0])) if j != i]


def slow_tuba(s, a):
    joint = mean(s[i][i] - a[i] for i in range(len(s)))
    return 1 + joint - mean(math.exp(s[i][j] - a[i]) for i, j in pairs(s))


def slow_flatnce(s, power=1.0):
    def pooled(values):
        return math.log(mean(math.exp(power * v) for v in values)) / power

    return mean(row[i] - pooled(others(row, i)) for i, row in enumerate(s))


def slow_flo(s, u, with_positive=False):
    total = []
    for i, row in enumerate(s):
        pool = row if with_positive else others(row, i)
        total.append(1 - u[i] - math.exp(-u[i]) * mean(math.exp(v - row[i]) for v in pool))
    return mean(total)


def slow_softplus(v):
    return math.log1p(math.exp(v))


def slow_js(s):
    joint = mean(slow_softplus(-s[i][i]) for i in range(len(s)))
    return math.log(2) - joint / 2 - mean(slow_softplus(s[i][j]) for i, j in pairs(s)) / 2


# --- Equality ------------------------------------------------------------------------------------


def draw(columns=N, spread=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(N, columns, generator=generator, dtype=torch.float64)
    baseline, dual = torch.randn(2, N, generator=generator, dtype=torch.float64)
    pool = spread * torch.randn(N, POOL, generator=generator, dtype=torch.float64)
    return scores, baseline, dual, pool


# Name: the function, its definition, and which of scores s, baseline a, dual u, pool p it takes.
FORMS = {
    "dv": (donsker_varadhan, slow_dv, "s"),
    "nwj": (nwj, lambda s: slow_tuba(s, [0.0] * len(s)), "s"),
    "tuba": (tuba, slow_tuba, "sa"),
    "infonce": (infonce, infonce_reference, "s"),
    "flatnce": (flatnce, slow_flatnce, "s"),
    "flo": (flo, slow_flo, "su"),
    "flo-plus": (partial(flo, with_positive=True), partial(slow_flo, with_positive=True), "su"),
    "cross-fitted": (cross_fitted_flo, flo_cross_fitted, "sp"),
    "js": (jensen_shannon, slow_js, "s"),
    **{
        f"smile{clip}": (partial(smile, clip=clip), partial(slow_dv, clip=clip), "s")
        for clip in (1.5, 0.5, 0.0)
    },
    **{
        f"holder{power}": (
            partial(holder_flatnce, power=power),
            partial(slow_flatnce, power=power),
            "s",
        )
        for power in (2.0, 0.5, -1.0)
    },
}


def value_of(name, given, slow=False):
    fast, definition, takes = FORMS[name]
    return (definition if slow else fast)(*(given["saup".index(letter)] for letter in takes))


every_form = pytest.mark.parametrize("name", FORMS)


@every_form
@pytest.mark.parametrize("columns", [N, WIDER])
@pytest.mark.parametrize("spread", [0.5, 8.0])
def test_equals_its_definition(name, columns, spread):
    given = draw(columns, spread)
    wanted = value_of(name, [t.tolist() for t in given], slow=True)
    assert float(value_of(name, given)) == pytest.approx(wanted, rel=1e-10, abs=1e-10)


def test_capped_bounds_reach_their_ceilings_and_stay_below():
    scores = 100 * torch.eye(N, dtype=torch.float64) - 50
    for name in ("infonce", "js"):
        assert BOUNDS[name].ceiling is not None
        assert float(BOUNDS[name].value(scores)) == pytest.approx(BOUNDS[name].ceiling(N))


@every_form
def test_blocks_of_any_size_give_the_same(name):
    scores, baseline, dual, pool = draw(WIDER)
    whole = value_of(name, (scores, baseline, dual, pool))
    for entries in (1, 25, N * WIDER - 1, N * WIDER, 10_000):
        blocks, pooled = (
            ScoreBlocks(N, s.shape[1], lambda start, stop, s=s: s[start:stop], entries)
            for s in (scores, pool)
        )
        found = value_of(name, (blocks, baseline, dual, pooled))
        torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("entries", "heights"),
    [(1, [1] * 5), (WIDER, [1] * 5), (2 * WIDER - 1, [1] * 5), (2 * WIDER, [2, 2, 1]), (99, [5])],
)
def test_a_block_has_as_many_rows_as_fit_and_at_least_one(entries, heights):
    scores, *_ = draw(WIDER)
    blocks = ScoreBlocks(N, WIDER, lambda start, stop: scores[start:stop], entries)
    found = list(blocks.map(lambda block: 2 * block).each())
    assert [len(block) for _, block in found] == heights
    assert [start for start, _ in found] == [sum(heights[:k]) for k in range(len(heights))]
    assert torch.equal(torch.cat([block for _, block in found]), 2 * scores)


def test_two_million_scores_are_computed_at_once_or_all_that_have_a_gradient():
    blocks = ScoreBlocks(5, 2**20, lambda start, stop: torch.empty(stop - start, 0))
    assert [len(block) for _, block in blocks.each()] == [2, 2, 1]
    scores = torch.zeros(3, 2**20)
    heights = [len(block) for _, block in blocks_of(scores).each()]
    whole = [len(block) for _, block in blocks_of(scores.requires_grad_()).each()]
    assert (heights, whole) == ([2, 1], [3])


@pytest.mark.parametrize("entries", [1, 2 * WIDER, 10_000])
def test_statistics_by_blocks_are_those_of_the_whole(entries):
    scores, *_ = draw(WIDER)
    blocks = ScoreBlocks(N, WIDER, lambda start, stop: scores[start:stop], entries)
    found, whole = row_statistics(blocks), row_statistics(scores)
    torch.testing.assert_close(found.by_row(), whole.by_row(), rtol=1e-12, atol=1e-12)
    assert math.isnan(found.beta) and found.beta.shape == () and found.faults is None
    assert found.count.tolist() == [WIDER - 1] * N
    leaf = scores.clone().requires_grad_()
    by_rows = row_statistics(ScoreBlocks(N, WIDER, lambda a, b: leaf[a:b], entries))
    assert by_rows.positive.requires_grad and by_rows.negative.requires_grad
    assert not (by_rows.count.requires_grad or by_rows.hardest.requires_grad)
    bad = scores.clone()
    bad[3, 0] = math.nan
    with pytest.raises(ValueError, match=r"row \d+: .* hold NaN"):
        row_statistics(ScoreBlocks(N, WIDER, lambda start, stop: bad[start:stop], entries))


def test_one_row_or_two_pairs_are_enough_and_read_by_blocks():
    scores, *_ = draw(WIDER)
    for given in (scores[:1], scores[:2, :2]):
        blocks = ScoreBlocks(*given.shape, lambda a, b, s=given: s[a:b], 1)
        expected = pytest.approx(infonce_reference(given.tolist()))
        assert float(infonce(given)) == float(infonce(blocks)) == expected


def test_where_no_value_is_read_a_fault_is_raised_once_after_all_blocks(monkeypatch):
    monkeypatch.setattr("flatnce.core.faults.can_raise_now", lambda tensor: False)
    bad = draw(WIDER)[0]
    bad[1, 0] = math.nan
    for entries in (1, N * WIDER - 1):
        with pytest.raises(ValueError, match="nonfinite"):
            row_statistics(ScoreBlocks(N, WIDER, lambda a, b: bad[a:b], entries))
    whole = row_statistics(ScoreBlocks(N, WIDER, lambda a, b: bad[a:b], N * WIDER))
    assert faults.flagged(whole.faults) == ["nonfinite"]


@pytest.mark.parametrize("power", [2.0, -1.0])
def test_holder_statistics_hold_the_effective_number_of_negatives(power):
    scores, *_ = draw()
    found = holder_statistics(scores.requires_grad_(), power)
    numbers = (2 * found.negative - found.negative2).exp().tolist()
    for i, row in enumerate(scores.tolist()):
        powers = [math.exp(power * value) for value in others(row, i)]
        expected = sum(powers) ** 2 / sum(value**2 for value in powers)
        assert numbers[i] == pytest.approx(expected)
    shifted = recentre(found, torch.ones(N, dtype=torch.float64).requires_grad_())
    for rows in (found, shifted):
        assert rows.negative.requires_grad
        assert not (rows.hardest.requires_grad or rows.plain.requires_grad)


def test_scores_far_apart_do_not_overflow_in_float32():
    scores = torch.zeros(N, N) - 95 * torch.eye(N)
    dual, size = torch.full((N,), 95.0), math.log(N)
    assert float(flo(scores, dual, with_positive=True)) == pytest.approx(
        1 - 95 - math.exp(math.log(N - 1) - size), rel=1e-5
    )
    pooled = torch.full((N,), 95.0)
    assert dual_from_pool(torch.zeros(N), pooled, 1).tolist() == pytest.approx(
        [95 - math.log(2)] * N
    )
    assert float(jensen_shannon_loss(scores)) == pytest.approx(95 + math.log(2), rel=1e-6)
    assert float(jensen_shannon_loss(-scores + 95)) == pytest.approx(95 + math.exp(-190), rel=1e-6)


@pytest.mark.parametrize("columns", [N, WIDER])
def test_infonce_of_finite_scores_is_infonce(columns):
    scores, *_ = draw(columns, spread=8.0)
    blocks = ScoreBlocks(N, columns, lambda start, stop: scores[start:stop], 2 * columns)
    for given in (scores, blocks):
        torch.testing.assert_close(finite_infonce(given), infonce(scores, reduction="none"))


@pytest.mark.parametrize(
    "read",
    [
        infonce,
        flatnce,
        nwj,
        partial(holder_flatnce, power=2.0),
        partial(tuba, log_baseline=draw()[1]),
        partial(flo, dual=draw()[2]),
        partial(cross_fitted_flo, pool=draw()[3]),
    ],
    ids=["infonce", "flatnce", "nwj", "holder", "tuba", "flo", "cross-fitted"],
)
def test_a_value_is_the_mean_of_its_rows_unless_told_otherwise(read):
    scores, *_ = draw()
    rows = read(scores, reduction="none")
    assert rows.shape == (N,)
    torch.testing.assert_close(read(scores), rows.mean())
    torch.testing.assert_close(read(scores, reduction="sum"), rows.sum())


def test_the_best_u_gives_flatnces_value_and_a_baseline_may_be_one_for_all():
    scores, *_ = draw(WIDER)
    torch.testing.assert_close(flo(scores, optimal_dual(scores)), flatnce(scores))
    one = torch.tensor(0.4, dtype=torch.float64)
    torch.testing.assert_close(tuba(scores, one), tuba(scores, one.expand(N)))


def test_half_precision_is_read_in_float32():
    scores = draw(WIDER)[0].bfloat16()
    for read in (infonce, jensen_shannon, smile, partial(holder_flatnce, power=0.5), pool_log_sum):
        assert read(scores).dtype == torch.float32
        torch.testing.assert_close(read(scores), read(scores.float()))


def test_defaults_are_a_clip_of_5_and_a_rate_of_1_percent():
    scores = draw(spread=8.0)[0]
    assert scores.abs().max() > 6
    assert torch.equal(smile(scores), smile(scores, 5.0))
    assert torch.equal(smile_loss(scores), smile_loss(scores, 5.0))
    before = torch.tensor(0.7, dtype=torch.float64)
    assert torch.equal(mine_loss(scores, before)[1], mine_loss(scores, before, rate=0.01)[1])


def test_no_row_costs_more_than_the_log_of_the_floor():
    own = torch.tensor([-1e8, -3.0, 0.0, 2.0], dtype=torch.float64)
    found = with_floor(own, 0.01)
    expected = [math.log(0.01), *(math.log(0.99 * math.exp(v) + 0.01) for v in (-3.0, 0.0, 2.0))]
    assert found.tolist() == pytest.approx(expected)
    assert torch.equal(with_floor(own, 0.0), own)


@every_form
def test_gradient_is_that_of_finite_differences(name):
    scores, *rest = draw(spread=1.0)
    assert torch.autograd.gradcheck(
        lambda *given: value_of(name, given),
        [t.clone().requires_grad_() for t in (scores, *rest)],
        fast_mode=True,
    )


# The others are not indifferent to a constant.
@pytest.mark.parametrize(
    "name", sorted(set(FORMS) - {"nwj", "js", "smile1.5", "smile0.5", "smile0.0"})
)
def test_survives_scores_in_the_hundreds(name):
    scores, baseline, dual, pool = draw(spread=1.0)
    # Added throughout, so that exp overflows in float64 unless it is taken relative.
    before = value_of(name, (scores, baseline, dual, pool))
    after = value_of(name, (scores + 800, baseline + 800, dual, pool + 800))
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)


# --- Relations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_order_of_the_bounds_at_equal_critic(seed):
    scores, _, dual, _ = draw(seed=seed)
    rows = row_statistics(scores)
    assert donsker_varadhan(rows) >= nwj(rows)
    assert donsker_varadhan(rows) <= flatnce(rows)
    assert infonce(rows) <= math.log(N)
    assert infonce(100 * scores) <= math.log(N)
    assert flo(rows, dual) <= flatnce(rows)
    assert flo(rows, dual, with_positive=True) <= infonce(rows)
    assert jensen_shannon(scores) <= math.log(2)


@pytest.mark.parametrize("name", [n for n, b in BOUNDS.items() if b.free_of_offset])
def test_an_offset_of_x_leaves_those_alone_that_say_so(name):
    scores, offset, dual, pool = draw()
    needs = {"dual": dual, "power": 2.0}
    bound = BOUNDS[name]
    given = {k: needs[k] for k in bound.needs if k in needs}
    extra = [{"pool": p} if "pool" in bound.needs else {} for p in (pool, pool + offset[:, None])]
    before = bound.value(scores, **given, **extra[0])
    after = bound.value(scores + offset[:, None], **given, **extra[1])
    torch.testing.assert_close(after, before)


def test_recentring_takes_an_offset_out():
    scores, offset, _, pool = draw()
    moved = scores + offset[:, None]
    plain = recentre(scores, pool_log_sum(pool) - math.log(POOL))
    again = recentre(moved, pool_log_sum(pool + offset[:, None]) - math.log(POOL))
    torch.testing.assert_close(donsker_varadhan(again), donsker_varadhan(plain))
    torch.testing.assert_close(nwj(again), nwj(plain))
    assert not torch.isclose(donsker_varadhan(moved), donsker_varadhan(scores))


# --- Losses --------------------------------------------------------------------------------------


def gradient(loss, scores):
    leaf = scores.clone().requires_grad_()
    found = loss(leaf)
    return float(found.detach()), torch.autograd.grad(found, leaf)[0]


def test_flatnce_loss_shows_infonce_and_descends_its_own_number():
    scores, *_ = draw()
    value, slope = gradient(flatnce_loss, scores)
    assert value == pytest.approx(-infonce_reference(scores.tolist()))
    _, wanted = gradient(lambda s: -flatnce(s), scores)
    torch.testing.assert_close(slope, wanted)
    _, wanted = gradient(lambda s: -holder_flatnce(s, 2.0), scores)
    value, slope = gradient(lambda s: holder_flatnce_loss(s, 2.0), scores)
    torch.testing.assert_close(slope, wanted)
    assert value == pytest.approx(-infonce_reference(scores.tolist()))


def test_mine_starts_as_donsker_varadhan_and_then_divides_by_the_average():
    scores, *_ = draw()
    value, slope = gradient(lambda s: mine_loss(s)[0], scores)
    _, wanted = gradient(lambda s: -donsker_varadhan(s), scores)
    assert value == pytest.approx(-slow_dv(scores.tolist()))
    torch.testing.assert_close(slope, wanted)

    before = torch.tensor(0.7, dtype=torch.float64)
    _, after = mine_loss(scores, before, rate=0.2)
    partition = mean(math.exp(scores[i][j]) for i, j in pairs(scores.tolist()))
    average = 0.8 * math.exp(0.7) + 0.2 * partition
    assert float(after) == pytest.approx(math.log(average))
    value, slope = gradient(lambda s: mine_loss(s, before, rate=0.2)[0], scores)
    wanted = scores.exp() / (N * (N - 1)) / average
    wanted = torch.where(torch.eye(N, dtype=torch.bool), torch.full_like(wanted, -1 / N), wanted)
    torch.testing.assert_close(slope, wanted)
    assert value == pytest.approx(-slow_dv(scores.tolist()))
    assert not after.requires_grad
    # At a rate of 1 what came before does not matter, even if it has overflowed.
    for before in (0.7, math.inf):
        past = torch.tensor(before, dtype=torch.float64)
        _, slope = gradient(lambda s, past=past: mine_loss(s, past, rate=1.0)[0], scores)
        torch.testing.assert_close(slope, gradient(lambda s: -donsker_varadhan(s), scores)[1])


def test_jensen_shannon_and_smile_share_a_gradient():
    scores, *_ = draw()
    value, slope = gradient(jensen_shannon_loss, scores)
    assert value == pytest.approx(2 * math.log(2) - 2 * slow_js(scores.tolist()))
    shown, same = gradient(lambda s: smile_loss(s, 1.5), scores)
    torch.testing.assert_close(slope, same)
    assert shown == pytest.approx(-slow_dv(scores.tolist(), 1.5))


def test_alternating_losses_move_one_side_each():
    scores, _, dual, _ = draw()
    scores, dual = scores.requires_grad_(), dual.requires_grad_()
    critic, head = flo_alternating_losses(scores, dual)
    torch.testing.assert_close(critic, head)
    torch.testing.assert_close(critic, -flo(scores, dual))
    of_both = torch.autograd.grad(-flo(scores, dual), (scores, dual))
    found = torch.autograd.grad(critic, (scores, dual), allow_unused=True)
    torch.testing.assert_close(found[0], of_both[0])
    assert found[1] is None
    found = torch.autograd.grad(head, (scores, dual), allow_unused=True)
    assert found[0] is None
    torch.testing.assert_close(found[1], of_both[1])


@pytest.mark.parametrize("name", BOUNDS)
def test_a_step_down_each_loss_raises_the_partners_scores(name):
    scores, baseline, dual, pool = draw(spread=0.5)
    given = {"dual": dual, "power": 2.0, "log_baseline": baseline, "pool": pool}
    bound = BOUNDS[name]
    scores.requires_grad_()
    if bound.reads == "densities":  # those of the pairs
        found = bound.loss(scores.diagonal(), entropy=1.0)
    else:
        found = bound.loss(scores, **{key: given[key] for key in bound.needs})
    (found[0] if isinstance(found, tuple) else found).backward()
    assert (scores.grad.diagonal() < 0).all()


# --- Registry and refusals -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: infonce(s[:, :3]), r"shape \(5, 3\)"),
        (lambda s: infonce(s[:1, :1]), "at least 2 pairs"),
        (lambda s: infonce(s[0]), r"\(rows, columns\)"),
        (lambda s: infonce(s.long()), r"^scores has dtype torch.int64 .* floating-point"),
        (lambda s: infonce(s / 0), "NaN"),
        (lambda s: flo(s, s[0][:3]), "one number per row"),
        (lambda s: recentre(s, s[0][:3]), "one number per row"),
        (lambda s: cross_fitted_flo(s, s[:3]), "pool has 3 rows"),
        (lambda s: smile(s, -1.0), "clip=-1.0"),
        (lambda s: holder_statistics(s, math.nan), "power=nan"),
        (lambda s: holder_statistics(s, math.inf), "power=inf"),
        (
            lambda s: holder_statistics(s, 0.0),
            r"power=0.0: pass a finite number other than 0; .*contrast_of\(power=\)",
        ),
        (lambda s: holder_statistics(row_statistics(s), 2.0), "needs the scores"),
        (lambda s: mine_loss(s, rate=0.0), "rate=0.0"),
        (lambda s: mine_loss(s, rate=1.001), "rate=1.001"),
        (lambda s: pool_log_sum(s[:, :0]), r"pool has dtype .* shape \(5, 0\)"),
        (lambda s: infonce(ScoreBlocks(5, 4, lambda a, b: s[a:b, :4])), r"shape \(5, 4\)"),
        (lambda s: holder_statistics(row_statistics(s), 0.0), "needs the scores"),
        (lambda s: barber_agakov(s[0]), "either log_marginal or entropy"),
    ],
)
def test_misuse_is_said_in_one_message(call, message):
    scores, *_ = draw()
    with pytest.raises(ValueError, match=message):
        call(scores)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_recentred_statistics_are_those_of_the_shifted_scores(power):
    scores, shift, *_ = draw()
    found = recentre(holder_statistics(scores, power), shift)
    wanted = holder_statistics(scores - shift[:, None], power)
    torch.testing.assert_close(found.by_row(), wanted.by_row(), rtol=1e-10, atol=1e-10)


def test_barber_agakov_is_the_mean_of_the_model_and_the_entropy():
    conditional, marginal = torch.tensor([-1.0, -2.5, 0.5]), torch.tensor([-2.0, -3.0, -1.0])
    assert float(barber_agakov(conditional, marginal)) == 1.0
    assert float(barber_agakov(conditional, entropy=2.0)) == 1.0
    with pytest.raises(ValueError, match="not both"):
        barber_agakov(conditional, marginal, entropy=2.0)


READ_A_LARGE_MATRIX = """
import resource, torch
from flatnce.mi.bounds import ScoreBlocks, infonce, row_statistics, smile

n = 6000
x = torch.randn(n, 8, dtype=torch.float64)
few = ScoreBlocks(64, 64, lambda start, stop: x[start:stop] @ x[:64].T)
infonce(row_statistics(few)), smile(few)  # what the first call loads is not of interest
scores = ScoreBlocks(n, n, lambda start, stop: x[start:stop] @ x.T)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
before = peak()
infonce(row_statistics(scores)), smile(scores)
print(peak() - before)
"""


def test_reading_a_matrix_of_275_mebibytes_takes_a_fraction_of_that():
    # Small results left between the blocks, or views of them, would cost several times the matrix.
    assert float(run_forked(READ_A_LARGE_MATRIX)) < 250
