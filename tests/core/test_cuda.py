"""On a GPU: no host read in a step, CUDA graphs, flags instead of raises, kernels equal."""

import json

import pytest
import torch

from flatnce import EssController, FlatNCE, InfoNCE, KeyQueue, LearnedTemperature, Monitor
from flatnce import functional as F
from flatnce.core.control import Cosine
from gpu import host_reads_forbidden

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    # torch's own imports and advice on the way to its compiler
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]


def batch(b: int = 32, d: int = 16, dtype: torch.dtype = torch.float32):
    x = torch.randn(b, d, device="cuda")
    pair = (x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x))
    return tuple(z.to(dtype).requires_grad_() for z in pair)


LOSSES = {
    "fixed": lambda: FlatNCE(0.1),
    "chunked": lambda: FlatNCE(0.1, kernel="chunked"),
    "towers": lambda: InfoNCE(0.1, layout="two_tower"),
    "controlled": lambda: FlatNCE(EssController(target=0.3)),
    "scheduled": lambda: FlatNCE(Cosine(0.5, 0.1, steps=100)),
    "learned": lambda: FlatNCE(LearnedTemperature(0.1)),
    "queue": lambda: FlatNCE(0.1, queue=KeyQueue(64, 16)),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


@every_loss
def test_a_step_and_the_monitor_never_read_the_device(name):
    loss_fn, monitor = LOSSES[name]().cuda(), Monitor()
    z1, z2 = batch()
    loss_fn(z1, z2).backward()
    monitor.update(loss_fn.last)  # the first step may allocate and move
    with host_reads_forbidden():
        loss_fn(z1, z2).backward()
        monitor.update(loss_fn.last)
    assert monitor.compute()["steps"] == 2


@every_loss
def test_a_captured_step_replays_the_eager_numbers(name):
    torch.manual_seed(0)
    z1, z2 = batch()
    eager, graphed = LOSSES[name]().cuda(), LOSSES[name]().cuda()
    monitor = Monitor()

    def step(loss_fn):
        leaf = z1.detach().requires_grad_()  # its own: a leaf belongs to one stream
        loss = loss_fn(leaf, z2.detach())
        return loss, torch.autograd.grad(loss, leaf)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(graphed)
            monitor.update(graphed.last)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, gradient = step(graphed)
        monitor.update(graphed.last)
    for _ in range(2):
        graph.replay()
    for _ in range(5):
        expected, expected_gradient = step(eager)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    interval = monitor.close()
    interval.wait()
    # The second moments of unit rows add up over all steps: their trace counts the rows.
    assert float(interval.gram.trace()) == pytest.approx(5 * min(len(z1), monitor.rows))
    taken = monitor.compute(interval=interval)["steps"]
    assert taken == 5  # capturing records a step without taking it


@pytest.mark.parametrize(("value", "fault"), [(torch.nan, "nonfinite"), (1e-20, "zero_vector")])
def test_bad_values_raise_at_the_next_read_and_not_before(value, fault):
    z1, z2 = batch()
    loss_fn, monitor = FlatNCE(0.1), Monitor()
    loss_fn(z1.detach().index_fill(0, torch.tensor([3], device="cuda"), value), z2)
    monitor.update(loss_fn.last)
    with pytest.raises(ValueError, match=fault):
        _ = loss_fn.last.ess
    with pytest.raises(ValueError, match=fault):
        monitor.compute()


def test_a_bad_temperature_tensor_is_flagged():
    loss_fn = FlatNCE(torch.tensor(-1.0, device="cuda"))
    loss_fn(*batch())
    with pytest.raises(ValueError, match="temperature"):
        _ = loss_fn.last.ess


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_chunked_equals_dense_at_a_size_that_does_not_divide(dtype):
    z1, z2 = batch(1501, 96, dtype)
    results = []
    for kernel in ("dense", "chunked"):
        loss = F.flatnce(F.contrast_of(F.two_view(z1, z2), 0.1, kernel=kernel))
        results.append((loss, *torch.autograd.grad(loss, (z1, z2))))
    torch.testing.assert_close(results[1], results[0], rtol=2e-3, atol=1e-6)


def test_autocast_leaves_the_loss_in_float32():
    z1, z2 = batch()
    plain = FlatNCE(0.05)(z1, z2)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cast = FlatNCE(0.05)(z1, z2)
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain)


