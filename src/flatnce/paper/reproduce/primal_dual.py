"""The appendix's failed attempts: primal and dual critics, joint or alternating, with K = 1 too.

Every variant is trained on Gaussian pairs of known information and on images, where its encoder's
features are classified.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core.contrast import Contrast
from flatnce.mi.bounds import flatnce_loss, flo, flo_alternating_losses, infonce
from flatnce.mi.critics import BoundedScale, SeparableCritic, perceptron
from flatnce.paper.aggregation import Values
from flatnce.paper.charts import Charts, accuracy_axis, axis, chart, line
from flatnce.paper.reproduce.critics import (
    CALIBRATED,
    UNSTABLE,
    Size,
    Stream,
    TrainedCritics,
    one_negative,
    start_critics,
    train_critics,
    unstable_words,
)
from flatnce.paper.reproduce.experiment import Findings
from flatnce.paper.reproduce.runs import Runs, cell
from flatnce.pretrain.data import label_fraction, load
from flatnce.pretrain.evaluation import extract, knn_scores, linear_probe, measure
from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.training.config import TrainConfig, preset
from flatnce.pretrain.training.images import Images, normalisation, open_images

DUALS = {"free": "u-head", "critic": "second critic", "constrained": "u = −g + s(x)"}
"""What u may be, and what it is called."""

OBJECTIVES = {"infonce": "InfoNCE", "flatnce": "FlatNCE", "flo": "FLO"}

TRAININGS = (
    ("joint", False, False),
    ("joint, K = 1", False, True),
    ("alternating", True, False),
    ("alternating, K = 1", True, True),
)
"""Of each colour of the charts: whether alternating, and whether with one negative."""

LINEAR = "linear top-1, 5 % of labels"

# Of encoders trained on images: embedding width, scale (temperature 0.1), and Adam's rate.
WIDTH, SCALE, RATE = 64, 10.0, 1e-3
NEIGHBOURS = 20
# The probe has few labels: with all of them even an untrained encoder classifies digits at 97 %.
# Its regularisation is given, because there are too few labels to hold some out.
FRACTION, DRAWS, REGULARISATION = 0.05, 5, 1e-2

Outcome = tuple[float | None, float | None]
"""Test accuracy by kNN with all labels and by a linear probe with few; None if diverged."""


@dataclass(frozen=True)
class PrimalDualVariant:
    """An objective, the u beside it (a key of :data:`DUALS`), and how both are trained.

    ``alternating`` means that critic and u are updated in turn instead of jointly, ``single`` that
    there is one negative per row (K = 1). On images all critics are cosines.
    """

    objective: str
    critic: str = "dot"
    dual: str | None = None
    alternating: bool = False
    single: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What tells it from the others, in words."""
        return {
            "objective": OBJECTIVES[self.objective],
            "critic": self.critic,
            "u": DUALS[self.dual] if self.dual else "none",
            "training": "alternating" if self.alternating else "joint" if self.dual else "none",
            "negatives": "one" if self.single else "all",
        }

    def loss(
        self, scores: Float[Tensor, "n n"], dual: Float[Tensor, " n"], of_u: bool
    ) -> Float[Tensor, ""]:
        """What is minimised."""
        rows: Tensor | Contrast = one_negative(scores) if self.single else scores
        if self.objective == "infonce":
            return -infonce(rows)
        if self.objective == "flatnce":
            return flatnce_loss(rows)
        if self.alternating:
            return flo_alternating_losses(rows, dual)[int(of_u)]
        return -flo(rows, dual)


VARIANTS = (
    PrimalDualVariant("infonce"),
    PrimalDualVariant("infonce", "cosine"),
    PrimalDualVariant("flatnce", "cosine"),
    PrimalDualVariant("infonce", single=True),
    PrimalDualVariant("infonce", "cosine", single=True),
    PrimalDualVariant("flatnce", "cosine", single=True),
    *(
        PrimalDualVariant("flo", "dot", dual, alternating, single)
        for dual, alternating, single in itertools.product(DUALS, (False, True), (False, True))
    ),
)
"""Every u, joint and alternating, with all negatives and with one; and what they compare with."""


