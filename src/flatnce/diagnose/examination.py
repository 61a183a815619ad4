"""Whatever a path names: embeddings, a run or a TensorBoard folder."""

import json
from pathlib import Path
from typing import Any

from flatnce.diagnose.archive import read_embeddings
from flatnce.diagnose.arguments import LAYOUTS
from flatnce.diagnose.board import event_folders, examine_board
from flatnce.diagnose.embeddings import doctor
from flatnce.diagnose.findings import Diagnosis


def examine(
    target: str | Path,
    *,
    temperature: float | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    loss_scale: float | None = None,
    layout: str = "two_view",
    objective: str = "",
    embeddings: bool = True,
    device: str = "auto",
) -> Diagnosis:
    """Look at a run, a file of embeddings or a TensorBoard folder.

    A file is read as embeddings; a folder with a run's ``config.json``, or a name in ``runs/``, as
    a run; a folder with event files in or below it, such as Hugging Face's, as TensorBoard's.
    """
    place = Path(target)
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown; choose one of {list(LAYOUTS)}")
    if place.is_file() or place.suffix in (".npz", ".npy"):
        given: dict[str, Any] = read_embeddings(place)
        typed = {"temperature": temperature, "batch_size": batch_size, "precision": precision}
        given |= {name: value for name, value in typed.items() if value is not None}
        given |= {"loss_scale": loss_scale, "layout": layout, "objective": objective}
        return doctor(**given, subject=str(place))
    if place.is_dir() and not _is_run(place) and event_folders(place):
        _refuse(
            "curves do not need it",
            temperature=temperature,
            precision=precision,
            loss_scale=loss_scale,
        )
        return examine_board(
            place, candidates=_candidates(batch_size, layout), objective=objective
        )
    if place.is_dir() and (place / "config.json").is_file() and not _is_run(place):
        raise ValueError(
            f"{place} holds a config.json that is no run's, and no event file; name a run, an "
            ".npz file or a TensorBoard folder"
        )
    _refuse(
        "a run knows its own",
        temperature=temperature,
        batch_size=batch_size,
        precision=precision,
        loss_scale=loss_scale,
        objective=objective or None,
    )
    from flatnce.diagnose.runs import examine_run  # brings torchvision and the data sets

    return examine_run(target, embeddings=embeddings, device=device)


def _candidates(batch_size: int | None, layout: str) -> int | None:
    """Positive and negatives a row, K, in one process without a queue."""
    if batch_size is None:
        return None
    if batch_size < 2:
        raise ValueError(f"batch_size={batch_size} must be at least 2")
    return batch_size if layout == "two_tower" else 2 * batch_size - 1


def _is_run(place: Path) -> bool:
    """Whether a folder's ``config.json`` is a run's: other programs write files of that name."""
    config = place / "config.json"
    if not config.is_file():
        return False
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:  # damaged: reading it as a run says so
        return True
    return isinstance(found, dict) and {"format_version", "kind"} <= set(found)


def _refuse(reason: str, **given: float | str | None) -> None:
    named = [f"{name}={value}" for name, value in given.items() if value is not None]
    if named:
        raise ValueError(f"{named[0]} is for embeddings; {reason}, so leave it out")
