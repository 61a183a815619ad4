"""Plain batches from raw rows: equal to the dense definition, in few operations and files."""

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import flatnce
from flatnce import (
    DCL,
    EssController,
    FlatNCE,
    FlatNCEPlus,
    InfoNCE,
    KeyQueue,
    LearnedTemperature,
)
from flatnce.core.direct import direct_size
from flatnce.core.objectives.temperature import TemperatureSource
from layouts import random

every_layout = pytest.mark.parametrize("layout", ["two_view", "two_tower"])
every_form = pytest.mark.parametrize("objective", [FlatNCE, InfoNCE, DCL, FlatNCEPlus])


@every_form
@every_layout
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("temperature", [0.01, 0.5, torch.tensor(0.2, dtype=torch.float64)])
def test_values_and_derivatives_are_those_of_the_definition(
    objective, layout, normalize, temperature
):
    outcomes = []
    for kernel in ("auto", "dense"):
        rows = [random(7, 4, seed=seed).requires_grad_() for seed in (1, 2)]
        loss_fn = objective(temperature, layout=layout, normalize=normalize, kernel=kernel)
        loss, last = loss_fn(*rows), loss_fn.last
        assert (last.rows is None) == bool(outcomes)
        closed = torch.autograd.grad(loss, rows, retain_graph=True)
        first = torch.autograd.grad(loss, rows, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), rows)
        fields = {name: getattr(last.contrast, name) for name in ("negative2", "count", "hardest")}
        values = [loss, last.loss, last.embeddings, last.ess, last.gain, *fields.values()]
        outcomes.append([*values, *closed, *first, *second])
    torch.testing.assert_close(*outcomes, rtol=1e-9, atol=1e-9)


