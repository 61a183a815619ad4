"""Run every kernel of the package once, at sizes that fill no tile, for NVIDIA's memory checker.

    compute-sanitizer --tool memcheck python benchmarks/kernels/sanitize.py

Expected: "ERROR SUMMARY: 0 errors". About three minutes on one H200.
"""

from itertools import product

import torch
from torch.nn.functional import normalize

from flatnce.core.kernels.fused import launch as pulling
from flatnce.core.kernels.fused import paired_statistics, row_statistics
from flatnce.core.selection import EXCLUDED, Selection
from flatnce.pretrain.data import Views
from flatnce.pretrain.fused_resnet import fuse_resnet
from flatnce.pretrain.models import Encoder, backbone, head

CUDA = torch.device("cuda", 0)


def paired(dtype):
    """Two views, one direction and both, with and without repeated samples."""
    beta = torch.tensor(10.0, device=CUDA)
    for layout in ("views", "left", "both"):
        for n, width in ((37, 100), (70, 768)):
            z = [torch.randn(n, width, device=CUDA, dtype=dtype).requires_grad_() for _ in "ab"]
            ids = torch.randint(9, (n,), device=CUDA) if width == 100 else None
            found = paired_statistics(*z, beta, layout=layout, operands=dtype, ids=ids)
            torch.autograd.grad((found.lse - found.positive).sum(), z)
        for width in (64, 512):  # used as they are, without a copy
            z = [torch.randn(37, width, device=CUDA, dtype=dtype) / 8 for _ in "ab"]
            z = [rows.requires_grad_() for rows in z]
            found = paired_statistics(*z, beta, layout=layout, operands=dtype, normalize=False)
            torch.autograd.grad((found.lse - found.positive).sum(), z)


def many(dtype):
    """More than a thousand rows, which have tiles of their own, narrow and wide."""
    beta = torch.tensor(10.0, device=CUDA)
    for layout, width in product(("views", "left", "both"), (128, 256, 512, 768)):
        z = [torch.randn(1_100, width, device=CUDA, dtype=dtype).requires_grad_() for _ in "ab"]
        found = paired_statistics(*z, beta, layout=layout, operands=dtype)
        torch.autograd.grad((found.lse - found.positive).sum(), z)


def selected(dtype, d):
    """Rows of any width against keys by group, by mask and by sample."""
    beta = torch.tensor(10.0, device=CUDA)
    a, k = (normalize(torch.randn(n, d, device=CUDA), dim=1).requires_grad_() for n in (70, 150))
    g, h = (torch.randint(30, (n,), device=CUDA) for n in (70, 150))
    h[:9] = EXCLUDED
    mask = torch.rand(70, 150, device=CUDA) < 0.3
    own, others = torch.arange(70, device=CUDA), torch.arange(150, device=CUDA)
    for selection in (
        Selection(g, h),
        Selection(g, h, mask),
        Selection(g, h, None, own, others, True),
    ):
        found = row_statistics(a, k, beta, selection, ("mean", "expected"), operands=dtype)
        torch.autograd.grad((found.lse + found.lse2 + found.mean).clamp_min(-100).sum(), (a, k))


def views():
    """Views of byte images, plain and with every option."""
    images = torch.randint(256, (9, 3, 32, 32), dtype=torch.uint8, device=CUDA)
    indices, epoch = torch.arange(9, device=CUDA), torch.zeros((), dtype=torch.long, device=CUDA)
    everything = Views(33, seed=0, blur=1.0, cutout=1.0, noise=0.1, solarize=0.5)
    everything(images, indices, epoch)
    return Views(32, seed=0)(images, indices, epoch, dtype=torch.bfloat16, channels_last=True)


def encoder(batch):
    """Both passes of a ResNet-18 by fused kernels."""
    net = backbone("resnet18", stem="small")
    whole = Encoder(net, head(net.width)).cuda().to(memory_format=torch.channels_last)
    quick = fuse_resnet(whole)
    assert quick is not None
    with torch.autocast("cuda", torch.bfloat16):
        _, embeddings = quick(batch.flatten(0, 1))
    embeddings.float().square().sum().backward()


def main():
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        pulling.BLOCK = 800  # wide rows in several blocks
        many(dtype)
        pulling.BLOCK = 45
        paired(dtype)
        for d in (24, 300):
            selected(dtype, d)
        torch.cuda.synchronize()
        print(f"statistics in {dtype}", flush=True)
    encoder(views())
    torch.cuda.synchronize()
    print("views and encoder", flush=True)


if __name__ == "__main__":
    main()
