"""The cases of the integrations over two gloo processes, run as those of processes.py.

A library that is not installed is left out.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from flatnce.integrations.lightly import FlatNCELoss
from flatnce.integrations.open_clip import FlatClipLoss
from processes import LABELS, TEMPERATURE, Share, encoder, main, random, view

Losses = Callable[[Tensor, Tensor], Tensor]
FLAGS = [(local, grad) for local in (False, True) for grad in (False, True)]
BANK = (12, 4)
STEPS = 3


def gradients(share: Share, loss_fn: Losses) -> dict[str, Tensor]:
    """One step: this process's loss, the mean loss, the mean gradient."""
    model = encoder()
    loss = loss_fn(*(model(share(view(number))) for number in (1, 2)))
    loss.backward()
    return {
        "here": loss.detach(),
        "loss": share.mean(loss),
        "weight": share.mean(model.weight.grad),
        "bias": share.mean(model.bias.grad),
    }


def lightly_bank(share: Share) -> dict[str, Tensor]:
    """Steps with a bank that takes in the keys of every process."""
    torch.manual_seed(0)
    criterion = FlatNCELoss(TEMPERATURE, BANK, gather_distributed=True).double()
    model, losses = encoder(), []
    for step in range(STEPS):
        query, key = (model(share(view(number, seed=100 * step))) for number in (1, 2))
        loss = criterion(query, key.detach())
        loss.backward()
        losses.append(share.mean(loss))
    return {
        "losses": torch.stack(losses),
        "weight": share.mean(model.weight.grad),
        "bank": criterion.queue.keys,
    }


def open_clip(share: Share, flags: tuple[bool, bool]) -> dict[str, Tensor]:
    """With a scale to be learned."""
    local, grad = flags
    loss_fn = FlatClipLoss(
        local_loss=local, gather_with_grad=grad, rank=share.rank, world_size=share.world
    )
    log_scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def loss_of_units(*views: Tensor) -> Tensor:
        return loss_fn(*(normalize(z, dim=1) for z in views), log_scale.exp())

    found = gradients(share, loss_of_units)
    return found | {"scale": share.mean(log_scale.grad)}


def metric_learning(share: Share, memory: bool) -> dict[str, Tensor]:
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    from flatnce.integrations import metric_learning as ours

    loss_fn: Any = ours.FlatNCELoss(TEMPERATURE)
    if memory:
        loss_fn = ours.CrossBatchMemory(loss_fn, 4, memory_size=24)
    loss_fn = DistributedLossWrapper(loss_fn) if share.world > 1 else loss_fn
    labels = share(LABELS).repeat(2)
    return gradients(share, lambda z1, z2: loss_fn(torch.cat([z1, z2]), labels))


DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def sentence_transformers(share: Share, directions: tuple[str, ...]) -> dict[str, Tensor]:
    """Queries, documents and hard negatives, through one encoder."""
    from flatnce.integrations.sentence_transformers import FlatNCERankingLoss

    options = {"directions": directions, "gather_across_devices": True}
    loss_fn, model = FlatNCERankingLoss(nn.Identity(), **options), encoder()
    columns = [model(share(random(6, 5, seed=number))) for number in range(3)]
    loss = loss_fn.compute_loss_from_embeddings(columns)
    loss.backward()
    return {"loss": share.mean(loss), "weight": share.mean(model.weight.grad)}


def run(share: Share) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lightly": gradients(share, FlatNCELoss(TEMPERATURE, gather_distributed=True)),
        "lightly, bank": lightly_bank(share),
    }
    found |= {f"open_clip {flags}": open_clip(share, flags) for flags in FLAGS}
    if find_spec("pytorch_metric_learning"):
        found["metric learning"] = metric_learning(share, memory=False)
        found["metric learning, memory"] = metric_learning(share, memory=True)
    if find_spec("sentence_transformers"):
        found["sentences, one"] = sentence_transformers(share, DIRECTIONS[:1])
        found["sentences, all"] = sentence_transformers(share, DIRECTIONS)
    return found


if __name__ == "__main__":
    main(run, *sys.argv[1:])