def compare_variants(runs: Runs) -> Findings:
    """Train every variant on Gaussians, then on images."""
    scale, seeds = runs.setting.scale, runs.setting.seeds
    size = Size(seeds=seeds, **runs.setting.pick(runs.experiment.sizes))
    config = preset("digits").override(batch_size=64, epochs=1 if scale == "smoke" else 8)
    if scale == "paper":
        config = preset("cifar10").override(epochs=100)
    variants: Sequence[PrimalDualVariant] = VARIANTS
    if scale == "smoke":  # every u, joint and alternating, K = 1 and all, but not each with each
        variants = VARIANTS[:3] + VARIANTS[6::3]
    # On images all critics are cosines, so variants that differ in the critic alone are the same.
    on_images = [one for one in variants if one.dual or one.critic == "cosine"]
    if scale == "smoke":
        on_images = on_images[::3]
    trained = {variant: _train_on_gaussians(variant, size) for variant in variants}
    rows = []
    shown: dict[tuple[str, PrimalDualVariant], Values] = {}
    for nats, variant in itertools.product(size.nats, variants):
        variables = {"data": _gaussians(nats), **variant.variables}
        critics = trained[variant]
        cells = critics.cells(nats)
        if variant.dual:
            cells["FLO as trained"] = cell(critics.of(nats, _flo_values(critics)), "nats")
        rows.append({"variables": variables, "measures": cells})
        shown[variables["data"], variant] = cells[CALIBRATED]["values"]
    data, configs = config.data.data, [config.override(seed=seed) for seed in seeds]
    start = [train_on_images(on_images[0], one, epochs=0) for one in configs]
    variables = {"data": data, "objective": "untrained"}
    rows.append({"variables": variables, "measures": _image_cells(start)})
    for variant in on_images:
        variables = {"data": data, **variant.variables, "critic": "cosine"}
        cells = _image_cells([train_on_images(variant, one, one.run.epochs) for one in configs])
        rows.append({"variables": variables, "measures": cells})
        shown[data, variant] = cells[LINEAR]["values"]
    charts: Charts = []
    for nats in size.nats:
        heading = runs.experiment.heading("gaussians", **{**asdict(size), "nats": nats})
        charts += _chart(heading, shown, _gaussians(nats), "dot", axis("nats"))
    heading = runs.experiment.heading("images", data=data)
    charts += _chart(heading, shown, data, "cosine", accuracy_axis("top-1"))
    return Findings(rows, charts, unstable_words(rows))


def _chart(
    heading: Mapping[str, str],
    shown: Mapping[tuple[str, PrimalDualVariant], Values],
    data: str,
    critic: str,
    y: Mapping[str, Any],
) -> Charts:
    """A bar for every objective or u and every training."""
    bars = []
    for series, (words, alternating, single) in enumerate(TRAININGS):
        variants = [
            PrimalDualVariant("infonce", critic, single=single),
            PrimalDualVariant("flatnce", "cosine", single=single),
        ]
        variants += [PrimalDualVariant("flo", "dot", u, alternating, single) for u in DUALS]
        values = [shown.get((data, variant), [None]) for variant in variants]
        bars.append(line(words, range(len(values)), values, series))
    x, categories = axis("objective, or u of FLO"), ["InfoNCE", "FlatNCE", *DUALS.values()]
    return chart("bars", heading, x, y, bars, categories=categories)


# Gaussians.


def _gaussians(nats: float) -> str:
    return f"Gaussians, {nats:g} nats"


def _train_on_gaussians(variant: PrimalDualVariant, size: Size) -> TrainedCritics:
    return train_critics(
        start_critics(size, variant.critic, variant.dual),
        size,
        lambda run, scores, dual, of_u: variant.loss(scores, dual, of_u),
        alternating=variant.alternating,
    )


