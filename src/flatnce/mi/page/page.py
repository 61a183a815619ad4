"""The page of an estimate of mutual information: the answer, its flags, and what it rests on."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatnce.mi.estimator.result import unit_factor
from flatnce.mi.page.figures import readouts_figure, training_figure
from flatnce.report.page import Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import capitalised

__all__ = ["mi_page"]

"""What nats are multiplied by."""

MOST_NAMES = 24


def mi_page(
    estimate: Any,
    path: str | Path,
    *,
    unit: str = "nats",
    x_names: Sequence[str] = (),
    y_names: Sequence[str] = (),
    notes: Sequence[str] = (),
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of an estimate and return its path."""
    unit_factor(unit)  # refuses an unknown one before anything is drawn
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    sections = [
        Section("What to make of it", [*_meaning(estimate, unit), *_flags(estimate)]),
        _readings(estimate, unit),
        _training(estimate, unit),
        Section("The data", _data(estimate, x_names, y_names, notes), table=_split(estimate)),
        Section("Settings", table=_settings(estimate), folded=True),
    ]
    facts = {"Method": estimate.method, "Seconds": f"{estimate.seconds:,.1f}"}
    title = "Mutual information of x and y"
    page = Page(
        title,
        estimate.sentence(unit),
        [section for section in sections if section is not None],
        {**facts, **origin_of(environment or {})},
    )
    return write_page(page, place)


def _meaning(estimate: Any, unit: str) -> list[Paragraph]:
    factor = unit_factor(unit)
    nats = estimate.nats * factor
    bound = estimate.readouts.get(estimate.readout)
    lower = "no lower limit comes with this method"
    if estimate.lower is not None and math.isfinite(estimate.lower):
        least = math.floor(1000 * estimate.lower * factor) / 1000  # never said larger than it is
        lower = (
            f"x and y share at least {least:g} {unit}: in 95 of 100 samples like this one, such a "
            "limit lies below the truth"
        )
    said = [Paragraph(f"{capitalised(lower)}.", "Lower limit")]
    about = f"{nats:.3g} ± {estimate.standard_error * factor:.2g} {unit}, {_how(estimate, bound)}."
    said.append(Paragraph(about, "Estimate"))
    if estimate.ceiling is not None and math.isfinite(estimate.ceiling):
        most, near = f"{estimate.ceiling * factor:.3g} {unit}", "the estimate is well below it"
        if estimate.saturated:
            near = "the estimate is near it, so the truth may be larger"
        text = f"With this many rows the method cannot show more than {most}; {near}."
        said.append(Paragraph(text, "Ceiling"))
    if estimate.p_value is not None and math.isfinite(estimate.p_value):
        shuffles = f"{estimate.permutations:,} shuffles of the partners"
        text = f"p = {estimate.p_value:.2g}, from {shuffles}: {_evidence(estimate.p_value)}."
        said.append(Paragraph(text, "Chance"))
    return said


def _how(estimate: Any, readout: Any) -> str:
    name = f"read out as {estimate.readout} on rows that were not trained on"
    if readout is None:
        return f"by {estimate.method}"
    return f"{name}, {'a lower bound in expectation' if readout.is_bound else 'which is no bound'}"


def _evidence(p: float) -> str:
    if p <= 0.01:
        return "chance does not explain it"
    return "chance hardly explains it" if p <= 0.05 else "chance may explain it"


def _flags(estimate: Any) -> list[Paragraph]:
    if not estimate.flags:
        return [Paragraph("None was raised.", "Flags")]
    return [
        Paragraph(flag.message, f"Flag: {flag.name.replace('_', ' ')}") for flag in estimate.flags
    ]


def _readings(estimate: Any, unit: str) -> Section | None:
    factor = unit_factor(unit)
    rows = [
        (
            f"{one.name} (the answer)" if key == estimate.readout else one.name,
            _number(one.nats, factor),
            _number(one.standard_error, factor),
            "yes" if one.is_bound else "no",
            one.note,
        )
        for key, one in estimate.readouts.items()
    ]
    rows += [
        (name, _number(value, factor), "", "no", "baseline, no net")
        for name, value in estimate.baselines.items()
    ]
    if not rows:
        return None
    prose = (
        "The same critic read in several ways, and estimators without one. What is no bound may "
        "lie above the truth; where the readings disagree, trust the lower limit only."
    )
    header = ["Reading", unit, "Standard error", "Lower bound?", "Note"]
    figure = readouts_figure(estimate, unit, factor)
    return Section(
        "Every reading",
        [Paragraph(prose)],
        table=Table(f"Readings in {unit}", header, rows, remarks=True),
        figures=[figure] if figure else [],
    )


def _training(estimate: Any, unit: str) -> Section | None:
    figure = training_figure(estimate, unit, unit_factor(unit))
    if figure is None:
        return None
    prose = (
        "The value on rows that are trained on, and on rows that only decide when to stop. The "
        "answer above comes from neither. A gap between the two is overfitting."
    )
    return Section("While it trained", [Paragraph(prose)], figures=[figure])


def _data(
    estimate: Any,
    x_names: Sequence[str],
    y_names: Sequence[str],
    notes: Sequence[str],
) -> list[Paragraph]:
    cleaning = estimate.cleaning
    used = f"{cleaning.rows_used:,} of {cleaning.rows_given:,} rows were used."
    said = [Paragraph(used, "Rows")]
    for topic, names in (("x", x_names), ("y", y_names)):
        if names:
            said.append(Paragraph(f"{len(names)}: {_listed(names)}.", f"Columns of {topic}"))
    said += [Paragraph(note) for note in (*notes, *cleaning.notes)]
    return said


def _split(estimate: Any) -> Table | None:
    split = estimate.split
    if not split:
        return None
    return Table("How rows were parted", list(split), [[f"{n:,}" for n in split.values()]])


def _settings(estimate: Any) -> Table | None:
    rows = [(str(name), _shown(value)) for name, value in estimate.settings.items()]
    return Table("All settings", ["Setting", "Value"], rows) if rows else None


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown


def _number(value: float | None, factor: float) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value * factor:.3f}".replace("-", "−")
