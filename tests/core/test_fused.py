"""The fused kernel against the definition: in Triton's interpreter, or on a CUDA device."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from flatnce import KeyQueue, LearnedTemperature
from flatnce import functional as F
from flatnce.core.kernels import statistics as dense
from flatnce.core.objectives.losses import DCL, FlatNCE, HolderFlatNCE, InfoNCE
from flatnce.core.selection import EXCLUDED, NEGATIVE_TO_ALL, Selection

fused = pytest.importorskip("flatnce.core.kernels.fused", reason="no Triton on this platform")
from flatnce.core.kernels.fused import launch, paired

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies bfloat16 wrongly.
HALVES = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]
OPERANDS = [torch.float32, *HALVES]
# Largest error of a log-sum-exp at beta 1, and largest relative error of a gradient.
VALUE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
GRADIENT = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
every_operand = pytest.mark.parametrize("operands", OPERANDS, ids=str)
INTERPRETED = DEVICE == "cpu"
every_layout = pytest.mark.parametrize("layout", ["views", "left", "both"])
AT_ONCE = 1000
"""Rows of the definition's matrix that are in memory at once."""


def corners(keep, *values):
    """All combinations; in the interpreter those that are not kept are slow."""
    return [
        pytest.param(*each, marks=pytest.mark.slow if INTERPRETED and not keep(*each) else ())
        for each in itertools.product(*values)
    ]


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


def furthest(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach() - wanted.detach()).abs().max())


def assert_gradients(
    found: Tensor, wanted: Tensor, leaves, limit: float, exact=None, size: float = 0.0
) -> None:
    """Gradients of two scalars by the same leaves, or by the exact copies of the leaves.

    That of beta is a sum of terms of both signs, so its error is compared with their size.
    """
    ours = torch.autograd.grad(found, leaves, retain_graph=True)
    theirs = torch.autograd.grad(wanted, exact or leaves, retain_graph=True)
    for leaf, one, two in zip(leaves, ours, theirs, strict=True):
        if leaf.ndim == 0:
            assert abs(float(one - two)) < limit * size / float(leaf.detach())
        else:
            assert relative(one, two) < limit


def unit(n: int, d: int) -> Tensor:
    return normalize(torch.randn(n, d, device=DEVICE), dim=1)


def batches(b: int, d: int) -> list[Tensor]:
    return [torch.randn(b, d, device=DEVICE, requires_grad=True) for _ in range(2)]


def number(value: float, requires_grad: bool = False) -> Tensor:
    return torch.tensor(value, device=DEVICE, requires_grad=requires_grad)


def kinds_of_selection(kind: str, n: int, m: int) -> Selection:
    rows = torch.randint(0, 30, (n,), device=DEVICE)
    columns = rows if kind in ("symmetric", "same") else torch.randint(0, 30, (m,), device=DEVICE)
    if kind == "places":
        rows, columns = (torch.arange(size, device=DEVICE) for size in (n, m))
    if kind == "queue":
        columns = columns.clone()
        columns[5:20], columns[30:40] = EXCLUDED, NEGATIVE_TO_ALL
    mask = torch.rand(n, m, device=DEVICE) < 0.3 if kind == "left out" else None
    own = torch.arange(n, device=DEVICE) if kind == "same" else None
    return Selection(rows, columns, mask, own, own, kind == "same")


KINDS = ("symmetric", "places", "groups", "queue", "left out", "same")


# In the interpreter every kind once. Half precision and rows of several chunks, with small blocks,
# for each way through the kernel: symmetric, masked by groups, masked by a mask.
SELECTIONS = corners(
    lambda kind, operands, d, block: (
        (operands == torch.float32 and (d, block) == (24, None))
        or (operands == torch.float32 and (kind, d, block) == ("queue", 300, 45))
        or (
            (operands, d, block) == (torch.float16, 300, 45)
            and kind in ("symmetric", "queue", "left out")
        )
    ),
    KINDS,
    OPERANDS,
    (24, 300),
    (None, 45),
)


