"""A TensorBoard folder: our own scalars judged as a run's, others' losses as far as they go."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatnce.diagnose.curves import curve_findings
from flatnce.diagnose.findings import HEALTHY, Diagnosis, Finding, in_order
from flatnce.diagnose.records import NEEDED, findings_on, judgeable
from flatnce.extras import needed

EVENTS = "events.out.tfevents*"
KEYS = (*NEEDED, "negatives", "uniformity", "effective_rank", "temperature", "saturated")
BLIND = (
    "collapse, ESS, false negatives, duplicates, temperature: a loss curve does not show them; "
    "save embeddings and say `flatnce doctor EMBEDDINGS.npz`, or log a flatnce.Monitor"
)

Points = list[tuple[int, float]]
Numbers = Mapping[str, float | int]


def event_folders(directory: Path) -> list[Path]:
    """Folders below a folder, itself included, that hold event files."""
    return sorted({path.parent for path in directory.rglob(EVENTS)})


def examine_board(
    directory: str | Path, *, candidates: int | None = None, objective: str = ""
) -> Diagnosis:
    """Judge the scalars of one writer."""
    place = Path(directory)
    folders = event_folders(place)
    if len(folders) != 1:
        named = ", ".join(str(folder.relative_to(place)) for folder in folders[:8])
        said = f"holds {len(folders)} runs ({named}); name one" if folders else "has no event file"
        raise ValueError(f"{place} {said}: a folder with one run's {EVENTS}")
    scalars = _scalars(folders[0])
    subject = f"TensorBoard folder {place}"
    ours = _our_histories(scalars)
    return _ours(subject, ours, objective) if ours else _others(subject, scalars, candidates)


def _ours(subject: str, histories: dict[str, list[Numbers]], objective: str) -> Diagnosis:
    """Judge every Monitor; of several, each finding says whose it is."""
    blind = "what only embeddings show: duplicates, identical views, false negatives"
    last = {prefix: _finite(history[-1]) for prefix, history in histories.items()}
    found = {prefix: findings_on(history, objective) for prefix, history in histories.items()}
    if len(histories) == 1:
        (prefix,) = histories
        return Diagnosis(subject, in_order(found[prefix]), last[prefix], (blind,))
    states = {prefix: found[prefix][0].kind if found[prefix] else HEALTHY for prefix in histories}
    said = "; ".join(f"{_named(prefix)} {state}" for prefix, state in states.items())
    numbers = {prefix + key: value for prefix in last for key, value in last[prefix].items()}
    return Diagnosis(f"{subject} ({said})", in_order(_together(found)), numbers, (blind,))


def _together(found: dict[str, list[Finding]]) -> list[Finding]:
    """Findings of one kind under several prefixes as one, which names them all."""
    whose: dict[str, list[tuple[str, Finding]]] = {}
    for prefix, findings in found.items():
        for finding in findings:
            whose.setdefault(finding.kind, []).append((_named(prefix), finding))
    merged = []
    for kind, ones in whose.items():
        evidence = "; ".join(f"{name} {finding.evidence}" for name, finding in ones)
        since = min((one.since for _, one in ones if one.since is not None), default=None)
        merged.append(Finding(kind, evidence, ones[0][1].remedies, since))
    return merged


def _named(prefix: str) -> str:
    return f"{prefix}:" if prefix else "without a prefix:"


def _finite(record: Numbers) -> Numbers:
    return {key: value for key, value in record.items() if math.isfinite(value)}


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


def _our_histories(scalars: dict[str, Points]) -> dict[str, list[Numbers]]:
    """By prefix, records of a Monitor, put together again from its keys; oldest first."""
    prefixes = {tag[: -len("gain")] for tag in scalars if tag == "gain" or tag.endswith("/gain")}
    whole = [p for p in sorted(prefixes) if all(p + key in scalars for key in NEEDED)]
    found = {prefix: _history(scalars, prefix) for prefix in whole}
    return {prefix: history for prefix, history in found.items() if history}


def _history(scalars: dict[str, Points], prefix: str) -> list[Numbers]:
    records: dict[int, dict[str, float | int]] = {}
    for key in KEYS:
        for step, value in scalars.get(prefix + key, ()):
            if key in NEEDED or math.isfinite(value):
                records.setdefault(step, {"step": step})[key] = value
    return judgeable([records[step] for step in sorted(records)])


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


def _scalar_tensors(events: Any) -> dict[str, Points]:
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
