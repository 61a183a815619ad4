"""The diagnostics in the logs of Hugging Face's ``Trainer``.

Callbacks run after the loggers, whose log they cannot add to: the mixin adds the numbers in
``Trainer.log``, and ``DiagnosticsCallback.attach`` puts the callback before the loggers.
"""

from typing import Any

from torch import nn

from flatnce.extras import require_extra
from flatnce.integrations.recorder import Ess, Recorder

require_extra("transformers", "flatnce.integrations.transformers", "transformers")
from transformers import Trainer, TrainerCallback


class DiagnosticsMixin:
    """A base class to put before a ``Trainer``: adds the diagnostics to every log of the loss.

    Objectives are looked for in the trainer's ``loss`` (sentence-transformers), ``loss_fn``,
    ``compute_loss_func`` and in its model. Keys are those of :class:`~flatnce.Monitor` after
    ``flatnce/``, as means over the interval between two logs, and ``flatnce/verdict``.

    Arguments:
        *arguments: The trainer's.
        ess: As in :class:`~flatnce.integrations.recorder.Recorder`.
        rows: Samples per step for uniformity and effective rank; 0 for neither.
        **options: The trainer's.
    """

    def __init__(
        self, *arguments: Any, ess: Ess | None = None, rows: int = 256, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.diagnostics = Recorder(ess=ess, rows=rows)
        if getattr(self, "model", None) is not None:
            self._watch()

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """The trainer's step, followed by an update of the monitors."""
        self._watch()
        loss = super().training_step(*arguments, **options)  # type: ignore[misc]
        self.diagnostics.take()
        return loss

    def log(self, logs: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Log, adding the diagnostics to logs of the training loss."""
        if "loss" in logs:
            logs = {**logs, **self.diagnostics.read(self.state.global_step)}  # type: ignore[attr-defined]
        super().log(logs, *arguments, **options)  # type: ignore[misc]

    def _watch(self) -> None:
        if self.diagnostics.objectives:
            return
        names = ("loss", "loss_fn", "compute_loss_func", "model")
        self.diagnostics.watch(*(getattr(self, name, None) for name in names))


class FlatNCETrainer(DiagnosticsMixin, Trainer):
    """``Trainer`` that logs the diagnostics of the objectives in its model."""


class DiagnosticsCallback(TrainerCallback):
    """The same as a callback: ``DiagnosticsCallback().attach(trainer)``.

    Takes ``ess`` and ``rows`` of :class:`DiagnosticsMixin`, and the flatnce loss as ``loss_fn`` if
    it is not a part of the model.
    """

    def __init__(
        self, loss_fn: nn.Module | None = None, *, ess: Ess | None = None, rows: int = 256
    ) -> None:
        self.loss_fn = loss_fn
        self.diagnostics = Recorder(ess=ess, rows=rows)

    def attach(self, trainer: Any) -> None:
        """Join a trainer, before its loggers."""
        self.diagnostics.watch(self.loss_fn, getattr(trainer, "loss", None), trainer.model)
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, *events: Any, **options: Any) -> None:
        """Find the objectives, if the trainer's constructor got the callback."""
        if not self.diagnostics.objectives:
            self.diagnostics.watch(self.loss_fn, options.get("model"))

    def on_step_end(self, *events: Any, **options: Any) -> None:
        """Take a batch."""
        self.diagnostics.take()

    on_substep_end = on_step_end  # of a batch whose gradient is accumulated

    def on_log(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        """Add the diagnostics to logs of the training loss."""
        logs = options.get("logs")
        if logs is not None and "loss" in logs:
            found = self.diagnostics.read(state.global_step)
            logs.update(found)
            state.log_history[-1].update(found)
