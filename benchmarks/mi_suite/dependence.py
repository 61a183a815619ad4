"""How often the flag ``dependent`` is raised, on independent and on dependent rows.

    python benchmarks/mi_suite/dependence.py run     # dependence.json, minutes on one core
    python benchmarks/mi_suite/dependence.py table   # the tables of two pages

The table of ``mutual-information-methods.md`` counts how often the flag is raised; no critic is
trained for it, and groups are examined by the first row of each. The table of
``mutual-information-pitfalls.md`` counts certified limits above 0 where x and y are independent.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.signal import lfilter

from flatnce.environment import environment
from flatnce.mi import estimate
from flatnce.mi.memory import memory_of

FILE = Path(__file__).with_name("dependence.json")
Sides = NDArray[np.float64]  # two tables: x and y
Draw = Callable[[np.random.Generator], Sides]


def plain(rows: int, columns: int = 1, change: Callable = lambda values: values) -> Draw:
    """Rows that are independent of each other; y shares information with x."""

    def draw(random: np.random.Generator) -> Sides:
        x, noise = random.normal(size=(2, rows, columns))
        return np.stack((change(x), change(x + noise)))

    return draw


def ordered(by: Callable[[NDArray], NDArray]) -> Draw:
    """Independent rows, sorted by x, which is a number or a class."""

    def draw(random: np.random.Generator) -> Sides:
        x, noise = random.normal(size=(2, 300, 1))
        x = by(x)
        return np.stack((x, x + noise))[:, np.argsort(x[:, 0], kind="stable")]

    return draw


def autoregressive(memory: float, rows: int, random: np.random.Generator) -> NDArray:
    return lfilter([1.0], [1.0, -memory], random.normal(size=rows))


def series(memory: float, rows: int) -> Draw:
    return lambda random: np.stack(
        [autoregressive(memory, rows, random)[:, None] for _ in range(2)]
    )


def seasonal(season: int, rows: int = 480) -> Draw:
    """Each place in the season has a series of its own, with a memory of 0.95."""

    def side(random: np.random.Generator) -> NDArray:
        years = [autoregressive(0.95, rows // season, random) for _ in range(season)]
        return np.stack(years, axis=1).reshape(-1, 1)

    return lambda random: np.stack([side(random) for _ in range(2)])


def windows(random: np.random.Generator) -> Sides:
    noise = random.normal(size=(2, 88))
    return np.stack([noise[:, lag : lag + 83] for lag in range(5)], axis=2)


def volatile(rows: int) -> Draw:
    def draw(random: np.random.Generator) -> Sides:
        size = [np.exp(0.4 * autoregressive(0.95, rows, random)) for _ in range(2)]
        return np.stack(size)[:, :, None] * random.normal(size=(2, rows, 1))

    return draw


def listed(persons: int, years: int) -> Draw:
    """A table that lists all persons year after year."""

    def draw(random: np.random.Generator) -> Sides:
        own = np.tile(random.normal(size=(2, persons, 2)), (1, years, 1))
        return own + 0.3 * random.normal(size=own.shape)

    return draw


def cycle(random: np.random.Generator) -> Sides:
    """Two sines of 100 rows with phases at random, under noise of their own size."""
    phase = random.uniform(0, 2 * np.pi, size=(2, 1))
    sides = np.sin(2 * np.pi * np.arange(400) / 100 + phase) * np.sqrt(2)
    return (sides + random.normal(size=sides.shape))[:, :, None]


def in_order(times: int, columns: int, noise: float) -> Draw:
    """The rows of each object follow each other."""

    def draw(random: np.random.Generator) -> Sides:
        sides = np.repeat(random.normal(size=(2, 60, columns)), times, axis=1)
        return sides + noise * random.normal(size=sides.shape)

    return draw


def sites(random: np.random.Generator) -> list[NDArray]:
    """Twenty sites with twelve rows: x is two numbers of the site, y differs between sites."""
    x = np.repeat(random.normal(size=(20, 2)), 12, axis=0)
    y = np.repeat(random.normal(size=(20, 1)), 12, axis=0)
    return [x, y + 0.5 * random.normal(size=y.shape)]


def fields(random: np.random.Generator) -> Sides:
    """Two smooth fields on a grid of 15 × 15 cells, row by row."""
    return gaussian_filter(random.normal(size=(2, 15, 15)), (0, 2, 2)).reshape(2, -1, 1)


def clusters(centres: int, rows: int) -> Draw:
    """Independent rows, each near one of some points."""

    def draw(random: np.random.Generator) -> Sides:
        points = random.normal(size=(2, centres, 5))[:, random.integers(centres, size=rows)]
        return points + 0.1 * random.normal(size=points.shape)

    return draw


INDEPENDENT: dict[str, tuple[int, list[Draw]]] = {
    "1 + 1 normal columns, 100 rows": (1000, [plain(100)]),
    "1 + 1 normal columns, 300 rows": (1000, [plain(300)]),
    "20 + 20 normal columns, 200 rows": (1000, [plain(200, 20)]),
    "heavy tails, 200 rows": (1000, [plain(200, change=np.sinh)]),
    "rare events of 3 %, 200 rows": (1000, [plain(200, change=lambda v: (v > 1.88) * 1.0)]),
    "whole numbers from −2 to 2, 300 rows": (
        1000,
        [plain(300, change=lambda v: np.clip(np.rint(v), -2, 2))],
    ),
    "sorted by x, 300 rows": (1000, [ordered(np.copy)]),
    "sorted by x, which is a class, 300 rows": (1000, [ordered(np.rint)]),
    "30 to 200 tight clusters, 200 to 240 rows": (
        1000,
        [clusters(30, 200), clusters(60, 240), clusters(200, 200)],
    ),
    "groups: 30, 40, 50 and 83 of them": (5000, [plain(rows) for rows in (30, 40, 50, 83)]),
}
DEPENDENT: dict[str, tuple[int, list[Draw]]] = {
    "two AR(0.5) series, 200 rows": (30, [series(0.5, 200)]),
    "a season of 4, 7 or 12 rows, 480 rows": (30, [seasonal(season) for season in (4, 7, 12)]),
    "a season of 52 rows, 468 rows": (30, [seasonal(52)]),
    "windows of five rows that overlap, 83 rows": (30, [windows]),
    "similar volatility only, 1,000 rows": (30, [volatile(1000)]),
    "similar volatility only, 200 rows": (30, [volatile(200)]),
    "40 persons in 10 years, or 100 in 2, year after year": (30, [listed(40, 10), listed(100, 2)]),
    "two sines under noise of their own size, 400 rows": (30, [cycle]),
    "random walks of 50 or 83 groups": (30, [series(1.0, 50), series(1.0, 83)]),
    "random walks of 30 groups": (30, [series(1.0, 30)]),
}


UNSEEN: dict[str, Callable[[np.random.Generator], Sides | list[NDArray]]] = {
    "60 objects, each measured 4 times, 5 + 5 columns, noise 0.1": in_order(4, 5, 0.1),
    "the same with noise 0.5": in_order(4, 5, 0.5),
    "the same in 1 + 1 columns, noise 0.1": in_order(4, 1, 0.1),
    "20 sites with 12 rows each: x is two numbers of the site, y differs between sites": sites,
    "two random walks": series(1.0, 240),
    "two smooth fields on a grid of 15 × 15 cells": fields,
}


def limits(draw: Callable, shuffled: bool, tables: int = 20) -> tuple[int, int]:
    """In how many tables the rows are refused, and in how many the limit is above 0."""
    refused = above = 0
    for seed in range(tables):
        random = np.random.default_rng(seed)
        x, y = draw(random)
        order = random.permutation(len(x)) if shuffled else np.arange(len(x))
        found = estimate(x[order], y[order], steps=100, baselines=False)
        refused += found.flagged("dependent")
        above += found.lower > 0
    return refused, above


def count(draws: list[Draw], tables: int) -> int:
    """Of so many tables of each kind, those whose rows are found to depend on each other."""
    return sum(
        memory_of(*draw(np.random.default_rng([kind, table]))) is not None
        for kind, draw in enumerate(draws)
        for table in range(tables)
    )


def run() -> None:
    record = {"environment": environment(), "independent": [], "dependent": [], "unseen": []}
    for part, kinds in (("independent", INDEPENDENT), ("dependent", DEPENDENT)):
        for name, (tables, draws) in kinds.items():
            found = {"rows": name, "tables": tables * len(draws), "found": count(draws, tables)}
            print(found, flush=True)
            record[part].append(found)
    for name, draw in UNSEEN.items():
        found = {"rows": name, "in order": limits(draw, False), "shuffled": limits(draw, True)}
        print(found, flush=True)
        record["unseen"].append(found)
    FILE.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def table_of_limits(record: dict) -> str:
    """The table of the page on pitfalls."""
    lines = ["| rows | in order | limit above 0 | shuffled | limit above 0 |", "|---" * 5 + "|"]
    for row in record["unseen"]:
        cells = []
        for refused, above in (row["in order"], row["shuffled"]):
            said = {0: "not seen", 20: "refused"}.get(refused, f"{refused} refused")
            cells += [said, f"{above} of 20"]
        lines.append(f"| {row['rows']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(record: dict) -> str:
    """The table of the page on methods."""
    lines = ["| rows | tables | `dependent` is raised |", "|---|---|---|"]
    for part in ("independent", "dependent"):
        for row in record[part]:
            name = f"independent: {row['rows']}" if part == "independent" else row["rows"]
            lines.append(f"| {name} | {row['tables']:,} | {row['found']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    if parser.parse_args().command == "run":
        run()
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    print(table(recorded), table_of_limits(recorded), sep="\n\n")
