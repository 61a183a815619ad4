"""Level of the p-value on tables without information, also for rows that depend on each other.

    python benchmarks/mi_suite/null_tables.py run --out FILE [--processes 2] [--tables 200]
    python benchmarks/mi_suite/null_tables.py table FILE [FILE ...]

X and Y are independent of each other in every table. ``run`` appends one JSON line per table and
leaves out tables that the file already holds, so it may be stopped at any time and continued.
"""

import argparse
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from score import append_missing, interval, read

Array = NDArray[np.float64]
Draw = tuple[Array, Array, dict]  # x, y and what is said about the rows


def _normal(rows: int, columns: int) -> Callable[[np.random.Generator], Draw]:
    def draw(rng: np.random.Generator) -> Draw:
        x, y = rng.normal(size=(2, rows, columns))
        return x, y, {}

    return draw


def _categories(rng: np.random.Generator) -> Draw:
    x = rng.choice(4, size=(100, 1), p=(0.5, 0.3, 0.15, 0.05)).astype(float)
    return x, rng.integers(0, 3, size=(100, 1)).astype(float), {}


def _words(rng: np.random.Generator) -> Draw:
    """Categories as a column of zeros and ones per value."""
    x, y, said = _categories(rng)
    return (x == np.unique(x)) * 1.0, (y == np.unique(y)) * 1.0, said


def _series(memory: float, rows: int, **said) -> Callable[[np.random.Generator], Draw]:
    """Two stationary AR(1) series with the coefficient ``memory``; at 1 they are random walks."""
    from scipy.signal import lfilter

    def draw(rng: np.random.Generator) -> Draw:
        noise = rng.normal(size=(2, rows, 1))
        if memory < 1:
            noise[:, 0] /= (1 - memory**2) ** 0.5
        x, y = lfilter([1.0], [1.0, -memory], noise, axis=1)
        return x, y, said

    return draw


def _grouped(say: bool) -> Callable[[np.random.Generator], Draw]:
    """Five similar rows of each of 60 persons."""

    def draw(rng: np.random.Generator) -> Draw:
        person = np.repeat(np.arange(60), 5)
        x, y = rng.normal(size=(2, 60, 2))[:, person] + 0.3 * rng.normal(size=(2, 300, 2))
        return x, y, {"groups": person} if say else {}

    return draw


KINDS: dict[str, Callable[[np.random.Generator], Draw]] = {
    "iid": _normal(100, 1),
    "categories": _categories,
    "words": _words,
    "200 columns": _normal(120, 100),
    "AR(0.5), blocks=auto": _series(0.5, 800, blocks="auto"),
    "AR(0.9), blocks=auto": _series(0.9, 3000, blocks="auto"),
    "AR(0.98), blocks=auto": _series(0.98, 12_000, blocks="auto"),
    "persons, groups": _grouped(True),
    "AR(0.5)": _series(0.5, 800),
    "AR(0.9)": _series(0.9, 800),
    "AR(0.98)": _series(0.98, 800),
    "random walks": _series(1.0, 800),
    "persons": _grouped(False),
}
KEY = ("kind", "table")  # of a record
LARGE = ("iid", "categories", "words", "200 columns")  # of which more tables are asked for


def fit(piece: tuple[str, int]) -> dict:
    """One table as a record; a refusal is recorded too."""
    import torch

    from flatnce import mi

    torch.set_num_threads(1)
    kind, number = piece
    x, y, said = KINDS[kind](np.random.default_rng([zlib.crc32(kind.encode()), number]))
    record = {"kind": kind, "table": number}
    try:
        found = mi.estimate(x, y, seed=number, device="cpu", baselines=False, **said)
    except ValueError as error:
        return {**record, "refused": str(error)[:200]}
    certified = not found.flagged("dependent")
    p = found.p_value if certified else None
    return {**record, "certified": certified, "p": p, "lower": found.lower}


def run(args: argparse.Namespace) -> None:
    counts = {kind: 5 * args.tables if kind in LARGE else args.tables for kind in args.kinds}
    pieces = [(kind, number) for kind, count in counts.items() for number in range(count)]
    append_missing(args.out, pieces, KEY, fit, args.processes)


def table(args: argparse.Namespace) -> None:
    records = list(read(args.files, KEY).values())
    print("| rows | tables | refused | not certified | p ≤ 0.05 | limit above 0 |")
    print(f"|{'---|' * 6}")
    for kind in KINDS:
        own = [record for record in records if record["kind"] == kind]
        if not own:
            continue
        refused = sum("refused" in record for record in own)
        said = [record for record in own if record.get("certified")]
        counts = f"{kind} | {len(own)} | {refused} | {len(own) - refused - len(said)}"
        shares = ["–", "–"]
        if said:
            small = sum(record["p"] <= 0.05 for record in said)
            above = sum(record["lower"] > 0 for record in said)
            shares = [interval(small, len(said)), interval(above, len(said))]
        print(f"| {counts} | {' | '.join(shares)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--out", required=True)
    command.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    command.add_argument("--tables", type=int, default=200, help="five times as many where fast")
    command.add_argument("--processes", type=int, default=1)
    command.set_defaults(function=run)
    command = commands.add_parser("table")
    command.add_argument("files", nargs="+")
    command.set_defaults(function=table)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
