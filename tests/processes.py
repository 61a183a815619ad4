"""The cases of the distributed tests, run by two processes, and by one on the whole batch.

    python tests/processes.py RANK FOLDER

Each case takes this process's share of a global batch. Losses and gradients are averaged over the
processes and saved in the folder. The first process also runs alone, before it meets the other.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel

from flatnce import DCL, DHEL, EssController, FlatNCE, InfoNCE, KeyQueue, Monitor, SigLIP
from flatnce import LearnedTemperature as Learned
from flatnce import functional as F
from flatnce.core import distributed, faults
from flatnce.core.objectives.base import Objective
from flatnce.functional import Contrast
from flatnce.integrations.lightly import FlatNCELoss
from flatnce.integrations.recorder import Recorder
from forked import Forked
from layouts import random
from once import once

TIMEOUT = timedelta(seconds=200)
IMAGES, WIDTH = 6, 4  # of the whole batch
TEMPERATURE, STEPS = 0.3, 5


class Share:
    """The part of a global tensor that is this process's."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __call__(self, everything: Tensor) -> Tensor:
        return everything.chunk(self.world)[self.rank]

    def mean(self, local: Tensor) -> Tensor:
        """Over the processes."""
        total = local.detach().clone()
        if self.world > 1:
            dist.all_reduce(total)
        return total / self.world


def encoder() -> nn.Linear:
    found = nn.Linear(5, WIDTH).double()
    with torch.no_grad():
        found.weight.copy_(random(WIDTH, 5, seed=0))
        found.bias.copy_(random(WIDTH, seed=1))
    return found


def view(number: int, images: int = IMAGES, seed: int = 0) -> Tensor:
    """One view of every image."""
    return random(images, 5, seed=10 + seed) + 0.5 * random(images, 5, seed=20 + number + seed)


IDS = torch.tensor([3, 1, 4, 1, 5, 9])  # one id on both processes
LABELS = torch.tensor([0, 0, 1, 2, 0, 3])  # two rows of the first half have a positive, one of
# the second: of the others each has none.
MASK = torch.zeros(IMAGES, IMAGES, dtype=torch.bool)
MASK[0, 4] = MASK[5, 1] = MASK[2, 3] = MASK[4, 5] = True
HARD, OWN = random(4, 5, seed=30), random(IMAGES, 2, 5, seed=31)


# One loss.


def several_views(*views: Tensor, **options: Any) -> Any:
    return F.multi_view(views, **options)


# The function, how many views it takes, and its options, of which every process gets its share.
LAYOUTS: dict[str, tuple[Callable[..., Any], int, dict[str, Any]]] = {
    "two views": (F.two_view, 2, {}),
    "two views, mask": (F.two_view, 2, {"false_negatives": MASK, "negatives": HARD}),
    "two views, own negatives": (F.two_view, 2, {"negatives": OWN}),
    "two towers": (F.two_tower, 2, {}),
    "two towers, left": (F.two_tower, 2, {"directions": "left"}),
    "two towers, mask": (F.two_tower, 2, {"ids": IDS, "false_negatives": MASK}),
    "three views, each": (several_views, 3, {"form": "each"}),
    "three views, out": (several_views, 3, {"form": "out"}),
    "three views, in": (several_views, 3, {"form": "in", "ids": IDS, "false_negatives": MASK}),
    "labels, out": (F.labelled, 1, {"labels": LABELS, "form": "out"}),
    "labels, in": (F.labelled, 1, {"labels": LABELS, "form": "in", "negatives": HARD}),
    "one image each": (F.two_view, 2, {}),  # all its negatives are on the other process
}
READERS: dict[str, Callable[[Contrast], Tensor]] = {"flatnce": F.flatnce, "infonce": F.infonce}
KERNELS = ("dense", "chunked")