@every_form
@pytest.mark.parametrize("layout", ["two_view", "two_tower", "queue", "queue and batch"])
@pytest.mark.parametrize("kind", ["tensor", "learned", "controlled"])
def test_an_inverse_temperature_on_the_device_gives_the_numbers_of_the_definition(
    objective, layout, kind, deferred
):
    outcomes = []
    for kernel in ("auto", "dense"):
        rows = [random(7, 4, seed=seed).requires_grad_() for seed in (1, 2)]
        temperature = {
            "tensor": torch.tensor(0.2, dtype=torch.float64),
            "learned": LearnedTemperature(0.2).double(),
            "controlled": EssController(0.3, temperature_at_start=0.2, rate=0.1),
        }[kind]
        options = {"layout": layout}
        if layout.startswith("queue"):
            options = {"queue": KeyQueue(9, 4).double(), "in_batch": layout != "queue"}
            options["queue"].enqueue(random(5, 4, seed=3))
        loss_fn = objective(temperature, kernel=kernel, **options).double()
        loss = loss_fn(*rows)
        if kind == "tensor" or not layout.startswith("queue"):
            assert (loss_fn.last.rows is None) == bool(outcomes)
        learned = [*loss_fn.parameters()]
        found = torch.autograd.grad(loss, [*rows, *learned])
        outcomes.append([loss, loss_fn.last.ess, loss_fn.temperature, *found])
    torch.testing.assert_close(*outcomes, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("given", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("place", ["here", "deferred"])
def test_a_temperature_of_another_precision_takes_that_of_the_scores(rows, given, place, request):
    if place == "deferred":
        request.getfixturevalue(place)
    temperature = torch.tensor(0.25, dtype=given)
    batch = [random(7, 4, seed=seed).to(rows) for seed in (1, 2)]
    kinds = [FlatNCE(temperature, kernel=kernel) for kernel in ("auto", "dense")]
    found = [(loss_fn(*batch), loss_fn.last.contrast.beta) for loss_fn in kinds]
    assert found[0][1].dtype == torch.promote_types(rows, torch.float32)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("filled", [5, 9])
@every_form
def test_a_queue_has_the_numbers_of_the_definition(objective, in_batch, filled):
    outcomes = []
    for kernel in ("auto", "dense"):
        queue = KeyQueue(9, 4).double()
        queue.enqueue(random(filled, 4, seed=3))
        rows = [random(7, 4, seed=seed).requires_grad_() for seed in (1, 2)]
        loss_fn = objective(0.2, queue=queue, in_batch=in_batch, kernel=kernel)
        loss = loss_fn(*rows)
        assert (loss_fn.last.rows is None) == bool(outcomes)
        values = [loss, loss_fn.last.ess, loss_fn.last.contrast.count, queue.keys, queue.position]
        outcomes.append([*values, *torch.autograd.grad(loss, rows)])
    torch.testing.assert_close(*outcomes, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("in_batch", [True, False])
def test_a_queue_and_its_rows_may_have_any_precision(dtype, in_batch):
    queue = KeyQueue(9, 4)
    queue.enqueue(random(9, 4, seed=3).float())
    loss_fn = FlatNCE(0.2, queue=queue, in_batch=in_batch).to(dtype)
    rows = [random(7, 4, seed=seed).to(dtype) for seed in (1, 2)]
    wanted = float(FlatNCE(0.2, queue=queue, in_batch=in_batch, kernel="dense").eval()(*rows))
    first = rows[0] if dtype == torch.float64 else rows[0].float()
    for query, key in (rows, (rows[0].float(), rows[1].float()), (first, rows[1])):
        assert float(loss_fn.eval()(query, key)) == pytest.approx(wanted, rel=1e-5)


def test_a_queue_that_is_not_written_has_second_derivatives():
    queue, z = KeyQueue(9, 4).double(), random(7, 4, seed=1).requires_grad_()
    queue.enqueue(random(9, 4, seed=3))
    found = []
    for kernel in ("auto", "dense"):
        loss = FlatNCE(0.2, queue=queue, kernel=kernel).eval()(z, random(7, 4, seed=2))
        (first,) = torch.autograd.grad(loss, z, create_graph=True)
        found += torch.autograd.grad(first.square().sum(), z)
    torch.testing.assert_close(*found)


def test_a_queue_that_was_written_refuses_second_derivatives():
    queue, z = KeyQueue(9, 4).double(), random(7, 4, seed=1).requires_grad_()
    queue.enqueue(random(9, 4, seed=3))
    loss = FlatNCE(0.2, queue=queue)(z, random(7, 4, seed=2))
    with pytest.raises(RuntimeError, match=r"second derivatives .* need kernel='dense'"):
        torch.autograd.grad(loss, z, create_graph=True)


def test_half_precision_has_batched_gradients_and_frees_its_rows():
    z = random(7, 4, seed=1).bfloat16().requires_grad_()
    rows = z * 1
    held, loss = weakref.ref(rows), FlatNCE(0.2)(rows, random(7, 4, seed=2).bfloat16())
    incoming = {"retain_graph": True, "is_grads_batched": True}
    (found,) = torch.autograd.grad(loss, z, torch.tensor([1.0, 2.0]), **incoming)
    torch.testing.assert_close(found[1], 2 * found[0])
    loss.backward()
    del rows
    gc.collect()
    assert held() is None  # although the loss is kept


@pytest.mark.parametrize("layout", ["two_view", "two_tower", "queue"])
@pytest.mark.parametrize("follows", ["infonce", "own"])
def test_the_slope_of_a_learned_temperature_is_that_of_the_definition(layout, follows):
    slopes = []
    for kernel in ("auto", "dense"):
        temperature, options = LearnedTemperature(0.2).double(), {"layout": layout}
        if layout == "queue":
            options = {"queue": KeyQueue(9, 4).double()}
            options["queue"].enqueue(random(5, 4, seed=3))
        loss_fn = FlatNCE(temperature, kernel=kernel, temperature_gradient=follows, **options)
        loss_fn(*(random(7, 4, seed=seed) for seed in (1, 2))).backward()
        slopes.append(temperature.log_beta.grad)
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


@every_layout
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True])
def test_rows_of_any_precision_are_computed_in_float32(layout, dtype, autocast):
    rows = [random(6, 5, seed=seed).to(dtype).requires_grad_() for seed in (1, 2)]
    wide = [z.detach().float().requires_grad_() for z in rows]
    with torch.autocast("cpu", enabled=autocast):
        loss = FlatNCE(0.2, layout=layout)(*rows)
        loss.backward()
    expected = FlatNCE(0.2, layout=layout, kernel="dense")(*wide)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for found, one in zip(rows, wide, strict=True):
        torch.testing.assert_close(found.grad, one.grad.to(dtype))


@pytest.mark.parametrize("kernel", ["auto", "dense"])
@pytest.mark.parametrize("gap", [60.0, 95.0])
def test_a_positive_far_behind_does_not_overflow_in_float32(gap, kernel):
    left = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss = InfoNCE(2 / gap, layout="two_tower", kernel=kernel)(left, -left)
    assert float(loss) == pytest.approx(gap, rel=1e-6)


@pytest.mark.parametrize("kernel", ["auto", "dense"])
def test_the_state_of_a_controller_moves_to_the_device_of_each_batch(kernel, monkeypatch):
    moved = []
    monkeypatch.setattr(TemperatureSource, "follow", lambda self, device: moved.append(device))
    FlatNCE(EssController(0.3), kernel=kernel)(random(6, 5), random(6, 5, seed=1))
    assert moved == [torch.device("cpu")]


def test_a_gradient_may_be_asked_for_twice():
    rows = [random(6, 5, seed=seed).requires_grad_() for seed in (1, 2)]
    loss = InfoNCE(0.2)(*rows)
    first = torch.autograd.grad(loss, rows, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, rows)))


