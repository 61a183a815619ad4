"""The suite's distributions of two categories as words: a column of zeros and ones per value.

    python benchmarks/mi_suite/words.py run --out FILE [--processes 2]
    python benchmarks/mi_suite/words.py table FILE

``run`` appends one JSON line per fit and leaves out fits that the file already holds.
"""

import argparse
import math

import numpy as np
from laws import LAWS
from score import KEY, ROWS, append_missing, generator_of, interval, read

WORDS = ("categories-3x3", "categories-channel-10", "categories-zipf-30", "categories-independent")


def fit(piece: tuple[str, int, int, str]) -> dict:
    """One table as a record."""
    import torch

    from flatnce import mi

    torch.set_num_threads(1)
    law, n, seed, method = piece
    x, y, _ = LAWS[law].sample(n, generator_of(law, n, seed))
    sides = [(side == np.unique(side)).astype(float) for side in (x, y)]
    record = {"law": law, "n": n, "seed": seed, "method": method}
    try:
        found = mi.estimate(*sides, method=method, seed=seed, device="cpu", baselines=False)
    except ValueError as error:
        return {**record, "error": str(error)[:200], "lower": 0.0, "p": 1.0}
    record |= {"critic": found.nats, "lower": found.lower, "p": found.p_value}
    best = found.best
    return (
        record
        if best is None
        else record | {"value": best.nats, "low": best.low, "high": best.high}
    )


def run(args: argparse.Namespace) -> None:
    pieces = [(law, n, seed, args.method) for seed in range(20) for n in args.n for law in WORDS]
    append_missing(args.out, pieces, KEY, fit, args.processes)


def table(args: argparse.Namespace) -> None:
    records = list(read(args.files, KEY).values())
    print("| distribution | truth | n | mean limit | limits of 0 | error of the best estimate |")
    print(f"|{'---|' * 6}")
    for law in WORDS:
        truth = LAWS[law].truth
        for n in sorted({record["n"] for record in records}):
            own = [record for record in records if (record["law"], record["n"]) == (law, n)]
            lower = [record["lower"] for record in own]
            errors = [record["value"] - truth for record in own if "value" in record]
            error = f"{math.sqrt(np.mean(np.square(errors))):.3f}" if errors else "–"
            zeros = f"{sum(value == 0 for value in lower)} of {len(own)}"
            print(f"| {law} | {truth:.3f} | {n} | {np.mean(lower):.3f} | {zeros} | {error} |")
    above = sum(record["lower"] > LAWS[record["law"]].truth for record in records)
    print(f"\nlimit above the truth {interval(above, len(records))}")
    said = [record for record in records if "low" in record]
    if said:
        holds = sum(one["low"] <= LAWS[one["law"]].truth <= one["high"] for one in said)
        print(f"interval holds it {interval(holds, len(said))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--out", required=True)
    command.add_argument("--method", default="auto")
    command.add_argument("--n", type=int, nargs="+", default=list(ROWS))
    command.add_argument("--processes", type=int, default=1)
    command.set_defaults(function=run)
    command = commands.add_parser("table")
    command.add_argument("files", nargs="+")
    command.set_defaults(function=table)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
