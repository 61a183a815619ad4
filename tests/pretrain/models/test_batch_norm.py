"""Batch norm over two gloo processes equals batch norm over the whole batch."""

import pytest
import torch
from torch import nn

from flatnce.pretrain.models import (
    GatheredBatchNorm,
    backbone,
    sync_batch_norm,
)
from forked import Forked

WORKER = """
import sys, torch, torch.distributed as dist
from torch import nn
from flatnce.pretrain.models import sync_batch_norm
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4),
                    nn.BatchNorm1d(4, affine=False)).double()
sync_batch_norm(net, "cpu")
x = torch.randn(6, 2, 4, 4, dtype=torch.float64)
mine = x.chunk(2)[rank].clone().requires_grad_()
for _ in range(2):
    y = net(mine)
weight = torch.arange(24, dtype=torch.float64).view(6, 4).chunk(2)[rank]
(y * weight).sum().backward()
gradients = [p.grad for p in net.parameters()]
for gradient in gradients:
    dist.all_reduce(gradient)
torch.save({"y": y, "x": mine.grad, "gradients": gradients, "state": net.state_dict()},
           f"{folder}/{rank}.pt")
dist.barrier()
"""


def test_two_processes_normalise_as_one(tmp_path):
    running = [Forked(rank, tmp_path, code=WORKER) for rank in range(2)]
    done = [process.wait(timeout=120) for process in running]
    assert [one.returncode for one in done] == [0, 0], done
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    torch.manual_seed(0)
    first = (nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten())
    net = nn.Sequential(*first, nn.Linear(12, 4), nn.BatchNorm1d(4, affine=False)).double()
    x = torch.randn(6, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        y = net(x)
    (y * torch.arange(24, dtype=torch.float64).view(6, 4)).sum().backward()

    exact = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(torch.cat([part["y"] for part in parts]), y, **exact)
    torch.testing.assert_close(torch.cat([part["x"] for part in parts]), x.grad, **exact)
    gradients = [parameter.grad for parameter in net.parameters()]
    for part in parts:
        torch.testing.assert_close(part["gradients"], gradients, **exact)
        torch.testing.assert_close(part["state"], net.state_dict(), **exact)


def test_alone_it_is_plain_batch_norm():
    torch.manual_seed(0)
    plain, x = nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5)
    gathered = sync_batch_norm(nn.Sequential(nn.BatchNorm2d(3)), "cpu")
    assert isinstance(gathered[0], GatheredBatchNorm)
    torch.testing.assert_close(gathered(x), plain(x))
    torch.testing.assert_close(gathered.state_dict(), nn.Sequential(plain).state_dict())


def test_every_norm_of_a_resnet_is_found_and_keeps_its_weights():
    net = backbone("resnet18", stem="small")
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    sync_batch_norm(net, "cpu")
    assert not any(type(part) is nn.BatchNorm2d for part in net.modules())
    assert sum(isinstance(part, GatheredBatchNorm) for part in net.modules()) == 20
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_a_norm_that_is_not_known_is_refused():
    class Strange(nn.BatchNorm2d):
        pass

    for net in (nn.Sequential(Strange(3)), backbone("mobilenetv3_small_050")):
        with pytest.raises(ValueError, match="is a batch norm that cannot be synchronised"):
            sync_batch_norm(net, "cpu")
