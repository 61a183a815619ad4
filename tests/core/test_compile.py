"""A compiled training step: one graph, the same numbers. And the operators under it."""

import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from flatnce import functional as F
from forked import run_forked
from layouts import random
from once import once

SCRIPT = Path(__file__).parents[1] / "compiled_step.py"
CASES = ["scheduled queue", "whole step", "fused"]
# The others contain most of these already: the whole step and inductor's are dense.
MORE_CASES = ["chunked", "dense", "queue and batch", "learned towers"]
AOT = "aot_eager"  # all of torch.compile but the code generation, so it needs no compiler
MISSING = {
    "whole step": not hasattr(torch._dynamo.config, "trace_autograd_ops"),
    "fused": find_spec("triton") is None,
}


def run_script(backend: str, cases: list[str]) -> str:
    """In another process, without the shape checks."""
    own = "`torch.jit.script_method` is deprecated"  # torch's, of torch
    interpreter = "Conversion of an array with ndim > 0"  # of Triton 3.6, see pyproject.toml
    quiet = "import warnings\n"
    for message in (own, interpreter):
        quiet += f"warnings.filterwarnings('ignore', {message!r}, DeprecationWarning)\n"
    return run_forked(quiet + SCRIPT.read_text(encoding="utf-8"), backend, *cases, timeout=600)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], dict]:
    """The results of eager and compiled training in a case."""

    def of(case: str) -> dict:
        if MISSING.get(case):
            pytest.skip("no Triton, or this torch cannot trace a gradient inside a graph")
        cases = CASES if case in CASES else MORE_CASES
        cases = [each for each in cases if not MISSING.get(each)]
        place = f"compiled-{cases[0]}.json"
        return json.loads(once(tmp_path_factory, place, lambda: run_script(AOT, cases)))[case]

    return of


def assert_alike(found: dict, rel: float) -> None:
    """Losses, the monitor's numbers, the last batch's, and every weight, β and queued key."""
    eager, compiled = dict(found["eager"]), dict(found["compiled"])
    assert compiled.pop("monitor") == pytest.approx(eager.pop("monitor"), rel=rel)
    assert compiled == {name: pytest.approx(v, rel=rel, abs=rel) for name, v in eager.items()}


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_CASES)]
)
def test_a_compiled_training_step_has_no_graph_break_and_the_same_numbers(case, trained):
    found = trained(case)
    assert found["breaks"] == 0
    assert found["graphs"] == 2  # the monitor learns the embeddings' width in its first step
    assert_alike(found, rel=1e-6 if case == "fused" else 1e-12)


@pytest.mark.parametrize("case", ["dense", pytest.param("chunked", marks=pytest.mark.slow)])
def test_inductor_has_no_graph_break_and_the_same_numbers(case, compiler):
    found = json.loads(run_script("inductor", [case]))[case]
    assert (found["breaks"], found["graphs"]) == (0, 1)
    assert_alike(found, rel=1e-10)


# --- Operators -----------------------------------------------------------------------------------


def operands(masked: bool, same: bool, keys: bool = True, dtype=torch.float64) -> tuple:
    """Arguments of the chunked kernel's operator, over several blocks."""
    n, m = 7, 9 if keys else 7
    anchors, keys = (
        random(size, 3, seed=seed).to(dtype).requires_grad_() if size else None
        for seed, size in enumerate((n, m * keys))
    )
    wide = torch.promote_types(dtype, torch.float32)
    beta = torch.tensor(2.0, dtype=wide, requires_grad=True)
    left_out = torch.zeros(n, m, dtype=torch.bool) if masked else None
    if left_out is not None:
        left_out[1, 4] = left_out[6, 0] = True
    selves = (torch.arange(n), torch.arange(m)) if same else (None, None)
    groups = torch.arange(n) % 3, torch.arange(m) % 3
    return anchors, keys, beta, *groups, left_out, *selves, same, torch.float32


