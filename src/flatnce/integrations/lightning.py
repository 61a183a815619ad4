"""The diagnostics as one callback for ``lightning.pytorch`` and ``pytorch_lightning``."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import nn

from flatnce.extras import require_extra
from flatnce.integrations.recorder import Ess, Recorder
from flatnce.messages import check_at_least


def _namespace() -> ModuleType:
    """The namespace that is imported already, else the one that is installed."""
    new, old = "lightning.pytorch", "pytorch_lightning"
    if old in sys.modules and new not in sys.modules:
        return sys.modules[old]
    try:
        return require_extra(new, "flatnce.integrations.lightning", "lightning")
    except ModuleNotFoundError:
        if find_spec(old) is None:
            raise
        return import_module(old)


_base: Any = _namespace().Callback


class DiagnosticsCallback(_base):  # type: ignore[misc]
    """Logs the diagnostics and the verdict; can also control temperatures.

    The numbers are means over the steps since the last reading. They go to every logger of the
    trainer and to ``trainer.callback_metrics``, where early stopping and checkpoints can use
    them. The verdict goes to loggers that take text (TensorBoard), to Python's logger ``flatnce``
    when it changes, and to :attr:`verdict`.

    Arguments:
        loss_fn: The flatnce loss, if it is not a part of the LightningModule.
        every_n_steps: Optimizer steps between two readings; None is the trainer's
            ``log_every_n_steps``.
        ess: As in :class:`~flatnce.integrations.recorder.Recorder`.
        rows: Samples per step for uniformity and effective rank; 0 for neither.
    """

    def __init__(
        self,
        loss_fn: nn.Module | None = None,
        *,
        every_n_steps: int | None = None,
        ess: Ess | None = None,
        rows: int = 256,
    ) -> None:
        super().__init__()
        if every_n_steps is not None:
            check_at_least("every_n_steps", every_n_steps, 1, ", or None")
        self.loss_fn, self.every_n_steps = loss_fn, every_n_steps
        self.diagnostics = Recorder(ess=ess, rows=rows)
        self._read_at = 0

    @property
    def verdict(self) -> str:
        """The verdict now, one sentence per objective; empty before the first reading."""
        return "\n".join(str(found) for found in self.diagnostics.verdicts().values())

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the objectives, before a checkpoint is loaded into them."""
        if stage == "fit":
            self.diagnostics.watch(pl_module, loss_fn=self.loss_fn)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Take the batch, and read at the end of an interval."""
        self.diagnostics.take()
        step = trainer.global_step
        every = self.every_n_steps or trainer.log_every_n_steps
        if every and step != self._read_at and step % every == 0:
            self._read(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Read the unfinished last interval."""
        self._read(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Totals and history, for a checkpoint."""
        return {"diagnostics": self.diagnostics.state_dict(), "read_at": self._read_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.diagnostics.load_state_dict(state_dict["diagnostics"])
        self._read_at = state_dict["read_at"]

    def _read(self, trainer: Any) -> None:
        step = trainer.global_step
        found = self.diagnostics.read(step)
        self._read_at = step
        numbers = {k: float(v) for k, v in found.items() if not isinstance(v, str)}
        if not numbers:
            return
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in numbers.items()})
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=step)
            add_text = getattr(getattr(logger, "experiment", None), "add_text", None)
            if callable(add_text):
                add_text(f"{self.diagnostics.prefix}verdict", self.verdict, step)
