"""Encoder and objective as one module, and its gradient with or without gradient caching."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from flatnce.core import distributed
from flatnce.core.control import Cosine, EssController
from flatnce.core.objectives import losses
from flatnce.core.objectives.base import Objective
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.core.objectives.temperature import LearnedTemperature, Temperature
from flatnce.core.pairs import KeyQueue
from flatnce.environment import available_memory
from flatnce.messages import format_bytes
from flatnce.pretrain import models
from flatnce.pretrain.models import Encoder, MomentumEncoder
from flatnce.pretrain.training.config import LossConfig, ModelConfig, TrainConfig

__all__ = ["build_encoder", "build_objective"]


class Learner(nn.Module):
    """Maps the views of a batch to its loss.

    Both views pass through the encoder as one batch of 2b, so its batch norms see both. With a
    momentum encoder (MoCo) the first view gives queries and the second keys. The encoder computes
    in ``dtype``, by autocast; the objective computes in float32.
    """

    called: nn.Module
    ids: Tensor | None

    def __init__(
        self,
        encoder: Encoder,
        objective: Objective,
        momentum_encoder: MomentumEncoder | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        self.momentum_encoder = momentum_encoder
        self.dtype = dtype
        self.register_buffer("ids", None, persistent=False)  # of a user's samples, by number
        self.call_through(encoder)

    def call_through(self, wrapper: nn.Module) -> None:
        """Call the encoder through a wrapper."""
        # Not by assignment, which would register it, so that it would be saved a second time.
        self.__dict__["called"] = wrapper

    def embed(self, views: Shaped[Tensor, "2 b *shape"]) -> Float[Tensor, "2 b d"]:
        """Embeddings of both views, the second without a gradient under a momentum encoder."""
        if self.momentum_encoder is None:
            z = self._encode(self.called, views.flatten(0, 1))
            return z.unflatten(0, views.shape[:2])
        queries = self._encode(self.called, views[0])
        return torch.stack([queries, self._encode(self.momentum_encoder, views[1])])

    def loss(self, z: Float[Tensor, "2 b d"], indices: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        """The loss of embeddings."""
        ids = indices if self.objective.queue is not None else None
        if self.ids is not None:
            ids = self.ids[indices]
        found: Tensor = self.objective(z[0], z[1], ids=ids)
        return found

    def _encode(self, encoder: nn.Module, images: Tensor) -> Float[Tensor, "n d"]:
        lower = self.dtype != torch.float32
        if images.is_cuda and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, self.dtype, enabled=lower):
            embeddings: Tensor = encoder(images)[1]
        return embeddings


def build_learner(
    config: TrainConfig,
    example: Tensor,
    *,
    steps: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Learner:
    """A learner on a device, its weights drawn from a seed; torch's generator is unchanged."""
    model, gather = config.model, distributed.is_active()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        encoder = build_encoder(model, example)
    if gather:
        models.sync_batch_norm(encoder, device)
    queue = KeyQueue(model.queue, encoder.embedding_width) if model.queue else None
    objective = build_objective(config.loss, steps=steps, queue=queue, gather=gather)
    momentum = model.momentum_encoder
    slow = None if momentum is None else MomentumEncoder(encoder, momentum)
    learner = Learner(encoder, objective, slow, dtype).to(device)
    if torch.device(device).type == "cuda" and all(p.ndim < 5 for p in learner.parameters()):
        learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return learner


def side_of(shape: Sequence[int]) -> int:
    """The shorter side of an image of shape (channels, height, width); 1 for a row of numbers."""
    return min(shape[1:], default=1)


def build_encoder(model: ModelConfig, example: Tensor) -> Encoder:
    """The encoder of a config for inputs like those of a batch."""
    net = models.backbone(
        model.backbone,
        stem=model.stem,
        size=side_of(example.shape[1:]),
        channels=example.shape[1],
        pretrained=model.pretrained,
        example=example,
    )
    width, free = models.width_of(net), available_memory()
    needed = 4 * model.head_out * (model.head_hidden or width)
    if free is not None and needed > free:
        raise ValueError(
            f"head_out={model.head_out:,}: the head needs {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free; use fewer"
        )
    projection = models.head(
        width,
        layers=model.head_layers,
        hidden=model.head_hidden,
        out=model.head_out,
        norm=model.head_norm,
    )
    return Encoder(net, projection)


def build_objective(
    loss: LossConfig, *, steps: int, queue: KeyQueue | None = None, gather: bool = False
) -> Objective:
    """The objective of a config."""
    entry = OBJECTIVES[loss.objective]
    options = {setting.name: getattr(loss, setting.name) for setting in entry.settings}
    temperature = build_temperature(loss, steps)
    made: type[Objective] = getattr(losses, entry.class_name)
    return made(temperature, queue=queue, gather=gather, **options)


def build_temperature(loss: LossConfig, steps: int) -> Temperature:
    """The temperature of a config: fixed, scheduled, controlled by ESS, or learned."""
    start = loss.temperature
    if loss.learn_temperature:
        return LearnedTemperature(start, lowest=min(start, 0.01), highest=max(start, 10.0))
    if loss.ess is not None:
        target = loss.ess if loss.ess_end is None else Cosine(loss.ess, loss.ess_end, steps)
        return EssController(target, rate=loss.ess_rate, temperature_at_start=start)
    if loss.temperature_end is not None:
        return Cosine(start, loss.temperature_end, steps)
    return start


def backward(
    learner: Learner,
    views: Shaped[Tensor, "2 b *shape"],
    indices: Int[Tensor, " b"],
    micro_batch: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> Float[Tensor, ""]:
    """Add the gradients of a batch's loss to the parameters, and return the loss, detached.

    With micro-batches (gradient caching; Gao et al., 2021, https://arxiv.org/abs/2101.06983) it
    embeds each without a graph, differentiates the loss with respect to the embeddings, and embeds
    each again with a graph to backpropagate its share. ``between`` is called after the loss.
    """
    if micro_batch is None or micro_batch >= len(indices):
        loss = learner.loss(learner.embed(views), indices)
        between()
        loss.backward()
        return loss.detach()
    generator = torch.default_generator  # which dropout uses
    if views.is_cuda:
        generator = torch.cuda.default_generators[views.get_device()]
    parts = views.split(micro_batch, dim=1)
    statistics = [(buffer, buffer.clone()) for buffer in learner.encoder.buffers()]
    seeds = []
    with torch.no_grad():
        embedded = []
        for part in parts:
            seeds.append(generator.get_state())
            embedded.append(learner.embed(part))
        for buffer, before in statistics:  # only the second pass counts
            buffer.copy_(before)
    z = torch.cat(embedded, dim=1).requires_grad_()
    loss = learner.loss(z, indices)
    between()
    loss.backward()
    assert z.grad is not None
    after = generator.get_state()
    no_sync = getattr(learner.called, "no_sync", nullcontext)  # of DistributedDataParallel
    shares = z.grad.split(micro_batch, dim=1)
    for number, (part, share, state) in enumerate(zip(parts, shares, seeds, strict=True)):
        generator.set_state(state)
        last = number + 1 == len(parts)  # with one all-reduce, at the end
        with nullcontext() if last else no_sync():
            learner.embed(part).backward(share)
    generator.set_state(after)
    return loss.detach()
