"""Everything of a run that lives in memory: built from a config, stepped, saved, restored."""

import gc
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from flatnce.core import distributed
from flatnce.core.diagnostics import Monitor
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain.data import Batch, Streaming
from flatnce.pretrain.fused_resnet import fuse_resnet
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.training.config import RunConfig, TrainConfig
from flatnce.pretrain.training.images import open_images
from flatnce.pretrain.training.learner import build_learner
from flatnce.pretrain.training.optim import (
    WarmupCosine,
    build_optimizer,
    load_optimizer,
    scaled_rate,
)
from flatnce.pretrain.training.saved import CHECKPOINTS
from flatnce.pretrain.training.step import CudaGraphStep, NonFiniteGuard, Step

__all__ = ["check_ess"]

OWN_RATE = 0.01
"""Relative learning rate of an objective's own scale and bias under SGD and LARS. At the encoder's
rate they run away in a few steps; AdamW, whose steps do not grow with the gradient, needs none."""

_forking: "WeakSet[Training]" = WeakSet()
"""Runs of this process whose images are read by worker processes."""


class Training:
    """A run in memory, at some step."""

    def __init__(self, config: TrainConfig, directory: Path, device: torch.device) -> None:
        self.config, self.directory, self.device = config, directory, device
        check_ess(config)
        self.images = open_images(config, device)
        if isinstance(self.images.loader, Streaming):
            _forking.add(self)
        self.steps_per_epoch = len(self.images.loader)
        self.steps = config.run.epochs * self.steps_per_epoch
        self.learner = build_learner(
            config.model,
            config.loss,
            channels=self.images.channels,
            size=self.images.size,
            steps=self.steps,
            seed=config.run.seed,
            gather=distributed.is_active(),
            device=device,
            dtype=compute_dtype(config.run, device),
        )
        self._wrap_encoder()
        if OBJECTIVES[config.loss.objective].learns_scale:
            _slow_down(self.learner.objective.parameters(), config.optimizer.optimizer)
        self.rate = rate_schedule(config, self.steps_per_epoch)
        peak = self.rate.peak
        self.optimizer = build_optimizer(
            self.learner,
            config.optimizer.optimizer,
            # A captured step reads the rate from the device.
            lr=torch.tensor(peak, device=device) if device.type == "cuda" else peak,
            weight_decay=config.optimizer.weight_decay,
            momentum=config.optimizer.momentum,
        )
        self.monitor = Monitor()
        self.writer = checkpoint.Writer()
        self.guard = NonFiniteGuard(self.learner, directory, device, self.writer)
        self.notes: list[str] = []  # messages that are logged once
        self._epoch = (torch.zeros((), dtype=torch.long, device=device), 0)
        self._take_step = self._build_step()
        self.step, self.seconds = 0, 0.0
        self.verdict = ""  # the last one logged
        self.watched: dict[str, Any] = {}
        # Dropout draws from this generator; each process has its own stream.
        torch.manual_seed(config.run.seed + 1_000_003 * distributed.rank())

    def _wrap_encoder(self) -> None:
        """Call the encoder through DistributedDataParallel, or through its fused version."""
        if distributed.is_active():
            # The batch norms see every process's rows, so their buffers agree without a copy.
            known = inspect.signature(DistributedDataParallel.__init__).parameters
            option = "forward_sync_buffers" if "forward_sync_buffers" in known else None
            without: dict[str, Any] = {option or "broadcast_buffers": False}
            self.learner.call_through(DistributedDataParallel(self.learner.encoder, **without))
        elif self.device.type == "cuda" and self.config.run.fast:
            fused = fuse_resnet(self.learner.encoder)
            if fused is not None:
                self.learner.call_through(fused)

    def _build_step(self) -> Step | CudaGraphStep:
        """The step, as a CUDA graph where that is possible."""
        run = self.config.run
        step = Step(
            self.learner,
            self.optimizer,
            self.images.views,
            self.rate,
            self.monitor,
            self.guard,
            run.micro_batch,
            compute_dtype(run, self.device),
        )
        if self.device.type != "cuda" or not run.fast:
            return step
        caching = run.micro_batch is not None and run.micro_batch < run.batch_size
        if distributed.is_active() or caching:
            what = "several processes" if distributed.is_active() else "micro_batch"
            self.notes.append(f"with {what} a step is not captured as a CUDA graph")
            return step
        return CudaGraphStep(step, self.notes.append)

    def take_step(self, batch: Batch, epoch: int) -> None:
        """Take one step; reads nothing from the device."""
        if int(self._epoch[1]) != epoch:
            self._epoch = (self._epoch[0].fill_(epoch), epoch)
        try:
            self._take_step(batch.images, batch.indices, self._epoch[0])
        except ValueError as error:  # on the CPU an objective refuses bad rows at once
            raise self.guard.failure(self.rate.at(self.step), error) from error
        self.step += 1

    def check(self) -> None:
        """Raise if anything has not been finite; reads from the device."""
        self.guard.check(self.rate.at(self.step))

    def save(self, wait: bool = True) -> None:
        """Check that the state is finite, and write a checkpoint of this step."""
        self.check()
        random = distributed.gather(torch.get_rng_state()[None].to(self.device))
        random_cuda = None
        if self.device.type == "cuda":
            own = torch.cuda.get_rng_state(self.device)[None].to(self.device)
            random_cuda = distributed.gather(own)
        if distributed.rank() > 0:
            return
        state: dict[str, Any] = {
            "config": self.config.plain(),
            "channels": self.images.channels,
            "size": self.images.size,
            "seconds": self.seconds,
            "verdict": self.verdict,
            "watched": self.watched,
            "optimizer": self.optimizer.state_dict(),
            "monitor": self.monitor.state_dict(),
            "random": random,
            "random_cuda": random_cuda,
        }
        place, keep = self.directory / CHECKPOINTS, self.config.watch.keep
        self.writer.save(place, self.step, self.learner.state_dict(), state, keep=keep)
        # A worker forked during the write would inherit held locks of a thread it does not have.
        if wait or _forking:
            self.writer.wait()

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Restore the exact state of a checkpoint."""
        found.restore(self.learner)
        state = found.state
        load_optimizer(self.optimizer, state["optimizer"])
        self.monitor.load_state_dict(state["monitor"])
        self.monitor.to(self.device)
        self.step, self.seconds = found.step, state["seconds"]
        self.guard.taken.fill_(found.step)
        self.verdict, self.watched = state["verdict"], state["watched"]
        # With another number of processes, each continues from its own seed.
        if len(state["random"]) == distributed.world_size():
            rank = distributed.rank()
            torch.set_rng_state(state["random"][rank].clone())
            if state["random_cuda"] is not None and self.device.type == "cuda":
                torch.cuda.set_rng_state(state["random_cuda"][rank].clone(), self.device)

    @contextmanager
    def all_saved(self) -> Iterator[None]:
        """Wait for a checkpoint being written when the block ends, however it ends."""
        try:
            yield
        except BaseException as error:
            try:
                self.writer.wait()
            except Exception as failure:  # the first error is the one to raise
                error.add_note(str(failure))
            raise
        self.writer.wait()

    def unwrap(self) -> None:
        """Release the encoder's DistributedDataParallel before the process group ends.

        It refers to itself and would live until the interpreter ends, with threads that then abort
        the process.
        """
        if self.learner.called is not self.learner.encoder:
            self.learner.call_through(self.learner.encoder)
            gc.collect()


def _slow_down(parameters: Iterable[Tensor], optimizer: str) -> None:
    """Scale the gradients of an objective's own scale and bias, unless the optimizer does."""
    if optimizer != "adamw":
        for parameter in parameters:
            parameter.register_hook(lambda gradient: OWN_RATE * gradient)


