"""Linear probes on frozen features: logistic regression to convergence, and gradient descent.

The regression minimises the mean cross-entropy plus λ/2 ‖W‖². Features are standardised by the
training images, so that λ means the same for every network; the bias is free. scikit-learn's
``LogisticRegression(C=1/(λ n))`` on standardised features has the same minimum.

References:
    Kornblith, Shlens, Le, 2019, "Do better ImageNet models transfer better?", Appendix A
    (L-BFGS, λ from a grid, refitted on all); the paper, Tables 2 and S3, which differ in how long
    a linear classifier is trained (the forms ``short`` and ``long``; the long one is that of
    SimCLR, Appendix B.6), and "Transfer Learning via a Linear Classifier".
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from flatnce.messages import check_at_least, check_choice
from flatnce.pretrain.data import Batching
from flatnce.pretrain.data.batches import others_than, shuffled_classes
from flatnce.pretrain.data.own_set import AnySet
from flatnce.pretrain.evaluation.features import Features
from flatnce.pretrain.evaluation.metrics import hits
from flatnce.pretrain.evaluation.options import VALIDATION

TOLERANCE = 1e-5
MOST_ITERATIONS = 5000
# Values per block of rows; and the largest features of which a float64 copy is kept (2 GiB).
BLOCK, COPIED = 2**24, 2**28
LEAST_CURVATURE = 1e-8
SPAN = 1024  # rows per sum in the product of features and errors


@dataclass(frozen=True, eq=False)
class Classifier:
    """Scores from features: a weight and a bias for every class."""

    weight: Float[Tensor, "d k"]
    bias: Float[Tensor, " k"]

    def scores(self, features: Float[Tensor, "n d"]) -> Float64[Tensor, "n k"]:
        """One score per row and class, in float64; higher is likelier."""
        weight, bias = self.weight.to(torch.float64), self.bias.to(torch.float64)
        parts = features.split(max(BLOCK // features.shape[1], 1))
        return torch.cat([part.to(torch.float64) @ weight + bias for part in parts])


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """A fitted regression."""

    classifier: Classifier  # of raw features; weight and bias are of standardised ones
    weight: Float64[Tensor, "d k"]
    bias: Float64[Tensor, " k"]
    # No gradient is above the tolerance, in units of the root of the expected curvature.
    converged: bool
    gradient: float
    iterations: int
    loss: float


class Regression:
    """Logistic regression on training images, to be fitted at one λ or several.

    In float64 and blocks of rows: no copy of large features is made. L-BFGS works along the
    principal axes of the features, in units of the expected curvature, which takes a fifth of the
    iterations.
    """

    def __init__(self, train: Features) -> None:
        features = train.check().features
        if features.numel() <= COPIED:
            features = features.to(torch.float64)
        rows = max(BLOCK // features.shape[1], 1)
        self._parts, self._labels = features.split(rows), train.labels.split(rows)
        self._n, self._count = len(train), train.count
        self._mean, self._std = self._moments()
        self._spread, self._axes = self._spectrum()

    @torch.no_grad()
    def fit(
        self,
        regularisation: float,
        *,
        start: LogisticFit | None = None,
        tolerance: float = TOLERANCE,
    ) -> LogisticFit:
        """The minimum of the module's formula; a fit at another λ to start from saves time."""
        check_at_least("regularisation", regularisation, 0)
        if start is None:
            weight = self._mean.new_zeros(len(self._mean), self._count)
            bias = self._mean.new_zeros(self._count)
        else:
            weight, bias = start.weight, start.bias
        curvature, iterations = self._curvature(weight, bias), 0
        while True:
            weight, bias, taken, left = self._descend(
                weight, bias, regularisation, curvature, tolerance, MOST_ITERATIONS - iterations
            )
            iterations += taken
            former, curvature = curvature, self._curvature(weight, bias)
            # If the curvature has become much smaller, repeat in its units.
            if curvature > former / 4 or iterations >= MOST_ITERATIONS:
                break
        loss, slope, total = self._loss_at(weight, bias, regularisation)
        raw = weight / self._std[:, None]
        return LogisticFit(
            Classifier(raw, bias - self._mean @ raw),
            weight,
            bias,
            left <= tolerance,
            max(float(slope.abs().amax()), float(total.abs().amax())),
            iterations,
            float(loss),
        )

    def _descend(
        self,
        weight: Float64[Tensor, "d k"],
        bias: Float64[Tensor, " k"],
        regularisation: float,
        curvature: float,
        tolerance: float,
        most_iterations: int,
    ) -> tuple[Tensor, Tensor, int, float]:
        """Weights after L-BFGS along the principal axes, iterations, largest gradient entry."""
        # The Hessian is about p(1 - p) times the covariance, plus λ; an axis's unit is its root.
        spread = curvature * self._spread + regularisation
        unit, unit_bias = spread.clamp_min(LEAST_CURVATURE).sqrt()[:, None], curvature**0.5
        x, c = (self._axes.T @ weight) * unit, bias * unit_bias

        def closure() -> Float64[Tensor, ""]:
            at = self._axes @ (x / unit)
            loss, slope, total = self._loss_at(at, c / unit_bias, regularisation)
            x.grad, c.grad = (self._axes.T @ slope) / unit, total / unit_bias
            return loss

        optimizer = torch.optim.LBFGS(
            [x, c],
            max_iter=most_iterations,
            max_eval=2 * most_iterations,
            tolerance_grad=tolerance,
            tolerance_change=0.0,  # only the gradient decides
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(closure)  # type: ignore[arg-type]  # a tensor is what it reads
        closure()
        left = max(float(one.grad.abs().amax()) for one in (x, c) if one.grad is not None)
        iterations = int(optimizer.state[x]["n_iter"])
        return self._axes @ (x / unit), c / unit_bias, iterations, left

    def _loss_at(
        self, weight: Float64[Tensor, "d k"], bias: Float64[Tensor, " k"], regularisation: float
    ) -> tuple[Float64[Tensor, ""], Float64[Tensor, "d k"], Float64[Tensor, " k"]]:
        """Loss and gradient; the standardisation is part of the weights."""
        raw = weight / self._std[:, None]
        shifted = bias - self._mean @ raw
        loss = 0.5 * regularisation * weight.square().sum()
        slope, total = torch.zeros_like(weight), torch.zeros_like(bias)
        for part, labels in zip(self._parts, self._labels, strict=True):
            rows = part.to(torch.float64)
            with torch.enable_grad():
                logits = torch.addmm(shifted, rows, raw).requires_grad_()
                lost = cross_entropy(logits, labels, reduction="sum") / self._n
                (error,) = torch.autograd.grad(lost, logits)
            loss = loss + lost.detach()
            slope += _correlated(rows, error)
            total += error.sum(dim=0)
        slope = (slope - self._mean[:, None] * total) / self._std[:, None]
        return loss, slope.add_(weight, alpha=regularisation), total

    def _curvature(self, weight: Float64[Tensor, "d k"], bias: Float64[Tensor, " k"]) -> float:
        """The loss's mean curvature in a score, p(1 - p)."""
        raw = weight / self._std[:, None]
        shifted, total = bias - self._mean @ raw, torch.zeros_like(bias).sum()
        for part in self._parts:
            shares = torch.addmm(shifted, part.to(torch.float64), raw).softmax(dim=1)
            total = total + (shares * (1 - shares)).sum()
        return max(float(total) / (self._n * len(bias)), LEAST_CURVATURE)

    def _moments(self) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " d"]]:
        """Mean and standard deviation of each feature; infinite (no weight) for a constant one."""
        total = sum(part.to(torch.float64).sum(dim=0) for part in self._parts)
        mean = torch.as_tensor(total) / self._n
        squares = sum((part.to(torch.float64) - mean).square().sum(0) for part in self._parts)
        std = (torch.as_tensor(squares) / self._n).sqrt()
        # A smaller deviation is rounding of float32 features around their mean.
        return mean, torch.where(std > 1e-6 * mean.abs().clamp_min(1e-6), std, torch.inf)

    def _spectrum(self) -> tuple[Float64[Tensor, " d"], Float64[Tensor, "d d"]]:
        """Variances of the standardised features along their principal axes, and the axes."""
        total = self._mean.new_zeros(len(self._mean), len(self._mean))
        for part in self._parts:
            rows = (part.to(torch.float64) - self._mean) / self._std
            total.addmm_(rows.T, rows)
        values, axes = torch.linalg.eigh(total / self._n)
        return values.clamp_min(0.0), axes