@torch.no_grad()
def _flo_values(trained: TrainedCritics) -> Values:
    """FLO of the critic and its u on held-out batches with all negatives: a bound."""
    size, total = trained.size, torch.zeros(trained.critics.count, dtype=torch.float64)
    stream = Stream(size, purpose=3)
    for _ in range(size.batches):
        scores, dual = trained.scores(*stream.draw(size.batch))
        for run in trained.alive.nonzero().flatten().tolist():
            total[run] += flo(scores[run].double(), dual[run].double()) / size.batches
    return [
        float(value) if alive and value.isfinite() else None
        for value, alive in zip(total, trained.alive, strict=True)
    ]


# Images.


def _image_cells(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        LINEAR: cell([linear for _, linear in outcomes], "share"),
        "kNN top-1, all labels": cell([knn for knn, _ in outcomes], "share"),
        UNSTABLE: cell([float(knn is None) for knn, _ in outcomes], "share"),
    }


class _Embeddings(nn.Module):
    """An encoder's embeddings, which a critic scores."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(images)[1]


def train_on_images(variant: PrimalDualVariant, config: TrainConfig, epochs: int) -> Outcome:
    """Train an encoder by Adam on two views of each image, then classify with its features."""
    images = open_images(config, _device())
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        encoder = _encoder(config, images)
        critic = _critic(encoder, variant.dual).to(_device())
        second = None
        if variant.dual == "critic":
            second = _critic(_encoder(config, images)).to(_device())
    u_parts = [part for part in (critic.dual_head, second) if part is not None]
    of_u = [weight for part in u_parts for weight in part.parameters()]
    of_encoder = list(encoder.parameters())
    sides = [of_encoder, of_u] if variant.alternating else [of_encoder + of_u]
    optimisers = [torch.optim.Adam(side, RATE) for side in sides]
    batches = ((epoch, batch) for epoch in range(epochs) for batch in images.loader.epoch(epoch))
    for step, (epoch, batch) in enumerate(batches):
        turn = step % len(optimisers)
        views = images.views(batch.images, batch.indices, epoch)
        scores, dual = _scores_and_dual(critic, second, *views)
        if not bool(scores.isfinite().all() & dual.isfinite().all()):
            return None, None
        critic.zero_grad()
        for optimiser in optimisers:
            optimiser.zero_grad()
        variant.loss(scores, dual, turn == 1).backward()
        optimisers[turn].step()
    if not all(bool(weight.isfinite().all()) for weight in encoder.parameters()):
        return None, None
    return classify(encoder, config, images)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _encoder(config: TrainConfig, images: Images) -> Encoder:
    model = config.model
    net = backbone(model.backbone, stem=model.stem, size=images.size, channels=images.channels)
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


def _scores_and_dual(
    critic: SeparableCritic, second: SeparableCritic | None, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores, and u: the critic's own, the second critic's, or zeros."""
    if critic.dual_head is not None:
        return critic.scores_and_dual(left, right)
    scores = critic(left, right)
    if second is not None:
        return scores, second.paired(left, right)
    return scores, scores.new_zeros(len(scores))


def classify(encoder: Encoder, config: TrainConfig, images: Images) -> Outcome:
    """Test accuracies of the encoder's features."""
    mean, std = normalisation(config.data.data)
    encoder.eval()
    train, test = (
        extract(encoder.backbone, part, size=images.size, mean=mean, std=std)
        for part in (images.image_set, load(config.data.data, "test", config.data.root))
    )
    votes = knn_scores(train, test.features, (NEIGHBOURS,))[NEIGHBOURS]
    linear = []
    for draw in range(DRAWS):
        few = train.subset(label_fraction(train.labels, FRACTION, seed=draw))
        probe = linear_probe(few, test, regularisations=(REGULARISATION,))
        linear.append(measure(probe.scores, test.labels)["top1"])
    return measure(votes, test.labels)["top1"], sum(linear) / DRAWS
