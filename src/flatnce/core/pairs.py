"""Layouts: which rows of a batch are each other's positives and negatives.

Each layout checks its arguments and returns :class:`Pairs`: the anchors of this process, all keys,
and a :class:`~flatnce.core.selection.Selection` in place of an n by m mask.

Options shared by the layouts:
    normalize: Divide rows by their norm.
    ids: One integer per sample. Samples that share an id (duplicates, several captions of one
        image, a key still in the queue) are never each other's negatives.
    false_negatives: Boolean (b, b) mask over samples: entry [i, j] leaves sample j out of
        sample i's negatives. When gathering, (b, world * b): local samples by all samples.
    negatives: Hard negatives: (h, d) shared by all anchors, or (b, h, d) each sample's own.
    gather: Contrast local anchors with the keys of every process, differentiably.
"""

from dataclasses import replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from flatnce.core import distributed, faults
from flatnce.core.buffers import copy_buffer
from flatnce.core.selection import (
    EXCLUDED,
    FIRST,
    LAST_RESERVED,
    NEGATIVE_TO_ALL,
    Form,
    Pairs,
    Selection,
)
from flatnce.messages import check_choice

__all__ = [
    "Arguments",
    "Form",
    "KeyQueue",
    "Pairs",
    "check_embeddings",
    "check_integers",
    "check_tensor",
    "labelled",
    "multi_view",
    "own_view",
    "two_tower",
    "two_view",
    "with_queue",
]


