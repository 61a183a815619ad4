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
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from flatnce.environment import environment, plain
from flatnce.paper.reproduce.experiment import (
    CONTENT,
    Experiment,
    Findings,
    Setting,
    TrainingRun,
    find_experiment,
)
from flatnce.paper.reproduce.runs import Runs
from flatnce.pretrain.data import MissingData, is_path
from flatnce.pretrain.evaluation import missing_sets
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.config import TrainConfig, preset
from flatnce.pretrain.training.loop import resume, train
from flatnce.pretrain.training.saved import with_absolute_paths
from flatnce.pretrain.training.state import TrainingFailed

__all__ = ["reproduce"]

KIND, DIVERGED = "reproduce", "diverged"

Report = Callable[[str, int, Mapping[str, Any]], None]
"""Called with a run's number and name, its epochs, and what it has logged; first with nothing."""

PAPER_NAMES = {"supervised": "Supervised", "infonce": "SimCLR", "flatnce": "FlatCLR"}


def reproduce(
    name: str,
    setting: Setting,
    out: str | Path,
    *,
    report: Report = lambda *_: None,
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
    shared_notes = [CONTENT["imagenet_note"]] if experiment.base == "imagenet" else []
    log.finish(
        {
            "recipe": experiment.name,
            "paper": experiment.paper,
            "title": experiment.title,
            "claim": experiment.claim,
            "notes": [*experiment.notes, *shared_notes],
            "scale": setting.scale,
            "scale_shows": {**CONTENT["scales"], **experiment.shows}[setting.scale],
            "trains_itself": bool(experiment.shows),
            "seeds": list(setting.seeds),
            "seconds": round(time.perf_counter() - began, 1),
            "environment": environment(setting.seeds),
            "runs": [_summary(run, place) for run in finished],
            **vars(findings),
        }
    )
    return place


def analyse(experiment: Experiment, finished: Sequence[TrainingRun], setting: Setting) -> Findings:
    """The table, charts and sentences of an experiment, and the paper's tables."""
    module, _, function = experiment.analyse.partition(":")
    analysis = getattr(import_module(f"flatnce.paper.reproduce.{module}"), function)
    findings: Findings = analysis(Runs(experiment, finished, setting))
    printed = []
    for entry in experiment.printed:
        rows = [
            [label, *(f"{number:.2f}" for number in entry[name])]
            for name, label in PAPER_NAMES.items()
            if name in entry
        ]
        header = ["ImageNet, per cent", *map(str, entry["columns"])]
        caption = f"The paper's numbers: {entry['column']}"
        printed.append({"caption": caption, "header": header, "rows": rows})
    return replace(findings, printed=findings.printed + printed)


# The plan.


def plan_runs(experiment: Experiment, setting: Setting) -> list[TrainingRun]:
    """Every combination of the experiment's grids, from every seed."""
    if not experiment.grids:
        return []
    base = _base_config(experiment, setting)
    plan = []
    for grid in experiment.grids:
        choices = {name: setting.pick(choice) for name, choice in grid.items() if name != "fixed"}
        for values in itertools.product(*choices.values()):
            variables = dict(zip(choices, values, strict=True))
            settings = dict(grid.get("fixed", {}))
            for variable, value in variables.items():
                settings |= experiment.choices.get(value, {variable: value})
            words = "-".join(f"{name}-{value}" for name, value in variables.items())
            name = words.replace("_", "-").replace(" ", "-")
            for seed in setting.seeds:
                config = base.override(**settings, seed=seed)
                plan.append(TrainingRun(f"{name}-seed-{seed}", config, variables))
    return plan


def _base_config(experiment: Experiment, setting: Setting) -> TrainConfig:
    """What all runs of an experiment share; raises for what cannot work."""
    base = experiment.base if setting.scale == "paper" else "cifar10"
    settings = dict(CONTENT["bases"][base][setting.scale])
    config = preset(settings.pop("preset"))
    if base == "imagenet":
        settings["data"] = _imagenet_folder(setting.imagenet)
    if setting.rate is not None:
        settings["rate"] = setting.rate
    if experiment.every_checkpoint:
        settings["keep"] = None
    for name, value in experiment.settings.items():
        if not isinstance(value, Mapping) or setting.scale in value:
            settings[name] = setting.pick(value)
    config = config.override(**settings)
    epochs = config.run.epochs
    if experiment.epoch and setting.epoch is not None and not 0 < setting.epoch <= epochs:
        raise ValueError(
            f"epoch={setting.epoch:g}: the runs of this experiment at scale {setting.scale} have "
            f"{epochs} epochs; choose more than 0 and at most {epochs} (--epoch)"
        )
    sets = setting.pick(experiment.sets) if experiment.sets else []
    if sets and len(missing_sets(sets, config.data.root)) == len(sets):
        raise MissingData(
            f"none of the sets to transfer to is on disk: {', '.join(sets)}; fetch one with "
            f"`flatnce data {sets[0]}`"
        )
    return config


def _imagenet_folder(folder: str | None) -> str:
    if folder is None:
        raise ValueError(
            "scale='paper' of this experiment pretrains on ImageNet; name its folder, which holds "
            "train and val with one folder per class: --imagenet PATH"
        )
    # A path contains a slash; a name without one would be looked up in the catalogue.
    return folder if is_path(folder) else f"./{folder}"


def amount_of_work(plan: Sequence[TrainingRun], place: Path) -> str:
    """How much an experiment trains, in words."""
    left = [one for one in plan if not (place / "runs" / one.name / "results.json").is_file()]
    epochs = sum(one.config.run.epochs for one in left)
    return f"{len(plan)} runs, {len(left)} of them to be trained: {epochs:,} epochs in all"


# The runs.


def train_or_read(
    plan: Sequence[TrainingRun], place: Path, log: RunLog, report: Report
) -> list[TrainingRun]:
    """Train the runs that are not finished; read all of them."""
    logged = read_run(place).metrics
    failures = {one["run"]: one["failure"] for one in logged if one.get("kind") == DIVERGED}
    finished = []
    for number, planned in enumerate(plan, start=1):
        where, epochs = f"[{number}/{len(plan)}] {planned.name}", planned.config.run.epochs

        def tell(line: Mapping[str, Any], where: str = where, epochs: int = epochs) -> None:
            report(where, epochs, line)

        tell({})
        directory = place / "runs" / planned.name
        # A run that diverged would diverge again.
        known = failures.get(planned.name, "") if _is_begun(planned, directory) else ""
        failure = known or _train(planned, directory, tell)
        if failure != failures.get(planned.name, ""):
            log.log({"kind": DIVERGED, "run": planned.name, "failure": failure})
        finished.append(replace(planned, log=read_run(directory), failure=failure))
    return finished


def _train(
    planned: TrainingRun, directory: Path, tell: Callable[[Mapping[str, Any]], None]
) -> str:
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


def _is_begun(planned: TrainingRun, directory: Path) -> bool:
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


def _summary(run: TrainingRun, place: Path) -> dict[str, Any]:
    return {
        "name": run.name,
        "directory": str(run.log.directory.relative_to(place)),
        "seed": run.config.run.seed,
        "variables": dict(run.variables),
        "failure": run.failure,
    }
