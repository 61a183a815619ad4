"""Rows of features as points in the plane: principal components, or UMAP where it is there."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


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
