"""Table 1 in words: what the paper says of each objective, and what these numbers say."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.reproduce.ways import WAYS

TRUE_BIAS, TRUE_SD = "bias, true critic", "sd, true critic"
TRAINED_BIAS, TRAINED_SD = "bias, trained", "sd, trained"
SPREAD = "gradient's spread"

LOW = 0.1  # of the truth
STEADY, WILD = 0.2, 1.0  # of the gradient's mean length

Row = Mapping[str, Any]


def verdicts(rows: Sequence[Row]) -> dict[str, Any]:
    """The paper's words beside those that one rule gives these numbers."""
    header = ["Objective", "Bias, the paper’s", "Bias, here"]
    header += ["Stability, the paper’s", "Stability, here", "Differs in"]
    lines = []
    for way in WAYS:
        of_way = _of(rows, way.label, way.critic)
        if way.in_paper is None or not of_way:
            continue
        found = _bias(of_way), _stability(of_way)
        differ = [
            name
            for name, said, seen in zip(("bias", "stability"), way.in_paper, found, strict=True)
            if said != seen.partition(" (")[0]
        ]
        name = f"{way.label}, {way.critic} critic"
        cells = [name, way.in_paper[0], found[0], way.in_paper[1], found[1]]
        lines.append([*cells, " and ".join(differ) or "nothing"])
    caption = (
        "The paper's words (Table 1) beside ours by one rule. Bias is low if the value at the "
        f"true critic is off by at most {LOW:.0%} of the truth at every information tried. "
        "Stability is about training: excellent if the length of the gradient varies by at most "
        f"{STEADY:.0%} of its mean at every information tried, poor if by more than "
        f"{WILD:.0%} or if a run is lost, okay between. The rule is ours and was set after a "
        "first look at such numbers: take the words as a summary, not as a test."
    )
    return {"caption": caption, "header": header, "rows": lines}


def sentences(rows: Sequence[Row]) -> dict[str, str]:
    """What came out, each clause from the numbers."""
    top = max(row["variables"]["nats"] for row in rows)
    at_top = [row for row in rows if row["variables"]["nats"] == top]
    values = {
        _name(row): row["measures"]["calibrated InfoNCE"]["mean"]
        for row in at_top
        if row["measures"].get("calibrated InfoNCE", {}).get("mean") is not None
    }
    order = sorted(values, key=lambda name: -values[name])
    lost = [
        f"{_name(row)} at {row['variables']['nats']:g} nats"
        for row in rows
        if (row["measures"].get("unstable") or {"mean": 0})["mean"]
    ]
    return {
        f"Critics at {top:g} nats, calibrated InfoNCE": (
            f"{_listed(order[:3], values)}; at the end {_listed(order[-3:], values)}."
            if order
            else "none: every run diverged."
        ),
        f"Above the truth at the true critic, {top:g} nats": _above(at_top, TRUE_BIAS, top),
        f"Above the truth at its own trained critic, {top:g} nats": (
            _above(at_top, TRAINED_BIAS, top)
        ),
        "Unstable": (", ".join(lost) or "none") + ".",
    }


def _above(rows: Sequence[Row], name: str, truth: float) -> str:
    excess = {_name(row): row["measures"].get(name, {}).get("mean") or 0.0 for row in rows}
    found = [f"{who} by {by:.2f}" for who, by in excess.items() if by > LOW * truth]
    return (", ".join(found) or "none") + "."


def _listed(names: Sequence[str], values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {values[name]:.2f}" for name in names).replace(" -", " −")


def _bias(rows: Sequence[Row]) -> str:
    shares = [
        row["measures"][TRUE_BIAS]["mean"] / row["variables"]["nats"]
        for row in rows
        if row["measures"][TRUE_BIAS]["mean"] is not None
    ]
    if not shares:
        return "not measured"
    worst = max(shares, key=abs)
    word = "Low" if abs(worst) <= LOW else "Large"
    return f"{word} ({worst:+.0%})".replace("-", "−")


def _stability(rows: Sequence[Row]) -> str:
    if any(row["measures"]["unstable"]["mean"] for row in rows):
        return "Poor (a run is lost)"
    means = [row["measures"][SPREAD]["mean"] for row in rows]
    worst = max((mean for mean in means if mean is not None), default=float("inf"))
    word = "Excellent" if worst <= STEADY else "Okay" if worst <= WILD else "Poor"
    return f"{word} ({worst:.0%})"


def _of(rows: Sequence[Row], label: str, critic: str) -> list[Row]:
    return [
        row
        for row in rows
        if (row["variables"]["objective"], row["variables"]["critic"]) == (label, critic)
    ]


def _name(row: Row) -> str:
    return f"{row['variables']['objective']} ({row['variables']['critic']})"
