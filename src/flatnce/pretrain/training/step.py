"""One training step, and the same step replayed as a CUDA graph.

A step of a ResNet-18 launches about eight hundred kernels, and launching them takes the host far
longer than running them takes the GPU. Captured once as a CUDA graph they are launched together.
The step reads nothing from the device, so it can be captured as it is: views, forward and backward
pass, diagnostics, optimizer.
"""

from collections.abc import Callable, Iterator, Mapping
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

EAGER_STEPS = 3
"""Steps before the capture: in them libraries choose kernels and allocate workspaces."""


class TrainingFailed(RuntimeError):
    """Training cannot continue; earlier checkpoints are good."""


class NonFiniteGuard:
    """Counts steps on the device and remembers the first whose loss or gradient was not finite.

    :meth:`look` costs a few small operations and no host read; :meth:`check` reads.
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
        """Check one step, after ``backward`` and before the optimizer's step."""
        found = {n: p.grad for n, p in self.learner.named_parameters() if p.grad is not None}
        # Names are kept because the gradients may be gone when a message is written.
        self._names, gradients = list(found), list(found.values())
        broken = ~torch.isfinite(torch.stack(torch._foreach_norm(gradients)))
        bad = torch.stack([~torch.isfinite(loss), broken.any()])
        new = bad & (self.first_bad < 0)
        # Backward visits the parameters from last to first.
        nearest = len(gradients) - 1 - broken.flip(0).to(torch.uint8).argmax()
        self.first_parameter.copy_(torch.where(new[1], nearest, self.first_parameter))
        self.first_bad.copy_(torch.where(new, self.taken, self.first_bad))
        self.taken.add_(1)

    @torch.no_grad()
    def all_finite(self) -> Tensor:
        """Whether everything was finite so far, weights included; collective, no host read."""
        finite = torch.isfinite(torch.stack(list(self._weight_norms().values()))).all()
        return distributed.mean(((self.first_bad < 0).all() & finite).float()) == 1

    def check(self, rate: float, finite: Tensor | None = None) -> None:
        """Raise if anything was not finite; reads from the device."""
        if not bool(self.all_finite() if finite is None else finite):
            raise TrainingFailed(self._message(rate, None))

    def failure(self, rate: float, error: ValueError) -> TrainingFailed:
        """The exception for embeddings that the objective refused."""
        return TrainingFailed(self._message(rate, error))

    def _weight_norms(self) -> dict[str, Tensor]:
        """The norm of each weight, which overflows before its entries do."""
        state = self.learner.state_dict()
        weights = {name: w for name, w in state.items() if w.is_floating_point()}
        return dict(zip(weights, torch._foreach_norm(list(weights.values())), strict=True))

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
        if weights := _first_non_finite(state):
            found.append(f"the weights {weights} are no longer finite")
        elif grown := _first_non_finite(self._weight_norms()):
            found.append(f"the weights {grown} have grown to {state[grown].abs().max():.1e}")
        if error is not None:
            found.append(f"the embeddings cannot be contrasted: {error}")
        if not found:  # all processes stop together
            found.append("a number of another process is infinite or not a number")
        self.writer.settle()
        kept = checkpoint.steps(self.directory / "checkpoints")
        good = f"the checkpoint of step {kept[-1]} is good and is kept" if kept else "none is kept"
        return (
            f"training stopped: {'; '.join(found)}; {good}. Lower the learning rate (it was "
            f"{rate:.3g}), lengthen the warm-up, or use precision=float32"
        )


def _first_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


class SideStream:
    """Work that the step does not wait for: on a GPU, on a separate stream.

    Its inputs must stay alive until :meth:`join`, because the allocator does not know about the
    stream. The last batch's diagnostics and the gradients do.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run the block once everything launched so far is done."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for this work."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Step:
    """One step of training; reads nothing from the device.

    The optimizer's rate is a tensor where the step is to be captured. The guard counts the steps.
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
        self.side = SideStream(guard.taken.device)

    def __call__(self, images: Tensor, indices: Tensor, epoch: Tensor) -> None:
        """Take the step."""
        with self.side.work():
            set_rate(self.optimizer, self._rate_now())
        on_cuda = images.is_cuda
        views = self.views(images, indices, epoch, dtype=self.dtype, channels_last=on_cuda)
        self.optimizer.zero_grad()
        loss = backward(self.learner, views, indices, self.micro_batch, self._update_monitor)
        self.side.join()
        with self.side.work():
            self.guard.look(loss)
        self.optimizer.step()
        self.learner.after_step()
        self.side.join()

    def _update_monitor(self) -> None:
        """Update the monitor while the gradients are computed."""
        with self.side.work():
            self.monitor.update(self.learner.objective.last)

    def _rate_now(self) -> float | Tensor:
        taken = self.guard.taken
        on_device = isinstance(self.optimizer.param_groups[0]["lr"], Tensor)
        return self.rate.at(taken) if on_device else self.rate.at(int(taken))


class CudaGraphStep:
    """A step that is captured as a CUDA graph after a few eager calls, and replayed from then on.

    A step that cannot be captured runs eagerly; ``notify`` is called once with the reason.
    """

    def __init__(self, step: Step, notify: Callable[[str], None]) -> None:
        self.step, self.notify = step, notify
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, Tensor, Tensor] | None = None
        # The step has priority over side streams. A run of a sweep already has its own stream and
        # keeps it: streams are few, and each holds a library's workspace.
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
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        elif self.calls > EAGER_STEPS:
            with _deterministic_cudnn():
                self.step(*self.inputs)
        else:
            self._warm_up()

    def _warm_up(self) -> None:
        """Take an eager step on the stream of the capture, so that its workspaces exist."""
        assert self.inputs is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), _deterministic_cudnn():
            self.step(*self.inputs)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self) -> None:
        assert self.inputs is not None
        # Gradients must be allocated inside the graph, so that a replay writes them anew.
        self.step.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as a loader's, may use the device meanwhile.
            options: dict[str, Any] = {"capture_error_mode": "thread_local"}
            with torch.cuda.graph(graph, stream=self.stream, **options), _deterministic_cudnn():
                self.step(*self.inputs)
        except RuntimeError as error:
            torch.cuda.synchronize()
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
