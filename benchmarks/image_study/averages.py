"""The average of the last checkpoints of a run, the change `average` of piece 13."""

import torch

from flatnce.pretrain import load_encoder
from flatnce.pretrain.runs.checkpoint import steps
from flatnce.pretrain.training.saved import CHECKPOINTS


def load_average(directory, device="cpu"):
    """The encoder of a run with the mean of its checkpoints, and the steps of these.

    Weights and floating-point buffers (the running statistics of batch norm) are averaged, in
    float64. Other buffers are those of the last checkpoint.
    """
    kept = steps(directory / CHECKPOINTS)
    each = [load_encoder(directory, step).encoder.state_dict() for step in kept]
    loaded = load_encoder(directory, kept[-1], device)
    loaded.encoder.load_state_dict(
        {name: mean_of([one[name] for one in each]) for name in each[0]}
    )
    return loaded, kept


def mean_of(values):
    """The mean of tensors; the last of those that are not of floating point."""
    if not values[-1].is_floating_point():
        return values[-1]
    return torch.stack([value.double() for value in values]).mean(dim=0).to(values[-1].dtype)
