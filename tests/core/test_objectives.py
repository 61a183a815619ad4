"""One battery over the family: values, gradients, and what ties the objectives together.

Errors stated for inputs of lower precision, relative to the norm of the float64 gradient on the
same rounded inputs: 1e-5 in float32; in float16 and bfloat16 the rounding of the returned gradient
itself, 2^-11 and 2^-8, and 1e-5 more. A saturated InfoNCE leaves the range of float16, so the loss
is scaled before the backward pass, as torch's GradScaler does.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as torch_cross_entropy

import layouts
import reference
from flatnce import (
    DCL,
    CrossEntropyLoss,
    FlatNCE,
    FlatNCEPlus,
    HolderFlatNCE,
    InfoNCE,
    LearnedTemperature,
)
from flatnce import functional as F
from flatnce.core.objectives.base import Objective
from flatnce.core.pairs import KeyQueue
from flatnce.functional import Contrast
from saved import saved_and_loaded

TEMPERATURE = 0.4
INFINITY = math.inf


# --- The family and its slow definition ----------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """An objective as a function of a contrast and as a module, and its reference by row."""

    function: Callable[..., Tensor]
    module: Callable[..., Objective]
    value: Callable[[reference.Row, str], Tensor]
    gradient_of: Callable[[reference.Row, str], Tensor]
    power: float = 1.0

    def contrast(self, pairs: object, temperature: float | Tensor = TEMPERATURE) -> Contrast:
        return F.contrast_of(pairs, temperature, power=self.power)


def infonce(row: reference.Row, form: str) -> Tensor:
    if form == "each":
        return reference.infonce(row.positive, row.negatives)
    pooled = {"out": reference.infonce_out, "in": reference.infonce_in}[form]
    return pooled(row.positives, row.negatives)


def gap(row: reference.Row, form: str, power: float = 1.0) -> Tensor:
    return reference.holder_gap(row.positive, row.negatives, power)


def constant(row: reference.Row, form: str) -> Tensor:
    return torch.ones((), dtype=torch.float64)


def holder(gamma: float) -> Entry:
    module = partial(HolderFlatNCE, gamma=gamma)
    return Entry(F.flatnce, module, infonce, partial(gap, power=gamma), gamma)


CONSTANT = {"value": "constant"}
FAMILY = {
    "InfoNCE": Entry(F.infonce, InfoNCE, infonce, infonce),
    "DCL": Entry(F.dcl, DCL, gap, gap),
    "FlatNCE": Entry(F.flatnce, FlatNCE, infonce, gap),
    "FlatNCE, constant": Entry(
        partial(F.flatnce, **CONSTANT), partial(FlatNCE, **CONSTANT), constant, gap
    ),
    "FlatNCE+": Entry(F.flatnce_plus, FlatNCEPlus, infonce, infonce),
    "FlatNCE+, constant": Entry(
        partial(F.flatnce_plus, **CONSTANT), partial(FlatNCEPlus, **CONSTANT), constant, infonce
    ),
    **{f"Hölder {g}": holder(g) for g in (1.0, 2.0, 0.5, 0.0, -1.0, INFINITY, -INFINITY)},
}
every_objective = pytest.mark.parametrize("entry", list(FAMILY.values()), ids=list(FAMILY))
CASES = [
    "two views: ids masked shared",
    "two views: own",
    "three views, each: plain",
    "three views, out: own",
    "three views, in: shared",
    "two towers: masked",
    "left tower: raw",
    "labels, out: plain",
    "labels, in: own",
    "queue: ids",
    "queue and batch: plain",
]
every_case = pytest.mark.parametrize("name", CASES)


EXACT = {"rtol": 1e-10, "atol": 1e-10}


def counted(contrast: Contrast, values: Tensor) -> Tensor:
    """Rows that have a positive."""
    if contrast.weight is None:
        return values
    assert not values[contrast.weight == 0].any()
    return values[contrast.weight > 0]


@every_case
@every_objective
def test_an_objective_has_the_values_and_the_gradient_of_the_reference(entry, name):
    case = layouts.case_of(name)
    inputs, tau, leaves = layouts.learned(case, TEMPERATURE)
    contrast = entry.contrast(case.build(inputs), tau)
    loss = entry.function(contrast)
    inputs, tau, exact = layouts.learned(case, TEMPERATURE)
    rows = layouts.rows_of(case, tau, inputs)
    values = torch.stack([entry.value(row, case.form) for row in rows])
    found = counted(contrast, entry.function(contrast, reduction="none"))
    torch.testing.assert_close(found, values, **EXACT)
    torch.testing.assert_close(loss, values.mean(), **EXACT)
    total = entry.function(contrast, reduction="sum")
    torch.testing.assert_close(total, values.sum(), **EXACT)
    slow = reference.mean([entry.gradient_of(row, case.form) for row in rows])
    expected = torch.autograd.grad(slow, exact)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), expected, **EXACT)


# --- The modules ---------------------------------------------------------------------------------

CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "two views": ("two views: ids masked shared", {}),
    "two towers": ("two towers: masked", {"layout": "two_tower"}),
    "without normalisation": ("two views: raw", {"normalize": False}),
    "by chunks": ("two views: own", {"kernel": "chunked"}),
    "three views": ("three views, each: own", {}),
    "three views, out": ("three views, out: ids", {"form": "out"}),
    "three views, in": ("three views, in: plain", {"form": "in"}),
    "labels": ("labels, out: shared", {}),
    "labels, in": ("labels, in: plain", {"form": "in"}),
    "queue": ("queue: ids", {"in_batch": False}),
    "queue and batch": ("queue and batch: ids", {}),
}


def call(loss_fn: Objective, name: str, given: layouts.Inputs) -> Tensor:
    """What a user would type for a case."""
    layout, _, options = name.partition(": ")
    size = len(layouts.LABELS) if "labels" in layout else layouts.IMAGES
    chosen = layouts.keywords(set(options.split()), given, size)
    del chosen["normalize"]
    if "labels" in layout:
        chosen["labels"] = torch.tensor(layouts.LABELS)
    hidden = ("negatives", "queue")
    return loss_fn(*(z for key, z in given.items() if key not in hidden), **chosen)


def module_for(
    module: Callable[..., Objective],
    name: str,
    options: dict[str, object],
    temperature: float | Tensor | LearnedTemperature = TEMPERATURE,
) -> Objective:
    if "queue" not in name:
        return module(temperature=temperature, **options)
    queue = KeyQueue(layouts.QUEUE_SIZE, layouts.WIDTH).double()
    queue.enqueue(layouts.case_of(name).inputs["queue"], torch.tensor(layouts.QUEUE_IDS))
    return module(temperature=temperature, queue=queue, **options)


LEARNED = {
    name: call for name, call in CALLS.items() if name not in ("by chunks", "queue and batch")
}
LEARNING = [
    *(("learned", "chunked", *call) for call in LEARNED.values()),
    *(("tensor", "dense", *call) for call in list(LEARNED.values())[:2]),
]


@pytest.mark.parametrize(("name", "options"), list(CALLS.values()), ids=list(CALLS))
@every_objective
def test_a_module_is_its_function_of_the_layout(entry, name, options):
    case = layouts.case_of(name)
    ours, theirs = case.leaves(), case.leaves()
    expected = entry.function(entry.contrast(case.build(theirs)))
    found = call(module_for(entry.module, name, options), name, ours)
    assert found.shape == ()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found.backward()
    expected.backward()
    torch.testing.assert_close(
        [leaf.grad for key, leaf in ours.items() if key not in case.constants],
        [leaf.grad for key, leaf in theirs.items() if key not in case.constants],
        rtol=1e-10,
        atol=1e-12,
    )


@every_objective
@pytest.mark.parametrize("views", [1, 2, 3])
def test_with_labels_masks_and_own_negatives_speak_of_samples(entry, views):
    z = [layouts.random(5, 3, seed=seed) for seed in range(views)]
    labels, mask = torch.tensor([0, 1, 0, 2, 1]), layouts.mask_of(5)
    own = layouts.random(5, 2, 3, seed=9)
    loss_fn = entry.module(temperature=TEMPERATURE)
    found = loss_fn(*z, labels=labels, false_negatives=mask, negatives=own)
    pairs = F.labelled(
        torch.cat(z),
        labels.repeat(views),
        false_negatives=mask.repeat(views, views),
        negatives=own.repeat(views, 1, 1),
    )
    torch.testing.assert_close(found, entry.function(entry.contrast(pairs)), rtol=1e-12, atol=0)


@every_objective
def test_the_last_batch_is_kept_beside_the_loss(entry):
    loss_fn = entry.module(temperature=TEMPERATURE)
    z1, z2 = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    loss = loss_fn(z1, z2)
    contrast = entry.contrast(F.two_view(z1, z2)).detach()
    last = loss_fn.last
    assert torch.equal(last.loss, loss.detach())
    for found, expected in (
        (last.ess, F.population_ess(contrast)),
        (last.ess_paper, F.effective_sample_size(contrast)),
        (last.ess_with_positive, F.effective_sample_size(contrast, with_positive=True)),
        (last.gain, F.gradient_gain(contrast)),
        (last.mi, F.mutual_information(contrast)),
        (last.mi_ceiling, F.mutual_information_ceiling(contrast)),
        (last.top1, F.retrieval_top1(contrast)),
        (last.saturated, F.saturated_share(contrast)),
    ):
        torch.testing.assert_close(found, expected)
    assert float(last.temperature) == pytest.approx(TEMPERATURE)
    assert last.objective == type(loss_fn).__name__
    assert last.embeddings.shape == (4, 6)
    torch.testing.assert_close(last.embeddings, nn.functional.normalize(z1.detach()))
    kept = last.ess, last.gain, last.mi, last.embeddings, last.loss, last.contrast.gap
    assert not any(t.requires_grad for t in kept)


@every_objective
def test_a_fresh_module_says_what_it_is_and_has_no_state(entry):
    loss_fn = entry.module(temperature=0.25, layout="two_tower")
    assert repr(loss_fn).startswith(type(loss_fn).__name__)
    assert "two_tower" in repr(loss_fn) and "0.25" in repr(loss_fn)
    assert not loss_fn.state_dict() and not list(loss_fn.parameters())
    with pytest.raises(ValueError, match="has not been called"):
        _ = loss_fn.last


@every_objective
@pytest.mark.parametrize("called", [False, True], ids=["fresh", "called"])
def test_a_module_survives_being_copied_and_pickled(entry, called):
    loss_fn = entry.module(temperature=TEMPERATURE, layout="two_tower")
    z1, z2 = torch.randn(5, 3), torch.randn(5, 3)
    if called:
        loss_fn(z1.requires_grad_(), z2)
    pickled = saved_and_loaded(loss_fn, weights_only=False)
    expected = loss_fn(z1, z2)
    assert torch.equal(pickled(z1, z2), expected)
    assert torch.equal(copy.deepcopy(loss_fn)(z1, z2), expected)


def test_the_power_of_holder_can_be_set():
    z1, z2 = torch.randn(2, 6, 4)
    changed, fresh = HolderFlatNCE(gamma=2.0), HolderFlatNCE(gamma=8.0)
    changed.gamma = 8.0
    assert changed.gamma == 8.0 and repr(changed) == repr(fresh)
    assert changed(z1, z2) == fresh(z1, z2)
    number = nn.Parameter(torch.tensor(8.0), requires_grad=False)
    assert HolderFlatNCE(gamma=number).gamma == 8.0 and not [*changed.parameters()]
    changed.gamma = number
    assert changed(z1, z2) == fresh(z1, z2) and not [*changed.parameters()]
    with pytest.raises(ValueError, match="gamma=nan is not a number"):
        changed.gamma = math.nan
    with pytest.raises((ValueError, TypeError), match="gamma"):  # or jaxtyping's, before it
        changed.gamma = nn.Linear(2, 2)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_keys_are_enqueued_in_training_only(training):
    queue = KeyQueue(8, 3)
    loss_fn = FlatNCE(queue=queue).train(training)
    z1, z2 = torch.randn(4, 3), torch.randn(4, 3)
    loss_fn(z1, z2, ids=torch.arange(4))
    assert int(queue.filled) == (4 if training else 0)
    if training:
        torch.testing.assert_close(queue.keys[:4], z2 / z2.norm(dim=1, keepdim=True))
        assert queue.ids[:4].tolist() == [0, 1, 2, 3]
    assert "queue.keys" in loss_fn.state_dict()


@every_objective
@pytest.mark.parametrize(("kind", "kernel", "name", "options"), LEARNING)
def test_a_learned_temperature_follows_infonce_unless_told_otherwise(
    entry, kind, kernel, name, options
):
    case = layouts.case_of(name)

    def gradients(objective: Callable[..., Objective], follows: str) -> tuple[Tensor, Tensor]:
        source = LearnedTemperature(TEMPERATURE).double()
        source.log_beta.data.fill_(-math.log(TEMPERATURE))  # it was made in float32
        if kind == "tensor":
            source = torch.tensor(TEMPERATURE, dtype=torch.float64, requires_grad=True)
        chosen = {"temperature_gradient": follows, "kernel": kernel, **options}
        loss_fn = module_for(objective, name, chosen, source)
        leaves = case.leaves()
        loss = call(loss_fn, name, leaves)
        wanted = source.log_beta if isinstance(source, LearnedTemperature) else source
        return torch.autograd.grad(loss, (wanted, next(iter(leaves.values()))))

    safe, to_features = gradients(entry.module, "infonce")
    own, same_features = gradients(entry.module, "own")
    # InfoNCE on the plain pool, whatever power the objective has, differentiated by torch.
    tau = torch.tensor(TEMPERATURE, dtype=torch.float64, requires_grad=True)
    plain = F.contrast_of(case.build(case.inputs), tau)
    (infonces,) = torch.autograd.grad(F.infonce(plain), tau)
    contrast = entry.contrast(case.build(case.inputs), tau)
    (its_own,) = torch.autograd.grad(entry.function(contrast), tau)
    factor = -TEMPERATURE if kind == "learned" else 1.0
    assert float(safe) == pytest.approx(factor * float(infonces), rel=1e-9)
    assert float(own) == pytest.approx(factor * float(its_own), rel=1e-9)
    torch.testing.assert_close(to_features, same_features, rtol=1e-10, atol=1e-12)


# --- What ties them together (Must show 3) -------------------------------------------------------

# Of each batch: the length of the noise about its images, the temperature, and whether the second
# view agrees with the first or contradicts it.
BATCHES = {
    "balanced": (0.6, 0.3, 1.0),
    "gap -20": (0.1, 0.04, 1.0),
    "gap -60": (0.1, 0.014, 1.0),
    "positive far behind": (0.1, 0.052, -1.0),
}
every_batch = pytest.mark.parametrize("batch", list(BATCHES))
DTYPES = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.float16: 2**-11 + 1e-5,
    torch.bfloat16: 2**-8 + 1e-5,
}
every_dtype = pytest.mark.parametrize(
    ("dtype", "error"), list(DTYPES.items()), ids=[str(dtype) for dtype in DTYPES]
)


def batch_of(name: str) -> tuple[Tensor, Tensor, float]:
    """Two views (float64) and a temperature; saturated where the views of an image agree."""
    noise, temperature, sign = BATCHES[name]
    images = torch.linalg.qr(layouts.random(16, 16, seed=4)).Q[:6]
    first, second = (images + noise / 4 * layouts.random(6, 16, seed=seed) for seed in (5, 6))
    return first, sign * second, temperature


def gaps_of(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """The gap of each row by the slow definition."""
    rows = reference.two_view_rows(z1, z2, 1 / temperature)
    return torch.stack([reference.gap(row.positive, row.negatives) for row in rows])


def gradients_in(
    dtype: torch.dtype, batch: str, read: Callable[[Contrast], Tensor], power: float = 1.0
) -> Tensor:
    """The gradient by both views, of a loss scaled into the range of the dtype."""
    z1, z2, temperature = batch_of(batch)
    leaves = [z.to(dtype, copy=True).requires_grad_() for z in (z1, z2)]
    loss = read(F.contrast_of(F.two_view(*leaves), temperature, power=power))
    gain = float(gaps_of(z1, z2, temperature).sigmoid().mean())
    scale = 2.0 ** -round(math.log2(gain)) if read in (F.infonce, F.flatnce_plus) else 1.0
    found = torch.autograd.grad(loss * scale, leaves)
    return torch.cat([g.double() for g in found]) / scale


def slow_gradient(
    dtype: torch.dtype, batch: str, weigh: Callable[[Tensor], Tensor], power: float = 1.0
) -> Tensor:
    """Float64, on the same rounded inputs: rows' gradients of the gap, each times a factor."""
    z1, z2, temperature = batch_of(batch)
    leaves = [z.to(dtype, copy=True).double().requires_grad_() for z in (z1, z2)]
    gaps = gaps_of(*leaves, temperature / power)
    factor = weigh(gaps).detach() / power
    return torch.cat(torch.autograd.grad((factor * gaps).mean(), leaves))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


