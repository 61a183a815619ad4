"""Mutual information of two views of held-out images, over a large pool."""

import time
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.diagnostics import pool_information
from flatnce.pretrain.data import FolderSet, ImageSet, Resident, Streaming, Views, permutation
from flatnce.pretrain.evaluation.bench import Bench
from flatnce.pretrain.evaluation.features import conversion, frozen, to_channels
from flatnce.pretrain.evaluation.probe import drawn
from flatnce.pretrain.models import Encoder

BATCH = 256
FEWEST_TO_READ = 20  # groups of a jackknife
# Beside the seeds of training, so that no view is one it has seen.
SEEDS_FROM = 2**32


def view_information(bench: Bench, data: str) -> dict[str, Any]:
    """How much the embeddings of two views of a test image share, in nats.

    The pool is test images; the scale it is read at is chosen on training images. See
    :func:`flatnce.core.diagnostics.pool_information`.
    """
    began = time.perf_counter()
    subject, seed = bench.subject, bench.options.seed
    if subject.views is None:
        raise ValueError("protocol='mi' needs the views that the encoder was trained with")
    views = replace(subject.views, seed=SEEDS_FROM + seed)
    test, train = (bench.load(data, part) for part in ("test", "train"))
    pool = permutation(len(test), seed)[: bench.options.pool]
    others = permutation(len(train), seed)[: len(pool)]
    pairs = [
        embed_views(
            subject.encoder, part.subset(chosen), views, subject.channels, bench.options.workers
        )
        for part, chosen in ((test, pool), (train, others))
    ]
    found: dict[str, Any] = pool_information(*pairs[0], subject.temperature, calibration=pairs[1])
    if min(len(pool), len(others)) >= FEWEST_TO_READ:
        found |= _more_readouts(pairs[0], pairs[1], seed)
    protocol = {
        "name": "mi",
        "data": data,
        "measure": "InfoNCE's bound over the pool, in nats",
        "temperature": subject.temperature,
        "views": {name: getattr(views, name) for name in views.__dataclass_fields__},
        "pool": {**bench.part(data, "test"), **drawn(pool)},
        "chosen_on": {**bench.part(data, "train"), **drawn(others)},
        "channels": conversion(test.shape[0], subject.channels),
        "seed": seed,
    }
    return {
        "name": "mi",
        "data": data,
        "measure": "mutual information, nats",
        **found,
        "test_images": len(pool),
        "seconds": time.perf_counter() - began,
        "protocol": protocol,
    }


def _more_readouts(
    views: tuple[Tensor, Tensor], calibration: tuple[Tensor, Tensor], seed: int
) -> dict[str, Any]:
    """What else the same embeddings say: a limit, a p-value, other bounds, warnings."""
    from flatnce.mi import embedding_information  # training must not load it

    answer = embedding_information(*views, calibration=calibration, seed=seed).plain()
    kept = ("lower", "standard_error", "p_value", "readouts")
    return {name: answer[name] for name in kept} | {
        "flags": [flag["name"] for flag in answer["flags"]]
    }


def embed_views(
    encoder: Encoder,
    image_set: ImageSet | FolderSet,
    views: Views,
    channels: int,
    workers: int | None = None,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Embeddings of two random views of every image, by the frozen encoder.

    Arguments:
        encoder: What embeds.
        image_set: The images.
        views: How views are drawn.
        channels: What the encoder takes.
        workers: Processes that decode files.
    """
    device = next(encoder.parameters()).device
    loader: Resident | Streaming
    if isinstance(image_set, ImageSet):
        loader = Resident(image_set.to(device), BATCH, 0, drop_last=False, shuffle=False)
    else:
        loader = Streaming(
            image_set, BATCH, 0, drop_last=False, shuffle=False, workers=workers, device=device
        )
    parts = []
    with frozen(encoder), torch.no_grad():
        for indices, images, _ in loader.epoch(0):
            both = views(to_channels(images, channels), indices, epoch=0)
            _, embeddings = encoder(both.flatten(0, 1))
            parts.append(embeddings.unflatten(0, both.shape[:2]))
    first, second = torch.cat(parts, dim=1)
    return first, second
