"""A run's encoder looked at: similarities of pairs, a 2-D picture, nearest neighbours.

Measured once and written as ``portrait.json`` into the run's directory, so that a page needs
neither the checkpoint nor the images. The images are test images where the set has labels.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.environment import plain
from flatnce.pretrain.data import FolderSet, ImageSet, permutation
from flatnce.pretrain.evaluation import Bench, Options, embed_views, extract
from flatnce.pretrain.evaluation.run_evaluation import own_data, subject_of
from flatnce.pretrain.page.portrait_pictures import picture_of
from flatnce.pretrain.page.portrait_projection import project
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import FORMAT_VERSION, read_run
from flatnce.pretrain.training import Trained, trained
from flatnce.pretrain.training.expect import expect
from flatnce.pretrain.training.images import load_images
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import CHECKPOINTS

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
    run = trained(directory, step, choose_device(device))
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


def _images(run: Trained, asked: PortraitOptions) -> tuple[ImageSet | FolderSet, str]:
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


def _rows(run: Trained, images: ImageSet | FolderSet) -> Float[Tensor, "n d"]:
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


def _similarities(run: Trained, images: ImageSet | FolderSet, seed: int) -> dict[str, Any]:
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


def _memory(run: Trained, processes: int) -> dict[str, int]:
    """What one process of training was expected to hold, by kind, in bytes."""
    found = expect(run.config, next(run.encoder.parameters()).device, processes)
    return {
        "images": found.data_bytes,
        "weights": found.model_bytes,
        "activations": found.activation_bytes,
        "loss": found.loss_bytes,
    }
