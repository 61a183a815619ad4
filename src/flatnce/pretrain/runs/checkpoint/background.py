"""Writing checkpoints while training goes on: forcing files to a disk takes longer than a copy."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flatnce.pretrain.runs.checkpoint.write import Prepared, prepare


class Writer:
    """Writes one checkpoint at a time in a thread of its own.

    One that could not be written is raised by the next call of any method, so the last call should
    be of :meth:`wait`.

    Examples:
        >>> import tempfile, torch
        >>> from flatnce import checkpoint
        >>> net = torch.nn.Linear(2, 1)
        >>> writer = checkpoint.Writer()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer.save(folder, 10, net.state_dict(), {"seed": 0})
        ...     writer.wait()
        ...     checkpoint.steps(folder)
        [10]
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._done.set()
        self._failure: BaseException | None = None

    def save(
        self,
        directory: str | Path,
        step: int,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        keep: int | None = 3,
    ) -> None:
        """As :func:`flatnce.pretrain.runs.checkpoint.save`; returns when everything is copied.

        Waits first for the one before.

        Arguments:
            directory: As there.
            step: As there.
            weights: As there.
            state: As there.
            keep: As there.
        """
        self.wait()
        prepared = prepare(step, weights, state, keep=keep, copy=True)
        work = (prepared, Path(directory))
        # Not a daemon: an interpreter that ends waits until the files are whole.
        thread = threading.Thread(target=self._write, args=work, name=f"checkpoint of {step}")
        self._done.clear()
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._write(*work)

    def check(self) -> None:
        """Raise what went wrong so far; does not wait."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure  # its trace holds this frame, and with it all that was to be written

    def settle(self) -> None:
        """Wait until nothing is under way; what went wrong is left to the next call."""
        # Not by `join`: an interrupted one takes the thread for ended (until Python 3.13).
        self._done.wait()

    def wait(self) -> None:
        """Wait until nothing is under way."""
        self.settle()
        self.check()

    def _write(self, prepared: Prepared, directory: Path) -> None:
        try:
            prepared.write(directory)
        except BaseException as error:  # raised where somebody listens
            self._failure = error
        finally:
            self._done.set()
