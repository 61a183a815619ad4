"""Critics of Gaussian pairs whose information is known: Table 1 and the primal-dual variants.

A *run* is one (information, seed). All runs are trained together as one stack of critics. Axes:
``s`` runs, ``n`` pairs, ``m`` candidates, ``d`` coordinates.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.pool import best_scale
from flatnce.functional import contrast_from_logits
from flatnce.mi.bounds import (
    barber_agakov,
    flatnce_loss,
    flo,
    flo_alternating_losses,
    infonce,
    mine_loss,
)
from flatnce.mi.critics import (
    BoundedScale,
    Critic,
    SeparableCritic,
    StackedCritics,
    critic_for,
    perceptron,
)
from flatnce.mi.registry import BOUNDS
from flatnce.mi.tasks import staircase
from flatnce.paper.charts import Charts, Values, accuracy_axis, axis, chart, line, spread
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Findings
from flatnce.paper.reproduce.runs import Runs, cell
from flatnce.pretrain.data import label_fraction, load
from flatnce.pretrain.evaluation import extract, knn_scores, linear_probe, measure
from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.training.config import TrainConfig, preset
from flatnce.pretrain.training.images import Images, normalisation, open_images

COSINE_SCALE = 20.0
LEARNED = 0.1  # nats below which a run has learned nothing that it could lose
CHECKS, CHECK_PAIRS = 6, 500  # of the held-out value in training

CALIBRATED, UNSTABLE, SPREAD = "calibrated InfoNCE", "unstable", "gradient's spread"

Loss = Callable[[int, Tensor, Tensor, bool], Tensor]
"""From run, scores, u, and whether the step is of u alone, to the run's loss."""


@dataclass(frozen=True)
class Size:
    """How much is done: informations and seeds, training steps, held-out pairs and batches."""

    nats: Sequence[float]
    seeds: Sequence[int]
    steps: int
    pool: int
    batches: int
    batch: int = 64
    dimensions: int = 20
    width: int = 128
    rate: float = 5e-4

    @property
    def runs(self) -> list[tuple[float, int]]:
        """Information and seed of every run."""
        return list(itertools.product(self.nats, self.seeds))


class Stream:
    """Fresh pairs for every run; streams of different ``purpose`` are independent."""

    def __init__(self, size: Size, purpose: int) -> None:
        self.size = size
        self.correlations = [correlation_of(nats, size.dimensions) for nats, _ in size.runs]
        self.generators = [
            torch.Generator().manual_seed(1_000_003 * seed + 7919 * purpose + round(100 * nats))
            for nats, seed in size.runs
        ]

    def draw(
        self, count: int, extra: int = 0
    ) -> tuple[Float[Tensor, "s n d"], Float[Tensor, "s m d"]]:
        """X's and their partners, followed by ``extra`` further y's."""
        drawn = [
            draw_pairs(generator, count + extra, self.size.dimensions, correlation)
            for generator, correlation in zip(self.generators, self.correlations, strict=True)
        ]
        x, y = (torch.stack(side) for side in zip(*drawn, strict=True))
        return x[:, :count], y


def true_scores(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], nats: float
) -> Float[Tensor, "n m"]:
    """The optimal critic, log p(y|x)/p(y), of every x with every y."""
    square = -math.expm1(-2 * nats / x.shape[1])
    own = square * (x.square().sum(1)[:, None] + y.square().sum(1)[None])
    return nats - (own - 2 * math.sqrt(square) * x @ y.T) / (2 * (1 - square))


def one_negative(scores: Float[Tensor, "n m"]) -> Contrast:
    """Row statistics with one negative per row, the next row's partner (K = 1)."""
    n = len(scores)
    negatives = torch.cat((scores.diagonal(1)[: n - 1], scores[-1:, 0]))
    pairs = torch.stack((scores.diagonal(), negatives), dim=1)
    return contrast_from_logits(pairs, torch.zeros(n, dtype=torch.long))


