"""The snapshot of a loss's last batch, and a monitor for training loops.

The monitor accumulates on the device and returns one flat dictionary, whose keys are the names of
:data:`~flatnce.core.diagnostics.registry.DIAGNOSTICS`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.core import distributed, faults
from flatnce.core.buffers import PreciseState, writable_later
from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.geometry import SMALL_GRAM, rank_of_gram
from flatnce.core.diagnostics.registry import DIAGNOSTICS, DIVISORS, FUNCTIONS, Rows, mean_of
from flatnce.core.diagnostics.verdict import Verdict, verdict_on
from flatnce.core.direct import PlainRows

OF_ROWS = FUNCTIONS | {f"divisor of {name}": function for name, function in DIVISORS.items()}
MEANS = (*OF_ROWS, "objective_loss", "uniformity")
"""Numbers whose mean over steps is kept, in the order of ``Monitor.totals``."""

FORMER_MEANS = (
    "loss mi mi_ceiling ess ess_with_positive gain saturated top1 negatives alignment temperature "
    "uniformity"
).split()
"""The order of ``totals`` in states that were saved without names."""


@dataclass(frozen=True)
class Snapshot:
    """The last batch of a loss: ``loss_fn.last``.

    Its diagnostics are the attributes ``ess``, ``ess_paper``, ``ess_with_positive``, ``gain``,
    ``mi``, ``mi_ceiling``, ``saturated``, ``top1``, ``negatives``, ``alignment`` (of unit rows)
    and ``temperature``: zero-dimensional tensors on the device. Reading one raises the faults of
    the batch, which on an accelerator waits for it; in a training loop use
    :class:`~flatnce.Monitor`.
    """

    contrast: Contrast  #: row statistics, detached
    loss: Float[Tensor, ""]  #: the value the loss returned, detached
    #: one row per sample, detached, for the geometry
    embeddings: Float[Tensor, "b d"] | None = field(default_factory=lambda: None, repr=False)
    objective: str = ""  #: name of the objective
    unit_rows: bool = True  #: whether scores are cosines over the temperature
    layout: str = "two_view"  #: name of its layout
    rows: PlainRows | None = field(default=None, init=False, repr=False)

    @staticmethod
    def of_rows(rows: PlainRows, objective: str, unit_rows: bool, layout: str) -> "Snapshot":
        """The batch of a loss in closed form; contrast and loss are computed when read."""
        found = object.__new__(Snapshot)
        found.__dict__.update(rows=rows, objective=objective, unit_rows=unit_rows, layout=layout)
        return found

    def __getattr__(self, name: str) -> Any:
        """A diagnostic of the batch, or what is computed from ``rows`` when it is first read."""
        if self.rows is not None and name in ("contrast", "loss", "embeddings"):
            rows, beta = self.rows, self.rows.beta
            if name == "contrast":
                beta = beta if isinstance(beta, Tensor) else rows.negative.new_full((), beta)
                statistics: Any = rows.statistics()
                value: Any = Contrast(**statistics, beta=beta, faults=rows.faults())
            else:
                value = rows.loss() if name == "loss" else rows.unit[: rows.positive.shape[-1]]
            self.__dict__[name] = value
            return value
        if name not in FUNCTIONS or (DIAGNOSTICS[name].needs_unit_rows and not self.unit_rows):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if not faults.must_not_read(self.contrast.beta):
            faults.raise_flagged(self.contrast.faults)
        return mean_of(self.contrast, name)

    def __repr__(self) -> str:
        """Sizes, and numbers where reading them is free."""
        said = [f"objective={self.objective!r}"] if self.objective else []
        said.append(f"rows={self.contrast.positive.shape[0]}")
        if self.embeddings is not None:
            said.append(f"embeddings={tuple(self.embeddings.shape)}")
        # Tensors of another type have no numbers, for example while exporting.
        if not faults.can_raise_now(self.loss) or type(self.loss) is not Tensor:
            return f"Snapshot({', '.join(said)}, on {self.loss.device}, numbers not read)"
        said.append(f"loss={float(self.loss):.4g}")
        for name in ("negatives", "gain", "ess", "temperature"):
            said.append(f"{name}={float(mean_of(self.contrast, name)):.4g}")
        if found := faults.flagged(self.contrast.faults):
            said.append(f"faults={'+'.join(found)}")
        return f"Snapshot({', '.join(said)})"


@dataclass(frozen=True, eq=False)
class Interval:
    """The sums of a :class:`Monitor` over an interval, which a GPU copies to the host."""

    flags: Tensor
    sums: Tensor  # means over processes of totals and steps; own steps
    gram: Tensor  # second moments of the embeddings
    done: torch.cuda.Event | None  # after which all have arrived

    def arrived(self) -> bool:
        """Whether it can be read without waiting."""
        return self.done is None or self.done.query()

    def wait(self) -> None:
        """Wait until it has arrived."""
        if self.done is not None:
            self.done.synchronize()

    def rank(self) -> float:
        """The effective rank; of wide embeddings computed on the device, on another stream."""
        if not self.gram.is_cuda:
            return float(rank_of_gram(self.gram))
        with torch.cuda.stream(torch.cuda.Stream(self.gram.device)):
            return float(rank_of_gram(self.gram))


class Monitor(PreciseState):
    """Means of the diagnostics over steps, without a host read before :meth:`compute`.

    Call :meth:`update` every step and :meth:`compute` every interval; :meth:`close` ends an
    interval without making a GPU wait. Inside ``torch.compile`` or a CUDA graph, ``update`` is
    part of the graph. Over several processes ``compute`` and ``close`` are collective: call them
    on all.

    The keys of the dictionary are those of
    :data:`~flatnce.core.diagnostics.registry.DIAGNOSTICS`: ``temperature`` where it is known,
    ``objective_loss``, ``uniformity`` and ``effective_rank`` when fed ``loss_fn.last``,
    ``alignment`` when its rows are normalised; and ``step`` and ``steps`` (how many were
    averaged).

    Arguments:
        rows: Samples per step for uniformity and effective rank; 0 switches these off.

    Examples:
        >>> from flatnce.core.objectives.losses import FlatNCE
        >>> loss_fn, monitor = FlatNCE(temperature=0.1), Monitor()
        >>> loss = loss_fn(torch.randn(16, 8), torch.randn(16, 8))
        >>> monitor.update(loss_fn.last)
        >>> numbers = monitor.compute(step=1)
        >>> round(numbers["mi_ceiling"], 3)
        3.434
    """

    totals: Tensor
    steps: Tensor
    faults: Tensor
    gram: Tensor

    def __init__(self, rows: int = 256) -> None:
        super().__init__()
        if not isinstance(rows, int | Integral) or rows < 0 or rows == 1:
            raise ValueError(f"rows={rows!r} must be 0 (no geometry) or a whole number from 2 on")
        self.rows = rows
        self.register_buffer("totals", torch.zeros(len(MEANS), dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("faults", torch.zeros(len(faults.FAULTS), dtype=torch.bool))
        self.register_buffer("gram", torch.zeros((0, 0), dtype=torch.float64))
        self._waiting: list[_Step] = []
        self._begun_at = 0  # the step at which the interval began
        self.history: list[dict[str, float | int]] = []
        self.objective, self.layout = "", "two_view"

    def update(self, last: Snapshot | Contrast) -> None:
        """Add one step.

        Outside a compiled or captured step, a few steps are collected before their diagnostics
        are computed, all at once. Pass ``loss_fn.last``, or a contrast (then without geometry).
        """
        if not isinstance(last, Snapshot | Contrast):
            raise ValueError(f"last has type {type(last).__name__}; pass loss_fn.last")
        step = _step_of(last, self.rows)
        like = step.rows["positive"]
        if self.totals.device != like.device:
            self.to(like.device)
        if isinstance(last, Snapshot):
            self.objective, self.layout = last.objective, last.layout
        if faults.must_not_read(like) or faults.is_transformed(like):
            self._take([step])
        else:
            if self._waiting and self._waiting[0].signature() != step.signature():
                self._take_waiting()
            if step.samples is not None:
                # At once: within a captured step each replay would clear it.
                self._fit_gram(step.samples.shape[-1])
            self._waiting.append(step.copy())
            if len(self._waiting) == 16:  # computed together, in fewer operations
                self._take_waiting()
        self.steps += 1
        if step.found is not None:
            self.faults |= step.found

    def compute(
        self, step: int | None = None, *, reset: bool = True, interval: Interval | None = None
    ) -> dict[str, float | int]:
        """Means since the last reset as plain numbers; raises the faults found, each once.

        Arguments:
            step: The training step, for the history and the verdict; else steps so far.
            reset: Begin a new interval; ignored where an interval is given.
            interval: From :meth:`close`, in place of the current one; pass each interval once.
        """
        if not isinstance(step, Integral | None):
            raise ValueError(f"step={step!r} must be a whole number; pass the training step")
        taken = self.close(reset=reset) if interval is None else interval
        taken.wait()
        faults.raise_flagged(taken.flags)
        *totals, steps, own = taken.sums.tolist()
        if steps == 0:
            since = "since the last compute" if self.history else "yet"
            raise ValueError(f"the monitor has no steps {since}; call update(loss_fn.last) first")
        means = {name: total / steps for name, total in zip(MEANS, totals, strict=True)}
        for name in DIVISORS:
            divisor = means[f"divisor of {name}"]
            means[name] = means[name] / divisor if divisor else 1.0
        found = {name: means[name] for name in DIAGNOSTICS if name in means}
        if math.isfinite(found["uniformity"]):
            found["uniformity"] = math.log(found["uniformity"])
            found["effective_rank"] = taken.rank()
        numbers: dict[str, float | int] = {k: v for k, v in found.items() if not math.isnan(v)}
        numbers["step"] = self._begun_at + int(own) if step is None else step
        numbers["steps"] = int(own)
        self.history.append(numbers)
        if reset or interval is not None:
            self._begun_at = int(numbers["step"])
        return numbers

    @torch.no_grad()
    def close(self, *, reset: bool = True) -> Interval:
        """End the interval, without a host read after a step; ``reset`` begins a new one.

        :meth:`compute` takes the interval returned, and waits until it has arrived.
        """
        # Every collective is here, and every raise in compute: all processes then raise, and none
        # waits. They may have taken different numbers of steps, so totals and steps are averaged.
        self._take_waiting()
        device = distributed.device_for(self.totals)  # without a step here, it was not moved yet
        self.to(device)
        if self.rows and distributed.is_active():
            widths = distributed.gather(self.steps.new_full((1,), len(self.gram)))
            if not len(self.gram):  # no sample has been seen here
                self._fit_gram(int(widths.max()))
        flags = distributed.mean(self.faults.to(torch.float32)) > 0
        both = distributed.mean(torch.cat([self.totals, self.steps[None]]))
        gram = distributed.mean(self.gram)
        sent = (_sent(flags), _sent(torch.cat([both, self.steps[None]])))
        # The device computes the eigenvalues of wide embeddings.
        gram = gram.clone() if len(gram) > SMALL_GRAM else _sent(gram)
        done = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        self.faults.zero_()  # each fault is raised once
        if reset:
            self._clear()
        return Interval(*sent, gram, done)

    def verdict(self, epoch: float | None = None) -> Verdict:
        """A verdict in words on the history of :meth:`compute`.

        It is ``undecided`` before 100 steps, and before the first ``epoch`` where that is given.
        """
        known = {} if epoch is None else {"epoch": epoch}
        history = [*self.history[:-1], *({**last, **known} for last in self.history[-1:])]
        return verdict_on(history, self.objective, self.layout)

    def reset(self) -> None:
        """Begin a new interval; the history stays."""
        self._begun_at = int(self.history[-1]["step"]) if self.history else 0
        self._clear()

    def _clear(self) -> None:
        self._waiting.clear()
        for buffer in (self.totals, self.steps, self.faults, self.gram):
            buffer.zero_()

    def get_extra_state(self) -> dict[str, Any]:
        """Plain data beside the buffers, for a state dict."""
        known = {"objective": self.objective, "layout": self.layout, "begun_at": self._begun_at}
        return {"history": self.history, "means": list(MEANS), **known}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_extra_state` gave."""
        self.history, self.objective = list(state["history"]), state["objective"]
        self.layout = state.get("layout", "two_view")
        ended = int(self.history[-1]["step"]) if self.history else 0
        self._begun_at = state.get("begun_at", ended)

    def _save_to_state_dict(self, *arguments: Any) -> None:
        self._take_waiting()
        super()._save_to_state_dict(*arguments)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Assign the saved totals by name, and take the saved width of the embeddings."""
        self._waiting.clear()
        gram, totals = state_dict.get(f"{prefix}gram"), state_dict.get(f"{prefix}totals")
        if gram is not None:
            self.gram = self.gram.new_zeros(gram.shape)
        if totals is not None:
            extra = state_dict.get(f"{prefix}_extra_state", {})
            names = extra.get("means", FORMER_MEANS)
            if len(names) != len(totals):
                raise ValueError(
                    f"the monitor's state holds {len(totals)} totals for {len(names)} names; it "
                    "is of another version or damaged, so start a new Monitor"
                )
            saved = dict(zip(names, totals, strict=True))
            if "ess" in saved and "ess_paper" not in saved:  # it was the paper's form
                steps = state_dict[f"{prefix}steps"].to(totals)
                saved |= {"ess_paper": saved["ess"], "divisor of ess": steps}
            # The mean of a diagnostic that was not saved is unknown in this interval.
            unknown = totals.new_full((), torch.nan if state_dict[f"{prefix}steps"] else 0.0)
            by_name = torch.stack([saved.get(name, unknown) for name in MEANS])
            state_dict = {**state_dict, f"{prefix}totals": by_name}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _take_waiting(self) -> None:
        if self._waiting:
            self._take(self._waiting)
            self._waiting = []

    @torch.no_grad()
    def _take(self, steps: "list[_Step]") -> None:
        """Add the diagnostics of steps that have the same shapes."""
        first = steps[0]

        def together(values: Sequence[Tensor]) -> Tensor:
            return torch.stack(tuple(values)) if len(steps) > 1 else values[0]

        statistics = {name: together([step.rows[name] for step in steps]) for name in first.rows}
        like = statistics["positive"]
        betas = [step.beta for step in steps]
        if isinstance(betas[0], Tensor):
            beta = together(betas)  # type: ignore[arg-type]
        elif len(set(betas)) == 1:  # filled on the device, without a copy from the host
            beta = like.new_full((len(steps),) if len(steps) > 1 else (), betas[0])
        else:
            beta = like.new_tensor(betas)
        unknown = torch.full_like(beta, torch.nan)
        losses = [step.loss for step in steps if step.loss is not None]
        loss = together(losses) if losses else unknown
        if first.plain is not None:
            plain = first.plain.with_fields(beta, **statistics)
            statistics, loss = plain.statistics(), plain.loss()
            found = plain.faults()
            if found is not None:
                self.faults |= found
        rows, weight = Rows(statistics, beta.reciprocal()[..., None]), statistics.get("weight")
        of_unit_rows = {name for name, entry in DIAGNOSTICS.items() if entry.needs_unit_rows}
        values = []
        for name, function in OF_ROWS.items():
            known = first.unit_rows or name not in of_unit_rows
            value = function(rows) if known else unknown[..., None]
            values.append(value.expand_as(rows.positive))
        of_rows = torch.stack(values, dim=-2)
        of_rows = of_rows if weight is None else of_rows * weight[..., None, :]
        samples = [step.samples for step in steps if step.samples is not None]
        potential = self._look_at(together(samples)) if samples else unknown
        others = torch.stack([loss.double(), potential.double()], dim=-1)
        means = torch.cat([of_rows.mean(-1).double(), others], dim=-1)
        for step_means in means if len(steps) > 1 else (means,):
            self.totals += step_means

    def _fit_gram(self, width: int) -> None:
        """Start the second moments anew where the width of the embeddings changed."""
        if self.gram.shape[0] != width:
            with writable_later():
                self.gram = self.gram.new_zeros((width, width))

    def _look_at(self, samples: Tensor) -> Tensor:
        """Add the second moments of samples; return the mean potential of each step."""
        n, width = samples.shape[-2:]
        self._fit_gram(width)
        rows = normalize(samples.double(), dim=-1)
        for step in rows if rows.ndim == 3 else (rows,):
            self.gram.addmm_(step.T, step)
        # For unit rows exp(-2 |x - y|²) = exp(4 <x, y> - 4); that of a row with itself is 1. This
        # takes fewer passes than mean_potential, and float64 has digits enough for the difference.
        potentials = (rows @ rows.mT).mul_(4).sub_(4).exp_().sum(dim=(-2, -1))
        return (potentials - n) / (n * (n - 1))


@dataclass(slots=True)
class _Step:
    """The inputs of the diagnostics of one step; of a plain batch those of ``plain``."""

    rows: dict[str, Tensor]
    unit_rows: bool
    beta: Tensor | float
    loss: Tensor | None
    samples: Tensor | None
    found: Tensor | None
    plain: PlainRows | None = None

    def copy(self) -> "_Step":
        """A copy that the next step does not overwrite, and that holds no more than it needs."""
        if self.plain is not None:  # tensors of its own, of which the samples may be a part
            if self.samples is not None and 2 * len(self.samples) < len(self.plain.unit):
                self.samples = self.samples.clone()
            self.plain = self.plain.with_fields(self.beta)
            return self
        samples = None if self.samples is None else self.samples.detach().clone()
        loss = None if self.loss is None else self.loss.detach().clone()
        copies = torch.stack(tuple(self.rows.values())).unbind()
        rows = dict(zip(self.rows, copies, strict=True))
        beta = self.beta.detach().clone() if isinstance(self.beta, Tensor) else self.beta
        return replace(self, rows=rows, beta=beta, loss=loss, samples=samples)

    def signature(self) -> tuple[object, ...]:
        """What is equal for steps that can be computed together."""
        tensors = (*self.rows.values(), self.loss, self.samples)
        kinds = tuple(None if t is None else (t.shape, t.dtype) for t in tensors)
        plain = self.plain and (self.plain.closed_form, self.plain.others)
        return (*self.rows, self.unit_rows, isinstance(self.beta, Tensor), plain, *kinds)


def _step_of(last: Snapshot | Contrast, limit: int) -> _Step:
    """One step, with at most a limit of samples."""
    unit_rows = isinstance(last, Snapshot) and last.unit_rows
    samples = None
    if limit and isinstance(last, Snapshot) and last.embeddings is not None:
        samples = last.embeddings[:limit] if len(last.embeddings) > 1 else None
    plain = last.rows if isinstance(last, Snapshot) else None
    if plain is not None:
        return _Step(plain.fields(), unit_rows, plain.beta, None, samples, plain.found, plain)
    contrast = last.contrast if isinstance(last, Snapshot) else last
    rows = {
        name: value.detach() if value.requires_grad else value
        for name, value in contrast.by_row().items()
    }
    loss = last.loss if isinstance(last, Snapshot) else None
    return _Step(rows, unit_rows, contrast.beta, loss, samples, contrast.faults)


def _sent(tensor: Tensor) -> Tensor:
    """A copy for the host; from a GPU it arrives later."""
    return tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor.clone()