GRADIENTS = {
    "FlatNCE": (F.flatnce, torch.ones_like, 1.0),
    "DCL": (F.dcl, torch.ones_like, 1.0),
    "InfoNCE": (F.infonce, torch.sigmoid, 1.0),
    "FlatNCE+": (F.flatnce_plus, torch.sigmoid, 1.0),
    **{f"Hölder {gamma}": (F.flatnce, torch.ones_like, gamma) for gamma in (2.0, 0.5, 0.003)},
}


@every_batch
@every_dtype
@pytest.mark.parametrize(("read", "weigh", "power"), list(GRADIENTS.values()), ids=list(GRADIENTS))
def test_the_gradient_is_the_gaps_or_that_times_the_gain(read, weigh, power, batch, dtype, error):
    found = gradients_in(dtype, batch, read, power)
    assert relative(found, slow_gradient(dtype, batch, weigh, power)) < error


# --- Second derivatives --------------------------------------------------------------------------


def hessian_of(read: Callable[..., Tensor], row: Tensor) -> Tensor:
    def function(scores: Tensor) -> Tensor:
        return read(F.contrast_from_logits(scores[None], torch.tensor([0])))

    return torch.autograd.functional.hessian(function, row)


@pytest.mark.parametrize("positive", [0.3, 8.0, -3.0])
@pytest.mark.parametrize("value", ["infonce", "constant"])
def test_flatnces_hessian_is_dcls_and_the_gradients_outer_product(positive, value):
    row = torch.tensor([positive, 0.1, -0.4, 0.9], dtype=torch.float64)
    g = torch.cat([-torch.ones(1), reference.softmax(row[1:])])
    flat, dcl = hessian_of(partial(F.flatnce, value=value), row), hessian_of(F.dcl, row)
    torch.testing.assert_close(flat, dcl + torch.outer(g, g), rtol=1e-10, atol=1e-12)
    assert float((flat - dcl).norm()) > 1


