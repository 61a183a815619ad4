r"""Piece 4 of the protocol: ESS targets at batch 256, 100 epochs, at the tuning seed.

    python benchmarks/image_study/target.py --parts flatnce --commit HASH --data ROOT \
        --out FOLDER --work FOLDER

Parts `infonce` and `flatnce` train one objective at four targets, at the rate that the screens
give for batch 256. Part `beyond` adds one target beyond an end of the grid at which a choice lies,
for both objectives (rule 4 of the protocol). A part that does not end in `--until` seconds at the
given speed is not started. The target chosen for FlatNCE is the untuned target of all later
pieces, the one chosen for InfoNCE is used by InfoNCE-ESS.

`--preset digits --epochs 1` runs the same on a CPU, to check the script.
"""

import argparse
import sys

from choices import OBJECTIVES, best, rate_at, target_of, targets
from training import STARTING_TEMPERATURE, Run, add_part_arguments, run_parts

PARTS = (*OBJECTIVES, "beyond")
BATCH = 256
TARGETS = (0.15, 0.3, 0.45, 0.6)
ADDED = {min(TARGETS): 0.075, max(TARGETS): 0.8}
"""The target to add if a choice lies at an end of the grid; twice the largest is not an ESS."""


def added(records):
    """The targets that rule 4 adds and that have not been run.

    A choice at an end of the grid of one objective adds its target for both, so that the grid of
    the other may still be running.
    """
    run = {o: {target_of(one) for one in targets(records, o)} for o in OBJECTIVES}
    complete = [objective for objective in OBJECTIVES if run[objective] >= set(TARGETS)]
    if not complete:
        sys.exit(f"no grid of piece 4 is complete: run target.py --parts {OBJECTIVES[0]} first")
    chosen = {target_of(best(targets(records, objective))) for objective in complete}
    done = set.intersection(*run.values())
    return [value for end, value in ADDED.items() if end in chosen and value not in done]


def runs_of(part, epochs, records):
    """The runs of a part."""
    wanted = added(records) if part == "beyond" else TARGETS
    objectives = OBJECTIVES if part == "beyond" else (part,)
    return [
        Run(o, BATCH, STARTING_TEMPERATURE, rate_at(BATCH, o, records), epochs, ess=target)
        for o in objectives
        for target in wanted
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_part_arguments(parser, PARTS)
    run_parts(parser.parse_args(), 4, runs_of)


if __name__ == "__main__":
    main()
