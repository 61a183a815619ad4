"""Ctrl-C: the first asks a run to save and stop, the second quits."""

import os
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType

import torch

from flatnce.core import distributed

__all__ = ["Interrupts", "LAUNCHER", "LAUNCH_VARIABLE", "STOP"]

LAUNCH_VARIABLE, LAUNCHER, STOP = "FLATNCE_LAUNCH", "launcher", "stop"
"""A folder that a launcher shares with its processes; the file with its process number in it, and
the file that asks them to stop."""


class Interrupts:
    """Turns the first SIGINT (Ctrl-C) or SIGTERM (a scheduler's notice) into a request to stop.

    The second raises KeyboardInterrupt at once. Elsewhere than in the main thread signals stay as
    they are.

    Examples:
        >>> with Interrupts() as interrupts:
        ...     interrupts.asked
        False
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signalled = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned

    @property
    def asked(self) -> bool:
        """Whether this process was asked to stop, by a signal or by who launched it."""
        return self.signalled or was_asked_by_launcher()

    def agreed(self, device: torch.device) -> bool:
        """Whether any process was asked to stop; collective."""
        if not distributed.is_active():
            return self.asked
        return bool(distributed.mean(torch.tensor(float(self.asked), device=device)) > 0)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.signalled:
            raise KeyboardInterrupt
        self.signalled = True


def was_asked_by_launcher() -> bool:
    """Whether ``flatnce --devices`` asked its processes to stop, or is no longer there.

    A signal does not reach them all, and who kills the launcher means the run.
    """
    folder = os.environ.get(LAUNCH_VARIABLE)
    if folder is None:
        return False
    launcher = Path(folder) / LAUNCHER
    try:
        os.kill(int(launcher.read_text()), 0)
    except (OSError, ValueError):  # its folder or itself is gone
        return True
    return (Path(folder) / STOP).exists()
