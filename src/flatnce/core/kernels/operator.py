"""Row statistics as torch operators with a gradient: what the chunked and fused kernels share."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.library import CustomOpDef

from flatnce.core.kernels.statistics import EXTRAS, RowStatistics, floor_of
from flatnce.core.selection import Selection

__all__ = ["as_operator"]

Kernel: TypeAlias = Callable[..., tuple[Tensor, ...]]

_INPUTS = (
    "Tensor anchors, Tensor? keys, Tensor beta, Tensor anchor_group, Tensor key_group, "
    "Tensor? left_out, Tensor? anchor_self, Tensor? key_self, bool same, ScalarType operands"
)
_STATISTICS = f"({_INPUTS}, bool mean, bool expected, bool hardest) -> ({'Tensor, ' * 6}Tensor)"
_INCOMING = "Tensor? to_lse, Tensor? to_lse2, Tensor? to_mean, bool with_beta"
_GRADIENT = (
    f"({_INPUTS}, Tensor lse, Tensor lse2, Tensor count, {_INCOMING}) -> (Tensor, Tensor, Tensor)"
)


def as_operator(
    name: str, statistics: Kernel, gradients: Kernel, *, mirrored: Callable[[Selection], bool]
) -> Callable[..., RowStatistics]:
    """The dense kernel's statistics by another kernel; first derivatives only.

    ``statistics`` takes anchors, keys, beta, the selection, the type of the products, and which
    extras are wanted. It returns log-sum-exps, number, mean, largest, expectation, and the place
    of the largest; what is not wanted is empty. ``gradients`` takes, in place of the extras, the
    two log-sum-exps, the number, the gradients of both log-sum-exps and of the mean (each may be
    None), and whether beta needs a gradient. It returns the gradients of anchors, keys and beta.
    Keys that are the anchors are None where ``mirrored`` is true of the selection; the gradient
    of the anchors is then the whole, and that of the keys is empty.
    """

    def operator(kind: str, function: Kernel, schema: str) -> CustomOpDef:
        def run(*inputs: Any) -> tuple[Tensor, ...]:
            return function(*inputs[:3], Selection(*inputs[3:9]), *inputs[9:])

        named = f"flatnce::{name}_{kind}"
        return torch.library.custom_op(named, run, mutates_args=(), schema=schema)

    of_rows = operator("statistics", statistics, _STATISTICS)
    of_gradients = operator("gradient", gradients, _GRADIENT)

    @of_rows.register_fake
    def _(anchors: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        n, (mean, expected, hardest) = anchors.shape[0], rest[-3:]
        sizes = n, n, n, n if mean else 0, n, n if expected else 0
        reals = [anchors.new_empty(size, dtype=_precise(anchors)) for size in sizes]
        return (*reals, anchors.new_empty(n if hardest else 0, dtype=torch.long))

    @of_gradients.register_fake
    def _(anchors: Tensor, keys: Tensor | None, beta: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        shapes = anchors.shape, (0,) if keys is None else keys.shape, () if rest[-1] else (0,)
        return tuple(anchors.new_empty(shape, dtype=_precise(anchors)) for shape in shapes)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:8], *output[:3])
        ctx.options = inputs[8:10]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2], *output[4:])

    def differentiate(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        to_lse, to_lse2, _, to_mean = incoming[:4]
        if to_lse is None and to_lse2 is None and to_mean is None:
            return (None,) * 13
        *inputs, lse, lse2, count = ctx.saved_tensors
        (anchors, keys), with_beta = inputs[:2], ctx.needs_input_grad[2]
        rows = lse, lse2, count, to_lse, to_lse2, to_mean
        to_anchors, to_keys, to_beta = of_gradients(*inputs, *ctx.options, *rows, with_beta)
        found = None if keys is None else to_keys.to(keys.dtype)
        return (to_anchors.to(anchors.dtype), found, to_beta if with_beta else None, *(None,) * 10)

    of_rows.register_autograd(differentiate, setup_context=save)

    def row_statistics(
        anchors: Float[Tensor, "n d"],
        keys: Float[Tensor, "m d"],
        beta: Float[Tensor, ""],
        selection: Selection,
        extras: tuple[str, ...] = (),
        operands: torch.dtype = torch.float32,
    ) -> RowStatistics:
        lse, lse2, count, mean, top, expected, place = of_rows(
            anchors,
            None if keys is anchors and mirrored(selection) else keys,
            beta.to(_precise(anchors)),
            *selection.to_tensors(),
            selection.same,
            operands,
            *(extra in extras for extra in EXTRAS),
        )
        hardest = None
        if "hardest" in extras:
            score = beta * (anchors.to(lse.dtype) * keys[place]).sum(dim=1)
            hardest = torch.where(count > 0, score, floor_of(lse.dtype))
        return RowStatistics(
            lse,
            lse2,
            count,
            top,
            mean if "mean" in extras else None,
            expected if "expected" in extras else None,
            hardest,
        )

    return row_statistics


def _precise(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)
