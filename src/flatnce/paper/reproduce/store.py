"""The run store: what has been trained, by config, so that nothing is trained twice.

A store is a folder of records, one file per run, with the runs and their weights in ``runs``. A
record has all numbers that an experiment reads, so figures are drawn again without the weights.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatnce.paper.reproduce.experiment import TrainingRun
from flatnce.pretrain.data import is_path
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.runs.records import (
    key_of,
    read_records,
    record_of,
    settings_of,
    write_record,
)
from flatnce.pretrain.sweeping.sweep import SweepReport, sweep
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.saved import CHECKPOINTS

COMMITTED = Path("benchmarks", "reproduce", "records")  # in a clone
LINES = 60  # of training in a record, beside those of checks

Progress = Callable[[Mapping[str, TrainConfig]], AbstractContextManager[SweepReport]]
"""Makes the function that shows each line of the runs that are trained."""


def committed_records() -> list[Path]:
    """Folders of committed records: of the clone one is in, and of that flatnce is run from."""
    return [clone / COMMITTED for clone in (Path(), Path(__file__).parents[4])]


class Store:
    """The records in a folder, which is written to, and in others."""

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        is_file = folder.exists() and not folder.is_dir()
        if is_file or (folder / "config.json").exists():
            what = "file" if is_file else "run"
            raise ValueError(f"store={str(folder)!r} is a {what}; name a folder of records")
        self.folder = folder
        self.records: dict[str, dict[str, Any]] = {}
        for place in (*others, folder):
            for record in read_records(place).values():
                self._keep(record)

    def _keep(self, record: dict[str, Any]) -> None:
        if "findings" in record:
            self.records[record["key"]] = record
            return
        with suppress(ValueError):  # it has a setting that no longer exists: nothing asks for it
            now = TrainConfig.from_plain({"all": settings_of(record)})
            self.records[key_of(now.plain(), measured=True)] = record

    def write(self, record: dict[str, Any]) -> None:
        """Write a record, in place of that of the same config."""
        self._keep(record)
        write_record(record, self.folder)

    def find(self, planned: TrainingRun) -> TrainingRun:
        """The run with its record where there is one, and with its weights where they are here."""
        key, name = _identity(planned.config)
        place = self.folder / "runs" / name
        there = place if checkpoint.steps(place / CHECKPOINTS) else None
        return replace(planned, record=self.records.get(key), directory=there, store=self)

    def train(self, runs: Sequence[TrainingRun], progress: Progress) -> None:
        """Train runs side by side and record them; begun ones continue exactly."""
        names = {_identity(run.config)[1]: run for run in runs}
        configs = {name: run.config for name, run in names.items()}
        with progress({run.name: run.config for run in runs}) as shown:
            ended = sweep(
                configs,
                self.folder / "runs",
                report=lambda name, line: shown(names[name].name, line),
                shared=True,
            )
        for run in ended:
            if run.state == "done" or run.diverged:
                self._add(run.name, configs[run.name], run.directory, run.failure)
        if failed := [run for run in ended if run.state == "failed" and not run.diverged]:
            raise ValueError(f"{names[failed[0].name].name}: {failed[0].failure}")
        if any(run.state in ("stopped", "waiting") for run in ended):
            raise KeyboardInterrupt

    def _add(self, name: str, config: TrainConfig, directory: Path, failure: str) -> None:
        """Record a run that has ended."""
        run = replace(read_run(directory), config=_named(config).plain())
        steps = [step for step in checkpoint.steps(directory / CHECKPOINTS) if step > 0]
        evaluations = list((run.results or {}).get("evaluations", ()))
        record = record_of(name, run, every=config.run.epochs / LINES, measured=True)
        record |= {"failure": failure, "checkpoints": steps, "evaluations": evaluations}
        self.write(record)


def _identity(config: TrainConfig) -> tuple[str, str]:
    """The key of a run, and the name of its record and of its folder."""
    named = _named(config)
    key = key_of(named.plain(), measured=True)
    return key, f"{named.usual_name}-{key[-8:]}"


def _named(config: TrainConfig) -> TrainConfig:
    """The config in which ImageNet is named, and not where it lies."""
    # It is the only set that experiments read from a folder of the user's.
    return config.override(data="imagenet") if is_path(config.data.data) else config
