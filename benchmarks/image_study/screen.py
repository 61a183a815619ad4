"""Pieces 1 and 2 of the protocol: screen temperatures, then rates, at the tuning seed.

    python benchmarks/image_study/screen.py --piece 2 --data ROOT --out FOLDER --commit HASH

Step 1 trains both objectives at five temperatures. Step 2 trains each at two further rates, at the
temperature that step 1 chose for it. If a chosen rate is the largest or the smallest, step 3
trains each objective at one more rate beyond that end (rule 4 of the protocol). The choice is the
linear accuracy on held-out training images. The test images are never read: an empty file in
their place is enough.

`--preset digits --epochs 1` runs the same on a CPU in about a minute, to check the script.
"""

import argparse
import json
import time
from dataclasses import dataclass

from choices import CURVE, OBJECTIVES, beyond, score
from training import SCREEN_EPOCHS, Run, add_arguments, prepare, trained_and_evaluated


@dataclass(frozen=True)
class Piece:
    """What one screen fixes: the batch, and the rates of its two steps."""

    number: int
    batch: int
    first_rate: float
    other_rates: tuple[float, ...]


# Piece 1 chose the rate 0.03 for both objectives; piece 2 takes 8, 4 and 16 times that.
PIECES = {
    1: Piece(1, 32, 0.03, (0.015, 0.06)),
    2: Piece(2, 512, 0.24, (0.12, 0.48)),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--piece", type=int, choices=PIECES, default=1)
    add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=SCREEN_EPOCHS)
    parser.add_argument(
        "--until", type=float, default=1e9, help="start step 2 only if it ends in these seconds"
    )
    return parser.parse_args()


def chosen(records, objective):
    """The run of an objective with the best score; the order decides ties."""
    runs = [run for run in records if run.objective == objective]
    return max(runs, key=lambda run: score(records[run]))


def main():
    asked, began = arguments(), time.perf_counter()
    prepare(asked)
    piece = PIECES[asked.piece]

    def run_of(objective, temperature, rate):
        return Run(objective, piece.batch, temperature, rate, asked.epochs)

    first = [run_of(o, t, piece.first_rate) for t in CURVE for o in OBJECTIVES]
    records = trained_and_evaluated(asked, asked.piece, 1, dict.fromkeys(first, 1))
    took = time.perf_counter() - began
    best = {objective: chosen(records, objective) for objective in OBJECTIVES}
    second = [
        run_of(o, best[o].temperature, rate) for rate in piece.other_rates for o in OBJECTIVES
    ]
    print("step 1 took", round(took), "s; chosen:", best, flush=True)
    if took + 1.05 * took * len(second) / len(first) > asked.until:
        print("step 2 does not fit and is left out", flush=True)
    else:
        records |= trained_and_evaluated(asked, asked.piece, 2, dict.fromkeys(second, 2))
        found = {objective: chosen(records, objective) for objective in OBJECTIVES}
        rates = (piece.first_rate, *piece.other_rates)
        added = beyond(rates, {run.rate for run in found.values()})
        third = [run_of(o, found[o].temperature, rate) for rate in added for o in OBJECTIVES]
        if third:
            records |= trained_and_evaluated(asked, asked.piece, 3, dict.fromkeys(third, 3))
    best = {objective: chosen(records, objective).name for objective in OBJECTIVES}
    choice = {"piece": asked.piece, "rule": "linear accuracy on held-out training images", **best}
    (asked.out / "choice.json").write_text(json.dumps(choice, indent=1) + "\n")
    print("chosen:", best, f"in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
