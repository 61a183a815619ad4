"""A run in memory: its step, which a GPU replays as a CUDA graph, and its state.

A step launches hundreds of kernels, and launching them takes the host far longer than running them
takes the GPU. It reads nothing from the device, so it can be captured and launched as a whole.
"""

import gc
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from flatnce.core import distributed
from flatnce.core.diagnostics import Monitor
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.own_code import error_text, is_ours, is_own
from flatnce.pretrain.data import Batch, OwnLoader, OwnSet, ReadyViews, Resident
from flatnce.pretrain.fused_resnet import fuse_resnet
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import EARLIER
from flatnce.pretrain.training import optim
from flatnce.pretrain.training.config import RunConfig, TrainConfig
from flatnce.pretrain.training.images import open_images
from flatnce.pretrain.training.learner import Learner, backward, build_learner
from flatnce.pretrain.training.saved import CHECKPOINTS

__all__ = ["TrainingFailed", "check_ess"]

EAGER_STEPS = 3
"""Steps before the capture: in them libraries choose kernels and allocate workspaces."""

_forking: "WeakSet[Training]" = WeakSet()
"""Runs of this process whose images are read by worker processes."""


class TrainingFailed(RuntimeError):
    """Training cannot continue; earlier checkpoints are good."""


class NonFiniteGuard:
    """Counts steps on the device and remembers the first whose loss or gradient was not finite."""

    def __init__(self, learner: Learner, device: torch.device) -> None:
        self.learner = learner
        self.taken = torch.zeros((), dtype=torch.long, device=device)
        self.first_bad = torch.full((2,), -1, dtype=torch.long, device=device)
        self.bad_gradient = torch.full_like(self.taken, -1)  # its place in ``names``
        self.names: list[str] = []

    @torch.no_grad()
    def look(self, loss: Tensor) -> None:
        """Check one step, after ``backward`` and before the optimizer's step; no host read."""
        found = {n: p.grad for n, p in self.learner.named_parameters() if p.grad is not None}
        self.names = list(found)  # kept, because zero_grad removes the gradients
        bad = ~torch.isfinite(torch.stack(torch._foreach_norm(list(found.values()))))
        new = torch.stack([~torch.isfinite(loss), bad.any()]) & (self.first_bad < 0)
        # Backpropagation computes the last parameter's gradient first.
        last = len(found) - 1 - bad.flip(0).to(torch.uint8).argmax()
        self.bad_gradient.copy_(torch.where(new[1], last, self.bad_gradient))
        self.first_bad.copy_(torch.where(new, self.taken, self.first_bad))
        self.taken.add_(1)

    @torch.no_grad()
    def all_finite(self) -> Tensor:
        """Whether everything was finite so far, weights included; collective, no host read."""
        finite = torch.isfinite(torch.stack(list(self.weight_norms().values()))).all()
        return distributed.mean(((self.first_bad < 0).all() & finite).float()) == 1

    def weight_norms(self) -> dict[str, Tensor]:
        """The norm of each weight, which overflows before its entries do."""
        state = self.learner.state_dict()
        weights = {name: w for name, w in state.items() if w.is_floating_point()}
        return dict(zip(weights, torch._foreach_norm(list(weights.values())), strict=True))


