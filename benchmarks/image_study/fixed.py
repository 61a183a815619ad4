r"""Piece 3 of the protocol: fixed temperatures at 100 epochs, at the tuning seed.

    python benchmarks/image_study/fixed.py --parts rate 512 --commit HASH --data ROOT \
        --out FOLDER --work FOLDER

Part `rate` adds the rate 1.92 at batch 512 to the screen of piece 2, for both objectives (rule 4
of the protocol). The other parts are batches: each trains the two best temperatures of the screen
for 100 epochs per objective, at the rate that the two screens give by a power law in the batch
size. A part that does not end in `--until` seconds at the given speed is not started; it can be
run later, because each part reads what it needs from the committed records.

`--preset digits --epochs 1` runs the same on a CPU, to check the script.
"""

import argparse
import sys

from choices import OBJECTIVES, objective_of, rate_at, rate_of
from training import SCREEN_EPOCHS, Run, add_part_arguments, run_parts

PARTS = ("rate", "512", "256", "128", "32")
ADDED_RATE = 1.92
# Temperatures of the screens in the order of their accuracy: of piece 1 for batch 32, of piece 2
# for the others.
TEMPERATURES = {
    32: {"infonce": (0.2, 0.3), "flatnce": (0.1, 0.2)},
    512: {"infonce": (0.2, 0.1), "flatnce": (0.2, 0.3)},
}


def check_added_rate(records):
    """Refuse the larger batches before both objectives have been screened at the added rate."""
    done = {objective_of(one) for one in records if rate_of(one) == ADDED_RATE}
    if done != set(OBJECTIVES):
        sys.exit(
            f"rate {ADDED_RATE} has records for {sorted(done)}: run --parts rate first (rule 4 of "
            "the protocol)"
        )


def runs_of(part, epochs, records):
    """The runs of a part."""
    if part == "rate":
        short = min(epochs, SCREEN_EPOCHS)
        return [Run(o, 512, TEMPERATURES[512][o][0], ADDED_RATE, short) for o in OBJECTIVES]
    batch = int(part)
    if batch != 32:
        check_added_rate(records)
    screened = 32 if batch == 32 else 512
    return [
        Run(o, batch, temperature, rate_at(batch, o, records), epochs)
        for o in OBJECTIVES
        for temperature in TEMPERATURES[screened][o]
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_part_arguments(parser, PARTS)
    run_parts(parser.parse_args(), 3, runs_of)


if __name__ == "__main__":
    main()
