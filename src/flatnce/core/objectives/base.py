"""The base class of the objectives: layout, temperature, queue, diagnostics.

A :class:`Layout` decides which rows of a batch are each other's positives and negatives. It
returns the :class:`Pairs` of a batch, and says whether the batch is one of the plain ones that a
kernel computes straight from the raw rows. An :class:`Objective` turns a batch into a loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import getfullargspec
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core import distributed, faults
from flatnce.core.contrast import Contrast, contrast_of, contrast_of_batches
from flatnce.core.control import EssController
from flatnce.core.diagnostics import Snapshot
from flatnce.core.direct import ClosedForm, PlainRows, direct_size, plain_loss, without_autocast
from flatnce.core.kernels import KERNELS
from flatnce.core.objectives.temperature import Temperature, TemperatureSource
from flatnce.core.pairs import (
    Arguments,
    Form,
    KeyQueue,
    Pairs,
    check_embeddings,
    check_integers,
    labelled,
    multi_view,
    own_view,
    two_tower,
    with_queue,
)
from flatnce.messages import check_choice, did_you_mean

__all__ = ["Batch", "Layout", "Objective", "OwnView", "TwoTower", "TwoView"]

Plain: TypeAlias = Literal["views", "both"]
"""Layouts that a kernel computes from raw rows: two views, or both directions of two towers."""


@dataclass
class Batch:
    """The arguments of a call and the options of an :class:`Objective` that a layout needs."""

    views: tuple[Tensor, ...]
    labels: Tensor | None = None
    ids: Tensor | None = None
    false_negatives: Tensor | None = None
    negatives: Tensor | None = None
    normalize: bool = True
    gather: bool = False
    form: Form | None = None
    queue: KeyQueue | None = None
    in_batch: bool = True

    @property
    def has_two_views_only(self) -> bool:
        """Whether the batch is two views, perhaps with ids, and nothing else."""
        more = (self.labels, self.false_negatives, self.negatives, self.queue)
        return len(self.views) == 2 and not self.gather and all(one is None for one in more)

    @property
    def options(self) -> dict[str, Any]:
        """Keywords that every function of :mod:`flatnce.core.pairs` takes."""
        return {
            "false_negatives": self.false_negatives,
            "negatives": self.negatives,
            "normalize": self.normalize,
            "gather": self.gather,
        }


def _are_unchanged(owner: object, methods: Mapping[str, object]) -> bool:
    """Whether none of these methods was replaced, in the object's class or on itself."""
    for name, method in methods.items():
        if name in vars(owner) or getattr(type(owner), name) is not method:
            return False
    return True


class Layout(ABC):
    """Defines the pairs of a batch; pass an instance as ``layout`` of an objective.

    Define :meth:`pairs`; every kernel then computes the numbers of these pairs. Define
    :meth:`plain` as well only where the pairs are exactly those of a plain layout. Where ``pairs``
    is replaced alone, in a subclass or on an instance, ``plain`` is not used.

    Examples:
        >>> from flatnce import DCL
        >>> class LeftTower(Layout):
        ...     def pairs(self, batch):
        ...         left, right = batch.views
        ...         return two_tower(left, right, directions="left", **batch.options)
        >>> loss_fn = DCL(0.5, layout=LeftTower())
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        -0.9014
    """

    name: str
    """The layout's name where an objective is printed; by default the class's name."""
    takes_queue: ClassVar[bool] = False
    """Whether :meth:`pairs` uses ``batch.queue`` and ``batch.form``; if not, they are refused."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Note which pairs a fast path belongs to."""
        super().__init_subclass__(**keywords)
        cls.name = vars(cls).get("name", cls.__name__)
        if "plain" in vars(cls) or (cls.plain is not Layout.plain and not cls._of_plain):
            cls._of_plain = {"pairs": cls.pairs}

    _of_plain: ClassVar[Mapping[str, object]] = {}
    """The method that :meth:`plain` describes."""

    @abstractmethod
    def pairs(self, batch: Batch) -> Pairs | tuple[Pairs, ...]:
        """The pairs of a batch; several are concatenated row by row."""

    def plain(self, batch: Batch) -> Plain | None:
        """The plain layout whose pairs these are, or None."""
        return None

    def checked_plain(self, batch: Batch) -> Plain | None:
        """As :meth:`plain`; None where ``pairs`` was replaced."""
        return self.plain(batch) if _are_unchanged(self, self._of_plain) else None