def multi_view(
    views: "list[Tensor] | tuple[Tensor, ...]",
    *,
    form: Form = "each",
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> Pairs:
    """Several views of each sample: every view of every other sample is a negative.

    With v views of b samples there are v·b anchors, ordered view by view, with v − 1 positives
    and v·(b − 1) negatives each. The forms for v > 2:

    - ``each``: one row per anchor and positive; the other positives are left out.
    - ``out``: one row per anchor, the positive score is the mean over its positives; InfoNCE then
      equals supervised contrastive's L_out, with all positives in the denominator.
    - ``in``: one row per anchor, the positives are pooled by log-sum-exp: L_in up to log(v − 1).

    FlatNCE and DCL leave every positive out of the pool in each form; ``each`` and ``out`` then
    have the same gradient.

    References:
        Tian et al., 2020, "Contrastive Multiview Coding", https://arxiv.org/abs/1906.05849;
        Khosla et al., 2020, "Supervised Contrastive Learning", Eqs. 2 and 3.

    Arguments:
        views: At least two (b, d) tensors; row i of each is the same sample.
        form: How several positives become rows.
    """
    if len(views) < 2:
        raise ValueError(f"views has {len(views)} entries; a positive needs at least two views")
    check_choice("form", form, ("each", "out", "in"))
    given = Arguments(normalize, gather)
    ready = given.batches(**{f"z{i + 1}": z for i, z in enumerate(views)})
    given.samples(ready[0], ids, false_negatives, negatives)
    given.enough("z1", negatives)
    stacked = torch.stack(ready)  # (v, b, d)
    v, b, d = stacked.shape
    # Stacked one by one: indexing with a list would copy it to the device and wait.
    others = [[z for a, z in enumerate(ready) if a != view] for view in range(v)]
    positives = torch.cat([torch.stack(rest, dim=1) for rest in others])  # (v b, v-1, d)
    anchors = keys = stacked.reshape(v * b, d)
    if gather:
        by_sample = given.everyone("z1", stacked.transpose(0, 1), shown=ready[0])
        keys = by_sample.transpose(0, 1).reshape(-1, d)
    if given.own is not None:
        given.own = given.own.repeat(v, 1, 1)
    return given.pairs(anchors, keys, given.selection(v), positives=positives, form=form)


def two_view(z1: Tensor, z2: Tensor, **options: Any) -> Pairs:
    """Two views of each sample (SimCLR layout): 2b anchors, 2b − 2 negatives each.

    References:
        Chen et al., 2020, "A Simple Framework for Contrastive Learning of Visual
        Representations", Algorithm 1, https://arxiv.org/abs/2002.05709

    Arguments:
        z1: First views, (b, d).
        z2: Second views, (b, d); row i is the positive of row i of ``z1``.
        **options: The options shared by the layouts.

    Examples:
        >>> pairs = two_view(torch.randn(4, 8), torch.randn(4, 8))
        >>> pairs.anchors.shape, (~pairs.negatives.block()).sum(dim=1)[0].item()
        (torch.Size([8, 8]), 6)
    """
    return multi_view((z1, z2), **options)


def two_tower(
    left: Tensor,
    right: Tensor,
    *,
    directions: Literal["both", "left"] = "both",
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> tuple[Pairs, ...]:
    """Two encoders (CLIP layout): left anchors against right keys, and the other way round.

    Hard negatives are keys like the right ones and are used for the left anchors only. An entry
    [i, j] of ``false_negatives`` separates left i from right j in both directions.

    References:
        Radford et al., 2021, "Learning Transferable Visual Models From Natural Language
        Supervision", Fig. 3, https://arxiv.org/abs/2103.00020

    Arguments:
        left: (b, d), queries, images.
        right: (b, d), documents, texts; row i is the positive of row i of ``left``.
        directions: ``both``, or ``left`` for left anchors alone (retrieval).
    """
    check_choice("directions", directions, ("both", "left"))
    given = Arguments(normalize, gather)
    ready_left, ready_right = given.batches(left=left, right=right)
    given.samples(ready_left, ids, false_negatives, negatives)
    given.enough("left", negatives if directions == "left" else None)
    keys = given.everyone("right", ready_right)
    forward = given.pairs(ready_left, keys, positives=ready_right[:, None])
    if directions == "left":
        return (forward,)
    keys = given.everyone("left", ready_left)
    given.shared, given.own = given.shared[:0], None
    if given.mask is not None:
        b = len(ready_left)
        start = distributed.rank() * b if gather else 0
        mask = given.everyone("false_negatives", given.mask)
        given.mask = mask[:, start : start + b].T.contiguous()
    back = given.pairs(ready_right, keys, positives=ready_left[:, None])
    return forward, back


def own_view(
    z1: Tensor,
    z2: Tensor,
    *,
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> tuple[Pairs, ...]:
    """Two views whose negatives come from the anchor's own view: 2b anchors, b − 1 each.

    This is the layout of :class:`~flatnce.DHEL`, whose docstring gives the reference.

    Arguments:
        z1: First views, (b, d).
        z2: Second views, (b, d); row i is the positive of row i of ``z1``.
    """
    given = Arguments(normalize, gather)
    first, second = given.batches(z1=z1, z2=z2)
    given.samples(first, ids, false_negatives, negatives)
    given.enough("z1", negatives)
    return tuple(
        given.pairs(anchors, given.everyone(name, anchors), positives=positives[:, None])
        for name, anchors, positives in (("z1", first, second), ("z2", second, first))
    )


def labelled(
    z: Tensor,
    labels: Tensor,
    *,
    form: Form = "out",
    normalize: bool = True,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> Pairs:
    """Labels (supervised contrastive): the positives of a row are all other rows of its label.

    - ``out`` (default): the positive score is the mean over the positives; InfoNCE is L_out.
    - ``in``: the positives are pooled by log-sum-exp; InfoNCE is L_in up to log(positives).

    A row whose label occurs once has no positive: it is a negative of other rows, and is left out
    of the mean. FlatNCE and DCL leave every positive out of the pool.

    References:
        Khosla et al., 2020, "Supervised Contrastive Learning", Eqs. 2 and 3,
        https://arxiv.org/abs/2004.11362

    Arguments:
        z: (n, d); concatenate views, and their labels, for SupCon on augmented images.
        labels: (n,), any integers.
        form: How several positives become one row.
        false_negatives: (n, n), or (n, world * n) when gathering.
    """
    check_choice("form", form, ("out", "in"))
    given = Arguments(normalize, gather)
    ready = given.embeddings("z", z)
    rows, all_rows = given.groups(None, len(ready), ready.device)
    given.samples(ready, labels, false_negatives, negatives, name="labels")
    given.enough("z", None)
    negative = given.selection()
    own = all_rows if gather else rows
    own = pad(own, (0, len(given.shared)), value=NEGATIVE_TO_ALL) if len(given.shared) else own
    positive = replace(negative, left_out=None, anchor_self=rows, key_self=own, same=True)
    keys = given.everyone("z", ready)
    return given.pairs(ready, keys, negative, positive_keys=positive, form=form)


class KeyQueue(nn.Module):
    """The last ``size`` keys; the oldest are overwritten first, and empty slots do not count.

    Keys, ids and the write position are buffers, which a state dict saves and restores.

    References:
        He et al., 2020, "Momentum Contrast for Unsupervised Visual Representation Learning",
        Sec. 3.2, https://arxiv.org/abs/1911.05722

    Arguments:
        size: How many keys are kept.
        dim: Width of a key.

    Examples:
        >>> queue = KeyQueue(size=8, dim=4)
        >>> queue.enqueue(torch.randn(3, 4))
        >>> len(queue), int(queue.filled)
        (8, 3)
    """

    keys: Float[Tensor, "m d"]
    ids: Int[Tensor, " m"]
    position: Int[Tensor, ""]
    faults: Bool[Tensor, " f"]

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        for name, value in (("size", size), ("dim", dim)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), EXCLUDED, dtype=torch.long))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))
        # Faults of keys that could not be checked at once; raised when the keys are next used.
        clear = torch.zeros(len(faults.FAULTS), dtype=torch.bool)
        self.register_buffer("faults", clear, persistent=False)

    def __len__(self) -> int:
        return self.keys.shape[0]

    @property
    def filled(self) -> Int[Tensor, ""]:
        """How many slots hold a key, as a tensor on the device."""
        return (self.ids != EXCLUDED).sum()

    @torch.no_grad()
    def enqueue(
        self,
        keys: Tensor,
        ids: Tensor | None = None,
        *,
        normalize: bool = True,
        gather: bool = False,
    ) -> None:
        """Write a batch of keys over the oldest ones.

        Arguments:
            keys: New keys, shape (b, d); stored detached; the last ``size`` are kept.
            ids: Sample ids, shape (b,): a later anchor with the same id leaves the key out.
            gather: Store the keys of every process, so that all hold the same queue.
            normalize: Store unit rows.
        """
        given = Arguments(normalize, gather)
        ready = given.embeddings("keys", keys, like=self.keys).detach()
        ready, numbers = given.everyone("keys", ready), None
        if ids is not None:
            numbers = given.integers("ids", ids, len(keys)).to(keys.device)
            numbers = given.everyone("ids", numbers)
        if given.faults is not None:
            self.faults |= given.faults
        self.write(ready, numbers)

    def keys_and_bias(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The keys in a precision, and 0 for each of them or -inf for an empty slot."""
        if self.keys.shape[1] != like.shape[1] or self.keys.device != like.device:
            Arguments(normalize=False, gather=False).embeddings("query", like, like=self.keys)
        keys = self.keys.to(torch.float64 if like.dtype == torch.float64 else torch.float32)
        return keys, torch.zeros_like(keys[:, 0]).masked_fill_(self.ids == EXCLUDED, -torch.inf)

    def write(self, keys: Tensor, ids: Tensor | None = None) -> None:
        """Write prepared keys over the oldest ones."""
        size = len(self)
        keys = keys[-size:].to(self.keys.dtype)
        self.position.remainder_(size)
        offsets = torch.arange(len(keys), device=self.keys.device)
        slots = offsets.add_(self.position).remainder_(size)
        self.keys.index_copy_(0, slots, keys)
        if ids is None:
            self.ids.index_fill_(0, slots, NEGATIVE_TO_ALL)
        else:
            self.ids.index_copy_(0, slots, ids[-size:])
        self.position.add_(len(keys)).remainder_(size)

    def extra_repr(self) -> str:
        """Size and width, for print."""
        return f"size={len(self)}, dim={self.keys.shape[1]}"


def with_queue(
    query: Tensor,
    key: Tensor,
    queue: KeyQueue,
    *,
    in_batch: bool = False,
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> Pairs:
    """A queue of past keys (MoCo layout): the keys of the queue are negatives of every query.

    The queue is read, not written: call :meth:`KeyQueue.enqueue` after the step (an
    objective that has a queue does so). With ``gather`` the queue holds every process's keys.

    Arguments:
        query: (b, d), from the trained encoder.
        key: (b, d), from the momentum encoder; row i is the positive of query i.
        queue: Past keys; must hold at least one unless ``in_batch``.
        in_batch: Count the batch's other keys (of every process, when gathering) as negatives.
        ids: As for every layout; queued keys of the same id are left out too.
        false_negatives: As for every layout; needs ``in_batch``.
    """
    if false_negatives is not None and not in_batch:
        raise ValueError(
            "false_negatives selects among the batch's other keys, which are not negatives here; "
            "pass in_batch=True, or ids for the queue"
        )
    given = Arguments(normalize, gather)
    ready_query = given.embeddings("query", query, like=queue.keys)
    ready_key = given.embeddings("key", key)
    given.same_batch("key", ready_key, "query", ready_query)
    given.samples(ready_query, ids, false_negatives, negatives)
    keys, groups = copy_buffer(queue.keys).to(ready_query.dtype), copy_buffer(queue.ids)
    if in_batch:
        keys = torch.cat([given.everyone("key", ready_key), keys])
        groups = torch.cat([given.total, groups])
        if given.mask is not None:
            given.mask = pad(given.mask, (0, len(queue)))
    given.total = groups
    if given.faults is not None:
        given.faults = given.faults | copy_buffer(queue.faults)
    given.operands = operands_for(query.dtype, normalize) if normalize else torch.float32
    return given.pairs(ready_query, keys, positives=ready_key[:, None])


class Arguments:
    """Checks and prepares the arguments of one layout call; collects value faults."""

    def __init__(self, normalize: bool, gather: bool) -> None:
        self.normalize, self.gather = normalize, gather
        self.faults: Bool[Tensor, " f"] | None = None
        self.operands = torch.float32
        self._agreed = False

    def batches(self, **views: Tensor) -> list[Tensor]:
        """Embeddings by name that have the shape, device and precision of the first."""
        ready = [self.embeddings(name, z) for name, z in views.items()]
        names = list(views)
        for name, z in zip(names, ready, strict=True):
            self.same_batch(name, z, names[0], ready[0])
        return ready

    def samples(
        self,
        first: Tensor,
        ids: Tensor | None,
        false_negatives: Tensor | None,
        negatives: Tensor | None,
        *,
        name: str = "ids",
    ) -> None:
        """Set the groups, the mask and the hard negatives of the samples."""
        b, device = len(first), first.device
        self.local, self.total = self.groups(ids, b, device, name)
        self.mask = self.left_out(false_negatives, b, len(self.total), device)
        self.shared, self.own = self.hard_negatives(negatives, first)

    def selection(self, views: int = 1) -> Selection:
        """The negatives of every sample, in each of several views; shared ones have no group."""
        local, total, mask, more = self.local, self.total, self.mask, len(self.shared)
        if views > 1:
            local = local.repeat(views)
            # One object where possible, which the fused kernel looks for.
            total = total.repeat(views) if self.gather else local
            mask = None if mask is None else mask.repeat(views, views)
        if more:
            total = pad(total, (0, more), value=NEGATIVE_TO_ALL)
            mask = None if mask is None else pad(mask, (0, more))
        return Selection(local, total, mask)

    def pairs(
        self, anchors: Tensor, keys: Tensor, negatives: Selection | None = None, **others: Any
    ) -> Pairs:
        """Pairs with the hard negatives (shared ones follow the keys) and the faults so far."""
        return Pairs(
            anchors,
            torch.cat([keys, self.shared]) if len(self.shared) else keys,
            self.selection() if negatives is None else negatives,
            own_negatives=self.own,
            gathered=self.gather,
            faults=self.faults,
            operands=self.operands,
            **others,
        )

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
        bad = ~torch.isfinite(norms)
        zero = (norms < faults.LEAST_NORM[z.dtype]) & self.normalize
        if faults.can_raise_now(z):
            _raise_at(name, z, bad, "nonfinite")
            _raise_at(name, z, zero, "zero_vector")
        else:
            flagged = faults.flag(nonfinite=bad.any(), zero_vector=zero.any())
            self.faults = faults.combine(self.faults, flagged)
        return z / norms.clamp_min(torch.finfo(z.dtype).tiny) if self.normalize else z

    def integers(self, name: str, values: Tensor, b: int) -> Int[Tensor, " b"]:
        """One integer per sample, none of them reserved."""
        check_integers(name, values, b)
        values = values.to(torch.long)
        reserved = (values >= EXCLUDED) & (values <= LAST_RESERVED)
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

    def everyone(self, name: str, z: Tensor, shown: Tensor | None = None) -> Tensor:
        """Rows of every process when gathering, else as they are; an error names ``shown``."""
        if not self.gather:
            return z
        # Comparing shapes reads the device. All but hard negatives have the first one's rows.
        if name == "negatives" or not self._agreed:
            distributed.agree(name, z if shown is None else shown)
            self._agreed |= name != "negatives"
        return distributed.gather(z)

    def groups(
        self, ids: Tensor | None, b: int, device: torch.device, name: str = "ids"
    ) -> tuple[Tensor, Tensor]:
        """Local and global group of each sample: its id, or its place in the global batch."""
        if ids is None and name == "ids":
            world = distributed.world_size() if self.gather else 1
            # Reserved numbers, so that the batch cannot collide with queued ids.
            everyone = torch.arange(world * b, device=device) + FIRST
            start = distributed.rank() * b if self.gather else 0
            return everyone[start : start + b], everyone
        local = self.integers(name, cast(Tensor, ids), b).to(device)
        return local, self.everyone(name, local)

    def enough(self, name: str, negatives: Tensor | None) -> None:
        """Refuse a batch that cannot hold a negative."""
        if len(self.total) < 2 and negatives is None:
            raise ValueError(
                f"{name} has 1 row; a batch of one has no negatives: use at least 2 samples, a "
                "filled KeyQueue, hard negatives (of two towers for left anchors only: "
                "two_tower(..., directions='left')), or gather=True over several processes"
            )

    def left_out(
        self, mask: Tensor | None, b: int, total: int, device: torch.device
    ) -> Tensor | None:
        """The false-negative mask over samples, checked."""
        if mask is None:
            return None
        check_tensor("false_negatives", mask)
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
        check_tensor("negatives", negatives)
        ready = self.embeddings("negatives", negatives, like, ndim=3 if negatives.ndim == 3 else 2)
        ready = ready.to(like.dtype)
        if ready.ndim == 2:
            return self.everyone("negatives", ready), None
        if ready.shape[0] != like.shape[0]:
            raise ValueError(
                f"negatives has shape {tuple(negatives.shape)}; a sample's own negatives need one "
                f"group per sample: ({like.shape[0]}, negatives, width)"
            )
        return like.new_zeros((0, like.shape[1])), ready


def check_tensor(name: str, value: object) -> None:
    """Refuse what is not a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} has type {type(value).__name__}; pass a torch.Tensor")


