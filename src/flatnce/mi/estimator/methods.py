"""The ways to train a critic, by name: objective, default critic, and whether it learns a u."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from jaxtyping import Float
from torch import Tensor

from flatnce.mi import bounds, bounds_losses
from flatnce.mi.bounds_registry import BOUNDS

__all__ = ["CLASSICAL", "METHODS", "Method", "method_named"]

Loss = Callable[[Tensor, Tensor | None, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Method:
    """A way to get a number.

    Arguments:
        name: Its name.
        note: What it is, in a sentence.
        critic: The kind of critic it trains by default; None for a classical estimator.
        loss: From scores, u of the partners (or None) and a state to what is minimised and the
            next state.
        dual: How u is learned: ``free``, ``constrained`` or not at all.
        clip: Largest norm of a gradient, for objectives whose gradients have heavy tails.
    """

    name: str
    note: str
    critic: str | None = None
    loss: Loss | None = None
    dual: str | None = None
    clip: float | None = None

    @property
    def classical(self) -> bool:
        """Whether no critic is trained."""
        return self.loss is None


def _plain(loss: Callable[[Tensor], Tensor]) -> Loss:
    def of_scores(scores: Tensor, dual: Tensor | None, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
        return loss(scores), state

    return of_scores


def _infonce(scores: Float[Tensor, "b b"]) -> Float[Tensor, ""]:
    """Minus InfoNCE: :func:`flatnce.mi.bounds.infonce` without its checks, for every step."""
    return (scores.logsumexp(dim=1) - scores.diagonal()).mean() - math.log(len(scores))


def _mine(scores: Tensor, dual: Tensor | None, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
    loss, average = bounds_losses.mine_loss(scores, state)
    return loss, average.detach()


def _flo(scores: Tensor, dual: Tensor | None, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
    assert dual is not None
    return -bounds.flo(scores, dual), state


def _tuba(scores: Tensor, dual: Tensor | None, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
    assert dual is not None
    # The constraint is u = −g + s(x), so that s, the log baseline, is u plus the partner's score.
    return -bounds.tuba(scores, dual + scores.diagonal()), state


def _holder(scores: Tensor) -> Tensor:
    return bounds_losses.holder_flatnce_loss(scores, 2.0)


_ALL = (
    Method(
        "auto",
        "InfoNCE on a critic that starts from the best Gaussian one.",
        "gaussian",
        _plain(_infonce),
    ),
    Method("infonce", "InfoNCE on a product of perceptrons.", "dot", _plain(_infonce)),
    Method(
        "flatnce",
        "FlatNCE on a cosine of bounded scale: keeps learning in small batches.",
        "cosine",
        _plain(bounds_losses.flatnce_loss),
    ),
    Method("holder-flatnce", "FlatNCE of power 2.", "cosine", _plain(_holder)),
    Method("dv", "Donsker–Varadhan.", "dot", _plain(BOUNDS["dv"].loss), clip=5.0),
    Method("mine", "Donsker–Varadhan with a moving average.", "dot", _mine, clip=5.0),
    Method("nwj", "Nguyen–Wainwright–Jordan.", "dot", _plain(BOUNDS["nwj"].loss), clip=5.0),
    Method("tuba", "NWJ with a learned baseline a(x).", "dot", _tuba, "constrained", clip=5.0),
    Method("flo", "Fenchel–Legendre with a learned u(x, y).", "dot", _flo, "free", clip=5.0),
    Method("js", "Jensen–Shannon.", "dot", _plain(bounds_losses.jensen_shannon_loss)),
    Method("smile", "Trained as Jensen–Shannon.", "dot", _plain(bounds_losses.smile_loss)),
    Method("ksg", "Nearest neighbours (Kraskov, algorithm 1)."),
    Method("cca", "Canonical correlations, bias removed: Gaussian dependence only."),
    Method("gaussian-copula", "Correlations of normal scores, bias removed."),
)

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})
"""Every method, by name."""

CLASSICAL: tuple[str, ...] = tuple(name for name, method in METHODS.items() if method.classical)


def method_named(name: str) -> Method:
    """An entry of :data:`METHODS`, or an error with the nearest name.

    Arguments:
        name: For example ``auto``.
    """
    if name in METHODS:
        return METHODS[name]
    near = get_close_matches(str(name), METHODS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"method={name!r} is unknown; {hint}choose from {', '.join(METHODS)}")
