"""Several methods on the same data, in one table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.mi.estimator import Estimate, MutualInformation
from flatnce.mi.estimator.methods import method_named
from flatnce.mi.estimator.result import p_value_in_words, unit_factor
from flatnce.mi.studies.layout import aligned

COMPARED = ("auto", "infonce", "flatnce", "nwj", "js", "ksg", "cca", "gaussian-copula")
"""The methods that are compared where none are named."""


@dataclass(frozen=True)
class Comparison:
    """Estimates of the same data, by method.

    Arguments:
        estimates: Each method's answer.
    """

    estimates: Mapping[str, Estimate]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One record a method, in nats."""
        return [
            {
                "method": name,
                "estimate": found.nats,
                "standard_error": found.standard_error,
                "lower": found.lower,
                "ceiling": found.ceiling,
                "p_value": found.p_value,
                "is_bound": bool(found.readouts),
                "flags": [flag.name for flag in found.flags],
                "seconds": found.seconds,
            }
            for name, found in self.estimates.items()
        ]

    def table(self, unit: str = "nats") -> str:
        """A text table; what a method does not give is a dash.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)

        def shown(value: float) -> str:
            return "–" if math.isnan(value) else f"{value * factor:.3f}"

        lines = [
            [
                row["method"],
                shown(row["estimate"]),
                shown(row["standard_error"]),
                shown(row["lower"]),
                shown(row["ceiling"]),
                "–"
                if math.isnan(row["p_value"])
                else p_value_in_words(row["p_value"])[2:].removeprefix("= "),
                "lower bound" if row["is_bound"] else "no bound",
                f"{row['seconds']:.1f}",
                ", ".join(name for name in row["flags"] if name != "no_limit"),
            ]
            for row in self.rows
        ]
        header = ["method", unit, "± se", "95 % ≥", "ceiling", "p", "kind", "seconds", "flags"]
        return aligned(header, lines)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Everything as plain data for JSON.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        return {name: found.plain(unit) for name, found in self.estimates.items()}


def compare(
    x: Any,
    y: Any,
    methods: Sequence[str] = COMPARED,
    *,
    groups: Any = None,
    progress: Any = None,
    **choices: Any,
) -> Comparison:
    """Estimate by several methods on the same split.

    The largest valid bound is not automatically the one to report: choosing it after the fact is
    choosing on the test rows. Decide on a method first; this table says how much it matters.

    Arguments:
        x: One table.
        y: Row by row the partners.
        methods: Names of :data:`flatnce.mi.METHODS`.
        groups: One label a row; rows of a group are kept together.
        progress: Called while a critic trains.
        choices: Those of :class:`flatnce.mi.MutualInformation`.
    """
    if isinstance(methods, str) or not methods:
        raise ValueError(f"methods={methods!r}: give a list of names, for example ['auto', 'ksg']")
    for name in methods:
        method_named(name)
    choices.setdefault("baselines", False)
    found = {}
    for name in dict.fromkeys(methods):
        one = MutualInformation(name, **choices)
        found[name] = one.fit(x, y, groups, progress).estimate_
    return Comparison(found)
