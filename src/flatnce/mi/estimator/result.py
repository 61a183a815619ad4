"""The result of an estimation: estimate, lower limit, ceiling, p-value and warnings."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flatnce.mi.estimator.cleaning import Cleaning
from flatnce.mi.estimator.evaluation import Evaluation
from flatnce.mi.estimator.flags import Flag
from flatnce.mi.estimator.readouts import Readout

__all__ = ["Estimate", "estimate_of", "json_value", "p_value_in_words", "unit_factor"]

UNITS: Mapping[str, float] = {"nats": 1.0, "bits": 1 / math.log(2)}


@dataclass(frozen=True, repr=False)
class Estimate:
    """Mutual information of two tables, with its lower limit and warnings.

    All numbers are in nats. A classical method has no lower limit, p-value or ceiling (NaN), and
    no read-outs.

    Arguments:
        nats: The estimate: a lower bound in expectation, read on rows that neither trained nor
            stopped nor calibrated the critic.
        standard_error: Standard error over test rows; it does not include the variation of
            training.
        lower: One-sided 95 % limit: I(X;Y) is at least this.
        p_value: Against independence, by permutation.
        permutations: Number of permutations.
        ceiling: The largest value that this many rows can show.
        saturated: Whether the estimate is within 1 nat of the ceiling.
        method: How the critic was trained.
        readout: Name of the read-out that ``nats`` is.
        flags: Warnings.
        readouts: Every number that was read, by name.
        baselines: Estimates of classical methods (None where one does not apply).
        cleaning: What was done to the data.
        split: Number of rows for training, validation and test, and of folds.
        history: The validation value during training.
        settings: All settings, for the record.
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
        """Return the result in one line.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        if not math.isfinite(self.lower):
            return f"I(X;Y) ≈ {_number(self.nats * factor)} {unit} ({self.method}; no lower limit)"
        estimate, decimals = _with_error(self.nats * factor, self.standard_error * factor)
        return (
            f"I(X;Y) ≥ {_floor(self.lower * factor, decimals)} {unit} (95 %), estimate "
            f"{estimate}, ceiling {_number(self.ceiling * factor)}, "
            f"{p_value_in_words(self.p_value)}"
        )

    def summary(self, unit: str = "nats") -> str:
        """Return the result, the warnings, all read-outs, the baselines and the cleaning as text.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        lines = [self.sentence(unit)]
        lines += [f"! {flag.name}: {flag.message}" for flag in self.flags]
        if self.readouts:
            rows = self.split["test"]
            lines += ["", f"Read on {rows} rows that the critic never saw, in {unit}:"]
        for readout in self.readouts.values():
            kind = "lower bound" if readout.is_bound else "no bound"
            value, _ = _with_error(readout.nats * factor, readout.standard_error * factor)
            lines.append(f"  {readout.name:<17} {value:>18}  {kind:<11}  {readout.note}")
        if self.baselines:
            dependent = self.settings.get("groups") or self.settings.get("blocks")
            how = "no bounds; every row taken as independent" if dependent else "no bounds"
            lines += ["", f"Classical estimates for comparison ({how}), in {unit}:"]
        for name, baseline in self.baselines.items():
            shown = "does not apply" if baseline is None else _number(baseline * factor)
            lines.append(f"  {name:<17} {shown:>10}")
        used, given = self.cleaning.rows_used, self.cleaning.rows_given
        lines += ["", f"Data: {used} of {given} rows; {_split_in_words(self.split)}."]
        lines += [f"  {note}" for note in self.cleaning.notes]
        return "\n".join(lines)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Return everything as plain data for JSON, numbers in the unit.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)

        def number(value: float | None) -> float | None:
            return None if value is None or not math.isfinite(value) else value * factor

        readouts = {
            name: {
                "value": number(readout.nats),
                "standard_error": number(readout.standard_error),
                "is_bound": readout.is_bound,
                "note": readout.note,
            }
            for name, readout in self.readouts.items()
        }
        return {
            "sentence": self.sentence(unit),
            "unit": unit,
            "estimate": number(self.nats),
            "standard_error": number(self.standard_error),
            "lower": number(self.lower),
            "p_value": json_value(self.p_value),
            "permutations": self.permutations,
            "ceiling": number(self.ceiling),
            "saturated": self.saturated,
            "method": self.method,
            "readout": self.readout,
            "flags": [asdict(flag) for flag in self.flags],
            "readouts": readouts,
            "baselines": {name: number(value) for name, value in self.baselines.items()},
            "cleaning": json_value(asdict(self.cleaning)),
            "split": dict(self.split),
            # In nats, as it was trained.
            "history": [json_value(record) for record in self.history],
            "settings": json_value(self.settings),
            "seconds": self.seconds,
        }


def estimate_of(
    evaluation: Evaluation,
    flags: tuple[Flag, ...],
    *,
    method: str,
    cleaning: Cleaning,
    split: Mapping[str, int],
    settings: Mapping[str, Any],
    seconds: float,
    baselines: Mapping[str, float | None] | None = None,
    history: tuple[Mapping[str, float | int], ...] = (),
) -> Estimate:
    """Make the result of an evaluation; InfoNCE is the number that is reported."""
    primary = evaluation.readouts["infonce"]
    return Estimate(
        nats=primary.nats,
        standard_error=primary.standard_error,
        lower=evaluation.lower,
        p_value=evaluation.p_value,
        permutations=evaluation.permutations,
        ceiling=evaluation.ceiling,
        saturated=any(flag.name == "saturated" for flag in flags),
        method=method,
        readout=primary.name,
        flags=flags,
        readouts=evaluation.readouts,
        baselines=baselines or {},
        cleaning=cleaning,
        split=split,
        history=history,
        settings=settings,
        seconds=seconds,
    )


def unit_factor(unit: str) -> float:
    """Return the factor from nats to a unit."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; choose nats or bits")
    return UNITS[unit]


def json_value(value: Any) -> Any:
    """Convert to JSON types: numpy numbers to Python's, tuples to lists, NaN and inf to None."""
    if isinstance(value, Mapping):
        return {name: json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float, decimals: int = 2) -> str:
    if abs(value) >= 1000:
        return f"{value:.3g}"
    shown = f"{value:.{decimals}f}"
    return shown.removeprefix("-") if float(shown) == 0 else shown


def _floor(value: float, decimals: int) -> str:
    """Round down, so that a limit is never shown larger than it is."""
    return _number(math.floor(value * 10**decimals + 1e-9) / 10**decimals, decimals)


def _with_error(value: float, error: float) -> tuple[str, int]:
    """Format a number with its standard error; also return the decimals that were needed."""
    decimals = 2 if error >= 0.0095 or not math.isfinite(error) else 3
    return f"{_number(value, decimals)} ± {_number(error, decimals)}", decimals


def p_value_in_words(value: float) -> str:
    """Format a p-value.

    Examples:
        >>> p_value_in_words(0.0005), p_value_in_words(0.0312), p_value_in_words(0.4)
        ('p < 0.001', 'p = 0.031', 'p = 0.40')
    """
    if value < 0.001:
        return "p < 0.001"
    return f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def _split_in_words(split: Mapping[str, int]) -> str:
    if split.get("folds", 1) > 1:
        return f"cross-fitted in {split['folds']} folds, each row evaluated once"
    if "train" not in split:
        return "all of them used"
    return (
        f"{split['train']} trained the critic, {split['validation']} stopped and calibrated it, "
        f"{split['test']} were evaluated"
    )