def check_ess(config: TrainConfig) -> None:
    """Refuse a target that no temperature reaches: the ESS of m negatives is at least 1/m."""
    targets = [target for target in (config.loss.ess, config.loss.ess_end) if target is not None]
    batch = config.run.batch_size
    own = OBJECTIVES[config.loss.objective].negatives(batch)
    negatives = batch - 1 if config.model.queue else own  # a queue starts empty
    if targets and min(targets) * negatives <= 1:
        raise ValueError(
            f"ess={min(targets):g} is out of reach: of {negatives} negatives the effective sample "
            f"size is more than 1/{negatives} = {1 / negatives:.3g}; raise ess or batch_size"
        )


def compute_dtype(run: RunConfig, device: torch.device) -> torch.dtype:
    """The dtype in which the encoder computes."""
    if run.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    found: torch.dtype = getattr(torch, run.precision)
    return found


def rate_schedule(config: TrainConfig, steps_per_epoch: int) -> WarmupCosine:
    """The learning rate by step."""
    asked = config.optimizer
    peak = scaled_rate(
        asked.rate, config.run.batch_size, base_batch=asked.base_batch, rule=asked.scaling
    )
    steps = config.run.epochs * steps_per_epoch
    warmup = min(round(asked.warmup_epochs * steps_per_epoch), steps // 2)
    return WarmupCosine(peak, steps, warmup)
