"""Work beside the chain: what nothing waits for soon goes to a second CUDA stream."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

MOST = 16
"""Pieces of work that may be under way beside the chain before it waits for half of them.

Each wait is a dependency that the chain pays for; what is under way holds memory.
"""


class SideTrack:
    """A second stream that forks from the current one and joins it again; nothing on the CPU.

    Events alone order the two, so both may be recorded in a CUDA graph. Everything begun beside
    the chain starts after what the chain was given before.

    Limits:
        The allocator gives memory of the chain's stream back to the chain without asking the other
        stream. What is read beside it is therefore kept here until the chain has waited.

    Arguments:
        device: Where the work runs.
        enabled: Use the second stream if the device has one.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self.device = device
        on_card = enabled and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_card else None
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device the current one: Triton launches on that, whatever it is given."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def start(self) -> None:
        """Begin a pass: wait for what one that failed left, and let go of what it reads.

        A recording can wait for nothing that began before it, and takes memory of its own.
        """
        if self._under_way and self.stream is not None:
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream(self.device).wait_stream(self.stream)
        self._under_way.clear()

    @contextmanager
    def beside(self, *read: Any) -> Iterator[None]:
        """Do what stands inside on the second stream."""
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
        """Let the chain wait for everything beside it."""
        if self._under_way:
            self._wait_for(len(self._under_way))

    def _wait_for(self, count: int) -> None:
        """Let the chain wait for the first pieces: for the last of them, as streams keep order."""
        assert self.stream is not None
        done, _ = self._under_way[count - 1]
        torch.cuda.current_stream(self.device).wait_event(done)
        for _ in range(count):
            self._under_way.popleft()
