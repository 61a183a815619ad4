"""On a GPU: no host read in an optimizer's step, and a CUDA graph of it equals the eager step."""

import pytest
import torch
from torch import nn

from flatnce.core.control import Cosine
from flatnce.pretrain.models import Encoder, MomentumEncoder, backbone, head
from flatnce.pretrain.training.optim import WarmupCosine, build_optimizer, load_optimizer, set_rate
from gpu import host_reads_forbidden

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

every_optimizer = pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])


class Training:
    """All that a step writes: model, momentum encoder, optimizer, rate and its counter."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        # Doubles, since convolutions of floats differ from run to run by more than a step's error.
        self.model = Encoder(backbone("small", channels=1), head(128, out=8)).cuda().double()
        self.slow = MomentumEncoder(self.model, Cosine(0.9, 1.0, steps=20))
        rate = torch.tensor(0.0, device="cuda")
        self.optimizer = build_optimizer(self.model, name, lr=rate, weight_decay=0.01)
        self.schedule = WarmupCosine(0.05, 20, warmup=3)
        self.counter = torch.zeros((), dtype=torch.long, device="cuda")
        self.x = torch.randn(16, 1, 8, 8, device="cuda", dtype=torch.float64)

    def step(self) -> None:
        set_rate(self.optimizer, self.schedule.at(self.counter))
        self.optimizer.zero_grad(set_to_none=False)
        self.model(self.x)[1].square().mean().backward()
        self.optimizer.step()
        self.slow.update()
        self.counter.add_(1)

    def state(self) -> list[torch.Tensor]:
        everything = nn.ModuleList([self.model, self.slow])
        return [tensor.double() for tensor in everything.state_dict().values()]


@every_optimizer
def test_a_step_never_reads_the_device(name):
    training = Training(name)
    training.step()  # the first may allocate
    with host_reads_forbidden():
        training.step()


@every_optimizer
def test_a_captured_step_equals_the_eager_one(name):
    eager, captured = Training(name), Training(name)
    for _ in range(8):
        eager.step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            captured.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for _ in range(5):
        graph.replay()
    assert int(captured.counter) == 8
    for mine, theirs in zip(eager.state(), captured.state(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8)


@every_optimizer
def test_a_state_saved_on_the_cpu_goes_on_on_the_gpu(name):
    model = Encoder(backbone("small", channels=1), head(128, out=8))
    optimizer = build_optimizer(model, name, lr=0.1)
    model(torch.randn(4, 1, 8, 8))[1].square().mean().backward()
    optimizer.step()
    training = Training(name)
    load_optimizer(training.optimizer, optimizer.state_dict())
    assert all(group["lr"].is_cuda for group in training.optimizer.param_groups)
    training.step()
