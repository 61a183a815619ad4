"""``flatnce cost``: Table S1 of the paper, devices x hours x price, and the same of a run."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flatnce.pretrain.runs.log import Run, read_run

__all__ = ["PAPER", "PRICE_NOTE", "PaperRow", "RunCost", "paper_table", "run_cost"]


@dataclass(frozen=True)
class PaperRow:
    """A row of Table S1, with what its figure follows from.

    Arguments:
        model: What was trained.
        sponsor: By whom.
        negatives: "Neg. Size", as printed.
        devices: How many, as printed.
        device: What each is; the price is of one.
        hours: Of training; the printed days times 24.
        price: US dollars for one device for an hour. The paper prints none: this is the price
            that its figures follow from, see :data:`PRICE_NOTE`.
        printed: The cost as printed, in US dollars.
        rounded_to: What the printed cost is rounded to, in US dollars.
        source: Where devices and hours come from.
        note: What a reader should know of the row; empty where nothing.
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
        """Whether the printed figure is this cost, rounded as it is printed."""
        return abs(self.cost - self.printed) <= self.rounded_to / 2


PAPER = (
    PaperRow(
        "MoCo",
        "Facebook",
        65_536,
        64,
        "V100 GPU",
        6 * 24.0,
        2.48,
        23_000,
        1_000,
        "He et al., 2020, https://arxiv.org/abs/1911.05722",
    ),
    PaperRow(
        "SimCLR",
        "Google",
        4_096,
        128,
        "TPU v3 core",
        15.0,
        0.896,
        1_720,
        10,
        "Chen et al., 2020, https://arxiv.org/abs/2002.05709",
        "4,096 is the batch size; each anchor has 8,190 negatives",
    ),
    PaperRow(
        "CLIP",
        "OpenAI",
        32_768,
        592,
        "V100 GPU",
        18 * 24.0,
        2.48,
        634_000,
        1_000,
        "Radford et al., 2021, https://arxiv.org/abs/2103.00020",
    ),
)
"""Table S1 of Chen et al., 2021, https://arxiv.org/abs/2107.01152, in its order."""

PRICE_NOTE = (
    "The paper took its prices from Google Cloud (TPU) and Amazon (GPU) and prints none. $2.48 a "
    "GPU-hour is the only price in whole cents that gives both GPU rows; $0.896 a core-hour "
    "follows from the TPU row alone. Both are of 2021: for a run of today give your own price."
)


@dataclass(frozen=True)
class RunCost:
    """What a run took, and cost.

    Arguments:
        run: Its name.
        devices: How many computed at once.
        device: What they are, as the run recorded it; None where it did not.
        seconds: Of wall time.
        finished: Whether the run reached its end.
        price: For one device for an hour; None where none was given.
    """

    run: str
    devices: int
    device: str | None
    seconds: float
    finished: bool
    price: float | None

    @property
    def hours(self) -> float:
        """Of wall time."""
        return self.seconds / 3600

    @property
    def device_hours(self) -> float:
        """Devices x hours."""
        return self.devices * self.hours

    @property
    def cost(self) -> float | None:
        """Devices x hours x price; None without a price."""
        return None if self.price is None else cost(self.devices, self.hours, self.price)


def cost(devices: int, hours: float, price: float) -> float:
    """Devices x hours x price.

    Limits:
        Computing alone: no storage, no network, no tuning, no evaluation; the paper counts so too.

    Arguments:
        devices: How many.
        hours: Of wall time.
        price: For one device for an hour.

    Examples:
        >>> round(cost(64, 6 * 24.0, 2.48))
        22856
    """
    if devices < 1:
        raise ValueError(f"devices={devices} must be at least 1")
    for name, value in (("hours", hours), ("price", price)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}={value} must be a finite number of at least 0")
    return devices * hours * price


def paper_table() -> list[dict[str, Any]]:
    """The rows of Table S1 as plain data, with the computed cost beside the printed one.

    Examples:
        >>> [(row["model"], round(row["cost"]), row["printed"]) for row in paper_table()]
        [('MoCo', 22856, 23000), ('SimCLR', 1720, 1720), ('CLIP', 634245, 634000)]
    """
    return [{**asdict(row), "cost": row.cost, "agrees": row.agrees} for row in PAPER]


def run_cost(
    directory: str | Path, price: float | None = None, devices: int | None = None
) -> RunCost:
    """What a run took so far, and what it cost.

    Arguments:
        directory: The run's folder, of any kind that records its seconds.
        price: For one device for an hour, in any currency; a price is the user's to give.
        devices: How many computed at once; by default what the run recorded, else 1.
    """
    run = read_run(directory)
    many = _devices(run) if devices is None else devices
    found = RunCost(
        run.directory.resolve().name,
        many,
        run.environment.get("device"),
        _seconds(run),
        run.results is not None and "seconds" in run.results,
        price,
    )
    cost(many, found.hours, 0.0 if price is None else price)  # refuses what is no number of them
    return found


def _seconds(run: Run) -> float:
    """Wall time: of the results, or of the last measurement where the run is not done."""
    if run.results is not None and isinstance(run.results.get("seconds"), int | float):
        return float(run.results["seconds"])
    told = [line.get("seconds") for line in run.metrics]
    numbers = [seconds for seconds in told if isinstance(seconds, int | float)]
    if not numbers:
        raise ValueError(
            f"{run.directory} does not say how long it took: neither results.json nor "
            "metrics.jsonl has seconds; name a run that has begun"
        )
    return float(max(numbers))


def _devices(run: Run) -> int:
    recorded = run.environment.get("processes", 1)
    return recorded if isinstance(recorded, int) and recorded >= 1 else 1
