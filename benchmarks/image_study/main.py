r"""Piece 5 of the protocol: the four arms at five seeds, at batch 32 and InfoNCE's best batch.

    python benchmarks/image_study/main.py --parts 32-10 best-10 --commit HASH --data ROOT \
        --out FOLDER --work FOLDER

A part is a batch and a seed. It trains InfoNCE and FlatNCE at the temperatures that piece 3 chose,
and both at the ESS targets that piece 4 chose, side by side. Then each is evaluated on the test
images, once. `best` is the batch at which InfoNCE was best in piece 3, or the best of the others
if that is 32. A part takes less than 15 minutes of one H200; one that does not end in `--until`
seconds at the given speed is not started.

`--preset digits --epochs 1` runs the same on a CPU, to check the script; it needs records of
pieces 3 and 4 in `--out`.
"""

import argparse
import sys

from choices import (
    BATCHES,
    EVALUATION_SEEDS,
    OBJECTIVES,
    SMALL,
    best,
    fixed_temperatures,
    rate_at,
    second_batch,
    target_of,
    targets,
    temperature_of,
)
from target import added
from training import STARTING_TEMPERATURE, Run, add_part_arguments, run_parts

PARTS = tuple(f"{batch}-{seed}" for seed in EVALUATION_SEEDS for batch in (SMALL, "best"))


def check_choices(records):
    """Refuse to start before pieces 3 and 4 have chosen."""
    missing = [
        str(batch)
        for batch in BATCHES
        if not all(fixed_temperatures(records, objective, batch) for objective in OBJECTIVES)
    ]
    if missing:
        sys.exit(f"piece 3 is not complete: run fixed.py --parts {' '.join(missing)} first")
    if added(records):
        sys.exit("a chosen target lies at the end of its grid: run target.py --parts beyond first")


def runs_of(part, epochs, records):
    """The four arms of a part."""
    check_choices(records)
    name, seed = part.split("-")
    batch = second_batch(records) if name == "best" else int(name)
    runs = []
    for objective in OBJECTIVES:
        rate = rate_at(batch, objective, records)
        tuned = temperature_of(best(fixed_temperatures(records, objective, batch)))
        target = target_of(best(targets(records, objective)))
        runs.append(Run(objective, batch, tuned, rate, epochs, seed=int(seed)))
        runs.append(
            Run(objective, batch, STARTING_TEMPERATURE, rate, epochs, ess=target, seed=int(seed))
        )
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_part_arguments(parser, PARTS)
    run_parts(parser.parse_args(), 5, runs_of, test=True)


if __name__ == "__main__":
    main()
