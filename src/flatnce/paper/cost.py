"""What training costs: Table S1 of the paper (devices x hours x price), and the same for a run."""

import tomllib
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from flatnce.messages import check_at_least
from flatnce.pretrain.runs.log import Run, read_run

__all__ = ["PAPER", "PRICE_NOTE", "PaperRow", "RunCost", "paper_table", "run_cost"]


@dataclass(frozen=True)
class PaperRow:
    """A row of Table S1, and the price per device-hour that its figure follows from.

    The paper prints no prices; see :data:`PRICE_NOTE`. ``printed`` is the printed cost in US
    dollars, rounded to ``rounded_to``.
    """

    model: str
    sponsor: str
    negatives: int
    devices: int
    device: str
    hours: float
    price: float
    printed: int
    rounded_to: int
    source: str
    note: str = ""

    @property
    def cost(self) -> float:
        """Devices x hours x price, in US dollars."""
        return cost(self.devices, self.hours, self.price)

    @property
    def agrees(self) -> bool:
        """Whether the printed figure is this cost, rounded."""
        return abs(self.cost - self.printed) <= self.rounded_to / 2


_CONTENT = tomllib.loads(resources.files("flatnce.paper").joinpath("cost.toml").read_text("utf-8"))
PAPER = tuple(PaperRow(**row) for row in _CONTENT["rows"])
"""Table S1 of Chen et al., 2021, https://arxiv.org/abs/2107.01152, in its order."""
PRICE_NOTE: str = _CONTENT["price_note"]


@dataclass(frozen=True)
class RunCost:
    """What a run took and cost; ``price`` and ``cost`` are None where no price was given."""

    run: str
    devices: int
    device: str | None
    seconds: float
    finished: bool
    price: float | None

    @property
    def hours(self) -> float:
        """Hours of wall time."""
        return self.seconds / 3600

    @property
    def device_hours(self) -> float:
        """Devices x hours."""
        return self.devices * self.hours

    @property
    def cost(self) -> float | None:
        """Devices x hours x price."""
        return None if self.price is None else cost(self.devices, self.hours, self.price)


def cost(devices: int, hours: float, price: float) -> float:
    """Devices x hours x price: computing alone, without storage, network, tuning or evaluation."""
    check_at_least("devices", devices, 1)
    check_at_least("price", price, 0)
    return devices * hours * price


def paper_table() -> list[dict[str, Any]]:
    """The rows of Table S1 as plain data, with the computed cost beside the printed one."""
    return [{**asdict(row), "cost": row.cost, "agrees": row.agrees} for row in PAPER]


def run_cost(
    directory: str | Path, price: float | None = None, devices: int | None = None
) -> RunCost:
    """What a run has taken so far, and what it cost.

    By default the number of devices is what the run recorded, else 1.
    """
    run = read_run(directory)
    if devices is None:
        devices = run.environment.get("processes") or 1
    seconds = _seconds(run)
    cost(devices, seconds / 3600, price or 0.0)  # refuses invalid numbers
    finished = run.results is not None and "seconds" in run.results
    device = run.environment.get("device")
    return RunCost(run.directory.resolve().name, devices, device, seconds, finished, price)


def _seconds(run: Run) -> float:
    """Wall time from the results, or from the last measurement of an unfinished run."""
    known = [line.get("seconds") for line in (*run.metrics, run.results or {})]
    numbers = [seconds for seconds in known if seconds is not None]
    if not numbers:
        raise ValueError(
            f"{run.directory} does not say how long it took; name a run that has begun"
        )
    return float(numbers[-1])
