"""The runs of a sweep as rows of numbers, and means over seeds with their spread."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.file import varied
from flatnce.pretrain.sweeping.sweep import SweptRun
from flatnce.pretrain.training.config import TrainConfig

__all__ = ["MEASURED", "over_seeds", "rows_of"]

MEASURED = ("loss", "ess", "gain", "knn", "mi", "pool_mi")
"""What is averaged over seeds."""
CEILINGS = ("mi_ceiling", "pool_ceiling")
"""The same for all seeds."""


def rows_of(runs: Sequence[SweptRun]) -> list[dict[str, Any]]:
    """Where each run stands, from its directory; what it has not measured is None.

    ``settings`` has every setting that is not the same in all runs, as it was asked for.
    """
    names = varied({run.name: run.config for run in runs})
    return [_row(run, names) for run in runs]


def _row(run: SweptRun, names: Sequence[str]) -> dict[str, Any]:
    metrics: list[dict[str, Any]] = []
    if (run.directory / "config.json").is_file():
        metrics = read_run(run.directory).metrics
    lines = [line for line in metrics if line["kind"] == "train"]
    latest: dict[str, dict[str, Any]] = {line["kind"]: line for line in metrics}
    last, watched = latest.get("train", {}), latest.get("watch", {})
    verdict = latest.get("verdict", {})
    speeds = [line["images_per_second"] for line in lines if line["images_per_second"]]
    epoch = last.get("epoch", 0.0)
    if run.state == "stopped" and epoch:  # and saved, some steps after its last line
        epoch *= run.step / last["step"]
    config, settings = run.config, run.config.flat()
    return {
        "run": run.name,
        "settings": {name: settings[name] for name in names},
        "objective": config.loss.objective,
        "batch_size": config.run.batch_size,
        "temperature": config.loss.temperature,
        "seed": config.run.seed,
        "epoch": epoch,
        "epochs": config.run.epochs,
        "last_temperature": last.get("temperature"),
        "loss": last.get("loss"),
        "ess": last.get("ess"),
        "gain": last.get("gain"),
        "knn": watched.get("knn"),
        "mi": last.get("mi"),
        "mi_ceiling": last.get("mi_ceiling"),
        "pool_mi": watched.get("pool_mi"),
        "pool_ceiling": watched.get("pool_ceiling"),
        "images_per_second": median(speeds) if speeds else None,
        "verdict": verdict.get("verdict"),
        "state": run.state,
        "step": run.step,
        "failure": run.failure,
    }


def over_seeds(
    runs: Sequence[SweptRun], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Means over runs that differ in nothing but their seed; ``_spread`` is the deviation.

    That is the standard deviation of a sample. Only runs that are done count. Nothing where no
    two of them are alike.
    """
    groups: dict[TrainConfig, list[tuple[SweptRun, Mapping[str, Any]]]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.state == "done":
            groups.setdefault(run.config.override(seed=0), []).append((run, row))
    found = []
    for members in groups.values():
        if len(members) > 1:
            first, top = members[0]
            mean: dict[str, Any] = {"runs": first.name.removesuffix(f"-s{first.config.run.seed}")}
            mean["settings"] = {k: v for k, v in top["settings"].items() if k != "seed"}
            mean["seeds"] = [run.config.run.seed for run, _ in members]
            for name in MEASURED:
                values = [row[name] for _, row in members]
                known = None not in values
                mean[name] = fmean(values) if known else None
                mean[f"{name}_spread"] = stdev(values) if known else None
            found.append(mean | {name: top[name] for name in CEILINGS})
    return found
