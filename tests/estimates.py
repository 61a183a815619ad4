"""An estimate of mutual information as ``flatnce.mi`` returns it, made without any work."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class StandIn:
    """The fields of an Estimate, filled with likely numbers."""

    nats: float = 4.84
    standard_error: float = 0.05
    lower: float = 4.75
    p_value: float = 0.0005
    permutations: int = 1999
    ceiling: float = 7.82
    saturated: bool = False
    method: str = "flatnce"
    readout: str = "infonce"
    flags: tuple[Any, ...] = (
        SimpleNamespace(
            name="low_ess", message="Few rows carry the DV read-out (ESS 3 %). Try folds=5."
        ),
        SimpleNamespace(name="dropped", message="12 rows had <missing> cells and were left out."),
    )
    readouts: dict[str, Any] = field(
        default_factory=lambda: {
            name: SimpleNamespace(
                name=name, nats=nats, standard_error=error, is_bound=bound, note=note
            )
            for name, nats, error, bound, note in (
                ("infonce", 4.84, 0.05, True, "all pairs"),
                ("dv", 5.1, 0.31, True, "in expectation; high variance"),
                ("nwj", 4.2, 0.4, True, ""),
                ("smile", 5.4, 0.1, False, "clipped"),
                ("js", float("nan"), float("nan"), False, "did not converge"),
            )
        }
    )
    baselines: dict[str, float | None] = field(
        default_factory=lambda: {"ksg": 2.9, "cca": 3.3, "gaussian-copula": None}
    )
    cleaning: Any = field(
        default_factory=lambda: SimpleNamespace(
            rows_given=1_000,
            rows_used=988,
            notes=("12 rows had missing cells.", "Column 3 of x is constant and was left out."),
            columns_dropped_x=(3,),
            columns_dropped_y=(),
        )
    )
    split: dict[str, int] = field(
        default_factory=lambda: {"train": 592, "validation": 198, "test": 198, "folds": 1}
    )
    history: tuple[dict[str, float], ...] = tuple(
        {
            "fold": 0,
            "step": 50 * i,
            "train": 5.6 * (1 - math.exp(-i / 8)) - (20.0 if i == 0 else 0.0),
            "validation": 4.9 * (1 - math.exp(-i / 6)) - 0.004 * i,
            "scale": 1.0,
        }
        for i in range(40)
    )
    settings: dict[str, Any] = field(
        default_factory=lambda: {"critic": "separable", "batch_size": 256, "device": "cpu"}
    )
    seconds: float = 12.3

    def sentence(self, unit="nats"):
        factor = 1.0 if unit == "nats" else 1.0 / math.log(2.0)
        lower, nats, error, ceiling = (
            factor * value for value in (self.lower, self.nats, self.standard_error, self.ceiling)
        )
        return (
            f"I(X;Y) ≥ {lower:.2f} {unit} (95 %), estimate {nats:.2f} ± {error:.2f}, "
            f"ceiling {ceiling:.2f}, p < 0.001"
        )

    def summary(self, unit="nats"):
        return "\n".join([self.sentence(unit), *(flag.message for flag in self.flags)])

    def plain(self, unit="nats"):
        return {"sentence": self.sentence(unit), "unit": unit, "lower": self.lower}
