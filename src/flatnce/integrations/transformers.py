"""The diagnostics in the logs of Hugging Face's ``Trainer``.

Callbacks run after the loggers and cannot add to what those have logged. So
``DiagnosticsCallback.attach`` puts the callback before the loggers; the trainers here attach one.
"""

from typing import Any

from torch import nn

from flatnce.extras import require_extra
from flatnce.integrations.recorder import Ess, Recorder

require_extra("transformers", "flatnce.integrations.transformers", "transformers")
from transformers import Trainer, TrainerCallback


class DiagnosticsCallback(TrainerCallback):
    """Adds the diagnostics to every log of the loss: ``DiagnosticsCallback().attach(trainer)``.

    Objectives are looked for in the trainer's ``loss`` (sentence-transformers), ``loss_fn``,
    ``compute_loss_func`` and in its model. Keys are those of :class:`~flatnce.Monitor` after
    ``flatnce/``, as means over the interval between two logs, and ``flatnce/verdict``.

    Arguments:
        loss_fn: The flatnce loss, if it is in none of these places.
        ess: As in :class:`~flatnce.integrations.recorder.Recorder`.
        rows: Samples per step for uniformity and effective rank; 0 for neither.
    """

    def __init__(
        self, loss_fn: nn.Module | None = None, *, ess: Ess | None = None, rows: int = 256
    ) -> None:
        self.loss_fn = loss_fn
        self.diagnostics = Recorder(ess=ess, rows=rows)

    def attach(self, trainer: Any) -> None:
        """Add this callback to a trainer, before its loggers."""
        names = ("loss", "loss_fn", "compute_loss_func", "model")
        places = (getattr(trainer, name, None) for name in names)
        self.diagnostics.watch(*places, loss_fn=self.loss_fn)
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, *events: Any, **options: Any) -> None:
        """Find the objectives, if the trainer's constructor got the callback."""
        if not self.diagnostics.objectives:
            self.diagnostics.watch(options.get("model"), loss_fn=self.loss_fn)

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


class DiagnosticsMixin:
    """A base class to put before a ``Trainer``, which attaches a :class:`DiagnosticsCallback`.

    Takes its ``ess`` and ``rows`` beside the trainer's arguments.
    """

    def __init__(
        self, *arguments: Any, ess: Ess | None = None, rows: int = 256, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        callback = DiagnosticsCallback(ess=ess, rows=rows)
        callback.attach(self)
        self.diagnostics = callback.diagnostics


class FlatNCETrainer(DiagnosticsMixin, Trainer):
    """A ``Trainer`` that logs the diagnostics of the objectives in its model."""
