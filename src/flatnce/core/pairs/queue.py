"""A queue of past keys: many negatives for the memory of a small batch (MoCo layout)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from flatnce.core.buffers import held
from flatnce.core.faults import FAULTS
from flatnce.core.pairs.arguments import Arguments, append_shared, operands_for, select
from flatnce.core.pairs.record import Pairs
from flatnce.core.selection import NEVER, STRANGER


class KeyQueue(nn.Module):
    """The last ``size`` keys, oldest overwritten first; empty slots count for nobody.

    Keys, ids and the write position are buffers, so a state dict saves and restores them. The
    position is kept modulo the size and cannot overflow. Nothing here reads the device.

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
        """Start empty."""
        super().__init__()
        for name, value in (("size", size), ("dim", dim)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), NEVER, dtype=torch.long))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))
        # Of keys that could not be checked at once; said when they are next contrasted with.
        clear = torch.zeros(len(FAULTS), dtype=torch.bool)
        self.register_buffer("faults", clear, persistent=False)

    def __len__(self) -> int:
        """Number of slots, filled or not."""
        return self.keys.shape[0]

    @property
    def filled(self) -> Int[Tensor, ""]:
        """How many slots hold a key, as a tensor; reading it is the caller's choice."""
        return (self.ids != NEVER).sum()

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
            keys: New keys, shape (b, d); stored detached. Of more than ``size``, the last stay.
            ids: Sample ids, shape (b,): a later anchor with the same id leaves the key out.
            normalize: Store unit rows.
            gather: Store the keys of every process, so that all hold the same queue.
        """
        given = Arguments(normalize, gather)
        ready = given.embeddings("keys", keys, like=self.keys).detach().to(self.keys.dtype)
        if ids is None:
            numbers = torch.full((len(keys),), STRANGER, dtype=torch.long, device=keys.device)
        else:
            numbers = given.integers("ids", ids, len(keys)).to(keys.device)
        ready, numbers = given.everyone("keys", ready), given.everyone("ids", numbers)
        ready, numbers = ready[-len(self) :], numbers[-len(self) :]
        offsets = torch.arange(len(ready), device=self.keys.device)
        slots = (self.position % len(self) + offsets) % len(self)
        self.keys.index_copy_(0, slots, ready)
        self.ids.index_copy_(0, slots, numbers)
        if given.faults is not None:
            self.faults |= given.faults
        self.position.copy_((self.position % len(self) + len(ready)) % len(self))

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
    """A queue of past keys (MoCo layout): the queue's keys are every query's negatives.

    The queue is read, not written: call :meth:`KeyQueue.enqueue` after the step (the objectives
    do, when built with a queue). With ``gather`` the queue holds every process's keys.

    Arguments:
        query: (b, d), from the trained encoder.
        key: (b, d), from the momentum encoder; row i is the positive of query i.
        queue: Past keys; must hold at least one unless ``in_batch``.
        in_batch: Count the batch's other keys (of every process, when gathering) as negatives.
        normalize: Divide rows by their norm (the queue's were, when they were enqueued).
        ids: See :mod:`flatnce.core.pairs`; queued keys of the same id are left out.
        false_negatives: See :mod:`flatnce.core.pairs`; needs ``in_batch``, and speaks of the batch.
        negatives: See :mod:`flatnce.core.pairs`.
        gather: See :mod:`flatnce.core.pairs`.
    """
    given = Arguments(normalize, gather)
    ready_query = given.embeddings("query", query, like=queue.keys)
    ready_key = given.embeddings("key", key)
    given.same_batch("key", ready_key, "query", ready_query)
    if false_negatives is not None and not in_batch:
        raise ValueError(
            "false_negatives speaks of the batch's other keys, which are no negatives here; pass "
            "in_batch=True, or ids for the queue"
        )
    b = ready_query.shape[0]
    local, total = given.groups(ids, b, ready_query.device)
    past, past_group = held(queue.keys).to(ready_query.dtype), held(queue.ids)
    shared, own = given.hard_negatives(negatives, ready_query)
    mask = given.left_out(false_negatives, b, total.shape[0], ready_query.device)
    if in_batch:
        past = torch.cat([given.everyone("key", ready_key), past])
        past_group = torch.cat([total, past_group])
        if mask is not None:
            mask = torch.cat([mask, mask.new_zeros((b, len(queue)))], dim=1)
    return Pairs(
        ready_query,
        append_shared(past, shared),
        select(local, past_group, shared, mask),
        ready_key[:, None],
        own_negatives=own,
        gathered=gather,
        faults=given.faults if given.faults is None else given.faults | held(queue.faults),
        operands=operands_for(query.dtype, normalize) if normalize else torch.float32,
    )
