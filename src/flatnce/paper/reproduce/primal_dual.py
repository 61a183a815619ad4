"""The appendix's failed attempts: primal and dual critics, joint or alternating, with K = 1 too.

Every variant is trained on Gaussian pairs of known information and on images, where its encoder's
features are classified.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core.contrast import Contrast
from flatnce.mi.bounds import flatnce_loss, flo, flo_alternating_losses, infonce
from flatnce.mi.critics import BoundedScale, SeparableCritic, perceptron
from flatnce.paper.aggregation import Values, difference
from flatnce.paper.charts import Charts, accuracy_axis, axis, bar, bar_figure
from flatnce.paper.reproduce.critics import (
    Size,
    Stream,
    TrainedCritics,
    one_negative,
    start_critics,
    train_critics,
)
from flatnce.paper.reproduce.experiment import Findings, Setting, by_scale
from flatnce.paper.reproduce.runs import cell
from flatnce.pretrain.data import label_fraction, load
from flatnce.pretrain.evaluation import extract, knn_scores, linear_probe, measure
from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.training.config import TrainConfig, preset
from flatnce.pretrain.training.images import Images, normalisation, open_images

DUALS = {"free": "u-head", "critic": "second critic", "constrained": "u = −g + s(x)"}
"""What u may be, and what it is called."""

OBJECTIVES = {"infonce": "InfoNCE", "flatnce": "FlatNCE", "flo": "FLO"}

TRAININGS = (
    ("joint", "joint", False, False),
    ("joint-one", "joint, K = 1", False, True),
    ("alternating", "alternating", True, False),
    ("alternating-one", "alternating, K = 1", True, True),
)
"""Of each chart: its name, in words, whether alternating, whether with one negative."""

CALIBRATED, LINEAR, UNSTABLE = "calibrated InfoNCE", "linear top-1, 5 % of labels", "unstable"

# Of encoders trained on images: embedding width, scale (temperature 0.1), and Adam's rate.
WIDTH, SCALE, RATE = 64, 10.0, 1e-3
NEIGHBOURS = 20
# The probe has few labels: with all of them even an untrained encoder classifies digits at 97 %.
# Its regularisation is given, because there are too few labels to hold some out.
FRACTION, DRAWS, REGULARISATION = 0.05, 5, 1e-2

Row = Mapping[str, Any]


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

    @property
    def label(self) -> str:
        """The same in a line."""
        parts = [OBJECTIVES[self.objective], DUALS[self.dual] if self.dual else self.critic]
        parts += ["alternating"] if self.alternating else []
        parts += ["K = 1"] if self.single else []
        return ", ".join(parts)

    def is_row(self, row: Row, data: str) -> bool:
        """Whether a row of the table is of this variant on these data."""
        wanted = {"data": data, **self.variables}
        if not data.startswith("Gaussians"):
            wanted["critic"] = "cosine"
        return wanted.items() <= row["variables"].items()

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


def compare_variants(setting: Setting) -> Findings:
    """Train every variant on Gaussians, then on images."""
    seeds, digits = setting.seeds, preset("digits").override(batch_size=64)
    size = setting.pick(
        by_scale(
            Size((2.0,), seeds, steps=6, pool=100, batches=4, width=16),
            Size((2.0, 4.0, 6.0), seeds, steps=800, pool=2_000, batches=50),
            Size((2.0, 4.0, 6.0), seeds, 10_000, 4_000, batches=400, width=256),
        )
    )
    config = setting.pick(
        by_scale(
            digits.override(epochs=1),
            digits.override(epochs=8),
            preset("cifar10").override(epochs=100),
        )
    )
    # At smoke scale every u, joint and alternating, one negative and all, but not each with each.
    few = VARIANTS[:3] + VARIANTS[6::3]
    variants = setting.pick(by_scale(few, VARIANTS, VARIANTS))
    trained = {variant: _train_on_gaussians(variant, size) for variant in variants}
    rows = [_gaussian_row(one, nats, trained[one]) for nats in size.nats for one in variants]
    # On images all critics are cosines, so variants that differ in the critic alone are the same.
    on_images = [one for one in variants if one.dual or one.critic == "cosine"]
    if setting.scale == "smoke":
        on_images = on_images[::3]
    data, configs = config.data.data, [config.override(seed=seed) for seed in seeds]
    start = [untrained(one) for one in configs]
    rows.append(_image_row({"data": data, "objective": "untrained"}, start))
    for variant in on_images:
        variables = {"data": data, **variant.variables, "critic": "cosine"}
        rows.append(_image_row(variables, [train_on_images(variant, one) for one in configs]))
    return Findings(rows, _charts(rows, size, data), _words(rows, size.nats[-1], data))


# Gaussians.


def _train_on_gaussians(variant: PrimalDualVariant, size: Size) -> TrainedCritics:
    return train_critics(
        start_critics(size, variant.critic, variant.dual),
        size,
        lambda run, scores, dual, of_u: variant.loss(scores, dual, of_u),
        alternating=variant.alternating,
    )


def _gaussian_row(
    variant: PrimalDualVariant, nats: float, trained: TrainedCritics
) -> dict[str, Any]:
    measures = {
        CALIBRATED: cell(trained.of(nats, trained.held_out), "nats"),
        UNSTABLE: cell(trained.of(nats, trained.unstable()), "share"),
        "gradient's spread": cell(trained.of(nats, trained.spread), "rounded"),
    }
    if variant.dual:
        measures["FLO as trained"] = cell(trained.of(nats, _flo_values(trained)), "nats")
    return {"variables": {"data": _gaussians(nats), **variant.variables}, "measures": measures}


def _gaussians(nats: float) -> str:
    return f"Gaussians, {nats:g} nats"


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


@dataclass(frozen=True)
class Outcome:
    """Test accuracy by kNN with all labels and by a linear probe with few; None if diverged."""

    knn: float | None = None
    linear: float | None = None

    @property
    def diverged(self) -> bool:
        """Whether the loss or the weights were no longer finite."""
        return self.knn is None


def _image_row(variables: Mapping[str, str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "variables": dict(variables),
        "measures": {
            LINEAR: cell([one.linear for one in outcomes], "share"),
            "kNN top-1, all labels": cell([one.knn for one in outcomes], "share"),
            UNSTABLE: cell([float(one.diverged) for one in outcomes], "share"),
        },
    }


class _Embeddings(nn.Module):
    """An encoder's embeddings, which a critic scores."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(images)[1]


