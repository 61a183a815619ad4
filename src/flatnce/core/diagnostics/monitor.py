"""A monitor any loop can feed: accumulates on the device, reads on request, one flat dict."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from flatnce.core import distributed, faults
from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.ess import effective_sample_size
from flatnce.core.diagnostics.geometry import SMALL_GRAM, mean_potential, rank_of_gram
from flatnce.core.diagnostics.gradients import GradientMeter
from flatnce.core.diagnostics.saturation import (
    gradient_gain,
    mutual_information,
    mutual_information_ceiling,
    retrieval_top1,
    saturated_share,
)
from flatnce.core.diagnostics.snapshot import Snapshot
from flatnce.core.diagnostics.verdict import Verdict, verdict_on

__all__ = ["Interval"]

_MEANS = (
    "loss",
    "mi",
    "mi_ceiling",
    "ess",
    "ess_with_positive",
    "gain",
    "saturated",
    "top1",
    "negatives",
    "alignment",
    "temperature",
    "uniformity",
)


@dataclass(frozen=True, eq=False)
class Interval:
    """What a :class:`Monitor` summed over an interval: on a GPU still on its way to the host.

    Arguments:
        flags: Faults.
        sums: Of each diagnostic and the steps, as means over processes; this one's steps; what
            the gradients' meter found.
        gram: Of the embeddings.
        of_gradients: What of the gradients it is.
        done: Once it is, all have arrived.
    """

    flags: Tensor
    sums: Tensor
    gram: Tensor
    of_gradients: tuple[str, ...]
    done: torch.cuda.Event | None

    def arrived(self) -> bool:
        """Whether reading it now waits for nothing."""
        return self.done is None or self.done.query()

    def wait(self) -> None:
        """Until it has arrived."""
        if self.done is not None:
            self.done.synchronize()

    def rank(self) -> float:
        """The effective rank; of a wide one computed on the device, on another stream."""
        if not self.gram.is_cuda:
            return float(rank_of_gram(self.gram))
        with torch.cuda.stream(torch.cuda.Stream(self.gram.device)):
            return float(rank_of_gram(self.gram))


class Monitor(nn.Module):
    """Means of the diagnostics over steps, without a host read until they are asked for.

    Call :meth:`update` every step and :meth:`compute` every interval, or :meth:`close` where a GPU
    is not to wait while the host reads. Inside ``torch.compile`` or
    a CUDA graph, ``update`` is part of the graph. Geometry looks at up to ``rows`` samples a step.
    Over several processes ``compute`` and ``close`` are collective: call them on all.

    Keys of the dict: ``loss`` (InfoNCE's value, whatever the objective), ``mi`` and ``mi_ceiling``
    (nats), ``ess``, ``ess_with_positive``, ``gain``, ``saturated``, ``top1``, ``negatives`` (their
    number a row); ``temperature`` where it is known; ``alignment``, ``uniformity`` and
    ``effective_rank`` when fed ``loss_fn.last`` of normalised rows; ``gradient_norm`` and
    ``gradient_snr`` when gradients were given; ``step`` and ``steps`` (how many were averaged).

    Arguments:
        rows: Samples a step for uniformity and effective rank; 0 switches the geometry off.

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
        """Start empty, on the CPU; it follows the first batch's device."""
        super().__init__()
        if rows < 0 or rows == 1:
            raise ValueError(f"rows={rows} must be 0 (no geometry) or at least 2")
        self.rows = rows
        self.register_buffer("totals", torch.zeros(len(_MEANS), dtype=torch.float64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("faults", torch.zeros(len(faults.FAULTS), dtype=torch.bool))
        self.register_buffer("gram", torch.zeros((0, 0), dtype=torch.float64))
        self.gradients = GradientMeter()
        self.history: list[dict[str, float | int]] = []
        self.objective = ""

    @torch.no_grad()
    def update(self, last: Snapshot | Contrast) -> None:
        """Take one step.

        Arguments:
            last: ``loss_fn.last``, or a contrast (then without geometry).
        """
        if not isinstance(last, Snapshot | Contrast):
            raise ValueError(f"last is a {type(last).__name__}; pass loss_fn.last, not the loss")
        contrast = last.contrast if isinstance(last, Snapshot) else last
        if self.totals.device != contrast.positive.device:
            self.to(contrast.positive.device)
        information, ceiling = mutual_information(contrast), mutual_information_ceiling(contrast)
        distance = potential = torch.full_like(information, torch.nan)
        if isinstance(last, Snapshot):
            self.objective = last.objective
            if last.unit_rows:
                distance = _mean_distance(contrast)
            if self.rows and last.embeddings is not None and last.embeddings.shape[0] > 1:
                potential = self._look_at(last.embeddings[: self.rows])
        values = (
            ceiling - information,
            information,
            ceiling,
            effective_sample_size(contrast),
            effective_sample_size(contrast, with_positive=True),
            gradient_gain(contrast),
            saturated_share(contrast),
            retrieval_top1(contrast),
            contrast.count.mean(),
            distance,
            contrast.beta.reciprocal(),
            potential,
        )
        self.totals += torch.stack([value.detach().double() for value in values])
        self.steps += 1
        if contrast.faults is not None:
            self.faults |= contrast.faults

    def update_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Take one step's gradients, after ``backward``; optional, outside the compiled step.

        Arguments:
            parameters: For example ``model.parameters()``; the same ones every step.
        """
        self.gradients.update(parameters)

    def compute(
        self,
        step: int | None = None,
        *,
        reset: bool = True,
        interval: Interval | None = None,
    ) -> dict[str, float | int]:
        """Means since the last reset as plain numbers; raises the faults found on the device.

        A fault is said once; with ``reset`` a new interval has begun then.

        Arguments:
            step: The training step, for the history and the verdict; else steps so far.
            reset: Begin a new interval. Of no account where one is given.
            interval: From :meth:`close`, in place of what was summed since. Each once: it becomes
                a part of the history.
        """
        taken = self.close(reset=reset) if interval is None else interval
        taken.wait()
        faults.raise_flagged(taken.flags)
        sums = taken.sums.tolist()
        totals, (steps, own, *of_gradients) = sums[: len(_MEANS)], sums[len(_MEANS) :]
        if steps == 0:
            raise ValueError("the monitor has seen no step; call update(loss_fn.last) first")
        found = {name: total / steps for name, total in zip(_MEANS, totals, strict=True)}
        if math.isfinite(found["uniformity"]):
            found["uniformity"] = math.log(found["uniformity"])
            found["effective_rank"] = taken.rank()
        found |= zip(taken.of_gradients, of_gradients, strict=True)
        numbers: dict[str, float | int] = {k: v for k, v in found.items() if not math.isnan(v)}
        before = int(self.history[-1]["step"]) if self.history else 0
        numbers["step"] = before + int(own) if step is None else step
        numbers["steps"] = int(own)
        self.history.append(numbers)
        return numbers

    @torch.no_grad()
    def close(self, *, reset: bool = True) -> Interval:
        """End the interval without a host read: training goes on while its sums travel.

        Over several processes this is the collective part of :meth:`compute`: call it on all.

        Arguments:
            reset: Begin a new interval.

        Returns:
            For :meth:`compute`, which waits for it; :meth:`Interval.arrived` says whether it must.
        """
        # Every collective is here, and every raise in compute: all processes then raise, and none
        # waits. They may have taken different numbers of steps, so totals and steps are averaged.
        device = self.totals.device
        flags = distributed.mean(self.faults.to(torch.float32)) > 0
        both = distributed.mean(torch.cat([self.totals, self.steps[None]]))
        gram = distributed.mean(self.gram)
        meter = {name: value.to(device) for name, value in self.gradients.compute().items()}
        sums = torch.cat([both, self.steps[None], *(value[None] for value in meter.values())])
        sent = (_sent(flags), _sent(sums))
        # The eigenvalues of a wide one are left to the device.
        gram = gram.clone() if len(gram) > SMALL_GRAM else _sent(gram)
        done = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        self.faults.zero_()  # said once
        if reset:
            self.reset()
        return Interval(*sent, gram, tuple(meter), done)

    def verdict(self) -> Verdict:
        """Plain words about the history of :meth:`compute`; see :mod:`flatnce.core.diagnostics`."""
        return verdict_on(self.history, self.objective)

    def reset(self) -> None:
        """Begin a new interval; the history stays."""
        for buffer in (self.totals, self.steps, self.faults, self.gram):
            buffer.zero_()
        self.gradients.reset()

    def get_extra_state(self) -> dict[str, Any]:
        """Plain data beside the buffers, for a state dict."""
        return {"history": self.history, "objective": self.objective}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_extra_state` gave."""
        self.history, self.objective = list(state["history"]), state["objective"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the saved width of the embeddings, which a fresh monitor does not know yet."""
        saved = state_dict.get(f"{prefix}gram")
        if saved is not None:
            self.gram = self.gram.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _look_at(self, samples: Tensor) -> Tensor:
        width = samples.shape[1]
        if self.gram.shape[0] != width:
            self.gram = self.gram.new_zeros((width, width))
        rows = normalize(samples.double(), dim=1)
        self.gram += rows.T @ rows
        return mean_potential(rows)


def _sent(tensor: Tensor) -> Tensor:
    """A copy to be read; from a GPU it arrives on the host later."""
    return tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor.clone()


def _mean_distance(contrast: Contrast) -> Tensor:
    """Mean squared distance of positives, 2 − 2 cos for unit rows."""
    pool = contrast.positives
    mean_positive = contrast.positive if pool is None or pool.mean is None else pool.mean
    return 2 - 2 * contrast.reduce(mean_positive) / contrast.beta