@pytest.mark.parametrize(("kind", "operands", "d", "block"), SELECTIONS)
def test_statistics_and_gradients_are_those_of_the_definition(
    monkeypatch, kind, operands, d, block
):
    if block is not None:
        monkeypatch.setattr(launch, "BLOCK", block)
    n, m = 70, (70 if kind in ("symmetric", "same") else 110)
    anchors = unit(n, d).requires_grad_()
    keys = anchors if n == m else unit(m, d).requires_grad_()
    beta = number(6.0, requires_grad=True)
    selection = kinds_of_selection(kind, n, m)
    found = fused.row_statistics(anchors, keys, beta, selection, ("mean", "expected"), operands)
    exact = [t.detach().double().requires_grad_() for t in (anchors, keys, beta)]
    exact[1] = exact[0] if keys is anchors else exact[1]
    wanted = dense.row_statistics(*exact, selection, ("mean", "expected"))
    some = wanted.count > 0
    assert some.sum() > n // 2
    torch.testing.assert_close(found.count.double(), wanted.count)
    for name in ("lse", "lse2", "top", "mean", "expected"):
        pair = getattr(found, name)[some], getattr(wanted, name)[some]
        assert furthest(*pair) < 12 * VALUE[operands], name
    coefficients = torch.randn(3, n, device=DEVICE) * some
    leaves = [anchors, beta] if keys is anchors else [anchors, keys, beta]
    exact = [exact[0], exact[2]] if keys is anchors else exact
    for used in [(1, 0, 0), (0, 1, 0), (1, 1, 1)]:
        names = list(itertools.compress(("lse", "lse2", "mean"), used))
        weights = coefficients[torch.tensor(used, dtype=torch.bool)]
        ours, theirs = (
            [
                c * torch.where(some, getattr(record, name), 0.0)
                for c, name in zip(weights, names, strict=True)
            ]
            for record in (found, wanted)
        )
        size = sum(float(term.detach().abs().sum()) for term in theirs)
        totals = sum(ours).sum(), sum(theirs).sum()
        assert_gradients(*totals, leaves, GRADIENT[operands], exact, size)


