r"""The objectives, as functions of a :class:`~flatnce.functional.Contrast` and as modules.

All are minimised; ``reduction`` is ``mean``, ``sum`` or ``none`` (one number per row).
With the gap :math:`\ell_i = \mathrm{lse}_{j \in N(i)} s_{ij} - s^+_i`:

============  =============================  ===========================================
objective     value                          gradient
============  =============================  ===========================================
InfoNCE       softplus(ℓ)                    σ(ℓ)·∇ℓ: vanishes as the positive wins
FlatNCE       softplus(ℓ), or 1              ∇ℓ
DCL           ℓ                              ∇ℓ: FlatNCE's gradient is DCL's
FlatNCE⊕      softplus(ℓ), or 1              σ(ℓ)·∇ℓ: InfoNCE's
============  =============================  ===========================================
"""

import math
from abc import ABC
from dataclasses import replace
from functools import wraps
from numbers import Real
from typing import Any, Literal, TypeAlias, Unpack, cast, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softplus

from flatnce.core import distributed, faults
from flatnce.core.contrast import Contrast, contrast_from_logits
from flatnce.core.direct import EXACT, ClosedForm, without_autocast
from flatnce.core.objectives.base import Batch, Objective, Options, OwnView
from flatnce.core.objectives.temperature import LearnedTemperature, Temperature
from flatnce.core.pairs import check_tensor
from flatnce.messages import check_choice, check_positive

__all__ = [
    "CrossEntropyLoss",
    "DCL",
    "DHEL",
    "FlatNCE",
    "FlatNCEPlus",
    "HolderFlatNCE",
    "InfoNCE",
    "SigLIP",
    "cross_entropy",
    "dcl",
    "flatnce",
    "flatnce_plus",
    "infonce",
]

Reduction: TypeAlias = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
Value: TypeAlias = Literal["infonce", "constant"]


def infonce(contrast: Contrast, reduction: Reduction = "mean") -> Float[Tensor, "..."]:
    r"""InfoNCE, the cross-entropy of the positive among all candidates.

    .. math:: \mathrm{softplus}(\ell_i) = -\log \frac{e^{s^+_i}}{e^{s^+_i} + \sum_j e^{s_{ij}}}

    The gradient of the positive stays accurate in saturated rows (torch's cross_entropy rounds it
    to 0 once the positive leads by 17 to 20 in float32, see ``benchmarks/precision``). With
    several positives it is supervised contrastive's L_out or L_in.

    Relations:
        ∇InfoNCE = σ(ℓ)·∇FlatNCE, row by row. NT-Xent is InfoNCE of the two-view layout.

    References:
        van den Oord et al., 2018, https://arxiv.org/abs/1807.03748; FlatNCE paper, Eq. 3.
    """
    _check(contrast)
    return contrast.reduce(_infonce_rows(contrast), reduction)


def dcl(contrast: Contrast, reduction: Reduction = "mean") -> Float[Tensor, "..."]:
    """Decoupled contrastive loss: the gap, whose pool excludes the positive; unbounded below.

    Relations:
        Its gradient is FlatNCE's. Its value may be negative.

    References:
        Yeh et al., 2022, "Decoupled Contrastive Learning", Eq. 6,
        https://arxiv.org/abs/2110.06848
    """
    _check(contrast)
    return contrast.reduce(contrast.gap, reduction)


def flatnce(
    contrast: Contrast, value: Value = "infonce", reduction: Reduction = "mean"
) -> Float[Tensor, "..."]:
    r"""FlatNCE, with the value of InfoNCE and the gradient of the gap.

    .. math:: e^{\ell_i - \mathrm{sg}\,\ell_i} - 1 + \mathrm{sg}\,\mathrm{softplus}(\ell_i)

    The paper's own form (``value="constant"``) is always 1, so that progress bars, early
    stopping and the choice of checkpoints cannot use it.

    Relations:
        The gradient is DCL's, and InfoNCE's without the factor σ(ℓ). The Hessian has an extra
        :math:`\nabla\ell \nabla\ell^\top`: do not use it with gradient penalties.

    References:
        Chen et al., 2021, FlatNCE, Eq. 6 and Algorithm 1, https://arxiv.org/abs/2107.01152

    Arguments:
        contrast: Row statistics; taken at a Hölder power, this is Hölder-FlatNCE.
        value: ``infonce`` or ``constant``.
    """
    _check(contrast)
    return contrast.reduce(_flat(contrast.gap, contrast, value), reduction)


