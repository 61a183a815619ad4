"""Run an experiment: plan its runs, train those that are missing, analyse them, write the results.

An experiment's folder is a run directory of kind ``reproduce`` with its training runs in it::

    runs/reproduce/NAME/
      config.json, environment.json, metrics.jsonl, results.json, report.html
      runs/RUN/           each a run directory of `flatnce train`

Finished runs are kept: an interrupted experiment continues, and further seeds train only new runs.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatnce.environment import environment, plain
from flatnce.paper.reproduce.experiment import (
    SCALES,
    Experiment,
    Findings,
    FinishedRun,
    PlannedRun,
    Setting,
)
from flatnce.paper.reproduce.experiments import find_experiment
from flatnce.paper.reproduce.runs import Runs, cell, row
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.config import TrainConfig, preset
from flatnce.pretrain.training.loop import resume, train
from flatnce.pretrain.training.saved import with_absolute_paths
from flatnce.pretrain.training.state import TrainingFailed

__all__ = ["reproduce"]

KIND = "reproduce"
"""The kind of an experiment's run directory."""

DIVERGED = "diverged"


@dataclass(frozen=True)
class Progress:
    """What a run has just logged; ``line`` is empty when the run begins."""

    number: int
    total: int
    run: str
    epochs: int
    line: Mapping[str, Any]


