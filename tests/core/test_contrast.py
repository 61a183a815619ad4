"""The row statistics: dense equals the slow definition, chunked equals dense, and gradients."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck

import layouts
import reference
from flatnce import FlatNCE
from flatnce import functional as F
from flatnce.core import faults, kernels
from flatnce.core.contrast import contrast_of_batches
from flatnce.core.kernels import KERNELS, choose_kernel, chunked
from flatnce.core.kernels import statistics as dense
from flatnce.core.selection import Selection
from flatnce.functional import Contrast

TEMPERATURE = 0.4
EXACT = {"rtol": 1e-10, "atol": 1e-10}
POWERS = [1.0, 2.0, 0.5, 0.003, 0.0, -1.0, -3.0, math.inf, -math.inf]
pytestmark = pytest.mark.usefixtures("small_blocks")
every_kernel = pytest.mark.parametrize("kernel", ["dense", "chunked"])  # fused: test_fused.py
every_power = pytest.mark.parametrize("power", POWERS)
# Every option of every layout at power 1; the other powers where hard negatives are merged in:
# all of them where these are shared, one of each kind where every anchor has its own.
SOME_POWERS = [2.0, 0.0, -math.inf]
CASES_AND_POWERS: list = [(name, 1.0) for name in layouts.NAMES]
for layout in layouts.LAYOUTS:
    CASES_AND_POWERS += [(f"{layout}: shared", power) for power in POWERS[1:]]
    CASES_AND_POWERS += [
        pytest.param(
            f"{layout}: own", power, marks=() if power in SOME_POWERS else pytest.mark.slow
        )
        for power in POWERS[1:]
    ]
every_case_and_power = pytest.mark.parametrize(("name", "power"), CASES_AND_POWERS)


def near(expected: list) -> object:
    return pytest.approx([value.item() for value in expected], rel=1e-10, abs=1e-10)


def kept(contrast: Contrast, values: Tensor) -> Tensor:
    """The rows that have a positive; ``reference.py`` has no others."""
    return values if contrast.weight is None else values[contrast.weight > 0]


# --- Dense is the slow definition, and chunked is dense -----------------------------------------


def effective_number(negatives: Tensor, power: float) -> Tensor:
    """One over the sum of squares of the weights in the gradient of a power mean."""
    if power == 0:
        return torch.tensor(len(negatives), dtype=torch.float64)
    if math.isinf(power):
        end = negatives.max() if power > 0 else negatives.min()
        return (negatives == end).sum().double()
    return 1 / reference.softmax(power * negatives).square().sum()


def slow_statistics(row: reference.Row, power: float) -> list[Tensor]:
    """Positive, negative and negative2; of several positives also their own statistics.

    The negative is the Hölder gap against a positive of 0, and exp(2 negative - negative2) the
    effective number of negatives.
    """
    negative = reference.holder_gap(0.0, row.negatives, power)
    negative2 = 2 * negative - effective_number(row.negatives, power).log()
    found, several = [row.positive, negative, negative2], row.positives
    pooled = [reference.log_sum_exp(several), reference.log_sum_exp(2 * several), several.mean()]
    return found + pooled


@every_kernel
@every_case_and_power
def test_values_and_gradients_are_those_of_the_slow_definition(name, kernel, power):
    case = layouts.case_of(name)
    inputs, tau, leaves = layouts.learned(case, TEMPERATURE)
    found = F.contrast_of(case.build(inputs), tau, power=power, kernel=kernel)
    pool = found.positives
    fast = [found.positive, found.negative, found.negative2]
    fast += [] if pool is None else [pool.lse, pool.lse2, pool.mean]
    values = torch.stack([kept(found, one) for one in fast])

    inputs, tau, exact = layouts.learned(case, TEMPERATURE)
    rows = layouts.rows_of(case, tau, inputs)
    slow = torch.stack([torch.stack(slow_statistics(row, power)) for row in rows], dim=1)
    slow = slow[: len(fast)]
    torch.testing.assert_close(values, slow, **EXACT)
    assert kept(found, found.hardest).tolist() == near([max(row.negatives) for row in rows])
    assert not found.hardest.requires_grad
    assert kept(found, found.count).tolist() == [len(row.negatives) for row in rows]
    # Each statistic of each row has a weight of its own, so that no two errors cancel.
    weights = layouts.random(*values.shape, seed=17)
    gradients = torch.autograd.grad((weights * values).sum(), leaves)
    expected = torch.autograd.grad((weights * slow).sum(), exact)
    torch.testing.assert_close(gradients, expected, **EXACT)


@every_kernel
@pytest.mark.parametrize(
    ("power", "limit"),
    [(1e30, math.inf), (-1e300, -math.inf), (1e16, math.inf), (1e-9, 0.0), (-1e-300, 0.0)],
)
def test_a_power_beyond_rounding_is_its_limit(power, limit, kernel):
    pairs = F.two_view(layouts.random(5, 3).float(), layouts.random(5, 3, seed=1).float())
    found, wanted = (F.contrast_of(pairs, 0.1, power=one, kernel=kernel) for one in (power, limit))
    torch.testing.assert_close(found.by_row(), wanted.by_row(), rtol=0, atol=0)


@pytest.mark.parametrize(("power", "is_limit"), [(1e15, False), (1e15 + 0.5, True)])
def test_of_two_equal_negatives_only_the_limit_takes_one(power, is_limit):
    # Scores of 0, which no power rounds, and below.
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)
    (pairs,) = F.two_tower(z, z, directions="left")
    found = F.contrast_of(pairs, TEMPERATURE, power=power)
    number = (2 * found.negative - found.negative2).exp()[0]
    assert float(number) == pytest.approx(1.0 if is_limit else 2.0)


@pytest.mark.parametrize(("power", "is_limit"), [(1e-8, False), (0.99e-8, True)])
def test_a_power_of_1e_minus_8_is_the_smallest_that_is_not_0(power, is_limit):
    pairs = F.two_view(layouts.random(5, 3), layouts.random(5, 3, seed=1))
    for sign in (1, -1):
        found, wanted = (
            F.contrast_of(pairs, TEMPERATURE, power=p).negative for p in (sign * power, 0.0)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        assert torch.equal(found, wanted) == is_limit


# A power, and what the kernel computes at it: extras, and whether in float64.
AT_POWER = [
    (1.0, (), False),
    (2.0, (), False),
    (0.01, (), False),
    (0.0099, (), True),
    (-0.0099, ("hardest",), True),
    (0.0, ("mean",), False),
    (-1.0, ("hardest",), False),
    (math.inf, ("hardest",), False),
    (-math.inf, ("hardest",), False),
]


@pytest.mark.parametrize(("power", "extras", "precise"), AT_POWER)
@pytest.mark.parametrize("slope", [False, True], ids=["", "slope"])
def test_a_kernel_is_asked_for_what_a_power_needs(power, extras, precise, slope, monkeypatch):
    asked = []

    def choose(name: str, n: int, m: int, like: Tensor, **options: object) -> object:
        def run(anchors: Tensor, keys: Tensor, *rest: object) -> object:
            asked.append((name, n, m, anchors.dtype, keys is anchors, set(rest[-1])))
            return dense.row_statistics(anchors, keys, *rest)

        return run

    monkeypatch.setattr("flatnce.core.contrast.choose_kernel", choose)
    rows = [layouts.random(5, 3, seed=seed).float() for seed in (0, 1)]
    wanted = {*extras, "expected"} if slope and power == 1 else set(extras)
    dtype = torch.float64 if precise else torch.float32
    F.contrast_of(F.two_view(*rows), TEMPERATURE, power=power, kernel="fused", slope=slope)
    name = "chunked" if precise else "fused"
    assert asked.pop(0) == (name, 10, 10, dtype, True, wanted)
    plain = ("fused", 10, 10, torch.float32, True, {"expected"} if slope else set())
    assert asked == ([] if power == 1 else [plain])


@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (1, 11), (3, 5), (6, 10), (7, 11), (4, 4), (8, 6), (20, 23)]
)
@pytest.mark.parametrize("same", [False, True], ids=["strangers", "relatives"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_kernels_agree_at_every_size(n, m, same, dtype):
    generator = torch.Generator().manual_seed(n * m)
    groups = torch.randint(0, 3, (n + m,), generator=generator)
    selection = Selection(
        groups[:n],
        groups[n:],
        torch.rand(n, m, generator=generator) < 0.2,
        torch.arange(n),
        torch.arange(m) + n // 2,
        same,
    )
    coefficient = torch.randn(6, n, generator=generator).to(dtype)
    start = [torch.randn(size, 4, generator=generator).to(dtype) for size in (n, m)]
    extras = ("mean", "expected", "hardest")

    def run(kernel: str) -> tuple[list[Tensor], list[Tensor]]:
        leaves = [z.clone().requires_grad_() for z in (*start, torch.tensor(1.7, dtype=dtype))]
        found = KERNELS[kernel](*leaves, selection, extras)
        assert found.mean is not None
        moving = [found.lse, found.lse2, found.mean, found.hardest]
        some = found.count > 0
        total = sum((c * s)[some].sum() for c, s in zip(coefficient, moving, strict=False))
        values = [s[some] for s in (*moving, found.count, found.top, found.expected)]
        return values, list(torch.autograd.grad(total, leaves))

    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(run("chunked"), run("dense"), rtol=tolerance, atol=tolerance)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_row_that_counts_nothing_is_finite_and_moves_nothing(kernel, dtype):
    anchors = torch.randn(4, 2, dtype=dtype, requires_grad=True)
    keys = torch.randn(7, 2, dtype=dtype, requires_grad=True)
    groups = torch.tensor([0, 1, 0, 1]), torch.zeros(7, dtype=torch.long)
    beta = torch.tensor(2.0, dtype=dtype)
    found = KERNELS[kernel](anchors, keys, beta, Selection(*groups), ("mean", "hardest"))
    moving = (found.lse, found.lse2, found.mean, found.hardest)
    assert all(values.isfinite().all() for values in moving)
    assert found.count.tolist() == [0, 7, 0, 7]
    total = sum(values.sum() / torch.finfo(dtype).max for values in moving)
    to_anchors, to_keys = torch.autograd.grad(total, (anchors, keys))
    assert to_anchors.isfinite().all() and to_keys.isfinite().all()
    assert not to_anchors[[0, 2]].any()


@every_kernel
def test_of_equal_scores_the_first_is_the_hardest(kernel):
    anchors = layouts.random(2, 3)
    keys = layouts.random(1, 3, seed=1).repeat(7, 1).requires_grad_()
    groups = torch.tensor([0, 1]), torch.tensor([0, 2, 2, 2, 2, 2, 2])
    found = KERNELS[kernel](anchors, keys, torch.tensor(1.0), Selection(*groups), ("hardest",))
    (moved,) = torch.autograd.grad(found.hardest.sum(), keys)
    assert moved.any(dim=1).nonzero()[:, 0].tolist() == [0, 1]  # the first of each anchor


@every_kernel
def test_large_scores_neither_overflow_nor_underflow(kernel):
    z1, z2 = 40 * layouts.random(4, 3, seed=0), 40 * layouts.random(4, 3, seed=1)
    pairs = F.two_view(z1.float(), z2.float(), normalize=False)
    found = F.contrast_of(pairs, 0.05, kernel=kernel)
    rows = reference.two_view_rows(z1.float(), z2.float(), 20.0, normalize=False)
    assert max(map(abs, found.negative.tolist())) > 1e4  # exp of which is no float
    expected = torch.stack([reference.gap(row.positive, row.negatives) for row in rows])
    torch.testing.assert_close(found.gap.double(), expected, rtol=1e-5, atol=0)


@every_power
@every_kernel
@pytest.mark.parametrize(
    "name", ["two views: own", "labels, out: shared", "labels, in: own", "three views, in: shared"]
)
def test_the_slope_is_infonces_derivative_in_beta(name, kernel, power):
    case = layouts.case_of(name)
    beta = torch.tensor(1 / TEMPERATURE, dtype=torch.float64, requires_grad=True)
    pairs = case.build(case.inputs)
    found = F.contrast_of(pairs, beta.reciprocal(), power=power, kernel=kernel, slope=True)
    # Of the plain pool: whatever the power, InfoNCE is InfoNCE.
    plain = F.contrast_of(pairs, beta.reciprocal(), kernel=kernel)
    (expected,) = torch.autograd.grad(F.infonce(plain), beta)
    assert not found.slope.requires_grad
    assert float(found.reduce(found.slope)) == pytest.approx(float(expected), rel=1e-10)


@every_kernel
@pytest.mark.parametrize("power", [0.009, 0.003, 1e-5, 1e-7, -1e-4])
def test_a_power_near_zero_keeps_the_precision_of_float32(power, kernel):
    z1, z2 = (layouts.random(6, 3, seed=seed).float() for seed in (0, 1))
    found = F.contrast_of(F.two_view(z1, z2), 0.1, power=power, kernel=kernel)
    rows = reference.two_view_rows(z1, z2, 10.0)
    slow = [reference.holder_gap(row.positive, row.negatives, power) for row in rows]
    assert found.gap.dtype == torch.float32
    torch.testing.assert_close(found.gap.double(), torch.stack(slow), rtol=1e-5, atol=1e-5)


@every_kernel
@every_power
def test_of_a_single_negative_every_power_mean_is_its_score(power, kernel):
    left, right = layouts.random(2, 3), layouts.random(2, 3, seed=1)
    pairs = F.two_tower(left, right)
    found = F.contrast_of(pairs, TEMPERATURE, power=power, kernel=kernel)
    score = reference.unit(left) @ reference.unit(right).T / TEMPERATURE
    expected = torch.stack([score[0, 1], score[1, 0], score[1, 0], score[0, 1]])
    assert found.count.tolist() == [1.0] * 4
    for values in (found.negative, found.negative2 / 2, found.hardest):
        torch.testing.assert_close(values, expected, **EXACT)


@every_kernel
@pytest.mark.parametrize("power", [power for power in POWERS if power != 0.003])
def test_a_row_without_negatives_stays_finite_where_it_is_not_refused(power, kernel, deferred):
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    z = [layouts.random(4, 3, seed=seed).requires_grad_() for seed in (0, 1)]
    pairs = F.two_tower(*z, directions="left", false_negatives=mask)
    found = F.contrast_of(pairs, TEMPERATURE, power=power, kernel=kernel)
    assert faults.flagged(found.faults) == ["no_negatives"]
    assert all(values.isfinite().all() for values in found.by_row().values())
    gradients = torch.autograd.grad(found.gap[[0, 2, 3]].sum() + 0 * found.gap[1], z)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(("score", "accepted"), [(1.6e38, True), (1.8e38, False)])
@pytest.mark.parametrize("negative", [False, True], ids=["positive", "negative"])
def test_a_score_may_be_as_large_as_half_of_the_largest_float32(score, accepted, negative):
    """Twice each score is read for the effective sample size; the largest number is 3.4e38."""
    root = math.sqrt(score)
    left, right = torch.tensor([[root, 0.0], [0.0, 1.0]]), torch.tensor([[root, 0.0], [0.0, 1.0]])
    pairs = F.two_tower(left, right.flip(0) if negative else right, normalize=False)
    if accepted:
        rows = F.contrast_of(pairs, 1.0).by_row()
        assert all(values.isfinite().all() for values in rows.values())
    else:
        with pytest.raises(ValueError, match=r"row 0: the embeddings, .* hold NaN"):
            F.contrast_of(pairs, 1.0)


# --- Positives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["each", "out", "in"])
def test_only_rows_with_several_positives_have_statistics_of_them(form):
    views = [layouts.random(4, 3, seed=seed) for seed in range(3)]
    two, three = (
        F.contrast_of(F.multi_view(views[:count], form=form), TEMPERATURE) for count in (2, 3)
    )
    assert two.positives is None and (three.positives is None) == (form == "each")
    wanted = F.contrast_of(F.two_view(*views[:2]), TEMPERATURE)
    torch.testing.assert_close(two.by_row(), wanted.by_row(), rtol=0, atol=0)
    if three.positives is not None:
        assert three.positives.count.tolist() == [2.0] * 12


@every_kernel
@pytest.mark.parametrize("form", ["out", "in"])
def test_a_row_without_a_positive_has_a_positive_of_0_and_no_weight(form, kernel):
    pairs = F.labelled(layouts.random(4, 3), torch.tensor([0, 0, 1, 2]), form=form)
    found = F.contrast_of(pairs, TEMPERATURE, kernel=kernel, slope=True)
    assert found.weight.tolist() == [2.0, 2.0, 0.0, 0.0]
    assert found.positives.count.tolist() == [1.0, 1.0, 0.0, 0.0]
    for values in (found.positive, *found.positives.present().values()):
        assert values[:2].all() and not values[2:].any()
    assert torch.equal(found.gap[2:], found.negative[2:])


# --- Several pairs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        F.infonce,
        F.dcl,
        F.flatnce,
        F.gradient_gain,
        F.mutual_information,
        partial(F.effective_sample_size, with_positive=True),
    ],
)
def test_rows_with_one_positive_and_rows_with_several_may_stand_together(read):
    first, second = (
        layouts.case_of(f"{layout}: plain") for layout in ("two views", "labels, out")
    )
    parts = first.build(first.inputs), second.build(second.inputs)
    one, two = (F.contrast_of(part, TEMPERATURE) for part in parts)
    both = F.contrast_of(parts, TEMPERATURE)
    expected = torch.cat([read(one, reduction="none"), read(two, reduction="none")])
    torch.testing.assert_close(read(both, reduction="none"), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", [1, -1], ids=["one first", "several first"])
def test_their_slopes_stand_together_too(order):
    names = [f"{layout}: plain" for layout in ("two views", "labels, out")][::order]
    parts = [case.build(case.inputs) for case in map(layouts.case_of, names)]
    each = [F.contrast_of(part, TEMPERATURE, slope=True) for part in parts]
    both = F.contrast_of(parts, TEMPERATURE, slope=True)
    for field in ("slope", "count", "plain_gap"):
        expected = torch.cat([getattr(one, field) for one in each])
        torch.testing.assert_close(getattr(both, field), expected, rtol=1e-12, atol=1e-14)
    weights = [torch.ones(10), each[1].weight] if order == 1 else [each[0].weight, torch.ones(10)]
    torch.testing.assert_close(both.weight, torch.cat(weights).double())
    assert both.statistic is None and both.plain is None and both.faults is None
    single = slice(0, 10) if order == 1 else slice(len(both.positive) - 10, None)
    positive = both.positive[single]
    for name, expected in {"lse": 1, "lse2": 2, "top": 1, "mean": 1}.items():
        assert torch.equal(getattr(both.positives, name)[single], expected * positive)
    assert both.positives.count[single].tolist() == [1.0] * 10


# --- Derivatives by differences ------------------------------------------------------------------


@pytest.mark.parametrize("objective", [F.infonce, F.dcl])
def test_the_dense_kernel_can_be_differentiated_twice(objective):
    case = layouts.case_of("two views: own")
    leaves = case.leaves()

    def function(*values: Tensor) -> Tensor:
        given = dict(zip(case.inputs, values, strict=True))
        return objective(F.contrast_of(case.build(given), TEMPERATURE, kernel="dense"))

    assert gradgradcheck(function, tuple(leaves.values()), fast_mode=True)


def test_the_chunked_kernel_refuses_a_second_derivative_instead_of_a_wrong_one():
    case = layouts.case_of("two views: plain")
    leaves = case.leaves()
    found = F.contrast_of(case.build(leaves), TEMPERATURE, kernel="chunked")
    (gradient,) = torch.autograd.grad(F.dcl(found), leaves["z1"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiate|autograd"):
        gradient.square().sum().backward()


# --- Which kernel --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n", "m", "expected"),
    [
        ("auto", 2048, 2048, dense),
        ("auto", 2048, 2049, chunked),
        ("auto", 1, 2**22, dense),
        ("dense", 2**20, 2**20, dense),
        ("chunked", 2, 2, chunked),
    ],
)
def test_the_kernel_is_the_one_asked_for_or_dense_up_to_the_limit(name, n, m, expected):
    assert kernels.DENSE_LIMIT == 2**22
    for operands in (torch.float32, torch.float16):  # fused would be chosen on a CUDA device
        chosen = choose_kernel(name, n, m, torch.randn(2, 2), operands=operands)
        assert chosen is expected.row_statistics
    with pytest.raises(ValueError, match=r"kernel='fast' is unknown.*auto, dense, chunked, fused"):
        choose_kernel("fast", n, m, torch.randn(2, 2))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "fused"),  # n m just above the limit
        ({"n": 2048}, "dense"),  # dense float32 is exact
        ({"n": 2, "m": 2, "operands": torch.float16}, "fused"),
        ({"width": 2048}, "fused"),
        ({"width": 2049}, "chunked"),
        ({"dtype": torch.float64}, "chunked"),
        ({"generation": 7}, "chunked"),
        ({"generation": 9}, "fused"),
        ({"extras": ("hardest",)}, "chunked"),
        ({"extras": ("mean", "expected")}, "fused"),
        ({"name": "dense"}, "dense"),
        ({"name": "chunked"}, "chunked"),
        ({"name": "fused", "n": 2, "m": 2, "generation": 7}, "fused"),
        ({"name": "fused", "extras": ("hardest",)}, "chunked"),
    ],
    ids=str,
)
def test_on_a_card_the_fused_kernel_is_chosen_where_it_is_better(changed, expected, on_card):
    given = {"name": "auto", "n": 2049, "m": 2048, "width": 8, "dtype": torch.float32}
    given |= {"operands": torch.float32, "extras": (), "generation": 8} | changed
    like = on_card(torch.zeros(2, given["width"], dtype=given["dtype"]), given["generation"])
    options = {name: given[name] for name in ("operands", "extras")}
    chosen = choose_kernel(given["name"], given["n"], given["m"], like, **options)
    if expected == "fused":
        assert chosen.func is KERNELS["fused"]
        assert chosen.keywords == {"operands": given["operands"]}
    else:
        assert chosen is KERNELS[expected]


def test_the_fused_kernel_is_not_chosen_in_a_transform_or_without_triton(on_card, monkeypatch):
    like, given = on_card(torch.zeros(2, 8)), (2049, 2048)
    monkeypatch.setattr(kernels, "is_transformed", lambda tensor: True)
    assert choose_kernel("auto", *given, like) is KERNELS["chunked"]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # which is no vmap
    assert choose_kernel("auto", *given, like).func is KERNELS["fused"]
    monkeypatch.setattr(kernels, "TRITON_IS_THERE", False)
    assert choose_kernel("auto", *given, like) is KERNELS["chunked"]
    with pytest.raises(ValueError, match="kernel='fused' needs Triton"):
        choose_kernel("fused", *given, like)


@pytest.mark.parametrize(("interpreted", "dtype"), [("0", "float32"), ("1", "float64")])
def test_the_fused_kernel_is_refused_where_it_cannot_run(interpreted, dtype, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    monkeypatch.setattr(kernels, "TRITON_IS_THERE", True)
    message = "computes in float32" if dtype == "float64" else "needs Triton and a CUDA device"
    with pytest.raises(ValueError, match=message):
        choose_kernel("fused", 2, 2, torch.zeros(2, 2, dtype=getattr(torch, dtype)))


# --- Plain layouts from raw rows -----------------------------------------------------------------

PLAIN = {"views": F.two_view, "left": partial(F.two_tower, directions="left"), "both": F.two_tower}


@pytest.mark.parametrize("normalize", [True, False], ids=["unit", "raw"])
@pytest.mark.parametrize("ids", [None, [7, 3, 7, 4, 5]], ids=["plain", "ids"])
@pytest.mark.parametrize("layout", PLAIN)
def test_a_plain_layout_has_the_contrast_of_its_pairs(layout, ids, normalize, paired):
    left, right = (layouts.random(5, 7, seed=k).float().requires_grad_() for k in (0, 1))
    tau = torch.tensor(TEMPERATURE, requires_grad=True)
    options = {"ids": None if ids is None else torch.tensor(ids), "normalize": normalize}
    pairs = PLAIN[layout](left, right, **options)
    wanted = F.contrast_of(pairs, tau, slope=True)
    found, rows = contrast_of_batches(left, right, tau, layout=layout, slope=True, **options)
    torch.testing.assert_close(found.by_row(), wanted.by_row(), rtol=1e-4, atol=1e-5)
    assert float(found.beta.detach()) == pytest.approx(1 / TEMPERATURE)
    assert found.gap.requires_grad and not found.slope.requires_grad
    torch.testing.assert_close(rows, reference.unit(left).float() if normalize else left)
    assert not rows.requires_grad and not faults.flagged(found.faults)
    without, _ = contrast_of_batches(left, right, TEMPERATURE, layout=layout, **options)
    assert without.slope is None
    assert [one["layout"] for one in paired] == [layout] * 2


def test_a_plain_layout_is_two_views_of_unit_rows_unless_told_otherwise(paired):
    rows = [layouts.random(5, 7, seed=seed).float() for seed in (0, 1)]
    found, _ = contrast_of_batches(*rows, TEMPERATURE)
    wanted = F.contrast_of(F.two_view(*rows), TEMPERATURE)
    torch.testing.assert_close(found.by_row(), wanted.by_row(), rtol=1e-5, atol=1e-5)
    contrast_of_batches(*(z.bfloat16() for z in rows), TEMPERATURE)
    assert [one["operands"] for one in paired] == [torch.float32, torch.float16]


def test_faults_of_a_plain_layout_are_raised_or_kept(paired, request):
    rows = [layouts.random(5, 7, seed=seed).float() for seed in (0, 1)]
    reserved = torch.tensor([0, 1, 2, 3, -(2**31)])
    paired.faults = ("zero_vector",)
    with pytest.raises(ValueError, match=r"^an embedding row .* \(zero_vector\)$"):
        contrast_of_batches(*rows, TEMPERATURE)
    with pytest.raises(ValueError, match=r"ids has shape \(4,\)"):
        contrast_of_batches(*rows, TEMPERATURE, ids=torch.arange(4))
    assert contrast_of_batches(rows[0], rows[1][:4], TEMPERATURE) is None  # the layout refuses
    with pytest.raises(ValueError, match="z2 has shape"):
        FlatNCE(kernel="fused")(rows[0], rows[1][:4])
    request.getfixturevalue("deferred")
    found, _ = contrast_of_batches(*rows, torch.tensor(-1.0), ids=reserved)
    assert set(faults.flagged(found.faults)) == {"zero_vector", "temperature", "ids"}


@pytest.mark.parametrize(("layout", "size"), [("views", 10), ("left", 5), ("both", 5)])
def test_the_kernel_of_a_plain_layout_is_chosen_by_its_number_of_scores(layout, size, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "flatnce.core.contrast.fused_is_better", lambda *given: asked.append(given)
    )
    for b, options in ((5, {}), (2, {"kernel": "fused"}), (1, {})):  # one has no negative
        rows = torch.ones(b, 3)
        assert contrast_of_batches(rows, rows, TEMPERATURE, layout=layout, **options) is None
    sizes = [("auto", size, size), ("fused", 2 * size // 5, 2 * size // 5)]
    assert [given[:3] for given in asked] == sizes
    unlike = torch.ones(5, 3), torch.ones(4, 3)
    assert contrast_of_batches(*unlike, TEMPERATURE, layout=layout, kernel="fused") is None
    assert len(asked) == 2


# --- Terms of an objective's own -----------------------------------------------------------------


@every_kernel
@pytest.mark.parametrize(
    "name",
    [
        "two views: own",
        "two views: ids masked shared",
        "three views, each: own",
        "three views, out: plain",
        "three views, in: shared",
        "labels, in: masked shared",
    ],
)
def test_terms_are_summed_over_the_negatives_and_the_positives_of_each_row(name, kernel):
    case = layouts.case_of(name)
    found = F.contrast_of(
        case.build(case.inputs),
        TEMPERATURE,
        kernel=kernel,
        statistic=lambda scores, *, positive: (scores - 3).square() if positive else scores**3,
    )
    rows = layouts.rows_of(case, TEMPERATURE)
    expected = [
        sum((float(s) - 3) ** 2 for s in row.positives) + sum(float(s) ** 3 for s in row.negatives)
        for row in rows
    ]
    assert kept(found, found.statistic).tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("kernel", "limit", "expected"),
    [
        ("auto", 100, [10]),
        ("auto", 99, [3, 3, 3, 1]),
        ("dense", 0, [10]),
        ("chunked", 100, [3, 3, 3, 1]),
    ],
)
def test_many_terms_are_computed_a_few_rows_at_a_time(kernel, limit, expected, monkeypatch):
    monkeypatch.setattr("flatnce.core.contrast.BLOCK", 3)
    monkeypatch.setattr("flatnce.core.contrast.DENSE_LIMIT", limit)
    heights = []

    def square(scores: Tensor, *, positive: bool) -> Tensor:
        heights.extend([] if positive else [len(scores)])
        return scores.square()

    def unread() -> None:
        raise AssertionError("a CUDA graph cannot save the state of random numbers")

    z = [layouts.random(5, 3, seed=seed).requires_grad_() for seed in (0, 1)]
    monkeypatch.setattr(torch, "get_rng_state", unread)
    found = F.contrast_of(F.two_view(*z), TEMPERATURE, kernel=kernel, statistic=square)
    assert heights == expected
    torch.autograd.grad(found.statistic.sum(), z)
    # The blocks are not kept, but computed again.
    assert sorted(heights) == sorted(expected * (2 if len(expected) > 1 else 1))


def test_a_block_of_terms_has_1024_rows(monkeypatch):
    monkeypatch.setattr("flatnce.core.contrast.DENSE_LIMIT", 0)
    rows, heights = torch.zeros(513, 1), []
    F.contrast_of(
        F.two_view(rows, rows, normalize=False),
        TEMPERATURE,
        statistic=lambda scores, *, positive: heights.append(len(scores)) or scores,
    )
    assert heights == [1024, 2, 1026]  # the positives at once


# --- Importance weights --------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["plain", "own"])
def test_autocast_changes_no_importance_weight(options):
    case = layouts.case_of(f"two views: {options}")
    pairs = case.build(case.leaves(torch.float32))
    tau = torch.tensor(0.1, requires_grad=True)
    expected = F.importance_weights(pairs, tau, with_positive=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = F.importance_weights(pairs, tau, with_positive=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not found.requires_grad


def test_where_it_is_not_refused_a_row_without_negatives_has_no_weights(deferred):
    z, ids = layouts.random(3, 4), torch.zeros(3, dtype=torch.long)
    assert not F.importance_weights(F.two_view(z, z, ids=ids), TEMPERATURE).any()


@pytest.mark.parametrize("with_positive", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *(f"two views: {options}" for options in ["plain", "ids masked shared", "own"]),
        "left tower: raw ids masked own",
        "three views, in: plain",
        "labels, in: masked shared",
        "queue and batch: ids",
    ],
)
def test_importance_weights_are_those_of_the_reference(name, with_positive):
    case = layouts.case_of(name.replace("masked shared", "shared") if "labels" in name else name)
    pairs = case.build(case.inputs)
    pairs = pairs[0] if isinstance(pairs, tuple) else pairs
    found = F.importance_weights(pairs, TEMPERATURE, with_positive=with_positive)
    scores = layouts.scores_of(case, case.inputs, TEMPERATURE)
    assert len(found) == len(scores)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(found), dtype=torch.float64))
    expected = [
        reference.softmax([*negatives, *(positives if with_positive else [])]).tolist()
        for positives, negatives in scores
    ]
    weighing = [sorted(weight for weight in row if weight > 0) for row in found.tolist()]
    assert weighing == [pytest.approx(sorted(row), rel=1e-10) for row in expected]


# --- From logits ---------------------------------------------------------------------------------


def test_a_contrast_from_logits_is_that_of_the_unmasked_entries():
    logits = 3 * layouts.random(6, 5, seed=3)
    logits[0, 2] = logits[1, 0] = logits[1, 1] = logits[5, 3] = -math.inf
    target = torch.tensor([0, 4, 2, 2, 1, 0])
    leaf, exact = (logits.clone().requires_grad_() for _ in range(2))
    found, rows = F.contrast_from_logits(leaf, target), []
    for i, place in enumerate(target.tolist()):
        others = [j for j in range(5) if j != place and logits[i, j] != -math.inf]
        rows.append(reference.Row(i, exact[i, place], exact[i, others], exact[i, [place]]))
    slow = torch.stack([torch.stack(slow_statistics(row, 1.0)[:3]) for row in rows], dim=1)
    fast = torch.stack([found.positive, found.negative, found.negative2])
    torch.testing.assert_close(fast, slow, **EXACT)
    assert found.count.tolist() == [len(row.negatives) for row in rows]
    assert found.hardest.tolist() == near([max(row.negatives) for row in rows])
    assert math.isnan(found.beta)  # the logits hide it
    weights = layouts.random(3, 6, seed=17)
    (weights * fast).sum().backward()
    (weights * slow).sum().backward()
    torch.testing.assert_close(leaf.grad, exact.grad, rtol=1e-12, atol=1e-12)


# --- The record ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 8 / 3), ("sum", 6.0)])
def test_only_the_mean_is_weighted(reduction, expected):
    rows = torch.tensor([1.0, 2.0, 4.0])
    weight = torch.tensor([0.0, 2.0, 1.0])
    contrast = Contrast(rows, rows, rows, rows, rows, torch.tensor(1.0), weight=weight)
    assert float(contrast.reduce(rows, reduction)) == pytest.approx(expected)
    assert contrast.reduce(rows, "none").tolist() == [0.0, 2.0, 4.0]


def test_gathered_labels_are_weighted_by_the_share_of_all_processes(monkeypatch):
    # Four processes of four rows; the two rows of this one are all that have a positive.
    monkeypatch.setattr("flatnce.core.distributed.mean", lambda local: local / 4)
    pairs = F.labelled(layouts.random(4, 3, seed=0), torch.tensor([0, 0, 1, 2]))
    contrast = F.contrast_of(replace(pairs, gathered=True), TEMPERATURE)
    assert contrast.weight.tolist() == [8.0, 8.0, 0.0, 0.0]
