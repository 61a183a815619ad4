"""The kernels of the fused ResNet and of the views compile for a CUDA device that is not here.

    python tests/pretrain/test_kernels_compile.py one

prints one JSON object: bytes of shared memory by kernel and by the types of its arguments.
Launches are recorded, not executed, so the arguments are those that the package passes.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton", reason="no Triton on this platform")
pytest.importorskip("torchvision", reason="the ResNets are torchvision's")
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import JITFunction
from triton.runtime.jit import create_function_from_signature

from flatnce.pretrain import fused_resnet
from flatnce.pretrain.data.augmentation import fused
from flatnce.pretrain.data.views import Views
from flatnce.pretrain.models import Encoder, head

CARD = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 232_448  # bytes that a program may use on it

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


def launches(which: str) -> dict[str, tuple]:
    """Arguments by kernel, types and switches; of those that differ only in sizes, the first."""
    backend, found = make_backend(CARD), {}

    def record(kernel, *arguments, grid, warmup, **named):
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, options = bind(*arguments, **named)
        packed = kernel._pack_args(backend, named, bound, specialization, options)
        _, signature, constants, _ = packed
        switches = [value for value in constants.values() if isinstance(value, bool)]
        name = f"{kernel.__name__} {list(signature.values())} {switches}"
        found.setdefault(name, (kernel, *packed))

    JITFunction.run = record
    fused_resnet._interpreted = lambda: True
    everything = {"blur": 0.5, "solarize": 0.3, "cutout": 0.5, "noise": 0.1}
    train_step(BasicBlock, torch.bfloat16)
    render(32, 3, torch.bfloat16, **everything)
    if which == "all":
        train_step(Bottleneck, torch.bfloat16)
        train_step(BasicBlock, torch.float32)
        render(64, 3, torch.float32, **everything)
        render(28, 1, torch.float32)
    return found


def compile_kernels(which: str) -> dict[str, int]:
    """Bytes of shared memory by launch."""
    found = {}
    for name, (kernel, options, signature, constants, attributes) in launches(which).items():
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=CARD, options=options.__dict__)
        found[name] = made.metadata.shared
    return found


@pytest.mark.parametrize("which", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_every_kernel_compiles_and_fits(which):
    """The interpreter accepts code that the compiler refuses, and has no limit of memory."""
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, which]
    ran = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert ran.returncode == 0, ran.stderr[-2000:]
    taken = json.loads(ran.stdout)
    assert {name.partition(" ")[0] for name in taken} == KERNELS
    assert max(taken.values()) <= SHARED_MEMORY, taken


if __name__ == "__main__":
    print(json.dumps(compile_kernels(sys.argv[1])))
