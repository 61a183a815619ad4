"""FlatNCE in place of lightly's ``NTXentLoss``; works with every release of lightly."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.objectives.losses import FlatNCE
from flatnce.core.objectives.temperature import Temperature
from flatnce.core.pairs import KeyQueue
from flatnce.integrations.single_row import is_single_row, zero_loss


class FlatNCELoss(FlatNCE):
    """Replaces lightly's ``NTXentLoss``: the same arguments and value, FlatNCE's gradient.

    The projections need not be normalised. The gradient is that of lightly's ``DCLLoss``
    at the same temperature. Diagnostics are in ``last``.

    With a memory bank (MoCo) the first argument is the query, the second its key, and all
    negatives come from the bank. As in lightly the bank starts with random unit rows, and keys
    are added when the query needs a gradient. Unlike lightly's, it is saved in the state dict.

    A batch of one without a bank has no negatives: its loss is 0 with a gradient of zero, as in
    lightly, and ``last`` stays that of the batch before.

    Arguments:
        temperature: As in :class:`~flatnce.FlatNCE`; the default is that of ``NTXentLoss``.
        memory_bank_size: 0 for none, or (keys, width).
        gather_distributed: Contrast with the keys of every process, differentiably; with a bank,
            put the keys of every process into it.

    Examples:
        >>> import torch
        >>> criterion = FlatNCELoss(temperature=0.5)
        >>> round(float(criterion(3 * torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    def __init__(
        self,
        temperature: Temperature = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
    ) -> None:
        bank = _random_bank(memory_bank_size)
        super().__init__(temperature, queue=bank, in_batch=False, gather=gather_distributed)

    def forward(self, out0: Tensor, out1: Tensor) -> Float[Tensor, ""]:  # type: ignore[override]
        """The scalar loss of (b, d) first views or queries, and second views or keys."""
        queue = self.queue
        if queue is not None and isinstance(out0, Tensor) and queue.keys.device != out0.device:
            # lightly's own examples do not move the criterion.
            queue.to(out0.device)
        mode = self.training
        # As in lightly, the bank and the temperature change only when there is a gradient.
        self.training = torch.is_grad_enabled() and getattr(out0, "requires_grad", False)
        try:
            if queue is None and is_single_row(out0, out1, gather=self.gather):
                return zero_loss(self, out0, out1)
            return super().forward(out0, out1)
        finally:
            self.training = mode


def _random_bank(size: int | Sequence[int]) -> KeyQueue | None:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if sizes in ((0,), ()) or (len(sizes) == 2 and sizes[0] == 0):
        return None
    if len(sizes) != 2 or not all(isinstance(s, int) and s > 0 for s in sizes):
        raise ValueError(
            f"memory_bank_size={size!r} does not say how many keys of what width; pass "
            "(keys, width), for example (4096, 128), or 0 for no memory bank"
        )
    queue = KeyQueue(*sizes)
    queue.enqueue(torch.randn(*sizes))  # lightly's draw: one seed gives both the same bank
    return queue
