"""Stopping at a number that is not one: which term, since when, and what is still good."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatnce.core import distributed
from flatnce.core.diagnostics import Monitor
from flatnce.pretrain.data import Views
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.training.learner import Learner, backward
from flatnce.pretrain.training.optim import WarmupCosine, set_rate

__all__ = ["TrainingFailed"]


class TrainingFailed(RuntimeError):
    """Training cannot go on; what was saved before is good."""


class NonFiniteGuard:
    """Counts steps on the device, and remembers the first whose loss or gradient was not finite.

    :meth:`look` costs a few small operations and no host read; :meth:`check` reads.

    Arguments:
        learner: Whose loss and gradients.
        directory: The run's, whose checkpoints are named when training stops.
        device: Where the learner computes.
        writer: Of these checkpoints: what is under way is waited for before they are named.
    """

    TERMS = ("loss", "gradient")

    def __init__(
        self,
        learner: nn.Module,
        directory: Path,
        device: torch.device,
        writer: checkpoint.Writer,
    ) -> None:
        self.learner, self.directory, self.writer = learner, directory, writer
        self.first_bad = torch.full((len(self.TERMS),), -1, dtype=torch.long, device=device)
        self.taken = torch.zeros((), dtype=torch.long, device=device)
        self.first_parameter = torch.full_like(self.taken, -1)
        self._names: list[str] = []

    @torch.no_grad()
    def look(self, loss: Tensor) -> None:
        """Look at one step, after ``backward`` and before the optimizer moves."""
        found = {n: p.grad for n, p in self.learner.named_parameters() if p.grad is not None}
        # By the time of a message gradients may be gone.
        self._names, gradients = list(found), list(found.values())
        broken = ~torch.isfinite(torch.stack(torch._foreach_norm(gradients)))
        bad = torch.stack([~torch.isfinite(loss), broken.any()])
        new = bad & (self.first_bad < 0)
        # The first on the way back from the loss is the last in the model's order.
        nearest = len(gradients) - 1 - broken.flip(0).to(torch.uint8).argmax()
        self.first_parameter.copy_(torch.where(new[1], nearest, self.first_parameter))
        self.first_bad.copy_(torch.where(new, self.taken, self.first_bad))
        self.taken.add_(1)

    @torch.no_grad()
    def sound(self) -> Tensor:
        """Whether everything was finite so far, weights included; collective, no host read."""
        weights = [w for w in self.learner.state_dict().values() if w.is_floating_point()]
        finite = torch.isfinite(torch.stack(torch._foreach_norm(weights))).all()
        return distributed.mean(((self.first_bad < 0).all() & finite).float()) == 1

    def check(self, rate: float, sound: Tensor | None = None) -> None:
        """Stop if anything was not finite; reads from the device."""
        if not bool(self.sound() if sound is None else sound):
            raise TrainingFailed(self._message(rate, None))

    def failure(self, rate: float, error: ValueError) -> TrainingFailed:
        """What to raise when the objective refused the embeddings."""
        return TrainingFailed(self._message(rate, error))

    def _message(self, rate: float, error: ValueError | None) -> str:
        found = [
            f"the {term} is infinite or not a number since step {first}"
            for term, first in zip(self.TERMS, self.first_bad.tolist(), strict=True)
            if first >= 0
        ]
        if int(self.first_parameter) >= 0:
            where = self._names[int(self.first_parameter)]
            found.append(f"the first such gradient, from the loss backwards, is that of {where}")
        state = self.learner.state_dict()
        weights = _first_bad(state.items())
        if weights:
            found.append(f"the weights {weights} are no longer finite")
        grown = None if weights else _first_bad(_norms(state))
        if grown:  # each number is finite, and their norm is not
            found.append(f"the weights {grown} have grown to {state[grown].abs().max():.1e}")
        if error is not None:
            found.append(f"the embeddings cannot be contrasted: {error}")
        if not found:  # here all is well, and all stop together
            found.append("a number of another process is infinite or not one")
        self.writer.settle()
        kept = checkpoint.steps(self.directory / "checkpoints")
        good = f"the checkpoint of step {kept[-1]} is good and is kept" if kept else "none is kept"
        return (
            f"training stopped: {'; '.join(found)}; {good}. Lower the learning rate (it was "
            f"{rate:.3g}), lengthen the warm-up, or use precision=float32"
        )


def _norms(state: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """As :meth:`NonFiniteGuard.sound` takes them, which overflow where numbers do not yet."""
    weights = {name: w for name, w in state.items() if w.is_floating_point()}
    return zip(weights, torch._foreach_norm(list(weights.values())), strict=True)


def _first_bad(tensors: Iterable[tuple[str, Tensor | None]]) -> str | None:
    for name, tensor in tensors:
        if tensor is not None and tensor.is_floating_point():
            if not bool(torch.isfinite(tensor).all()):
                return name
    return None


# Steps before recording: libraries choose their kernels and make their workspace in them.
EAGER_STEPS = 3


@contextmanager
def _same_bits_twice() -> Iterator[None]:
    """Convolutions by algorithms that are not chosen by the clock and add in a fixed order."""
    settings = torch.backends.cudnn
    before = settings.benchmark, settings.deterministic
    settings.benchmark, settings.deterministic = False, True
    try:
        yield
    finally:
        settings.benchmark, settings.deterministic = before


class SideStream:
    """Work that the step does not wait for: on a GPU, on a stream of its own.

    Its inputs must stay alive until :meth:`join`, since the allocator does not know of the stream:
    it is given the last batch's diagnostics and the gradients, which do.

    Arguments:
        device: Where the step computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Begin when everything so far is done."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the step wait for what was put aside."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Step:
    """One step of training; reads nothing from the device.

    Arguments:
        learner: What learns.
        optimizer: Moves it. Its rate is a tensor where the step is to be recorded.
        views: Make two views of each image.
        rate: The learning rate by step.
        monitor: Is shown every batch.
        guard: Is shown every loss and gradient; knows how many steps were taken.
        micro_batch: As in :func:`flatnce.pretrain.training.learner.backward`.
        dtype: Of the views.
    """

    def __init__(
        self,
        learner: Learner,
        optimizer: Optimizer,
        views: Views,
        rate: WarmupCosine,
        monitor: Monitor,
        guard: NonFiniteGuard,
        micro_batch: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.learner, self.optimizer, self.views = learner, optimizer, views
        self.rate, self.monitor, self.guard = rate, monitor, guard
        self.micro_batch, self.dtype = micro_batch, dtype
        self.aside = SideStream(guard.taken.device)

    def __call__(self, images: Tensor, indices: Tensor, epoch: Tensor) -> None:
        """Take the step."""
        with self.aside.work():
            set_rate(self.optimizer, self._rate_now())
        on_cuda = images.is_cuda
        views = self.views(images, indices, epoch, dtype=self.dtype, channels_last=on_cuda)
        self.optimizer.zero_grad()
        loss = backward(self.learner, views, indices, self.micro_batch, self._show)
        self.aside.join()
        with self.aside.work():
            self.guard.look(loss)
        self.optimizer.step()
        self.learner.after_step()
        self.aside.join()

    def _show(self) -> None:
        """Show the batch to the monitor while the gradients are computed."""
        with self.aside.work():
            self.monitor.update(self.learner.objective.last)

    def _rate_now(self) -> float | Tensor:
        taken = self.guard.taken
        on_device = isinstance(self.optimizer.param_groups[0]["lr"], Tensor)
        return self.rate.at(taken) if on_device else self.rate.at(int(taken))


class CudaGraphStep:
    """A step that is recorded after its first few calls, and from then on replayed.

    What cannot be recorded goes on as it is, and says why.

    Arguments:
        step: The step, on a CUDA device.
        tell: Called once with a line if it cannot be recorded.
    """

    def __init__(self, step: Step, tell: Callable[[str], None]) -> None:
        self.step, self.tell = step, tell
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, Tensor, Tensor] | None = None
        # The chain of the step goes before what is put aside. A run among several has a stream of
        # its own already, and keeps it: streams are few, and each holds a library's workspace.
        current = torch.cuda.current_stream()
        alone = current == torch.cuda.default_stream()
        self.stream = torch.cuda.Stream(priority=-1) if alone else current

    def __call__(self, images: Tensor, indices: Tensor, epoch: Tensor) -> None:
        """Take the step."""
        self.calls += 1
        if self.inputs is None:
            self.inputs = (images.clone(), indices.clone(), epoch.clone())
        for kept, given in zip(self.inputs, (images, indices, epoch), strict=True):
            kept.copy_(given)
        if self.calls == EAGER_STEPS + 1:
            self._record()
        if self.graph is not None:
            self.graph.replay()
        elif self.calls > EAGER_STEPS:
            with _same_bits_twice():
                self.step(*self.inputs)
        else:
            self._on_the_side()

    def _on_the_side(self) -> None:
        """A step on the stream that will be recorded, so that what it sets up is there."""
        assert self.inputs is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), _same_bits_twice():
            self.step(*self.inputs)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self) -> None:
        assert self.inputs is not None
        # Gradients must be made inside, so that a replay writes them anew.
        self.step.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, a loader's, may use the device meanwhile.
            options: dict[str, Any] = {"capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, stream=self.stream, **options), _same_bits_twice():
                self.step(*self.inputs)
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.step.optimizer.zero_grad()
            why = str(error).strip().splitlines()[0]
            self.tell(f"this step cannot be recorded as a CUDA graph and runs unrecorded: {why}")
            return
        self.graph = graph
