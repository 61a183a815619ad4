"""Run an experiment: plan its runs, train those that are not in the store, analyse their records.

An experiment's folder is a run directory of kind ``reproduce``: ``results.json``, and
``report.html`` beside it. Its runs are in the store, so they are trained once for all experiments,
an interrupted experiment continues, and further seeds train only new runs.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from flatnce.environment import environment, plain
from flatnce.paper.reproduce.analyses import MissingWeights, Runs
from flatnce.paper.reproduce.experiment import (
    CONTENT,
    Experiment,
    Findings,
    Setting,
    TrainingRun,
    find_experiment,
)
from flatnce.paper.reproduce.store import Progress, Store
from flatnce.pretrain.data import MissingData, is_path
from flatnce.pretrain.evaluation import missing_sets
from flatnce.pretrain.page.compare import settings_text
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.runs.records import FORMAT_VERSION, key_of, settings_of
from flatnce.pretrain.training.config import TrainConfig, preset

__all__ = ["reproduce"]

KIND, MESSAGES = "reproduce", CONTENT["messages"]

PAPER_NAMES = {"supervised": "Supervised", "infonce": "SimCLR", "flatnce": "FlatCLR"}


def reproduce(
    name: str,
    setting: Setting,
    out: str | Path,
    *,
    store: Store,
    progress: Progress = lambda _: nullcontext(lambda *_: None),
    announce: Callable[[str], None] = lambda _: None,
) -> Path:
    """Run an experiment and return its folder, whose ``results.json`` is then complete.

    The folder ``out`` may hold an earlier result of the same experiment. ``announce`` is called
    before training with a line on how much there is to do.
    """
    began, place = time.perf_counter(), Path(out)
    experiment = find_experiment(name)
    plan = [store.find(run) for run in plan_runs(experiment, setting)]
    log = _open(place, experiment, setting, plan)
    runs: list[TrainingRun] = []
    if experiment.shows:
        records = [_record_of_all(experiment, setting, store, announce)]
        findings = Findings(**records[0]["findings"])
    else:
        findings, runs = _of_runs(experiment, setting, plan, store, progress, announce)
        records = [run.record for run in runs]
    notes = [CONTENT["imagenet_note"]] if experiment.base == "imagenet" else []
    trained = [settings_of(record) for record in records]
    held = {"temperature": None} if any(one.get("ess") for one in trained) else {}
    same = {name: {(one | held).get(name) for one in trained} for name in CONTENT["shared"]}
    shared = {name: one.pop() for name, one in same.items() if len(one) == 1 and None not in one}
    origin = records[0]["environment"] if records else environment(setting.seeds)
    devices = dict.fromkeys(record["environment"]["device"] for record in records)
    command = ["flatnce", "reproduce", experiment.name, "--scale", setting.scale]
    (log or RunLog.reopen(place, kind=KIND, step=0)).finish(
        {
            "recipe": experiment.name,
            "paper": experiment.paper,
            "title": experiment.title,
            "claim": experiment.claim,
            "notes": [*experiment.notes, *notes],
            "scale": setting.scale,
            "scale_shows": {**CONTENT["scales"], **experiment.shows}[setting.scale],
            "trains_itself": bool(experiment.shows),
            "seeds": list(setting.seeds),
            "shared": settings_text(shared),
            "seconds": round(time.perf_counter() - began, 1),
            "environment": {
                **origin,
                "device": ", ".join(devices) or origin["device"],
                "command": command,
                "seeds": list(setting.seeds),
            },
            "runs": [
                {
                    "name": run.name,
                    "record": run.record["name"],
                    "seed": run.config.run.seed,
                    "variables": dict(run.variables),
                    "failure": run.failure,
                }
                for run in runs
            ],
            **vars(findings),
        }
    )
    return place


def _of_runs(
    experiment: Experiment,
    setting: Setting,
    plan: Sequence[TrainingRun],
    store: Store,
    progress: Progress,
    announce: Callable[[str], None],
) -> tuple[Findings, list[TrainingRun]]:
    """What an experiment found in the records of its runs; those that are missing are trained."""

    def complete(need: str) -> tuple[Findings, list[TrainingRun]]:
        missing = [run for run in map(store.find, plan) if getattr(run, need) is None]
        if missing:
            _check_data(experiment, setting, [replace(run, record=None) for run in missing])
            store.train(missing, progress)
        runs = [store.find(run) for run in plan]
        return analyse(experiment, runs, setting), runs

    if plan:
        announce(amount_of_work(plan))
    try:
        return complete("record")
    except MissingWeights as missing:
        announce(MESSAGES["no_weights"].format(reason=missing))
        return complete("directory")


def _check_data(experiment: Experiment, setting: Setting, runs: Sequence[TrainingRun]) -> None:
    """Raise if the images to train on are missing, or every set to transfer to."""
    sets = setting.pick(experiment.sets) if experiment.sets else []
    recorded = {name for run in runs for name in run.tested_on}
    if sets and not recorded.intersection(sets) and len(missing_sets(sets)) == len(sets):
        raise MissingData(MESSAGES["no_transfer"].format(sets=", ".join(sets), first=sets[0]))
    data = [run.config.data.data for run in runs if run.record is None]
    for reason in missing_sets(data[:1]).values():
        raise MissingData(MESSAGES["no_images"].format(reason=reason, count=len(data)))


def _record_of_all(
    experiment: Experiment, setting: Setting, store: Store, announce: Callable[[str], None]
) -> dict[str, Any]:
    """The record of an experiment that trains while it is analysed."""
    about = {"name": experiment.name, "scale": setting.scale, "seeds": list(setting.seeds)}
    config = {"experiment": {**about, "sizes": setting.pick(experiment.sizes)}}
    key = key_of(config, measured=True)
    if key not in store.records:
        announce(f"{experiment.shows[setting.scale]}; no progress is shown before the end")
        store.folder.mkdir(parents=True, exist_ok=True)  # before hours of work, not after
        found = plain(vars(analyse(experiment, [], setting)))
        name = f"{experiment.name}-{setting.scale}-{key[-8:]}"
        head = {"format_version": FORMAT_VERSION, "key": key, "name": name, "config": config}
        where = environment(setting.seeds)
        store.write({**head, "metrics": [], "findings": found, "environment": where})
    return store.records[key]


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
        choices = {name: setting.pick(choice) for name, choice in grid.items()}
        for values in itertools.product(*choices.values()):
            variables = dict(zip(choices, values, strict=True))
            settings: dict[str, Any] = {}
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
        if (folder := setting.imagenet) is None:
            raise ValueError(MESSAGES["no_imagenet"])
        # A path contains a slash; a name without one would be looked up in the catalogue.
        settings["data"] = folder if is_path(folder) else f"./{folder}"
    if experiment.every_checkpoint:
        settings["keep"] = None
    for name, value in experiment.settings.items():
        if not isinstance(value, Mapping) or setting.scale in value:
            settings[name] = setting.pick(value)
    return config.override(**settings)


def amount_of_work(plan: Sequence[TrainingRun]) -> str:
    """How much an experiment trains, in words."""
    left = [one for one in plan if one.record is None]
    epochs = sum(one.config.run.epochs for one in left)
    return f"{len(plan)} runs, {len(left)} of them to be trained: {epochs:,} epochs in all"


# The folder.


def _open(
    place: Path, experiment: Experiment, setting: Setting, runs: Sequence[TrainingRun]
) -> RunLog | None:
    """Make the folder; None if it holds an earlier result, which stays until the new one."""
    config = {"recipe": experiment.name, "scale": setting.scale}
    there = read_run(place) if (place / "config.json").is_file() else None
    if there is not None and (there.kind != KIND or there.config != config):
        own = {name: one for name, one in there.config.items() if not isinstance(one, dict)}
        words = ", ".join(f"{name} {value}" for name, value in own.items())
        said = {"place": str(place), "kind": there.kind, "config": words and f" ({words})"}
        raise ValueError(MESSAGES["other_run"].format(**said))
    _check_data(experiment, setting, runs)
    return RunLog(place, kind=KIND, config=config, seeds=setting.seeds) if there is None else None