# --- Transforms ----------------------------------------------------------------------------------


@every_objective
def test_an_objective_of_a_contrast_can_be_transformed(entry):
    z1, z2 = (layouts.random(4, 3, seed=seed) for seed in (0, 1))

    def loss(given: Tensor) -> Tensor:
        return entry.function(entry.contrast(F.two_view(given, z2)))

    leaf = z1.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(z1), expected, rtol=1e-12, atol=1e-12)
    each = torch.func.vmap(loss)(torch.stack([z1, z2]))
    torch.testing.assert_close(each, torch.stack([loss(z1), loss(z2)]), rtol=1e-12, atol=1e-12)


# --- The drop-in for torch's cross_entropy -------------------------------------------------------

SHAPES = [(7, 5), (5,), (3, 5, 4), (2, 5, 3, 2)]


def logits_and_target(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    logits = 2 * layouts.random(*shape, seed=0)
    rest = shape[1:] if len(shape) == 1 else (shape[0], *shape[2:])
    generator = torch.Generator().manual_seed(1)
    return logits, torch.randint(0, 5, rest, generator=generator)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignored", [-100, 2, 0])
def test_cross_entropy_has_the_value_of_torchs(shape, reduction, weighted, ignored):
    logits, target = logits_and_target(shape)
    if len(shape) == 1:
        target = torch.tensor(3)
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25], dtype=torch.float64) if weighted else None
    options = {"weight": weight, "reduction": reduction, "ignore_index": ignored}
    found = F.cross_entropy(logits, target, **options)
    expected = torch_cross_entropy(logits, target, **options)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 5), (7, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("ignored", [-100, 100])
def test_cross_entropy_of_one_row_or_two_classes_has_a_closed_form(shape, ignored):
    logits = layouts.random(*shape)
    target = torch.arange(shape[0]) % 2
    target[1:2] = ignored
    leaf = logits.clone().requires_grad_()
    loss = F.cross_entropy(leaf, target, ignore_index=ignored)
    assert "FlatCrossEntropy" in loss.grad_fn.name()
    torch.testing.assert_close(loss, torch_cross_entropy(logits, target, ignore_index=ignored))
    exact, kept = logits.clone().requires_grad_(), target != ignored
    F.dcl(F.contrast_from_logits(exact[kept], target[kept])).backward()
    loss.backward()
    torch.testing.assert_close(leaf.grad, exact.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("place", ["here", "deferred"])
def test_cross_entropy_has_the_gradient_of_flatnce(weighted, reduction, place, request):
    if place == "deferred":
        request.getfixturevalue(place)
    logits, target = logits_and_target((3, 5, 4))
    target[1, 2] = -100
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25], dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    chosen = weight if weighted else None
    loss = F.cross_entropy(leaf, target, chosen, reduction=reduction)
    # Where no class has a weight, the closed form is used and not the definition.
    assert ("FlatCrossEntropy" in loss.grad_fn.name()) is not weighted
    torch.testing.assert_close(
        loss, torch_cross_entropy(logits, target, chosen, reduction=reduction)
    )
    loss.backward()
    exact, total, scales = logits.clone().requires_grad_(), 0.0, 0.0
    for i, j in [(i, j) for i in range(3) for j in range(4) if target[i, j] != -100]:
        place, row = int(target[i, j]), exact[i, :, j]
        scale = float(weight[place]) if weighted else 1.0
        others = [k for k in range(5) if k != place]
        total, scales = total + scale * reference.gap(row[place], row[others]), scales + scale
    (total / scales if reduction == "mean" else total).backward()
    torch.testing.assert_close(leaf.grad, exact.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_has_the_second_derivatives_of_flatnce(reduction):
    logits, target = logits_and_target((4, 5))
    target[1] = -100
    kept = target != -100
    weights = layouts.random(4, seed=3) if reduction == "none" else torch.ones(4)
    divisor = 3 if reduction == "mean" else 1

    def defined(given: Tensor) -> Tensor:
        rows = F.flatnce(F.contrast_from_logits(given[kept], target[kept]), reduction="none")
        return (weights[kept] * rows).sum() / divisor

    def found(given: Tensor) -> Tensor:
        losses = F.cross_entropy(given, target, reduction=reduction)
        return (weights * losses).sum() if reduction == "none" else losses

    hessians = [torch.autograd.functional.hessian(one, logits) for one in (found, defined)]
    torch.testing.assert_close(*hessians, rtol=1e-10, atol=1e-12)
    assert float(hessians[0].norm()) > 0.1


@pytest.mark.parametrize("rubbish", [math.nan, INFINITY, -INFINITY])
def test_cross_entropy_looks_at_no_row_that_is_ignored(rubbish):
    logits, target = logits_and_target((7, 5))
    target[3] = -100
    logits[3] = rubbish
    leaf = logits.clone().requires_grad_()
    found = F.cross_entropy(leaf, target)
    rest = torch.arange(7) != 3
    torch.testing.assert_close(found, torch_cross_entropy(logits[rest], target[rest]))
    found.backward()
    assert not leaf.grad[3].any() and leaf.grad.isfinite().all()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"ignore_index": 2}], ids=str)
