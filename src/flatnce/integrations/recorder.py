"""What the trainers' integrations share: find the objectives, feed monitors, read, drive."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor, nn

from flatnce.core import distributed
from flatnce.core.control import EssController, Schedule
from flatnce.core.diagnostics import Monitor, Snapshot, Verdict
from flatnce.core.objectives import LearnedTemperature, Objective

Ess: TypeAlias = float | Schedule | EssController
"""A wanted ESS: a number, a schedule of numbers, or a controller of one's own."""

LOG = logging.getLogger("flatnce")
_UNSAID = ("step", "steps")
_LOUD = ("collapsed", "saturated")  # the others come and go, above all early on


def objectives_in(*roots: object) -> dict[str, nn.Module]:
    """Every loss of flatnce inside modules, or inside mappings of modules, by its name there.

    That is an :class:`~flatnce.core.objectives.Objective`, or any other module that leaves a
    :class:`~flatnce.core.diagnostics.Snapshot` behind in ``last``, such as ``FlatClipLoss``. One that
    only passes on the ``last`` of an objective inside it is found as that objective.

    Arguments:
        *roots: Modules, mappings of names to modules, or anything else, which is passed over.

    Examples:
        >>> from flatnce.core.objectives.losses import FlatNCE
        >>> list(objectives_in({"text": FlatNCE()}, None))
        ['text']
    """
    found: dict[str, nn.Module] = {}
    for root in roots:
        parts: Iterable[tuple[str, object]] = [("", root)]
        if isinstance(root, Mapping):
            parts = [(str(name), part) for name, part in root.items()]
        for start, part in parts:
            if not isinstance(part, nn.Module):
                continue
            for name, module in part.named_modules():
                if _leaves_a_snapshot(module) and all(module is not o for o in found.values()):
                    whole = ".".join(filter(None, (start, name)))
                    found[whole if whole not in found else f"{whole}.{len(found)}"] = module
    return found