def test_rows_that_are_both_sides_are_not_symmetric_where_other_keys_are_themselves():
    rows, groups = unit(12, 8).requires_grad_(), torch.arange(12, device=DEVICE) % 3
    own = torch.arange(12, device=DEVICE)
    selection = Selection(groups, groups, None, own, own.roll(3), True)
    gradients = [
        torch.autograd.grad(kernel(rows, rows, number(2.0), selection).lse.exp().sum(), rows)
        for kernel in (fused.row_statistics, dense.row_statistics)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", ["groups", "same"])
def test_a_row_that_counts_nothing_is_finite_and_moves_nothing(kind):
    anchors, keys = unit(5, 8).requires_grad_(), unit(70, 8).requires_grad_()
    rows = torch.tensor([0, 1, 0, 1, 0], device=DEVICE)
    columns = torch.full((70,), 0 if kind == "groups" else 1, device=DEVICE)
    own = torch.arange(70, device=DEVICE) + 100
    selection = Selection(rows, columns, None, rows, own, kind == "same")
    beta = number(2.0)
    found = fused.row_statistics(anchors, keys, beta, selection, ("mean", "expected"))
    assert found.count.tolist() == [0, 70, 0, 70, 0]
    wanted = dense.row_statistics(anchors, keys, beta, selection, ("mean", "expected"))
    for name in ("lse", "lse2", "top", "mean"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    total = (found.lse + found.lse2 + found.mean).sum() / torch.finfo(torch.float32).max
    to_anchors, to_keys = torch.autograd.grad(total, (anchors, keys))
    assert to_anchors.isfinite().all() and to_keys.isfinite().all()
    assert not to_anchors[[0, 2, 4]].any()


def reference(z1, z2, beta, layout, ids=None, unit_rows=True):
    """The plain layouts in float64, by the definition: positive, lse, lse2, count."""
    one, two = (normalize(z, dim=1) if unit_rows else z for z in (z1.double(), z2.double()))
    ids = torch.arange(len(one), device=DEVICE) if ids is None else ids
    if layout == "views":
        both = torch.cat([one, two])
        parts = [(both, both, torch.cat([two, one]), torch.cat([ids, ids]))]
    else:
        parts = [(one, two, two, ids), (two, one, one, ids)][: 1 + (layout == "both")]

    def some_rows(anchors, keys, positives, groups, theirs):
        out = groups[:, None] == theirs[None, :]
        scores = (beta.double() * anchors @ keys.T).masked_fill(out, -torch.inf)
        positive = beta.double() * (anchors * positives).sum(dim=1)
        lses = scores.logsumexp(dim=1), (2 * scores).logsumexp(dim=1)
        return positive, *lses, (~out).sum(dim=1).double()

    columns = []
    for anchors, keys, positives, groups in parts:
        split = (rows.split(AT_ONCE) for rows in (anchors, positives, groups))
        for rows, own, mine in zip(*split, strict=True):
            block = (rows, keys, own, mine, groups)
            large = len(anchors) > AT_ONCE
            columns.append(
                checkpoint(some_rows, *block, use_reentrant=False) if large else some_rows(*block)
            )
    return [torch.cat(column) for column in zip(*columns, strict=True)]


# In the interpreter unit rows without ids, others with them, and of the towers one of these each;
# narrow float32 and wide halves.
PLAIN = corners(
    lambda operands, layout, unit_rows, with_ids, d: (
        unit_rows != with_ids
        and (operands == torch.float32) == (d == 20)
        and (layout == "views" or unit_rows == (layout == "left"))
    ),
    OPERANDS,
    ("views", "left", "both"),
    (True, False),
    (False, True),
    (20, 270),
)


@pytest.mark.parametrize(("operands", "layout", "unit_rows", "with_ids", "d"), PLAIN)
def test_plain_layouts_go_from_raw_rows_to_their_gradients(
    layout, unit_rows, with_ids, operands, d
):
    b, size = 37, (20 / d) ** 0.5  # scores have the same size at any width
    z = [(torch.randn(b, d, device=DEVICE) / (1 if unit_rows else 5)) for _ in range(2)]
    z = [rows if unit_rows else size * rows for rows in z]
    if operands != torch.float32 and not unit_rows:
        z = [rows.to(operands).float() for rows in z]  # rounded before the kernel sees them
    z = [rows.requires_grad_() for rows in z]
    beta = number(8.0, requires_grad=True)
    ids = torch.randint(0, 20, (b,), device=DEVICE) if with_ids else None
    options = {"layout": layout, "ids": ids, "normalize": unit_rows}
    found = fused.paired_statistics(*z, beta, **options, operands=operands)
    wanted = reference(*z, beta, layout, ids, unit_rows)
    assert torch.equal(found.count.double(), wanted[3])
    assert not found.faults.any()
    rounding = VALUE[operands if unit_rows else torch.float32]
    columns = [found.positive, found.lse, found.lse2]
    for one, two, limit in zip(
        columns, wanted, (VALUE[torch.float32], rounding, rounding), strict=False
    ):
        assert furthest(one, two) < 16 * limit
    coefficients = torch.randn(3, len(wanted[0]), device=DEVICE)
    for used in (2, 3):
        ours, theirs = (
            [c * v for c, v in zip(coefficients[:used], record, strict=False)]
            for record in (columns, wanted)
        )
        # Half the size, since the limit is doubled for the rows.
        size = sum(float(term.detach().abs().sum()) for term in theirs) / 2
        totals = sum(ours).sum(), sum(theirs).sum()
        assert_gradients(*totals, [*z, beta], 2 * GRADIENT[operands], size=size)


@every_operand
@pytest.mark.parametrize("d", [7, 64, 100, 256, 768, 2048])
def test_every_width_up_to_2048(d, operands):
    z, beta = batches(9, d), number(10.0)
    for layout in ("views", "left"):
        found = fused.paired_statistics(*z, beta, layout=layout, operands=operands)
        wanted = reference(*z, beta, layout)
        gap, wanted_gap = found.lse - found.positive, wanted[1] - wanted[0]
        assert furthest(gap, wanted_gap) < 20 * VALUE[operands]
        assert_gradients(gap.sum(), wanted_gap.sum(), z, 2 * GRADIENT[operands])


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 200), (64, 64), (65, 127), (129, 128), (200, 3)])
def test_rows_and_columns_need_not_fill_their_tiles(n, m):
    anchors, keys = unit(n, 16).requires_grad_(), unit(m, 16).requires_grad_()
    groups = torch.arange(n, device=DEVICE), torch.arange(m, device=DEVICE) + n - 1
    pairs = []
    for run in (fused.row_statistics, dense.row_statistics):
        found = run(anchors, keys, number(5.0), Selection(*groups))
        pairs.append([found.lse, *torch.autograd.grad(found.lse.square().sum(), (anchors, keys))])
    torch.testing.assert_close(*pairs, rtol=2e-5, atol=2e-5)


