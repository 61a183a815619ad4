"""Learning rate schedule, LARS, parameter groups, optimizer states."""

import json
import math

import pytest
import torch
from torch import Tensor, nn

from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.optim import (
    LARS,
    WarmupCosine,
    build_optimizer,
    load_optimizer,
    set_rate,
)
from flatnce.pretrain.training.state import rate_schedule
from forked import run_forked
from saved import saved_and_loaded

SCHEDULES = {
    "plain": WarmupCosine(0.3, 40),
    "warm": WarmupCosine(0.3, 40, warmup=10),
    "one step of warm-up": WarmupCosine(2.0, 7, warmup=1),
    "almost all warm-up": WarmupCosine(1.0, 8, warmup=7),
    "one step": WarmupCosine(1.0, 1),
}
every_schedule = pytest.mark.parametrize("rate", SCHEDULES.values(), ids=SCHEDULES)


def definition(rate: WarmupCosine, step: int) -> float:
    if step < rate.warmup:
        return rate.peak * (step + 1) / rate.warmup
    if step >= rate.steps:
        return 0.0
    angle = math.pi * (step - rate.warmup) / (rate.steps - rate.warmup)
    return rate.peak * 0.5 * (1 + math.cos(angle))


@every_schedule
@pytest.mark.parametrize("step", [0, 1, 6, 7, 9, 10, 25, 39, 40, 41, 10**6])
def test_numbers_and_tensors_follow_the_definition(rate, step):
    expected = definition(rate, step)
    assert rate.at(step) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    found = rate.at(torch.tensor(step))
    assert found.dtype == torch.float32 and found.shape == ()
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_a_step_beyond_what_a_float32_can_count_is_not_rounded():
    rate = WarmupCosine(1.0, 2**25, warmup=2**24 + 1)
    step = 2**24 + 1 + 3
    assert rate.at(torch.tensor(step)).item() == pytest.approx(rate.at(step), rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("linear", 256, 0.3),
        ("linear", 4096, 4.8),
        ("linear", 32, 0.0375),
        ("sqrt", 4096, 1.2),
        ("sqrt", 64, 0.15),
        ("none", 4096, 0.3),
    ],
)
def test_the_rate_grows_with_the_batch(rule, batch, expected):
    config = TrainConfig().override(rate=0.3, batch_size=batch, scaling=rule)
    assert rate_schedule(config, steps_per_epoch=1).peak == pytest.approx(expected)


NAMES = ("sgd", "adamw", "lars")
every_optimizer = pytest.mark.parametrize("name", NAMES)
SHAPES = ((3, 4), (2, 3, 2, 2), (5, 1))


def lars_definition(
    weights, gradients, velocities, *, lr, momentum, weight_decay, trust, adapt
) -> None:
    """One step on lists of lists of floats, in place; one layer after the other.

    SimCLR's form of You et al., 2017, Algorithm 1: the norm of the decayed gradient.
    """
    for w, gradient, v in zip(weights, gradients, velocities, strict=True):
        g = [gradient[i] + weight_decay * w[i] for i in range(len(w))]
        w_norm = math.sqrt(math.fsum(x * x for x in w))
        g_norm = math.sqrt(math.fsum(x * x for x in g))
        factor = trust * w_norm / g_norm if adapt and w_norm > 0 and g_norm > 0 else 1.0
        for i in range(len(w)):
            v[i] = momentum * v[i] + lr * factor * g[i]
            w[i] = w[i] - v[i]


def random_tensors(seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in SHAPES]


def floats(tensors) -> list[list[float]]:
    return [tensor.detach().double().flatten().tolist() for tensor in tensors]


# --- LARS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("adapt", [True, False])
def test_lars_is_its_definition(momentum, weight_decay, adapt):
    options = {"momentum": momentum, "weight_decay": weight_decay, "trust": 0.02, "adapt": adapt}
    weights = [nn.Parameter(tensor) for tensor in random_tensors(1)]
    w, v = floats(weights), [[0.0] * len(row) for row in floats(weights)]
    optimizer = LARS(weights, lr=1.0, **options)
    for step, rate in enumerate((0.7, 0.07, 2.0, 0.7)):  # past steps keep their rate
        gradients = random_tensors(100 + step)
        lars_definition(w, floats(gradients), v, lr=rate, **options)
        set_rate(optimizer, rate)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
    for found, expected in zip(floats(weights), w, strict=True):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("w", "g"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_zero_norm_counts_as_a_factor_of_one(w, g):
    weight = nn.Parameter(torch.full((3, 3), w))
    weight.grad = torch.full((3, 3), g)
    LARS([weight], lr=0.5, momentum=0.9).step()
    assert torch.equal(weight.detach(), torch.full((3, 3), w - 0.5 * g))


def test_norms_of_half_precision_do_not_overflow():
    weight = nn.Parameter(torch.full((256, 256), 300.0, dtype=torch.float16))  # norm 76,800
    weight.grad = torch.ones_like(weight)  # norm 256
    LARS([weight], lr=1.0, trust=0.01).step()
    assert weight.dtype == torch.float16
    assert weight.float().mean().item() == pytest.approx(300 - 0.01 * 300, rel=1e-3)


def test_parameters_of_several_types_and_without_gradients_live_together():
    single, double = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2).double())
    idle = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([single, double, idle], lr=1.0, trust=0.5)
    single.grad, double.grad = torch.ones(2, 2), torch.ones(2, 2).double()
    optimizer.step()
    assert torch.equal(single.double(), double) and single[0, 0] == 0.5
    assert torch.equal(idle, torch.ones(2, 2)) and idle not in optimizer.state


