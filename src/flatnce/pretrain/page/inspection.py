"""Inspection of a run's encoder: similarities of pairs, a projection to 2-D, nearest neighbours.

:func:`inspect_encoder` measures once and writes ``portrait.json`` into the run's directory, so
that a page needs neither the checkpoint nor the images.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.environment import plain
from flatnce.extras import require_extra
from flatnce.files import read_json, replace_text
from flatnce.messages import check_at_least
from flatnce.pretrain.data import FolderSet, OwnSet, permutation
from flatnce.pretrain.data.own_set import AnySet
from flatnce.pretrain.evaluation import Bench, Options
from flatnce.pretrain.page import TEXT
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import FORMAT_VERSION, SHAPES
from flatnce.pretrain.training.images import load_images, views_of
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import CHECKPOINTS, load_encoder
from flatnce.report.charts import Axis, Line, line_chart, scatter_chart
from flatnce.report.page import Figure, Gallery, Paragraph, Picture, Section, Table

__all__ = ["inspect_encoder", "is_current"]

FILE = "portrait.json"
SEED = 0  # of every draw
QUERIES, NEIGHBOURS = 6, 5  # images whose nearest neighbours are shown, and how many of each
KINDS = {"positive": "positives", "negative": "negatives"}


def inspect_encoder(
    directory: str | Path,
    *,
    images: int = 1000,
    pictures: bool = True,
    step: int | None = None,
    device: str = "auto",
) -> Path:
    """Inspect a run's encoder, write ``portrait.json`` into its directory, return its path.

    Arguments:
        directory: The run.
        images: Images drawn from the test set.
        pictures: Whether to keep small pictures of neighbours, beside their labels.
        step: Which checkpoint; the newest by default.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
    """
    check_at_least("images", images, 10)
    run = load_encoder(directory, step, choose_device(device))
    bench = Bench(run, Options(workers=run.config.data.workers))
    some, part = _images(bench, images)
    labels = some.labels.tolist() if int(some.labels.min()) >= 0 else None
    rows = normalize(bench.extract(some).features, dim=1).cpu()
    found = {
        "format_version": FORMAT_VERSION,
        "step": run.step,
        "data": bench.data,
        "part": part,
        "images": len(some),
        "options": {"images": images, "pictures": pictures},
        "classes": list(some.classes) if labels is not None else [],
        "similarities": _similarities(bench, some),
        "projection": {**project(rows), "labels": labels},
        **_neighbours(some, rows, labels, pictures),
    }
    path = Path(directory) / FILE
    replace_text(path, json.dumps(plain(found), allow_nan=False) + "\n")
    return path


def is_current(directory: str | Path, step: int | None, **options: int | bool) -> bool:
    """Whether the inspection is of this checkpoint and was made with these options."""
    place = Path(directory)
    try:
        found = read_inspection(place) or {}
    except ValueError:
        return False
    kept = checkpoint.steps(place / CHECKPOINTS)
    wanted = kept[-1] if step is None and kept else step
    return found.get("step") == wanted and found.get("options") == options


def read_inspection(directory: Path) -> dict[str, Any] | None:
    """What was measured of a run's encoder; None if it was not inspected."""
    path = directory / FILE
    if not path.exists():
        return None
    return read_json(path, SHAPES["portrait"], "remove it and report again", FORMAT_VERSION)


def _images(bench: Bench, count: int) -> tuple[AnySet, str]:
    """Some test images; of a set without labels, or too small for a test part, training images."""
    source, part = load_images(bench.run.config.data), "training"
    if int(source.labels.min()) >= 0:
        with suppress(ValueError):  # no held-out part
            source = bench.load(bench.data, "test")
            held = bench.part(bench.data, "test")["split"] == "held out of train"
            part = "held-out training" if held else "test"
    return source.subset(permutation(len(source), SEED)[:count]), part


