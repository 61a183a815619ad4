"""The answer: a lower limit, an estimate, a ceiling, a p-value, and what to think of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatnce.mi.estimator.cleaning import Cleaning
from flatnce.mi.estimator.flags import Flag
from flatnce.mi.estimator.readouts import Readout

__all__ = ["Estimate", "p_value_in_words", "unit_factor"]

UNITS: Mapping[str, float] = {"nats": 1.0, "bits": 1 / math.log(2)}


@dataclass(frozen=True, repr=False)
class Estimate:
    """Mutual information of two tables, as far as the data tell.

    All numbers are in nats. For a classical method there is no lower limit, p-value or ceiling
    (NaN), and no read-outs.

    Arguments:
        nats: The estimate: a lower bound in expectation, read on rows that neither trained nor
            stopped nor calibrated the critic.
        standard_error: Of the test rows' sampling; it does not cover what training leaves out.
        lower: One-sided 95 % limit: I(X;Y) is at least this.
        p_value: Against independence, by permutation.
        permutations: How many were drawn.
        ceiling: The most that this many rows can show.
        saturated: Whether the estimate is within 1 nat of it.
        method: How the critic was trained.
        readout: Name of the read-out that ``nats`` is.
        flags: Warnings in words.
        readouts: Every number that was read, by name.
        baselines: What classical methods say (None where one does not apply).
        cleaning: What was done to the data.
        split: Rows that trained, stopped and were read, and the folds.
        history: The validation value while it trained.
        settings: Everything that was chosen, for the record.
        seconds: How long it took.
    """

    nats: float
    standard_error: float
    lower: float
    p_value: float
    permutations: int
    ceiling: float
    saturated: bool
    method: str
    readout: str
    flags: tuple[Flag, ...]
    readouts: Mapping[str, Readout]
    baselines: Mapping[str, float | None]
    cleaning: Cleaning
    split: Mapping[str, int]
    history: tuple[Mapping[str, float | int], ...]
    settings: Mapping[str, Any]
    seconds: float

    def __repr__(self) -> str:
        raised = f", flags: {', '.join(flag.name for flag in self.flags)}" if self.flags else ""
        return f"<{self.sentence()}{raised}>"

    @property
    def bits(self) -> float:
        """The estimate in bits."""
        return self.nats * UNITS["bits"]

    def flagged(self, name: str) -> bool:
        """Whether a warning was raised.

        Arguments:
            name: For example ``overfit``.
        """
        return any(flag.name == name for flag in self.flags)

    def sentence(self, unit: str = "nats") -> str:
        """The answer in one line.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        if not math.isfinite(self.lower):
            return f"I(X;Y) ≈ {_number(self.nats * factor)} {unit} ({self.method}; no lower limit)"
        estimate, decimals = _pair(self.nats * factor, self.standard_error * factor)
        return (
            f"I(X;Y) ≥ {_floor(self.lower * factor, decimals)} {unit} (95 %), estimate "
            f"{estimate}, ceiling {_number(self.ceiling * factor)}, "
            f"{p_value_in_words(self.p_value)}"
        )

    def summary(self, unit: str = "nats") -> str:
        """The answer, the warnings, every read-out, the baselines and what was done to the data.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        lines = [self.sentence(unit)]
        lines += [f"! {flag.name}: {flag.message}" for flag in self.flags]
        if self.readouts:
            lines += [
                "",
                f"Read on {self.split['test']} rows that the critic never saw, in {unit}:",
            ]
            for readout in self.readouts.values():
                kind = "lower bound" if readout.is_bound else "no bound"
                value, _ = _pair(readout.nats * factor, readout.standard_error * factor)
                lines.append(f"  {readout.name:<17} {value:>18}  {kind:<11}  {readout.note}")
        if self.baselines:
            together = self.settings.get("groups") or self.settings.get("blocks")
            how = "no bounds; every row taken as independent" if together else "no bounds"
            lines += ["", f"Classical estimates for comparison ({how}), in {unit}:"]
            for name, found in self.baselines.items():
                shown = "does not apply" if found is None else _number(found * factor)
                lines.append(f"  {name:<17} {shown:>10}")
        rows = self.cleaning
        lines += ["", f"Data: {rows.rows_used} of {rows.rows_given} rows; {_split(self.split)}."]
        lines += [f"  {note}" for note in rows.notes]
        return "\n".join(lines)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Everything as plain data for JSON, numbers in the unit.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)

        def number(value: float | None) -> float | None:
            return None if value is None or not math.isfinite(value) else value * factor

        return {
            "sentence": self.sentence(unit),
            "unit": unit,
            "estimate": number(self.nats),
            "standard_error": number(self.standard_error),
            "lower": number(self.lower),
            "p_value": None if math.isnan(self.p_value) else self.p_value,
            "permutations": self.permutations,
            "ceiling": number(self.ceiling),
            "saturated": self.saturated,
            "method": self.method,
            "readout": self.readout,
            "flags": [{"name": flag.name, "message": flag.message} for flag in self.flags],
            "readouts": {
                name: {
                    "value": number(readout.nats),
                    "standard_error": number(readout.standard_error),
                    "is_bound": readout.is_bound,
                    "note": readout.note,
                }
                for name, readout in self.readouts.items()
            },
            "baselines": {name: number(value) for name, value in self.baselines.items()},
            "cleaning": {
                "rows_given": self.cleaning.rows_given,
                "rows_used": self.cleaning.rows_used,
                "columns_dropped_x": list(self.cleaning.columns_dropped_x),
                "columns_dropped_y": list(self.cleaning.columns_dropped_y),
                "notes": list(self.cleaning.notes),
            },
            "split": dict(self.split),
            # In nats, as it was trained.
            "history": [{k: _plain(v) for k, v in record.items()} for record in self.history],
            "settings": {name: _plain(value) for name, value in self.settings.items()},
            "seconds": self.seconds,
        }


def unit_factor(unit: str) -> float:
    """What a number in nats is multiplied by."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; choose nats or bits")
    return UNITS[unit]


def _plain(value: Any) -> Any:
    """A value that JSON knows: a number of numpy's as Python's, None for NaN and infinity."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float, decimals: int = 2) -> str:
    if abs(value) >= 1000:
        return f"{value:.3g}"
    shown = f"{value:.{decimals}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def _floor(value: float, decimals: int) -> str:
    """A limit, never said larger than it is."""
    return _number(math.floor(value * 10**decimals + 1e-9) / 10**decimals, decimals)


def _pair(value: float, error: float) -> tuple[str, int]:
    """A number with its standard error, and their decimals: enough to show the error."""
    decimals = 2 if error >= 0.0095 or not math.isfinite(error) else 3
    return f"{_number(value, decimals)} ± {_number(error, decimals)}", decimals


def p_value_in_words(value: float) -> str:
    """A p-value as one writes it.

    Arguments:
        value: From 0 to 1.

    Examples:
        >>> p_value_in_words(0.0005), p_value_in_words(0.0312), p_value_in_words(0.4)
        ('p < 0.001', 'p = 0.031', 'p = 0.40')
    """
    if value < 0.001:
        return "p < 0.001"
    return f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def _split(split: Mapping[str, int]) -> str:
    if split.get("folds", 1) > 1:
        return f"cross-fitted in {split['folds']} folds, each row read once"
    if "train" not in split:
        return "all of them used"
    return (
        f"{split['train']} trained the critic, {split['validation']} stopped and calibrated it, "
        f"{split['test']} were read"
    )
