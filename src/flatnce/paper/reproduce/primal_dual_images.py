"""The failed attempts on images: an encoder is trained with each, and its features classified."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flatnce.mi.critics import BoundedScale, SeparableCritic, perceptron
from flatnce.paper.reproduce.attempts import Attempt
from flatnce.pretrain.data import label_fraction, load
from flatnce.pretrain.evaluation import extract, knn_scores, linear_probe, measure
from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import Images, normalisation, open_images

WIDTH = 64
SCALE = 10.0  # a temperature of 0.1
RATE = 1e-3
NEIGHBOURS = 20
# With all labels even the features of an untrained encoder classify digits at 97 %.
FRACTION, DRAWS = 0.05, 5
REGULARISATION = 1e-2  # given, not chosen: there are too few labels to hold some out


@dataclass(frozen=True)
class Outcome:
    """What came of one run.

    Arguments:
        knn: Top-1 by 20 neighbours on the test images; None if it diverged.
        linear: Top-1 there of a linear probe on few labels, over several draws of these; None
            likewise.
        diverged: Whether loss or weights were no longer finite.
    """

    knn: float | None
    linear: float | None
    diverged: bool


class _Embeddings(nn.Module):
    """An encoder's embeddings alone: what a critic scores."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(images)[1]


def train_on_images(one: Attempt, config: TrainConfig) -> Outcome:
    """Train an encoder by Adam on two views of each image, then classify with its features."""
    device = _device()
    images = open_images(config, device)
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        encoder = _encoder(config, images)
        critic = _critic(encoder, one.dual).to(device)
        second = _critic(_encoder(config, images)).to(device) if one.dual == "critic" else None
    u_parts = [part for part in (critic.dual_head, second) if part is not None]
    of_u = [weight for part in u_parts for weight in part.parameters()]
    of_encoder = list(encoder.parameters())
    sides = [of_encoder, of_u] if one.alternating else [of_encoder + of_u]
    optimisers = [torch.optim.Adam(side, RATE) for side in sides]
    batches = (
        (epoch, *batch) for epoch in range(config.run.epochs) for batch in _epoch(images, epoch)
    )
    for step, (epoch, indices, batch) in enumerate(batches):
        turn = step % len(optimisers)
        scores, dual = _scored(critic, second, *images.views(batch, indices, epoch))
        if not bool(scores.isfinite().all() & dual.isfinite().all()):
            return Outcome(None, None, True)
        critic.zero_grad()
        for optimiser in optimisers:
            optimiser.zero_grad()
        one.loss(scores, dual, turn == 1).backward()
        optimisers[turn].step()
    if not all(bool(weight.isfinite().all()) for weight in encoder.parameters()):
        return Outcome(None, None, True)
    return _classified(encoder, config, images)


def untrained(config: TrainConfig) -> Outcome:
    """The same, with the encoder as it is drawn: what every attempt begins from."""
    device = _device()
    images = open_images(config, device)
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        encoder = _encoder(config, images).to(device)
    return _classified(encoder, config, images)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _epoch(images: Images, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from ((batch.indices, batch.images) for batch in images.loader.epoch(epoch))


def _encoder(config: TrainConfig, images: Images) -> Encoder:
    asked = config.model
    net = backbone(asked.backbone, stem=asked.stem, size=images.size, channels=images.channels)
    return Encoder(net, head(net.width, out=WIDTH))  # type: ignore[arg-type]


def _critic(encoder: Encoder, dual: str | None = None) -> SeparableCritic:
    tower, u_head = _Embeddings(encoder), None
    if dual in ("free", "constrained"):
        u_head = perceptron(WIDTH if dual == "constrained" else 2 * WIDTH, 1, (2 * WIDTH,))
    return SeparableCritic(
        tower,
        tower,
        similarity="cosine",
        scale=BoundedScale(SCALE, learn=False),
        dual=u_head,
        constrained=dual == "constrained",
    )


def _scored(
    critic: SeparableCritic, second: SeparableCritic | None, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores, and u: the critic's own, the second one's, or zeros."""
    if critic.dual_head is not None:
        return critic.scores_and_dual(left, right)
    scores = critic(left, right)
    if second is not None:
        return scores, second.paired(left, right)
    return scores, scores.new_zeros(len(scores))


def _classified(encoder: Encoder, config: TrainConfig, images: Images) -> Outcome:
    mean, std = normalisation(config.data.data)
    encoder.eval()
    train, test = (
        extract(encoder.backbone, part, size=images.size, mean=mean, std=std)
        for part in (images.image_set, load(config.data.data, "test", config.data.root))
    )
    votes = knn_scores(train, test.features, (NEIGHBOURS,))[NEIGHBOURS]
    found = []
    for draw in range(DRAWS):
        few = train.subset(label_fraction(train.labels, FRACTION, seed=draw))
        probe = linear_probe(few, test, regularisations=(REGULARISATION,))
        found.append(measure(probe.scores, test.labels)["top1"])
    return Outcome(measure(votes, test.labels)["top1"], sum(found) / DRAWS, False)