class _OnSphere(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return COSINE_SCALE**0.5 * normalize(features, dim=-1)


def start_critics(size: Size, kind: str, dual: str | None = None) -> StackedCritics:
    """Untrained critics, one per run; those of one seed start alike for every objective."""
    critics: list[Critic] = []
    dual_critics: list[Critic] = []
    hidden, widths = (size.width,) * 2, (size.dimensions,) * 2
    for _, seed in size.runs:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "cosine":
                towers = [
                    nn.Sequential(perceptron(width, 32, hidden), _OnSphere()) for width in widths
                ]
                critics.append(SeparableCritic(*towers))
                continue
            head = None if dual == "critic" else dual
            critics.append(critic_for("dot", widths, hidden=hidden, dual=head))
            if dual == "critic":
                dual_critics.append(critic_for("dot", widths, hidden=hidden))
    return StackedCritics(critics, dual_critics)


@dataclass
class TrainedCritics:
    """Critics after training, with numbers per run.

    ``alive`` are the runs whose scores and gradients stayed finite, ``held_out`` and ``best`` the
    calibrated InfoNCE at the end and the best in training, ``spread`` the standard deviation of
    the gradient's length over its mean in the second half. Milliseconds are per step and run.
    """

    size: Size
    critics: StackedCritics
    alive: Bool[Tensor, " s"]
    held_out: Values = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    spread: Values = field(default_factory=list)
    milliseconds: float = 0.0

    def unstable(self) -> Values:
        """1 for a run that diverged or fell below half of its best value, else 0."""
        return [
            float(last is None or (best > LEARNED and last < best / 2))
            for last, best in zip(self.held_out, self.best, strict=True)
        ]

    def of(self, nats: float, values: Sequence[float | None]) -> Values:
        """The values of the runs with one information, one per seed."""
        runs = zip(self.size.runs, values, strict=True)
        return [value for (at, _), value in runs if at == nats]

    def cells(self, nats: float) -> dict[str, Any]:
        """The columns of a table that critics trained by any objective have."""
        return {
            CALIBRATED: cell(self.of(nats, self.held_out), "nats"),
            UNSTABLE: cell(self.of(nats, self.unstable()), "share"),
            SPREAD: cell(self.of(nats, self.spread), "rounded"),
        }

    def scores(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of every x with every y, and u of partners (zeros where there is none)."""
        scores, dual = self.critics(x, y)
        return scores, scores.new_zeros(scores.shape[:2]) if dual is None else dual


def train_critics(
    critics: StackedCritics, size: Size, loss: Loss, *, extra: int = 0, alternating: bool = False
) -> TrainedCritics:
    """Train with Adam on fresh pairs; runs that are no longer finite are left as they are."""
    stream, alive = Stream(size, purpose=0), torch.ones(critics.count, dtype=torch.bool)
    trained = TrainedCritics(size, critics, alive, best=[-math.inf] * critics.count)
    parts: tuple[Literal["all", "critic", "dual"], ...] = (
        ("critic", "dual") if alternating else ("all",)
    )
    optimisers = [torch.optim.Adam(critics.parameters(part), size.rate) for part in parts]
    norms: list[Tensor] = []
    seconds = 0.0
    for step in range(size.steps):
        x, y = stream.draw(size.batch, extra)
        began, turn = time.process_time(), step % len(optimisers)
        lengths = _gradients(trained, x, y, loss, turn == 1)
        if lengths is None:
            break
        optimisers[turn].step()
        seconds += time.process_time() - began
        norms.append(lengths)
        if (step + 1) % max(size.steps // CHECKS, 1) == 0:
            values = held_out_values(trained, min(size.pool, CHECK_PAIRS))
            known = [-math.inf if value is None else value for value in values]
            trained.best = [max(both) for both in zip(trained.best, known, strict=True)]
    trained.milliseconds = 1e3 * seconds / max(len(norms) * critics.count, 1)
    trained.held_out = held_out_values(trained, size.pool)
    trained.spread = _spreads(norms, trained.alive)
    return trained


def _gradients(
    trained: TrainedCritics, x: Tensor, y: Tensor, loss: Loss, of_u: bool
) -> Tensor | None:
    """Compute every run's gradient and return its length; None where no run is left."""
    scores, dual = trained.scores(x, y)
    trained.alive &= scores.isfinite().flatten(1).all(1) & dual.isfinite().all(1)
    going = trained.alive.nonzero().flatten().tolist()
    if not going:
        return None
    critics = trained.critics
    critics.zero_grad()
    torch.stack([loss(run, scores[run], dual[run], of_u) for run in going]).sum().backward()
    lengths = critics.gradient_norms()
    trained.alive &= lengths.isfinite()
    critics.drop_gradients(~trained.alive)
    return lengths


@torch.no_grad()
def held_out_values(trained: TrainedCritics, pool: int) -> Values:
    """InfoNCE among a held-out pool, at the scale that is best on another; None if diverged."""
    stream = Stream(trained.size, purpose=1)
    calibration, _ = trained.scores(*stream.draw(pool))
    scores, _ = trained.scores(*stream.draw(pool))
    values: Values = []
    for run, alive in enumerate(trained.alive):
        if not alive or not bool(scores[run].isfinite().all()):
            values.append(None)
            continue
        unit = float(calibration[run].std().clamp_min(1e-6))
        scale = best_scale(calibration[run].double() / unit, 1.0) / unit
        values.append(float(infonce(scale * scores[run].double())))
    return values


def _spreads(norms: list[Tensor], alive: Bool[Tensor, " s"]) -> Values:
    if len(norms) < 4:
        return [None] * len(alive)
    later = torch.stack(norms[len(norms) // 2 :])
    ratios = later.std(0) / later.mean(0)
    return [float(ratio) if lives else None for ratio, lives in zip(ratios, alive, strict=True)]


def unstable_words(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which rows of a table have unstable runs."""
    named = [
        ", ".join(map(str, row["variables"].values()))
        for row in rows
        if row["measures"].get(UNSTABLE, {}).get("mean")
    ]
    return {"Unstable": ("; ".join(named) or "none") + "."}


# Table 1: bias, variance, stability and cost of every bound.

LARGE_SAMPLE = 200_000
TRUE_BIAS, TRUE_SD = "bias, true critic", "sd, true critic"
LOW = 0.1  # the largest bias, as a share of the truth, that is called low
STEADY, WILD = 0.2, 1.0  # spreads of the gradient up to which stability is excellent, and okay

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class BoundVariant:
    """One bound of the registry with one kind of critic and, for some, a learned u or baseline.

    ``single`` means one negative per row, that is one shuffled copy of y. ``in_paper`` is what
    Table 1 says of its bias and its stability, ``charts`` the charts that show it.
    """

    label: str
    bound: str
    critic: str = "dot"
    dual: str | None = None
    options: Mapping[str, float] = field(default_factory=dict)
    single: bool = False
    in_paper: Sequence[str] = ()
    charts: Sequence[str] = ()

    @property
    def is_bound(self) -> str:
        """Whether it is a lower bound on mutual information, in words."""
        if BOUNDS[self.bound].is_lower_bound:
            return "yes"
        words = {"expected": "of another divergence", "limit": "in the limit"}
        return words.get(BOUNDS[self.bound].promise, "no")

    @property
    def trains(self) -> bool:
        """Whether a critic is trained with it; Barber–Agakov has a density in its place."""
        return BOUNDS[self.bound].reads != "densities"

    @property
    def needs_pool(self) -> bool:
        """Whether it takes further y's."""
        return "pool" in BOUNDS[self.bound].needs

    def value(self, scores: Float[Tensor, "n m"], dual: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Its number in nats."""
        own, arguments = self._arguments(scores, dual)
        return BOUNDS[self.bound].value(own, **arguments)

    def loss(
        self, scores: Float[Tensor, "n m"], dual: Float[Tensor, " n"], memory: dict[str, Any]
    ) -> Float[Tensor, ""]:
        """What is minimised; ``memory`` keeps MINE's moving average."""
        own, arguments = self._arguments(scores, dual)
        if self.bound == "mine":
            loss, memory["average"] = mine_loss(own, memory.get("average"))
            return loss
        return BOUNDS[self.bound].loss(own, **arguments)

    def _arguments(self, scores: Tensor, dual: Tensor) -> tuple[Any, dict[str, Any]]:
        n, arguments = len(scores), dict[str, Any](self.options)
        own = scores[:, :n]
        needs = BOUNDS[self.bound].needs
        if "dual" in needs:
            arguments["dual"] = dual
        if "log_baseline" in needs:  # u = −g + log a(x)
            arguments["log_baseline"] = dual + own.diagonal()
        if "pool" in needs:
            arguments["pool"] = scores[:, n:]
        return (one_negative(own) if self.single else own), arguments


RowsOf = Mapping[BoundVariant, Sequence[Row]]

BOUND_VARIANTS = [BoundVariant(**entry) for entry in EXPERIMENTS["table-1"].variants]


def compare_bounds(runs: Runs) -> Findings:
    """Values at the true critic, then critics trained with each bound."""
    size = Size(seeds=runs.setting.seeds, **runs.setting.pick(runs.experiment.sizes))
    batches = {"smoke": (16, 64), "small": (16, 64, 256), "paper": (16, 64, 256, 1024)}
    true = {
        (variant, batch): bias_and_deviation(variant, size, batch)
        for variant in BOUND_VARIANTS
        for batch in runs.setting.pick(batches)
    }
    by_variant = {one: list(_rows(one, size, true[one, size.batch])) for one in BOUND_VARIANTS}
    rows = [row for of_variant in by_variant.values() for row in of_variant]
    charts = [*_by_batch(runs, true, size), *_after_training(runs, by_variant, size)]
    return Findings(rows, charts, unstable_words(rows), [verdicts(by_variant)])


def _rows(
    variant: BoundVariant, size: Size, true: Mapping[float, tuple[Values, Values]]
) -> Iterator[dict[str, Any]]:
    """Train critics with a bound, and give its rows of the table, one per information."""
    if variant.trains:
        memories: list[dict[str, Any]] = [{} for _ in size.runs]
        trained = train_critics(
            start_critics(size, variant.critic, variant.dual),
            size,
            lambda run, scores, dual, _: variant.loss(scores, dual, memories[run]),
            extra=size.batch if variant.needs_pool else 0,
        )
        with torch.no_grad():
            own = bias_and_deviation(variant, size, size.batch, trained)
    for nats in size.nats:
        measures = {
            TRUE_BIAS: cell(true[nats][0], "rounded"),
            TRUE_SD: cell(true[nats][1], "rounded"),
        }
        if variant.trains:
            measures |= {
                "bias, trained": cell(own[nats][0], "rounded"),
                "sd, trained": cell(own[nats][1], "rounded"),
                **trained.cells(nats),
                "a step": cell([trained.milliseconds], "milliseconds"),
            }
        words = {"objective": variant.label, "critic": variant.critic, "bound?": variant.is_bound}
        yield {"variables": {**words, "nats": nats}, "measures": measures}


def bias_and_deviation(
    variant: BoundVariant, size: Size, batch: int, trained: TrainedCritics | None = None
) -> dict[float, tuple[Values, Values]]:
    """Bias and standard deviation per seed over held-out batches, by information.

    They are of the value at the true critic, or at the critics that the bound trained.
    """
    stream, extra = Stream(size, 2 if trained is None else 3), batch if variant.needs_pool else 0
    values: list[list[float]] = [[] for _ in size.runs]
    for _ in range(size.batches):
        x, y = stream.draw(batch, extra)
        if trained is not None:
            scores, dual = (part.double() for part in trained.scores(x, y))
        for run, (nats, _) in enumerate(size.runs):
            if trained is None:
                values[run].append(float(_true_value(variant, x[run], y[run], nats)))
            elif trained.alive[run]:
                values[run].append(float(variant.value(scores[run], dual[run])))
    numbers = {}
    for nats in size.nats:
        target = _target(variant, nats, size.dimensions)
        known = [
            spread([value for value in values[run] if math.isfinite(value)])
            for run, (at, _) in enumerate(size.runs)
            if at == nats
        ]
        biases = [None if one["mean"] is None else one["mean"] - target for one in known]
        numbers[nats] = biases, [one["sd"] for one in known]
    return numbers


def _true_value(variant: BoundVariant, x: Tensor, y: Tensor, nats: float) -> Tensor:
    scores = true_scores(x.double(), y.double(), nats)
    own = scores.diagonal()
    if variant.trains:
        return variant.value(scores, -own)  # u = −g + log Z(x), and Z is 1
    marginal = torch.distributions.Normal(0.0, 1.0).log_prob(y.double()).sum(1)
    return barber_agakov(own + marginal, marginal)


def _target(variant: BoundVariant, nats: float, dimensions: int) -> float:
    """What the bound is about: the information, or the Jensen–Shannon divergence."""
    if variant.bound != "js":
        return nats
    generator = torch.Generator().manual_seed(0)
    x, y = draw_pairs(generator, LARGE_SAMPLE, dimensions, correlation_of(nats, dimensions))
    task = staircase(nats, size=dimensions)
    partners, others = (
        torch.from_numpy(task.pointwise(x.numpy(), side.numpy())) for side in (y, y.roll(1, 0))
    )
    return jensen_shannon_truth(partners, others)


def jensen_shannon_truth(partners: Float[Tensor, " n"], others: Float[Tensor, " m"]) -> float:
    """The Jensen–Shannon divergence of p(x, y) from p(x)p(y), from pointwise information."""
    return float(math.log(2) - (softplus(-partners).mean() + softplus(others).mean()) / 2)


def _by_batch(runs: Runs, true: Mapping[tuple[BoundVariant, int], Any], size: Size) -> Charts:
    nats, batches = size.nats[len(size.nats) // 2], sorted({batch for _, batch in true})
    shown = [variant for variant in BOUND_VARIANTS if "by-batch" in variant.charts]
    x = axis("batch", ticks=batches, logarithmic=True)
    charts = []
    for place, (name, label) in enumerate((("bias", "bias (nats)"), ("deviation", "sd (nats)"))):
        lines = []
        for series, variant in enumerate(shown):
            values = [true[variant, batch][nats][place] for batch in batches]
            lines.append(line(variant.label, batches, values, series))
        heading = runs.experiment.heading(name, nats=nats)
        charts += chart("lines", heading, x, axis(label), lines)
    return charts


def _after_training(runs: Runs, rows: RowsOf, size: Size) -> Charts:
    categories = [f"{nats:g} nats" for nats in size.nats]
    bars: Charts = []
    for variant in BOUND_VARIANTS:
        if "trained" in variant.charts:
            values = [row["measures"][CALIBRATED]["values"] for row in rows[variant]]
            label = f"{variant.label}, {variant.critic}"
            bars.append(line(label, range(len(values)), values, len(bars)))
    heading, x = runs.experiment.heading("trained", **asdict(size)), axis("true information")
    return chart("bars", heading, x, axis("nats"), bars, categories=categories)


def verdicts(rows: RowsOf) -> dict[str, Any]:
    """The paper's words beside those that one rule gives these numbers."""
    header = ["Objective", "Bias, the paper’s", "Bias, here"]
    header += ["Stability, the paper’s", "Stability, here"]
    lines = []
    for variant, own in rows.items():
        if variant.in_paper:
            bias, stability = variant.in_paper
            name = f"{variant.label}, {variant.critic} critic"
            lines.append([name, bias, _bias(own), stability, _stability(own)])
    limits = {"low": LOW, "steady": STEADY, "wild": WILD}
    caption = EXPERIMENTS["table-1"].heading("verdicts", **limits)["caption"]
    return {"caption": caption, "header": header, "rows": lines}


def _mean(row: Row, measure: str) -> float | None:
    return row["measures"].get(measure, {}).get("mean")


def _bias(rows: Sequence[Row]) -> str:
    biases = [(_mean(row, TRUE_BIAS), row["variables"]["nats"]) for row in rows]
    shares = [bias / nats for bias, nats in biases if bias is not None]
    if not shares:
        return "not measured"
    worst = max(shares, key=abs)
    return f"{'Low' if abs(worst) <= LOW else 'Large'} ({worst:+.0%})".replace("-", "−")


def _stability(rows: Sequence[Row]) -> str:
    if any(_mean(row, UNSTABLE) for row in rows):
        return "Poor (a run is lost)"
    means = [_mean(row, SPREAD) for row in rows]
    worst = max((mean for mean in means if mean is not None), default=math.inf)
    word = "Excellent" if worst <= STEADY else "Okay" if worst <= WILD else "Poor"
    return f"{word} ({worst:.0%})"


# The appendix's failed attempts: primal and dual critics, joint or alternating, with K = 1 too.
# Every variant is trained on Gaussians and on images, where its encoder's features are classified.

DUALS = {"free": "u-head", "critic": "second critic", "constrained": "u = −g + s(x)"}
OBJECTIVE_NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE", "flo": "FLO"}

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
            "objective": OBJECTIVE_NAMES[self.objective],
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


PRIMAL_DUAL_VARIANTS = (
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
    variants: Sequence[PrimalDualVariant] = PRIMAL_DUAL_VARIANTS
    if scale == "smoke":  # every u, joint and alternating, K = 1 and all, but not each with each
        variants = PRIMAL_DUAL_VARIANTS[:3] + PRIMAL_DUAL_VARIANTS[6::3]
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
        charts += _bar_per_training(heading, shown, _gaussians(nats), "dot", axis("nats"))
    heading = runs.experiment.heading("images", data=data)
    charts += _bar_per_training(heading, shown, data, "cosine", accuracy_axis("top-1"))
    return Findings(rows, charts, unstable_words(rows))


def _bar_per_training(
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
    votes = knn_scores(train, test.features, (20,))[20]
    linear = []
    for draw in range(DRAWS):
        few = train.subset(label_fraction(train.labels, FRACTION, seed=draw))
        probe = linear_probe(few, test, regularisations=(REGULARISATION,))
        linear.append(measure(probe.scores, test.labels)["top1"])
    return measure(votes, test.labels)["top1"], sum(linear) / DRAWS
