"""Inspection of a run's encoder: similarities of pairs, a projection to 2-D, nearest neighbours.

:func:`inspect_encoder` measures once and writes ``portrait.json`` into the run's directory, so
that a page needs neither the checkpoint nor the images. It uses test images if the set has
labels. :func:`inspection_sections` is the part of the page.
"""

import base64
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.environment import plain
from flatnce.extras import require_extra
from flatnce.pretrain.data import FolderSet, ImageSet, permutation
from flatnce.pretrain.evaluation import Bench, Options, embed_views, extract
from flatnce.pretrain.evaluation.run_evaluation import own_data, subject_of
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import FORMAT_VERSION, read_run
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.images import load_images, views_of
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import CHECKPOINTS, LoadedEncoder, load_encoder
from flatnce.report.charts import Axis, Line, line_chart, scatter_chart
from flatnce.report.page import Figure, Gallery, Paragraph, Picture, Section, Table

__all__ = ["InspectionOptions", "inspect_encoder", "is_current"]

PORTRAIT = "portrait.json"
BINS = 50
# Beside the seeds of training and of watching, so that these views are new.
UNSEEN_VIEWS = 2**34
# Side of a picture in pixels; up to the second one it is small enough without loss.
LARGEST_PICTURE, LARGEST_LOSSLESS = 64, 40
# The number of classes that colour and marker together can distinguish.
MOST_KINDS = 12
LONGEST_LABEL = 18
KINDS = {"positive": "positives", "negative": "negatives"}

Portrait = Mapping[str, Any]


