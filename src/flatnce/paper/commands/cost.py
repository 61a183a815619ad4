"""``flatnce cost``: what the paper's table says training costs, and what your own run cost."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from flatnce.cli.console import console_of, text_table
from flatnce.paper.cost import PAPER, PRICE_NOTE, PaperRow, RunCost, paper_table, run_cost


@dataclass(frozen=True)
class CostOptions:
    """Devices x hours x price: Table S1 of the paper, and your own run beside it.

    Computing alone: no storage, no network, no tuning.

    Arguments:
        run: A run's name in runs/, or its folder.
        price: What one device costs you per hour.
        devices: How many computed at once; by default what the run recorded, else 1.
        json: Print JSON and nothing else.
    """

    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    price: Annotated[float | None, tyro.conf.arg(metavar="DOLLARS")] = None
    devices: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = tyro.cli(CostOptions, prog="flatnce cost", args=arguments)
    for name in ("price", "devices"):
        if options.run is None and getattr(options, name) is not None:
            raise ValueError(
                f"--{name} {getattr(options, name)} is for a run of yours: "
                "`flatnce cost RUN --price 2.5 --devices 1`"
            )
    own = None
    if options.run is not None:
        from flatnce.pretrain.training.saved import find_run

        own = run_cost(find_run(options.run), options.price, options.devices)
    if options.json:
        fields = ("hours", "device_hours", "cost")
        plain = own and asdict(own) | {name: getattr(own, name) for name in fields}
        print(json.dumps({"paper": paper_table(), "note": PRICE_NOTE, "run": plain}))
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