# --- What a call costs ---------------------------------------------------------------------------


class Counted(TorchDispatchMode):
    """Counts every operation that is dispatched."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_forward_and_backward_take_at_most_forty_operations():
    loss_fn = FlatNCE()
    rows = [torch.randn(32, 128, requires_grad=True) for _ in range(2)]
    loss_fn(*rows).backward()
    for z in rows:
        z.grad = None
    with Counted() as counted:
        loss_fn(*rows).backward()
    assert len(counted.names) <= 40, counted.names
    assert not any("flatnce" in name for name in counted.names)


def test_a_forward_enters_at_most_six_files():
    folder, entered = str(Path(flatnce.__file__).parent), set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            entered.add(frame.f_code.co_filename)

    loss_fn, rows = FlatNCE(), (torch.randn(8, 4), torch.randn(8, 4))
    loss_fn(*rows)
    sys.setprofile(note)
    try:
        loss_fn(*rows)
    finally:
        sys.setprofile(None)
    assert len(entered) <= 6, sorted(entered)


# torch warns of its own use of torch.jit on the way to forward mode.
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("objective", [FlatNCE, InfoNCE])
@every_layout
def test_forward_mode_gives_the_derivative_that_the_gradient_gives(objective, layout):
    z1, z2, direction = (random(7, 4, seed=seed) for seed in (1, 2, 3))
    loss_fn = objective(0.3, layout=layout)
    with forward_ad.dual_level():
        loss = loss_fn(forward_ad.make_dual(z1, direction), z2)
        found = forward_ad.unpack_dual(loss).tangent
    leaf = z1.requires_grad_()
    (gradient,) = torch.autograd.grad(loss_fn(leaf, z2), leaf)
    torch.testing.assert_close(found, (gradient * direction).sum())


# --- Which batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "largest"),
    [("views", 2048), ("both", 4096), ("in_batch", 4096)],
)
def test_a_batch_is_taken_up_to_64_mebibytes_of_scores_and_256_on_a_card(layout, largest, on_card):
    for b, place, taken in [
        (1, torch.clone, 0),
        (2, torch.clone, 2),
        (largest, torch.clone, largest),
        (largest + 1, torch.clone, 0),
        (2 * largest, on_card, 2 * largest),
        (2 * largest + 1, on_card, 0),
    ]:
        rows = place(torch.zeros(b, 1))
        assert direct_size(rows, rows, layout, captured=False) == taken


def test_a_captured_step_keeps_the_fused_kernel_where_that_is_better(on_card, monkeypatch):
    for b, dtype, taken in [
        (1024, torch.float32, 1024),
        (1025, torch.float32, 0),
        (4, torch.float16, 0),
        (4, torch.bfloat16, 0),
        (4, torch.float64, 4),
    ]:
        rows = on_card(torch.zeros(b, 1, dtype=dtype))
        assert direct_size(rows, rows, "views", captured=True) == taken
    large = on_card(torch.zeros(1025, 1))
    assert direct_size(large, large, "views", captured=False) == 1025
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert direct_size(large, large, "views", captured=False) == 0


def test_other_tensors_than_plain_ones_take_the_general_path():
    class Marked(torch.Tensor):
        pass

    plain = torch.ones(4, 2)
    for pair in ((plain.as_subclass(Marked), plain), (plain, plain.as_subclass(Marked))):
        assert direct_size(*pair, "views", captured=False) == 0
    assert direct_size(plain, torch.nn.Parameter(plain), "views", captured=False) == 4
    assert direct_size(plain, plain.double(), "queue", captured=False) == 0
    sizes = []
    torch.func.vmap(lambda z: sizes.append(direct_size(z, plain, "views", captured=False)) or z)(
        torch.ones(3, 4, 2)
    )
    assert sizes == [0]
