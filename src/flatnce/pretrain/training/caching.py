"""Gradient caching: the negatives of a large batch in the memory of a small one.

The loss of a batch needs every embedding at once, but the encoder need not hold its activations
for all of them. Three passes: embed every micro-batch without a graph; differentiate the loss with
respect to the embeddings; embed each micro-batch again with a graph and push its share of that
gradient through. The result is the gradient of the whole batch, for one more forward pass.

Batch norm normalises within a micro-batch (both views of its images), as it would within a
device's share of the batch; only networks without batch norm compute the very same function as
without caching. Its running statistics are updated once per micro-batch, in the last pass only.
Dropout draws the same masks in both passes.

References:
    Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    https://arxiv.org/abs/2101.06983
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatnce.pretrain.training.learner import Learner


def backward(
    learner: Learner,
    views: Float[Tensor, "2 b c h w"],
    indices: Int[Tensor, " b"],
    micro_batch: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> Float[Tensor, ""]:
    """Add the gradients of a batch's loss to the parameters, and return the loss, detached."""
    if micro_batch is None or micro_batch >= len(indices):
        loss = learner(views, indices)
        between()
        loss.backward()
        return loss.detach()
    parts = views.split(micro_batch, dim=1)
    seeds = []
    with torch.no_grad(), _statistics_held(learner):
        embedded = []
        for part in parts:
            seeds.append(_random_state(views.device))
            embedded.append(learner.embed(part))
    z = torch.cat(embedded, dim=1).requires_grad_()
    loss = learner.loss(z, indices)
    between()
    loss.backward()
    assert z.grad is not None
    after = _random_state(views.device)
    shares = z.grad.split(micro_batch, dim=1)
    for number, (part, share, state) in enumerate(zip(parts, shares, seeds, strict=True)):
        _set_random_state(state, views.device)
        with ExitStack() as stack:
            no_sync = getattr(learner.called, "no_sync", None)
            if no_sync is not None and number + 1 < len(parts):  # one all-reduce, at the end
                stack.enter_context(no_sync())
            learner.embed(part).backward(share)
    _set_random_state(after, views.device)
    return loss.detach()


@contextmanager
def _statistics_held(learner: nn.Module) -> Iterator[None]:
    """Normalise by the batch without remembering it."""
    tracking = [
        part
        for part in learner.modules()
        if isinstance(part, _NormBase) and part.track_running_stats
    ]
    for part in tracking:
        part.track_running_stats = False
    try:
        yield
    finally:
        for part in tracking:
            part.track_running_stats = True


def _random_state(device: torch.device) -> Tensor:
    """The state of the generator that dropout on this device draws from; no device is read."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
