"""The encoder's portrait on a run's page: similarities, the 2-D picture, nearest neighbours."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatnce.report.chart import Axis, Line
from flatnce.report.gallery import Gallery, Picture
from flatnce.report.page import Paragraph, Section, Table
from flatnce.report.pictured import Curves, Scattered
from flatnce.report.scatter import Cloud

PORTRAIT = "portrait.json"
# Colour and shape of a marker together tell this many kinds apart.
MOST_KINDS = 12
LONGEST_LABEL = 18
KINDS = {"positive": "positives", "negative": "negatives"}

Portrait = Mapping[str, Any]


def portrait_of(directory: Path) -> dict[str, Any] | None:
    """What ``flatnce report`` measured of a run's encoder; None where it has not."""
    path = directory / PORTRAIT
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it and report again") from error
    if not isinstance(found, dict) or "format_version" not in found:
        raise ValueError(f"{path} is no portrait of an encoder; remove it and report again")
    return found


def portrait_pictures(portrait: Portrait) -> list[Curves | Scattered]:
    """Its charts."""
    return [_histogram(portrait), _embedding(portrait)]


def portrait_sections(portrait: Portrait | None, name: str) -> list[Section]:
    """Its part of the page; a hint where there is none."""
    if portrait is None:
        hint = (
            "Similarities of positives and negatives, a picture of the embedding and nearest "
            f"neighbours are measured by `flatnce report {name}`."
        )
        return [Section("The encoder", [Paragraph(hint)])]
    charts = [chart.figure() for chart in portrait_pictures(portrait)]
    sections = [Section("The encoder", [Paragraph(_looked_at(portrait))], figures=charts)]
    if portrait["neighbours"]:
        shown = Section("Nearest neighbours", _agreement(portrait), gallery=_gallery(portrait))
        sections.append(shown)
    return sections


def _looked_at(portrait: Portrait) -> str:
    kept = "" if portrait["part"] == "test" else ", as none with labels are held out"
    return (
        f"The checkpoint of step {portrait['step']:,}, seen through {portrait['images']:,} "
        f"{portrait['part']} images of {portrait['data']}{kept}."
    )


def _histogram(portrait: Portrait) -> Curves:
    found = portrait["similarities"]
    edges = found["edges"]
    lines = [
        Line(label, *_steps(edges, found[kind]), None, series, filled=True)
        for series, (kind, label) in enumerate(KINDS.items())
    ]
    rows = [
        (f"{low:.2f} to {high:.2f}", f"{100 * yes:.2f}", f"{100 * no:.2f}")
        for low, high, yes, no in zip(
            edges, edges[1:], found["positive"], found["negative"], strict=False
        )
    ]
    table = Table("Share of pairs by cosine, %", ["Cosine", *KINDS.values()], rows)
    means = (
        f"Positives have cosine {found['positive_mean']:.2f} on average, negatives "
        f"{found['negative_mean']:.2f}."
    )
    return Curves(
        "similarities",
        "Similarity of positives and negatives",
        "Cosines of the embeddings that the loss compares: two views of one image, and views of "
        f"different images. {means} The less they overlap, the easier a positive is found.",
        f"Two histograms of cosines from -1 to 1. {means}",
        lines,
        Axis("cosine"),
        Axis("share of pairs (%)", low=0.0, factor=100.0),
        table,
    )


def _steps(edges: Sequence[float], shares: Sequence[float]) -> tuple[list[float], list[float]]:
    """The outline of a histogram, from its first bin that holds something to its last."""
    filled = [number for number, share in enumerate(shares) if share > 0]
    bins = range(filled[0], filled[-1] + 1) if filled else range(len(shares))
    across = [edge for n in bins for edge in (edges[n], edges[n + 1])]
    up = [share for n in bins for share in (shares[n], shares[n])]
    return [across[0], *across, across[-1]], [0.0, *up, 0.0]


def _embedding(portrait: Portrait) -> Scattered:
    found, classes = portrait["projection"], portrait["classes"]
    names = _kinds(found["labels"], classes) or ["images"] * len(found["x"])
    shares = found["shares"]
    axes = [
        f"{found['method']} {number + 1}"
        + (f" ({100 * shares[number]:.0f} % of the variance)" if shares else "")
        for number in range(2)
    ]
    order = dict.fromkeys([*classes, *sorted(set(names))])
    clouds: list[Cloud] = []
    for name in (one for one in order if one in set(names)):
        mine = [number for number, other in enumerate(names) if other == name]
        across, up = ([found[axis][n] for n in mine] for axis in ("x", "y"))
        clouds.append(Cloud(_short(name), across, up, len(clouds)))
    rows = [
        (str(number + 1), name, f"{x:.3f}", f"{y:.3f}")
        for number, (name, x, y) in enumerate(zip(names, found["x"], found["y"], strict=True))
    ]
    how = "straight down onto their two widest axes" if shares else "so that near stays near"
    colours = "one colour and shape a class" if classes else "they have no labels"
    return Scattered(
        "embedding",
        "The embedding in two dimensions",
        f"Features of the backbone, of length 1, laid out {how} ({found['method']}); {colours}. "
        "Labels took no part in it. Much is lost on the way to two dimensions: classes that "
        "overlap here may be apart.",
        f"{len(names)} points by {found['method']}, in {len(clouds)} kinds: "
        f"{', '.join(cloud.label for cloud in clouds)}.",
        clouds,
        Axis(axes[0]),
        Axis(axes[1]),
        Table("Where each image lies", ["Image", "Class", *axes], rows),
    )


def _short(name: str) -> str:
    """A name that has room beside a chart; the table has it whole."""
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1].rstrip()}…"


def _kinds(labels: Sequence[int] | None, classes: Sequence[str]) -> list[str]:
    """What each point is called: its class, or that it is one of many rarer ones."""
    if labels is None:
        return []
    called = [classes[label] for label in labels]
    counts = Counter(called)
    if len(counts) <= MOST_KINDS:
        return called
    kept = {name for name, _ in counts.most_common(MOST_KINDS - 1)}
    return [name if name in kept else "other classes" for name in called]


def _agreement(portrait: Portrait) -> list[Paragraph]:
    same = portrait["nearest_same"]
    text = "By cosine of the backbone's features, among the images looked at."
    if same is not None:
        text += f" The nearest image is of the same class in {100 * same:.1f} % of all cases."
    return [Paragraph(text)]


def _gallery(portrait: Portrait) -> Gallery:
    queries = portrait["neighbours"]
    ordinals = [f"nearest {n + 1}" for n in range(len(queries[0]["neighbours"]))]
    rows = [
        [
            Picture(query["picture"] or "", query["label"] or "", _words("image", query)),
            *(_neighbour(query, near) for near in query["neighbours"]),
        ]
        for query in queries
    ]
    mark = "; ≠ marks another class" if portrait["classes"] else ""
    caption = f"A few images and their nearest neighbours with their cosines{mark}"
    return Gallery(caption, ["image", *ordinals], rows)


def _neighbour(query: Mapping[str, Any], near: Mapping[str, Any]) -> Picture:
    other = query["label"] != near["label"]
    label = near["label"] or ""
    text = f"{'≠ ' if other else ''}{label} {near['similarity']:.2f}".strip()
    return Picture(near["picture"] or "", text, _words("neighbour", near), other)


def _words(what: str, one: Mapping[str, Any]) -> str:
    return f"{what} of class {one['label']}" if one["label"] else what
