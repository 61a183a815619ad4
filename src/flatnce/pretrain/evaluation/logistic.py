r"""Logistic regression by L-BFGS, to convergence: multinomial, or one against the rest.

.. math:: \min_{W, b} \; \frac{1}{n} \sum_i \ell(W^\top \tilde x_i + b, y_i)
    + \frac{\lambda}{2} \|W\|^2

with ℓ the cross-entropy, or the sum over classes of the binary one if an image may show several
(labels of -1 are left out of their class's mean). x̃ are the features standardised by the training
images, so that λ means the same for every network; the bias is free. scikit-learn's
``LogisticRegression(C=1/(λ n))`` on standardised features has the same minimum.

Everything is in float64 and in blocks of rows: no copy of large features is made, and the minimum
does not depend on the matrix precision that is set. L-BFGS works along the principal axes of the
features, in units of the expected curvature. That takes a fifth of the iterations, and half the
squared norm of the gradient is about the distance of the loss from its minimum for every λ.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.messages import check_at_least
from flatnce.pretrain.evaluation.features import Features

TOLERANCE = 1e-5
MOST_ITERATIONS = 5000
# Values per block of rows; and the largest features of which a float64 copy is kept (2 GiB).
BLOCK, COPIED = 2**24, 2**28
LEAST_CURVATURE = 1e-8
# Rows per sum in the product of features and errors.
SPAN = 1024


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
    """A fitted regression.

    The classifier takes raw features; weight and bias are of standardised ones. It has converged
    if no entry of the gradient, in units of the root of the expected curvature, is larger than
    the tolerance.
    """

    classifier: Classifier
    weight: Float64[Tensor, "d k"]
    bias: Float64[Tensor, " k"]
    converged: bool
    gradient: float
    iterations: int
    loss: float


class Regression:
    """Logistic regression on training images, to be fitted at one λ or several."""

    def __init__(self, train: Features) -> None:
        features = train.check().features
        if features.numel() <= COPIED:
            features = features.to(torch.float64)
        rows = max(BLOCK // features.shape[1], 1)
        self._parts, self._labels = features.split(rows), train.labels.split(rows)
        self._n = len(train)
        self._mean, self._std = self._moments()
        self._spread, self._axes = self._spectrum()
        self._several = train.several
        self._share = self._mean.new_full((train.count,), 1 / self._n)
        if train.several:
            counted = (train.labels >= 0).sum(dim=0)
            self._share = 1 / counted.clamp_min(1).to(torch.float64)

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
            weight = self._mean.new_zeros(len(self._mean), len(self._share))
            bias = torch.zeros_like(self._share)
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
        loss_of = _binary_cross_entropy if self._several else _cross_entropy
        for part, labels in zip(self._parts, self._labels, strict=True):
            rows = part.to(torch.float64)
            lost, error = loss_of(torch.addmm(shifted, rows, raw), labels, self._share)
            loss = loss + lost
            slope += _correlated(rows, error)
            total += error.sum(dim=0)
        slope = (slope - self._mean[:, None] * total) / self._std[:, None]
        return loss, slope.add_(weight, alpha=regularisation), total

    def _curvature(self, weight: Float64[Tensor, "d k"], bias: Float64[Tensor, " k"]) -> float:
        """The loss's mean curvature in a score, p(1 - p)."""
        raw = weight / self._std[:, None]
        shifted, total = bias - self._mean @ raw, torch.zeros_like(bias).sum()
        for part in self._parts:
            scores = torch.addmm(shifted, part.to(torch.float64), raw)
            shares = scores.sigmoid() if self._several else scores.softmax(dim=1)
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


def _cross_entropy(
    logits: Float64[Tensor, "b k"], labels: Int64[Tensor, " b"], share: Float64[Tensor, " k"]
) -> tuple[Float64[Tensor, ""], Float64[Tensor, "b k"]]:
    own = labels[:, None]
    logs = logits.log_softmax(dim=1)
    error = logs.exp().scatter_add_(1, own, -torch.ones_like(logs[:, :1]))
    return -logs.gather(1, own).sum() * share[0], error * share


def _binary_cross_entropy(
    logits: Float64[Tensor, "b k"], labels: Float[Tensor, "b k"], share: Float64[Tensor, " k"]
) -> tuple[Float64[Tensor, ""], Float64[Tensor, "b k"]]:
    counted, present = labels >= 0, (labels > 0).to(torch.float64)
    each = torch.where(counted, softplus(logits, threshold=50.0) - present * logits, 0.0)
    error = torch.where(counted, logits.sigmoid() - present, 0.0)
    return (each * share).sum(), error * share
