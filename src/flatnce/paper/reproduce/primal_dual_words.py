"""The failed attempts in pictures and words, from the rows of their table."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.reproduce.attempts import ATTEMPTS, DUALS, Attempt
from flatnce.paper.reproduce.known_pairs import Size
from flatnce.paper.reproduce.pictures import accuracy, axis, bars
from flatnce.paper.reproduce.readings import Values, bar
from flatnce.paper.spread import difference

CALIBRATED, LINEAR, UNSTABLE = "calibrated InfoNCE", "linear top-1, 5 % of labels", "unstable"

# Of a picture: its name, in words, whether alternating, whether with one negative.
KINDS = (
    ("joint", "joint", False, False),
    ("joint-one", "joint, K = 1", False, True),
    ("alternating", "alternating", True, False),
    ("alternating-one", "alternating, K = 1", True, True),
)

Row = Mapping[str, Any]


def gaussians(nats: float) -> str:
    """What rows of one information are called."""
    return f"Gaussians, {nats:g} nats"


def pictures_of(rows: Sequence[Row], size: Size, images: str) -> list[dict[str, Any]]:
    """Calibrated values by information, a picture a kind of training; accuracies in one."""
    found = []
    for name, words, alternating, single in KINDS:
        drawn = [
            bar(label, [_values(rows, gaussians(at), one, CALIBRATED) for at in size.nats], series)
            for series, (label, one) in enumerate(_shown("dot", alternating, single).items())
        ]
        found += bars(
            f"gaussians-{name}",
            f"What critics of Gaussians know, {words}",
            f"InfoNCE among {size.pool:,} held-out pairs at the scale calibrated on others, after "
            f"{size.steps:,} steps of {size.batch} pairs. InfoNCE and FlatNCE have no u.",
            "true information",
            axis("nats"),
            [f"{nats:g} nats" for nats in size.nats],
            drawn,
        )
    drawn = [
        bar(words, [_values(rows, images, one, LINEAR) for one in shown.values()], series)
        for series, (_, words, alternating, single) in enumerate(KINDS)
        if (shown := _shown("cosine", alternating, single))
    ]
    return found + bars(
        "images",
        f"Features of {images} trained with each",
        "Top-1 on the test images of a linear probe with 5 % of the labels, encoder frozen. "
        "InfoNCE and FlatNCE have no u.",
        "objective, or u of FLO",
        accuracy("top-1"),
        list(_shown("cosine", False, False)),
        drawn,
    )


def words_of(rows: Sequence[Row], nats: float, images: str) -> dict[str, str]:
    """Who is ahead of InfoNCE, and what was lost."""
    lost = [
        f"{_label(row)} on {row['variables']['data']}"
        for row in rows
        if row["measures"][UNSTABLE]["mean"]
    ]
    return {
        f"{nats:g} nats, calibrated InfoNCE less that of InfoNCE's critic with all negatives": (
            _against(rows, gaussians(nats), Attempt("infonce"), CALIBRATED, 1.0)
        ),
        f"{images}, linear top-1 with few labels less InfoNCE's, in points": (
            _against(rows, images, Attempt("infonce", "cosine"), LINEAR, 100.0)
        ),
        "Unstable": (", ".join(lost) or "none") + ".",
    }


def _shown(critic: str, alternating: bool, single: bool) -> dict[str, Attempt]:
    return {
        "InfoNCE": Attempt("infonce", critic, single=single),
        "FlatNCE": Attempt("flatnce", "cosine", single=single),
        **{label: Attempt("flo", "dot", u, alternating, single) for u, label in DUALS.items()},
    }


def _values(rows: Sequence[Row], data: str, one: Attempt, measure: str) -> Values:
    """One a seed; none where it was not tried."""
    for row in rows:
        words = {**one.variables, "data": data}
        if data == row["variables"]["data"] and _same(row["variables"], words):
            return list(row["measures"][measure]["values"])
    return [None]


def _same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    # Images have cosines throughout, whatever an attempt has on Gaussians.
    names = ["objective", "u", "training", "negatives"]
    names += ["critic"] if wanted["data"].startswith("Gaussians") else []
    return all(found.get(name) == wanted[name] for name in names)


def _against(rows: Sequence[Row], data: str, base: Attempt, measure: str, factor: float) -> str:
    """Mean differences, best first."""
    usual = _values(rows, data, base, measure)
    gaps = {}
    for one in ATTEMPTS:
        values = _values(rows, data, one, measure)
        if one == base or len(values) != len(usual) or not (one.dual or _fits(one, data)):
            continue
        gap = difference(values, usual)
        if gap["mean"] is not None:
            gaps[one.label] = gap
    order = sorted(gaps, key=lambda name: -gaps[name]["mean"])
    said = [f"{name} {factor * gaps[name]['mean']:+.2f}{_mark(gaps[name])}" for name in order]
    return ("; ".join(said).replace(" -", " −") or "nothing to compare") + "."


def _fits(one: Attempt, data: str) -> bool:
    """Whether its critic is one that these data are given."""
    return data.startswith("Gaussians") or one.critic == "cosine"


def _mark(gap: Mapping[str, Any]) -> str:
    found = [value for value in gap["values"] if value is not None]
    alike = all(value > 0 for value in found) or all(value < 0 for value in found)
    return "" if len(found) < 2 or alike else " (seeds disagree)"


def _label(row: Row) -> str:
    for one in ATTEMPTS:
        if _same(row["variables"], {**one.variables, "data": row["variables"]["data"]}):
            return one.label
    return str(row["variables"]["objective"])
