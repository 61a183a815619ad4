"""Cooking a recipe: train what is not trained yet, read it, write the results.

A recipe's folder is a run directory of kind ``reproduce`` with its training runs beside::

    runs/reproduce/NAME/
      config.json, environment.json, metrics.jsonl, results.json, report.html
      runs/RUN/           each a run directory of `flatnce train`

Whatever is finished stays: an interrupted recipe goes on where it was, and asking for more seeds
trains only these.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flatnce.environment import environment, plain
from flatnce.paper.reproduce.catalogue import Entry, entry
from flatnce.paper.reproduce.recipe import SCALES, Finished, Planned, Recipe, Setting
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.loop import resume, train
from flatnce.pretrain.training.saved import with_absolute_paths
from flatnce.pretrain.training.step import TrainingFailed

__all__ = ["reproduce"]

KIND = "reproduce"
"""What a recipe's run directory says it is."""

DIVERGED = "diverged"


@dataclass(frozen=True)
class Progress:
    """Where a recipe stands.

    Arguments:
        number: Of the run, from 0.
        total: Runs of the recipe.
        run: Its name.
        epochs: Epochs of the run.
        line: What the run has just logged; empty when it was there already.
    """

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
    report: Callable[[Progress], None] | None = None,
    announce: Callable[[str], None] | None = None,
) -> Path:
    """Train the runs of a recipe that are not there yet, read them all, write the results.

    Arguments:
        name: Of the recipe, as the catalogue has it.
        setting: How large, and from which seeds.
        out: Where; may hold an earlier, unfinished attempt at the same.
        report: Called as runs go on.
        announce: Called once, before anything is trained, with how much there is to do.

    Returns:
        The folder, whose ``results.json`` is complete.
    """
    began, place = time.perf_counter(), Path(out)
    about = entry(name)
    recipe: Recipe = import_module(about.module).RECIPE
    plan = recipe.plan(setting)
    log = _open(place, about, setting)
    if announce is not None and plan:
        announce(expected(plan, place))
    if announce is not None and recipe.shows:
        announce(f"{recipe.shows[setting.scale]}; nothing is shown before the end")
    failures = _failures(place)
    finished = []
    for number, planned in enumerate(plan):

        def say(line: Mapping[str, Any], at: int = number, run: Planned = planned) -> None:
            if report is not None:
                report(Progress(at, len(plan), run.name, run.config.run.epochs, line))

        say({})
        directory = place / "runs" / planned.name
        known = failures.get(planned.name, "") if _is_there(planned, directory) else ""
        failure = known or _trained(planned, directory, say)
        if failure != failures.get(planned.name, ""):
            log.log({"kind": DIVERGED, "run": planned.name, "failure": failure})
        finished.append(Finished(planned, read_run(directory), failure))
    found = recipe.read(finished, setting)
    log.finish(
        {
            **_about(about, recipe, setting),
            "seeds": list(setting.seeds),
            "seconds": round(time.perf_counter() - began, 1),
            "environment": environment(setting.seeds),
            "runs": [_summary(one, place) for one in finished],
            "rows": found.rows,
            "pictures": found.pictures,
            "words": found.words,
            "printed": found.printed,
        }
    )
    return place


def expected(plan: Sequence[Planned], place: Path) -> str:
    """How much a recipe trains, in words: runs, and images counted once an epoch.

    Arguments:
        plan: Its runs.
        place: Its folder, where some may be done.
    """
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
    """Images that a run trains on, each epoch counted; None of a folder, which is not read.

    Arguments:
        config: The run's.
    """
    known = CATALOG.get(config.data.data)
    if known is None or config.data.split not in known.splits:
        return None
    return config.run.epochs * known.splits[config.data.split]


def _about(about: Entry, recipe: Recipe, setting: Setting) -> dict[str, Any]:
    return {
        "recipe": about.name,
        "paper": about.paper,
        "title": about.title,
        "claim": recipe.claim,
        "notes": list(recipe.notes),
        "scale": setting.scale,
        "scale_shows": recipe.shows.get(setting.scale, SCALES[setting.scale]),
        "trains_itself": bool(recipe.shows),
    }


def _open(place: Path, about: Entry, setting: Setting) -> RunLog:
    asked = {"recipe": about.name, "scale": setting.scale}
    if not (place / "config.json").is_file():
        return RunLog(place, kind=KIND, config=asked, seeds=setting.seeds)
    there = read_run(place)
    if there.kind != KIND or there.config != asked:
        words = ", ".join(f"{name} {value}" for name, value in there.config.items())
        raise ValueError(
            f"out={str(place)!r} holds another {there.kind} run ({words}); name another folder"
        )
    return RunLog.reopen(place, kind=KIND, step=0)


def _failures(place: Path) -> dict[str, str]:
    """Runs that were trained before and diverged: they would again."""
    lines = read_run(place).metrics
    return {line["run"]: line["failure"] for line in lines if line.get("kind") == DIVERGED}


def _trained(planned: Planned, directory: Path, say: Callable[[Mapping[str, Any]], None]) -> str:
    """See that a run is trained; why it failed, or nothing."""
    there = _is_there(planned, directory)
    if there:
        results = read_run(directory).results
        if results is not None and "step" in results:
            return ""
    try:
        if there and checkpoint.steps(directory / "checkpoints"):
            outcome = resume(directory, report=say)
        else:
            outcome = train(planned.config, directory, report=say, replace=there)
    except TrainingFailed as error:
        return str(error)
    if not outcome.finished:
        raise KeyboardInterrupt
    return ""


def _is_there(planned: Planned, directory: Path) -> bool:
    """Whether a run was begun; one of other settings is an error."""
    if not (directory / "config.json").is_file():
        return False
    asked, there = plain(with_absolute_paths(planned.config).plain()), read_run(directory).config
    if asked != there:
        names = sorted(
            name
            for section, leaves in asked.items()
            for name, value in leaves.items()
            if there.get(section, {}).get(name) != value
        )
        raise ValueError(
            f"{directory} was trained with another {', '.join(names)}; name another folder for "
            "this recipe (--out), or remove that run"
        )
    return True


def _summary(one: Finished, place: Path) -> dict[str, Any]:
    return {
        "name": one.planned.name,
        "directory": str(one.directory.relative_to(place)),
        "seed": one.planned.seed,
        "variables": dict(one.planned.variables),
        "failure": one.failure,
    }