class Recorder:
    """Watches the objectives of a training that belongs to another library.

    :meth:`take` after every training step adds to totals on the device; :meth:`read` once an
    interval returns numbers to log. A verdict that changes is also said to Python's logger
    ``flatnce``, as a warning if it is collapse or saturation. Over several processes ``read`` is
    collective.

    Arguments:
        ess: Let every objective's temperature hold this ESS, from where it stands now on. Refused
            for losses that are no :class:`~flatnce.core.objectives.Objective`, whose temperature is
            given, and for a temperature that is learned.
        prefix: Put before every key.
        rows: Samples a step for the geometry, see :class:`~flatnce.Monitor`; 0 for none.

    Examples:
        >>> import torch
        >>> from flatnce.core.objectives.losses import FlatNCE
        >>> loss_fn, recorder = FlatNCE(), Recorder()
        >>> recorder.watch(loss_fn)
        >>> loss = loss_fn(torch.randn(8, 4), torch.randn(8, 4))
        >>> recorder.take()
        >>> sorted(recorder.read(step=1))[:3]
        ['flatnce/alignment', 'flatnce/effective_rank', 'flatnce/ess']
    """

    def __init__(
        self, *, ess: Ess | None = None, prefix: str = "flatnce/", rows: int = 256
    ) -> None:
        """Know nothing yet."""
        self.ess, self.prefix, self.rows = ess, prefix, rows
        self.objectives: dict[str, nn.Module] = {}
        self.monitors: dict[str, Monitor] = {}
        self._seen: dict[str, Snapshot | None] = {}
        self._said: dict[str, str] = {}

    def watch(self, *roots: object) -> None:
        """Find the objectives, and put the temperatures of new ones under control."""
        found = objectives_in(*roots)
        if not found:
            raise ValueError(
                "no flatnce objective was found to watch; keep the loss (a flatnce.FlatNCE, say) "
                "as an attribute of the model, or pass it as loss_fn (to FlatNCETrainer: as loss, "
                "a FlatNCERankingLoss; with objective='infonce' it has the library's gradient)"
            )
        known = list(self.objectives.values())
        new = [one for one in found.values() if all(one is not other for other in known)]
        if self.ess is not None:
            _drive(new, self.ess)
        for name, objective in found.items():
            self.monitors.setdefault(name, Monitor(self.rows))
            self._seen[name] = _last_of(objective)
        self.objectives = found

    def take(self) -> None:
        """Add what every objective was called with since the last time."""
        for name, objective in self.objectives.items():
            last = _last_of(objective)
            if last is not None and last is not self._seen[name]:
                self.monitors[name].update(last)
                self._seen[name] = last

    def read(self, step: int) -> dict[str, float | int | str]:
        """Means since the last reading, and the verdict's kind; nothing where no step was taken."""
        logged: dict[str, float | int | str] = {}
        for name, monitor in self.monitors.items():
            if not int(monitor.steps):
                continue
            middle = f"{name}/" if len(self.monitors) > 1 else ""
            numbers = monitor.compute(step=step)
            verdict = monitor.verdict()
            logged |= {
                f"{self.prefix}{middle}{key}": value
                for key, value in numbers.items()
                if key not in _UNSAID
            }
            logged[f"{self.prefix}{middle}verdict"] = verdict.kind
            if self._said.get(name) != verdict.kind and distributed.rank() == 0:
                LOG.log(logging.WARNING if verdict.kind in _LOUD else logging.INFO, "%s", verdict)
            self._said[name] = verdict.kind
        return logged

    def verdicts(self) -> dict[str, Verdict]:
        """The present verdict of every objective that has been read."""
        return {name: m.verdict() for name, m in self.monitors.items() if m.history}

    def state_dict(self) -> dict[str, Any]:
        """Totals and history, for a checkpoint."""
        return {name: monitor.state_dict() for name, monitor in self.monitors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, saved in state.items():
            self.monitors.setdefault(name, Monitor(self.rows)).load_state_dict(saved)


def _leaves_a_snapshot(module: nn.Module) -> bool:
    """Whether it keeps diagnostics of its own; asking for ``last`` would raise before a call."""
    return hasattr(type(module), "last") and "_last" in module.__dict__


def _last_of(module: nn.Module) -> Snapshot | None:
    """What a loss left behind, if anything yet."""
    last: Snapshot | None = module.__dict__["_last"]
    return last


def _drive(losses: Sequence[nn.Module], ess: Ess) -> None:
    """Put temperatures under control; all of them or none."""
    objectives = [loss for loss in losses if isinstance(loss, Objective)]
    others = {type(loss).__name__ for loss in losses if not isinstance(loss, Objective)}
    if others:
        raise ValueError(
            f"ess={ess!r} cannot be held by {', '.join(sorted(others))}, whose temperature is not "
            "flatnce's to move; leave ess out, or use a flatnce.FlatNCE"
        )
    for objective in objectives:
        _refuse_learned(objective, ess)
    for objective in objectives:
        objective.temperature = _controller(ess, objective)


def _refuse_learned(objective: Objective, ess: Ess) -> None:
    """One temperature cannot both be trained and be moved towards an ESS."""
    learned = objective.temperature_source.source
    if not (
        isinstance(learned, LearnedTemperature)
        or (isinstance(learned, Tensor) and learned.requires_grad)
    ):
        return
    name, kind = type(objective).__name__, type(learned).__name__
    raise ValueError(
        f"ess={ess!r} and the temperature={kind} of {name} both set the temperature; leave ess "
        "out to learn it, or give the loss a number (temperature=0.1) to hold the ESS"
    )


def _controller(ess: Ess, objective: Objective) -> EssController:
    """The controller to use: one's own as it is, else one that starts where the objective is."""
    if isinstance(ess, EssController):
        return replace(ess)
    return EssController(ess, temperature_at_start=float(objective.temperature))