def flatnce_plus(
    contrast: Contrast, value: Value = "infonce", reduction: Reduction = "mean"
) -> Float[Tensor, "..."]:
    r"""FlatNCE⊕: the positive stays in the pool, so the gradient is InfoNCE's (Prop. 3.1).

    .. math:: (1 + e^{\ell_i}) \,/\, \mathrm{sg}(1 + e^{\ell_i})

    Relations:
        The sign of the paper's Prop. 3.1 is for the *loss*: ∇FlatNCE⊕ = ∇(cross-entropy).

    References:
        Chen et al., 2021, FlatNCE, Eq. 7, https://arxiv.org/abs/2107.01152

    Arguments:
        value: ``infonce`` or ``constant``.
    """
    _check(contrast)
    return contrast.reduce(_flat(_infonce_rows(contrast), contrast, value), reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Float[Tensor, "..."]:
    """Replaces ``torch.nn.functional.cross_entropy``: the same value, FlatNCE's gradient.

    For logits whose columns are candidates and whose target is the positive's column: change
    one import. Entries of −inf are masks. Computed, and returned, in at least float32; there the
    gradient's relative error is about 5e-6 where the positive leads by 100.

    It raises a ValueError for class probabilities as target, label smoothing, a row with no
    unmasked negative, a target that is masked or out of range, and a batch of ignored rows.
    In compiled code the last three are assertions on the device. On a GPU a target out of range
    is an assertion, as in torch; a masked target gives infinity, a batch of ignored rows gives
    NaN, and a row with no unmasked negative gives gradients of NaN.

    A scale that is *learned* inside the logits gets FlatNCE's gradient and grows without bound:
    use ``flatnce.FlatNCE`` with a ``LearnedTemperature``, or detach the scale.

    Arguments:
        input: Logits, (n, classes), (classes,), or (n, classes, ...) as torch takes them.
        target: Class indices, of the logits' shape without the class axis.
        weight: One weight per class; a mean is weighted, as in torch.
        ignore_index: Rows with this target are left out.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: Must be 0.

    Examples:
        >>> logits = torch.tensor([[4.0, 1.0], [0.0, 3.0]])
        >>> cross_entropy(logits, torch.tensor([0, 1]))
        tensor(0.0486)
    """
    classes_last = _checked_logits(input, target, weight, reduction, label_smoothing)
    rows, flat_target = input, target
    if input.ndim != 2:
        rows, flat_target = classes_last.reshape(-1, classes_last.shape[-1]), target.reshape(-1)
    if weight is None and not faults.is_transformed(rows):
        found = _by_closed_form(rows, flat_target, ignore_index, reduction)
        if found is not None:
            return found.reshape(target.shape) if reduction == "none" else found
    kept = flat_target != ignore_index
    losses, scale = _weighted_rows(rows, flat_target, kept, weight)
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() / scale.sum() if reduction == "mean" else losses.sum()


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """Replaces ``torch.nn.CrossEntropyLoss``: the same value, FlatNCE's gradient.

    The module of :func:`~flatnce.functional.cross_entropy`, with the same limits.

    Arguments:
        *arguments: Those of torch's class, in its order; ``label_smoothing`` must be 0.
        **options: The same, by name.

    Examples:
        >>> loss_fn = CrossEntropyLoss()
        >>> loss_fn(torch.tensor([[4.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1]))
        tensor(0.0486)
    """

    @wraps(nn.CrossEntropyLoss.__init__)  # type: ignore[misc]  # its signature, for help
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        check_choice("reduction", self.reduction, REDUCTIONS)
        _check_smoothing(self.label_smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Float[Tensor, "..."]:
        """The loss of logits and class indices; options are read at each call."""
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=cast(Reduction, self.reduction),
            label_smoothing=self.label_smoothing,
        )


def _check_smoothing(label_smoothing: float) -> None:
    """Raise if labels are to be smoothed."""
    if label_smoothing != 0.0:
        raise ValueError(
            f"label_smoothing={label_smoothing} has no FlatNCE form; pass 0.0, or use torch's "
            "cross_entropy"
        )


def _checked_logits(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    """The logits with the classes last; raises on what has no FlatNCE form."""
    check_tensor("input", input)
    check_tensor("target", target)
    if target.is_floating_point() and not input.is_floating_point():
        raise ValueError(
            f"input has dtype {input.dtype} and target {target.dtype}; they look swapped: logits "
            "come first, then class indices"
        )
    if target.is_floating_point():
        raise ValueError(
            f"target has dtype {target.dtype} (class probabilities); FlatNCE needs one positive "
            "per row: pass class indices, or use torch's cross_entropy"
        )
    _check_smoothing(label_smoothing)
    check_choice("reduction", reduction, REDUCTIONS)
    classes_last = input if input.ndim <= 2 else input.movedim(1, -1)
    if input.ndim == 0 or classes_last.shape[:-1] != target.shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)} for input of shape {tuple(input.shape)}; "
            f"expected {tuple(classes_last.shape[:-1])}"
        )
    classes = classes_last.shape[-1]
    if weight is not None:
        check_tensor("weight", weight)
    if weight is not None and weight.shape != (classes,):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}; pass one per class, shape ({classes},)"
        )
    return classes_last