class TwoView(Layout):
    """Views of each sample (SimCLR): also with labels, more views, or a queue of past keys."""

    name = "two_view"
    takes_queue = True

    def pairs(self, batch: Batch) -> Pairs | tuple[Pairs, ...]:
        """All rows are anchors; with a queue only the first view's."""
        if batch.labels is not None and batch.ids is None and batch.queue is None:
            return _labelled(batch, batch.labels)
        options = {"ids": batch.ids, **batch.options}
        if batch.queue is not None:
            return with_queue(*_two_views(batch), batch.queue, in_batch=batch.in_batch, **options)
        _check_views(batch)
        return multi_view(batch.views, form=batch.form or "each", **options)

    def plain(self, batch: Batch) -> Plain | None:
        """Two views and nothing else."""
        return "views" if batch.has_two_views_only else None


class TwoTower(Layout):
    """Two encoders (CLIP): left anchors against right keys, and the other way round."""

    name = "two_tower"

    def pairs(self, batch: Batch) -> tuple[Pairs, ...]:
        """One layout for each direction."""
        return two_tower(*_two_views(batch), ids=batch.ids, **batch.options)

    def plain(self, batch: Batch) -> Plain | None:
        """Two towers and nothing else."""
        return "both" if batch.has_two_views_only else None


class OwnView(Layout):
    """Two views or towers; an anchor's negatives are the other samples of its own (DHEL)."""

    name = "own_view"

    def pairs(self, batch: Batch) -> tuple[Pairs, ...]:
        """The anchors of each view, against their own view."""
        return own_view(*_two_views(batch), ids=batch.ids, **batch.options)


def _two_views(batch: Batch) -> tuple[Tensor, Tensor]:
    _check_views(batch)
    if len(batch.views) > 2:
        raise ValueError(
            f"{len(batch.views)} views were given; a queue and two towers take two views, so use "
            "layout='two_view' without a queue"
        )
    return batch.views[0], batch.views[1]


LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in (TwoView, TwoTower, OwnView)}
"""Layouts by name; each objective makes its own instance."""


def _check_views(batch: Batch) -> None:
    if batch.labels is not None:
        raise ValueError(
            "labels cannot be combined with ids or a queue, and need layout='two_view'; leave out "
            "ids and the queue, and use layout='two_view' (with DHEL, leave out labels)"
        )
    if len(batch.views) == 1:
        raise ValueError("z2 is missing; pass the second view, or labels for one view")


def _labelled(batch: Batch, labels: Tensor) -> Pairs:
    """The pairs of all views, each row with its sample's label."""
    views = batch.views
    for place, view in enumerate(views[1:], start=2):
        Arguments(batch.normalize, batch.gather).same_batch(f"z{place}", view, "z1", views[0])
    check_integers("labels", labels, len(views[0]))
    batch = _repeated_over_views(batch)
    z, repeated = torch.cat(views), labels.repeat(len(views))
    return labelled(z, repeated, form=batch.form or "out", **batch.options)


def _repeated_over_views(batch: Batch) -> Batch:
    """The mask over samples and each sample's own negatives, repeated for every view."""
    v, b = len(batch.views), batch.views[0].shape[0]
    mask, negatives = batch.false_negatives, batch.negatives
    if isinstance(mask, Tensor):
        shape = tuple(mask.shape)
        if len(shape) != 2 or shape[0] != b or 0 in shape or shape[1] % b:
            raise ValueError(
                f"false_negatives has shape {shape}; pass a mask over samples, ({b}, {b}), or "
                f"({b}, world * {b}) when gathering"
            )
        by_rank = mask.reshape(b, -1, 1, b).expand(-1, -1, v, -1)
        mask = by_rank.reshape(b, -1).repeat(v, 1)
    if isinstance(negatives, Tensor) and negatives.ndim == 3:
        negatives = negatives.repeat(v, 1, 1)
    return replace(batch, false_negatives=mask, negatives=negatives)


class Options(TypedDict, total=False):
    """Keywords that every objective takes; described in :class:`Objective`."""

    layout: str | Layout
    form: Form | None
    queue: KeyQueue | None
    in_batch: bool
    gather: bool
    normalize: bool
    kernel: str
    temperature_gradient: Literal["infonce", "own"]