def train_on_images(variant: PrimalDualVariant, config: TrainConfig) -> Outcome:
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
    batches = (
        (epoch, batch)
        for epoch in range(config.run.epochs)
        for batch in images.loader.epoch(epoch)
    )
    for step, (epoch, batch) in enumerate(batches):
        turn = step % len(optimisers)
        views = images.views(batch.images, batch.indices, epoch)
        scores, dual = _scores_and_dual(critic, second, *views)
        if not bool(scores.isfinite().all() & dual.isfinite().all()):
            return Outcome()
        critic.zero_grad()
        for optimiser in optimisers:
            optimiser.zero_grad()
        variant.loss(scores, dual, turn == 1).backward()
        optimisers[turn].step()
    if not all(bool(weight.isfinite().all()) for weight in encoder.parameters()):
        return Outcome()
    return classify(encoder, config, images)


def untrained(config: TrainConfig) -> Outcome:
    """The accuracy of the encoder that every variant starts from."""
    images = open_images(config, _device())
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        encoder = _encoder(config, images).to(_device())
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
    return Outcome(measure(votes, test.labels)["top1"], sum(linear) / DRAWS)


# Charts and words.


def _charts(rows: Sequence[Row], size: Size, images: str) -> Charts:
    """Calibrated values by information, one chart per training; accuracies in one chart."""
    charts = []
    for name, words, alternating, single in TRAININGS:
        bars = [
            bar(label, [_values(rows, _gaussians(n), one, CALIBRATED) for n in size.nats], series)
            for series, (label, one) in enumerate(_shown("dot", alternating, single).items())
        ]
        charts += bar_figure(
            f"gaussians-{name}",
            f"What critics of Gaussians know, {words}",
            f"InfoNCE among {size.pool:,} held-out pairs at the scale calibrated on others, after "
            f"{size.steps:,} steps of {size.batch} pairs. InfoNCE and FlatNCE have no u.",
            "true information",
            axis("nats"),
            [f"{nats:g} nats" for nats in size.nats],
            bars,
        )
    bars = []
    for series, (_, words, alternating, single) in enumerate(TRAININGS):
        shown = _shown("cosine", alternating, single).values()
        bars.append(bar(words, [_values(rows, images, one, LINEAR) for one in shown], series))
    return charts + bar_figure(
        "images",
        f"Features of {images} trained with each",
        "Top-1 on the test images of a linear probe with 5 % of the labels, encoder frozen. "
        "InfoNCE and FlatNCE have no u.",
        "objective, or u of FLO",
        accuracy_axis("top-1"),
        list(_shown("cosine", False, False)),
        bars,
    )


