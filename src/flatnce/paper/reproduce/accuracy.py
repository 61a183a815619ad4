"""Accuracies of a run's checkpoints on the test set, evaluated once and then read back."""

from collections.abc import Sequence
from typing import Any

from flatnce.environment import plain
from flatnce.paper.reproduce.readings import Group, Values
from flatnce.paper.reproduce.recipe import Finished, Setting
from flatnce.pretrain.evaluation import Options
from flatnce.pretrain.evaluation.run_evaluation import evaluate_run
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training.saved import CHECKPOINTS


def checkpoints(run: Finished) -> list[int]:
    """Steps of the checkpoints that are kept, that of step 0 left out."""
    return [step for step in checkpoint.steps(run.directory / CHECKPOINTS) if step > 0]


def epoch_of(run: Finished, step: int) -> float:
    """The epoch at a step."""
    results = run.run.results or {}
    return float(results["epochs"] * step / results["step"])


def step_at(run: Finished, epoch: float) -> int:
    """The step of the checkpoint that is nearest to an epoch, within half an interval of them."""
    kept = checkpoints(run)
    nearest = min(kept, key=lambda step: abs(epoch_of(run, step) - epoch))
    found = epoch_of(run, nearest)
    one_step = epoch_of(run, 1)  # checkpoints fall on whole steps
    if abs(found - epoch) > run.planned.config.watch.checkpoint_every / 2 + one_step:
        raise ValueError(
            f"epoch={epoch:g}: {run.planned.name} has no checkpoint near it; its nearest is of "
            f"epoch {found:g}"
        )
    return nearest


def evaluations(
    run: Finished,
    protocols: str | Sequence[str],
    step: int | None = None,
    data: Sequence[str] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """Results of protocols at a checkpoint; what was evaluated before is read, not done again.

    What is not there yet is done together, so that features are made once.
    """
    chosen = checkpoints(run)[-1] if step is None else step
    names = [protocols] if isinstance(protocols, str) else list(protocols)
    question = plain({"step": chosen, "data": list(data), **options})
    asked = {name: {"protocol": name, **question} for name in names}
    results = read_run(run.directory).results or {}
    there: dict[str, list[dict[str, Any]]] = {
        name: [one for one in results.get("evaluations", ()) if one.get("asked") == asked[name]]
        for name in names
    }
    missing = [name for name in names if not there[name]]
    if missing:
        done = evaluate_run(
            run.directory,
            missing,
            data,
            Options(**options),
            step=chosen,
            device=run.planned.config.run.device,
            label=lambda one: {"asked": asked[one["name"]]},
        )
        for one in done:
            there[one["name"]].append(one)
    return [one for name in names for one in there[name]]


def score(run: Finished, protocol: str, step: int | None = None, **options: Any) -> dict[str, Any]:
    """The one result of a protocol that has one."""
    return evaluations(run, protocol, step, **options)[0]


def linear_scores(group: Group, setting: Setting, epoch: float | None = None) -> dict[str, Values]:
    """The linear probe to convergence; at smoke scale one that costs a tenth of a second."""
    protocol, options = probe_of(setting)
    return scores(group, protocol, epoch, **options)


def probe_of(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Protocol and options of the linear probe at a scale."""
    if setting.scale == "smoke":
        return "linear-short", {"epochs": 2, "rates": (1.0,)}
    return "linear", {}


def scores(
    group: Group,
    protocol: str,
    epoch: float | None = None,
    **options: Any,
) -> dict[str, Values]:
    """Top-1 and top-5 of every run of a group; None of those that diverged."""
    found: dict[str, Values] = {"top1": [], "top5": []}
    for run in group.runs:
        result: dict[str, Any] = {}
        if not run.failure:
            step = None if epoch is None else step_at(run, epoch)
            result = score(run, protocol, step, **options)
        for name, values in found.items():
            values.append(result.get(name))
    return found
