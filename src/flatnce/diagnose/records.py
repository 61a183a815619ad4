"""Diagnosis of what a path names: a file of embeddings, or a run of ``flatnce train``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatnce.core.diagnostics.verdict import NEEDED, has_evidence
from flatnce.diagnose.embeddings import LAYOUTS, doctor, read_embeddings
from flatnce.diagnose.findings import Diagnosis, Finding, finding, in_order, not_known
from flatnce.diagnose.rules import Numbers, findings_on
from flatnce.messages import check_choice

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


def examine(
    target: str | Path,
    *,
    temperature: float | None = None,
    batch_size: int | None = None,
    layout: str = "two_view",
    objective: str = "",
    embeddings: bool = True,
    device: str = "auto",
) -> Diagnosis:
    """Examine a run, given as a folder or a name in ``runs/``, or a file of embeddings.

    Options are those of :func:`flatnce.doctor`; ``embeddings`` says whether to embed some images
    of a run.
    """
    place = Path(target)
    check_choice("layout", layout, LAYOUTS)
    typed: dict[str, Any] = {"temperature": temperature, "batch_size": batch_size}
    if place.is_file() or place.suffix in (".npz", ".npy"):
        for name, value, usual in (("device", device, "auto"), ("embeddings", embeddings, True)):
            if value != usual:
                raise ValueError(f"{name}={value!r} is for a run; leave it out for embeddings")
        given = read_embeddings(place)
        given |= {name: value for name, value in typed.items() if value is not None}
        try:
            return doctor(**given, layout=layout, objective=objective, subject=str(place))
        except ValueError as error:
            name, _, problem = str(error).partition("=")
            if typed.get(name, name) is None:
                raise ValueError(f"the array {name} of {place}: {problem}") from error
            raise
    typed |= {"layout": "" if layout == "two_view" else layout, "objective": objective}
    for name, value in typed.items():
        if value not in (None, ""):
            raise ValueError(
                f"{name}={value} is for embeddings; leave it out for a run, which has its own"
            )
    return examine_run(target, embeddings=embeddings, device=device)


def examine_run(name: str | Path, *, embeddings: bool = True, device: str = "auto") -> Diagnosis:
    """Judge a run, whether it is running, finished or failed."""
    # Imported here: it loads torchvision and the data sets.
    from flatnce.pretrain.runs.folder import find_run
    from flatnce.pretrain.runs.log import read_run
    from flatnce.pretrain.training.config import TrainConfig
    from flatnce.pretrain.training.learner import build_objective
    from flatnce.pretrain.training.saved import KIND, run_status

    place = find_run(name, "name")
    run = read_run(place, KIND)
    config = TrainConfig.from_plain(run.config, place / "config.json")
    objective = type(build_objective(config.loss, steps=1)).__name__
    history = _logged(run.metrics)
    watched, kept = run.last("watch"), ("knn", "pool_mi", "pool_ceiling", "pool_top1")
    numbers = {key: watched[key] for key in kept if key in watched}
    unknown: list[str] = []
    findings: list[Finding] = []
    if (status := run_status(run)).failure:
        kind = "diverged" if status.diverged else "failed"
        found = finding(kind, within="run", message=status.failure)
        findings.append(replace(found, kind="failed", since=status.step))
    if history:
        numbers = {k: v for k, v in history[-1].items() if math.isfinite(v)} | numbers
        seen = int(history[-1].get("steps", 1)) * config.run.batch_size
        # Without a head, only the embeddings tell their width.
        available = min(config.model.head_out, seen) if config.model.head_layers else None
        findings += findings_on(history, objective, available=available)
        unknown += [] if has_evidence(history) else [not_known("early")]
        if status.finished and (ended := int(history[-1]["step"])) < status.step:
            unknown.append(not_known("log_cut", ended=ended, step=status.step))
    else:
        unknown.append(not_known("begin"))
    judged = bool(history) and has_evidence(history)
    if embeddings:
        try:
            shown = _embedded(place, device, numbers, objective)
        except (OSError, ValueError) as error:  # a run without its data, or without a checkpoint
            unknown.append(not_known("no_embeddings", error=error))
        else:
            also = not_known("batches")  # the verdict of the training is made without them
            wanted = {*EMBEDDINGS_ONLY} - {one.kind for one in findings}  # not what the log shows
            findings += [
                replace(one, evidence=f"{one.evidence}; {also}")
                for one in shown.findings
                if one.kind in wanted and (judged or one.kind != "dimensional collapse")
            ]
            numbers["embeddings"] = dict(shown.numbers)
            unknown += shown.unknown
    else:
        unknown.append(not_known("not_asked"))
    if config.model.head_layers > 1 and config.model.head_norm:
        findings = [one.without("projection head") for one in findings]
    return Diagnosis(f"run {place}", in_order(findings), numbers, tuple(unknown), judged)


def _logged(lines: Sequence[Mapping[str, Any]]) -> list[Numbers]:
    """Lines of training that can be judged: finite ones, and at the end those that failed.

    A number that was not finite is null in a line.
    """
    finite: list[Numbers] = []
    failed: list[Numbers] = []  # after the last that is finite
    for line in lines:
        if line.get("kind") != "train" or "step" not in line:
            continue
        record = {key: one for key, one in line.items() if isinstance(one, int | float)}
        if lost := [key for key in NEEDED if key in line and line[key] is None]:
            failed.append({**record, **dict.fromkeys(lost, math.nan)})
        elif set(NEEDED) <= set(record):
            finite.append(record)
            failed.clear()
    return [*finite, *failed]


def _embedded(place: Path, device: str, numbers: Mapping[str, Any], objective: str) -> Diagnosis:
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
    chosen = permutation(len(source), config.run.seed)[:IMAGES].sort().values
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