def reproduce(
    name: str,
    setting: Setting,
    out: str | Path,
    *,
    report: Callable[[Progress], None] = lambda _: None,
    announce: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run an experiment and return its folder, whose ``results.json`` is then complete.

    Arguments:
        name: The experiment's name.
        setting: Scale, seeds and options.
        out: The folder; it may hold an unfinished attempt at the same experiment.
        report: Called as runs are trained.
        announce: Called before training with a line on how much there is to do.
    """
    began, place = time.perf_counter(), Path(out)
    experiment = find_experiment(name)
    plan = plan_runs(experiment, setting)
    log = _open(place, experiment, setting)
    if plan:
        announce(amount_of_work(plan, place))
    if experiment.shows:
        announce(f"{experiment.shows[setting.scale]}; nothing is shown before the end")
    finished = train_or_read(plan, place, log, report)
    findings = analyse(experiment, finished, setting)
    log.finish(
        {
            "recipe": experiment.name,
            "paper": experiment.paper,
            "title": experiment.title,
            "claim": experiment.claim,
            "notes": list(experiment.notes),
            "scale": setting.scale,
            "scale_shows": experiment.shows.get(setting.scale, SCALES[setting.scale]),
            "trains_itself": bool(experiment.shows),
            "seeds": list(setting.seeds),
            "seconds": round(time.perf_counter() - began, 1),
            "environment": environment(setting.seeds),
            "runs": [_summary(run, place) for run in finished],
            **vars(findings),
        }
    )
    return place


# The plan.


def plan_runs(experiment: Experiment, setting: Setting) -> list[PlannedRun]:
    """Every combination of the experiment's grids, from every seed."""
    if not experiment.grids:
        return []
    base = _base_config(experiment, setting)
    _check_epoch(experiment, setting, base)
    if experiment.check is not None:
        experiment.check(setting, base)
    plan = []
    for grid in experiment.grids:
        for values in itertools.product(*(setting.pick(choice) for choice in grid.values())):
            variables = dict(zip(grid, values, strict=True))
            words = "-".join(f"{name}-{value}" for name, value in variables.items())
            name = words.replace("_", "-").replace(" ", "-")
            config = base.override(**experiment.overrides(variables))
            plan += [
                PlannedRun(f"{name}-seed-{seed}", config.override(seed=seed), variables)
                for seed in setting.seeds
            ]
    return plan


def _base_config(experiment: Experiment, setting: Setting) -> TrainConfig:
    """What all runs of an experiment share."""
    at_paper_scale = setting.scale == "paper"
    base = imagenet if experiment.base == "imagenet" and at_paper_scale else cifar10
    settings = {
        name: setting.pick(value)
        for name, value in experiment.settings.items()
        if not isinstance(value, Mapping) or setting.scale in value
    }
    return base(setting).override(**settings)


def cifar10(setting: Setting) -> TrainConfig:
    """The setting of the paper's Section 4: CIFAR-10 with a ResNet; digits at scale ``smoke``.

    The paper states 256 dimensions and "a linear classifier trained to convergence". It does not
    state temperature, epochs and optimizer; here these are 0.1, 200 and SGD.
    """
    if setting.scale == "smoke":
        # One epoch of digits: enough to run every line of code, too little for any conclusion.
        config = preset("digits").override(
            epochs=1,
            batch_size=64,
            pool=256,
            log_every=2,
            watch_every=0.5,
            tensorboard=False,
            device="cpu",
            keep=1,
        )
    else:
        config = preset("cifar10").override(epochs=20, tensorboard=False, keep=1)
    if setting.scale == "paper":
        config = config.override(epochs=200, head_out=256, checkpoint_every=5.0)
    return _with_rate(config, setting)


def imagenet(setting: Setting) -> TrainConfig:
    """The setting of the paper's Section 5: ImageNet, ResNet-50, batch 512, 100 epochs."""
    if setting.imagenet is None:
        raise ValueError(
            "scale='paper' of this experiment pretrains on ImageNet; name its folder, which holds "
            "train and val with one folder per class: --imagenet PATH"
        )
    # A path contains a slash; a name without one would be looked up in the catalogue.
    path = setting.imagenet if is_path(setting.imagenet) else f"./{setting.imagenet}"
    config = preset("imagenet").override(data=path, epochs=100)
    return _with_rate(config.override(checkpoint_every=10.0, watch_every=10.0, keep=1), setting)


def _with_rate(config: TrainConfig, setting: Setting) -> TrainConfig:
    return config if setting.rate is None else config.override(rate=setting.rate)


def _check_epoch(experiment: Experiment, setting: Setting, config: TrainConfig) -> None:
    epochs = config.run.epochs
    if experiment.epoch and setting.epoch is not None and not 0 < setting.epoch <= epochs:
        raise ValueError(
            f"epoch={setting.epoch:g}: the runs of this experiment at scale {setting.scale} have "
            f"{epochs} epochs; choose more than 0 and at most {epochs} (--epoch)"
        )


def amount_of_work(plan: Sequence[PlannedRun], place: Path) -> str:
    """How much an experiment trains, in words: runs, and images over all epochs."""
    left = [one for one in plan if not (place / "runs" / one.name / "results.json").is_file()]
    words = f"{len(plan)} runs"
    if len(left) < len(plan):
        words += f", {len(left)} of them to be trained"
    sizes = [images_of(one.config) for one in left]
    known = [size for size in sizes if size is not None]
    if left and len(known) == len(sizes):
        return f"{words}: {sum(known):,} images in all, each epoch counted"
    epochs = sum(one.config.run.epochs for one in left)
    return f"{words}: {epochs:,} epochs in all" if left else words


def images_of(config: TrainConfig) -> int | None:
    """Images that a run trains on, over all epochs; None for a folder, which is not read."""
    known = CATALOG.get(config.data.data)
    if known is None or config.data.split not in known.splits:
        return None
    return config.run.epochs * known.splits[config.data.split]


# The runs.


def train_or_read(
    plan: Sequence[PlannedRun], place: Path, log: RunLog, report: Callable[[Progress], None]
) -> list[FinishedRun]:
    """Train the runs that are not finished; read all of them."""
    logged = read_run(place).metrics
    failures = {one["run"]: one["failure"] for one in logged if one.get("kind") == DIVERGED}
    finished = []
    for number, planned in enumerate(plan):

        def tell(line: Mapping[str, Any], at: int = number, run: PlannedRun = planned) -> None:
            report(Progress(at, len(plan), run.name, run.config.run.epochs, line))

        tell({})
        directory = place / "runs" / planned.name
        # A run that diverged would diverge again.
        known = failures.get(planned.name, "") if _is_begun(planned, directory) else ""
        failure = known or _train(planned, directory, tell)
        if failure != failures.get(planned.name, ""):
            log.log({"kind": DIVERGED, "run": planned.name, "failure": failure})
        finished.append(FinishedRun(planned, read_run(directory), failure))
    return finished


def _train(planned: PlannedRun, directory: Path, tell: Callable[[Mapping[str, Any]], None]) -> str:
    """Train or resume a run unless it is finished; return why it failed, or nothing."""
    begun = _is_begun(planned, directory)
    if begun and "step" in (read_run(directory).results or {}):
        return ""
    try:
        if begun and checkpoint.steps(directory / "checkpoints"):
            outcome = resume(directory, report=tell)
        else:
            outcome = train(planned.config, directory, report=tell, replace=begun)
    except TrainingFailed as error:
        return str(error)
    if not outcome.finished:
        raise KeyboardInterrupt
    return ""


def _is_begun(planned: PlannedRun, directory: Path) -> bool:
    """Whether a run was begun; raises where its settings were others."""
    if not (directory / "config.json").is_file():
        return False
    wanted = plain(with_absolute_paths(planned.config).plain())
    there = read_run(directory).config
    if wanted != there:
        names = sorted(
            name
            for section, leaves in wanted.items()
            for name, value in leaves.items()
            if there.get(section, {}).get(name) != value
        )
        raise ValueError(
            f"{directory} was trained with another {', '.join(names)}; name another folder for "
            "this experiment (--out), or remove that run"
        )
    return True


def _open(place: Path, experiment: Experiment, setting: Setting) -> RunLog:
    config = {"recipe": experiment.name, "scale": setting.scale}
    if not (place / "config.json").is_file():
        return RunLog(place, kind=KIND, config=config, seeds=setting.seeds)
    there = read_run(place)
    if there.kind != KIND or there.config != config:
        words = ", ".join(f"{name} {value}" for name, value in there.config.items())
        raise ValueError(
            f"out={str(place)!r} holds another {there.kind} run ({words}); name another folder"
        )
    return RunLog.reopen(place, kind=KIND, step=0)


def _summary(run: FinishedRun, place: Path) -> dict[str, Any]:
    return {
        "name": run.planned.name,
        "directory": str(run.directory.relative_to(place)),
        "seed": run.planned.seed,
        "variables": dict(run.planned.variables),
        "failure": run.failure,
    }


# The findings.


def analyse(experiment: Experiment, finished: Sequence[FinishedRun], setting: Setting) -> Findings:
    """The table, charts and sentences that the experiment describes."""
    epoch = None
    if experiment.epoch is not None:
        epoch = setting.pick(experiment.epoch) if setting.epoch is None else setting.epoch
    runs = Runs(finished, setting, epoch)
    if experiment.analyse is not None:
        return experiment.analyse(runs)
    at = "" if runs.epoch is None else f" at epoch {runs.epoch:g}"
    rows = []
    for group in runs.groups:
        cells = {
            f"{measure.title}{at}": cell(runs.values(group, measure), measure.unit)
            for measure in experiment.columns
        }
        rows.append(row(group, cells))
    charts = [chart for make in experiment.charts for chart in make(runs)]
    words = {topic: text for make in experiment.words for topic, text in make(runs).items()}
    return Findings(rows, charts, words)
