"""Writing checkpoints while training goes on: forcing files to a disk takes longer than a copy."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flatnce.checkpoint.write import Prepared, prepare

__all__ = ["Writer"]


class Writer:
    """Writes one checkpoint at a time in a thread of its own.

    A checkpoint that could not be written is raised by the next call of any method.

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
        self._thread: threading.Thread | None = None
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
        """As :func:`flatnce.checkpoint.save`; returns when everything is copied.

        Arguments:
            directory: As there.
            step: As there.
            weights: As there.
            state: As there.
            keep: As there.
        """
        self.wait()
        prepared = prepare(step, weights, state, keep=keep, copy=True)
        # Not a daemon: an interpreter that ends waits until the files are whole.
        self._thread = threading.Thread(target=self._write, args=(prepared, Path(directory)))
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong so far; does not wait."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Wait until nothing is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _write(self, prepared: Prepared, directory: Path) -> None:
        try:
            prepared.write(directory)
        except BaseException as error:  # raised where somebody listens
            self._failure = error
