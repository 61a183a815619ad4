"""A run's encoder looked at: similarities of pairs, a 2-D picture, nearest neighbours.

Measured once and written as ``portrait.json`` into the run's directory, so that a page needs
neither the checkpoint nor the images. The images are test images where the set has labels.
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
from flatnce.extras import needed
from flatnce.pretrain.data import FolderSet, ImageSet, permutation
from flatnce.pretrain.evaluation import Bench, Options, embed_views, extract
from flatnce.pretrain.evaluation.run_evaluation import own_data, subject_of
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import FORMAT_VERSION, read_run
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.images import load_images
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import CHECKPOINTS, LoadedEncoder, load_encoder
from flatnce.report.charts import Axis, Cloud, Line
from flatnce.report.page import Gallery, Paragraph, Picture, Section, Table
from flatnce.report.pictured import Curves, Scattered

__all__ = ["PortraitOptions", "is_current", "portray"]

PORTRAIT = "portrait.json"
BINS = 50
# Beside the seeds of training and of watching, so that no view is one that was seen before.
UNSEEN_VIEWS = 2**34


@dataclass(frozen=True)
class PortraitOptions:
    """How much is looked at.

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


def portray(
    directory: str | Path,
    options: PortraitOptions | None = None,
    *,
    step: int | None = None,
    device: str = "auto",
    report: Callable[[str], None] | None = None,
) -> Path:
    """Look at a run's encoder, write ``portrait.json`` into its directory, return its path."""
    asked, tell = options or PortraitOptions(), report or (lambda line: None)
    run = load_encoder(directory, step, choose_device(device))
    tell("loading images")
    images, part = _images(run, asked)
    tell(f"looking at {len(images)} images")
    known = _labels(images)
    rows = _rows(run, images)
    found = {
        "format_version": FORMAT_VERSION,
        "step": run.step,
        "data": own_data(run.config),
        "part": part,
        "images": len(images),
        "options": asdict(asked),
        "classes": list(images.classes) if known is not None else [],
        "similarities": _similarities(run, images, asked.seed),
        "projection": {**project(rows, asked.projection, asked.seed), "labels": known},
        **_neighbours(images, rows, known, asked),
        "memory": _memory(run, read_run(directory).environment.get("processes", 1)),
    }
    path = Path(directory) / PORTRAIT
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(plain(found), allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def is_current(directory: str | Path, options: PortraitOptions, step: int | None = None) -> bool:
    """Whether the portrait that is there is of this checkpoint and was made with these options."""
    place = Path(directory)
    try:
        found = json.loads((place / PORTRAIT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(found, dict):
        return False
    kept = checkpoint.steps(place / CHECKPOINTS)
    wanted = kept[-1] if step is None and kept else step
    return found.get("step") == wanted and found.get("options") == asdict(options)


def _images(run: LoadedEncoder, asked: PortraitOptions) -> tuple[ImageSet | FolderSet, str]:
    """Some test images; of a set without labels, some of those it was trained on."""
    config = run.config
    options = Options(root=config.data.root, skip_unreadable=config.data.skip_unreadable)
    source: ImageSet | FolderSet
    try:
        source, part = Bench(subject_of(run), options).load(own_data(config), "test"), "test"
    except ValueError:  # no labels, and so no part that was held out
        source, part = load_images(config.data), "training"
    return source.subset(permutation(len(source), asked.seed)[: asked.images]), part


def _labels(images: ImageSet | FolderSet) -> list[int] | None:
    """One class number an image; None where there are none, or several an image."""
    if images.labels.ndim != 1 or int(images.labels.min()) < 0:
        return None
    return [int(label) for label in images.labels]


def _rows(run: LoadedEncoder, images: ImageSet | FolderSet) -> Float[Tensor, "n d"]:
    """Features of the backbone, as kNN compares them: rows of length 1."""
    mean, std = run.normalisation
    found = extract(
        run.encoder.backbone,
        images,
        size=run.size,
        mean=tuple(mean),
        std=tuple(std),
        channels=run.channels,
        workers=run.config.data.workers,
    )
    return normalize(found.features, dim=1).cpu()


def _similarities(run: LoadedEncoder, images: ImageSet | FolderSet, seed: int) -> dict[str, Any]:
    """Histograms of the cosines that the loss sees: two views of an image, of two images."""
    drawn = subject_of(run).views
    if drawn is None:
        raise ValueError("the run does not say how its views were drawn")
    views = replace(drawn, seed=UNSEEN_VIEWS + seed)
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
        # Rounding may take a cosine just past 1, where a histogram would leave it out.
        counts = torch.histc(values.clamp(-1, 1), BINS, -1, 1)
        found[name] = [round(float(c) / len(values), 6) for c in counts]
        found[f"{name}_pairs"] = len(values)
        found[f"{name}_mean"] = float(values.mean())
    return found


def _neighbours(
    images: ImageSet | FolderSet,
    rows: Float[Tensor, "n d"],
    known: list[int] | None,
    asked: PortraitOptions,
) -> dict[str, Any]:
    """Nearest neighbours of a few images; how many of all nearest ones share the label."""
    likeness = rows @ rows.T
    likeness.fill_diagonal_(-torch.inf)
    best = likeness.topk(min(asked.neighbours, len(rows) - 1), dim=1)

    def shown(number: int) -> dict[str, Any]:
        label = None if known is None else images.classes[known[number]]
        picture = picture_of(images, number) if asked.pictures else None
        return {"label": label, "picture": picture}

    queries = []
    for number in _queries(known, len(rows), asked.queries):
        near = zip(best.indices[number].tolist(), best.values[number].tolist(), strict=True)
        found = [{**shown(other), "similarity": round(cosine, 4)} for other, cosine in near]
        queries.append({**shown(number), "neighbours": found})
    if known is None:
        return {"neighbours": queries, "nearest_same": None}
    labels = torch.tensor(known)
    same = float((labels[best.indices[:, 0]] == labels).float().mean())
    return {"neighbours": queries, "nearest_same": same}


def _queries(known: list[int] | None, count: int, wanted: int) -> list[int]:
    """The first image of each of so many classes, in the order drawn; then further ones."""
    order = list(range(count))
    if known is not None:
        first = list({label: i for i, label in reversed(list(enumerate(known)))}.values())
        order = [*sorted(first), *(i for i in order if i not in set(first))]
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


LARGEST = 64
# Up to this side a picture without loss is small enough.
LOSSLESS = 40


def picture_of(images: ImageSet | FolderSet, number: int) -> str:
    """One image of a set as a ``data:`` address, at most 64 pixels wide and high.

    Arguments:
        images: The set.
        number: Which image.

    Examples:
        >>> import torch
        >>> pixels = torch.zeros((1, 1, 8, 8), dtype=torch.uint8)
        >>> picture_of(ImageSet(pixels, torch.tensor([0]), ("a",)), 0)[:22]
        'data:image/png;base64,'
    """
    pixels = images.decode(number) if isinstance(images, FolderSet) else images.images[number]
    image = needed("PIL.Image", "pictures of neighbours")
    shown = image.fromarray(_last(pixels))
    shown.thumbnail((LARGEST, LARGEST))
    kind = "PNG" if max(shown.size) <= LOSSLESS else "JPEG"
    buffer = io.BytesIO()
    shown.save(buffer, kind, **({"optimize": True} if kind == "PNG" else {"quality": 80}))
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def _last(pixels: Tensor):
    """Channels last for colour, none for grey."""
    moved = pixels.cpu()
    return (moved[0] if moved.shape[0] == 1 else moved.permute(1, 2, 0)).contiguous().numpy()


def project(rows: Tensor, method: str = "auto", seed: int = 0) -> dict[str, Any]:
    """Two coordinates a row, with the method and what share of the variance each shows.

    Arguments:
        rows: Features, (n, width).
        method: ``pca``, ``umap``, or ``auto`` for UMAP where it is installed.
        seed: Of UMAP's draws; principal components have none.

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
    # The sign of an axis is arbitrary; its largest entry is made positive, so that it is settled.
    largest = axes.abs().argmax(1, keepdim=True)
    axes = axes * axes.gather(1, largest).sign()
    variance = spans.square()
    shares = (variance / variance.sum().clamp_min(1e-30))[:2].tolist()
    return {"shares": [float(share) for share in shares], **_coordinates(centred @ axes[:2].T)}


def _coordinates(placed: Float[Tensor, "n 2"]) -> dict[str, Any]:
    # Zero is added so that a rounded -0.0 is written as 0.0.
    across, up = ([round(float(v), 4) + 0.0 for v in column] for column in placed.T)
    return {"x": across, "y": up}


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