def _correlated(
    rows: Float64[Tensor, "b d"], error: Float64[Tensor, "b k"]
) -> Float64[Tensor, "d k"]:
    """``rows.T @ error`` as many short sums in parallel."""
    (b, d), k = rows.shape, error.shape[1]
    whole = b - b % SPAN
    shape = b // SPAN, SPAN
    short = torch.bmm(error[:whole].reshape(*shape, k).mT, rows[:whole].reshape(*shape, d))
    return (short.sum(dim=0) + error[whole:].T @ rows[whole:]).T


# Of two with equal accuracy and loss, the stronger is taken.
REGULARISATIONS = tuple(10.0**power for power in range(1, -7, -1))

Set = TypeVar("Set", Features, AnySet)


@dataclass(frozen=True, eq=False)
class Probe:
    """One score per test image and class, and everything needed to repeat it, in plain data."""

    scores: Float64[Tensor, "n k"]
    protocol: dict[str, Any]


def linear_probe(
    train: Features,
    test: Features | Tensor,
    *,
    regularisations: Sequence[float] = REGULARISATIONS,
    validation: float = VALIDATION,
    seed: int = 0,
) -> Probe:
    """Logistic regression to convergence.

    λ is chosen by accuracy on held-out training images, then the regression is refitted on all of
    them. The labels of the test images are not used.
    :mod:`flatnce.pretrain.evaluation.probe` has the formula.

    Arguments:
        train: Features and labels of the training images.
        test: Features of the test images.
        regularisations: Values of λ to choose from; a single one is used as it is.
        validation: Share of the training images held out to choose on.
        seed: Seed of that draw.
    """
    queries = train.check_queries(test, "test")
    if not regularisations:
        raise ValueError("regularisations is empty; give one or more")
    values = sorted(regularisations, reverse=True)
    fits: dict[float, LogisticFit] = {}

    def score(part: Features, aside: Features) -> Iterator[Tensor]:
        # From the strongest λ on, each fit starts from the last one. The best λ is known before
        # the last digits of the weights are.
        regression, last = Regression(part), None
        for value in values:
            fits[value] = last = regression.fit(value, start=last, tolerance=10 * TOLERANCE)
            yield last.classifier.scores(aside.features)

    chosen, how = choose("regularisation", values, train, validation, seed, score)
    if len(values) > 1:
        # If the best λ is at the edge, widen the grid.
        how["regularisation_at_end"] = chosen in (values[0], values[-1])
    fit = Regression(train).fit(chosen, start=fits.get(chosen))
    protocol: dict[str, Any] = {
        "classifier": "multinomial logistic regression",
        "optimizer": "L-BFGS",
        "features": "standardised by the training images",
        **how,
        "sklearn_C": 1 / (chosen * len(train)) if chosen else None,
        "fitted_on": len(train),
        "converged": fit.converged,
        "iterations": fit.iterations,
        "gradient": fit.gradient,
        "tolerance": TOLERANCE,
        "training_loss": fit.loss,
    }
    return Probe(fit.classifier.scores(queries), protocol)


