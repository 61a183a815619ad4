"""Where a run's numbers go: its log, TensorBoard where installed, and whoever looks on."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flatnce.core import distributed
from flatnce.pretrain.runs.log import FAILURE, RunLog
from flatnce.pretrain.training.lock import only_writer

__all__ = ["KIND"]

KIND = "train"
"""What a run directory of ours says it is."""

Report = Callable[[Mapping[str, Any]], None]
"""Called with each line as it is logged."""


class Recorder:
    """Writes each line everywhere it belongs; on processes other than the first, nowhere.

    Arguments:
        directory: The run's.
        log: Where lines are appended; None where this process writes nothing.
        tensorboard: Write TensorBoard's files too, if it is installed.
        step: Where the run goes on; what TensorBoard holds after it is hidden.
        report: Called with each line.
    """

    def __init__(
        self,
        directory: Path,
        log: RunLog | None,
        *,
        tensorboard: bool = False,
        step: int = 0,
        report: Report | None = None,
    ) -> None:
        self.directory = directory
        first = distributed.rank() == 0
        self.log = log if first else None
        self.report = report if first else None
        self.board: Any = None
        if first and tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)

    def writing(self) -> AbstractContextManager[None]:
        """Hold the run while it is written: no second process may."""
        return nullcontext() if self.log is None else only_writer(self.directory)

    def line(self, kind: str, numbers: Mapping[str, Any]) -> None:
        """Log one line."""
        record = {"kind": kind, **numbers}
        if self.log is not None:
            self.log.log(record)
        if self.board is not None:
            for name, value in numbers.items():
                if isinstance(value, int | float) and name not in ("step", "steps"):
                    self.board.add_scalar(f"{kind}/{name}", value, numbers["step"])
            self.board.flush()
        if self.report is not None:
            self.report(record)

    def failure(self, said: Mapping[str, Any]) -> None:
        """Keep why a run ended in its log. Who called it hears of it by what was raised."""
        if self.log is not None:
            with suppress(OSError):  # a full disk, say, is what is being raised already
                self.log.log({"kind": FAILURE, **said})

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the final numbers."""
        if self.log is not None:
            self.log.finish(results)
        self.close()

    def close(self) -> None:
        """Let go of open files."""
        if self.board is not None:
            self.board.close()
            self.board = None
