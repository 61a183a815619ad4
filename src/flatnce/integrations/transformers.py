"""The diagnostics in Hugging Face's ``Trainer``, and a temperature that it does not know of.

Callbacks of a user run after those of TensorBoard and the like, so a number that one of them adds
to a log comes too late for these. :class:`DiagnosticsMixin` therefore adds them in
``Trainer.log``; :class:`DiagnosticsCallback` is for a trainer that you cannot subclass, and is
put first by :meth:`~DiagnosticsCallback.attach`.
"""

from typing import Any

from torch import nn

from flatnce.extras import needed
from flatnce.integrations.recorder import Ess, Recorder

needed("transformers", "flatnce.integrations.transformers", "transformers")
from transformers import Trainer, TrainerCallback


class DiagnosticsMixin:
    """Before a ``Trainer`` in a list of bases: every log of the loss then holds the diagnostics.

    Objectives are looked for in the trainer's ``loss`` (sentence-transformers), ``loss_fn``,
    ``compute_loss_func`` and in its model. Keys are those of :class:`~flatnce.Monitor` with
    ``flatnce/`` before them, means over the interval between two logs, and ``flatnce/verdict``.

    Arguments:
        *arguments: The trainer's.
        ess: Hold this ESS by moving the temperature; a number, a schedule of numbers, or an
            :class:`~flatnce.EssController`. None leaves the temperature alone. For objectives
            only: others, such as ``FlatClipLoss``, are given theirs.
        rows: Samples a step for uniformity and effective rank; 0 for neither.
        **options: The trainer's.
    """

    def __init__(
        self,
        *arguments: Any,
        ess: Ess | None = None,
        rows: int = 256,
        **options: Any,
    ) -> None:
        """Build the trainer, then look for its objectives."""
        super().__init__(*arguments, **options)
        self.diagnostics = Recorder(ess=ess, rows=rows)
        if getattr(self, "model", None) is not None:
            self._watch()

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """The trainer's step, and a look at what the objectives left behind."""
        self._watch()
        loss = super().training_step(*arguments, **options)  # type: ignore[misc]
        self.diagnostics.take()
        return loss

    def log(self, logs: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Log, with the diagnostics where the training loss is logged."""
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

    Arguments:
        loss_fn: The loss, where the model does not hold it; any of flatnce's.
        ess: As in :class:`DiagnosticsMixin`.
        rows: As in :class:`DiagnosticsMixin`.
    """

    def __init__(
        self, loss_fn: nn.Module | None = None, *, ess: Ess | None = None, rows: int = 256
    ) -> None:
        """Know nothing yet."""
        self.loss_fn = loss_fn
        self.diagnostics = Recorder(ess=ess, rows=rows)

    def attach(self, trainer: Any) -> None:
        """Join a trainer, before its loggers: they then see what this adds."""
        self.diagnostics.watch(self.loss_fn, getattr(trainer, "loss", None), trainer.model)
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, *events: Any, **options: Any) -> None:
        """Find the objectives, where the callback was given to the trainer's constructor."""
        if not self.diagnostics.objectives:
            self.diagnostics.watch(self.loss_fn, options.get("model"))

    def on_substep_end(self, *events: Any, **options: Any) -> None:
        """Take a batch whose gradient is accumulated."""
        self.diagnostics.take()

    def on_step_end(self, *events: Any, **options: Any) -> None:
        """Take a batch."""
        self.diagnostics.take()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Add the diagnostics where the training loss is logged."""
        if logs is not None and "loss" in logs:
            found = self.diagnostics.read(state.global_step)
            logs.update(found)
            state.log_history[-1].update(found)
