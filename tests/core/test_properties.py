"""Properties over shapes, dtypes, temperatures, masks, layouts, kernels and powers.

No NaN; no error but the documented ones, and those exactly where they are due; the order of the
samples and a shift of the logits do not matter; diagnostics stay within their bounds.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy

from flatnce import functional as F
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.core.pairs import KeyQueue
from flatnce.functional import Contrast, Pairs

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = (
    "two_view",
    "multi_view each",
    "multi_view out",
    "multi_view in",
    "two_tower both",
    "two_tower left",
    "labelled out",
    "labelled in",
    "with_queue",
    "with_queue in_batch",
)
PATTERNS = ("normal", "equal", "agreeing", "opposed", "integers", "large", "tiny")
READERS: dict[str, Callable[..., Tensor]] = {
    entry.function: getattr(F, entry.function) for entry in OBJECTIVES.values() if entry.function
}
DUE = "zero vector|no negative|has 1 row|no anchor has a positive|false_negatives selects among"
temperatures = st.floats(0.01, 10.0)
powers = st.one_of(
    st.sampled_from([1.0, 1.0, 0.0, math.inf, -math.inf]),
    st.floats(-50.0, 50.0),
    st.floats(allow_nan=False),
)
seeds = st.integers(0, 2**31 - 1)
positions = st.sampled_from([0, 1, 2**62, 2**63 - 3, 2**63 - 1])


@dataclass(frozen=True)
class Draw:
    """One batch: what it is made of, and the tensors."""

    layout: str
    dtype: torch.dtype
    normalize: bool
    embeddings: tuple[Tensor, ...]
    negatives: Tensor | None
    labels: Tensor
    ids: Tensor | None
    mask: Tensor | None
    queue: Tensor

    @property
    def b(self) -> int:
        return self.embeddings[0].shape[0]

    def options(self) -> dict[str, object]:
        found: dict[str, object] = {"normalize": self.normalize, "negatives": self.negatives}
        found["false_negatives"] = self.mask
        return found if "labelled" in self.layout else {**found, "ids": self.ids}

    def build(self) -> Pairs | tuple[Pairs, ...]:
        name, _, form = self.layout.partition(" ")
        z, options = self.embeddings, self.options()
        if name == "two_view":
            return F.two_view(z[0], z[1], **options)
        if name == "multi_view":
            return F.multi_view(z, form=form, **options)
        if name == "two_tower":
            return F.two_tower(z[0], z[1], directions=form, **options)
        if name == "labelled":
            return F.labelled(z[0], self.labels, form=form, **options)
        queue = KeyQueue(5, z[0].shape[1]).to(torch.promote_types(self.dtype, torch.float32))
        if len(self.queue):
            queue.enqueue(self.queue, normalize=self.normalize)
        return F.with_queue(z[0], z[1], queue, in_batch=bool(form), **options)

    def permuted(self, order: Tensor) -> "Draw":
        """The same samples in another order."""
        own = self.negatives is not None and self.negatives.ndim == 3
        return replace(
            self,
            embeddings=tuple(z[order] for z in self.embeddings),
            negatives=self.negatives[order] if own else self.negatives,
            labels=self.labels[order],
            ids=None if self.ids is None else self.ids[order],
            mask=None if self.mask is None else self.mask[order][:, order],
        )

    # What must be refused, worked out by hand.

    def counts(self) -> list[int]:
        """The number of negatives of each row."""
        b = self.b
        out = torch.eye(b, dtype=torch.bool) if self.mask is None else self.mask.clone()
        groups = self.labels if "labelled" in self.layout else self.ids
        groups = torch.arange(b) if groups is None else groups
        kept = ~(out | (groups[:, None] == groups))
        hard = 0 if self.negatives is None else self.negatives.shape[-2]
        name, _, form = self.layout.partition(" ")
        per_row = (kept.sum(dim=1) + hard).tolist()
        if name in ("two_view", "multi_view"):
            v = len(self.embeddings)
            rows = [v * (count - hard) + hard for count in per_row]
            return [count for count in rows * v for _ in range(v - 1 if form == "each" else 1)]
        if name == "two_tower":
            return per_row + (kept.sum(dim=0).tolist() if form == "both" else [])
        if name == "with_queue":
            batch = per_row if form else [hard] * b
            return [count + len(self.queue) for count in batch]
        return per_row

    def is_bad(self) -> bool:
        everything = [*self.embeddings, *([] if self.negatives is None else [self.negatives])]
        everything += [self.queue] if "queue" in self.layout and len(self.queue) else []
        zero = any((z.float().norm(dim=-1) == 0).any() for z in everything)
        alone = "labelled" in self.layout and len(set(self.labels.tolist())) == self.b
        nonsense = self.layout == "with_queue" and self.mask is not None
        return (zero and self.normalize) or min(self.counts()) == 0 or alone or nonsense


def table(generator: torch.Generator, pattern: str, *shape: int) -> Tensor:
    z = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if pattern == "integers":
        return z.round()  # ties, and now and then a zero vector
    if pattern == "equal":
        return torch.ones(*shape, dtype=torch.float64)
    return z * {"large": 300.0, "tiny": 1e-3}.get(pattern, 1.0)


@st.composite
def draws(draw: st.DrawFn, layouts: tuple[str, ...] = LAYOUTS) -> Draw:
    layout = draw(st.sampled_from(layouts))
    dtype = draw(st.sampled_from(DTYPES))
    # What is large or tiny has gradients out of float16's range.
    pattern = draw(st.sampled_from(PATTERNS[:5] if dtype == torch.float16 else PATTERNS))
    b, d = draw(st.integers(1, 7)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(seeds))
    views = {"multi_view": draw(st.integers(3, 4)), "labelled": 1}.get(layout.split()[0], 2)
    embeddings = [table(generator, pattern, b, d) for _ in range(views)]
    if pattern in ("agreeing", "opposed"):
        sign = 1.0 if pattern == "agreeing" else -1.0
        embeddings = [sign**place * embeddings[0] for place in range(views)]
    hard = draw(st.sampled_from([None, (2, d), (b, 1, d)]))
    negatives = None if hard is None else table(generator, pattern, *hard)
    share = draw(st.sampled_from([None, 0.2, 0.8]))
    mask = None if share is None else torch.rand(b, b, generator=generator) < share
    numbered = draw(st.booleans())
    return Draw(
        layout,
        dtype,
        draw(st.booleans()) or pattern == "tiny",
        tuple(z.to(dtype) for z in embeddings),
        None if negatives is None else negatives.to(dtype),
        torch.randint(0, 3, (b,), generator=generator),
        torch.randint(0, 4, (b,), generator=generator) if numbered else None,
        mask,
        table(generator, pattern, draw(st.integers(0, 5)), d).to(dtype),
    )


def finite(*tensors: Tensor) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def slack_of(contrast: Contrast, power: float = 1.0) -> float:
    """Rounding of a gap: it grows with the scores, and undoing a small power magnifies it."""
    size = max(float(t.detach().abs().max()) for t in (contrast.positive, contrast.negative2))
    dtype = contrast.positive.dtype
    pooled = torch.float64 if abs(power) < 1e-2 else dtype
    magnified = torch.finfo(pooled).eps * 3 / min(1.0, max(abs(power), 1e-8))
    return 16 * (torch.finfo(dtype).eps * (1.0 + size) + magnified)


# --- No NaN, and no error but those that are due -------------------------------------------------


@settings(max_examples=200)
@given(draws(), temperatures, powers, st.sampled_from(["dense", "chunked"]))
def test_a_batch_is_either_refused_for_a_reason_or_finite_throughout(
    batch, temperature, power, kernel
):
    leaves = tuple(z.clone().requires_grad_() for z in batch.embeddings)
    live = replace(batch, embeddings=leaves)
    if batch.is_bad():
        with pytest.raises(ValueError, match=DUE):
            F.contrast_of(live.build(), temperature, power=power, kernel=kernel)
        return
    tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    contrast = F.contrast_of(live.build(), tau, power=power, kernel=kernel)
    assert contrast.count.tolist() == batch.counts()
    assert finite(contrast.positive, contrast.negative, contrast.negative2, contrast.hardest)
    losses = {name: read(contrast) for name, read in READERS.items()}
    assert finite(*losses.values())
    plain = F.contrast_of(batch.build(), temperature, kernel=kernel)
    value, slack = float(F.infonce(plain)), slack_of(plain)
    assert float(losses["flatnce"].detach()) == pytest.approx(value, rel=slack, abs=slack)
    gradients = torch.autograd.grad(sum(losses.values()), (*leaves, tau))
    assert finite(*gradients)
    assert [g.dtype for g in gradients[:-1]] == [batch.dtype] * len(leaves)


@settings(max_examples=100)
@given(draws(), temperatures, powers)
def test_diagnostics_stay_within_their_bounds(batch, temperature, power):
    assume(not batch.is_bad())
    contrast = F.contrast_of(batch.build(), temperature, power=power)
    rows = replace(contrast, weight=None)
    # At a power γ the weights are those of γ·s, and so is their rounding.
    stretch = abs(power) if 1.0 < abs(power) <= 1e15 else 1.0
    slack = stretch * slack_of(contrast)
    assume(slack < 0.1)
    ess = F.effective_sample_size(rows, reduction="none")
    assert bool((ess * rows.count >= 1 - slack).all()) and bool((ess <= 1 + slack).all())
    some = slice(None) if contrast.weight is None else contrast.weight > 0
    pool = rows.count + (1.0 if rows.positives is None else rows.positives.count)
    with_positive = F.effective_sample_size(rows, with_positive=True, reduction="none")[some]
    if power == 1.0:
        assert bool((with_positive * pool[some] >= 1 - slack).all())
        assert bool((with_positive <= 1 + slack).all())
    gain = F.gradient_gain(rows, reduction="none")
    assert bool((gain >= 0).all()) and bool((gain <= 1).all())
    information = F.mutual_information(rows, reduction="none")
    assert bool((information <= F.mutual_information_ceiling(rows, reduction="none")).all())
    shares = torch.stack([F.saturated_share(contrast), F.retrieval_top1(contrast)])
    assert bool((shares >= 0).all()) and bool((shares <= 1 + 1e-6).all())
    assert power < 1 or bool((rows.hardest <= rows.negative + slack).all())


# --- Invariance ----------------------------------------------------------------------------------


@settings(max_examples=100)
@given(draws(), temperatures, powers, st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(batch, temperature, power, chance):
    assume(not batch.is_bad())
    order = list(range(batch.b))
    chance.shuffle(order)
    found = F.contrast_of(batch.permuted(torch.tensor(order)).build(), temperature, power=power)
    expected = F.contrast_of(batch.build(), temperature, power=power)
    # Rounding of the scores (and of a mean of rows), in an order that a product may change.
    slack = slack_of(expected, power)
    assert [float(read(found)) for read in READERS.values()] == pytest.approx(
        [float(read(expected)) for read in READERS.values()], rel=slack, abs=slack
    )


@settings(max_examples=100)
@given(
    st.integers(1, 6),
    st.integers(2, 7),
    st.sampled_from(DTYPES),
    st.floats(-200.0, 200.0),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(sorted(READERS)),
    seeds,
)
def test_a_shift_of_the_logits_does_not_matter(n, c, dtype, shift, masked, name, seed):
    generator = torch.Generator().manual_seed(seed)
    # Quarters, shifted by quarters: no dtype rounds them, so the shift is the same everywhere.
    logits = torch.randint(-16, 17, (n, c), generator=generator) / 4
    target = torch.randint(0, c, (n,), generator=generator)
    out = torch.rand(n, c, generator=generator) < masked
    out[torch.arange(n), target] = False
    assume(bool(((~out).sum(dim=1) > 1).all()))
    room = 16 if dtype == torch.bfloat16 else 200
    moved = logits + round(4 * max(-room, min(room, shift))) / 4

    def run(scores: Tensor) -> tuple[Tensor, Tensor]:
        leaf = scores.to(dtype).masked_fill(out, -math.inf).requires_grad_()
        rows = READERS[name](F.contrast_from_logits(leaf, target), reduction="none")
        return rows.detach(), torch.autograd.grad(rows.sum(), leaf)[0]

    assert torch.equal(moved.to(dtype).double(), moved.double())
    found, expected = run(moved), run(logits)
    assert finite(*found)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    rounding = max(tolerance, 2 * torch.finfo(dtype).eps)  # the gradient is returned in the dtype
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[1], expected[1], rtol=rounding, atol=rounding)


# --- Powers --------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(draws(), st.floats(0.05, 10.0), powers, powers)
def test_a_power_mean_grows_with_its_power(batch, temperature, one, other):
    assume(not batch.is_bad())
    pairs = batch.build()
    first, second = sorted((one, other))
    low, high = (F.contrast_of(pairs, temperature, power=power) for power in (first, second))
    slack = slack_of(low, first) + slack_of(high, second)
    assert bool((low.gap <= high.gap + slack).all())
    top = high.hardest + high.count.log() - high.positive
    assert bool((high.gap <= top + slack).all())


# --- The drop-in and the queue -------------------------------------------------------------------


@settings(max_examples=120)
@given(
    st.integers(1, 6),
    st.integers(2, 7),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([-100, 0, 1]),
    st.floats(0.1, 80.0),
    seeds,
)
def test_cross_entropy_has_torchs_value_or_says_why_not(n, c, dtype, masked, ignored, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(n, c, generator=generator)).to(dtype)
    logits = logits.masked_fill(torch.rand(n, c, generator=generator) < masked, -math.inf)
    target = torch.randint(0, c, (n,), generator=generator)
    kept = target != ignored
    leaf = logits.clone().requires_grad_()
    lost = logits[torch.arange(n), target] == -math.inf
    alone = (logits > -math.inf).sum(dim=1) - (~lost).long() == 0
    if bool(((lost | alone) & kept).any()):
        with pytest.raises(ValueError, match=r"row \d+: (target names|an anchor has no negative)"):
            F.cross_entropy(leaf, target, ignore_index=ignored)
        return
    assume(bool(kept.any()))
    loss = F.cross_entropy(leaf, target, ignore_index=ignored)
    wide = logits.double()
    expected = torch_cross_entropy(wide, target, ignore_index=ignored)
    tolerance = (1e-12 if dtype == torch.float64 else 2e-6) * (1 + scale)
    assert float(loss.detach()) == pytest.approx(float(expected), rel=tolerance, abs=tolerance)
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert finite(gradient)
    assert not gradient[logits == -math.inf].any() and not gradient[~kept].any()


@settings(max_examples=100)
@given(st.integers(1, 9), st.lists(st.integers(1, 12), max_size=12), positions)
def test_a_queue_holds_the_last_keys_in_a_ring(size, batches, position):
    queue = KeyQueue(size, 1)
    queue.position.fill_(position)
    expected: deque[int] = deque(maxlen=size)
    number = 0
    for b in batches:
        ids = torch.arange(number, number + b)
        queue.enqueue(ids[:, None].float() + 1, ids, normalize=False)
        expected.extend(ids.tolist())
        number += b
    assert int(queue.filled) == len(expected)
    held = [(int(i), float(k)) for i, k in zip(queue.ids, queue.keys, strict=True) if i >= 0]
    assert sorted(held) == [(i, i + 1.0) for i in sorted(expected)]
    last = (int(queue.position) - 1) % size
    assert not batches or int(queue.ids[last]) == expected[-1]
    assert not batches or 0 <= int(queue.position) < size