# In the interpreter the largest beta for all rows, and the smallest for random ones.
STATES = corners(
    lambda operands, rows, beta: beta == 100.0 or (rows == "random" and beta == 1.0),
    OPERANDS,
    ("random", "saturated", "alike"),
    (1.0, 5.0, 20.0, 50.0, 100.0),
)


@pytest.mark.parametrize(("operands", "rows", "beta"), STATES)
def test_any_temperature_and_any_state_of_the_rows(rows, beta, operands):
    """Saturated: each positive far above its negatives. Alike: all rows nearly one row."""
    z1 = torch.randn(40, 32, device=DEVICE)
    z2 = torch.randn(40, 32, device=DEVICE)
    if rows == "saturated":
        z1 = torch.eye(40, 32, device=DEVICE) + 0.05 * z1
        z2 = z1 + 0.02 * z2
    if rows == "alike":
        z1, z2 = (z1[:1] + 0.05 * z for z in (z1, z2))
    z, scale = [part.requires_grad_() for part in (z1, z2)], number(beta)
    for layout in ("views", "left"):
        found = fused.paired_statistics(*z, scale, layout=layout, operands=operands)
        wanted = reference(*z, scale, layout)
        assert furthest(found.lse, wanted[1]) < 2 * abs(beta) * VALUE[operands]
        ess, wanted_ess = 2 * found.lse - found.lse2, 2 * wanted[1] - wanted[2]
        assert furthest(ess, wanted_ess) < 4 * abs(beta) * VALUE[operands] + 1e-4
        # Weights are as uncertain as the scores, which grow with beta. Rows that are nearly one
        # have a gradient that is a small difference of large ones, at any beta.
        limit = GRADIENT[operands] * (8.0 if rows == "alike" else max(2.0, beta / 2))
        gaps = (found.lse - found.positive).sum(), (wanted[1] - wanted[0]).sum()
        assert_gradients(*gaps, z, limit)


SAME_BITS = corners(
    lambda d, layout: (d, layout) in ((48, "views"), (300, "left")),
    (48, 300),
    ("views", "left", "both"),
)


@pytest.mark.parametrize(("d", "layout"), SAME_BITS)
def test_two_calls_give_the_same_bits(d, layout):
    z = batches(70 if INTERPRETED else 150, d)  # several tiles either way

    def once() -> list[Tensor]:
        found = fused.paired_statistics(*z, number(10.0), layout=layout)
        columns = [found.positive, found.lse, found.lse2, found.count, found.top]
        return [*columns, *torch.autograd.grad((found.lse - found.positive).sum(), z)]

    assert all(map(torch.equal, once(), once()))


