"""Whatever a path names: a file of embeddings, a run of ``flatnce train``, a TensorBoard folder.

Scalars of a flatnce Monitor are judged like a run.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatnce.core.diagnostics.verdict import NEEDED, has_evidence
from flatnce.diagnose.embeddings import LAYOUTS, doctor, read_embeddings
from flatnce.diagnose.findings import Diagnosis, Finding, finding, in_order, not_known
from flatnce.diagnose.rules import Numbers, findings_on, judgeable
from flatnce.extras import require_extra
from flatnce.messages import check_choice

EVENTS = "events.out.tfevents*"
KEYS = (*NEEDED, "negatives", "uniformity", "effective_rank", "temperature", "saturated")
# Images of a run whose views are embedded: enough to see one false negative in a hundred thousand
# pairs, and half a minute for a small ResNet on two cores.
IMAGES = 512
# What is taken from a run's embeddings. Its log, which saw thousands of batches as they were
# trained on, knows the rest better.
EMBEDDINGS_ONLY = (
    "broken rows",
    "identical views",
    "duplicates",
    "false negatives",
    "dimensional collapse",
)

Points = Sequence[tuple[int, float]]


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
    """Examine a run, a file of embeddings or a TensorBoard folder.

    A file is read as embeddings; a folder with a run's ``config.json``, or a name in ``runs/``, as
    a run; a folder with event files in or below it, such as Hugging Face's, as TensorBoard's.
    Options are those of :func:`flatnce.doctor`; ``embeddings`` says whether to embed some images
    of a run.
    """
    place = Path(target)
    check_choice("layout", layout, LAYOUTS)
    typed = {"temperature": temperature, "batch_size": batch_size, "precision": precision}
    typed["loss_scale"] = loss_scale
    if place.is_file() or place.suffix in (".npz", ".npy"):
        if device != "auto":
            raise ValueError(f"device={device!r} is for a run; leave it out for embeddings")
        given = read_embeddings(place)
        given |= {name: value for name, value in typed.items() if value is not None}
        return doctor(**given, layout=layout, objective=objective, subject=str(place))
    if place.is_dir() and not _is_run(place):
        if any(place.rglob(EVENTS)):
            _refuse("curves do not need it", typed)
            return examine_board(place, objective=objective)
        if (place / "config.json").is_file():
            raise ValueError(
                f"{place} holds a config.json that is not a run's, and no event file; name a "
                "run, an .npz file or a TensorBoard folder"
            )
    _refuse("a run knows its own", {**typed, "objective": objective or None})
    return examine_run(target, embeddings=embeddings, device=device)


def _is_run(place: Path) -> bool:
    """Whether a folder's ``config.json`` is a run's: other programs write files of that name."""
    config = place / "config.json"
    if not config.is_file():
        return False
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:  # damaged: reading it as a run says so
        return True
    return isinstance(content, dict) and {"format_version", "kind"} <= set(content)


def _refuse(reason: str, given: Mapping[str, float | str | None]) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value} is for embeddings; {reason}, so leave it out")


# --- Runs ----------------------------------------------------------------------------------------


def examine_run(
    name: str | Path, *, embeddings: bool = True, device: str = "auto", images: int = IMAGES
) -> Diagnosis:
    """Judge a run, whether it is running, finished or failed."""
    # Imported here: it loads torchvision and the data sets.
    from flatnce.pretrain.runs.folder import find_run
    from flatnce.pretrain.runs.log import read_run
    from flatnce.pretrain.training.config import TrainConfig
    from flatnce.pretrain.training.learner import build_objective
    from flatnce.pretrain.training.saved import KIND, run_status

    place = find_run(name)
    run = read_run(place, KIND)
    config = TrainConfig.from_plain(run.config)
    objective = type(build_objective(config.loss, steps=1)).__name__
    history = _logged(run.metrics)
    watched = [line for line in run.metrics if line.get("kind") == "watch"]
    kept = ("knn", "pool_mi", "pool_ceiling", "pool_top1")
    numbers = {key: watched[-1][key] for key in kept if watched and key in watched[-1]}
    unknown: list[str] = []
    findings: list[Finding] = []
    if (status := run_status(place)).failure:
        kind = "diverged" if status.diverged else "failed"
        found = finding(kind, since=status.step, within="run", message=status.failure)
        findings.append(replace(found, kind="failed"))
    if history:
        numbers = {**_finite(history[-1]), **numbers}
        seen = int(history[-1].get("steps", 1)) * config.run.batch_size
        available = min(config.model.head_out, seen)
        findings += findings_on(history, objective, available=available)
        unknown += [] if has_evidence(history) else [not_known("early")]
    else:
        unknown.append(not_known("begin"))
    judged = bool(history) and has_evidence(history)
    if embeddings:
        try:
            shown = _embedded(place, device, images, numbers, objective)
        except (OSError, ValueError) as error:  # a run without its data, or without a checkpoint
            unknown.append(not_known("no_embeddings", error=error))
        else:
            also = not_known("batches")  # the verdict of the training is made without them
            findings += [
                replace(one, evidence=f"{one.evidence}; {also}")
                for one in shown.findings
                if one.kind in EMBEDDINGS_ONLY and (judged or one.kind != "dimensional collapse")
            ]
            numbers["embeddings"] = dict(shown.numbers)
            unknown += shown.unknown
    else:
        unknown.append(not_known("not_asked"))
    if config.model.head_layers > 1 and config.model.head_norm:
        findings = [_without_head(one) for one in findings]
    return Diagnosis(f"run {place}", in_order(findings), numbers, tuple(unknown), judged)


def _without_head(one: Finding) -> Finding:
    """The finding without the advice to add a projection head."""
    kept = tuple(remedy for remedy in one.remedies if "projection head" not in remedy)
    return replace(one, remedies=kept)


def _logged(lines: Sequence[Mapping[str, Any]]) -> list[Numbers]:
    """Lines of training that can be judged; a number that was not finite is null in them."""
    records = []
    for line in lines:
        if line.get("kind") == "train" and "step" in line:
            lost = {key: math.nan for key in NEEDED if key in line and line[key] is None}
            kept = {key: one for key, one in line.items() if isinstance(one, int | float)}
            records.append({**kept, **lost})
    return judgeable(records)


def _embedded(
    place: Path, device: str, images: int, numbers: Mapping[str, Any], objective: str
) -> Diagnosis:
    """The doctor on fresh views of some of the images that the run was trained on."""
    from flatnce.pretrain.data import permutation
    from flatnce.pretrain.evaluation import embed_views
    from flatnce.pretrain.training.images import load_images, views_of
    from flatnce.pretrain.training.processes import choose_device
    from flatnce.pretrain.training.saved import load_encoder

    run = load_encoder(place, device=choose_device(device))
    config = run.config
    source = load_images(config.data, next(run.encoder.parameters()).device)
    # The run's own seed, so that the same images are examined again; their views are of a seed
    # that no other part of training has drawn from.
    chosen = permutation(len(source), config.run.seed)[:images].sort().values
    views = replace(views_of(config, run.size, source), seed=2**35 + config.run.seed)
    z1, z2 = embed_views(
        run.encoder, source.subset(chosen), views, run.channels, config.data.workers
    )
    # Without the run's labels, which are for evaluation: the better an encoder has sorted the
    # classes, the more weight members of one class carry. That is not a fault of the run.
    return doctor(
        z1,
        z2,
        temperature=numbers.get("temperature", config.loss.temperature),
        batch_size=min(config.run.batch_size, len(z1)),
        objective=objective,
    )


def _finite(record: Numbers) -> dict[str, Any]:
    return {key: value for key, value in record.items() if math.isfinite(value)}


# --- TensorBoard folders -------------------------------------------------------------------------


def examine_board(directory: str | Path, *, objective: str = "") -> Diagnosis:
    """Judge the scalars of the Monitors of one TensorBoard writer."""
    place = Path(directory)
    folders = sorted({path.parent for path in place.rglob(EVENTS)})
    if len(folders) != 1:
        named = ", ".join(str(folder.relative_to(place)) for folder in folders[:8])
        raise ValueError(
            f"{place} holds {len(folders)} runs ({named}); name a folder with one run's {EVENTS}"
        )
    scalars = _scalars(folders[0])
    subject = f"TensorBoard folder {place}"
    prefixes = {tag[: -len("gain")] for tag in scalars if tag == "gain" or tag.endswith("/gain")}
    whole = [p for p in sorted(prefixes) if all(p + key in scalars for key in NEEDED)]
    histories = {prefix: _history(scalars, prefix) for prefix in whole}
    if histories := {prefix: history for prefix, history in histories.items() if history}:
        return _of_monitors(subject, histories, objective)
    tags = ", ".join(sorted(scalars)[:8]) or "none"
    return Diagnosis(subject, (), {}, (not_known("no_scalars", tags=tags),), judged=False)


def _of_monitors(subject: str, histories: dict[str, list[Numbers]], objective: str) -> Diagnosis:
    """Judge every Monitor; of several, each finding and number says whose it is."""
    several = len(histories) > 1
    findings: list[Finding] = []
    numbers: dict[str, Any] = {}
    states = []
    for prefix, history in histories.items():
        found = findings_on(history, objective)
        name = f"{prefix or 'without a prefix'}: " if several else ""
        states.append(f"{name}{found[0].kind if found else 'healthy'}")
        findings += [replace(one, evidence=f"{name}{one.evidence}") for one in found]
        start = prefix if several else ""
        numbers |= {start + key: value for key, value in _finite(history[-1]).items()}
    subject += f" ({'; '.join(states)})" if several else ""
    return Diagnosis(subject, in_order(findings), numbers, (not_known("scalars"),))


def _history(scalars: dict[str, Points], prefix: str) -> list[Numbers]:
    """Records of the Monitor of a prefix, rebuilt from its scalars, oldest first."""
    records: dict[int, dict[str, float | int]] = {}
    for key in KEYS:
        for step, value in scalars.get(prefix + key, ()):
            if key in NEEDED or math.isfinite(value):
                records.setdefault(step, {"step": step})[key] = value
    return judgeable([records[step] for step in sorted(records)])


def _scalars(folder: Path) -> dict[str, Points]:
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = require_extra(module, "reading a TensorBoard folder")
    # It reports every file it opens, through loggers that the user did not ask for.
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, float(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