def test_the_module_is_built_called_and_saved_as_torchs(weighted, options):
    logits, target = logits_and_target((7, 5))
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25], dtype=torch.float64) if weighted else None
    ours, theirs = CrossEntropyLoss(weight, **options), nn.CrossEntropyLoss(weight, **options)
    torch.testing.assert_close(ours(logits, target), theirs(logits, target))
    leaf, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    ours(leaf, target).sum().backward()
    F.cross_entropy(other, target, weight, **options).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=0, atol=0)
    assert isinstance(ours, nn.CrossEntropyLoss) and repr(ours) == repr(theirs)
    for option in ("ignore_index", "reduction", "label_smoothing"):
        assert getattr(ours, option) == getattr(theirs, option)
    if weighted:
        ours.load_state_dict({"weight": torch.ones(5)})
        assert ours.weight.tolist() == [1.0] * 5
    ours.reduction = "sum"
    assert ours(logits, target).ndim == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label_smoothing": 0.1}, "label_smoothing=0.1 has no FlatNCE form"),
        ({"reduction": "max"}, "reduction='max'.*mean, sum, none"),
    ],
    ids=str,
)
def test_the_module_refuses_what_has_no_flatnce_form(options, words):
    with pytest.raises(ValueError, match=words):
        CrossEntropyLoss(**options)