def test_the_exact_solve_needs_no_host_read():
    pairs = F.two_view(*batch())
    with host_reads_forbidden():
        temperature = F.temperature_for_ess(pairs, 0.3)
    ess = F.population_ess(F.contrast_of(pairs, temperature))
    torch.testing.assert_close(ess, torch.tensor(0.3, device="cuda"), rtol=1e-4, atol=0)


@pytest.mark.parametrize("width", [32, 600])
def test_an_interval_is_closed_without_a_host_read_while_the_device_is_behind(width):
    z1, z2 = (torch.randn(64, width, device="cuda") for _ in range(2))
    loss_fn, monitor, alone = FlatNCE(0.1), Monitor().cuda(), Monitor().cuda()

    def watch(seen):
        loss_fn(z1, z2)
        seen.update(loss_fn.last)

    watch(monitor)
    monitor.compute()  # what is made once is made
    watch(monitor)
    watch(alone)
    torch.cuda.synchronize()
    with host_reads_forbidden():
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        interval = monitor.close()
        watch(monitor)
        assert not interval.arrived()
    found = monitor.compute(step=1, interval=interval)
    assert interval.arrived() and found == pytest.approx(alone.compute(step=1), rel=1e-9)
    assert monitor.compute(step=1) == pytest.approx(found, rel=1e-9)


# Where pytest has not hooked its shape checks into flatnce: torch.compile cannot trace them.
COMPILED = """
import json, sys, warnings
import torch
from flatnce import EssController, FlatNCE, Monitor

warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
warnings.filterwarnings("ignore", "TensorFloat32")
torch.manual_seed(0)
x, y, z = (torch.randn(32, 16, device="cuda") for _ in range(3))
z1, z2 = ((x + 0.3 * noise).requires_grad_() for noise in (y, z))

def losses(compiled):
    loss_fn = FlatNCE(EssController(0.3), kernel=sys.argv[1]).cuda()
    monitor = Monitor().cuda()

    def step(a, b):
        loss = loss_fn(a, b)
        monitor.update(loss_fn.last)
        return loss

    step = torch.compile(step, fullgraph=True) if compiled else step
    return [step(z1, z2).item() for _ in range(4)], monitor.compute()

print(json.dumps([losses(False), losses(True)]))
"""


@pytest.mark.parametrize("kernel", ["dense", "chunked"])
def test_a_compiled_step_has_no_graph_break_and_the_same_numbers(kernel, run_python):
    (eager, numbers), (compiled, same) = json.loads(run_python(COMPILED, kernel))
    assert compiled == pytest.approx(eager, rel=1.3e-6, abs=1e-5)  # as torch has it for float32
    assert same == pytest.approx(numbers, rel=1e-4)


@pytest.mark.parametrize("name", ["controlled", "scheduled", "tensor"])
def test_a_loss_that_was_never_moved_follows_its_batch(name):
    build = {**LOSSES, "tensor": lambda: FlatNCE(torch.tensor(0.2))}
    loss_fn = build[name]()  # no .cuda()
    z1, z2 = batch()
    loss_fn(z1, z2).backward()
    with host_reads_forbidden():
        loss_fn(z1, z2).backward()
    assert {buffer.device.type for buffer in loss_fn.buffers()} == {"cuda"}


def test_cross_entropy_does_not_read_the_device():
    logits = torch.randn(8, 8, device="cuda", requires_grad=True)
    target = torch.arange(8, device="cuda")
    F.cross_entropy(logits, target)
    with host_reads_forbidden():
        F.cross_entropy(logits, target).backward()


@pytest.mark.parametrize("logits", [torch.zeros(0, 4), torch.ones(3, 4, dtype=torch.long)])
def test_cross_entropy_refuses_on_the_device_what_it_refuses_on_the_host(logits):
    target = torch.zeros(len(logits), dtype=torch.long)
    for device in ("cpu", "cuda"):
        with pytest.raises(ValueError, match="pass floating-point scores"):
            F.cross_entropy(logits.to(device), target.to(device))