class Step:
    """One step of training; reads nothing from the device. The guard counts the steps."""

    def __init__(self, training: "Training") -> None:
        self.learner, self.optimizer = training.learner, training.optimizer
        self.views, self.rate = training.images.views, training.rate
        self.monitor, self.guard = training.monitor, training.guard
        self.micro_batch, self.dtype = training.config.run.micro_batch, training.learner.dtype
        on_cuda = training.device.type == "cuda"
        self.side = torch.cuda.Stream(training.device) if on_cuda else None

    def __call__(self, images: Tensor, indices: Tensor, epoch: Tensor) -> None:
        on_cuda = images.is_cuda
        taken = self.guard.taken
        with self._aside():
            optim.set_rate(self.optimizer, self.rate.at(taken if on_cuda else int(taken)))
        views = self.views(images, indices, epoch, dtype=self.dtype, channels_last=on_cuda)
        self.optimizer.zero_grad()
        loss = backward(self.learner, views, indices, self.micro_batch, self._update_monitor)
        self._join()
        with self._aside():
            self.guard.look(loss)
        self.optimizer.step()
        if self.learner.momentum_encoder is not None:
            self.learner.momentum_encoder.update()
        self._join()

    def _update_monitor(self) -> None:
        """Update the monitor while the gradients are computed."""
        with self._aside():
            self.monitor.update(self.learner.objective.last)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run the block on another stream, once everything launched so far is done.

        Its inputs must stay alive until :meth:`_join`, because the allocator does not know about
        the stream. The last batch's diagnostics and the gradients do.
        """
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def _join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)


class CudaGraphStep:
    """A step that is captured as a CUDA graph after a few eager calls, and replayed from then on.

    A step that cannot be captured runs eagerly; ``notify`` is called once with the reason.
    """

    def __init__(
        self, step: Step, notify: Callable[[str], None], stream: torch.cuda.Stream | None = None
    ) -> None:
        self.step, self.notify = step, notify
        self.calls = 0
        # DistributedDataParallel needs 11 steps before a capture.
        self.eager = 11 if distributed.is_active() else EAGER_STEPS
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, Tensor, Tensor] | None = None
        # The step has priority over side streams. A run of a sweep already has its own stream and
        # keeps it: streams are few, and each holds a library's workspace.
        current = torch.cuda.current_stream()
        alone = current == torch.cuda.default_stream()
        self.stream = stream or (torch.cuda.Stream(priority=-1) if alone else current)

    def __call__(self, images: Tensor, indices: Tensor, epoch: Tensor) -> None:
        self.calls += 1
        if self.inputs is None:
            self.inputs = (images.clone(), indices.clone(), epoch.clone())
        for kept, given in zip(self.inputs, (images, indices, epoch), strict=True):
            kept.copy_(given)
        if self.calls == self.eager + 1:
            self._capture(*self.inputs)
        if self.graph is not None:
            self.graph.replay()
            return
        # On the stream of the capture, so that its workspaces exist.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), _deterministic_cudnn():
            self.step(*self.inputs)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self, *inputs: Tensor) -> None:
        # Gradients must be allocated inside the graph, so that a replay writes them anew.
        self.step.optimizer.zero_grad()
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads, such as a loader's, may use the device meanwhile.
            mode = "thread_local"
            capture = torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode)
            with capture, _deterministic_cudnn():
                self.step(*inputs)
        except RuntimeError as error:
            torch.cuda.synchronize()
            # Torch leaves the capture's stream current and the generator in the capture.
            torch.cuda.set_stream(before)
            generator = torch.cuda.default_generators[before.device_index]
            generator.graphsafe_set_state(generator.clone_state())
            self.step.optimizer.zero_grad()
            why = str(error).strip().splitlines()[0]
            self.notify(f"this step cannot be captured as a CUDA graph and runs eagerly: {why}")
            return
        self.graph = graph


@contextmanager
def _deterministic_cudnn() -> Iterator[None]:
    """Use convolution algorithms that are not chosen by timing and that add in a fixed order."""
    settings = torch.backends.cudnn
    before = settings.benchmark, settings.deterministic
    settings.benchmark, settings.deterministic = False, True
    try:
        yield
    finally:
        settings.benchmark, settings.deterministic = before


class Training:
    """A run in memory, at some step."""

    def __init__(self, config: TrainConfig, directory: Path, device: torch.device) -> None:
        self.config, self.directory, self.device = config, directory, device
        check_ess(config)
        self.images = open_images(config, device)
        if not isinstance(self.images.loader, Resident):
            _forking.add(self)
        self.steps_per_epoch = len(self.images.loader)
        self.steps = config.run.epochs * self.steps_per_epoch
        self.learner = build_learner(
            config,
            self.images.example,
            steps=self.steps,
            device=device,
            dtype=compute_dtype(config.run, device),
        )
        data = self.images.image_set
        if isinstance(data, OwnSet) and data.ids is not None:
            self.learner.ids = torch.as_tensor(data.ids).long()[data.numbers].to(device)
        self.stream: torch.cuda.Stream | None = None  # of captured steps, if it must be this one
        self._wrap_encoder()
        learns_scale = OBJECTIVES[config.loss.objective].learns_scale
        for name, parameter in self.learner.objective.named_parameters():
            # At the encoder's rate an objective's own scale, bias and the like run away in a few
            # steps; AdamW's steps do not grow with the gradient.
            own = learns_scale or not name.startswith("temperature_source.")
            if own and parameter.requires_grad and config.optimizer.optimizer != "adamw":
                parameter.register_hook(lambda gradient: 0.01 * gradient)
        self.rate, on_cuda = rate_schedule(config, self.steps_per_epoch), device.type == "cuda"
        self.optimizer = optim.build_optimizer(
            self.learner,
            config.optimizer.optimizer,
            # A captured step reads the rate from the device.
            lr=torch.tensor(self.rate.peak, device=device) if on_cuda else self.rate.peak,
            weight_decay=config.optimizer.weight_decay,
            momentum=config.optimizer.momentum,
        )
        self.monitor, self.writer = Monitor(), checkpoint.Writer()
        self.guard = NonFiniteGuard(self.learner, device)
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
            new, old = "forward_sync_buffers", "broadcast_buffers"
            without: dict[str, Any] = {new if new in known else old: False}
            # It accumulates gradients on the stream of its construction: that of the capture.
            if self._is_captured():
                self.stream = torch.cuda.Stream(self.device, priority=-1)
            # Without a stream, torch.cuda.stream would start CUDA in a run on the CPU.
            with torch.cuda.stream(self.stream) if self.stream else nullcontext():
                wrapper = DistributedDataParallel(self.learner.encoder, **without)
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
            self.learner.call_through(wrapper)
        elif self.device.type == "cuda" and self.config.run.fast:
            self.learner.call_through(fuse_resnet(self.learner.encoder) or self.learner.encoder)

    def _is_captured(self) -> bool:
        """Whether to capture the step as a CUDA graph."""
        run = self.config.run
        whole = run.micro_batch is None or run.micro_batch >= run.batch_size
        return self.device.type == "cuda" and run.fast and whole

    def _build_step(self) -> Step | CudaGraphStep:
        """The step, as a CUDA graph where that is possible."""
        step = Step(self)
        if not self._is_captured():
            if self.device.type == "cuda" and self.config.run.fast:
                self.notes.append("with micro_batch a step is not captured as a CUDA graph")
            return step
        self.learner.objective.captured = True  # also in the eager steps before the capture
        return CudaGraphStep(step, self.notes.append, self.stream)

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """The batches from the present step to the end of the run, each with its epoch."""
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            for batch in self.images.loader.epoch(epoch, start=done):
                yield batch, epoch

    def take_step(self, batch: Batch, epoch: int) -> None:
        """Take one step; reads nothing from the device."""
        if self._epoch[1] != epoch:
            self._epoch = (self._epoch[0].fill_(epoch), epoch)
        try:
            self._take_step(batch.images, batch.indices, self._epoch[0])
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            own = isinstance(error, ValueError) or is_own(self.config.model.backbone)
            if own and not is_ours(error):  # of torch or of a user's network
                where = f"step {self.step + 1}, in epoch {epoch + 1}, failed"
                raise ValueError(f"{where}: {error_text(error)}") from error
            if isinstance(error, ValueError):  # on the CPU an objective refuses bad rows at once
                raise self.failure(self.step, error) from error
            raise
        self.step += 1

    def check(self) -> None:
        """Raise if anything has not been finite; reads from the device."""
        if not bool(self.guard.all_finite()):
            raise self.failure(self.step)

    def failure(self, step: int, error: ValueError | None = None) -> TrainingFailed:
        """The exception for numbers that are not finite, or that the objective refused."""
        found, remedy = "", ""
        with suppress(Exception):  # of the user's code, which may not give an item twice
            found, remedy = self._bad_item(step)
        if not found:
            found, remedy = self._not_finite(step, error)
        self.writer.settle()
        kept = checkpoint.steps(self.directory / CHECKPOINTS)
        good = f"the checkpoint of step {kept[-1]} is good and is kept" if kept else "none is kept"
        if (self.directory / EARLIER).is_dir():
            good = "the earlier run is put back"
        return TrainingFailed(f"training stopped: {found}; {good}. {remedy}")

    def _bad_item(self, step: int) -> tuple[str, str]:
        """The item of a user's data that is not finite, and the remedy; or empty."""
        loader = copy(self.images.loader)
        # Bytes are finite, and a stream can only be read from its first item.
        if not isinstance(loader, OwnLoader) or loader.stage == "crops" or loader.streams:
            return "", ""
        since = (first for first in self.guard.first_bad.tolist() if first >= 0)
        epoch, done = divmod(min(since, default=step), self.steps_per_epoch)
        loader.workers, batching = 0, loader.batching
        for rank in range(batching.world_size):  # any process may have the item
            loader.batching = replace(batching, rank=rank)
            batch = next(iter(loader.epoch(epoch, start=done)))
            said, remedy = loader.own.not_finite(*batch[:2], "augment", "batch_augment")
            if said:
                return said, remedy.capitalize()
        return "", ""

    def _not_finite(self, step: int, error: ValueError | None) -> tuple[str, str]:
        """What is not finite, or was refused, and the remedy."""
        since = self.guard.first_bad.tolist()
        found = [
            f"the {term} is infinite or not a number since step {first}"
            for term, first in zip(("loss", "gradient"), since, strict=True)
            if first >= 0
        ]
        place = int(self.guard.bad_gradient)
        if place >= 0:
            name = self.guard.names[place]
            found.append(f"the first such gradient, from the loss backwards, is that of {name}")
        state, norms = self.learner.state_dict(), self.guard.weight_norms()
        overflowed = [name for name, norm in norms.items() if not norm.isfinite()]
        not_finite = [name for name in overflowed if not state[name].isfinite().all()]
        if not_finite:
            found.append(f"the weights {not_finite[0]} are no longer finite")
        elif overflowed:
            largest = state[overflowed[0]].abs().max()
            found.append(f"the weights {overflowed[0]} have grown to {largest:.1e}")
        if error is not None:
            said = str(error).partition(";")[0]  # without its remedy
            found.append(f"the embeddings cannot be contrasted: {said}")
        if not found:  # all processes stop together
            found.append("a number of another process is infinite or not a number")
        rate = self.rate.at(step)
        remedy = f"Lower the learning rate (it was {rate:.3g}), or lengthen the warm-up"
        if 0 in since or step == 0:  # of the untrained network
            remedy = f"Check temperature={self.config.loss.temperature:g} and the images"
        if self.learner.dtype != torch.float32:
            remedy += ", or use precision=float32"
        return "; ".join(found), remedy

    def position(self, step: int | None = None) -> dict[str, Any]:
        """Step, epoch and seconds, by default those of the present step."""
        step = self.step if step is None else step
        return {"step": step, "epoch": step / self.steps_per_epoch, "seconds": self.seconds}

    def save(self, wait: bool = True) -> None:
        """Check that the state is finite, and write a checkpoint of this step."""
        self.check()
        random = distributed.gather(torch.get_rng_state()[None].to(self.device))
        random_cuda = None
        if self.device.type == "cuda":
            own = torch.cuda.get_rng_state(self.device)[None].to(self.device)
            random_cuda = distributed.gather(own)
        monitor = self.monitor.state_dict()
        several = distributed.world_size() > 1
        of_processes = {
            name: distributed.gather(buffer[None].to(self.device))
            for name, buffer in monitor.items()
            if several and isinstance(buffer, Tensor) and buffer.numel()
        }
        if distributed.rank() > 0:
            return
        example = self.images.example
        state: dict[str, Any] = {
            "config": self.config.plain(),
            "channels": example.shape[1],
            "size": self.images.views.size,
            "shape": list(example.shape[1:]),
            "dtype": str(example.dtype).removeprefix("torch."),
            "ready": isinstance(self.images.views, ReadyViews),
            "samples": self.images.loader.batching.samples,
            "seconds": self.seconds,
            "verdict": self.verdict,
            "watched": self.watched,
            "optimizer": self.optimizer.state_dict(),
            "monitor": monitor,
            "monitor_of_processes": of_processes,
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
        optim.load_optimizer(self.optimizer, state["optimizer"])
        rank, world_size = distributed.rank(), distributed.world_size()
        # Of another number of processes, each takes the mean of their sums.
        sums = {
            name: each[rank] if len(each) == world_size else each.double().mean(0).to(each.dtype)
            for name, each in state.get("monitor_of_processes", {}).items()
        }
        self.monitor.load_state_dict({**state["monitor"], **sums})
        self.monitor.to(self.device)
        samples = self.images.loader.batching.samples
        if (before := state.get("samples", samples)) != samples:
            said = (
                f"the data has {samples:,} samples, and had {before:,} before the run was resumed"
            )
            self.notes.append(f"{said}; its order and its schedule are not those of one run")
        self.step, self.seconds = found.step, state["seconds"]
        self.guard.taken.fill_(found.step)
        self.verdict, self.watched = state["verdict"], state["watched"]
        # With another number of processes, each continues from its own seed.
        if len(state["random"]) == world_size:
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
            except Exception as failure:  # what ended the run is raised
                error.add_note(str(failure))
            raise
        self.writer.wait()

    def unwrap(self) -> None:
        """Release the encoder's DistributedDataParallel before the process group ends."""
        if self.learner.called is not self.learner.encoder:
            self.learner.call_through(self.learner.encoder)
            gc.collect()  # it refers to itself; at exit its threads would abort the process


def check_ess(config: TrainConfig) -> None:
    """Refuse control of the ESS where an anchor may have a single negative."""
    batch = config.run.batch_size
    own = OBJECTIVES[config.loss.objective].negatives(batch)
    negatives = batch - 1 if config.model.queue else own  # a queue starts empty
    if config.loss.ess is not None and negatives < 2:
        raise ValueError(
            f"ess={config.loss.ess:g} needs two negatives per anchor; batch_size={batch} gives "
            f"{negatives}, so raise batch_size"
        )


def compute_dtype(run: RunConfig, device: torch.device) -> torch.dtype:
    """The dtype in which the encoder computes."""
    auto = run.precision == "auto" and device.type == "cuda"
    return torch.bfloat16 if auto or run.precision == "bfloat16" else torch.float32


def rate_schedule(config: TrainConfig, steps_per_epoch: int) -> optim.WarmupCosine:
    """The learning rate by step; its peak is scaled to the batch size.

    ``linear`` (Goyal et al., 2017) suits SGD and LARS at large batches, the paper's choice;
    ``sqrt`` (SimCLR, Appendix B.1) learns faster at small batches and few epochs, and suits Adam.
    """
    asked = config.optimizer
    ratio = config.run.batch_size / asked.base_batch
    peak = asked.rate * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[asked.scaling]
    steps = config.run.epochs * steps_per_epoch
    warmup = min(round(asked.warmup_epochs * steps_per_epoch), steps // 2)
    return optim.WarmupCosine(peak, steps, warmup)
