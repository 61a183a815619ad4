"""Shared by the integrations of trainers: find objectives, update monitors, control ESS."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from torch import nn

from flatnce.core import distributed
from flatnce.core.control import EssController, Schedule
from flatnce.core.diagnostics import Monitor, Snapshot, Verdict
from flatnce.core.objectives.base import Objective
from flatnce.core.objectives.temperature import LearnedTemperature

Ess: TypeAlias = float | Schedule | EssController
"""A target ESS: a number, a schedule of numbers, or a controller."""


def objectives_in(*roots: object) -> dict[str, nn.Module]:
    """Every module with a snapshot of its own in ``last``, inside modules or mappings of them."""
    found: dict[str, nn.Module] = {}
    for root in roots:
        parts = root if isinstance(root, Mapping) else {"": root}
        for start, part in parts.items():
            if not isinstance(part, nn.Module):
                continue
            for name, module in part.named_modules(prefix=str(start)):
                own = hasattr(type(module), "last") and "_last" in module.__dict__
                if own and module not in found.values():
                    found[name if name not in found else f"{name}.{len(found)}"] = module
    return found


class Recorder:
    """Monitors the objectives of a training loop that belongs to another library.

    Call :meth:`take` after every training step and :meth:`read` once per interval, for numbers to
    log. A verdict that changes also goes to Python's logger ``flatnce``, as a warning if it is
    collapse or saturation. Over several processes ``read`` is collective.

    Arguments:
        ess: Hold this ESS by changing the temperature of every objective, from its present value
            on; a number, a schedule of numbers, or an :class:`~flatnce.EssController`. None
            leaves the temperature alone. Refused for a temperature that is learned or scheduled,
            and for losses such as ``FlatClipLoss`` whose temperature is an argument of the call.
        rows: Samples per step for uniformity and effective rank; 0 for neither.
    """

    prefix = "flatnce/"
    """Put before every key."""

    def __init__(self, *, ess: Ess | None = None, rows: int = 256) -> None:
        self.ess, self.rows = ess, rows
        self.objectives: dict[str, nn.Module] = {}
        self.monitors: dict[str, Monitor] = {}
        self._seen: dict[str, Snapshot | None] = {}
        self._said: dict[str, str] = {}

    def watch(self, *roots: object, loss_fn: object = None) -> None:
        """Find the objectives, and control the temperatures of new ones; loss_fn must hold one."""
        if loss_fn is not None and not objectives_in(loss_fn):
            raise ValueError(
                f"loss_fn has type {type(loss_fn).__name__}, which holds no flatnce objective; "
                "leave it out, or pass a flatnce.FlatNCE"
            )
        found = objectives_in(loss_fn, *roots)
        if not found:
            raise ValueError(
                "no flatnce objective was found; keep the loss (a flatnce.FlatNCE, say) "
                "as an attribute of the model, or pass it as loss_fn or to the trainer as loss"
            )
        if self.ess is not None:
            known = self.objectives.values()
            _control([loss for loss in found.values() if loss not in known], self.ess)
        for name, objective in found.items():
            self.monitors.setdefault(name, Monitor(self.rows))
            # ``last`` itself would raise before the first call.
            self._seen[name] = objective.__dict__["_last"]
        self.objectives = found

    def take(self) -> None:
        """Add the last batch of every objective that was called since."""
        for name, objective in self.objectives.items():
            last = objective.__dict__["_last"]
            if last is not None and last is not self._seen[name]:
                self.monitors[name].update(last)
                self._seen[name] = last

    def read(self, step: int) -> dict[str, float | int | str]:
        """Means since the last reading and the kind of verdict; empty without a step."""
        logged: dict[str, float | int | str] = {}
        for name, monitor in self.monitors.items():
            if not float(distributed.mean(monitor.steps.double())):
                continue
            middle = f"{name}/" if len(self.monitors) > 1 else ""
            numbers = monitor.compute(step=step)
            verdict = monitor.verdict()
            for key, value in numbers.items():
                if key not in ("step", "steps"):
                    logged[f"{self.prefix}{middle}{key}"] = value
            logged[f"{self.prefix}{middle}verdict"] = verdict.kind
            if self._said.get(name) != verdict.kind and distributed.rank() == 0:
                grave = verdict.kind in ("collapsed", "saturated")  # others are common early on
                level = logging.WARNING if grave else logging.INFO
                logging.getLogger("flatnce").log(level, "%s", verdict)
            self._said[name] = verdict.kind
        return logged

    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of every objective that has been read."""
        return {name: m.verdict() for name, m in self.monitors.items() if m.history}

    def state_dict(self) -> dict[str, Any]:
        """Totals and history, for a checkpoint."""
        return {name: monitor.state_dict() for name, monitor in self.monitors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        for name, saved in state.items():
            self.monitors.setdefault(name, Monitor(self.rows)).load_state_dict(saved)


def _control(losses: Sequence[Any], ess: Ess) -> None:
    """Control the temperatures of all losses, or of none."""
    for loss in losses:
        name = type(loss).__name__
        if not isinstance(loss, Objective) or loss.temperature is None:
            raise ValueError(
                f"ess={ess!r} cannot be held by {name}, whose temperature flatnce cannot "
                "change; leave ess out, or use a flatnce.FlatNCE"
            )
        source = loss.temperature_source.source
        moves = isinstance(source, LearnedTemperature | Schedule)
        if moves or getattr(source, "requires_grad", False):
            raise ValueError(
                f"ess={ess!r} and the temperature={type(source).__name__} of {name} both set the "
                "temperature; leave ess out to keep that one, or give the loss a number"
            )
    for loss in losses:
        if isinstance(ess, EssController):
            loss.temperature = replace(ess)
        else:
            start = float(loss.temperature)
            loss.temperature = EssController(ess, temperature_at_start=start)
