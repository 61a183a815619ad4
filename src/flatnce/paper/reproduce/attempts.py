"""The failed attempts of the paper's appendix, as ways to train a primal and a dual critic."""

import itertools
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from flatnce.core.contrast import Contrast
from flatnce.mi.bounds import flatnce_loss, flo, flo_alternating_losses, infonce
from flatnce.paper.reproduce.known_pairs import one_negative

DUALS = {
    "free": "u-head",
    "critic": "second critic",
    "constrained": "u = −g + s(x)",
}
"""What u may be, and what it is called."""


@dataclass(frozen=True)
class Attempt:
    """An objective, the u beside it, and how both are trained.

    Arguments:
        objective: ``infonce``, ``flatnce`` or ``flo``.
        critic: ``dot`` or ``cosine``; images have cosines throughout.
        dual: What u is: a key of :data:`DUALS`, or none.
        alternating: Steps of the critic and of u in turn, instead of both at once.
        single: One negative a row (K = 1) instead of all of the batch.
    """

    objective: str
    critic: str = "dot"
    dual: str | None = None
    alternating: bool = False
    single: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What tells it from the others, in words."""
        names = {"infonce": "InfoNCE", "flatnce": "FlatNCE", "flo": "FLO"}
        return {
            "objective": names[self.objective],
            "critic": self.critic,
            "u": DUALS[self.dual] if self.dual else "none",
            "training": "alternating" if self.alternating else "joint" if self.dual else "none",
            "negatives": "one" if self.single else "all",
        }

    @property
    def label(self) -> str:
        """The same in a line."""
        words = self.variables
        parts = [words["objective"], words["u"] if self.dual else f"{self.critic}"]
        parts += ["alternating"] if self.alternating else []
        parts += ["K = 1"] if self.single else []
        return ", ".join(parts)

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


ATTEMPTS = (
    Attempt("infonce"),
    Attempt("infonce", "cosine"),
    Attempt("flatnce", "cosine"),
    Attempt("infonce", single=True),
    Attempt("infonce", "cosine", single=True),
    Attempt("flatnce", "cosine", single=True),
    *(
        Attempt("flo", "dot", dual, alternating, single)
        for dual, alternating, single in itertools.product(DUALS, (False, True), (False, True))
    ),
)
"""Every u, joint and alternating, with all negatives and with one; and what they are held against.
"""