class Objective(nn.Module, ABC):
    """A loss of embeddings; a subclass defines :meth:`loss_from` and, if needed, other methods.

    - To choose positives and negatives in another way, pass a :class:`Layout` of your own.
    - To add a term for every score beside the row statistics, define :meth:`statistic`.
    - To add parameters, register them in ``__init__``; :meth:`statistic` receives them.

    Arguments:
        temperature: A number, a tensor, a schedule, an :class:`~flatnce.EssController`, or a
            :class:`~flatnce.LearnedTemperature`.
        layout: ``two_view`` (2b anchors, SimCLR), ``two_tower`` (both directions, CLIP),
            ``own_view`` (negatives of the anchor's own view, DHEL), or a :class:`Layout`.
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
            (the objective's, which diverges for FlatNCE and DCL).
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        layout: str | Layout = "two_view",
        form: Form | None = None,
        queue: KeyQueue | None = None,
        in_batch: bool = True,
        gather: bool = False,
        normalize: bool = True,
        kernel: str = "auto",
        temperature_gradient: Literal["infonce", "own"] = "infonce",
        **unknown: None,
    ) -> None:
        super().__init__()
        for name in unknown:
            known = [getfullargspec(kind) for kind in type(self).__mro__]
            taken = dict.fromkeys(one for k in known for one in (*k.args[1:], *k.kwonlyargs))
            hint = did_you_mean(name, taken, then=f"it takes {', '.join(taken)}")
            raise TypeError(f"{type(self).__name__} has no argument {name!r}; {hint}")
        check_choice("temperature_gradient", temperature_gradient, ("infonce", "own"))
        check_choice("kernel", kernel, ("auto", *KERNELS))
        check_choice("form", form, (None, "each", "out", "in"))
        for name, flag in (("in_batch", in_batch), ("gather", gather), ("normalize", normalize)):
            check_choice(name, flag, (True, False))
        if not (queue is None or isinstance(queue, KeyQueue)):
            raise ValueError(f"queue has type {type(queue).__name__}; pass a flatnce.KeyQueue")
        self.temperature_source = TemperatureSource(temperature)
        self.form, self.queue = form, queue
        self.layout = layout
        self.in_batch, self.gather = in_batch, gather
        self.normalize, self.kernel = normalize, kernel
        self.temperature_gradient = temperature_gradient
        self.power = 1.0
        self._last: Snapshot | None = None

    captured = False
    """Whether kernels are chosen as in a captured CUDA graph; set before warm-up steps, so that
    they compute the same numbers as the captured ones."""

    _has_moved = False
    """Whether the last call outside a backward pass moved the temperature or the queue."""

    learns_scale: ClassVar[bool] = False
    """Whether the scale is learned from the start, so that the temperature cannot be replaced."""

    closed_form: ClassVar[ClosedForm | None] = None
    """The loss in closed form, if plain batches have one; see :mod:`flatnce.core.direct`."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Note which methods a closed form belongs to."""
        super().__init_subclass__(**keywords)
        if "closed_form" in vars(cls) or (cls.closed_form and not cls._of_closed_form):
            hooks = ("loss_from", "statistic", "_contrast")
            cls._of_closed_form = {hook: getattr(cls, hook) for hook in hooks}

    _of_closed_form: ClassVar[Mapping[str, object]] = {}
    """The methods that the closed form replaces."""

    @abstractmethod
    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """The loss of a contrast."""

    def statistic(
        self, scores: Float[Tensor, "n k"], *, positive: bool, **parameters: Tensor
    ) -> Float[Tensor, "n k"]:
        r"""One term per score; their sum over each row is in ``contrast.statistic``.

        Optional. With negatives N(i) and positives P(i), :meth:`loss_from` finds

        .. math::
            \sum_{j \in N(i)} f(s_{ij}, \mathrm{False})
            + \sum_{j \in P(i)} f(s_{ij}, \mathrm{True})

        The terms are computed by plain torch operations, in blocks of rows that the backward pass
        recomputes where the scores are many, so they may depend on the scores and the parameters
        in any differentiable way. Excluded scores do not count.

        Arguments:
            scores: Scores of some anchors and keys, divided by the temperature.
            positive: Whether they are the positives' scores.
            **parameters: The objective's own parameters by name. Over several processes each
                gets the mean of all gradients, so that the processes stay equal.

        Examples:
            >>> from torch.nn.functional import softplus
            >>> class Pairwise(Objective):  # the pairwise sigmoid loss, with a learned bias
            ...     def __init__(self, temperature=0.1, **options):
            ...         super().__init__(temperature, **options)
            ...         self.bias = nn.Parameter(torch.tensor(-10.0))
            ...     def statistic(self, scores, *, positive, bias):
            ...         return softplus(-scores - bias if positive else scores + bias)
            ...     def loss_from(self, contrast):
            ...         return contrast.reduce(contrast.statistic)
            >>> loss_fn = Pairwise(layout="two_tower")
            >>> round(float(loss_fn(torch.eye(4), torch.eye(4)).detach()), 4)
            0.6933
        """
        raise NotImplementedError

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

        In training mode with a controller, a schedule or a queue, a call that
        ``torch.utils.checkpoint`` repeats in the backward pass is an error. In compiled code this
        is not checked.

        Arguments:
            z1: (b, d) embeddings.
            z2: (b, d), row i the positive of row i of ``z1``; may be left out with ``labels``.
            *more: Further views of the same samples.
            labels: (b,): positives are all rows of the same label, in both views (SupCon).
            ids: Samples that share an id are never negatives of each other.
            false_negatives: (b, b) mask of samples to leave out, see :mod:`flatnce.core.pairs`.
            negatives: Hard negatives, (h, d) shared or (b, h, d) each sample's own.
        """
        if not isinstance(z1, Tensor):
            check_embeddings("z1", z1)
        moves = self.training and (self.queue is not None or self.temperature_source.moves)
        if not faults.in_backward_pass():
            self.__dict__["_has_moved"] = moves
        elif moves and self._has_moved:
            raise RuntimeError(
                f"{type(self).__name__} was called in the backward pass, where activation "
                "checkpointing repeats a call after the temperature or queue has changed; "
                "checkpoint the encoder and call the loss outside"
            )
        views = (z1, *more) if z2 is None else (z1, z2, *more)
        names = ("normalize", "gather", "form", "queue", "in_batch")
        options = {name: getattr(self, name) for name in names}
        batch = Batch(views, labels, ids, false_negatives, negatives, **options)
        closed = self.closed_form if _are_unchanged(self, self._of_closed_form) else None
        if closed is not None and self.kernel == "auto" and ids is None and self.power == 1:
            loss = self._closed_loss(batch, closed)
            if loss is not None:
                return loss
        self.temperature_source.follow(z1.device)
        temperature = self.temperature_source()
        learned = isinstance(temperature, Tensor) and temperature.requires_grad
        # Without a gradient nothing is collective, also where one process alone evaluates.
        safe = learned and torch.is_grad_enabled() and self.temperature_gradient == "infonce"
        used = temperature.detach() if safe else temperature
        contrast, samples = self._contrast(batch, used, safe)
        loss = self.loss_from(contrast)
        if contrast.slope is not None:
            loss = self._with_slope(loss, temperature, contrast.reduce(contrast.slope))
        self._finish(contrast, loss, samples, batch)
        return loss

    @property
    def layout(self) -> Layout:
        """The layout; assign a :class:`Layout` or a name to replace it."""
        return self._layout

    @layout.setter
    def layout(self, layout: str | Layout) -> None:
        if not isinstance(layout, Layout):
            check_choice("layout", layout, LAYOUTS, ", or pass a Layout")
            layout = LAYOUTS[layout]()
        if not layout.takes_queue and (self.queue is not None or self.form is not None):
            raise ValueError(
                f"layout={layout.name!r} takes neither queue nor form; leave them out, or set "
                "takes_queue = True in a Layout of your own that uses them"
            )
        self._modules.pop("_layout", None)  # torch replaces no module by something else
        self._layout = layout

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
        if self.learns_scale:
            raise ValueError(
                f"temperature cannot be set: {type(self).__name__} learns its own scale, which a "
                "controller, a schedule or another number cannot replace; build a new one"
            )
        self.temperature_source = TemperatureSource(temperature)

    def __setattr__(self, name: str, value: Any) -> None:
        """Call a property's setter for modules and parameters, which torch would register."""
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Options that differ from their defaults, for print."""
        shown = {"layout": self.layout.name, "form": self.form, "gather": self.gather}
        usual = {"layout": "two_view", "form": None, "gather": False}
        return ", ".join(f"{k}={v!r}" for k, v in shown.items() if v != usual[k])

    @staticmethod
    def _with_slope(loss: Tensor, temperature: Tensor, slope: Tensor) -> Tensor:
        """The loss, with a gradient of the temperature that keeps several processes equal."""
        beta = temperature.reciprocal().to(loss)
        # A collective: the mean gradient of all processes, gathered or not.
        return loss + (beta - beta.detach()) * distributed.mean(slope)

    def _closed_loss(self, batch: Batch, closed: ClosedForm) -> Tensor | None:
        """The loss of a plain batch in closed form; None where another kernel is better."""
        layout = self._plain_or_queue(batch)
        if layout is None:
            return None
        left, right = batch.views
        b = direct_size(left, right, layout, self.captured)
        if b == 0:
            return None
        source, here = self.temperature_source, faults.can_raise_now(left)
        temperature = source.learned()
        if temperature is not None and (self.temperature_gradient == "own" or batch.queue):
            return None
        beta = source.beta_now(left.device, here, temperature)
        if beta is None:
            return None
        keys, others = None, b - 1 if layout != "views" else 2 * b - 2
        if isinstance(beta, Tensor) and beta.dtype != left.dtype:
            beta = beta.to(torch.float64 if left.dtype == torch.float64 else torch.float32)
        rows = PlainRows(closed, beta, others, here)
        rows.learned = temperature is not None
        if batch.queue is not None:
            rows.others = others if batch.in_batch else 0
            keys, rows.bias = batch.queue.keys_and_bias(left)
            rows.found = None if here else batch.queue.faults.clone()
        definition = partial(self._defined_loss, replace(batch, views=()), beta)
        with without_autocast(left):
            loss = plain_loss(left, right, rows, layout, self.normalize, keys, definition)
        if here and not rows.are_good(loss):
            return None  # the definition raises an error that names the bad row
        if temperature is not None and rows.slope is not None:
            loss = self._with_slope(loss, temperature, rows.slope)
        if self.training:
            if source.moves:
                rows.found = faults.combine(rows.found, source.advance(rows))
            if batch.queue is not None:
                batch.queue.write(rows.unit[b:])
        known = type(self).__name__, self.normalize, self.layout.name
        # Not by setattr, in which a module looks for parameters and submodules.
        self.__dict__["_last"] = Snapshot.of_rows(rows, *known)
        return loss

    def _plain_or_queue(self, batch: Batch) -> str | None:
        """The name of a layout that has a direct function."""
        if batch.queue is None:
            return self.layout.checked_plain(batch)
        controlled = isinstance(self.temperature_source.source, EssController)
        without_queue = self.layout.checked_plain(replace(batch, queue=None))
        if type(self.layout) is not TwoView or controlled or without_queue is None:
            return None
        return "in_batch" if batch.in_batch else "queue"

    def _defined_loss(
        self, batch: Batch, beta: float | Tensor, left: Tensor, right: Tensor
    ) -> Tensor:
        """The loss of a plain batch by the definition, which can be differentiated twice."""
        if batch.queue is not None and self.training:
            raise RuntimeError(
                "second derivatives of a loss with a queue need kernel='dense', because the "
                "queue has changed since"
            )
        pairs = self.layout.pairs(replace(batch, views=(left, right)))
        return self.loss_from(contrast_of(pairs, 1 / beta, kernel="dense"))

    def _contrast(
        self, batch: Batch, temperature: float | Tensor, slope: bool
    ) -> tuple[Contrast, Tensor]:
        """The contrast of a batch, and the first view's rows; plain layouts from raw rows."""
        options: dict[str, Any] = {"kernel": self.kernel, "slope": slope}
        own = not _are_unchanged(self, {"statistic": Objective.statistic})
        plain = None if own or self.power != 1 else self.layout.checked_plain(batch)
        if plain is not None:
            more = {"layout": plain, "ids": batch.ids, "normalize": batch.normalize, **options}
            found = contrast_of_batches(batch.views[0], batch.views[1], temperature, **more)
            if found is not None:
                return found
        with torch.autocast(batch.views[0].device.type, enabled=False):
            pairs = self.layout.pairs(batch)
        first = pairs[0] if isinstance(pairs, tuple) else pairs
        if own:
            parameters = self.named_parameters(recurse=False)
            shared = {name: distributed.with_mean_gradient(p) for name, p in parameters}
            options["statistic"] = partial(self.statistic, **shared)  # type: ignore[arg-type]
        contrast = contrast_of(pairs, temperature, power=self.power, **options)
        view = batch.views[0]
        return contrast, first.anchors[: len(view), : view.shape[-1]].detach()

    def _finish(self, contrast: Contrast, loss: Tensor, samples: Tensor, batch: Batch) -> None:
        """Advance control and queue, and leave a snapshot."""
        detached = contrast.detach()
        if self.training:
            found = self.temperature_source.advance(detached)
            if found is not None:
                detached = replace(detached, faults=faults.combine(detached.faults, found))
            if self.queue is not None:
                options = {"normalize": self.normalize, "gather": self.gather}
                self.queue.enqueue(batch.views[1], batch.ids, **options)
        known = type(self).__name__, self.normalize, self.layout.name
        self.__dict__["_last"] = Snapshot(detached, loss.detach(), samples, *known)