def _similarities(bench: Bench, images: AnySet) -> dict[str, Any]:
    """Histograms of the cosines between two views of one image, and of different images."""
    images = bench.with_views(images)
    # Beside the seeds of training and of watching, so that these views are new.
    views = replace(views_of(bench.run.config, bench.run.size, images), seed=2**34 + SEED)
    z1, z2 = bench.embed(images, views)
    cosines = (normalize(z1.float(), dim=1) @ normalize(z2.float(), dim=1).T).cpu()
    if not bool(cosines.isfinite().all()):
        raise ValueError(TEXT["not_finite"])
    same = torch.eye(len(cosines), dtype=torch.bool)
    kinds = {"positive": cosines[same], "negative": cosines[~same]}
    edges = torch.linspace(-1, 1, 51)
    found: dict[str, Any] = {"edges": [round(float(edge), 4) for edge in edges]}
    for name, values in kinds.items():
        # Rounding may give a cosine just above 1, which a histogram would leave out.
        counts = torch.histc(values.clamp(-1, 1), 50, -1, 1)
        found[name] = [round(float(c) / len(values), 6) for c in counts]
        found[f"{name}_pairs"] = len(values)
        found[f"{name}_mean"] = float(values.mean())
    return found


def _neighbours(
    images: AnySet, rows: Float[Tensor, "n d"], labels: list[int] | None, pictures: bool
) -> dict[str, Any]:
    """Nearest neighbours of a few images; the share of nearest images with the same label."""
    likeness = rows @ rows.T
    likeness.fill_diagonal_(-torch.inf)
    best = likeness.topk(min(NEIGHBOURS, len(rows) - 1), dim=1)

    def shown(number: int) -> dict[str, Any]:
        label = None if labels is None else images.classes[labels[number]]
        picture = picture_of(images, number) if pictures else None
        return {"label": label, "picture": picture}

    queries = []
    order = list(range(len(rows)))
    if labels is not None:  # the first image of each class, then further images
        first = sorted(labels.index(label) for label in set(labels))
        order = [*first, *(number for number in order if number not in set(first))]
    for number in order[:QUERIES]:
        near = zip(best.indices[number].tolist(), best.values[number].tolist(), strict=True)
        found = [{**shown(other), "similarity": round(cosine, 4)} for other, cosine in near]
        queries.append({**shown(number), "neighbours": found})
    if labels is None:
        return {"neighbours": queries, "nearest_same": None}
    classes = torch.tensor(labels)
    same = float((classes[best.indices[:, 0]] == classes).float().mean())
    return {"neighbours": queries, "nearest_same": same}


def picture_of(images: AnySet, number: int) -> str | None:
    """One image of a set as a ``data:`` address, at most 64 pixels wide and high."""
    if isinstance(images, OwnSet):
        if images.prepare is not None or images.stage == "views":  # perhaps not a picture
            return None
        images, number = images.subset([number]).decoded(min(64, *images.shape[1:])), 0
    pixels = images.decode(number) if isinstance(images, FolderSet) else images.images[number]
    image = require_extra("PIL.Image", "pictures of neighbours")
    # Channels last for colour, none for grey.
    shown = image.fromarray(pixels.cpu().permute(1, 2, 0).squeeze(2).contiguous().numpy())
    shown.thumbnail((64, 64))
    kind = "PNG" if max(shown.size) <= 40 else "JPEG"  # small enough without loss
    buffer = io.BytesIO()
    shown.save(buffer, kind, **({"optimize": True} if kind == "PNG" else {"quality": 80}))
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def project(rows: Tensor) -> dict[str, Any]:
    """Two principal components per row, and the share of the variance of each."""
    centred = rows.double() - rows.double().mean(0)
    _, spans, axes = torch.linalg.svd(centred, full_matrices=False)
    shares = (spans.square() / spans.square().sum().clamp_min(1e-30))[:2].tolist()
    # The sign of an axis is arbitrary: make its largest entry positive.
    signs = axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()
    placed = centred @ (axes[:2] * signs).T
    # Adding zero turns a rounded -0.0 into 0.0.
    across, up = ([round(float(v), 4) + 0.0 for v in column] for column in placed.T)
    return {"method": "PCA", "shares": shares, "x": across, "y": up}


def inspection_sections(found: dict[str, Any] | None, name: str) -> tuple[Section, list[Section]]:
    """The sections about the encoder and of its neighbours; a hint if it was not inspected."""
    if found is None:
        hint = Paragraph(TEXT["not_inspected"].format(name=name))
        return Section("The encoder", [hint]), []
    try:
        about = Paragraph(TEXT["inspected"].format(**found))
        encoder = Section("The encoder", [about], figures=[_histogram(found), _embedding(found)])
        return encoder, [_neighbour_section(found)] if found["neighbours"] else []
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(TEXT["damaged"].format(FILE, name, error)) from error