def one_loss(share: Share, layout: str, reader: str, kernel: str) -> dict[str, Tensor]:
    """The value and the encoder's gradient, averaged over the processes."""
    model = encoder()
    make, count, given = LAYOUTS[layout]
    images = 2 if layout == "one image each" else IMAGES
    views = [model(share(view(number, images))) for number in range(1, count + 1)]
    options = {name: v if isinstance(v, str) else share(v) for name, v in given.items()}
    if "negatives" in options:
        options["negatives"] = model(options["negatives"])
    pairs = make(*views, gather=True, **options)
    loss = READERS[reader](F.contrast_of(pairs, TEMPERATURE, kernel=kernel))
    loss.backward()
    return {
        "loss": share.mean(loss),
        "weight": share.mean(model.weight.grad),
        "bias": share.mean(model.bias.grad),
    }


# Training.


def in_parallel(model: nn.Module, share: Share) -> nn.Module:
    return DistributedDataParallel(model) if share.world > 1 else model


def queue(encode_width: int = WIDTH) -> KeyQueue:
    found = KeyQueue(9, encode_width).double()  # a batch of 6 does not divide it
    found.enqueue(random(7, encode_width, seed=40), torch.arange(7))
    return found


class Pairwise(Objective):
    """A pairwise sigmoid with a learned scale and bias: a statistic and parameters of its own."""

    def __init__(self, temperature=1.0, **options) -> None:
        super().__init__(temperature, **options)
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))

    def statistic(self, scores, *, positive, scale, bias):
        logits = scale * scores + bias
        return softplus(-logits if positive else logits)

    def loss_from(self, contrast):
        return contrast.reduce(contrast.statistic)


OBJECTIVES: dict[str, Callable[[], nn.Module]] = {
    "queue": lambda: FlatNCE(queue=queue(), in_batch=False, gather=True),
    "queue and batch": lambda: FlatNCE(queue=queue(), in_batch=True, gather=True),
    "controlled": lambda: FlatNCE(temperature=EssController(0.4, rate=0.2), gather=True),
    "controlled apart": lambda: InfoNCE(temperature=EssController(0.4, rate=0.2)),
    "dhel": lambda: DHEL(0.3, gather=True),
    "siglip": lambda: SigLIP(0.3, bias=-2.0, gather=True).double(),
    "siglip, two views": lambda: SigLIP(0.3, layout="two_view", gather=True).double(),
    "learned": lambda: FlatNCE(temperature=Learned(0.2).double(), layout="two_tower", gather=True),
    "own statistic": lambda: Pairwise(layout="two_tower", gather=True),
}


def train(share: Share, objective: str) -> dict[str, Any]:
    """Gradient descent under DistributedDataParallel; the losses, and all that was trained."""
    model, loss_fn, monitor = encoder(), OBJECTIVES[objective](), Monitor()
    parallel, losses, betas = in_parallel(model, share), [], []
    for step in range(STEPS):
        x = torch.cat([share(view(number, seed=100 * step)) for number in (1, 2)])
        z1, z2 = parallel(x).chunk(2)
        ids = share(torch.arange(6) + 3 * step) if loss_fn.queue is not None else None
        loss = loss_fn(z1, z2, ids=ids)
        monitor.update(loss_fn.last)
        loss.backward()
        betas.append(loss_fn.last.temperature)
        with torch.no_grad():
            # Gradients are already the mean over processes.
            for parameter in (*model.parameters(), *loss_fn.parameters()):
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        losses.append(share.mean(loss))
    return {
        "losses": torch.stack(losses),
        "temperatures": torch.stack(betas),
        "monitor": monitor.compute(),
        **{f"encoder.{name}": value for name, value in model.state_dict().items()},
        **{f"loss.{name}": value for name, value in loss_fn.state_dict().items()},
    }


# One temperature for all processes.