# torch's own check reads the gradient of what is not a leaf.
not_a_leaf = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)


@not_a_leaf
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_chunked_operator_is_registered_as_torch_wants_it(
    masked, same, keys, dtype, small_blocks
):
    inputs = (*operands(masked, same, keys, dtype), True, True, True)
    torch.library.opcheck(torch.ops.flatnce.chunked_statistics.default, inputs)


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False)])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("with_beta", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_chunked_gradient_operator_is_registered_as_torch_wants_it(
    wanted, keys, with_beta, dtype, small_blocks
):
    inputs = operands(True, False, keys, dtype)
    arguments = [t.detach() if isinstance(t, Tensor) else t for t in inputs]
    found = torch.ops.flatnce.chunked_statistics(*arguments, True, False, False)
    incoming = [
        random(7, seed=place).to(found[0]) if there else None for place, there in enumerate(wanted)
    ]
    torch.library.opcheck(
        torch.ops.flatnce.chunked_gradient.default, (*arguments, *found[:3], *incoming, with_beta)
    )


@pytest.mark.parametrize("buffer", [torch.tensor(3.0), torch.arange(6).reshape(2, 3)])
def test_the_held_operator_is_registered_as_torch_wants_it(buffer):
    torch.library.opcheck(torch.ops.flatnce.copy_buffer.default, (buffer,))


def test_one_graph_of_the_chunked_operator_serves_every_batch_size():
    def log_sum_exps(anchors: Tensor, beta: Tensor, group: Tensor) -> Tensor:
        given = anchors, None, beta, group, group, None, None, None, False, torch.float64
        return torch.ops.flatnce.chunked_statistics(*given, False, False, False)[0]

    torch.compiler.reset()
    graphs = CompileCounterWithBackend(AOT)
    compiled = torch.compile(log_sum_exps, backend=graphs, dynamic=True, fullgraph=True)
    counts = set()
    for rows in (6, 7, 9):
        given = random(rows, 4), torch.ones((), dtype=torch.float64), torch.arange(rows)
        torch.testing.assert_close(compiled(*given), log_sum_exps(*given))
        counts.add(graphs.frame_count)
    assert len(counts) == 1  # no size compiles again


# --- functorch -----------------------------------------------------------------------------------


def loss_of(z1: Tensor, z2: Tensor, temperature: Tensor, kernel: str = "dense") -> Tensor:
    return F.flatnce(F.contrast_of(F.two_view(z1, z2), temperature, kernel=kernel))


chunked_loss_of = partial(loss_of, kernel="chunked")


def ess_of(z1: Tensor, z2: Tensor, temperature: Tensor) -> Tensor:
    pairs = F.two_tower(z1, z2)
    return F.effective_sample_size(F.contrast_of(pairs, temperature, kernel="dense"))


def gradient_of(z1: Tensor, z2: Tensor, temperature: Tensor) -> Tensor:
    z1, z2 = (z.clone().requires_grad_() for z in (z1, z2))
    return torch.stack(torch.autograd.grad(loss_of(z1, z2, temperature), (z1, z2)))


def traced_gradient(*batch: Tensor) -> Tensor:
    return torch.stack(torch.func.grad(loss_of, argnums=(0, 1))(*batch))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of chunked: one call a row
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (loss_of, loss_of),
        (chunked_loss_of, chunked_loss_of),
        (ess_of, ess_of),
        (traced_gradient, gradient_of),
    ],
    ids=["loss", "chunked loss", "diagnostic", "gradient"],
)
def test_vmap_equals_one_batch_after_the_other(function, expected):
    # Three batches, each with a temperature of its own.
    several = random(3, 5, 4), random(3, 5, 4, seed=1), torch.tensor([0.1, 0.5, 2.0]).double()
    alone = torch.stack([expected(*batch) for batch in zip(*several, strict=True)])
    torch.testing.assert_close(torch.vmap(function)(*several), alone, rtol=1e-12, atol=1e-12)
