"""An estimate of a run without running it: steps, negatives, the ceiling, memory and speed."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.own_code import is_own
from flatnce.pretrain.data import CATALOG, Batching, OwnSet, Resident, data_root, find
from flatnce.pretrain.data.own_set import AnySet
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import example_of, load_images, views_of
from flatnce.pretrain.training.learner import build_encoder, side_of
from flatnce.pretrain.training.state import (
    EAGER_STEPS,
    Training,
    check_ess,
    compute_dtype,
    rate_schedule,
)

__all__ = ["estimate_run", "measure_speeds"]


@dataclass(frozen=True)
class RunEstimate:
    """The size of a run; memory is that of one process."""

    here: bool  # whether its images are on this machine
    images: int
    size: int  # side of a view
    steps_per_epoch: int
    steps: int
    negatives: int  # per anchor, a full queue included
    ceiling: float  # log of the number of candidates: the limit of the batch's information
    rate: float  # peak learning rate, scaled to the batch
    parameters: int
    data_bytes: int  # images kept on the device
    model_bytes: int  # weights, gradients, optimizer and momentum encoder
    activation_bytes: int  # what the backward pass of one micro-batch keeps
    loss_bytes: int  # views, embeddings and scores

    @property
    def bytes(self) -> int:
        """Memory of one process, without that of torch and the driver."""
        return self.data_bytes + self.model_bytes + self.activation_bytes + self.loss_bytes


def estimate_run(config: TrainConfig, device: torch.device, world_size: int = 1) -> RunEstimate:
    """Estimate a run, and refuse what training would refuse; without workspaces of libraries."""
    here, images, shape, source = _images(config)
    example = example_of(config, shape, source)
    size = side_of(example.shape[1:])
    views_of(config, size, source)
    batch = config.run.batch_size
    Batching(images, batch, config.run.seed, world_size=world_size)
    check_ess(config)
    mine = batch // world_size
    micro = min(config.run.micro_batch or mine, mine)
    dtype = compute_dtype(config.run, device)
    parameters, activations = _trace(config, example, micro, dtype)
    queue = config.model.queue
    negatives = batch - 1 + queue if queue else OBJECTIVES[config.loss.objective].negatives(batch)
    # Weight, gradient, and what the optimizer and a momentum encoder keep.
    copies = 4 if config.optimizer.optimizer == "adamw" else 3
    copies += config.model.momentum_encoder is not None
    resident = config.data.data in CATALOG and find(config.data.data).resident
    resident = resident and not config.data.stream
    anchors, keys = (mine, batch + queue) if queue else (2 * mine, 2 * batch)
    views = mine * example.numel()
    per_epoch = images // batch
    return RunEstimate(
        here=here,
        images=images,
        size=size,
        steps_per_epoch=per_epoch,
        steps=per_epoch * config.run.epochs,
        negatives=negatives,
        ceiling=math.log1p(negatives),
        rate=rate_schedule(config, per_epoch).peak,
        parameters=parameters,
        data_bytes=images * math.prod(shape) if resident else 0,
        model_bytes=4 * parameters * copies + 4 * queue * config.model.head_out,
        activation_bytes=activations,
        # Scores of both directions and their gradient.
        loss_bytes=4 * (views + 3 * anchors * keys),
    )


def measure_speeds(
    config: TrainConfig, device: torch.device, world_size: int = 1
) -> dict[str, float]:
    """Images per second of the stages of a run over all processes, each alone; slowest first.

    Some batches of the actual images are decoded and one is copied to a GPU, unless the images
    are in memory; and a few steps are taken.
    """
    batch_size = config.run.batch_size // world_size
    if device.type != "cuda":  # a whole step may take minutes: use images of 2**17 pixels in all
        pixels = math.prod(example_of(config, *_images(config)[2:]).shape[2:])
        batch_size = max(2, min(batch_size, 2**17 // pixels))
    micro = min(config.run.micro_batch or batch_size, batch_size)
    # A small batch may not reach the ESS that is asked for.
    alone = config.override(batch_size=batch_size, micro_batch=micro, ess=None, ess_end=None)
    training = Training(alone, Path(), device)
    loader = training.images.loader
    batch, steps = next(loader.epoch(0)), EAGER_STEPS + 2 if device.type == "cuda" else 1

    def take_steps() -> None:
        for _ in range(steps):
            training.take_step(batch, 0)

    seconds = min(_timed(take_steps, device), _timed(take_steps, device))
    speeds = {"computing": world_size * steps * batch_size / seconds}
    if not isinstance(loader, Resident):
        if device.type == "cuda":
            pinned = batch.images.cpu().pin_memory()
            seconds = _timed(lambda: pinned.to(device, non_blocking=True), device)
            speeds["copying"] = batch_size / seconds
        batches, workers = loader.epoch(0), max(1, loader.workers)
        if workers < len(loader):
            deque(islice(batches, workers), maxlen=0)  # from then on every worker is at work
        sizes: list[int] = []
        some = (len(one.indices) for one in islice(batches, 3 * workers))
        seconds = _timed(lambda: sizes.extend(some), device)
        speeds["decoding"] = sum(sizes) / seconds
    return dict(sorted(speeds.items(), key=lambda stage: stage[1]))


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work, that on the device included."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def _images(config: TrainConfig) -> tuple[bool, int, tuple[int, ...], AnySet | None]:
    """Whether the images are here, how many, their shape; and those that are not catalogued."""
    data = config.data
    if data.data not in CATALOG:
        found = load_images(data)
        count = found.epoch_samples if isinstance(found, OwnSet) else len(found)
        return True, count, found.shape, found
    entry = find(data.data)
    entry.check_split(data.split)
    here = not entry.layouts or entry.installed_layout(data_root(data.root)) is not None
    side = data.decode_size or entry.size
    return here, entry.splits[data.split], (entry.channels, side, side), None


def _trace(
    config: TrainConfig, example: Tensor, micro: int, dtype: torch.dtype
) -> tuple[int, int]:
    """Parameters of the encoder, and bytes that a backward pass through it would keep."""
    saved: dict[int, tuple[Tensor, int]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = (tensor, storage.nbytes())  # kept alive, so that no id is reused
        return tensor

    views = 1 if config.model.momentum_encoder is not None else 2
    model = config.override(pretrained=False).model
    encoder = build_encoder(model, example).train()
    # Some networks read their tensors when they are built, so only the forward pass is fake.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        named = encoder.named_parameters()
        fake: dict[str, Tensor] = {name: mode.from_tensor(p) for name, p in named}
        weights = {tensor.untyped_storage()._cdata for tensor in fake.values()}
        images = torch.empty(views * micro, *example.shape[1:], dtype=example.dtype)
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        # A user's module may need real numbers; then its activations are not counted.
        faults = suppress(Exception) if is_own(model.backbone) else nullcontext()
        with faults, hooks, torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            torch.func.functional_call(encoder, fake, (images,))
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    return parameters, sum(size for place, (_, size) in saved.items() if place not in weights)
