"""Arguments of a layout, checked, prepared and gathered in one place."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from flatnce.core import distributed, faults
from flatnce.core.selection import FIRST, LAST_RESERVED, NEVER, STRANGER, Selection

__all__ = ["Arguments", "check_embeddings", "operands_for"]


class Arguments:
    """Checks and prepares the arguments of one layout call; collects value faults."""

    def __init__(self, normalize: bool, gather: bool) -> None:
        self.normalize, self.gather = normalize, gather
        self.faults: Bool[Tensor, " f"] | None = None
        self.operands = torch.float32
        self._agreed = False

    def embeddings(
        self, name: str, z: Tensor, like: Tensor | None = None, ndim: int = 2
    ) -> Tensor:
        """Floating rows in at least float32, of unit norm if asked, without bad values."""
        check_embeddings(name, z, ndim)
        if like is not None and (z.shape[-1] != like.shape[-1] or z.device != like.device):
            raise ValueError(
                f"{name} has width {z.shape[-1]} on {z.device} where width {like.shape[-1]} on "
                f"{like.device} is expected; anchors, keys, negatives and queue must agree"
            )
        if like is None:
            self.operands = operands_for(z.dtype, self.normalize)
        z = z.to(torch.float64 if z.dtype == torch.float64 else torch.float32)
        norms = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        bad, zero = ~torch.isfinite(norms), (norms == 0) & self.normalize
        if faults.can_raise_now(z):
            _raise_at(name, z, bad, "nonfinite")
            _raise_at(name, z, zero, "zero_vector")
        else:
            flagged = faults.flag(nonfinite=bad.any(), zero_vector=zero.any())
            self.faults = faults.combine(self.faults, flagged)
        return z / norms.clamp_min(torch.finfo(z.dtype).tiny) if self.normalize else z

    def integers(self, name: str, values: Tensor, b: int) -> Int[Tensor, " b"]:
        """One integer a sample, none of them reserved."""
        if not isinstance(values, Tensor):
            raise ValueError(f"{name} is a {type(values).__name__}; pass a torch.Tensor")
        if values.shape != (b,) or values.is_floating_point() or values.dtype == torch.bool:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)} and dtype {values.dtype}; pass one "
                f"integer a sample, shape ({b},)"
            )
        values = values.to(torch.long)
        reserved = (values >= NEVER) & (values <= LAST_RESERVED)
        if not faults.can_raise_now(values):
            self.faults = faults.combine(self.faults, faults.flag(ids=reserved.any()))
        elif bool(reserved.any()):
            raise ValueError(f"{name} holds {int(values[reserved][0])}: {faults.FAULTS['ids']}")
        return values

    def same_batch(self, name: str, z: Tensor, other: str, reference: Tensor) -> None:
        """Refuse shapes, devices or precisions that differ."""
        if z.shape != reference.shape:
            raise ValueError(
                f"{name} has shape {tuple(z.shape)} and {other} {tuple(reference.shape)}; row i "
                "of one is the positive of row i of the other, so the shapes must agree"
            )
        if z.device != reference.device or z.dtype != reference.dtype:
            raise ValueError(
                f"{name} is {z.dtype} on {z.device} and {other} {reference.dtype} on "
                f"{reference.device}; bring both to one device and precision"
            )

    def everyone(self, name: str, z: Tensor) -> Tensor:
        """Rows of every process when gathering, else the rows as they are."""
        if not self.gather:
            return z
        # Comparing shapes reads the device. All but hard negatives have the first one's rows.
        if name == "negatives" or not self._agreed:
            distributed.agree(name, z)
            self._agreed = True
        return distributed.gather(z)

    def groups(self, ids: Tensor | None, b: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Local and global group of each sample: its id, or its place in the global batch."""
        if ids is None:
            world = distributed.world_size() if self.gather else 1
            # Reserved numbers, so that the batch cannot collide with queued ids.
            everyone = torch.arange(world * b, device=device) + FIRST
            start = distributed.rank() * b if self.gather else 0
            return everyone[start : start + b], everyone
        local = self.integers("ids", ids, b).to(device)
        return local, self.everyone("ids", local)

    def enough(self, name: str, total: Tensor, negatives: Tensor | None) -> None:
        """Refuse a batch that cannot hold a negative."""
        if total.shape[0] < 2 and negatives is None:
            raise ValueError(
                f"{name} has 1 row; a batch of one has no negatives: use at least 2 samples, a "
                "filled KeyQueue, hard negatives (of two towers they serve left anchors alone: "
                "two_tower(..., directions='left')), or gather=True over several processes"
            )

    def left_out(
        self, mask: Tensor | None, b: int, total: int, device: torch.device
    ) -> Tensor | None:
        """The false-negative mask over samples, checked."""
        if mask is None:
            return None
        if not isinstance(mask, Tensor):
            raise ValueError(f"false_negatives is a {type(mask).__name__}; pass a torch.Tensor")
        if mask.dtype != torch.bool or mask.shape != (b, total):
            raise ValueError(
                f"false_negatives has dtype {mask.dtype} and shape {tuple(mask.shape)}; pass a "
                f"boolean mask of shape ({b}, {total}): local samples by all samples"
            )
        return mask.to(device)

    def hard_negatives(
        self, negatives: Tensor | None, like: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Shared hard negatives (of every process) and each sample's own."""
        if negatives is None:
            return like.new_zeros((0, like.shape[1])), None
        ready = self.embeddings("negatives", negatives, like, ndim=3 if negatives.ndim == 3 else 2)
        ready = ready.to(like.dtype)
        if ready.ndim == 2:
            return self.everyone("negatives", ready), None
        if ready.shape[0] != like.shape[0]:
            raise ValueError(
                f"negatives has shape {tuple(negatives.shape)}; a sample's own negatives need one "
                f"group a sample: ({like.shape[0]}, negatives, width)"
            )
        return like.new_zeros((0, like.shape[1])), ready


def check_embeddings(name: str, z: Tensor, ndim: int = 2) -> None:
    """Refuse what is no batch of floating-point rows."""
    if not isinstance(z, Tensor):
        raise ValueError(f"{name} is a {type(z).__name__}; pass a torch.Tensor")
    if not z.is_floating_point():
        raise ValueError(
            f"{name} has dtype {z.dtype}; pass floating-point embeddings (labels and ids "
            "go in by keyword)"
        )
    if z.ndim != ndim or 0 in z.shape:
        expected = "(batch, width)" if ndim == 2 else "(batch, negatives, width)"
        raise ValueError(f"{name} has shape {tuple(z.shape)}; it must be {expected}, not empty")


def operands_for(dtype: torch.dtype, normalize: bool) -> torch.dtype:
    """What a fused kernel multiplies; unit rows of half precision fit float16 best."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float16 if normalize else dtype
    return torch.float32


def _raise_at(name: str, z: Tensor, bad: Tensor, fault: str) -> None:
    rows = bad.reshape(-1).nonzero()
    if len(rows):
        row = int(rows[0])
        shown = [round(value, 4) for value in z.reshape(-1, z.shape[-1])[row, :4].tolist()]
        raise ValueError(f"{name}: row {row} begins {shown}: {faults.FAULTS[fault]}")


def select(
    anchor_group: Int[Tensor, " n"],
    key_group: Int[Tensor, " m"],
    shared: Tensor,
    mask: Tensor | None,
) -> Selection:
    """A selection over keys followed by shared hard negatives, which are nobody's relatives."""
    if not shared.shape[0]:
        return Selection(anchor_group, key_group, mask)  # the very groups: see the fused kernel
    strangers = key_group.new_full((shared.shape[0],), STRANGER)
    if mask is not None:
        mask = torch.cat([mask, mask.new_zeros((mask.shape[0], shared.shape[0]))], dim=1)
    return Selection(anchor_group, torch.cat([key_group, strangers]), mask)


def append_shared(keys: Tensor, shared: Tensor) -> Tensor:
    """Keys and shared hard negatives; the very same tensor where there are none."""
    return torch.cat([keys, shared]) if shared.shape[0] else keys


def check_form(form: str, known: tuple[str, ...]) -> None:
    """Refuse a form of several positives that the layout does not have."""
    if form not in known:
        raise ValueError(f"form={form!r} is unknown; choose one of {', '.join(known)}")