# --- The two groups ------------------------------------------------------------------------------


def small_encoder() -> Encoder:
    return Encoder(backbone("small", channels=1), head(128, out=8))


def names_of(optimizer) -> dict[str, list[str]]:
    return {group["name"]: group["param_names"] for group in optimizer.param_groups}


@every_optimizer
def test_biases_and_norms_do_not_decay(name):
    model = small_encoder()
    optimizer = build_optimizer(model, name, lr=0.1, weight_decay=0.3, momentum=0.8)
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "lars": LARS}
    assert type(optimizer) is kinds[name]
    group = optimizer.param_groups[0]
    assert (group["betas"][0] if name == "adamw" else group["momentum"]) == 0.8
    expected = {
        "decay": [n for n, p in model.named_parameters() if p.ndim > 1],
        "no_decay": [n for n, p in model.named_parameters() if p.ndim < 2],
    }
    assert names_of(optimizer) == expected
    assert "head.3.bias" in expected["no_decay"] and "head.1.weight" in expected["no_decay"]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    if name == "lars":
        assert [group["adapt"] for group in optimizer.param_groups] == [True, False]


def test_norms_over_several_axes_do_not_decay():
    model = nn.Sequential(nn.LayerNorm([2, 3, 3]), nn.GroupNorm(1, 2), nn.Conv2d(2, 2, 3))
    assert names_of(build_optimizer(model, lr=0.1))["decay"] == ["2.weight"]


def test_what_a_backbone_lists_does_not_decay():
    pytest.importorskip("timm", reason="the train extra is not installed")
    model = nn.ModuleDict({"net": backbone("vit_tiny_patch16_224", size=16)})
    assert {"net.pos_embed", "net.cls_token"} <= {
        *names_of(build_optimizer(model, lr=1.0))["no_decay"]
    }


# --- The rate, and states that travel ------------------------------------------------------------


def training_step(model: nn.Module, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(16, 1, 8, 8))[1].square().mean().backward()
    optimizer.step()


@every_optimizer
def test_loading_keeps_the_kind_of_the_rate(name):
    model, held = small_encoder(), torch.tensor(0.5)
    with_tensor = build_optimizer(model, name, lr=held)
    saved = build_optimizer(model, name, lr=0.25).state_dict()
    load_optimizer(with_tensor, saved_and_loaded(saved))
    assert all(group["lr"] is held for group in with_tensor.param_groups)
    set_rate(with_tensor, torch.tensor(0.25))
    with_number = build_optimizer(model, name, lr=0.75)
    load_optimizer(with_number, saved_and_loaded(with_tensor.state_dict()))
    assert [group["lr"] for group in with_number.param_groups] == [0.25, 0.25]
    assert isinstance(with_number.param_groups[0]["lr"], float)


def test_a_state_of_a_gpu_goes_on_without_one():
    model = small_encoder()
    optimizer = build_optimizer(model, "adamw", lr=0.1)
    training_step(model, optimizer)
    state = saved_and_loaded(optimizer.state_dict())
    for group in state["param_groups"]:
        group |= {"fused": True, "capturable": True}
    load_optimizer(optimizer, state)
    assert not any(group["fused"] or group["capturable"] for group in optimizer.param_groups)
    training_step(model, optimizer)


def test_the_state_of_other_parameters_is_refused():
    saved = build_optimizer(small_encoder(), lr=0.1).state_dict()
    other = Encoder(backbone("small", channels=1), head(128, layers=3, out=8))
    with pytest.raises(ValueError, match=r"not that of this SGD's parameters"):
        load_optimizer(build_optimizer(other, lr=0.1), saved)


# --- Compiled ------------------------------------------------------------------------------------

COMPILED = """
import copy, json, torch
from torch._dynamo.utils import counters
from flatnce.pretrain.models import head
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.optim import WarmupCosine, build_optimizer, set_rate

def run(compiled):
    torch.manual_seed(0)
    model = head(6, layers=2, out=3).double()  # a linear map, a batch norm, a linear map
    optimizer = build_optimizer(model, "lars", lr=torch.tensor(0.1), weight_decay=0.1)
    schedule, counter = WarmupCosine(0.5, 6, warmup=2), torch.zeros((), dtype=torch.long)

    def step():
        set_rate(optimizer, schedule.at(counter))
        optimizer.step()
        counter.add_(1)

    step = compiled(step)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 6).double()).square().mean().backward()
        step()
    return [tensor.double() for tensor in model.state_dict().values()]

eager = run(lambda step: step)
compiled = run(lambda step: torch.compile(step, fullgraph=True, backend="aot_eager"))
worst = max((a - b).abs().max().item() for a, b in zip(eager, compiled, strict=True))
breaks, graphs = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
print(json.dumps([worst, breaks, graphs]))
"""


def test_rate_and_step_compile_as_one_graph():
    worst, breaks, graphs = json.loads(run_forked(COMPILED).splitlines()[-1])
    assert worst < 1e-12
    assert breaks == 0
    assert graphs == 2  # the first makes the velocities
