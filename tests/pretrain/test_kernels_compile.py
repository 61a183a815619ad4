"""The kernels of the fused ResNet and of the views compile for a CUDA device that is not here.

    PYTHONPATH=tests python tests/pretrain/test_kernels_compile.py one

prints one JSON object: bytes of shared memory by kernel and by the types of its arguments.
"""

import sys

import pytest
import torch

pytest.importorskip("triton", reason="no Triton on this platform")
pytest.importorskip("torchvision", reason="the ResNets are torchvision's")
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from flatnce.pretrain import fused_resnet
from flatnce.pretrain.data.augmentation import fused
from flatnce.pretrain.data.views import Views
from flatnce.pretrain.models import Encoder, head
from launches import print_shared_memory, shared_memory

SHARED_MEMORY = 232_448  # bytes that a program may use at compute capability 9.0

KERNELS = {"measure", "normalise", "normalise_whole", "reduce", "differentiate"}
KERNELS |= {"differentiate_whole", "convolve", "convolve_gradient", "views_kernel"}


def train_step(block: type, dtype: torch.dtype) -> None:
    """A forward and a backward pass; activations become smaller from stage to stage."""
    net = ResNet(block, [2, 1, 1, 1])
    net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = net.fc = torch.nn.Identity()
    width = net.width = 512 * block.expansion
    step = fused_resnet.fuse_resnet(Encoder(net, head(width, out=8, hidden=32)))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        h, z = step(torch.zeros(4, 3, 32, 32))
    (h.sum() + z.sum()).backward()


def render(size: int, channels: int, dtype: torch.dtype, **options) -> None:
    images = torch.zeros(2, channels, size, size, dtype=torch.uint8)
    draw = Views(size, seed=1, **options)
    fused.render(draw, images, torch.arange(2), 0, 2, dtype, channels_last=channels == 3)


def launch(which: str) -> None:
    """Every kernel once ("one"), or for several types and sizes ("all")."""
    fused_resnet._interpreted = lambda: True
    everything = {"blur": 0.5, "solarize": 0.3, "cutout": 0.5, "noise": 0.1}
    train_step(BasicBlock, torch.bfloat16)
    render(32, 3, torch.bfloat16, **everything)
    if which == "all":
        train_step(Bottleneck, torch.bfloat16)
        train_step(BasicBlock, torch.float32)
        render(64, 3, torch.float32, **everything)
        render(28, 1, torch.float32)


@pytest.mark.parametrize("which", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_every_kernel_compiles_and_fits(which):
    taken = shared_memory(__file__, which)
    assert taken.keys() == KERNELS
    assert max(taken.values()) <= SHARED_MEMORY, taken


if __name__ == "__main__":
    print_shared_memory(lambda: launch(sys.argv[1]), 90)
