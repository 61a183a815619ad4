"""The fused pass on a GPU: recorded, overlapped, repeatable."""

import copy

import pytest
import torch

from flatnce.pretrain.fused_resnet import fuse_resnet
from flatnce.pretrain.models import Encoder, backbone, head

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def encoder() -> Encoder:
    torch.manual_seed(0)
    net = backbone("resnet18", stem="small")
    return Encoder(net, head(net.width)).cuda().to(memory_format=torch.channels_last)


def images(count: int = 32) -> torch.Tensor:
    torch.manual_seed(1)
    x = torch.randn(count, 3, 32, 32, device="cuda")
    return x.contiguous(memory_format=torch.channels_last)


def gradients(net, model, x, dtype):
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        h, z = net(x)
    (z.double().sin().mean() + h.double().square().mean()).backward()
    return [p.grad for p in model.parameters()]


def off(found, truth):
    total = sum((a.double() - b).square().sum() for a, b in zip(found, truth, strict=True))
    return float((total / sum(b.square().sum() for b in truth)).sqrt())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [32, 200])
def test_gradients_are_as_exact_as_the_encoders(dtype, count):
    start, x = encoder(), images(count)
    plain, ours, true = (copy.deepcopy(start) for _ in range(3))
    truth = gradients(true.double(), true, x.double(), torch.float32)
    theirs = off(gradients(plain, plain, x, dtype), truth)
    mine = off(gradients(fuse_resnet(ours), ours, x, dtype), truth)
    assert mine < 1.2 * theirs + 1e-6
    for name, kept in ours.named_buffers():
        torch.testing.assert_close(
            kept.double(), true.get_buffer(name).double(), rtol=2e-2, atol=2e-3
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_twice_bit_for_bit_with_either_number_of_streams(dtype):
    start, x = encoder(), images()
    found = []
    for overlap in (True, True, False):
        model = copy.deepcopy(start)
        quick = fuse_resnet(model)
        quick.overlap = overlap
        found.append(gradients(quick, model, x, dtype))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_recorded_step_repeats_the_eager_one():
    start, x = encoder(), images()
    eager, model = copy.deepcopy(start), copy.deepcopy(start)
    quick, stream = fuse_resnet(model), torch.cuda.Stream()
    state = copy.deepcopy(model.state_dict())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            model.zero_grad()
            gradients(quick, model, x, torch.bfloat16)
    torch.cuda.synchronize()
    model.load_state_dict(state)
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = gradients(quick, model, x, torch.bfloat16)
    other = fuse_resnet(eager)
    for _ in range(3):
        graph.replay()
        eager.zero_grad()
        expected = gradients(other, eager, x, torch.bfloat16)
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(recorded, expected, strict=True))
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        assert torch.equal(a, b)


def test_memory_does_not_grow_from_step_to_step():
    model, x = encoder(), images()
    quick, seen = fuse_resnet(model), []
    for _ in range(6):
        model.zero_grad()
        gradients(quick, model, x, torch.bfloat16)
        torch.cuda.synchronize()
        seen.append(torch.cuda.memory_allocated())
    assert len(set(seen[2:])) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device_than_the_current_one_computes_the_same():
    start, found = encoder(), []
    for device in ("cuda:0", "cuda:1"):
        model = copy.deepcopy(start).to(device)
        found.append(gradients(fuse_resnet(model), model, images().to(device), torch.bfloat16))
    assert torch.cuda.current_device() == 0
    assert all(torch.equal(a, b.to(a.device)) for a, b in zip(*found, strict=True))


def test_a_pass_after_one_that_failed_midway_is_right(monkeypatch):
    from flatnce.pretrain.fused_resnet import passes

    start, x = encoder(), images()
    model, other = copy.deepcopy(start), copy.deepcopy(start)
    quick, real, left = fuse_resnet(model), passes.differentiated, [9]

    def failing(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            raise ValueError("midway")
        return real(*arguments, **options)

    monkeypatch.setattr(passes, "differentiated", failing)
    with pytest.raises(ValueError, match="midway"):
        gradients(quick, model, x, torch.bfloat16)
    model.load_state_dict(start.state_dict())
    found = gradients(quick, model, x, torch.bfloat16)
    expected = gradients(fuse_resnet(other), other, x, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