def _neighbour_section(found: dict[str, Any]) -> Section:
    text, same = TEXT["neighbours"].format(**found), found["nearest_same"]
    if same is not None:
        text += f" The nearest image is of the same class in {100 * same:.1f} % of all cases."
    rows = []
    for query in found["neighbours"]:
        shown = [_picture(query, query["label"] or "")]
        for near in query["neighbours"]:
            other = near["label"] != query["label"]
            said = f"{'≠ ' if other else ''}{near['label'] or ''} {near['similarity']:.2f}"
            shown.append(_picture(near, said.strip(), other))
        rows.append(shown)
    header = ["sample", *(f"nearest {n + 1}" for n in range(len(rows[0]) - 1))]
    caption = "A few samples and their nearest neighbours with cosines; ≠ marks another class"
    gallery = Gallery(caption, header, rows)
    return Section("Nearest neighbours", [Paragraph(text)], gallery=gallery)


def _histogram(inspection: dict[str, Any]) -> Figure:
    found = inspection["similarities"]
    bins = list(zip(found["edges"], found["edges"][1:], strict=False))
    middles = [(low + high) / 2 for low, high in bins]
    lines = [
        Line(label, middles, found[kind], None, series, filled=True)
        for series, (kind, label) in enumerate(KINDS.items())
    ]
    rows = [
        (f"{low:.2f} to {high:.2f}", f"{100 * yes:.2f}", f"{100 * no:.2f}")
        for (low, high), yes, no in zip(bins, found["positive"], found["negative"], strict=True)
    ]
    means = TEXT["means"].format(**found)
    title = "Similarity of positives and negatives"
    chart = line_chart(
        "chart-similarities",
        title,
        f"Two histograms of cosines from -1 to 1. {means}",
        lines,
        Axis("cosine"),
        Axis("share of pairs (%)", low=0.0, factor=100.0),
    )
    caption = TEXT["similarities"].format(means=means)
    table = Table("Share of pairs by cosine, %", ["Cosine", *KINDS.values()], rows)
    return Figure(title, chart, caption, table)


def _embedding(inspection: dict[str, Any]) -> Figure:
    found, classes = inspection["projection"], inspection["classes"]
    names = ["samples"] * len(found["x"])
    if found["labels"] is not None:
        names = [classes[label] for label in found["labels"]]
    # Colour and marker together can distinguish twelve kinds.
    common = [name for name, _ in Counter(names).most_common(12 if len(set(names)) <= 12 else 11)]
    names = [name if name in common else "other classes" for name in names]
    method, shares = found["method"], enumerate(found["shares"], start=1)
    axes = [f"{method} {n} ({100 * share:.0f} % of the variance)" for n, share in shares]
    clouds: list[Line] = []
    for name in (one for one in [*classes, "samples", "other classes"] if one in names):
        mine = [number for number, other in enumerate(names) if other == name]
        across, up = ([found[axis][n] for n in mine] for axis in ("x", "y"))
        short = name if len(name) <= 18 else f"{name[:17]}…"  # what fits beside a chart
        clouds.append(Line(short, across, up, series=len(clouds)))
    title = "The embedding in two dimensions"
    kinds = ", ".join(cloud.label for cloud in clouds)
    chart = scatter_chart(
        "chart-embedding",
        title,
        f"{len(names)} points by {method}, in {len(clouds)} kinds: {kinds}.",
        clouds,
        Axis(axes[0]),
        Axis(axes[1]),
    )
    caption = TEXT["embedding"].format(method=method)
    rows = [
        (str(number + 1), name, f"{x:.3f}", f"{y:.3f}")
        for number, (name, x, y) in enumerate(zip(names, found["x"], found["y"], strict=True))
    ]
    table = Table("Position of each image", ["Image", "Class", *axes], rows)
    return Figure(title, chart, caption, table)


def _picture(one: Mapping[str, Any], text: str, marked: bool = False) -> Picture:
    words = f"image of class {one['label']}" if one["label"] else "image"
    return Picture(one["picture"] or "", text, words, marked)
