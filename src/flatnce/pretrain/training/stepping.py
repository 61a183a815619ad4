"""One step of training, and the same step as a CUDA graph: a small batch fills no card otherwise.

A step of a ResNet-18 is some eight hundred kernels, which take the host far longer to launch than
the card to run. Recorded once, they are launched together. The step reads nothing from the device,
so it can be recorded as it is: views, both passes, diagnostics, optimizer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flatnce.core.diagnostics import Monitor
from flatnce.pretrain.data import Views
from flatnce.pretrain.training import caching
from flatnce.pretrain.training.finite import Sentinel
from flatnce.pretrain.training.learner import Learner
from flatnce.pretrain.training.optim import set_rate
from flatnce.pretrain.training.schedule import WarmupCosine

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


class Aside:
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
        sentinel: Is shown every loss and gradient; knows how many steps were taken.
        micro_batch: As in :func:`flatnce.pretrain.training.caching.backward`.
        dtype: Of the views.
    """

    def __init__(
        self,
        learner: Learner,
        optimizer: Optimizer,
        views: Views,
        rate: WarmupCosine,
        monitor: Monitor,
        sentinel: Sentinel,
        micro_batch: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.learner, self.optimizer, self.views = learner, optimizer, views
        self.rate, self.monitor, self.sentinel = rate, monitor, sentinel
        self.micro_batch, self.dtype = micro_batch, dtype
        self.aside = Aside(sentinel.taken.device)

    def __call__(self, images: Tensor, indices: Tensor, epoch: Tensor) -> None:
        """Take the step."""
        with self.aside.work():
            set_rate(self.optimizer, self._rate_now())
        on_cuda = images.is_cuda
        views = self.views(images, indices, epoch, dtype=self.dtype, channels_last=on_cuda)
        self.optimizer.zero_grad()
        loss = caching.backward(self.learner, views, indices, self.micro_batch, self._show)
        self.aside.join()
        with self.aside.work():
            self.sentinel.look(loss)
        self.optimizer.step()
        self.learner.after_step()
        self.aside.join()

    def _show(self) -> None:
        """Show the batch to the monitor while the gradients are computed."""
        with self.aside.work():
            self.monitor.update(self.learner.objective.last)

    def _rate_now(self) -> float | Tensor:
        taken = self.sentinel.taken
        on_device = isinstance(self.optimizer.param_groups[0]["lr"], Tensor)
        return self.rate.at(taken) if on_device else self.rate.at(int(taken))


class Recorded:
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
