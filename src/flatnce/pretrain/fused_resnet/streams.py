"""A second CUDA stream for work that nothing waits for soon."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

MOST = 16
"""Pieces of work on the second stream before the main stream waits for half of them.

Each wait costs the main stream time; each piece of work holds memory.
"""


class SideTrack:
    """A second stream that forks from the main (current) stream and joins it again.

    Only events order the two, so both can be captured in a CUDA graph. Work on the second stream
    starts after everything that the main stream was given before. On a CPU there is one stream.

    The allocator reuses memory of the main stream without regard to the second one. Tensors that
    the second stream reads are therefore kept here until the main stream has waited.

    Arguments:
        device: The device.
        enabled: Use the second stream if the device has one.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self.device = device
        on_card = enabled and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_card else None
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device the current one, on which Triton launches."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def start(self) -> None:
        """Begin a pass: wait for work that a failed pass left, and release its tensors.

        A graph capture cannot wait for earlier work, and has its own memory.
        """
        if self._under_way and self.stream is not None:
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream(self.device).wait_stream(self.stream)
        self._under_way.clear()

    @contextmanager
    def beside(self, *read: Any) -> Iterator[None]:
        """Run the body on the second stream; it reads the tensors ``read``."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield
            done = torch.cuda.Event()
            done.record(self.stream)
        self._under_way.append((done, read))
        if len(self._under_way) > MOST:
            self._wait_for(MOST // 2)

    def join(self) -> None:
        """Let the main stream wait for everything on the second one."""
        if self._under_way:
            self._wait_for(len(self._under_way))

    def _wait_for(self, count: int) -> None:
        """Let the main stream wait for the first pieces, of which the last ends last."""
        assert self.stream is not None
        done, _ = self._under_way[count - 1]
        torch.cuda.current_stream(self.device).wait_event(done)
        for _ in range(count):
            self._under_way.popleft()
