"""Arguments of the doctor, checked before any work: one message, with a remedy."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from flatnce.diagnose.precision import PRECISIONS

LAYOUTS = ("two_view", "two_tower")


@runtime_checkable
class Array(Protocol):
    """NumPy's own, a table's, another library's."""

    def __array__(self, dtype: Any = None) -> np.ndarray: ...


Embeddings: TypeAlias = Tensor | Array | Sequence[Sequence[float]]
"""Rows of floats, in whatever ``torch.as_tensor`` takes."""

Integers: TypeAlias = Tensor | Array | Sequence[int]
"""One integer a sample, in whatever ``torch.as_tensor`` takes."""


def tensor_of(name: str, given: Embeddings | Integers) -> Tensor:
    """The argument as a tensor."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Array):
        given = np.asarray(given)
        # Torch takes neither another machine's byte order nor negative strides nor, without a
        # warning, read-only memory; of unsigned integers wider than a byte it supports a half.
        kind = given.dtype.newbyteorder("=") if given.dtype.kind != "u" else np.dtype(np.int64)
        given = np.require(given, kind, ["C", "W"])
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} is a {type(given).__name__} that torch.as_tensor does not take ({error}); "
            "pass a torch.Tensor or a NumPy array of numbers"
        ) from error


def same_type(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """Both views in the narrowest type that holds both; what is not floating is left alone."""
    if z1.dtype == z2.dtype or not (z1.is_floating_point() and z2.is_floating_point()):
        return z1, z2
    try:
        wider = torch.promote_types(z1.dtype, z2.dtype)
    except RuntimeError as error:  # float8 has no company
        raise ValueError(
            f"z1 is {z1.dtype} and z2 {z2.dtype}, which torch does not combine; pass one type"
        ) from error
    return z1.to(wider), z2.to(wider)


def check(
    z1: Tensor,
    z2: Tensor,
    temperature: float | None,
    labels: Tensor | None,
    ids: Tensor | None,
    batch_size: int | None,
    precision: str | None,
    loss_scale: float | None,
    layout: str,
) -> None:
    """Refuse what the doctor cannot look at; see :func:`flatnce.doctor` for the arguments."""
    for name, z in (("z1", z1), ("z2", z2)):
        if z.ndim != 2 or not z.is_floating_point() or z.shape[0] < 2 or z.shape[1] < 1:
            raise ValueError(
                f"{name} has shape {tuple(z.shape)} and dtype {z.dtype}; pass floating "
                "embeddings, (samples, width), at least 2 samples"
            )
    if z1.shape != z2.shape or z1.device != z2.device:
        raise ValueError(
            f"z1 is {tuple(z1.shape)} on {z1.device} and z2 {tuple(z2.shape)} on {z2.device}; row "
            "i of one is the positive of row i of the other, so they must agree"
        )
    for name, values in (("labels", labels), ("ids", ids)):
        _check_integers(name, values, z1.shape[0])
    for name, number in (("temperature", temperature), ("loss_scale", loss_scale)):
        if number is not None and not _is_positive(number):
            raise ValueError(f"{name}={number!r} must be a positive finite number")
    if batch_size is not None and not (
        isinstance(batch_size, Integral) and 2 <= batch_size <= z1.shape[0]
    ):
        raise ValueError(
            f"batch_size={batch_size!r} must be a whole number between 2 and the {z1.shape[0]} "
            "samples given; pass more samples, or leave it out"
        )
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; choose one of {[*PRECISIONS]}")
    if precision is None and str(z1.dtype).removeprefix("torch.") not in PRECISIONS:
        raise ValueError(f"z1 has dtype {z1.dtype}; pass one of {[*PRECISIONS]}")
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {list(LAYOUTS)}")


def _is_positive(number: object) -> bool:
    if isinstance(number, Tensor):
        number = number.item() if number.numel() == 1 else None
    return isinstance(number, Real) and math.isfinite(number) and float(number) > 1e-30


def _check_integers(name: str, values: Tensor | None, n: int) -> None:
    if values is None:
        return
    plain = not values.is_floating_point() and values.dtype != torch.bool
    if values.shape != (n,) or not plain or values.is_complex():
        raise ValueError(
            f"{name} has shape {tuple(values.shape)} and dtype {values.dtype}; pass one integer a "
            f"sample, shape ({n},)"
        )