@dataclass(frozen=True)
class DescentConfig:
    """How a linear classifier is trained on features as they are, without regularisation."""

    epochs: int  #: Passes over the training images.
    batch_size: int  #: Images per step; all of them if there are fewer.
    optimizer: str = "sgd"  #: ``sgd`` (Nesterov, momentum 0.9) or ``adam``.
    #: Learning rates to choose from; those of SGD are for a batch of 256 and grow with it.
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    cosine: bool = True  #: Decay the rate to 0 along a cosine; else it is constant.

    def __post_init__(self) -> None:
        check_training(self.epochs, self.batch_size, self.rates)
        check_choice("optimizer", self.optimizer, ("sgd", "adam"))


def check_training(epochs: int, batch_size: int, rates: Sequence[float]) -> None:
    """Check the settings that every training of a classifier has."""
    check_at_least("epochs", epochs, 1)
    check_at_least("batch_size", batch_size, 1)
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"rates={rates} must be positive numbers, one or more")


FORMS = {
    "short": DescentConfig(epochs=10, batch_size=256),
    "long": DescentConfig(epochs=90, batch_size=4096),
    "transfer": DescentConfig(
        epochs=100, batch_size=512, optimizer="adam", rates=(1e-4, 1e-3, 1e-2, 1e-1), cosine=False
    ),
}
"""``short`` and ``long`` for Tables 2 and S3, ``transfer`` for Tables 3 and S2."""


def probe_by_descent(
    train: Features,
    test: Features | Tensor,
    config: DescentConfig = FORMS["short"],
    *,
    validation: float = VALIDATION,
    seed: int = 0,
) -> Probe:
    """A linear classifier trained by gradient descent; its rate is chosen on held-out images.

    With several rates each is tried on the rest of the training images, then the best is used on
    all. The labels of the test images are not used.

    Arguments:
        train: Features and labels of the training images.
        test: Features of the test images.
        config: One of :data:`FORMS`, or another.
        validation: Share of the training images held out to choose on.
        seed: Seed of that draw and of the order of the images.
    """
    if not isinstance(config, DescentConfig):
        forms = ", ".join(f"FORMS[{name!r}]" for name in FORMS)
        raise TypeError(f"config={config!r} must be a DescentConfig: one of {forms}, or another")
    queries = train.check_queries(test, "test")

    def score(part: Features, aside: Features) -> Iterator[Tensor]:
        for rate in config.rates:
            yield _descend(part, config, rate, seed).scores(aside.features)

    rate, how = choose("rate", config.rates, train, validation, seed, score)
    protocol: dict[str, Any] = {
        "classifier": "linear, by gradient descent",
        **asdict(config),
        "batch_size": min(config.batch_size, len(train)),
        "weight_decay": 0.0,
        "features": "as they are",
        "seed": seed,
        "fitted_on": len(train),
        **how,
    }
    del protocol["rates"]
    if config.optimizer == "sgd":
        protocol["rate_of"] = "256 images; a step takes it times its batch over 256"
    return Probe(_descend(train, config, rate, seed).scores(queries), protocol)


