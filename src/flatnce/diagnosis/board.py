"""A TensorBoard folder: our own scalars judged as a run's, others' losses as far as they go."""

import logging
import math
from pathlib import Path
from typing import Any

from flatnce.diagnosis.curves import curve_findings
from flatnce.diagnosis.findings import Diagnosis, Finding, in_order
from flatnce.diagnosis.records import NEEDED, findings_on
from flatnce.extras import needed

__all__ = ["EVENTS", "event_folders", "examine_board"]

EVENTS = "events.out.tfevents*"
KEYS = (*NEEDED, "negatives", "uniformity", "effective_rank", "temperature", "saturated")
BLIND = (
    "collapse, ESS, false negatives, duplicates, temperature: a loss curve does not show them; "
    "save embeddings and say `flatnce doctor EMBEDDINGS.npz`, or log a flatnce.Monitor"
)

Points = list[tuple[int, float]]


def event_folders(directory: Path) -> list[Path]:
    """Folders below a folder, itself included, that hold event files.

    Arguments:
        directory: Where to look.
    """
    return sorted({path.parent for path in directory.rglob(EVENTS)})


def examine_board(
    directory: str | Path, *, candidates: int | None = None, objective: str = ""
) -> Diagnosis:
    """Judge the scalars of one writer.

    Arguments:
        directory: A folder with event files of one run, itself or somewhere below.
        candidates: Positive and negatives a row, K, for loss curves of others.
        objective: The loss's name; remedies depend on it.
    """
    place = Path(directory)
    folders = event_folders(place)
    if len(folders) != 1:
        named = ", ".join(str(folder.relative_to(place)) for folder in folders[:8])
        said = f"holds {len(folders)} runs ({named}); name one" if folders else "has no event file"
        raise ValueError(f"{place} {said}: a folder with one run's {EVENTS}")
    scalars = _scalars(folders[0])
    subject = f"TensorBoard folder {place}"
    ours = _our_history(scalars)
    if ours:
        found = findings_on(ours, objective)
        blind = "what only embeddings show: duplicates, identical views, false negatives"
        return Diagnosis(subject, in_order(found), ours[-1], (blind,))
    return _others(subject, scalars, candidates)


def _others(subject: str, scalars: dict[str, Points], candidates: int | None) -> Diagnosis:
    losses = {tag: points for tag, points in scalars.items() if _is_loss(tag) and points}
    if not losses:
        tags = ", ".join(sorted(scalars)[:8]) or "none"
        reason = f"there is no scalar of flatnce and none with loss in its name (tags: {tags})"
        return Diagnosis(subject, (), {}, (reason, BLIND), judged=False)
    findings: list[Finding] = []
    unknown: list[str] = []
    for tag, points in losses.items():
        found, unclear = curve_findings(tag, points, candidates)
        findings += found
        unknown += unclear
    numbers: dict[str, Any] = {tag: points[-1][1] for tag, points in losses.items()}
    numbers = {tag: value if math.isfinite(value) else None for tag, value in numbers.items()}
    return Diagnosis(subject, in_order(findings), numbers, (*unknown, BLIND), judged=False)


def _is_loss(tag: str) -> bool:
    return "loss" in tag.rsplit("/", 1)[-1].lower()


def _our_history(scalars: dict[str, Points]) -> list[dict[str, float | int]]:
    """Records of a Monitor, put together again from tags that end in its keys; oldest first."""
    prefixes = {tag[: -len("gain")] for tag in scalars if tag == "gain" or tag.endswith("/gain")}
    whole = [p for p in sorted(prefixes) if all(p + key in scalars for key in NEEDED)]
    if not whole:
        return []
    records: dict[int, dict[str, float | int]] = {}
    for key in KEYS:
        for step, value in scalars.get(whole[0] + key, ()):
            if math.isfinite(value):
                records.setdefault(step, {"step": step})[key] = value
    return [records[step] for step in sorted(records) if set(NEEDED) <= set(records[step])]


def _scalars(folder: Path) -> dict[str, Points]:
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = needed(module, "reading a TensorBoard folder")
    # It tells of every file it opens, through loggers that the user did not ask for.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {
        tag: [(event.step, float(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    return {**_scalar_tensors(events), **found}


def _scalar_tensors(events: Any) -> dict[str, Points]:  # noqa: ANN401 (an EventAccumulator)
    """Scalars as TensorFlow 2 and Keras write them: tensors of no dimension."""
    from tensorboard.util.tensor_util import make_ndarray

    found: dict[str, Points] = {}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            values = (
                (event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)
            )
            found[tag] = [(step, float(value)) for step, value in values if value.size == 1]
    return found