READERS = corners(
    lambda objective, layout, learned: objective is FlatNCE or learned == (layout == "two_tower"),
    (FlatNCE, InfoNCE, DCL),
    ("two_view", "two_tower"),
    (False, True),
)


@pytest.mark.parametrize(("objective", "layout", "learned"), READERS)
def test_an_objective_reads_the_same_from_the_fused_kernel(objective, layout, learned):
    z, found = batches(12, 16), {}
    for kernel in ("dense", "fused"):
        temperature = LearnedTemperature(0.2) if learned else 0.2
        loss_fn = objective(temperature, layout=layout, kernel=kernel).to(DEVICE)
        loss = loss_fn(*z)
        leaves = [*z, *loss_fn.parameters()]
        last = loss_fn.last
        numbers = [loss, last.ess, last.ess_with_positive, last.gain, last.mi, last.top1]
        found[kernel] = [*numbers, *torch.autograd.grad(loss, leaves), last.embeddings]
        assert len(leaves) == 2 + learned
    torch.testing.assert_close(found["fused"], found["dense"], rtol=1e-5, atol=1e-6)


def test_a_power_a_queue_and_labels_use_the_general_kernel():
    z = batches(12, 16)
    labels = torch.arange(12, device=DEVICE) // 3
    found = {}
    for kernel in ("dense", "fused"):
        powers = (2.0, -1.0, 1e-4)  # near zero another kernel computes it
        losses = [HolderFlatNCE(gamma=p, temperature=0.2, kernel=kernel)(*z) for p in powers]
        losses.append(InfoNCE(0.2, kernel=kernel)(*z, labels=labels))
        loss_fn = FlatNCE(0.2, kernel=kernel, queue=KeyQueue(32, 16)).to(DEVICE)
        losses += [loss_fn(*z), loss_fn(*z)]
        found[kernel] = [[loss, *torch.autograd.grad(loss, z)] for loss in losses]
    torch.testing.assert_close(found["fused"], found["dense"], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter's numpy
@pytest.mark.parametrize("fault", ["nonfinite", "zero_vector", "no_negatives"])
def test_bad_rows_are_found(fault):
    z = [torch.randn(6, 8, device=DEVICE) for _ in range(2)]
    ids = torch.zeros(6, dtype=torch.long, device=DEVICE) if fault == "no_negatives" else None
    if fault == "nonfinite":
        z[1][3, 2] = torch.nan
    if fault == "zero_vector":
        z[0][4] = 1e-20  # its squares lose digits
    loss_fn = FlatNCE(0.1, kernel="fused")
    with pytest.raises(ValueError, match=fault):
        loss_fn(*z, ids=ids)
        _ = loss_fn.last.ess


def test_half_precision_inputs_get_gradients_of_their_own_precision():
    z = [torch.randn(20, 16, device=DEVICE, dtype=torch.float16) for _ in range(2)]
    z = [rows.requires_grad_() for rows in z]
    loss = FlatNCE(0.2, kernel="fused")(*z)
    exact = [rows.detach().double().requires_grad_() for rows in z]
    wanted = FlatNCE(0.2, kernel="dense")(*exact)
    assert furthest(loss, wanted) < 2e-3
    assert_gradients(loss, wanted, z, 1e-3, exact)
    assert {part.dtype for part in torch.autograd.grad(loss, z)} == {torch.float16}


def test_the_fused_kernel_says_what_it_needs(monkeypatch):
    wide = torch.randn(4, 3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(ValueError, match=r"kernel='fused'.*float64"):
        FlatNCE(0.1, kernel="fused")(wide, wide)
    z = torch.randn(4, 3)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"kernel='fused' needs Triton and a CUDA device.*cpu"):
        FlatNCE(0.1, kernel="fused")(z, z)
    with pytest.raises(ValueError, match=r"kernel='fused' needs Triton and a CUDA device.*cpu"):
        F.contrast_of(F.two_view(z, z), 0.1, kernel="fused")


@every_layout
@pytest.mark.parametrize(("place", "d"), [(0, 32), (1, 32), (0, 512)])
def test_rows_that_are_operands_already_are_not_copied(layout, place, d):
    """In towers; also where they begin at an odd address, which the device cannot load from."""
    b, size = 37, 1.7 / d**0.5
    store = [size * torch.randn(b * d + 1, device=DEVICE).half() for _ in range(2)]
    z = [part[place : place + b * d].view(b, d).detach().requires_grad_() for part in store]
    beta = number(5.0)
    found = fused.paired_statistics(*z, beta, layout=layout, normalize=False)
    assert len(found.operand) == (2 * b if layout == "views" else 0)
    wanted = reference(*z, beta, layout, unit_rows=False)
    assert furthest(found.lse, wanted[1]) < 2 * 5 * VALUE[torch.float16]
    gaps = (found.lse - found.positive).sum(), (wanted[1] - wanted[0]).sum()
    assert_gradients(*gaps, z, 2 * GRADIENT[torch.float16])


# In the interpreter one size of narrow rows for each layout, and wide rows of one tower.
PIECES = corners(
    lambda layout, d, b: (
        (b == 128) == (layout == "both") if d == 16 else (layout, b) == ("left", 100)
    ),
    ("views", "left", "both"),
    (16, 160),
    (128, 100),
)


@pytest.mark.parametrize(("layout", "d", "b"), PIECES)
def test_a_gradient_in_several_pieces_is_the_same(monkeypatch, layout, d, b):
    """Pieces begin anywhere, also between two ranges of groups."""
    z, beta = batches(b, d), number(10.0)
    ids = torch.arange(b, device=DEVICE) // 2

    def gradients() -> list[Tensor]:
        found = fused.paired_statistics(*z, beta, layout=layout, ids=ids, operands=torch.float32)
        squares = 0.3 * found.lse2 if b == 100 else 0.0
        return list(torch.autograd.grad((found.lse - found.positive + squares).sum(), z))

    whole = gradients()
    monkeypatch.setattr(launch, "MOST_SCRATCH", 16 * 45)
    monkeypatch.setattr(launch, "BLOCK", 45)
    for one, two in zip(gradients(), whole, strict=True):
        assert relative(one, two) < 5e-7
    # The sums of the other side are shared by no row, or by the rows of the first block.
    for rows in (0, 60) if d == 160 else ():
        monkeypatch.setattr(paired, "MOST_SHARED", 256 * rows)
        for one, two in zip(gradients(), whole, strict=True):
            assert relative(one, two) < 5e-7


@every_layout
@pytest.mark.parametrize("operands", HALVES, ids=str)
def test_gradients_of_the_squares_stay_finite_in_half_precision(layout, operands):
    """Two rows that are each other's only near neighbour: the largest weights there are."""
    z, beta = batches(2, 16), number(50.0)
    found = fused.paired_statistics(*z, beta, layout=layout, operands=operands)
    wanted = reference(*z, beta, layout)
    totals = (found.lse + found.lse2).sum(), (wanted[1] + wanted[2]).sum()
    assert_gradients(*totals, z, 4 * GRADIENT[operands])


def test_second_derivatives_are_refused_in_embeddings_and_in_temperature():
    z, temperature = batches(6, 8), number(0.5, requires_grad=True)
    for leaves in ([*z], [temperature]):
        loss = DCL(temperature, temperature_gradient="own", kernel="fused")(*z)
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        with pytest.raises(RuntimeError, match=r"autograd|does not require grad"):
            torch.autograd.grad(sum(part.square().sum() for part in first), leaves)


@pytest.mark.parametrize("kind", ["other groups", "some never"])
def test_one_tensor_in_both_parts_is_symmetric_only_if_its_groups_are(kind):
    rows = unit(20, 8).requires_grad_()
    groups = torch.arange(20, device=DEVICE) // 2
    theirs = groups.roll(1) if kind == "other groups" else groups.clone()
    if kind == "some never":
        theirs[:5] = EXCLUDED
    found = []
    for run in (fused.row_statistics, dense.row_statistics):
        total = run(rows, rows, number(5.0), Selection(groups, theirs)).lse.square().sum()
        found.append(torch.autograd.grad(total, rows)[0])
    torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5)