def _weighted_rows(
    rows: Tensor, target: Tensor, kept: Bool[Tensor, " n"], weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The loss of each row times its weight, and the weights, by the definition."""
    # A left-out row may be anything; give it a harmless one so that it cannot raise.
    column = torch.where(kept, target, 0)
    contrast = contrast_from_logits(torch.where(kept[:, None], rows, 0), column)
    _assert_usable(contrast, kept)
    losses = flatnce(contrast, reduction="none")
    scale = kept.to(losses.dtype)
    if weight is not None:
        scale = scale * weight.to(losses.dtype)[column.clamp(0, rows.shape[1] - 1)]
    return losses * scale, scale


def _assert_usable(contrast: Contrast, kept: Bool[Tensor, " n"]) -> None:
    """Raise for rows that cannot be used, or assert where raising needs a host read."""
    if contrast.faults is None and not bool(kept.any()):
        raise ValueError("target holds only ignore_index, so no row is left; skip such a batch")
    if contrast.faults is not None:
        fatal = [name != "nonfinite" for name in faults.FAULTS]
        usable = ~torch.stack([f for f, bad in zip(contrast.faults, fatal, strict=True) if bad])
        torch._assert_async(usable.all() & kept.any(), "cross_entropy: bad target, or no negative")


def _by_closed_form(
    rows: Tensor, target: Tensor, ignored: int, reduction: Reduction
) -> Tensor | None:
    """The losses of rows of logits, or None where a row is not as it should be."""
    if not rows.is_floating_point() or rows.shape[0] == 0 or rows.shape[1] < 2:
        return None
    try:
        with without_autocast(rows):
            return cast(Tensor, _FlatCrossEntropy.apply(rows, target.long(), ignored, reduction))
    except (IndexError, FloatingPointError):  # the definition names the row
        return None


class _FlatCrossEntropy(torch.autograd.Function):
    """torch's cross-entropy, whose backward weighs the negatives without the positive."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, ignored: int, reduction: Reduction
    ) -> Tensor:
        wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        how = ("none", "mean", "sum").index(reduction)
        scores = log_softmax(wide, 1)
        nll = torch.ops.aten.nll_loss_forward.default
        found, total = nll(scores, target, None, how, ignored)
        column = target.clamp(0, wide.shape[1] - 1).unsqueeze_(1)  # any, if ignored
        scores.scatter_(1, column, -torch.inf)
        if faults.can_raise_now(wide):
            weights = torch.softmax(scores, 1, out=scores)
            # A row without negatives has weights of NaN.
            if not math.isfinite(found.sum().item() + weights.select(1, 0).sum().item()):
                raise FloatingPointError("a row has no negative, or its target is masked")
            if how != 1 and (target == ignored).all():  # the mean is NaN
                raise FloatingPointError("every row is ignored")
        else:
            weights = torch.softmax(scores, 1)
        weights.scatter_(1, column, -1.0)
        ctx.save_for_backward(logits, target, weights, total)
        ctx.options = how, ignored
        return cast(Tensor, found)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, weights, total = ctx.saved_tensors
        how, ignored = ctx.options
        if torch.is_grad_enabled():
            kept = target != ignored
            losses, _ = _weighted_rows(logits, target, kept, None)
            shown = losses if how == 0 else losses.sum() / (kept.sum() if how == 1 else 1)
            (found,) = torch.autograd.grad(shown, logits, gradient, create_graph=True)
            return found, None, None, None
        per_row = gradient / total if how == 1 else gradient
        per_row = torch.where(target != ignored, per_row, 0.0).unsqueeze_(1)
        return (weights * per_row).to(logits.dtype), None, None, None