def _descend(train: Features, config: DescentConfig, rate: float, seed: int) -> Classifier:
    """Train from zero, without reading from the device."""
    n, width = train.features.shape
    weight = train.features.new_zeros(width, train.count).requires_grad_()
    bias = train.features.new_zeros(train.count).requires_grad_()
    batching = Batching(n, min(config.batch_size, n), seed, drop_last=False)
    optimizer: torch.optim.Optimizer
    if config.optimizer == "sgd":
        rate = rate * batching.batch_size / 256
        optimizer = torch.optim.SGD([weight, bias], rate, momentum=0.9, nesterov=True)
    else:
        optimizer = torch.optim.Adam([weight, bias], rate)
    steps, step = config.epochs * len(batching), 0
    with torch.enable_grad():
        for epoch in range(config.epochs):
            order = batching.order(epoch).to(train.features.device)
            for low, high in batching.bounds():
                chosen = order[low:high]
                if config.cosine:
                    optimizer.param_groups[0]["lr"] = (
                        rate * (1 + math.cos(math.pi * step / steps)) / 2
                    )
                optimizer.zero_grad()
                scores = torch.addmm(bias, train.features[chosen], weight)
                cross_entropy(scores, train.labels[chosen]).backward()
                optimizer.step()
                step += 1
    return Classifier(weight.detach(), bias.detach())


def choose(
    what: str,
    values: Sequence[float],
    train: Set,
    validation: float,
    seed: int,
    score: Callable[[Set, Set], Iterator[Tensor]],
) -> tuple[float, dict[str, Any]]:
    """The first of the values that score best on held-out training images, and the protocol.

    ``score`` is called with the images that stay and those held out, and yields the scores of
    these for each value. A single value is taken as it is.
    """
    if len(values) == 1:
        return values[0], {what: values[0]}
    rest, held = validation_split(train.labels, validation, seed)
    part, aside = train.subset(rest), train.subset(held)
    found = dict.fromkeys(values, (-math.inf, -math.inf))  # accuracy, minus the loss
    for value, scores in zip(values, score(part, aside), strict=True):
        if bool(scores.isfinite().all()):
            labels = aside.labels.to(scores.device)
            right = hits(scores, labels, 1).to(torch.float64).mean()
            found[value] = float(right), -float(cross_entropy(scores, labels))
    best = max(values, key=found.__getitem__)
    if found[best][1] == -math.inf:
        raise ValueError(f"{what}={list(values)}: training diverged with each; try lower ones")
    tried = [{what: value, "validation": good[0]} for value, good in found.items()]
    # Image numbers are within the images fitted on in the end.
    chosen_on = {"held_out": drawn(held), "of": "the images fitted on", "seed": seed}
    return best, {what: best, f"{what}_tried": tried, "chosen_on": chosen_on}


def validation_split(
    labels: Tensor, fraction: float, seed: int
) -> tuple[Int64[Tensor, " rest"], Int64[Tensor, " held"]]:
    """The training images that stay and those held out to choose on, both ascending.

    The same share of every class is held out, rounded, but at least one image if the class has
    several; a class with one image keeps it.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation={fraction} must lie between 0 and 1, such as 0.1")

    def held_out(size: int) -> int:
        return min(max(math.floor(fraction * size + 0.5), 1), size - 1) if size > 1 else 0

    groups = shuffled_classes(labels.cpu(), seed)
    held = torch.cat([group[: held_out(len(group))] for group in groups])
    if not len(held):
        raise ValueError(
            f"validation={fraction}: no class has two images, so none can be held out to choose "
            "on; give one value instead of several, or more labels"
        )
    return others_than(held, len(labels)), held.sort().values


def drawn(indices: Int64[Tensor, " m"]) -> dict[str, Any]:
    """Which images were drawn: how many, and the SHA-256 of their numbers as ``<i8``."""
    numbers = indices.cpu().numpy().astype("<i8")
    return {"count": len(numbers), "sha256": hashlib.sha256(numbers.tobytes()).hexdigest()}
