"""The objectives of Table 1 and of the registry, as ways to train a critic and to read it."""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.mi.bounds import mine_loss
from flatnce.mi.registry import BOUNDS
from flatnce.paper.reproduce.known_pairs import one_negative


@dataclass(frozen=True)
class Way:
    """One objective with one kind of critic.

    Arguments:
        label: As people write it.
        bound: Its name in the registry.
        critic: ``dot``, or ``cosine`` at a scale that stays.
        dual: Which u or baseline is learned beside the critic.
        options: What the registry's functions take besides.
        single: With one negative a row, that is one shuffled copy of y.
        in_paper: What Table 1 says of its bias and of its stability, where it has it.
    """

    label: str
    bound: str
    critic: str = "dot"
    dual: str | None = None
    options: tuple[tuple[str, float], ...] = ()
    single: bool = False
    in_paper: tuple[str, str] | None = None

    @property
    def is_bound(self) -> str:
        """Whether it is a lower bound on mutual information, in words."""
        entry = BOUNDS[self.bound]
        if entry.is_lower_bound:
            return "yes"
        if entry.promise == "expected":
            return "of another divergence"
        return "in the limit" if entry.promise == "limit" else "no"

    @property
    def trains(self) -> bool:
        """Whether a critic is trained with it: Barber–Agakov has a density in its place."""
        return BOUNDS[self.bound].reads != "densities"

    @property
    def needs_pool(self) -> bool:
        """Whether it takes further y's."""
        return "pool" in BOUNDS[self.bound].needs

    def value(self, scores: Float[Tensor, "n m"], dual: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Its number in nats."""
        own, given = self._given(scores, dual)
        return BOUNDS[self.bound].value(own, **given)

    def loss(
        self, scores: Float[Tensor, "n m"], dual: Float[Tensor, " n"], memory: dict[str, Any]
    ) -> Float[Tensor, ""]:
        """What is minimised."""
        own, given = self._given(scores, dual)
        if self.bound == "mine":
            found, memory["average"] = mine_loss(own, memory.get("average"))
            return found
        return BOUNDS[self.bound].loss(own, **given)

    def _given(self, scores: Tensor, dual: Tensor) -> tuple[Any, dict[str, Any]]:
        n, given = len(scores), dict[str, Any](self.options)
        own = scores[:, :n]
        needs = BOUNDS[self.bound].needs
        if "dual" in needs:
            given["dual"] = dual
        if "log_baseline" in needs:  # u = −g + log a(x)
            given["log_baseline"] = dual + own.diagonal()
        if "pool" in needs:
            given["pool"] = scores[:, n:]
        return (one_negative(own) if self.single else own), given


def jensen_shannon_truth(partners: Float[Tensor, " n"], strangers: Float[Tensor, " m"]) -> float:
    """The Jensen–Shannon divergence of p(x, y) from p(x)p(y): the mean of both halves."""
    return float(math.log(2) - (softplus(-partners).mean() + softplus(strangers).mean()) / 2)


WAYS = (
    Way("DV", "dv", in_paper=("Large", "Poor")),
    Way("DV, one shuffled copy", "dv", single=True, in_paper=("Large", "Poor")),
    Way("MINE", "mine"),
    Way("NWJ", "nwj", in_paper=("Low", "Okay")),
    Way("NWJ, one shuffled copy", "nwj", single=True, in_paper=("Low", "Okay")),
    Way("TUBA", "tuba", dual="constrained"),
    Way("TUBA, α = 0.1", "tuba-alpha", dual="constrained", options=(("alpha", 0.1),)),
    Way("FLO", "flo", dual="free", in_paper=("Low", "Okay")),
    Way("FLO, cross-fitted", "flo-cross-fitted"),
    Way("InfoNCE", "infonce", in_paper=("Large", "Excellent")),
    Way("InfoNCE", "infonce", critic="cosine", in_paper=("Large", "Excellent")),
    Way("FlatNCE", "flatnce", in_paper=("Low", "Excellent")),
    Way("FlatNCE", "flatnce", critic="cosine", in_paper=("Low", "Excellent")),
    Way("Hölder-FlatNCE, γ = 2", "holder-flatnce", critic="cosine", options=(("power", 2.0),)),
    Way("Jensen–Shannon", "js"),
    Way("SMILE", "smile"),
    Way("Barber–Agakov", "ba"),
)
"""In the order of the table; the same objective twice where its critic matters."""