LAYOUTS = {
    "three views": lambda z, mask: F.multi_view([z[0], z[1], z[0] + z[1]], false_negatives=mask),
    "own negatives": lambda z, mask: F.two_view(*z, negatives=z[0][:, None].flip(0)),
    "shared negatives": lambda z, mask: F.two_view(*z, negatives=z[1].flip(0)[:5]),
    "masked towers": lambda z, mask: F.two_tower(*z, false_negatives=mask),
    "labels": lambda z, mask: F.labelled(z[0], torch.arange(12, device=DEVICE) // 3, form="in"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_other_layouts_have_the_same_contrast(name):
    z = batches(12, 16)
    mask = torch.rand(12, 12, device=DEVICE) < 0.2
    found = []
    for kernel in ("fused", "dense"):
        contrast = F.contrast_of(LAYOUTS[name](z, mask), 0.2, kernel=kernel)
        rows = [contrast.positive, contrast.negative, contrast.negative2, contrast.count]
        total = sum((row * torch.linspace(-1, 1, len(row), device=DEVICE)).sum() for row in rows)
        leaves = z[:1] if name == "labels" else z
        found.append([*rows, *torch.autograd.grad(total, leaves)])
    torch.testing.assert_close(*found, rtol=3e-5, atol=3e-5)


OPERATOR_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("layout", ["views", "left"])
@pytest.mark.parametrize(("d", "normalize", "key_mean"), [(8, True, False), (16, False, True)])
def test_the_operator_of_plain_layouts_is_registered_as_torch_wants_it(
    layout, d, normalize, key_mean
):
    z, beta = batches(5, d), number(3.0, requires_grad=True)
    options = (layout, normalize, torch.float32, True, key_mean and layout == "left")
    operator = torch.ops.flatnce.paired_statistics.default
    torch.library.opcheck(operator, (*z, beta, None, *options), test_utils=OPERATOR_CHECKS)


@pytest.mark.parametrize("d", [8, 20, 130])
def test_the_general_operators_are_registered_as_torch_wants_them(d):
    """Also for widths that are padded, and for rows that are not contiguous."""
    z = [torch.randn(5, d, device=DEVICE, requires_grad=True), torch.randn(d, 5, device=DEVICE).T]
    beta = number(3.0, requires_grad=True)
    groups = torch.arange(5, device=DEVICE)
    selection = (groups, groups, None, None, None)
    inputs = (*z, beta, *selection, False, torch.float32, True, True, False)
    operators = torch.ops.flatnce
    torch.library.opcheck(operators.fused_statistics.default, inputs, test_utils=OPERATOR_CHECKS)
    rows = [row.detach() for row in operators.fused_statistics(*inputs)[:3]]
    incoming = (torch.ones_like(rows[0]), None, None)
    plain = [rows.detach() for rows in (*z, beta)]
    torch.library.opcheck(
        operators.fused_gradient.default,
        (*plain, *selection, False, torch.float32, *rows, *incoming, True),
        test_utils=("test_schema", "test_faketensor"),
    )


# --- The tiles of large batches ------------------------------------------------------------------

on_a_device = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
# At beta 10 and over a thousand rows errors are larger.
LARGE_VALUE = {torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def assert_as_defined(b: int, d: int, layout: str, operands: torch.dtype, with_ids: bool):
    z, beta = batches(b, d), number(10.0)
    z[1] = (z[0] + z[1]).detach().requires_grad_()
    ids = torch.randint(0, b // 2, (b,), device=DEVICE) if with_ids else None
    found = fused.paired_statistics(*z, beta, layout=layout, ids=ids, operands=operands)
    wanted = reference(*z, beta, layout, ids)
    for one, two in zip((found.positive, found.lse, found.lse2), wanted, strict=False):
        assert furthest(one, two) < 2 * LARGE_VALUE[operands]
    weights = torch.rand(len(found.lse), device=DEVICE, dtype=torch.float64)
    ours = (weights.float() * (found.lse - found.positive)).sum()
    theirs = (weights * (wanted[1] - wanted[0])).sum()
    assert_gradients(ours, theirs, z, 2 * GRADIENT[operands])


WIDTHS = [(64, torch.float16), (256, torch.float16), (512, torch.float16), (700, torch.float16)]
WIDTHS += [(100, torch.float32), (200, torch.float32)]
LARGE = corners(
    lambda layout, width: layout == "views" or width in (WIDTHS[0], WIDTHS[3], WIDTHS[5]),
    ("views", "left", "both"),
    WIDTHS,
)


@pytest.mark.skipif(not INTERPRETED, reason="a device chooses these tiles in the tests below")
@pytest.mark.parametrize(("layout", "width"), LARGE)
def test_tiles_of_large_batches_have_the_numbers_of_the_definition(monkeypatch, layout, width):
    (d, operands), chosen = width, []

    def large(like: Tensor, n: int, *, scans: bool, gradients: bool, masked: bool = False):
        asked = 40_000, like.shape[1], like.element_size()
        wide = launch.is_wide(like)
        tiles = (
            launch._wide_tiles(*asked) if wide else launch._best_tiles(*asked, scans, gradients)
        )
        chosen.append(tiles)
        return tiles

    monkeypatch.setattr(launch, "choose_tiles", large)
    assert_as_defined(80 if layout == "views" else 150, d, layout, operands, layout != "left")
    # Float32's are the same for any number of rows.
    assert operands == torch.float32 or max(t.rows * t.columns for t in chosen) > 64 * 64


@on_a_device
@every_layout
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("operands", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d", [128, 256, 512, 768, 2048])
def test_more_than_a_thousand_rows_have_the_numbers_of_the_definition(
    d, operands, with_ids, layout
):
    assert_as_defined(1_500, d, layout, operands, with_ids)


@on_a_device
@pytest.mark.parametrize(
    ("layout", "b", "d", "shared"),
    [
        ("views", 16_500, 128, None),
        ("views", 16_500, 256, None),  # the tiles of more than 32,768 rows
        ("both", 33_000, 256, None),
        ("left", 33_000, 256, None),
        ("left", 33_000, 512, None),
        ("left", 16_500, 768, None),
        ("left", 20_000, 512, 9_000),  # only some blocks share the sums of the other side
    ],
)
def test_tens_of_thousands_of_rows_have_the_numbers_of_the_definition(
    monkeypatch, layout, b, d, shared
):
    if shared is not None:
        monkeypatch.setattr(paired, "MOST_SHARED", d * shared)
    assert_as_defined(b, d, layout, torch.float16, with_ids=False)


@on_a_device
def test_very_many_rows_need_linear_memory():
    """The largest row of the benchmark: finite, of linear memory, the same twice."""
    z = [torch.randn(262_144, 512, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
    z = [part.requires_grad_() for part in z]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - sum(part.nbytes for part in z)

    def once() -> tuple[Tensor, ...]:
        found = fused.paired_statistics(*z, number(10.0), layout="left")
        return torch.autograd.grad((found.lse - found.positive).mean(), z)

    first = once()
    assert torch.cuda.max_memory_allocated() - before < 2 * 2**30
    assert all(part.isfinite().all() for part in first)
    assert all(map(torch.equal, first, once()))
