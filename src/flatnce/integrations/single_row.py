"""The loss of a batch of one row, as at the end of an epoch: 0, where the core raises an error."""

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import distributed
from flatnce.core.control import EssController
from flatnce.core.objectives.base import Objective


def is_single_row(*columns: Tensor, gather: bool = False) -> bool:
    """Whether all columns of embeddings have one row, and no other process adds any."""
    if (gather and distributed.is_active()) or not all(isinstance(c, Tensor) for c in columns):
        return False
    shapes = {column.shape for column in columns}
    return len(shapes) == 1 and columns[0].ndim == 2 and len(columns[0]) == 1


def zero_of(*tensors: Tensor) -> Float[Tensor, ""]:
    """0, with a gradient of zero for every tensor."""
    wide = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors)
    # The sum itself may overflow, and 0 times infinity is NaN.
    found: Tensor = torch.stack([(0.0 * t).sum().to(tensors[0].device) for t in wide]).sum()
    return found


def zero_loss(objective: Objective, *columns: Tensor) -> Float[Tensor, ""]:
    """The loss 0 of an objective for a single row; ``last`` stays that of the batch before.

    Takes part in the means of a temperature's gradient and of the ESS, for which processes with
    negatives may be waiting, without changing their result.
    """
    source, loss = objective.temperature_source, zero_of(*columns)
    source.follow(columns[0].device)
    learned = source.learned()
    if learned is not None and objective.temperature_gradient == "infonce":
        loss = objective._with_slope(loss, learned, loss.detach())
    elif learned is not None:
        loss = loss + zero_of(learned).to(loss)
    controlled = isinstance(source.source, EssController)
    if objective.training and (distributed.is_active() or not controlled):
        source.advance(loss.detach())
    return loss