@dataclass(frozen=True)
class InspectionOptions:
    """How much of the encoder is inspected.

    Arguments:
        images: Images drawn from the test set.
        projection: Of the 2-D picture: pca, umap, or auto for UMAP where it is installed.
        queries: Images whose nearest neighbours are shown.
        neighbours: How many of each.
        pictures: Keep small pictures of them; --no-pictures keeps only their labels.
        seed: Of every draw.
    """

    images: int = 1000
    projection: str = "auto"
    queries: int = 6
    neighbours: int = 5
    pictures: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 10:
            raise ValueError(f"images={self.images} must be at least 10")
        if self.projection not in ("auto", "pca", "umap"):
            raise ValueError(f"projection={self.projection!r} must be auto, pca or umap")
        for name in ("queries", "neighbours"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


def inspect_encoder(
    directory: str | Path,
    options: InspectionOptions | None = None,
    *,
    step: int | None = None,
    device: str = "auto",
    report: Callable[[str], None] | None = None,
) -> Path:
    """Inspect a run's encoder, write ``portrait.json`` into its directory, return its path.

    Arguments:
        directory: The run.
        options: How much is inspected.
        step: Which checkpoint; the newest by default.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        report: Called with a line about what is being done.
    """
    asked, tell = options or InspectionOptions(), report or (lambda line: None)
    run = load_encoder(directory, step, choose_device(device))
    tell("loading images")
    images, part = _images(run, asked)
    tell(f"looking at {len(images)} images")
    labels = _labels(images)
    rows = _features(run, images)
    portrait = {
        "format_version": FORMAT_VERSION,
        "step": run.step,
        "data": own_data(run.config),
        "part": part,
        "images": len(images),
        "options": asdict(asked),
        "classes": list(images.classes) if labels is not None else [],
        "similarities": _similarities(run, images, asked.seed),
        "projection": {**project(rows, asked.projection, asked.seed), "labels": labels},
        **_neighbours(images, rows, labels, asked),
        "memory": _memory(run, read_run(directory).environment.get("processes", 1)),
    }
    path = Path(directory) / PORTRAIT
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(plain(portrait), allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def is_current(directory: str | Path, options: InspectionOptions, step: int | None = None) -> bool:
    """Whether the portrait is of this checkpoint and was made with these options."""
    place = Path(directory)
    try:
        portrait = read_portrait(place) or {}
    except ValueError:
        return False
    kept = checkpoint.steps(place / CHECKPOINTS)
    wanted = kept[-1] if step is None and kept else step
    return portrait.get("step") == wanted and portrait.get("options") == asdict(options)


def read_portrait(directory: Path) -> dict[str, Any] | None:
    """What was measured of a run's encoder; None if it was not inspected."""
    path = directory / PORTRAIT
    if not path.is_file():
        return None
    try:
        portrait = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it and report again") from error
    if not isinstance(portrait, dict) or "format_version" not in portrait:
        raise ValueError(f"{path} is not a portrait of an encoder; remove it and report again")
    return portrait


def _images(run: LoadedEncoder, asked: InspectionOptions) -> tuple[ImageSet | FolderSet, str]:
    """Some test images; for a set without labels, some training images."""
    config = run.config
    options = Options(root=config.data.root, skip_unreadable=config.data.skip_unreadable)
    source: ImageSet | FolderSet
    try:
        source, part = Bench(subject_of(run), options).load(own_data(config), "test"), "test"
    except ValueError:  # no labels, so no held-out part
        source, part = load_images(config.data), "training"
    return source.subset(permutation(len(source), asked.seed)[: asked.images]), part


def _labels(images: ImageSet | FolderSet) -> list[int] | None:
    """One class number per image; None without labels, or with several per image."""
    if images.labels.ndim != 1 or int(images.labels.min()) < 0:
        return None
    return [int(label) for label in images.labels]


def _features(run: LoadedEncoder, images: ImageSet | FolderSet) -> Float[Tensor, "n d"]:
    """Normalised features of the backbone."""
    mean, std = run.normalisation
    features = extract(
        run.encoder.backbone,
        images,
        size=run.size,
        mean=tuple(mean),
        std=tuple(std),
        channels=run.channels,
        workers=run.config.data.workers,
    )
    return normalize(features.features, dim=1).cpu()


def _similarities(run: LoadedEncoder, images: ImageSet | FolderSet, seed: int) -> dict[str, Any]:
    """Histograms of the cosines between two views of one image, and of different images."""
    views = replace(views_of(run.config, run.size), seed=UNSEEN_VIEWS + seed)
    workers = run.config.data.workers
    z1, z2 = embed_views(run.encoder, images, views, run.channels, workers)
    cosines = (normalize(z1.float(), dim=1) @ normalize(z2.float(), dim=1).T).cpu()
    if not bool(cosines.isfinite().all()):
        raise ValueError(
            "the embeddings hold NaN or infinite values: the network has diverged; name an "
            "earlier checkpoint with step"
        )
    same = torch.eye(len(cosines), dtype=torch.bool)
    kinds = {"positive": cosines[same], "negative": cosines[~same]}
    edges = torch.linspace(-1, 1, BINS + 1)
    found: dict[str, Any] = {"edges": [round(float(edge), 4) for edge in edges]}
    for name, values in kinds.items():
        # Rounding may give a cosine just above 1, which a histogram would leave out.
        counts = torch.histc(values.clamp(-1, 1), BINS, -1, 1)
        found[name] = [round(float(c) / len(values), 6) for c in counts]
        found[f"{name}_pairs"] = len(values)
        found[f"{name}_mean"] = float(values.mean())
    return found


def _neighbours(
    images: ImageSet | FolderSet,
    rows: Float[Tensor, "n d"],
    labels: list[int] | None,
    asked: InspectionOptions,
) -> dict[str, Any]:
    """Nearest neighbours of a few images; the share of nearest images with the same label."""
    likeness = rows @ rows.T
    likeness.fill_diagonal_(-torch.inf)
    best = likeness.topk(min(asked.neighbours, len(rows) - 1), dim=1)

    def shown(number: int) -> dict[str, Any]:
        label = None if labels is None else images.classes[labels[number]]
        picture = picture_of(images, number) if asked.pictures else None
        return {"label": label, "picture": picture}

    queries = []
    for number in _queries(labels, len(rows), asked.queries):
        near = zip(best.indices[number].tolist(), best.values[number].tolist(), strict=True)
        found = [{**shown(other), "similarity": round(cosine, 4)} for other, cosine in near]
        queries.append({**shown(number), "neighbours": found})
    if labels is None:
        return {"neighbours": queries, "nearest_same": None}
    classes = torch.tensor(labels)
    same = float((classes[best.indices[:, 0]] == classes).float().mean())
    return {"neighbours": queries, "nearest_same": same}


def _queries(labels: list[int] | None, count: int, wanted: int) -> list[int]:
    """The first image of each class, in the order drawn; then further images."""
    order = list(range(count))
    if labels is not None:
        first = sorted(labels.index(label) for label in set(labels))
        order = [*first, *(i for i in order if i not in set(first))]
    return order[:wanted]


def _memory(run: LoadedEncoder, processes: int) -> dict[str, int]:
    """What one process of training was expected to hold, by kind, in bytes."""
    found = estimate_run(run.config, next(run.encoder.parameters()).device, processes)
    return {
        "images": found.data_bytes,
        "weights": found.model_bytes,
        "activations": found.activation_bytes,
        "loss": found.loss_bytes,
    }


def picture_of(images: ImageSet | FolderSet, number: int) -> str:
    """One image of a set as a ``data:`` address, at most 64 pixels wide and high.

    Examples:
        >>> import torch
        >>> pixels = torch.zeros((1, 1, 8, 8), dtype=torch.uint8)
        >>> picture_of(ImageSet(pixels, torch.tensor([0]), ("a",)), 0)[:22]
        'data:image/png;base64,'
    """
    pixels = images.decode(number) if isinstance(images, FolderSet) else images.images[number]
    image = require_extra("PIL.Image", "pictures of neighbours")
    shown = image.fromarray(_last(pixels))
    shown.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    kind = "PNG" if max(shown.size) <= LARGEST_LOSSLESS else "JPEG"
    buffer = io.BytesIO()
    shown.save(buffer, kind, **({"optimize": True} if kind == "PNG" else {"quality": 80}))
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def _last(pixels: Tensor) -> Any:
    """Channels last for colour, none for grey."""
    moved = pixels.cpu()
    return (moved[0] if moved.shape[0] == 1 else moved.permute(1, 2, 0)).contiguous().numpy()


def project(rows: Tensor, method: str = "auto", seed: int = 0) -> dict[str, Any]:
    """Two coordinates per row, the method, and the share of the variance of each coordinate.

    Examples:
        >>> import torch
        >>> found = project(torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]), "pca")
        >>> found["x"], [round(share, 2) for share in found["shares"]]
        ([-2.0, 0.0, 2.0], [1.0, 0.0])
    """
    if rows.ndim != 2 or len(rows) < 3 or not bool(rows.isfinite().all()):
        raise ValueError(
            f"rows has shape {tuple(rows.shape)} or holds NaN; pass at least 3 finite rows "
            "(n, width)"
        )
    there = find_spec("umap") is not None
    if method == "umap" and not there:
        raise ValueError(
            "projection='umap' needs umap-learn, which is not installed: pip install umap-learn, "
            "or use projection='pca'"
        )
    if method == "pca" or not there:
        return {"method": "PCA", **_principal(rows)}
    mapper = import_module("umap").UMAP(random_state=seed, n_jobs=1)
    placed = torch.as_tensor(mapper.fit_transform(rows.numpy()))
    return {"method": "UMAP", "shares": None, **_coordinates(placed)}


def _principal(rows: Float[Tensor, "n d"]) -> dict[str, Any]:
    centred = rows.double() - rows.double().mean(0)
    _, spans, axes = torch.linalg.svd(centred, full_matrices=False)
    # The sign of an axis is arbitrary: make its largest entry positive.
    largest = axes.abs().argmax(1, keepdim=True)
    axes = axes * axes.gather(1, largest).sign()
    variance = spans.square()
    shares = (variance / variance.sum().clamp_min(1e-30))[:2].tolist()
    return {"shares": [float(share) for share in shares], **_coordinates(centred @ axes[:2].T)}


def _coordinates(placed: Float[Tensor, "n 2"]) -> dict[str, Any]:
    # Adding zero turns a rounded -0.0 into 0.0.
    across, up = ([round(float(v), 4) + 0.0 for v in column] for column in placed.T)
    return {"x": across, "y": up}


def inspection_figures(portrait: Portrait) -> list[Figure]:
    """The histogram of similarities and the projection of the embedding."""
    return [_histogram(portrait), _embedding(portrait)]


def inspection_sections(portrait: Portrait | None, name: str) -> list[Section]:
    """The sections about the encoder; a hint if it was not inspected."""
    if portrait is None:
        hint = (
            "Similarities of positives and negatives, a picture of the embedding and nearest "
            f"neighbours are measured by `flatnce report {name}`."
        )
        return [Section("The encoder", [Paragraph(hint)])]
    kept = "" if portrait["part"] == "test" else ", as none with labels are held out"
    about = (
        f"The checkpoint of step {portrait['step']:,}, seen through {portrait['images']:,} "
        f"{portrait['part']} images of {portrait['data']}{kept}."
    )
    figures = inspection_figures(portrait)
    sections = [Section("The encoder", [Paragraph(about)], figures=figures)]
    if portrait["neighbours"]:
        text = "By cosine of the backbone's features, among the images looked at."
        same = portrait["nearest_same"]
        if same is not None:
            text += f" The nearest image is of the same class in {100 * same:.1f} % of all cases."
        gallery = _gallery(portrait)
        sections.append(Section("Nearest neighbours", [Paragraph(text)], gallery=gallery))
    return sections


def _histogram(portrait: Portrait) -> Figure:
    found = portrait["similarities"]
    edges = found["edges"]
    lines = [
        Line(label, *_outline(edges, found[kind]), None, series, filled=True)
        for series, (kind, label) in enumerate(KINDS.items())
    ]
    rows = [
        (f"{low:.2f} to {high:.2f}", f"{100 * yes:.2f}", f"{100 * no:.2f}")
        for low, high, yes, no in zip(
            edges, edges[1:], found["positive"], found["negative"], strict=False
        )
    ]
    means = (
        f"Positives have cosine {found['positive_mean']:.2f} on average, negatives "
        f"{found['negative_mean']:.2f}."
    )
    title = "Similarity of positives and negatives"
    chart = line_chart(
        "chart-similarities",
        title,
        f"Two histograms of cosines from -1 to 1. {means}",
        lines,
        Axis("cosine"),
        Axis("share of pairs (%)", low=0.0, factor=100.0),
    )
    caption = (
        "Cosines of the embeddings that the loss compares: two views of one image, and views of "
        f"different images. {means} The less they overlap, the easier a positive is found."
    )
    table = Table("Share of pairs by cosine, %", ["Cosine", *KINDS.values()], rows)
    return Figure(title, chart, caption, table)


def _outline(edges: Sequence[float], shares: Sequence[float]) -> tuple[list[float], list[float]]:
    """The outline of a histogram, from its first to its last bin that is not empty."""
    filled = [number for number, share in enumerate(shares) if share > 0]
    bins = range(filled[0], filled[-1] + 1) if filled else range(len(shares))
    across = [edge for n in bins for edge in (edges[n], edges[n + 1])]
    up = [share for n in bins for share in (shares[n], shares[n])]
    return [across[0], *across, across[-1]], [0.0, *up, 0.0]


def _embedding(portrait: Portrait) -> Figure:
    found, classes = portrait["projection"], portrait["classes"]
    names = _kinds(found["labels"], classes) or ["images"] * len(found["x"])
    method, shares = found["method"], found["shares"]
    axes = [f"{method} 1", f"{method} 2"]
    if shares:
        axes = [
            f"{axis} ({100 * share:.0f} % of the variance)"
            for axis, share in zip(axes, shares, strict=True)
        ]
    clouds: list[Line] = []
    for name in (one for one in dict.fromkeys([*classes, *sorted(set(names))]) if one in names):
        mine = [number for number, other in enumerate(names) if other == name]
        across, up = ([found[axis][n] for n in mine] for axis in ("x", "y"))
        clouds.append(Line(_short(name), across, up, series=len(clouds)))
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
    how = (
        "projected onto principal components" if shares else "placed so that neighbours stay near"
    )
    colours = "one colour and marker per class" if classes else "they have no labels"
    caption = (
        f"Normalised features of the backbone, {how} ({method}); {colours}. Labels were not used "
        "for the positions. Two dimensions lose much: classes that overlap here may be separate."
    )
    rows = [
        (str(number + 1), name, f"{x:.3f}", f"{y:.3f}")
        for number, (name, x, y) in enumerate(zip(names, found["x"], found["y"], strict=True))
    ]
    table = Table("Position of each image", ["Image", "Class", *axes], rows)
    return Figure(title, chart, caption, table)


def _short(name: str) -> str:
    """A name that fits beside a chart; the table has the whole name."""
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1].rstrip()}…"


def _kinds(labels: Sequence[int] | None, classes: Sequence[str]) -> list[str]:
    """The class of each point; rare classes are merged if there are many."""
    if labels is None:
        return []
    names = [classes[label] for label in labels]
    counts = Counter(names)
    if len(counts) <= MOST_KINDS:
        return names
    kept = {name for name, _ in counts.most_common(MOST_KINDS - 1)}
    return [name if name in kept else "other classes" for name in names]


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
