"""What every objective module shares: layout, temperature, queue, diagnostics."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core import distributed, faults
from flatnce.core.contrast import Contrast, contrast_of, contrast_of_batches
from flatnce.core.diagnostics import Snapshot
from flatnce.core.kernels import KERNELS
from flatnce.core.objectives.temperature import Temperature, TemperatureSource
from flatnce.core.pairs import Form, KeyQueue, Pairs, labelled, multi_view, two_tower, with_queue

Layout = Literal["two_view", "two_tower"]


class Options(TypedDict, total=False):
    """Keywords that every objective takes; described in :class:`Objective`."""

    layout: Layout
    form: Form | None
    queue: KeyQueue | None
    in_batch: bool
    gather: bool
    normalize: bool
    kernel: str
    temperature_gradient: Literal["infonce", "own"]


class Objective(nn.Module, ABC):
    """What the family shares: layout, temperature, queue, diagnostics. A leaf names its reader.

    Arguments:
        temperature: A number, a tensor, a schedule, an :class:`~flatnce.EssController`, or a
            :class:`~flatnce.LearnedTemperature`.
        layout: ``two_view`` (2b anchors, SimCLR) or ``two_tower`` (both directions, CLIP).
        form: How several positives of an anchor become rows; None is ``out`` for labels and
            ``each`` for more than two views.
        queue: Past keys as negatives (MoCo): the first argument of a call is then the query, the
            second its key; keys are enqueued in training mode.
        in_batch: With a queue, count the batch's other keys as negatives too. MoCo does not; a
            queue starts empty, so without them it must be filled before the first step.
        gather: Contrast with the keys of every process.
        normalize: Divide rows by their norm.
        kernel: ``auto``, ``dense``, ``chunked`` or ``fused``, see
            :func:`~flatnce.functional.contrast_of`.
        temperature_gradient: What a learned temperature follows: ``infonce`` (safe) or ``own``
            (the objective's, which runs away for FlatNCE and DCL).
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        layout: Layout = "two_view",
        form: Form | None = None,
        queue: KeyQueue | None = None,
        in_batch: bool = True,
        gather: bool = False,
        normalize: bool = True,
        kernel: str = "auto",
        temperature_gradient: Literal["infonce", "own"] = "infonce",
    ) -> None:
        """Check the options."""
        super().__init__()
        for name, value, known in (
            ("layout", layout, ("two_view", "two_tower")),
            ("temperature_gradient", temperature_gradient, ("infonce", "own")),
            ("kernel", kernel, ("auto", *KERNELS)),
            ("form", form, (None, "each", "out", "in")),
        ):
            if value not in known:
                raise ValueError(
                    f"{name}={value!r} is unknown; choose one of {', '.join(map(str, known))}"
                )
        if not (queue is None or isinstance(queue, KeyQueue)):
            raise ValueError(f"queue is a {type(queue).__name__}; pass a flatnce.KeyQueue")
        if layout == "two_tower" and (queue is not None or form is not None):
            raise ValueError("layout='two_tower' goes without queue and form; leave those out")
        self.temperature_source = TemperatureSource(temperature)
        self.layout, self.form, self.queue = layout, form, queue
        self.in_batch, self.gather = in_batch, gather
        self.normalize, self.kernel = normalize, kernel
        self.temperature_gradient = temperature_gradient
        self.power = 1.0
        self._last: Snapshot | None = None

    @abstractmethod
    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """The loss of a contrast."""

    def forward(
        self,
        z1: Tensor,
        z2: Tensor | None = None,
        *more: Tensor,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        false_negatives: Tensor | None = None,
        negatives: Tensor | None = None,
    ) -> Float[Tensor, ""]:
        """The scalar loss of a batch; the diagnostics are then in :attr:`last`.

        Over several processes a call is collective where the temperature is learned (with a
        gradient) or held by a controller (in training), even if nothing is gathered.

        Arguments:
            z1: (b, d) embeddings.
            z2: (b, d), row i the positive of row i of ``z1``; may be left out with ``labels``.
            *more: Further views of the same samples.
            labels: (b,): positives are all rows of the same label, in both views (SupCon).
            ids: Samples that share an id are never negatives of each other.
            false_negatives: (b, b) mask of samples to leave out, see :mod:`flatnce.core.pairs`.
            negatives: Hard negatives, (h, d) shared or (b, h, d) each sample's own.
        """
        views = (z1, *(() if z2 is None else (z2,)), *more)
        masks = {"false_negatives": false_negatives, "negatives": negatives}
        self.temperature_source.follow(z1.device)
        temperature = self.temperature_source()
        learned = isinstance(temperature, Tensor) and temperature.requires_grad
        safe = learned and self.temperature_gradient == "infonce"
        used = temperature.detach() if safe and isinstance(temperature, Tensor) else temperature
        contrast, samples = self._contrast(views, labels, ids, masks, used, safe)
        loss = self.read(contrast)
        if contrast.slope is not None and isinstance(temperature, Tensor):
            beta = temperature.reciprocal().to(loss)
            slope = contrast.reduce(contrast.slope)
            # Detached, so every process can give its temperature everybody's gradient; gathered
            # or not, or the temperatures of several processes would drift apart. Collective.
            loss = loss + (beta - beta.detach()) * distributed.mean(slope)
        self._finish(contrast, loss, samples, views, ids)
        return loss

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last call."""
        if self._last is None:
            raise ValueError("this loss has not been called yet, so there is no last batch")
        return self._last

    @property
    def temperature(self) -> float | Tensor:
        """The temperature now; assign any kind of temperature to replace it."""
        found: float | Tensor = self.temperature_source()
        return found

    @temperature.setter
    def temperature(self, temperature: Temperature) -> None:
        self.temperature_source = TemperatureSource(temperature)

    def __setattr__(self, name: str, value: Any) -> None:
        """Let the setter see a temperature that is a module, which torch would register itself."""
        if name == "temperature":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Options that differ from the usual, for print."""
        shown = {"layout": self.layout, "form": self.form, "gather": self.gather}
        usual = {"layout": "two_view", "form": None, "gather": False}
        return ", ".join(f"{k}={v!r}" for k, v in shown.items() if v != usual[k])

    def _contrast(
        self,
        views: tuple[Tensor, ...],
        labels: Tensor | None,
        ids: Tensor | None,
        masks: dict[str, Tensor | None],
        temperature: float | Tensor,
        slope: bool,
    ) -> tuple[Contrast, Tensor]:
        """The batch's contrast, and the first view's rows; plain layouts from raw rows."""
        options: dict[str, Any] = {"kernel": self.kernel, "slope": slope}
        unusual = (labels, self.queue, *masks.values())
        plain = all(part is None for part in unusual) and not self.gather and self.power == 1
        if plain and len(views) == 2:
            layout = "both" if self.layout == "two_tower" else "views"
            options |= {"layout": layout, "ids": ids, "normalize": self.normalize}
            found = contrast_of_batches(*views, temperature, **options)
            if found is not None:
                return found
        pairs = self._pairs(views, labels, ids, **masks)
        first = pairs[0] if isinstance(pairs, tuple) else pairs
        contrast = contrast_of(
            pairs, temperature, power=self.power, kernel=self.kernel, slope=slope
        )
        return contrast, first.anchors[: views[0].shape[0]]

    def _pairs(
        self,
        views: tuple[Tensor, ...],
        labels: Tensor | None,
        ids: Tensor | None,
        **masks: Tensor | None,
    ) -> Pairs | tuple[Pairs, ...]:
        """The layout this objective was built for."""
        shared: dict[str, Any] = {**masks, "normalize": self.normalize, "gather": self.gather}
        if labels is not None:
            if self.queue is not None or ids is not None or self.layout == "two_tower":
                raise ValueError(
                    "labels go without ids, without a queue and with layout='two_view'; leave the "
                    "others out"
                )
            for place, view in enumerate(views[1:], start=2):
                if view.shape != views[0].shape or view.dtype != views[0].dtype:
                    raise ValueError(
                        f"z{place} has shape {tuple(view.shape)} and dtype {view.dtype}, z1 "
                        f"{tuple(views[0].shape)} and {views[0].dtype}; views of one batch agree"
                    )
            if not isinstance(labels, Tensor):
                raise ValueError(f"labels is a {type(labels).__name__}; pass a torch.Tensor")
            if labels.shape != views[0].shape[:1]:
                raise ValueError(
                    f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; pass one "
                    f"integer a sample, shape ({views[0].shape[0]},)"
                )
            shared |= _over_views(len(views), views[0].shape[0], **masks)
            z, repeated = torch.cat(views), labels.repeat(len(views))
            return labelled(z, repeated, form=self.form or "out", **shared)
        if len(views) == 1:
            raise ValueError("z2 is missing; pass the second view, or labels for one view")
        if len(views) > 2 and (self.queue is not None or self.layout == "two_tower"):
            raise ValueError(
                f"{len(views)} views were given; a queue and two towers take two, so use "
                "layout='two_view' without a queue"
            )
        if self.queue is not None:
            shared["in_batch"] = self.in_batch
            return with_queue(views[0], views[1], self.queue, ids=ids, **shared)
        if self.layout == "two_tower":
            return two_tower(*views, ids=ids, **shared)
        return multi_view(views, form=self.form or "each", ids=ids, **shared)

    def _finish(
        self,
        contrast: Contrast,
        loss: Tensor,
        samples: Tensor,
        views: tuple[Tensor, ...],
        ids: Tensor | None,
    ) -> None:
        """Advance control and queue, and leave a snapshot."""
        detached = contrast.detach()
        if self.training:
            found = self.temperature_source.advance(detached)
            detached = replace(detached, faults=faults.combine(detached.faults, found))
            if self.queue is not None:
                self.queue.enqueue(views[1], ids, normalize=self.normalize, gather=self.gather)
        name = type(self).__name__
        self._last = Snapshot(
            detached, loss.detach(), samples.detach(), name, unit_rows=self.normalize
        )


def _over_views(
    v: int, b: int, false_negatives: Tensor | None, negatives: Tensor | None
) -> dict[str, Tensor | None]:
    """A mask over samples and each sample's own negatives, repeated for every view."""
    if isinstance(false_negatives, Tensor):
        shape = tuple(false_negatives.shape)
        if len(shape) != 2 or shape[0] != b or 0 in shape or shape[1] % b:
            raise ValueError(
                f"false_negatives has shape {shape}; pass a mask over samples, ({b}, {b}), or "
                f"({b}, world * {b}) when gathering"
            )
        by_rank = false_negatives.reshape(b, -1, 1, b).expand(-1, -1, v, -1)
        false_negatives = by_rank.reshape(b, -1).repeat(v, 1)
    if negatives is not None and negatives.ndim == 3:
        negatives = negatives.repeat(v, 1, 1)
    return {"false_negatives": false_negatives, "negatives": negatives}