def _check(contrast: Contrast) -> None:
    if not isinstance(contrast, Contrast):
        raise ValueError(
            f"contrast has type {type(contrast).__name__}; pass contrast_of(two_view(z1, z2), "
            "temperature), or use the classes, which take embeddings"
        )


def _infonce_rows(contrast: Contrast) -> Float[Tensor, " n"]:
    """InfoNCE with the negatives pooled as the contrast has them."""
    pooled = contrast.positive if contrast.positives is None else contrast.positives.lse
    rows = softplus(contrast.negative - pooled, threshold=EXACT)
    return rows if contrast.positives is None else rows + (pooled - contrast.positive)


def _flat(rows: Float[Tensor, " n"], contrast: Contrast, value: Value) -> Float[Tensor, " n"]:
    """The gradient of ``rows`` with InfoNCE's value, or with the value 1."""
    check_choice("value", value, ("infonce", "constant"))
    scale = (rows - rows.detach()).exp()  # 1, with the gradient of the rows
    if value == "constant":
        return scale
    plain = contrast if contrast.plain is None else replace(contrast, negative=contrast.plain)
    return scale - 1 + _infonce_rows(plain).detach()


class InfoNCE(Objective):
    """InfoNCE (NT-Xent, CLIP's loss by layout); see :func:`flatnce.functional.infonce`.

    Examples:
        >>> import torch
        >>> loss_fn = InfoNCE(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    closed_form = "infonce"

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """InfoNCE of a contrast."""
        return infonce(contrast)


class DCL(Objective):
    """Decoupled contrastive loss; see :func:`flatnce.functional.dcl`."""

    closed_form = "dcl"

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """DCL of a contrast."""
        return dcl(contrast)


class _Flat(Objective, ABC):
    """An objective whose value is detached and has two forms."""

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        value: Value = "infonce",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(temperature, **options)
        check_choice("value", value, ("infonce", "constant"))
        self.value = value

    def _closed_loss(self, batch: Batch, closed: ClosedForm) -> Tensor | None:
        return super()._closed_loss(batch, closed) if self.value == "infonce" else None


class FlatNCE(_Flat):
    """FlatNCE: InfoNCE's value, DCL's gradient; see :func:`flatnce.functional.flatnce`.

    Arguments:
        value: ``infonce``, or ``constant`` for the paper's form, which is always 1.

    Examples:
        >>> import torch
        >>> loss_fn = FlatNCE(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    closed_form = "flatnce"

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE of a contrast."""
        return flatnce(contrast, self.value)


class FlatNCEPlus(_Flat):
    """FlatNCE⊕, whose gradient is InfoNCE's; see :func:`flatnce.functional.flatnce_plus`.

    Arguments:
        value: ``infonce``, or ``constant`` for the paper's form.
    """

    closed_form = "infonce"

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE⊕ of a contrast."""
        return flatnce_plus(contrast, self.value)


class HolderFlatNCE(Objective):
    """Hölder-FlatNCE: negatives pooled by a power mean; γ = 1 is FlatNCE.

    Arguments:
        gamma: Any real number or ±inf; see :func:`flatnce.functional.contrast_of`.
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        gamma: float | Tensor = 2.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(temperature, **options)
        self.gamma = gamma

    @property
    def gamma(self) -> float:
        """The power, which may be set."""
        return self.power

    @gamma.setter
    def gamma(self, gamma: float | Tensor) -> None:
        one_number = isinstance(gamma, Real) or (isinstance(gamma, Tensor) and gamma.numel() == 1)
        if not one_number or gamma != gamma:
            raise ValueError(f"gamma={gamma!r} is not a number; pass a real number or ±inf")
        self.power = float(gamma)

    def extra_repr(self) -> str:
        """The power and the options, for print."""
        return ", ".join(filter(None, [f"gamma={self.power}", super().extra_repr()]))

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE of a contrast taken at the power."""
        return flatnce(contrast)


class DHEL(DCL):
    r"""Decoupled hyperspherical energy loss: DCL with the negatives of the anchor's own view.

    .. math:: \frac{1}{2b} \sum_{v} \sum_i \Big[ \mathrm{lse}_{j \ne i}
        (\beta \langle z^v_i, z^v_j \rangle) - \beta \langle z^1_i, z^2_i \rangle \Big]

    Alignment and uniformity do not share a denominator: the positive is in no pool, and no
    negative comes from the other view. Its gradient does not vanish when the positive wins.
    (The authors' program, with ``include_augs``, adds the log-sum-exp of both views to *one*
    positive score.)

    References:
        Koromilas et al., 2024, "Bridging Mini-Batch and Asymptotic Analysis in Contrastive
        Learning: From InfoNCE to Kernel-Based Losses",
        https://arxiv.org/abs/2405.18045

    Examples:
        >>> loss_fn = DHEL(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        -0.9014
    """

    def __init__(self, temperature: Temperature = 0.1, **options: Unpack[Options]) -> None:
        layout = options.setdefault("layout", "own_view")
        if layout != "own_view" and not isinstance(layout, OwnView):
            raise ValueError(
                f"layout={layout!r} cannot be used with DHEL, whose negatives are those of the "
                "anchor's own view; leave layout out, or use DCL"
            )
        super().__init__(temperature, **options)


class SigLIP(Objective):
    r"""Pairwise sigmoid loss: every pair is classified on its own, without a softmax.

    With labels :math:`z_{ij} = 1` for positives and −1 for negatives, over a batch of b pairs:

    .. math:: -\frac{1}{b} \sum_{ij} \log \sigma(z_{ij} (t \langle x_i, y_j \rangle + c))

    The scale t = exp(t'), kept between 1 and 100 (wider if it starts outside), and the bias c are
    parameters of the module. Give them to the optimizer, preferably AdamW; with SGD they need a
    lower rate than the encoder. Over several processes both get the mean of all gradients. With
    ``layout="two_view"`` the sum runs over all pairs of the 2b rows, divided by 2b.

    Limits: a pair's gradient shrinks once it is classified well. Gain, ESS and mutual information
    in ``last`` are those of the scores at scale t, without the bias.

    References:
        Zhai et al., 2023, "Sigmoid Loss for Language Image Pre-Training", Algorithm 1 (the sign
        of the bias is the algorithm's, not that of the formula in Section 3.2),
        https://arxiv.org/abs/2303.15343

    Arguments:
        temperature: One over the scale at the start, a number. The scale is always learned.
        bias: Bias at the start.
        **options: As in :class:`Objective`, without ``temperature_gradient``; ``layout`` is
            ``two_tower`` (the paper's) by default.

    Examples:
        >>> loss_fn = SigLIP()
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4)).detach()), 4)
        0.6933
    """

    learns_scale = True

    def __init__(
        self, temperature: Temperature = 0.1, *, bias: float = -10.0, **options: Unpack[Options]
    ) -> None:
        if not isinstance(temperature, Real):
            raise ValueError(
                f"temperature has type {type(temperature).__name__}; SigLIP learns its own scale, "
                "so pass the number to start from, one over the scale"
            )
        start = float(temperature)
        check_positive("temperature", start)
        if "temperature_gradient" in options:
            raise ValueError(
                "temperature_gradient is not an option of SigLIP, whose scale follows its own "
                "gradient; leave it out"
            )
        learned = LearnedTemperature(start, lowest=min(start, 0.01), highest=max(start, 1.0))
        options.setdefault("layout", "two_tower")
        options["temperature_gradient"] = "own"
        super().__init__(learned, **options)
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def statistic(  # type: ignore[override]
        self, scores: Float[Tensor, "n k"], *, positive: bool, bias: Float[Tensor, ""]
    ) -> Float[Tensor, "n k"]:
        """Minus the log-sigmoid of each labelled score."""
        logits = scores + bias
        return softplus(-logits if positive else logits, threshold=EXACT)

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """The mean over the rows of the sum of their terms."""
        assert contrast.statistic is not None
        return contrast.reduce(contrast.statistic)

    def _contrast(
        self, batch: Batch, temperature: float | Tensor, slope: bool
    ) -> tuple[Contrast, Tensor]:
        """As for every objective; the gradient of the scale is the mean over processes."""
        assert isinstance(temperature, Tensor)
        return super()._contrast(batch, distributed.with_mean_gradient(temperature), slope)
