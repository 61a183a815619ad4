"""Bad values (not shapes): raised at once where that is free, else flagged on the device.

Reading a value on the host stalls a GPU and breaks a compiled graph. On the CPU, in eager mode, a
bad value raises an error with its place and value. Elsewhere it sets one entry of a boolean tensor
in :class:`~flatnce.core.contrast.Contrast`, and reading a Monitor or ``loss_fn.last.ess`` raises.
"""

from functools import reduce

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.autograd import forward_ad

from flatnce.toml_files import read_toml

__all__ = ["FAULTS", "LEAST_NORM", "can_raise_now", "is_transformed", "raise_or_flag"]

LEAST_TEMPERATURE = 1e-30
"""Below this, one over the temperature comes near overflow in float32."""

LEAST_NORM = {d: 8 * torch.finfo(d).tiny ** 0.5 for d in (torch.float32, torch.float64)}
"""Below this, the squares of a row's entries lose digits."""

FAULTS: dict[str, str] = read_toml(__file__, "faults.toml")
"""What is wrong and what to do, by fault, in the order of the flags."""


def can_raise_now(tensor: Tensor) -> bool:
    """Whether reading ``tensor`` on the host costs nothing: CPU, eager, no transform."""
    return tensor.device.type == "cpu" and not is_transformed(tensor)


def is_transformed(tensor: Tensor) -> bool:
    """Whether this is being compiled, or is inside a transform (vmap, torch.func.grad).

    Forward-mode differentiation counts too: closed-form gradients do not support it.
    """
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return True
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def must_not_read(tensor: Tensor) -> bool:
    """Whether a host read is impossible now: while compiling or capturing a CUDA graph."""
    if torch.compiler.is_compiling():  # first: the compiler cannot trace the test below
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def in_backward_pass() -> bool:
    """Whether this runs in a backward pass; always false in a compiled graph."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def flag(**conditions: Bool[Tensor, ""]) -> Bool[Tensor, " f"]:
    """One boolean per known fault, true where a condition holds."""
    some = next(iter(conditions.values()))
    clear = torch.zeros((), dtype=torch.bool, device=some.device)
    return torch.stack([conditions.get(name, clear) for name in FAULTS])


def raise_or_flag(
    shown: Tensor | None = None, **rows: Bool[Tensor, "..."]
) -> Bool[Tensor, " f"] | None:
    """Raise an error for the first bad row where reading is free, else return the flags."""
    if not all(can_raise_now(bad) for bad in rows.values()):
        return flag(**{name: bad.any() for name, bad in rows.items()})
    for name, bad in rows.items():
        if bool(bad.any()):
            place = "" if shown is None else f"{name} (value {shown.item():.6g}): "
            if bad.ndim:
                place = f"row {int(bad.reshape(-1).int().argmax())}: "
            raise ValueError(place + FAULTS[name])
    return None


def combine(*flags: Bool[Tensor, " f"] | None) -> Bool[Tensor, " f"] | None:
    """The faults of any of several flag vectors; None where all are None."""
    present = [f for f in flags if f is not None]
    return reduce(torch.logical_or, present) if present else None


def flagged(flags: Bool[Tensor, " f"] | None) -> list[str]:
    """Names of the faults that are flagged. Reads the device."""
    if flags is None:
        return []
    return [name for name, hit in zip(FAULTS, flags.tolist(), strict=True) if hit]


def raise_flagged(flags: Bool[Tensor, " f"] | None) -> None:
    """Raise a ValueError that names every flagged fault. Reads the device."""
    if found := flagged(flags):
        raise ValueError("; ".join(f"{FAULTS[name]} ({name})" for name in found))