def check_embeddings(name: str, z: Tensor, ndim: int = 2) -> None:
    """Refuse what is not a batch of floating-point rows."""
    check_tensor(name, z)
    if not z.is_floating_point():
        raise ValueError(
            f"{name} has dtype {z.dtype}; pass floating-point embeddings (and labels and "
            "ids by keyword)"
        )
    if z.ndim != ndim or 0 in z.shape:
        expected = "(batch, width)" if ndim == 2 else "(batch, negatives, width)"
        raise ValueError(f"{name} has shape {tuple(z.shape)}; pass {expected}, not empty")


def check_integers(name: str, values: Any, n: int) -> None:
    """Refuse what is not one integer per sample."""
    check_tensor(name, values)
    broken = values.is_floating_point() or values.is_complex() or values.dtype == torch.bool
    if values.shape != (n,) or broken:
        raise ValueError(
            f"{name} has shape {tuple(values.shape)} and dtype {values.dtype}; pass one integer "
            f"per sample, shape ({n},)"
        )


def operands_for(dtype: torch.dtype, normalize: bool) -> torch.dtype:
    """What a fused kernel multiplies; unit rows of half precision fit float16 best."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float16 if normalize else dtype
    return torch.float32


def _raise_at(name: str, z: Tensor, bad: Tensor, fault: str) -> None:
    rows = bad.reshape(-1).nonzero()
    if len(rows):
        row = int(rows[0])
        shown = [float(f"{value:.4g}") for value in z.reshape(-1, z.shape[-1])[row, :4].tolist()]
        raise ValueError(f"{name}: row {row} begins {shown}: {faults.FAULTS[fault]}")