@pytest.mark.parametrize("options", [{"size_average": False}, {"reduce": False}], ids=str)
def test_the_module_takes_deprecated_arguments_as_torchs_does(options):
    logits, target = logits_and_target((7, 5))
    with pytest.warns(UserWarning, match="will be deprecated"):
        ours, theirs = CrossEntropyLoss(**options), nn.CrossEntropyLoss(**options)
    assert ours.reduction == theirs.reduction != "mean"
    torch.testing.assert_close(ours(logits, target), theirs(logits, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_autocast_to_another_precision_changes_no_loss(dtype):
    z1, z2, z3 = torch.randn(3, 4, 5).to(dtype)
    labels = torch.tensor([0, 0, 1, 1])
    calls = [((z1, z2), {"labels": labels}), ((z1, z2, z3), {}), ((z1, z2), {"ids": labels})]
    for views, options in calls:
        expected = FlatNCE()(*views, **options)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(FlatNCE()(*views, **options), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32_losses_and_gradients_of_its_own_kind(dtype):
    z = [torch.randn(6, 4, dtype=dtype, requires_grad=True) for _ in range(2)]
    losses = [FlatNCE()(*z), F.cross_entropy(z[0], torch.arange(6) % 4)]
    sum(losses).backward()
    assert [loss.dtype for loss in losses] == [torch.float32] * 2
    assert [t.grad.dtype for t in z] == [dtype] * 2


@pytest.mark.parametrize("objective", [InfoNCE, FlatNCE])
@pytest.mark.parametrize(
    ("norm", "scale", "overflows"), [(1e-1, 65_536, False), (1e-2, 65_536, True), (1e-5, 1, False)]
)
def test_a_scaler_skips_the_step_of_a_float16_gradient_that_overflows(
    objective, norm, scale, overflows
):
    torch.manual_seed(0)
    rows = [
        (norm * nn.functional.normalize(torch.randn(64, 128))).requires_grad_() for _ in range(2)
    ]
    before = [z.detach().clone() for z in rows]
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=scale), torch.optim.SGD(rows)
    scaler.scale(objective(temperature=0.07)(*(z.half() for z in rows))).backward()
    assert not any(z.grad.isnan().any() for z in rows)
    assert any(z.grad.isinf().any() for z in rows) == overflows
    scaler.step(optimizer)
    scaler.update()
    assert all(map(torch.equal, rows, before)) == overflows
    assert (scaler.get_scale() < scale) == overflows


def test_the_temperature_can_be_read_and_replaced():
    loss_fn = FlatNCE(temperature=0.5)
    loss_fn.temperature = LearnedTemperature(0.125)
    assert float(loss_fn.temperature.detach()) == pytest.approx(0.125)
    assert len(list(loss_fn.parameters())) == 1
    loss_fn.temperature = 0.25
    assert loss_fn.temperature == 0.25 and not list(loss_fn.parameters())
    views = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(loss_fn(*views), FlatNCE(temperature=0.25)(*views))
