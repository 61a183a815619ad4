"""Critics of Gaussian pairs whose information is known: Table 1 and the primal-dual variants.

A *run* is one (information, seed). All runs are trained together as one stack of critics. Axes:
``s`` runs, ``n`` pairs, ``m`` candidates, ``d`` coordinates.
"""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics import best_scale
from flatnce.functional import contrast_from_logits
from flatnce.mi.bounds import barber_agakov, flo_alternating_losses, infonce, mine_loss
from flatnce.mi.critics import BoundedScale, Critic, StackedCritics, critic_for
from flatnce.mi.registry import BOUNDS
from flatnce.mi.tasks import staircase
from flatnce.paper.charts import Values, axis, chart, line, spread
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.reproduce.analyses import Runs, cell
from flatnce.paper.reproduce.experiment import Findings

LEARNED = 0.1  # nats below which a run has learned nothing that it could lose
CHECKS, CHECK_PAIRS = 6, 500  # of the held-out value in training

CALIBRATED, UNSTABLE = "calibrated InfoNCE", "unstable"


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


@dataclass(frozen=True)
class Variant:
    """One bound of the registry with one kind of critic and, for some, a learned u or baseline."""

    label: str
    bound: str
    critic: str = "dot"
    # The kind of u: ``free`` (a head), ``critic`` (a second one), ``constrained`` (−g + s(x)).
    dual: str | None = None
    single: bool = False  # one negative per row, that is one shuffled copy of y (K = 1)
    alternating: bool = False  # critic and u are updated in turn instead of jointly
    options: Mapping[str, float] = field(default_factory=dict)  # of the bound
    in_paper: Sequence[str] = ()  # Table 1 on bias and stability
    charted: bool = False  # whether it is in the chart

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

    def extra(self, batch: int) -> int:
        """The number of further y's that it takes beside a batch."""
        return batch if "pool" in BOUNDS[self.bound].needs else 0

    def optimisers(self, critics: StackedCritics, rate: float) -> list[torch.optim.Adam]:
        """One optimiser of all weights, or those of the critics and of u, which take turns."""
        if not self.alternating:
            return [torch.optim.Adam(critics.parameters(), rate)]
        sides = critics.parameters("critic"), critics.parameters("dual")
        return [torch.optim.Adam(side, rate) for side in sides]

    def value(self, scores: Float[Tensor, "n m"], dual: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Its number in nats."""
        own, arguments = self._arguments(scores, dual)
        return BOUNDS[self.bound].value(own, **arguments)

    def loss(
        self,
        scores: Float[Tensor, "n m"],
        dual: Float[Tensor, " n"],
        memory: dict[str, Any],
        of_u: bool,
    ) -> Float[Tensor, ""]:
        """What a step minimises, or a step ``of_u`` alone; ``memory`` keeps MINE's average."""
        own, arguments = self._arguments(scores, dual)
        if self.alternating:
            return flo_alternating_losses(own, dual)[int(of_u)]
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


def start_critics(variant: Variant, size: Size) -> StackedCritics:
    """Untrained critics, one per run; those of one seed start alike for every objective."""
    critics: list[Critic] = []
    dual_critics: list[Critic] = []
    hidden, widths = (size.width,) * 2, (size.dimensions,) * 2
    for _, seed in size.runs:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            scale = BoundedScale(20.0, learn=False)
            head = None if variant.dual == "critic" else variant.dual
            options: dict[str, Any] = {"hidden": hidden, "scale": scale, "dual": head}
            critics.append(critic_for(variant.critic, widths, **options))
            if variant.dual == "critic":
                dual_critics.append(critic_for("dot", widths, hidden=hidden))
    return StackedCritics(critics, dual_critics)


@dataclass
class TrainedCritics:
    """Critics after training, with numbers per run."""

    variant: Variant
    size: Size
    critics: StackedCritics
    alive: Bool[Tensor, " s"]  # whose scores and gradients stayed finite
    held_out: Values = field(default_factory=list)  # calibrated InfoNCE at the end
    best: list[float] = field(init=False)  # the best in training
    spread: Values = field(default_factory=list)  # sd of the gradient's length over its mean
    milliseconds: float = 0.0  # per step and run

    def __post_init__(self) -> None:
        self.best = [-math.inf] * self.critics.count
        self.memories: list[dict[str, Any]] = [{} for _ in self.best]

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


def train_critics(variant: Variant, size: Size) -> TrainedCritics:
    """Train with Adam on fresh pairs; runs that are no longer finite are left as they are."""
    critics, stream = start_critics(variant, size), Stream(size, purpose=0)
    trained = TrainedCritics(variant, size, critics, torch.ones(critics.count, dtype=torch.bool))
    optimisers = variant.optimisers(critics, size.rate)
    norms: list[Tensor] = []
    seconds = 0.0
    for step in range(size.steps):
        x, y = stream.draw(size.batch, variant.extra(size.batch))
        began, turn = time.process_time(), step % len(optimisers)
        lengths = _gradients(trained, x, y, turn == 1)
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


def _scores_and_dual(critics: StackedCritics, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of every x with every y, and u of partners (zeros where there is none)."""
    scores, dual = critics(x, y)
    return scores, scores.new_zeros(scores.shape[:2]) if dual is None else dual


def _gradients(trained: TrainedCritics, x: Tensor, y: Tensor, of_u: bool) -> Tensor | None:
    """Compute every run's gradient and return its length; None where no run is left."""
    scores, dual = _scores_and_dual(trained.critics, x, y)
    trained.alive &= scores.isfinite().flatten(1).all(1) & dual.isfinite().all(1)
    going = trained.alive.nonzero().flatten().tolist()
    if not going:
        return None
    critics = trained.critics
    critics.zero_grad()
    losses = [
        trained.variant.loss(scores[run], dual[run], trained.memories[run], of_u) for run in going
    ]
    torch.stack(losses).sum().backward()
    lengths = critics.gradient_norms()
    trained.alive &= lengths.isfinite()
    critics.drop_gradients(~trained.alive)
    return lengths


@torch.no_grad()
def held_out_values(trained: TrainedCritics, pool: int) -> Values:
    """InfoNCE among a held-out pool, at the scale that is best on another; None if diverged."""
    stream = Stream(trained.size, purpose=1)
    calibration, _ = _scores_and_dual(trained.critics, *stream.draw(pool))
    scores, _ = _scores_and_dual(trained.critics, *stream.draw(pool))
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


# The table of an experiment: bias, variance, stability and cost of every variant.


def compare_variants(runs: Runs) -> Findings:
    """Values of every variant at the true critic, then critics trained with it."""
    size = Size(seeds=runs.setting.seeds, **runs.setting.pick(runs.experiment.sizes))
    variants = [Variant(**entry) for entry in runs.experiment.variants]
    rows, bars = list[dict[str, Any]](), list[dict[str, Any]]()
    for variant in variants:
        own = list(_rows(variant, size))
        if variant.charted:
            values = [row["measures"][CALIBRATED]["values"] for row in own]
            label = f"{variant.label}, {variant.critic}"
            bars.append(line(label, range(len(own)), values, len(bars)))
        rows += own
    heading = runs.experiment.heading("trained", **asdict(size))
    x, categories = axis("true information"), [f"{nats:g} nats" for nats in size.nats]
    charts = chart("bars", heading, x, axis("nats"), bars, categories=categories)
    unstable = [
        "{objective}, {critic} critic, {nats:g} nats".format(**row["variables"])
        for row in rows
        if row["measures"].get(UNSTABLE, {}).get("mean")
    ]
    words = {"Unstable": ("; ".join(unstable) or "none") + "."}
    return Findings(rows, charts, words, printed_words(variants))


def _rows(variant: Variant, size: Size) -> Iterator[dict[str, Any]]:
    """Train critics with a bound, and give its rows of the table, one per information."""
    true = bias_and_deviation(variant, size)
    if variant.trains:
        trained = train_critics(variant, size)
        own = bias_and_deviation(variant, size, trained)
    for nats in size.nats:
        measures = {
            "bias, true critic": cell(true[nats][0], "rounded"),
            "sd, true critic": cell(true[nats][1], "rounded"),
        }
        if variant.trains:
            measures |= {
                "bias, trained": cell(own[nats][0], "rounded"),
                "sd, trained": cell(own[nats][1], "rounded"),
                CALIBRATED: cell(trained.of(nats, trained.held_out), "nats"),
                UNSTABLE: cell(trained.of(nats, trained.unstable()), "share"),
                "gradient's spread": cell(trained.of(nats, trained.spread), "rounded"),
                "a step": cell([trained.milliseconds], "milliseconds"),
            }
        words = {"objective": variant.label, "critic": variant.critic, "bound?": variant.is_bound}
        yield {"variables": {**words, "nats": nats}, "measures": measures}


@torch.no_grad()
def bias_and_deviation(
    variant: Variant, size: Size, trained: TrainedCritics | None = None
) -> dict[float, tuple[Values, Values]]:
    """Bias and standard deviation per seed over held-out batches, by information.

    They are those of the true critic, or of the trained ones that stayed finite.
    """
    stream = Stream(size, 2 if trained is None else 3)
    values: list[list[float]] = [[] for _ in size.runs]
    for _ in range(size.batches):
        x, y = stream.draw(size.batch, variant.extra(size.batch))
        if trained is not None:
            scores, dual = (part.double() for part in _scores_and_dual(trained.critics, x, y))
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


def _true_value(variant: Variant, x: Tensor, y: Tensor, nats: float) -> Tensor:
    scores = true_scores(x.double(), y.double(), nats)
    own = scores.diagonal()
    if variant.trains:
        return variant.value(scores, -own)  # u = −g + log Z(x), and Z is 1
    marginal = torch.distributions.Normal(0.0, 1.0).log_prob(y.double()).sum(1)
    return barber_agakov(own + marginal, marginal)


def _target(variant: Variant, nats: float, dimensions: int) -> float:
    """What the bound is about: the information, or the Jensen–Shannon divergence."""
    if variant.bound != "js":
        return nats
    generator = torch.Generator().manual_seed(0)
    x, y = draw_pairs(generator, 200_000, dimensions, correlation_of(nats, dimensions))
    task = staircase(nats, size=dimensions)
    partners, others = (
        torch.from_numpy(task.pointwise(x.numpy(), side.numpy())) for side in (y, y.roll(1, 0))
    )
    return jensen_shannon_truth(partners, others)


def jensen_shannon_truth(partners: Float[Tensor, " n"], others: Float[Tensor, " m"]) -> float:
    """The Jensen–Shannon divergence of p(x, y) from p(x)p(y), from pointwise information."""
    return float(math.log(2) - (softplus(-partners).mean() + softplus(others).mean()) / 2)


def printed_words(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """What the paper's table says of each objective; nothing where it has none."""
    rows = [[f"{v.label}, {v.critic} critic", *v.in_paper] for v in variants if v.in_paper]
    header = ["Objective", "Bias", "Stability"]
    return [{"caption": "The paper's words", "header": header, "rows": rows}] if rows else []
