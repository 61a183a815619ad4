"""Integrations over two gloo processes: what each runs; alone, the same on the whole batch.

    python tests/integration_processes.py RANK FOLDER

As processes.py, whose encoder, views and shares it uses: losses and gradients are averaged over
the processes, as DistributedDataParallel does. A library that is not installed is left out.
The first process also runs alone, before it meets the other.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.integrations.lightly import FlatNCELoss
from flatnce.integrations.open_clip import FlatClipLoss
from forked import Forked
from once import once
from processes import LABELS, TEMPERATURE, TIMEOUT, Share, encoder, view

Losses = Callable[[Tensor, Tensor], Tensor]
FLAGS = [(local, grad) for local in (False, True) for grad in (False, True)]
BANK = (12, 4)
STEPS = 3


def gradients(share: Share, loss_fn: Losses) -> dict[str, Tensor]:
    """One step: this process's loss, the mean loss, the mean gradient."""
    model = encoder()
    loss = loss_fn(*(model(share(view(number))) for number in (1, 2)))
    loss.backward()
    return {
        "here": loss.detach(),
        "loss": share.mean(loss),
        "weight": share.mean(model.weight.grad),
        "bias": share.mean(model.bias.grad),
    }


def lightly_bank(share: Share) -> dict[str, Tensor]:
    """Steps with a bank that takes in the keys of every process."""
    torch.manual_seed(0)
    criterion = FlatNCELoss(TEMPERATURE, BANK, gather_distributed=True).double()
    model, losses = encoder(), []
    for step in range(STEPS):
        query, key = (model(share(view(number, seed=100 * step))) for number in (1, 2))
        loss = criterion(query, key.detach())
        loss.backward()
        losses.append(share.mean(loss))
    return {
        "losses": torch.stack(losses),
        "weight": share.mean(model.weight.grad),
        "bank": criterion.queue.keys,
    }


def open_clip(share: Share, flags: tuple[bool, bool]) -> dict[str, Tensor]:
    """With a scale to be learned."""
    local, grad = flags
    loss_fn = FlatClipLoss(
        local_loss=local, gather_with_grad=grad, rank=share.rank, world_size=share.world
    )
    log_scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    unit = lambda z: normalize(z, dim=1)
    found = gradients(share, lambda z1, z2: loss_fn(unit(z1), unit(z2), log_scale.exp()))
    return found | {"scale": share.mean(log_scale.grad)}


def metric_learning(share: Share, memory: bool) -> dict[str, Tensor]:
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    from flatnce.integrations import metric_learning as ours

    loss_fn: Any = ours.FlatNCELoss(TEMPERATURE)
    if memory:
        loss_fn = ours.CrossBatchMemory(loss_fn, 4, memory_size=24)
    loss_fn = DistributedLossWrapper(loss_fn) if share.world > 1 else loss_fn
    labels = share(LABELS).repeat(2)
    return gradients(share, lambda z1, z2: loss_fn(torch.cat([z1, z2]), labels))


def run(share: Share) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lightly": gradients(share, FlatNCELoss(TEMPERATURE, gather_distributed=True)),
        "lightly, bank": lightly_bank(share),
    }
    found |= {f"open_clip {flags}": open_clip(share, flags) for flags in FLAGS}
    if find_spec("pytorch_metric_learning"):
        for name, memory in (("metric learning", False), ("metric learning, memory", True)):
            found[name] = metric_learning(share, memory)
    return found


def run_all(folder: Path) -> str:
    """Both at once; if one process fails or hangs, none is left behind."""
    folder.mkdir()
    code = Path(__file__).read_text(encoding="utf-8")
    running = [Forked(rank, folder, code=code) for rank in (0, 1)]
    try:
        done = [process.wait(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    failed = [one.stdout + one.stderr for one in done if one.returncode]
    assert not failed, "\n\n".join(failed)
    return str(folder)


def results_of(factory: Any) -> tuple[dict, dict, dict]:
    """What the first and the second of two processes found, and what one found alone."""
    folder = factory.mktemp("integrations") / "job"
    folder = Path(once(factory, "integrations", lambda: run_all(folder)))
    names = ("0.pt", "1.pt", "alone.pt")
    first, second, alone = (torch.load(folder / name, weights_only=True) for name in names)
    return first, second, alone


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if rank == 0:
        torch.save(run(Share(0, 1)), folder / "alone.pt")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=TIMEOUT)
    torch.save(run(Share(rank, 2)), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
