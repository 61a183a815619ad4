r"""Piece 5 of the protocol: the four arms at five seeds, at batch 32 and InfoNCE's best batch.

    python benchmarks/image_study/main.py --parts 32-10 best-10 --commit HASH --data ROOT \
        --out FOLDER --work FOLDER

A part is a batch and a seed. It trains InfoNCE and FlatNCE at the temperatures that piece 3 chose,
and both at the ESS targets that piece 4 chose, side by side. Each is evaluated on the test images,
once, when its training ends. `best` is the batch at which InfoNCE was best in piece 3, or the best
of the others if that is 32. A part takes less than 15 minutes of one H200; one that does not end
in `--until` seconds at the given speed is not started.

`--preset digits --epochs 1` runs the same on a CPU, to check the script; it needs records of
pieces 3 and 4 in `--out`.
"""

import argparse
import sys
from dataclasses import replace

from choices import (
    BATCHES,
    EVALUATION_SEEDS,
    NAMES,
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


def run_at_target(objective, batch, seed, epochs, records):
    """The run of an objective at the ESS target that piece 4 chose."""
    check_choices(records)
    rate = rate_at(batch, objective, records)
    target = target_of(best(targets(records, objective)))
    return Run(objective, batch, STARTING_TEMPERATURE, rate, epochs, ess=target, seed=seed)


def arms_at(batch, seed, epochs, records):
    """The run of each arm, by the arm's name.

    Batch 16 takes the temperatures that were chosen at batch 32, because piece 3 has none smaller.
    """
    runs = {}
    for objective in OBJECTIVES:
        held = run_at_target(objective, batch, seed, epochs, records)
        found = fixed_temperatures(records, objective, max(batch, SMALL))
        fixed = replace(held, temperature=temperature_of(best(found)), ess=None)
        runs |= {NAMES[objective]: fixed, f"{NAMES[objective]}-ESS": held}
    return runs


def runs_of(part, epochs, records):
    """The four arms of a part."""
    name, seed = part.split("-")
    batch = second_batch(records) if name == "best" else int(name)
    return list(arms_at(batch, int(seed), epochs, records).values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_part_arguments(parser, PARTS)
    run_parts(parser.parse_args(), 5, runs_of)


if __name__ == "__main__":
    main()
