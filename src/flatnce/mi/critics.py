"""Critics: modules that map two batches to a matrix of scores, row x_i against column y_j."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from flatnce.core.diagnostics import best_scale
from flatnce.messages import check_at_least, check_choice
from flatnce.mi.bounds import BLOCK_ENTRIES, MESSAGES, ScoreBlocks

__all__ = ["BoundedScale", "Critic", "StackedCritics", "critic_for"]

SAMPLES_AT_ONCE = 8192  # that a tower sees when scores are read in blocks


class Critic(nn.Module, ABC):
    """Base class: two towers, a rule that scores their features, and optionally u for FLO.

    A tower is any module that maps a batch to one vector per sample. Subclasses define how
    features are scored, in ``score`` and ``score_paired``.

    Arguments:
        left: Tower of x.
        right: Tower of y.
        dual: The u-head. It maps the concatenated features of x and y to one number or, with
            ``constrained``, the features of x alone.
        constrained: Set u = −g(x, y) + s(x), which the optimal u satisfies, and learn s only.
    """

    def __init__(
        self,
        left: nn.Module,
        right: nn.Module,
        *,
        dual: nn.Module | None = None,
        constrained: bool = False,
    ) -> None:
        super().__init__()
        if constrained and dual is None:
            raise ValueError("constrained=True needs dual, a module for s(x)")
        self.left, self.right, self.dual_head = left, right, dual
        self.constrained = constrained

    @abstractmethod
    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        """Score all pairs of the features of n x's and m y's."""

    @abstractmethod
    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Score the features of n x's with those of their partners only."""

    def embed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features that are scored."""
        return self.left(x), self.right(y)

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, "n m"]:
        """Score every x with every y."""
        return self.score(*self.embed(x, y))

    def paired(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """Score each x with its own y."""
        _check_partners(x, y)
        return self.score_paired(*self.embed(x, y))

    def dual(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """Compute u(x_i, y_i) of each x with its own y."""
        _check_partners(x, y)
        return self.dual_of_features(*self.embed(x, y))

    @torch.no_grad()
    def blocks(self, x: Tensor, y: Tensor, *, entries: int = BLOCK_ENTRIES) -> ScoreBlocks:
        """Return the scores in blocks, in float64, without gradients: memory grows with n + m.

        Features are computed once, in this call; scores each time a block is read. Dropout and
        batch normalisation follow the critic's mode: call ``eval()`` first. At most ``entries``
        scores are computed at once.
        """
        left = torch.cat([self.left(part) for part in x.split(SAMPLES_AT_ONCE)])
        right = torch.cat([self.right(part) for part in y.split(SAMPLES_AT_ONCE)])

        @torch.no_grad()
        def block(start: int, stop: int) -> Tensor:
            return self._block(left[start:stop], right)

        return ScoreBlocks(len(left), len(right), block, entries)

    def _block(self, left: Tensor, right: Tensor) -> Tensor:
        """Score some rows; the weights of a subclass's ``score`` determine the precision."""
        return self.score(left, right).double()

    def dual_of_features(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Compute u from the features of partners."""
        if self.dual_head is None:
            raise ValueError("this critic has no u: pass dual=, a module for u(x, y)")
        if self.constrained:
            return self.dual_head(left).reshape(-1) - self.score_paired(left, right)
        return self.dual_head(torch.cat((left, right), dim=1)).reshape(-1)


def _check_partners(x: Tensor, y: Tensor) -> None:
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} samples and y {len(y)}; partners come row by row")


class BoundedScale(nn.Module):
    """A number from 0.1 to 100 that is learned through its logarithm.

    FlatNCE's value rises with the scale, so a scale trained with it climbs to its upper bound:
    pass ``learn=False`` and calibrate the scale on other data afterwards.

    Arguments:
        scale: Initial scale.
        learn: Whether it is a parameter; else it stays as it is.
    """

    log_scale: Tensor
    lowest, highest = 0.1, 100.0

    def __init__(self, scale: float = 20.0, *, learn: bool = True) -> None:
        super().__init__()
        if not self.lowest <= scale <= self.highest:
            raise ValueError(f"scale={scale} must lie between {self.lowest} and {self.highest}")
        value = torch.tensor(math.log(scale))
        if learn:
            self.log_scale = nn.Parameter(value)
        else:
            self.register_buffer("log_scale", value)

    def forward(self) -> Float[Tensor, ""]:
        """Return the scale."""
        if isinstance(self.log_scale, nn.Parameter):
            with torch.no_grad():  # keeps the parameter itself within its bounds
                self.log_scale.clamp_(math.log(self.lowest), math.log(self.highest))
        within = self.log_scale.clamp(math.log(self.lowest), math.log(self.highest))
        # In stacked critics it is not a parameter that can be written to: then the value is
        # clamped and the gradient is not, so that the scale can move back.
        return (self.log_scale + (within - self.log_scale).detach()).exp()


def perceptron(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (256, 256),
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Build a multi-layer perceptron; without hidden layers, a linear map.

    Arguments:
        inputs: Width of a sample.
        outputs: Width of the result.
        hidden: Widths of the hidden layers.
        activation: Class of the non-linearity.
    """
    sizes = (inputs, *hidden, outputs)
    check_at_least("the smallest layer width", min(sizes), 1)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class SeparableCritic(Critic):
    """A product of the features of two towers: scores of n × m pairs from n + m passes.

    Arguments:
        left: Tower of x.
        right: Tower of y, of the same output width.
        similarity: ``dot``, or ``cosine`` times a bounded scale. FlatNCE needs the cosine: the
            scale of an unbounded critic diverges under it.
        scale: Scale of the cosine: its start, or a :class:`BoundedScale`.
        of_u: ``dual`` and ``constrained`` of :class:`Critic`.
    """

    def __init__(
        self,
        left: nn.Module,
        right: nn.Module,
        *,
        similarity: str = "dot",
        scale: float | BoundedScale = 20.0,
        **of_u: Any,
    ) -> None:
        super().__init__(left, right, **of_u)
        check_choice("similarity", similarity, ("dot", "cosine"))
        self.scale: BoundedScale | None = None
        if similarity == "cosine":
            self.scale = scale if isinstance(scale, BoundedScale) else BoundedScale(scale)

    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        """Score all pairs of features by their product."""
        if left.shape[1:] != right.shape[1:]:
            shapes = {"left": tuple(left.shape), "right": tuple(right.shape)}
            raise ValueError(MESSAGES["towers"].format(**shapes))
        if self.scale is None:
            return left @ right.T
        return self.scale().to(left) * (normalize(left, dim=1) @ normalize(right, dim=1).T)

    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Score the features of partners by their product."""
        if self.scale is None:
            return (left * right).sum(dim=1)
        cosines = (normalize(left, dim=1) * normalize(right, dim=1)).sum(dim=1)
        return self.scale().to(left) * cosines

    def _block(self, left: Tensor, right: Tensor) -> Tensor:
        return self.score(left.double(), right.double())


class JointCritic(Critic):
    """A network applied to the concatenated features of each pair: n × m passes, in chunks.

    If the network starts with a linear layer, that layer is applied to each side once.

    Arguments:
        network: Maps the concatenated features of x and y, (pairs, width), to one number per
            pair. Pairs must be independent of each other: no batch normalisation.
        left: Tower of x; by default the identity.
        right: Tower of y; by default the identity.
        pairs_at_once: Pairs that the network sees at once; chunks are recomputed for gradients.
        of_u: ``dual`` and ``constrained`` of :class:`Critic`.
    """

    def __init__(
        self,
        network: nn.Module,
        left: nn.Module | None = None,
        right: nn.Module | None = None,
        *,
        pairs_at_once: int = 2**16,
        **of_u: Any,
    ) -> None:
        super().__init__(left or nn.Identity(), right or nn.Identity(), **of_u)
        check_at_least("pairs_at_once", pairs_at_once, 1)
        self.network, self.pairs_at_once = network, pairs_at_once

    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        rest, split = self.network, False
        if isinstance(rest, nn.Sequential) and len(rest) > 1 and type(rest[0]) is nn.Linear:
            first, rest, split = rest[0], rest[1:], True
            weights = first.weight.split((left.shape[1], right.shape[1]), dim=1)
            left = nn.functional.linear(left, weights[0], first.bias)
            right = right @ weights[1].T

        def rows(part: Tensor, right: Tensor) -> Tensor:
            shape = (len(part), len(right), -1)
            both = part[:, None].expand(shape), right[None].expand(shape)
            pairs = both[0] + both[1] if split else torch.cat(both, dim=2)
            return rest(pairs.flatten(0, 1)).reshape(shape[:2])

        step = max(self.pairs_at_once // len(right), 1)
        recomputed = len(left) > step and torch.is_grad_enabled()
        scored = partial(checkpoint, rows, use_reentrant=False) if recomputed else rows
        return torch.cat([scored(part, right) for part in left.split(step)])

    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        return self.network(torch.cat((left, right), dim=1)).reshape(-1)


def critic_for(
    kind: str,
    widths: tuple[int, int],
    *,
    hidden: Sequence[int] = (256, 256),
    features: int = 32,
    scale: float | BoundedScale = 20.0,
    dual: str | None = None,
) -> Critic:
    """Build a critic of perceptrons for two tables.

    Arguments:
        kind: ``dot`` or ``cosine`` (separable), or ``joint``.
        widths: Columns of x and of y.
        hidden: Widths of the hidden layers.
        features: Width of the towers' features; unused by the joint critic.
        scale: Scale of the cosine: its start, or a :class:`BoundedScale`.
        dual: Also learn u for FLO: ``free`` u(x, y), or ``constrained`` u = −g(x, y) + s(x).
    """
    check_choice("kind", kind, ("dot", "cosine", "joint"))
    check_choice("dual", dual, (None, "free", "constrained"))
    sides = widths if kind == "joint" else (features, features)
    of_u: dict[str, Any] = {}
    if dual is not None:
        constrained = dual == "constrained"
        inputs = sides[0] if constrained else sum(sides)
        of_u = {"dual": perceptron(inputs, 1, hidden[-1:]), "constrained": constrained}
    if kind == "joint":
        return JointCritic(perceptron(sum(widths), 1, hidden), **of_u)
    left, right = (perceptron(width, features, hidden) for width in widths)
    return SeparableCritic(left, right, similarity=kind, scale=scale, **of_u)


class GaussianTower(nn.Module):
    """One side's features: a perceptron's, a linear map, and a quadratic form beside a 1."""

    centre: Tensor
    size: Tensor

    def __init__(
        self, start: Sequence[Tensor], hidden: Sequence[int], features: int, *, leads: bool
    ) -> None:
        super().__init__()
        # Columns by directions for the product of both sides, and for minus half of their square.
        # With ``leads``, true for one of the two towers, the quadratic form comes before the 1.
        linear, quadratic, centre, size = start
        self.register_buffer("centre", centre)
        self.register_buffer("size", size)
        width = 2 * len(linear) + 1
        self.leads = leads
        self.perceptron = perceptron(width, features + 1, hidden, nn.SiLU)
        self.linear, self.quadratic = nn.Parameter(linear), nn.Parameter(quadratic)
        last = self.perceptron[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.zero_()
            last.weight[-1:].zero_()
            if not leads:  # one tower starts at zero, so that the product does
                last.weight.zero_()

    def forward(self, values: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        values = (values - self.centre) / self.size
        squares = values.square()
        norm = (squares.mean(dim=1, keepdim=True) + 1e-3).log()
        # Squares and the norm are inputs, too: a perceptron is slow to learn them.
        learned = self.perceptron(torch.cat((values, (squares - 1) / 2**0.5, norm), dim=1))
        alone = learned[:, -1:] - (values @ self.quadratic).square().sum(1, keepdim=True) / 2
        one = torch.ones_like(alone)
        ends = (alone, one) if self.leads else (one, alone)
        return torch.cat((learned[:, :-1], values @ self.linear, *ends), dim=1)


def gaussian_critic(
    train: tuple[NDArray[np.float32], NDArray[np.float32]],
    validation: tuple[NDArray[np.float32], NDArray[np.float32]],
    *,
    hidden: Sequence[int] = (256, 256),
    features: int = 32,
) -> SeparableCritic:
    r"""Build a critic for tables that starts as the best Gaussian critic and learns the remainder.

    With canonical directions :math:`u_k, v_k` and correlations :math:`r_k` it is, up to constants,

    .. math:: \sum_k \frac{r_k}{1 - r_k^2} u_k v_k - \frac{r_k^2}{2 (1 - r_k^2)} (u_k^2 + v_k^2)

    plus perceptrons that start at zero. The directions come from the first rows, their variances
    and correlations from the others: a sample overstates those of its own best directions.

    Arguments:
        train: Rows of x and of y.
        validation: Other rows of x and of y, which must neither stop nor evaluate the critic.
        hidden: Widths of the perceptrons.
        features: Width of their features.
    """
    used, maps, whiteners, white, others = [], [], [], [], []
    for table, other in zip(train, validation, strict=True):
        own = _start_columns(table, other)
        centre, size = _standardisation(table.astype(np.float64), centred=not own.all())
        rows = (table - centre) / size * own
        used.append(own)
        maps.append((centre, size))
        whiteners.append(whitening(rows) * own[:, None])
        white.append(rows @ whiteners[-1])
        others.append((other - centre) / size)
    left, _, right = np.linalg.svd(white[0].T @ white[1] / len(white[0]), full_matrices=False)
    directions = [whiteners[0] @ left, whiteners[1] @ right.T]
    projected = [table @ side for table, side in zip(others, directions, strict=True)]
    u, v = (side - side.mean(axis=0) for side in projected)
    spreads = [np.maximum(side.std(axis=0), 1e-12) for side in (u, v)]
    sampled = (u * v).mean(axis=0) / (spreads[0] * spreads[1])
    # Correlations that chance gives the best of so many directions would only add noise.
    chance = max(2.0, (2 * np.log(len(sampled))) ** 0.5) / len(u) ** 0.5
    correlations = np.where(sampled > chance, np.minimum(sampled, 0.99999), 0.0)
    product = np.sqrt(correlations / (1 - correlations**2))
    square = np.sqrt(correlations**2 / (1 - correlations**2))
    towers = []
    for number, (centre, size) in enumerate(maps):
        side = directions[number] / spreads[number]
        weights = (side * product, side * square, centre, size)
        start = [torch.from_numpy(each).float() for each in weights]
        towers.append(GaussianTower(start, hidden, features, leads=number == 0))
    critic = SeparableCritic(*towers)
    if not all(own.all() for own in used):
        _calibrate(critic, validation)
    return critic


@torch.no_grad()
def _calibrate(critic: SeparableCritic, tables: tuple[NDArray[Any], NDArray[Any]]) -> None:
    """Scale the start to these rows: of categories, correlations give too large scores."""
    scores = critic(*(torch.from_numpy(table[:1024]).float() for table in tables)).double()
    scale = best_scale(scores - scores.mean(dim=1, keepdim=True), 1.0, limits=(1e-4, 1.0))
    for name, weight in critic.named_parameters():
        if name.endswith(("linear", "quadratic")):
            weight.mul_(scale**0.5)


def _start_columns(table: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
    """Which columns canonical directions are made of.

    The columns of a category determine that of its most common value: a sum of all of them is a
    direction in which rows do not differ, and what rounding leaves of it would have a large
    weight. Beside such a column, a value that fewer than five of the other rows have (the last
    fifth of the training rows, about a tenth of the table) has no weight either.
    """
    determined = determined_columns(table)
    if not determined.any():
        return ~determined
    return ~determined & ((others != np.median(table, axis=0)).sum(axis=0) >= 5)


def determined_columns(table: NDArray[Any]) -> NDArray[np.bool_]:
    """Which columns of two values are linear in others; of a category, its most common value."""
    low, high = table.min(axis=0), table.max(axis=0)
    binary = ((table == low) | (table == high)).all(axis=0)
    determined = np.zeros_like(binary)
    if not binary.any() or table.shape[1] >= len(table):
        return determined
    order = np.argsort((table == high).sum(axis=0))
    centred = (table - table.mean(axis=0, dtype=np.float64)) * (high > low)
    centred = (centred / np.maximum(centred.std(axis=0), np.finfo(float).tiny))[:, order]
    triangle = np.asarray(np.linalg.qr(centred.T @ centred, mode="r"))
    size = np.linalg.norm(triangle, axis=0)
    determined[order] = (size > 0) & (np.abs(triangle.diagonal()) < 1e-10 * size)
    return determined & binary


def _standardisation(
    table: NDArray[np.float64], *, centred: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Centre and size of the columns; those that are about standard are at most centred."""
    centre, size = table.mean(axis=0), table.std(axis=0)
    if (np.abs(centre) < 0.2).all() and (size < 2).all():
        return centre * centred, np.ones_like(size)
    return centre, np.where(size > 0, size, 1.0)


def whitening(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the map that makes centred columns uncorrelated and equally large, with a ridge."""
    rows, columns = table.shape
    if columns > rows:  # in all other directions the rows are 0
        vectors, sizes, _ = np.linalg.svd(table.T, full_matrices=False)
        values = sizes**2 / rows
    else:
        values, vectors = np.linalg.eigh(table.T @ table / rows)
    # With few rows per column, small variances are noise, and dividing by them amplifies it.
    ridge = (columns / rows) ** 2 * values.sum() / columns
    return vectors / np.sqrt(np.maximum(values, 1e-6 * values.max()) + ridge + 1e-12)


def stack_key(critic: Critic) -> tuple[Any, ...] | None:
    """Return what critics must have in common to be stacked; None if this one cannot be."""
    # Copies of these give the same results stacked as one by one.
    parts = (SeparableCritic, BoundedScale, GaussianTower)
    layers = (nn.Sequential, nn.Linear, nn.ReLU, nn.SiLU)
    known = all(type(module) in (*parts, *layers) for module in critic.modules())
    if not known or not all(weight.requires_grad for weight in critic.parameters()):
        return None
    return (repr(critic), *((name, tuple(w.shape)) for name, w in critic.named_parameters()))


class StackedCritics:
    """Critics of one architecture that are evaluated and trained together.

    Every weight is a tensor with one slice per critic. So the gradient of the *sum* of the losses
    gives every critic its own gradient, and Adam, which works entry by entry, its own step::

        critics = StackedCritics([critic_for("dot", (3, 2)) for _ in range(8)])
        optimizer = torch.optim.Adam(critics.parameters())
        scores, dual = critics(x, y)  # x: (8, n, 3), y: (8, m, 2), scores: (8, n, m)
        losses_of(scores, dual).sum().backward()

    A single critic may consist of any modules: its own parameters are trained in place, without
    the leading axis.

    Arguments:
        critics: The critics. The weights of several critics are copied.
        dual_critics: As many critics whose scores of partners are u; by default u comes from the
            critics' own u-heads.
        dual: Whether to compute u; by default if there are dual critics or u-heads.

    Attributes:
        weights: The weights by name, ``critic.*`` and ``dual_critic.*``.
    """

    def __init__(
        self,
        critics: Sequence[Critic],
        dual_critics: Sequence[Critic] = (),
        *,
        dual: bool | None = None,
    ) -> None:
        others: Sequence[Critic | None] = dual_critics or [None] * len(critics)
        if dual is None:
            dual = bool(dual_critics) or critics[0].dual_head is not None
        modules = [_Pair(*both, dual) for both in zip(critics, others, strict=True)]
        self.count = len(modules)
        if self.count == 1:
            self._module = modules[0]
            self.weights = dict(self._module.named_parameters())
            return
        weights, self._buffers = stack_module_state(modules)  # type: ignore[arg-type]
        self.weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
        self._module = copy.deepcopy(modules[0]).to("meta")

    def __call__(
        self, x: Float[Tensor, "c n *d"], y: Float[Tensor, "c m *e"]
    ) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n"] | None]:
        """Score the x's of each critic with its own y's; return the scores and u or None.

        The first n y's are the partners, further ones more candidates.
        """
        if self.count == 1:
            outputs = [output[None] for output in self._module(x[0], y[0])]
        else:
            call = vmap(lambda state, *sides: functional_call(self._module, state, sides))
            outputs = call((self.weights, self._buffers), x, y)
        return outputs[0], outputs[1] if len(outputs) > 1 else None

    def parameters(self, of: Literal["all", "critic", "dual"] = "all") -> list[Tensor]:
        """Return all weights, those of the critics or those of u only."""
        of_u = ("critic.dual_head.", "dual_critic.")
        kinds = {name: "dual" if name.startswith(of_u) else "critic" for name in self.weights}
        return [weight for name, weight in self.weights.items() if of in ("all", kinds[name])]

    def state_of(self, number: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights, or averages of them, of one critic under its own parameter names."""
        return {
            name.removeprefix("critic."): (value if self.count == 1 else value[number]).detach()
            for name, value in weights.items()
            if name.startswith("critic.")
        }

    def zero_grad(self) -> None:
        """Delete the gradients of all weights."""
        for weight in self.weights.values():
            weight.grad = None

    def gradient_norms(self) -> Float[Tensor, " c"]:
        """Compute the norm of each critic's own gradient."""
        squares = [grad.flatten(1).square().sum(dim=1) for grad in self._gradients()]
        return sum(squares[1:], squares[0]).sqrt()

    def clip_gradients(self, limit: float) -> None:
        """Scale each critic's gradient down to a norm of ``limit``; drop non-finite ones."""
        factor = (limit / self.gradient_norms().clamp_min(limit)).nan_to_num(0.0)
        for gradient in self._gradients():
            shape = (-1, *[1] * (gradient.ndim - 1))
            gradient.mul_(factor.reshape(shape)).nan_to_num_(0.0, 0.0, 0.0)

    def drop_gradients(self, of: Bool[Tensor, " c"]) -> None:
        """Set the gradients of some critics to zero, for example of those that diverged."""
        for gradient in self._gradients():
            gradient[of] = 0.0

    def _gradients(self) -> list[Tensor]:
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        return [gradient[None] for gradient in gradients] if self.count == 1 else gradients


class _Pair(nn.Module):
    """A critic whose call returns its scores and, if wanted, u of the partners."""

    def __init__(self, critic: Critic, dual_critic: Critic | None, dual: bool) -> None:
        super().__init__()
        self.critic, self.dual_critic, self.dual = critic, dual_critic, dual

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        if not self.dual:
            return (self.critic(x, y),)
        left, right = self.critic.embed(x, y)
        scores = self.critic.score(left, right)
        if self.dual_critic is not None:
            return scores, self.dual_critic.paired(x, y[: len(x)])
        return scores, self.critic.dual_of_features(left, right[: len(x)])
