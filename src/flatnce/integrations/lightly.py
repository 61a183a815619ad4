"""FlatNCE where lightly's ``NTXentLoss`` stands: change the import and the name.

Nothing of lightly is imported here, so that every release of it will do.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from flatnce.core import distributed
from flatnce.core.objectives.losses import FlatNCE
from flatnce.core.objectives.temperature import Temperature
from flatnce.core.pairs import KeyQueue
from flatnce.integrations.single_row import is_single_row, zero_loss


class FlatNCELoss(FlatNCE):
    """Called and built as lightly's ``NTXentLoss``: its value, FlatNCE's gradient.

    Takes un-normalised projections. The value is NT-Xent's, hence never negative; the gradient is
    that of lightly's ``DCLLoss`` at the same temperature. Diagnostics are in
    :attr:`~flatnce.core.objectives.Objective.last`.

    With a memory bank (MoCo) the first argument is the query, the second its key, and the bank
    alone holds the negatives. As in lightly it starts with random unit rows and takes in keys
    when the query needs a gradient; unlike there it is saved in the state dict, and a batch that
    does not fit before its end goes on at its beginning. A batch without gradient moves neither
    the bank nor a controlled temperature.

    A batch of one without a bank has no negatives: its loss is 0 with a gradient of zero, as in
    lightly, and ``last`` stays that of the batch before.

    References:
        Chen et al., 2021, FlatNCE, https://arxiv.org/abs/2107.01152; lightly,
        https://github.com/lightly-ai/lightly

    Arguments:
        temperature: As in :class:`~flatnce.FlatNCE`; a number, an
            :class:`~flatnce.EssController`, or a :class:`~flatnce.LearnedTemperature`. The
            default is that of ``NTXentLoss``.
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
        """Check the arguments and fill the bank."""
        if gather_distributed and not dist.is_available():
            raise ValueError(
                "gather_distributed=True needs torch.distributed, which this torch was built "
                "without; pass False, or install a torch that has it"
            )
        queue = _random_bank(memory_bank_size)
        super().__init__(temperature, queue=queue, in_batch=False, gather=gather_distributed)

    def forward(self, out0: Tensor, out1: Tensor) -> Float[Tensor, ""]:  # type: ignore[override]
        """The scalar loss of a batch.

        Arguments:
            out0: (b, d), projections of the first views, or queries.
            out1: (b, d), projections of the second views, or keys; row i belongs to row i.
        """
        queue = self.queue
        if queue is not None and isinstance(out0, Tensor) and queue.keys.device != out0.device:
            # lightly's own examples leave the criterion where it was made.
            queue.to(out0.device)
        mode = self.training
        # lightly's rule for its bank, kept for the temperature too: learn when there is a
        # gradient, whatever the mode.
        self.training = isinstance(out0, Tensor) and out0.requires_grad
        processes = distributed.world_size() if self.gather else 1
        try:
            if queue is None and is_single_row(out0, out1, processes=processes):
                return zero_loss(self, out0, out1)
            return super().forward(out0, out1)
        finally:
            self.training = mode


def _random_bank(size: int | Sequence[int]) -> KeyQueue | None:
    """A full queue of random unit rows, or None for a size of 0."""
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
