"""The result of an estimation: estimate, lower limit, ceiling, p-value and warnings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatnce.environment import plain
from flatnce.extras import require_extra
from flatnce.messages import check_choice, counted, html_card
from flatnce.mi.best import METHODS as BEST_METHODS
from flatnce.mi.best import BestEstimate
from flatnce.mi.cleaning import MESSAGES, Cleaning, CleanTables
from flatnce.mi.fitting import FittedCritic
from flatnce.mi.memory import Memory
from flatnce.mi.readouts import SMALLEST, Evaluation, Readout
from flatnce.toml_files import read_toml


@dataclass(frozen=True)
class Flag:
    """One warning."""

    name: str  #: for programs
    message: str  #: what was observed, and the remedy
    message_in_bits: str = ""  #: the same with information in bits, if it names any
    reason: str = ""  #: of dependent rows: what was found, in a few words

    def said(self, unit: str) -> str:
        """Return the message with information in ``nats`` or ``bits``."""
        return self.message_in_bits or self.message if unit == "bits" else self.message


@dataclass(frozen=True, repr=False)
class Estimate:
    """Mutual information of two tables, with its lower limit and warnings.

    All numbers are in nats. A classical method has no lower limit, p-value or ceiling (NaN), and
    no ``readouts``.
    """

    #: the estimate: a lower bound in expectation, read on rows that neither trained nor stopped
    #: nor calibrated the critic; by chance it may be below 0, which is printed as 0
    nats: float
    method: str  #: how the critic was trained
    readout: str  #: which of ``readouts`` ``nats`` is
    flags: tuple[Flag, ...]  #: warnings
    cleaning: Cleaning  #: what was done to the data
    split: Mapping[str, int]  #: number of rows for training, validation and test, and of folds
    settings: Mapping[str, Any]  #: all settings, for the record
    seconds: float  #: how long it took
    #: the most accurate estimate that this kind of data allows, with a two-sided interval
    best: BestEstimate | None = None
    #: standard error over test rows; it does not include the variation of training
    standard_error: float = math.nan
    lower: float = math.nan  #: one-sided 95 % limit: I(X;Y) is at least this
    p_value: float = math.nan  #: against independence, by permutation
    permutations: int = 0  #: number of permutations
    ceiling: float = math.nan  #: the largest value that this many rows can show
    saturated: bool = False  #: whether the estimate is within 1 nat of the ceiling
    #: every number that was read, by name
    readouts: Mapping[str, Readout] = field(default_factory=dict)
    #: estimates of classical methods (None where one does not apply)
    baselines: Mapping[str, float | None] = field(default_factory=dict)
    history: tuple[Mapping[str, float | int], ...] = ()  #: the validation value during training

    def __repr__(self) -> str:
        raised = f", flags: {', '.join(flag.name for flag in self.flags)}" if self.flags else ""
        return f"<{self.sentence()}{raised}>"

    def _repr_html_(self) -> str:
        """The result in a notebook."""
        lines = (*self.in_other_words(), *self._how("nats"))
        facts = dict(line.split(": ", 1) for line in lines)
        facts["Rows"] = f"{self.cleaning.rows_used:,} of {self.cleaning.rows_given:,}"
        return html_card(self.sentence(), facts, (f"{f.name}: {f.message}" for f in self.flags))

    @property
    def bits(self) -> float:
        """The estimate in bits."""
        return self.nats * unit_factor("bits")

    def flagged(self, name: str) -> bool:
        """Whether a warning was raised, for example ``overfit``."""
        return any(flag.name == name for flag in self.flags)

    @property
    def is_refused(self) -> bool:
        """Whether nothing is certified, because the rows or groups are not independent."""
        return self.flagged("dependent") or self.flagged("parallel")

    def sentence(self, unit: str = "nats") -> str:
        """Return the result in one line, in ``nats`` or ``bits``."""
        factor = unit_factor(unit)
        if not math.isfinite(self.lower):
            nats = number_text(self.nats * factor)
            return f"I(X;Y) ≈ {nats} {unit} ({self.method}; no lower limit)"
        estimate, decimals = _with_error(self.nats * factor, self.standard_error * factor)
        lower, evidence = limit_text(self.lower * factor, decimals), p_value_in_words(self.p_value)
        if self.flagged("dependent"):
            why = next(flag.reason for flag in self.flags if flag.name == "dependent")
            return f"I(X;Y) is not certified: {why} (as if independent: {estimate} {unit})"
        if self.flagged("unresolved"):
            most = "infinite or larger than nearest neighbours can resolve"
            return f"I(X;Y) ≥ {lower} {unit} (95 %), {most}, {evidence}"
        if self.best is None:
            most = f"ceiling {number_text(self.ceiling * factor)}, {evidence}"
            return f"I(X;Y) ≥ {lower} {unit} (95 %), estimate {estimate}, {most}"
        shown = [factor * value for value in (self.best.nats, self.best.low, self.best.high)]
        nats, low, high = (number_text(value, 2 if shown[2] >= 0.1 else 3) for value in shown)
        interval = f"nominal 95 %: {low} to {high}"
        if self._unsized:
            open_size = f"no estimate of its size above 0 ({interval} {unit})"
            return f"Evidence that I(X;Y) > 0 ({evidence}), but {open_size}, certified ≥ {lower}"
        return f"I(X;Y) ≈ {nats} {unit} ({interval}), certified ≥ {lower}, {evidence}"

    @property
    def _unsized(self) -> bool:
        """Whether the test finds a dependence and the best estimate is 0 all the same."""
        return self.best is not None and self.best.nats < SMALLEST and self.p_value <= 0.05

    @property
    def meaning(self) -> dict[str, Any]:
        """What the estimate amounts to, in nats; empty if nothing is certified or estimated.

        ``correlation`` is that of two normal columns with as much information. Of a side that is
        one of few values: its ``entropy``, the ``share`` of it, and by Fano's inequality the
        ``accuracy`` that no prediction of it from the other side exceeds if the information is
        at most the upper end of the interval (1 if there is none).
        """
        if self.flagged("dependent") or self.flagged("unresolved") or self._unsized:
            return {}
        nats = max(self.nats if self.best is None else self.best.nats, 0.0)
        found: dict[str, Any] = {"nats": nats, "bits": nats * unit_factor("bits")}
        found["correlation"] = math.sqrt(-math.expm1(-2 * nats))
        for name, (values, entropy) in self.cleaning.labels.items():
            top = math.inf if self.best is None else self.best.high
            found[name] = {"values": values, "entropy": entropy, "share": min(nats / entropy, 1.0)}
            found[name]["accuracy"] = highest_accuracy(top, entropy, values)
        return found

    def in_other_words(self, unit: str = "nats") -> list[str]:
        """Return :attr:`meaning` as lines, each with a topic."""
        factor, known, lines = unit_factor(unit), self.meaning, []
        if known:
            bits = "" if unit == "bits" else f"{number_text(known['bits'])} bits; "
            alike = known["correlation"]
            near = number_text(alike, _decimals(1 - alike, 2))
            near = near if 1 - alike > SMALLEST else "above 0.999999"
            lines.append(
                f"Meaning: {bits}two normal columns with correlation {near} share as much."
            )
        # Without evidence against 0, as for a few rare rows, a share would be chance.
        sure = self.p_value <= 0.05 or self.best is None or self.best.low > SMALLEST
        for name, label in ((name, known[name]) for name in self.cleaning.labels if known):
            entropy = f"{label['values']} values, {number_text(label['entropy'] * factor)} {unit}"
            said = f"Label {name}: {label['share']:.0%} of its entropy ({entropy})."
            most = math.ceil(100 * label["accuracy"])  # rounded up: an upper limit
            rule = f"no rule can predict it in more than {most}% of rows (Fano)"
            if sure or most < 100:
                lines.append(said + (f" If the interval holds, {rule}." if most < 100 else ""))
        return lines

    def _how(self, unit: str) -> list[str]:
        """How the numbers were found, in lines with a topic each."""
        factor, lines = unit_factor(unit), []
        if self.best is not None:
            lines.append(f"Best estimate: {BEST_METHODS[self.best.method]} ({self.best.why}).")
        primary = self.readouts.get(self.readout)
        if primary is not None:
            value, _ = _with_error(primary.nats * factor, primary.standard_error * factor)
            bound = f"the bound of the critic (a trained network) is {value}"
            on = f"on {self.split['test']} rows that it never saw"
            most = f"at most {number_text(self.ceiling * factor)}"
            lines.append(
                f"{'Not certified' if self.is_refused else 'Certified'}: {bound} {on}, {most}."
            )
        return lines

    def baseline_remark(self, nats: float | None) -> str:
        """Say that a classical estimate is larger than a label's entropy, if it is."""
        for name, (_, entropy) in self.cleaning.labels.items():
            if nats is not None and nats > 1.001 * entropy:
                return f"more than the entropy of {name}, so too high"
        return ""

    def summary(self, unit: str = "nats") -> str:
        """Return the result, warnings, estimates and cleaning as text, in ``nats`` or ``bits``."""
        factor = unit_factor(unit)
        lines = [self.sentence(unit), *self.in_other_words(unit)]
        lines += [f"! {flag.name}: {flag.said(unit)}" for flag in self.flags]
        lines += ["", *self._how(unit)]
        if self.baselines:
            dependent = self.settings.get("groups") or self.settings.get("blocks")
            how = "no bounds; every row taken as independent" if dependent else "no bounds"
            lines += ["", f"Classical estimates for comparison ({how}), in {unit}:"]
        for name, baseline in self.baselines.items():
            shown = "does not apply" if baseline is None else number_text(baseline * factor)
            remark = self.baseline_remark(baseline)
            lines.append(f"  {name:<17} {shown:>10}" + (f"  ({remark})" if remark else ""))
        used, given = self.cleaning.rows_used, self.cleaning.rows_given
        lines += ["", f"Data: {used} of {given} rows; {split_in_words(self.split)}."]
        lines += [f"  {note}" for note in self.cleaning.notes]
        return "\n".join(lines)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Return everything as plain data for JSON, in ``nats`` or ``bits``.

        ``estimate`` is the best estimate, where there is one, and ``critic`` what the critic
        found, which may be below 0, with its ``standard_error``. ``history`` and ``cleaning``
        stay in nats.
        """
        factor, meaning = unit_factor(unit), self.meaning
        for label in (meaning[name] for name in self.cleaning.labels if meaning):
            label["entropy"] *= factor

        def number(value: float | None) -> float | None:
            return None if value is None or not math.isfinite(value) else value * factor

        return {
            "sentence": self.sentence(unit),
            "unit": unit,
            "estimate": number(max(self.nats, 0.0) if self.best is None else self.best.nats),
            "critic": number(self.nats),
            **plain({name: value for name, value in vars(self).items() if name != "nats"}),
            **{name: number(vars(self)[name]) for name in ("standard_error", "lower", "ceiling")},
            "best": None if self.best is None else self.best.plain(factor),
            "meaning": meaning,
            "flags": [{"name": flag.name, "message": flag.said(unit)} for flag in self.flags],
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
        }


def estimate_of(evaluation: Evaluation, flags: tuple[Flag, ...], **rest: Any) -> Estimate:
    """Make the result of an evaluation; InfoNCE is the number that is reported.

    If rows depend on each other nothing is certified: the limit is 0, without a p-value.
    """
    primary = evaluation.readouts["infonce"]
    dependent = any(flag.name == "dependent" for flag in flags)
    if not dependent and evaluation.lower > 0 and evaluation.p_value > 0.05:
        p = p_value_in_words(evaluation.p_value)
        flags += (flag("unconfirmed", p=p) if evaluation.certified else flag("parallel", p=p),)
    return Estimate(
        nats=primary.nats,
        standard_error=primary.standard_error,
        lower=0.0 if dependent else evaluation.certified,
        p_value=math.nan if dependent else evaluation.p_value,
        permutations=evaluation.permutations,
        ceiling=evaluation.ceiling,
        saturated=any(flag.name == "saturated" for flag in flags),
        readout=primary.name,
        flags=flags,
        readouts=evaluation.readouts,
        **rest,
    )


def highest_accuracy(nats: float, entropy: float, values: int) -> float:
    r"""The accuracy that no prediction of a label with m values exceeds, by Fano's inequality.

    A prediction that errs with probability e leaves
    :math:`H(Y) - I(X;Y) \le h(e) + e \log(m - 1)`. The smallest e that satisfies it is found.
    """
    special = require_extra("scipy.special", "Fano's inequality", "mi")
    optimize = require_extra("scipy.optimize", "Fano's inequality", "mi")
    left = min(entropy, math.log(values)) - nats

    def excess(error: float) -> float:
        doubt = float(special.entr(error) + special.entr(1 - error))
        return doubt + error * math.log(values - 1) - left

    if left <= 0:
        return 1.0
    most = 1 - 1 / values
    return 1 - (most if excess(most) <= 0 else float(optimize.brentq(excess, 0.0, most)))


UNITS = ("nats", "bits")


def unit_factor(unit: str) -> float:
    """Return the factor from nats to a unit."""
    check_choice("unit", unit, UNITS)
    return 1 / math.log(2) if unit == "bits" else 1.0


def number_text(value: float, decimals: int = 2) -> str:
    """Format information, as 0 if it is below; what would round to 0 gets two digits."""
    value = max(value, 0.0)
    return f"{value:.3g}" if value >= 1000 else f"{value:.{_decimals(value, decimals)}f}"


def limit_text(value: float, decimals: int) -> str:
    """Format a limit, rounded down so that it is never shown larger than it is; 0 is "0"."""
    decimals = _decimals(value / 2, decimals) if value > SMALLEST else 0
    return number_text(math.floor(value * 10**decimals + 1e-9) / 10**decimals, decimals)


def _decimals(value: float, usual: int) -> int:
    """The usual number of decimals, or as many as two digits of a smaller number need."""
    small = SMALLEST < value < 0.5 * 10**-usual
    return 1 - math.floor(math.log10(value)) if small else usual


def _with_error(value: float, error: float) -> tuple[str, int]:
    """Format a number with its standard error; also return the decimals that were needed."""
    decimals = 2 if error >= 0.0095 or not math.isfinite(error) else _decimals(error, 3)
    return f"{max(value, 0.0):.{decimals}f} ± {number_text(error, decimals)}", decimals


def p_value_in_words(value: float) -> str:
    """Format a p-value: "p < 0.001", "p = 0.031", "p = 0.40"."""
    if value < 0.001:
        return "p < 0.001"
    return f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def split_in_words(split: Mapping[str, int]) -> str:
    """Say which rows trained a critic and which evaluated it."""
    if split.get("folds", 1) > 1:
        return f"{split['folds']} folds, each evaluated by a critic that other folds trained"
    if "train" not in split:
        return "all of them used"
    first = f"{split['train']} trained the critic, {split['validation']} stopped and calibrated it"
    return f"{first}, {split['test']} were evaluated"


# Warnings: their texts are in flags.toml.

FLAGS: dict[str, Any] = read_toml(__file__, "flags.toml")
IN_SHORT: Mapping[str, str] = FLAGS.pop("in_short")
NO_VALUE = (math.nan, math.nan)


def flag(name: str, nats: Mapping[str, float] | None = None, **seen: Any) -> Flag:
    """Fill in what was seen; the numbers in ``nats`` are information."""
    texts = []
    for unit in UNITS:
        factor = unit_factor(unit)
        information = {key: number_text(value * factor) for key, value in (nats or {}).items()}
        texts.append(FLAGS[name].format(**seen, **information, unit=unit))
    return Flag(name, texts[0], texts[1], reason=str(seen.get("reason", "")))


def evaluation_flags(
    evaluation: Evaluation, best: BestEstimate | None = None, ksg: Sequence[float] = NO_VALUE
) -> Iterator[Flag]:
    """Yield warnings about the numbers that were read; ``ksg`` is with its standard error."""
    infonce, ceiling = evaluation.readouts["infonce"], evaluation.ceiling
    if infonce.nats > ceiling - 1:
        yield flag("saturated", {"near": 1.0, "ceiling": ceiling}, rows=min(evaluation.rows))
    if evaluation.ess < 10:
        yield flag("low_ess", ess=evaluation.ess)
    if best is not None and best.high == math.inf:
        yield flag("unresolved")
    elif best is not None:
        found = {"critic": infonce.nats, "ksg": ksg[0], "best": best.nats}
        shown = {name: max(value, 0.0) for name, value in found.items()}
        if shown["critic"] + 3 * infonce.standard_error < best.low:
            yield flag("disagree", shown, method=best.method)
        if shown["ksg"] + 3 * ksg[1] < best.low:
            yield flag("ksg_low", shown, method=best.method)
        if shown["ksg"] - 3 * ksg[1] > best.high:
            yield flag("ksg_high", shown, method=best.method)


def training_flags(
    infonce: Readout, critics: Sequence[FittedCritic], steps: int, train: float, test: float
) -> Iterator[Flag]:
    """Yield warnings about training; ``train`` and ``test`` are InfoNCE on as many rows each."""
    if train - test > 0.5:
        remedy = "" if len(critics) > 1 else "cross-fitting (folds=5) or "
        yield flag("overfit", {"train": train, "test": test}, remedy=f"{remedy}fewer columns")
    off = [critic.scale for critic in critics if not 0.5 <= critic.scale <= 2]
    # A critic that finds nothing is rightly scaled down to nothing.
    if off and infonce.nats > 3 * infonce.standard_error:
        yield flag("scale", scale=off[0])
    diverged = sum(critic.diverged for critic in critics)
    if diverged:
        yield flag("diverged", count=counted(diverged, "critic"))
    if any(critic.step > 0.98 * steps for critic in critics):
        yield flag("unfinished", steps=steps)


def data_flags(tables: CleanTables) -> Iterator[Flag]:
    """Yield warnings about the data, which hold for any method."""
    if tables.tied > 0.5:
        yield flag("ties", column=tables.tied_column, share=tables.tied)
    if tables.duplicates is not None:
        yield flag("duplicates")
    share = 1 - tables.report.rows_used / tables.report.rows_given
    if share > 0.1:
        yield flag("dropped", share=share)
    if tables.repeated and tables.duplicates is None:
        yield flag("repeats", sides=" and of ".join(tables.repeated))
    if tables.shared:
        count, names = counted(len(tables.shared), "column"), ", ".join(tables.shared[:3])
        yield flag("shared", count=count, names=names)


def memory_flags(
    memory: Memory | None, rows: int, blocks: Any = None, independent: bool = False
) -> Iterator[Flag]:
    """Yield the warning that rows, blocks or groups depend on each other, with a remedy."""
    if memory is None:
        return
    each, lag = memory.each, memory.lag
    other = f"the next {each}" if lag == 1 else f"the {each} {lag} {each}s later"
    alike = MESSAGES["far" if memory.is_far else "alike"].format(**vars(memory), other=other)
    seen = {"each": each, "alike": alike[0].upper() + alike[1:], "remedy": memory.remedy(rows)}
    seen["those"] = "groups of one object" if each == "group" else "rows of one person or machine"
    seen["counted"], seen["reason"] = each, f"nearby {each}s are alike"
    seen["why"] = f": a series, or several {each}s of one object? Then"
    if memory.is_far:
        seen["reason"] = f"{each}s {lag} apart are alike"
        seen["why"] = f": several {each}s of one object, or a season? Then"
    elif blocks:
        lasting = f"of {math.ceil(memory.length)} rows" if memory.length else "without an end"
        seen["counted"], seen["reason"] = "block", f"blocks of {blocks} rows are too short"
        seen["why"] = f", and blocks={blocks} is shorter than their memory {lasting}:"
    yield flag("stated", None, **seen) if independent else flag("dependent", None, **seen)


def size_flags(evaluation: Evaluation, units: int, folds: int = 1) -> Iterator[Flag]:
    """Yield warnings about few rows; of that many units in all, each fold needs four."""
    rows = sum(evaluation.rows)
    what = "rows" if 2 * evaluation.units > rows else "groups or blocks"
    remedy = f"Use cross-fitting (folds={min(5, units // 4)}), or add {what}."
    remedy = remedy if folds == 1 else f"Add {what}."
    if rows < 200:
        yield flag("small", {"ceiling": evaluation.ceiling}, rows=rows, remedy=remedy)
    if evaluation.units < min(20, rows):  # fewer units than jackknife groups
        yield flag("few_units", rows=rows, units=evaluation.units, remedy=remedy)
    if evaluation.few_errors and evaluation.certified == evaluation.lower:
        yield flag("few_errors", units=evaluation.units, remedy=remedy)
