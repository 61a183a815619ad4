"""``flatnce cost``: Table S1 of the paper (devices x hours x price), and the same for a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from flatnce.cli.console import console_of, print_json, text_table
from flatnce.cli.options import parse_options
from flatnce.messages import check_at_least
from flatnce.pretrain.runs.log import read_run
from flatnce.toml_files import read_toml

__all__ = ["PAPER", "PRICE_NOTE", "PaperRow", "RunCost", "run_cost"]


@dataclass(frozen=True)
class PaperRow:
    """A row of Table S1, and the price per device-hour that its figure follows from."""

    model: str
    sponsor: str
    negatives: int
    devices: int
    device: str
    hours: float
    price: float  #: not printed in the paper; see :data:`PRICE_NOTE`
    printed: int  #: cost in US dollars
    rounded_to: int
    source: str
    note: str = ""

    @property
    def cost(self) -> float:
        """Devices x hours x price, in US dollars: computing alone."""
        return self.devices * self.hours * self.price

    @property
    def agrees(self) -> bool:
        """Whether the printed figure is this cost, rounded."""
        return abs(self.cost - self.printed) <= self.rounded_to / 2


_CONTENT = read_toml(__file__, "cost.toml")
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
        """Devices x hours x price: computing alone, without storage, network or tuning."""
        return None if self.price is None else self.device_hours * self.price


def run_cost(
    directory: str | Path, price: float | None = None, devices: int | None = None
) -> RunCost:
    """What a run has taken so far, and what it cost.

    By default the number of devices is what the run recorded, else 1.
    """
    run = read_run(directory)
    if devices is None:
        devices = run.environment.get("processes") or 1
    check_at_least("devices", devices, 1)
    check_at_least("price", price or 0.0, 0)
    # From the results, or from the last measurement of an unfinished run.
    known = [line.get("seconds") for line in (*run.metrics, run.results or {})]
    seconds = [float(one) for one in known if one is not None]
    if not seconds:
        raise ValueError(
            f"{run.directory} does not say how long it took; name a run that has begun"
        )
    finished = run.results is not None and "seconds" in run.results
    device = run.environment.get("device")
    return RunCost(run.directory.resolve().name, devices, device, seconds[-1], finished, price)


# The command.


@dataclass(frozen=True)
class CostOptions:
    """Devices x hours x price: Table S1 of the paper, and your own run beside it.

    Computing alone: no storage, no network, no tuning.
    """

    # A run's name in runs/, or its folder.
    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    # What one device costs you per hour.
    price: Annotated[float | None, tyro.conf.arg(metavar="DOLLARS")] = None
    # How many computed at once; by default what the run recorded, else 1.
    devices: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    json: bool = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(CostOptions, "cost", arguments)
    for name in ("price", "devices"):
        if options.run is None and getattr(options, name) is not None:
            raise ValueError(
                f"--{name} {getattr(options, name)} is for a run of yours: "
                "`flatnce cost RUN --price 2.5 --devices 1`"
            )
    own = None
    if options.run is not None:
        from flatnce.pretrain.runs.folder import find_run

        own = run_cost(find_run(options.run), options.price, options.devices)
    if options.json:
        fields = ("hours", "device_hours", "cost")
        plain = own and asdict(own) | {name: getattr(own, name) for name in fields}
        table = [{**asdict(row), "cost": row.cost, "agrees": row.agrees} for row in PAPER]
        print_json({"paper": table, "note": PRICE_NOTE, "run": plain})
        return 0
    header = ["model", "devices", "hours", "device-hours", "price", "cost", "as printed"]
    rows = []
    for row in PAPER:
        rounded = ", rounded" if row.agrees and row.rounded_to >= 1_000 else ""
        rows.append(_cells(row.model, row, ",.0f", f"${row.printed:,.0f}{rounded}"))
    if own is not None:
        rows.append(_cells(own.run, own, ",.3g"))
    title = "Cost of training a contrastive learner (Table S1 of the paper)"
    console = console_of()
    console.print(text_table(header, rows, left=2, title=title))
    for line in (PRICE_NOTE, *(f"{row.model}: {row.note}." for row in PAPER if row.note)):
        console.print(f"\n{line}", markup=False)
    if own is not None and not own.finished:
        console.print(f"\n{own.run} is not finished: its hours are those so far.", markup=False)
    if own is not None and own.price is None:
        console.print("\nGive your price per device-hour: --price.")
    return 0


def _cells(name: str, row: PaperRow | RunCost, style: str, printed: str = "") -> list[str]:
    hours = [format(number, style) for number in (row.hours, row.devices * row.hours)]
    price = "" if row.price is None else f"${row.price:g}"
    cost = "" if row.cost is None else _dollars(row.cost)
    return [name, f"{row.devices:,} x {row.device or 'device'}", *hours, price, cost, printed]


def _dollars(amount: float) -> str:
    """To the dollar, to the cent below 100, or to one significant digit below a cent."""
    if amount >= 100:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.1g}"
