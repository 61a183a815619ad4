"""The results of a sweep: a row per run, means over seeds, and their tables.

Numbers are never cut; on a narrow terminal columns are left out.
"""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.sweep import SweptRun, varied
from flatnce.pretrain.training.config import TrainConfig

__all__ = ["over_seeds", "show_tables", "sweep_rows"]

MEASURED = ("loss", "ess", "gain", "knn", "mi", "pool_mi")
"""Columns that are averaged over seeds."""
CEILINGS = ("mi_ceiling", "pool_ceiling")
"""Columns that are the same for all seeds."""


def sweep_rows(runs: Sequence[SweptRun]) -> list[dict[str, Any]]:
    """A row per run from its directory; what was not measured is None.

    ``settings`` has every setting that is not the same in all runs.
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
    if run.state == "stopped" and epoch:  # it was saved some steps after its last line
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
    """Means over finished runs that differ only in their seed.

    ``_spread`` is the sample standard deviation. The list is empty where no two runs are alike.
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


Row = Mapping[str, Any]

FORMATS = {"loss": ".3f", "ess": ".2f", "gain": ".2f", "knn": ".1%", "mi": ".2f", "pool_mi": ".2f"}
FORMATS |= {"mi_ceiling": ".2f", "pool_ceiling": ".2f", "images_per_second": ",.0f"}
HEADINGS = {"loss": "loss", "ess": "ESS", "gain": "gain", "knn": "kNN", "mi": "MI"}
HEADINGS |= {"mi_ceiling": "ceiling", "pool_mi": "pool MI", "images_per_second": "images/s"}
# Left out first on a narrow terminal: other columns or the name of the run show it too.
DISPENSABLE = ("images/s", "gain", "ESS", "epochs")
GAP = "  "


@dataclass(frozen=True)
class Column:
    """One column of text, aligned at the right unless ``left``."""

    heading: str
    cells: tuple[str, ...]
    left: bool = False

    @property
    def width(self) -> int:
        """Width of the longest text."""
        return max(map(len, (self.heading, *self.cells)))

    def lines(self) -> list[str]:
        """Heading and cells, padded to one width."""
        align = str.ljust if self.left else str.rjust
        return [align(text, self.width) for text in (self.heading, *self.cells)]


def show_tables(rows: Sequence[Row], means: Sequence[Row]) -> None:
    """Print the runs, and the means over seeds where there are any."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    tables = [("", _of_runs(rows))]
    if means:
        tables.append(("mean over seeds ± standard deviation", _of_means(means)))
    left_out: dict[str, None] = {}
    for title, columns in tables:
        kept, gone = fitted(columns, room, list(rows[0]["settings"]))
        left_out |= dict.fromkeys(gone)
        print(f"\n{title}" if title else "")
        for line in zip(*(column.lines() for column in kept), strict=True):
            print(GAP.join(line).rstrip())
    if left_out:
        print(f"\nno room for {', '.join(left_out)}; --json has them")


def fitted(
    columns: Sequence[Column], room: int | None, settings: Sequence[str]
) -> tuple[list[Column], list[str]]:
    """The columns that fit, and the headings of the others."""
    kept, gone = list(columns), []
    for heading in (*DISPENSABLE, *map(_option, reversed(settings))):
        if room is None or sum(c.width for c in kept) + len(GAP) * (len(kept) - 1) <= room:
            break
        fewer = [kept[0], *(column for column in kept[1:] if column.heading != heading)]
        gone += [heading] if len(fewer) < len(kept) else []
        kept = fewer
    return kept, gone


def _of_runs(rows: Sequence[Row]) -> list[Column]:
    numbers = ("loss", "ess", "gain", "knn", "mi", "mi_ceiling", "pool_mi", "images_per_second")
    return [
        _column("run", rows, lambda row: row["run"], left=True),
        *(column for column in _settings(rows) if column.heading != "epochs"),
        _column("epochs", rows, lambda row: f"{row['epoch']:.1f}/{row['epochs']}"),
        *(_numbers(name, rows) for name in numbers),
        _column("state", rows, _state, left=True),
    ]


def _of_means(means: Sequence[Row]) -> list[Column]:
    columns = [
        _column("runs", means, lambda mean: mean["runs"], left=True),
        *_settings(means),
        _column("seeds", means, lambda mean: str(len(mean["seeds"]))),
    ]
    for name in MEASURED:
        columns.append(_numbers(name, means, f"{name}_spread"))
        columns += [_numbers("mi_ceiling", means)] if name == "mi" else []
    return columns


def _column(
    heading: str, rows: Sequence[Row], text: Callable[[Row], str], left: bool = False
) -> Column:
    return Column(heading, tuple(map(text, rows)), left)


def _settings(rows: Sequence[Row]) -> list[Column]:
    """A column per varied setting."""
    found = []
    for name in rows[0]["settings"]:
        values = [row["settings"][name] for row in rows]
        left = any(isinstance(value, str) for value in values)
        found.append(Column(_option(name), tuple(map(str, values)), left))
    return found


def _option(name: str) -> str:
    return name.replace("_", "-")


def _numbers(name: str, rows: Sequence[Row], spread: str | None = None) -> Column:
    def shown(row: Row) -> str:
        if row[name] is None:
            return ""
        text = format(row[name], FORMATS[name])
        return text if spread is None else f"{text} ± {format(row[spread], FORMATS[name])}"

    return _column(HEADINGS[name], rows, shown)


def _state(row: Row) -> str:
    """The state of a run, with its verdict unless that is healthy."""
    unwell = row["verdict"] not in (None, "healthy") and row["state"] != "failed"
    return f"{row['state']}, {row['verdict']}" if unwell else str(row["state"])
