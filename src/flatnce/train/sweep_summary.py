"""The runs of a sweep as rows of numbers, and means over seeds with their spread."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from flatnce.runlog import read_run
from flatnce.train.config import TrainConfig
from flatnce.train.sweep import SweptRun

__all__ = ["MEASURED", "over_seeds", "row_of"]

MEASURED = ("loss", "ess", "gain", "knn", "mi")
"""What is averaged over seeds."""


def row_of(run: SweptRun) -> dict[str, Any]:
    """Where a run stands, from its directory; what it has not measured is None.

    Arguments:
        run: The run.
    """
    metrics: list[dict[str, Any]] = []
    if (run.directory / "config.json").is_file():
        metrics = read_run(run.directory).metrics
    lines = [line for line in metrics if line["kind"] == "train"]
    last: Mapping[str, Any] = lines[-1] if lines else {}
    watched = [line for line in metrics if line["kind"] == "watch"]
    speeds = [line["images_per_second"] for line in lines if line["images_per_second"]]
    config = run.config
    return {
        "run": run.name,
        "objective": config.loss.objective,
        "batch_size": config.run.batch_size,
        "temperature": last.get("temperature") or config.loss.temperature,
        "seed": config.run.seed,
        "epoch": last.get("epoch", 0.0),
        "epochs": config.run.epochs,
        "loss": last.get("loss"),
        "ess": last.get("ess"),
        "gain": last.get("gain"),
        "knn": watched[-1].get("knn") if watched else None,
        "mi": last.get("mi"),
        "mi_ceiling": last.get("mi_ceiling"),
        "images_per_second": median(speeds) if speeds else None,
        "state": run.state,
        "failure": run.failure,
    }


def over_seeds(
    runs: Sequence[SweptRun], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Means and standard deviations over runs that differ in nothing but their seed.

    Only runs that are done count. Nothing where no two of them are alike.

    Arguments:
        runs: All of a sweep.
        rows: Theirs, of :func:`row_of`.
    """
    groups: dict[TrainConfig, list[tuple[SweptRun, Mapping[str, Any]]]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.state == "done":
            groups.setdefault(run.config.override(seed=0), []).append((run, row))
    found = []
    for members in groups.values():
        if len(members) > 1:
            first = members[0][0]
            mean: dict[str, Any] = {"runs": first.name.removesuffix(f"-s{first.config.run.seed}")}
            mean["seeds"] = [run.config.run.seed for run, _ in members]
            for name in MEASURED:
                values = [row[name] for _, row in members]
                known = None not in values
                mean[name] = fmean(values) if known else None
                mean[f"{name}_spread"] = stdev(values) if known else None
            found.append(mean)
    return found