def _shown(critic: str, alternating: bool, single: bool) -> dict[str, PrimalDualVariant]:
    flo_variants = {
        label: PrimalDualVariant("flo", "dot", u, alternating, single)
        for u, label in DUALS.items()
    }
    return {
        "InfoNCE": PrimalDualVariant("infonce", critic, single=single),
        "FlatNCE": PrimalDualVariant("flatnce", "cosine", single=single),
        **flo_variants,
    }


def _values(rows: Sequence[Row], data: str, variant: PrimalDualVariant, name: str) -> Values:
    """A measure, one per seed; [None] where the variant was not tried on these data."""
    for row in rows:
        if variant.is_row(row, data):
            return list(row["measures"][name]["values"])
    return [None]


def _words(rows: Sequence[Row], nats: float, images: str) -> dict[str, str]:
    """Differences from InfoNCE, and unstable runs."""
    unstable = []
    for row in rows:
        if row["measures"][UNSTABLE]["mean"]:
            data = row["variables"]["data"]
            labels = [one.label for one in VARIANTS if one.is_row(row, data)]
            label = labels[0] if labels else row["variables"]["objective"]
            unstable.append(f"{label} on {data}")
    return {
        f"{nats:g} nats, calibrated InfoNCE less that of InfoNCE's critic with all negatives": (
            _against(rows, _gaussians(nats), PrimalDualVariant("infonce"), CALIBRATED, 1.0)
        ),
        f"{images}, linear top-1 with few labels less InfoNCE's, in points": (
            _against(rows, images, PrimalDualVariant("infonce", "cosine"), LINEAR, 100.0)
        ),
        "Unstable": (", ".join(unstable) or "none") + ".",
    }


def _against(
    rows: Sequence[Row], data: str, base: PrimalDualVariant, name: str, factor: float
) -> str:
    """Mean differences from a variant, best first."""
    usual = _values(rows, data, base, name)
    gaps = {}
    for variant in VARIANTS:
        values = _values(rows, data, variant, name)
        on_these = variant.dual or variant.critic == "cosine" or data.startswith("Gaussians")
        if variant == base or len(values) != len(usual) or not on_these:
            continue
        gap = difference(values, usual)
        if gap["mean"] is not None:
            gaps[variant.label] = gap
    parts = []
    for label in sorted(gaps, key=lambda label: -gaps[label]["mean"]):
        known = [value for value in gaps[label]["values"] if value is not None]
        agree = len(known) < 2 or min(known) > 0 or max(known) < 0
        mark = "" if agree else " (seeds disagree)"
        parts.append(f"{label} {factor * gaps[label]['mean']:+.2f}{mark}")
    return ("; ".join(parts).replace(" -", " −") or "nothing to compare") + "."
