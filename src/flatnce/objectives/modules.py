"""The family as modules: ``loss_fn(z1, z2)`` is a scalar, ``loss_fn.last`` says how it went."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce import faults
from flatnce.contrast import Contrast, contrast_of
from flatnce.diagnostics import Snapshot
from flatnce.objectives import functional
from flatnce.objectives.functional import Value
from flatnce.objectives.temperature import Temperature, TemperatureSource
from flatnce.pairs import KeyQueue, Pairs, labelled, two_tower, two_view, with_queue

__all__ = ["DCL", "FlatNCE", "FlatNCEPlus", "HolderFlatNCE", "InfoNCE", "Objective"]

Layout = Literal["two_view", "two_tower"]


class Objective(nn.Module):
    """What the family shares: layout, temperature, queue, diagnostics. A leaf names its reader.

    Arguments:
        temperature: A number, a tensor, a schedule, an :class:`~flatnce.EssController`, or a
            :class:`~flatnce.LearnedTemperature`.
        layout: ``two_view`` (2b anchors, SimCLR) or ``two_tower`` (both directions, CLIP).
        queue: Past keys as negatives (MoCo): the first argument of a call is then the query, the
            second its key; keys are enqueued in training mode.
        gather: Contrast with the keys of every process.
        normalize: Divide rows by their norm.
        kernel: ``auto``, ``dense`` or ``chunked``.
        temperature_gradient: What a learned temperature follows: ``infonce`` (safe) or ``own``
            (the objective's, which runs away for FlatNCE and DCL).
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        layout: Layout = "two_view",
        queue: KeyQueue | None = None,
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
            ("kernel", kernel, ("auto", "dense", "chunked")),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}")
        self.temperature = TemperatureSource(temperature)
        self.layout, self.queue, self.gather = layout, queue, gather
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
        *,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        false_negatives: Tensor | None = None,
        negatives: Tensor | None = None,
    ) -> Float[Tensor, ""]:
        """The scalar loss of a batch; the diagnostics are then in :attr:`last`.

        Arguments:
            z1: (b, d) embeddings.
            z2: (b, d), row i the positive of row i of ``z1``; may be left out with ``labels``.
            labels: (b,): positives are all rows of the same label, in both views (SupCon).
            ids: Samples that share an id are never negatives of each other.
            false_negatives: (b, b) mask of samples to leave out, see :mod:`flatnce.pairs`.
            negatives: Hard negatives, (h, d) shared or (b, h, d) each sample's own.
        """
        pairs = self._pairs(z1, z2, labels, ids, false_negatives, negatives)
        temperature = self.temperature()
        learned = isinstance(temperature, Tensor) and temperature.requires_grad
        safe = learned and self.temperature_gradient == "infonce"
        used = temperature.detach() if safe and isinstance(temperature, Tensor) else temperature
        contrast = contrast_of(pairs, used, power=self.power, kernel=self.kernel, slope=safe)
        loss = self.read(contrast)
        if contrast.slope is not None and isinstance(temperature, Tensor):
            beta = temperature.reciprocal().to(loss.dtype)
            loss = loss + (beta - beta.detach()) * contrast.reduce(contrast.slope)
        self._finish(contrast, loss, pairs, z2, ids)
        return loss

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last call."""
        if self._last is None:
            raise ValueError("this loss has not been called yet, so there is no last batch")
        return self._last

    def extra_repr(self) -> str:
        """Options, for print."""
        shown: dict[str, Any] = {"layout": self.layout}
        source = self.temperature.source
        if not isinstance(source, nn.Module):
            shown = {"temperature": source, **shown}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def _pairs(
        self,
        z1: Tensor,
        z2: Tensor | None,
        labels: Tensor | None,
        ids: Tensor | None,
        false_negatives: Tensor | None,
        negatives: Tensor | None,
    ) -> Pairs | tuple[Pairs, ...]:
        shared: dict[str, Any] = {
            "false_negatives": false_negatives,
            "negatives": negatives,
            "normalize": self.normalize,
            "gather": self.gather,
        }
        if labels is not None:
            if self.queue is not None or ids is not None:
                raise ValueError("labels go without a queue and without ids; leave those out")
            z = z1 if z2 is None else torch.cat([z1, z2])
            return labelled(z, labels if z2 is None else torch.cat([labels, labels]), **shared)
        if z2 is None:
            raise ValueError("z2 is missing; pass the second view, or labels for one view")
        if self.queue is not None:
            return with_queue(z1, z2, self.queue, ids=ids, **shared)
        return (two_view if self.layout == "two_view" else two_tower)(z1, z2, ids=ids, **shared)

    def _finish(
        self,
        contrast: Contrast,
        loss: Tensor,
        pairs: Pairs | tuple[Pairs, ...],
        key: Tensor | None,
        ids: Tensor | None,
    ) -> None:
        """Advance control and queue, and leave a snapshot."""
        detached = contrast.detach()
        if self.training:
            found = self.temperature.advance(detached)
            detached = replace(detached, faults=faults.combine(detached.faults, found))
            if self.queue is not None and key is not None:
                self.queue.enqueue(key, ids, normalize=self.normalize, gather=self.gather)
        first = pairs[0] if isinstance(pairs, tuple) else pairs
        samples = first.anchors.detach()
        if key is not None:
            samples = samples[: key.shape[0]]
        self._last = Snapshot(detached, loss.detach(), samples, type(self).__name__)


class InfoNCE(Objective):
    """InfoNCE (NT-Xent, CLIP's loss by layout); see :func:`flatnce.functional.infonce`.

    Examples:
        >>> loss_fn = InfoNCE(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """InfoNCE of a contrast."""
        return functional.infonce(contrast)


class DCL(Objective):
    """Decoupled contrastive loss; see :func:`flatnce.functional.dcl`."""

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """DCL of a contrast."""
        return functional.dcl(contrast)


class FlatNCE(Objective):
    """FlatNCE: InfoNCE's value, DCL's gradient; see :func:`flatnce.functional.flatnce`.

    Arguments:
        temperature: As in :class:`Objective`.
        value: ``infonce``, or ``constant`` for the paper's form, which is 1 for ever.
        **options: As in :class:`Objective`.

    Examples:
        >>> loss_fn = FlatNCE(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        value: Value = "infonce",
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Keep the form of the value."""
        super().__init__(temperature, **options)
        self.value = _check_value(value)

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE of a contrast."""
        return functional.flatnce(contrast, self.value)


class FlatNCEPlus(Objective):
    """FlatNCE⊕, whose gradient is InfoNCE's; see :func:`flatnce.functional.flatnce_plus`.

    Arguments:
        temperature: As in :class:`Objective`.
        value: ``infonce``, or ``constant`` for the paper's form.
        **options: As in :class:`Objective`.
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        value: Value = "infonce",
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Keep the form of the value."""
        super().__init__(temperature, **options)
        self.value = _check_value(value)

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE⊕ of a contrast."""
        return functional.flatnce_plus(contrast, self.value)


class HolderFlatNCE(Objective):
    """Hölder-FlatNCE: negatives pooled by a power mean; γ = 1 is FlatNCE.

    Arguments:
        gamma: Any real number or ±inf; see :func:`flatnce.functional.contrast_of`.
        temperature: As in :class:`Objective`.
        **options: As in :class:`Objective`.
    """

    def __init__(
        self,
        gamma: float = 1.0,
        temperature: Temperature = 0.1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Keep the power."""
        super().__init__(temperature, **options)
        if gamma != gamma:
            raise ValueError(f"gamma={gamma!r} is not a number; pass a real number or ±inf")
        self.power = float(gamma)

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE of a contrast taken at the power."""
        return functional.flatnce(contrast)


def _check_value(value: Value) -> Value:
    if value not in ("infonce", "constant"):
        raise ValueError(f"value={value!r} is unknown; choose 'infonce' or 'constant'")
    return value
