"""Table 1: bias, variance, stability and cost of every bound on Gaussians of known information."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.mi.bounds import barber_agakov, mine_loss
from flatnce.mi.registry import BOUNDS
from flatnce.mi.tasks import staircase
from flatnce.paper.aggregation import Values, spread
from flatnce.paper.charts import Charts, axis, chart, line
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.reproduce.critics import (
    CALIBRATED,
    SPREAD,
    UNSTABLE,
    Size,
    Stream,
    TrainedCritics,
    one_negative,
    start_critics,
    train_critics,
    true_scores,
    unstable_words,
)
from flatnce.paper.reproduce.experiment import EXPERIMENTS, Findings
from flatnce.paper.reproduce.runs import Runs, cell

LARGE_SAMPLE = 200_000
TRUE_BIAS, TRUE_SD = "bias, true critic", "sd, true critic"
LOW = 0.1
"""The largest bias, as a share of the truth, that is called low."""
STEADY, WILD = 0.2, 1.0
"""Spreads of the gradient up to which stability is called excellent, and okay."""

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

VARIANTS = [BoundVariant(**entry) for entry in EXPERIMENTS["table-1"].variants]


def compare_bounds(runs: Runs) -> Findings:
    """Values at the true critic, then critics trained with each bound."""
    size = Size(seeds=runs.setting.seeds, **runs.setting.pick(runs.experiment.sizes))
    batches = {"smoke": (16, 64), "small": (16, 64, 256), "paper": (16, 64, 256, 1024)}
    true = {
        (variant, batch): bias_and_deviation(variant, size, batch)
        for variant in VARIANTS
        for batch in runs.setting.pick(batches)
    }
    by_variant = {
        variant: list(_rows(variant, size, true[variant, size.batch])) for variant in VARIANTS
    }
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


# Values.


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


# Charts and words.


def _by_batch(runs: Runs, true: Mapping[tuple[BoundVariant, int], Any], size: Size) -> Charts:
    nats, batches = size.nats[len(size.nats) // 2], sorted({batch for _, batch in true})
    shown = [variant for variant in VARIANTS if "by-batch" in variant.charts]
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
    for variant in VARIANTS:
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