def noisy(rank: int, step: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Two views whose noise depends on the process."""
    z, noise = random(2, rows, 6, seed=10 * step + rank)
    return z.clone().requires_grad_(), z + (0.2 + rank) * noise


TEMPERATURES: dict[str, Callable[[], Objective]] = {
    "learned": lambda: FlatNCE(Learned(0.2).double()),
    "learned, single row": lambda: FlatNCELoss(Learned(0.2).double()),
    "controlled, single row": lambda: FlatNCELoss(EssController(0.4, rate=0.2)),
}


def temperatures(share: Share, name: str) -> Tensor:
    """The temperature after every step, and the gradients of a learned one."""
    loss_fn, found = TEMPERATURES[name](), []
    parameters = list(loss_fn.parameters())
    for step in range(4):
        alone = "single row" in name and step == 3 and share.rank == 1
        loss_fn(*noisy(share.rank, step, 1 if alone else 5)).backward()
        for parameter in parameters:
            found.append(parameter.grad.clone())
            parameter.data -= 0.5 * parameter.grad
            parameter.grad = None
        found.append(torch.as_tensor(loss_fn.temperature).detach())
    return torch.stack(found)


class Undefined(torch.autograd.Function):
    """The identity without a gradient."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


def undefined_gradient(share: Share) -> Tensor:
    """A mean of gradients of which the second process has none."""
    parameter = torch.ones((), requires_grad=True)
    shared = distributed.with_mean_gradient(parameter)
    (shared if share.rank == 0 else Undefined.apply(shared)).backward()
    return parameter.grad


# Monitor.


def potentials_apart(share: Share) -> float:
    """Uniformity: each process looks at its own samples, and the potentials are averaged."""
    monitor, loss_fn = Monitor(), FlatNCE(gather=True)
    loss_fn(encoder()(share(view(1))).detach(), encoder()(share(view(2))).detach())
    monitor.update(loss_fn.last)
    return monitor.compute()["uniformity"]


def ess_apart(share: Share) -> float:
    """The ESS: the moments of each process are in its own unit."""
    monitor, loss_fn = Monitor(), FlatNCE(gather=True)
    loss_fn(encoder()(share(view(1))).detach(), encoder()(share(view(2))).detach())
    monitor.update(loss_fn.last)
    return monitor.compute()["ess"]


def unequal_steps(share: Share) -> float:
    """The first process takes two steps, the second one; alone, all three."""
    monitor, loss_fn = Monitor(rows=0), FlatNCE()
    mine = {0: (0, 1), 1: (2,)}[share.rank] if share.world > 1 else (0, 1, 2)
    for step in mine:
        loss_fn(view(1, seed=step), view(2, seed=step))
        monitor.update(loss_fn.last)
    return monitor.compute()["loss"]


def steps_elsewhere(share: Share) -> list[dict[str, float]]:
    """Only the first process takes a step; what do a monitor and a recorder read here?"""
    monitor, loss_fn, recorder = Monitor(), FlatNCE(), Recorder()
    recorder.watch(loss_fn)
    if share.rank == 0:
        loss_fn(view(1), view(2))
        monitor.update(loss_fn.last)
        recorder.take()
    found = monitor.compute(step=1)
    del found["steps"]  # of this process
    read = recorder.read(1), recorder.read(2)
    return [found, *({k: v for k, v in one.items() if k != "flatnce/verdict"} for one in read)]


def fault_elsewhere(share: Share) -> str:
    """Only the last process meets a NaN; what does reading the monitor say here?"""
    monitor, loss_fn = Monitor(), FlatNCE()
    z1, z2 = view(1), view(2)
    if share.rank == share.world - 1:
        z1[0] = torch.nan
    # As on an accelerator: bad values are flagged, not raised.
    with patch.object(faults, "can_raise_now", lambda tensor: False):
        loss_fn(z1, z2)
        monitor.update(loss_fn.last)
    return error_of(monitor.compute)


# Refusals.


def error_of(call: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing was refused"


UNEVEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "two views": lambda z1, z2: F.two_view(z1, z2, gather=True),
    "two towers": lambda z1, z2: F.two_tower(z1, z2, gather=True),
    "negatives": lambda z1, z2: F.two_tower(z1[:2], z2[:2], negatives=z1, gather=True),
    "labels": lambda z1, z2: F.labelled(z1, torch.arange(len(z1)) % 2, gather=True),
    "queue": lambda z1, z2: F.with_queue(z1, z2, queue(5), in_batch=True, gather=True),
    "enqueue": lambda z1, z2: queue(5).enqueue(z1, gather=True),
    "objective": lambda z1, z2: FlatNCE(gather=True)(z1, z2),
}


def uneven(share: Share, layout: str) -> str:
    """Four images on the first process, three on the second."""
    size = 4 - share.rank
    return error_of(lambda: UNEVEN[layout](view(1)[:size], view(2)[:size]))


def second_derivative() -> str:
    """Of a loss whose keys are gathered, and of a learned scale: each lacks the other process."""
    z1, z2 = (view(number).requires_grad_() for number in (1, 2))
    said = []
    for loss_fn in (DCL(gather=True, kernel="dense"), SigLIP()):
        wanted = (z1, *loss_fn.parameters())[-1]
        (gradient,) = torch.autograd.grad(loss_fn(z1, z2), wanted, create_graph=True)
        said.append(error_of(gradient.square().sum().backward, RuntimeError))
    return "; ".join(said)


# All of it.


def run(share: Share) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"{layout}; {reader}; {kernel}": one_loss(share, layout, reader, kernel)
        for layout in LAYOUTS
        for reader in READERS
        for kernel in KERNELS
    }
    found |= {objective: train(share, objective) for objective in OBJECTIVES}
    found |= {"potentials apart": potentials_apart(share), "ess apart": ess_apart(share)}
    found["steps"] = unequal_steps(share)
    found["steps elsewhere"] = steps_elsewhere(share)
    found["fault elsewhere"] = fault_elsewhere(share)
    if share.world > 1:
        found |= {f"temperature {name}": temperatures(share, name) for name in TEMPERATURES}
        found["undefined gradient"] = undefined_gradient(share)
        if share.rank == 0:  # without gradient a learned temperature is not collective
            with torch.no_grad():
                found["by itself"] = TEMPERATURES["learned"]()(*noisy(0, 0))
        found |= {f"uneven {layout}": uneven(share, layout) for layout in UNEVEN}
        found["second derivative"] = second_derivative()
        # The refusals left the processes in step: the next collective still works.
        found["after"] = one_loss(share, "two views", "flatnce", "dense")
    return found


