"""Plain batches from raw rows: equal to the dense definition, in few operations and files."""

import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import flatnce
from flatnce import FlatNCE, InfoNCE
from flatnce import functional as F
from flatnce.core.contrast import contrast_of_batches
from layouts import random

LAYOUTS = {"views": F.two_view, "both": F.two_tower}
READINGS = {
    "positive": lambda contrast: contrast.positive,
    "negative": lambda contrast: contrast.negative,
    "negative2": lambda contrast: contrast.negative2,
    "all": lambda contrast: contrast.gap * contrast.negative2,
}


def both_ways(layout, normalize, temperature, slope=False):
    """The contrast from raw rows and by the definition, with their inputs."""
    found = []
    for direct in (True, False):
        rows = [random(7, 4, seed=seed).requires_grad_() for seed in (1, 2)]
        tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=not slope)
        options = {"normalize": normalize}
        if direct:
            one, _ = contrast_of_batches(*rows, tau, layout=layout, slope=slope, **options)
        else:
            pairs = LAYOUTS[layout](*rows, **options)
            one = F.contrast_of(pairs, tau, kernel="dense", slope=slope)
        found.append((one, [*rows, tau]))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("temperature", [0.01, 0.5])
def test_values_and_derivatives_are_those_of_the_definition(
    layout, normalize, reading, temperature
):
    outcomes = []
    for contrast, inputs in both_ways(layout, normalize, temperature):
        weights = random(len(contrast.positive), seed=3)
        value = (weights * READINGS[reading](contrast)).sum()
        first = torch.autograd.grad(value, inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        outcomes.append([value, *first, *second, contrast.count, contrast.hardest])
    torch.testing.assert_close(*outcomes, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reading", READINGS)
def test_the_closed_form_is_the_gradient_of_the_definition(layout, reading):
    outcomes = []
    for contrast, inputs in both_ways(layout, True, 0.2):
        READINGS[reading](contrast).square().sum().backward()
        outcomes.append([x.grad for x in inputs])
    torch.testing.assert_close(*outcomes, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_slope_of_a_learned_temperature_is_that_of_the_definition(layout):
    (one, _), (two, _) = both_ways(layout, True, 0.2, slope=True)
    torch.testing.assert_close(one.slope, two.slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["two_view", "two_tower"])
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
@pytest.mark.parametrize("layout", ["two_view", "two_tower"])
def test_forward_mode_gives_the_derivative_that_the_gradient_gives(objective, layout):
    z1, z2, direction = (random(7, 4, seed=seed) for seed in (1, 2, 3))
    loss_fn = objective(0.3, layout=layout)
    with forward_ad.dual_level():
        loss = loss_fn(forward_ad.make_dual(z1, direction), z2)
        found = forward_ad.unpack_dual(loss).tangent
    leaf = z1.requires_grad_()
    (gradient,) = torch.autograd.grad(loss_fn(leaf, z2), leaf)
    torch.testing.assert_close(found, (gradient * direction).sum())
