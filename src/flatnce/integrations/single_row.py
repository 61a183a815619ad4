"""A batch in which nobody has a negative, such as a last batch of one row: 0, as in the hosts.

The core refuses such a batch, since a loss of it is most often a mistake. A trainer of another
library meets one at the end of an epoch and must not stop there.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import distributed
from flatnce.core.contrast import Contrast
from flatnce.core.control import EssController
from flatnce.core.objectives import Objective
from flatnce.core.objectives.temperature import TemperatureSource


def is_single_row(*columns: Tensor, processes: int = 1) -> bool:
    """Whether columns of embeddings hold a single row among all processes.

    Columns that are no batches of the same shape are not lonely: the usual checks refuse them.
    """
    if processes > 1 or not all(isinstance(column, Tensor) for column in columns):
        return False
    shape = columns[0].shape
    same = all(column.shape == shape and column.is_floating_point() for column in columns)
    return same and len(shape) == 2 and shape[0] == 1


def nothing(*tensors: Tensor) -> Float[Tensor, ""]:
    """0, with a gradient of zero for every tensor."""
    wide = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors)
    # Zero times each entry and then the sum: the sum itself may overflow, and 0 times that is NaN.
    found: Tensor = torch.stack([(0.0 * t).sum().to(tensors[0].device) for t in wide]).sum()
    return found


def zero_loss(objective: Objective, *columns: Tensor) -> Float[Tensor, ""]:
    """The 0 of an objective whose batch is lonely; ``last`` stays that of the batch before.

    Other processes may have negatives, and wait for this one where a learned temperature averages
    its gradient or a controller its ESS: this one takes part, and wants nothing.
    """
    source = objective.temperature_source
    source.follow(columns[0].device)
    temperature = source()
    loss = nothing(*columns)
    if isinstance(temperature, Tensor) and temperature.requires_grad:
        beta = temperature.reciprocal().to(loss)
        slope = torch.zeros_like(loss.detach())
        if objective.temperature_gradient == "infonce":
            slope = distributed.mean(slope)
        loss = loss + (beta - beta.detach()) * slope
    controlled = isinstance(source.source, EssController)
    if objective.training and (distributed.is_active() or not controlled):
        source.advance(_content(source, loss.detach()))
    return loss


def _content(source: TemperatureSource, zero: Float[Tensor, ""]) -> Contrast:
    """A row whose ESS is the wanted one, so that it moves no controller either way."""
    row, count = zero.reshape(1), 1e6
    target = torch.ones_like(row)
    if isinstance(source.source, EssController):
        wanted = source.source.target_at({"beta": source.beta, "step": source.step})
        target = wanted.to(row).reshape(1)
    log_of_squares = -(count * target).log()
    return Contrast(row, row, log_of_squares, torch.full_like(row, count), row, row[0] + 1)