def main(run: Callable[[Share], dict[str, Any]], rank: str, folder: str) -> None:
    """Run the cases as one of two processes; the first also runs them alone."""
    torch.set_num_threads(1)
    if rank == "0":
        torch.save(run(Share(0, 1)), Path(folder, "alone.pt"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", meeting, TIMEOUT, world_size=2, rank=int(rank))
    torch.save(run(Share(int(rank), 2)), Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def results_of(script: str, factory: Any) -> tuple[dict, dict, dict]:
    """Results of the first and the second of two processes, and of one process alone."""

    def run_both() -> str:
        folder = factory.mktemp("processes")
        code = Path(script).read_text(encoding="utf-8")
        running = [Forked(rank, folder, code=code) for rank in (0, 1)]
        try:
            done = [process.wait(timeout=240) for process in running]
        finally:  # if one fails or hangs, none is left behind
            for process in running:
                process.kill()
        failed = [one.stdout + one.stderr for one in done if one.returncode]
        assert not failed, "\n\n".join(failed)
        return str(folder)

    folder = Path(once(factory, Path(script).stem, run_both))
    names = ("0.pt", "1.pt", "alone.pt")
    first, second, alone = (torch.load(folder / name, weights_only=True) for name in names)
    return first, second, alone


if __name__ == "__main__":
    main(run, *sys.argv[1:])
