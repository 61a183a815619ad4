r"""Pieces 6 to 14 of the protocol, by parts.

    python benchmarks/image_study/pieces.py 6 --parts 10-ends --commit HASH --data ROOT \
        --out FOLDER --work FOLDER

The runs of a part are trained side by side. Those of the tuning seed are evaluated on held-out
training images, the others on the test images, once. A part that does not end in `--until` seconds
at the given speed is not started. Runs with a committed record are not trained again.

| piece | parts, in the order in which they are to be run |
|---|---|
| 6 | `10-ends`: both objectives at τ = 0.05 and 0.5; 11, 12; `10-middle`: at the others; 11, 12 |
| 7 | `16-10`: the four arms at batch 16, seed 10; the other seeds; batch 512 |
| 8 | an arm, FlatNCE-ESS or InfoNCE: 400 epochs |
| 9 | `screen`, `rates`, `beyond`, `fixed`: DHEL at the tuning seed; `10-12`, `13-14`: its seeds |
| 10 | `256-10`: the four arms at batch 256, seed 10; the other seeds |
| 11 | `1000`: FlatNCE-ESS at batch 512 for 1,000 epochs |
| 12 | `tail-tune`, `tail-beyond`, `tail-10`, ...: the long tail; `tiny-...`: Tiny-ImageNet |
| 13 | `heads`, `queues`, `infonce`, `anchors`: one change each; `10`, ...: the changes kept |
| 14 | `32`, `128`: FlatNCE at the temperature at which its target settles, five seeds each |

`--preset digits --epochs 1` runs the same on a CPU, to check the script; piece 9 as a whole
needs `--epochs 5`, because its screens take a fifth of them.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from choices import (
    CURVE,
    EVALUATION_SEEDS,
    SMALL,
    THREE_SEEDS,
    best,
    best_batch_of_infonce,
    beyond,
    rate_of,
    score,
    step_of,
    temperature_of,
)
from long_tail import LONG_TAIL
from main import arms_at, run_at_target
from screen import PIECES as SCREENS
from training import (
    CHANGES,
    CIFAR,
    TINY,
    TUNING_SEED,
    Run,
    add_part_arguments,
    run_parts,
)

SHORTER = 5
"""A run of 100 epochs is this many times as long as one of a screen."""
ENDS = (min(CURVE), max(CURVE))
DHEL_SEEDS = {"10-12": EVALUATION_SEEDS[:3], "13-14": EVALUATION_SEEDS[3:]}
CHANGED = {
    "heads": (
        ("FlatNCE-ESS", ()),
        *(("FlatNCE-ESS", (one,)) for one in ("views", "wide", "deep")),
    ),
    "queues": tuple(
        (arm, (one,)) for arm in ("FlatNCE-ESS", "InfoNCE") for one in ("queue", "target")
    ),
    "infonce": (("InfoNCE", ()), *(("InfoNCE", (one,)) for one in ("views", "wide", "deep"))),
    "anchors": tuple(
        (arm, (one,)) for arm in ("FlatNCE-ESS", "InfoNCE") for one in ("average", "anchor")
    ),
}
"""Parts of piece 13 at the tuning seed. InfoNCE without a change has a record of piece 3."""
LEAST_GAIN = 0.003
"""In linear accuracy, for a change to be kept."""
TUNED_ON_OTHERS = (0.1, 0.2, 0.5)
"""Temperatures of InfoNCE in piece 12."""

SETTLED = 0.14
"""The temperature of piece 14, at which the runs with FlatNCE's target settle."""


@dataclass(frozen=True)
class Other:
    """Another data set of piece 12, with what the protocol fixes for it."""

    data: str
    batch: int
    epochs: int


OTHERS = {"tail": Other(CIFAR + LONG_TAIL, SMALL, 400), "tiny": Other(TINY, 64, 25)}


@dataclass(frozen=True)
class Piece:
    """A piece: its parts in order, the runs of each, and its epochs if they are all equal."""

    parts: tuple[str, ...]
    runs_of: Callable
    epochs: int | None = 100


def curve(part, epochs, records):
    """The runs of the temperature curve that piece 5 does not have."""
    seed, where = part.split("-")
    arms = arms_at(SMALL, int(seed), epochs, records)
    return [
        replace(fixed, temperature=temperature)
        for fixed in (arms["InfoNCE"], arms["FlatNCE"])
        for temperature in CURVE
        if temperature != fixed.temperature and (temperature in ENDS) == (where == "ends")
    ]


def four_arms(part, epochs, records):
    """The four arms at a batch and a seed."""
    batch, seed = map(int, part.split("-"))
    return list(arms_at(batch, seed, epochs, records).values())


def long_run(part, epochs, records):
    """FlatNCE-ESS or InfoNCE at batch 32."""
    return [arms_at(SMALL, EVALUATION_SEEDS[0], epochs, records)[part]]


def longest_run(part, epochs, records):
    """FlatNCE-ESS at batch 512."""
    return [arms_at(512, EVALUATION_SEEDS[0], epochs, records)["FlatNCE-ESS"]]


def dhel(part, epochs, records):
    """DHEL as the other objectives in pieces 1, 3 and 5."""
    screen, short = SCREENS[1], max(1, epochs // SHORTER)
    first = Run("dhel", screen.batch, CURVE[0], screen.first_rate, short)
    if part == "screen":
        return [replace(first, temperature=temperature) for temperature in CURVE]
    ranked = sorted(step_of(records, 9, "screen"), key=score, reverse=True)
    require(len(ranked) == len(CURVE), 9, "screen")
    if part == "rates":
        chosen = temperature_of(ranked[0])
        runs = [replace(first, temperature=chosen, rate=rate) for rate in screen.other_rates]
        return runs + [replace(first, temperature=one) for one in beyond(CURVE, {chosen})]
    rated = step_of(records, 9, "rates")
    require(rated, 9, "rates")
    added = beyond((screen.first_rate, *screen.other_rates), {rate_of(best([*ranked, *rated]))})
    if part == "beyond":
        chosen = temperature_of(best([*ranked, *rated]))
        return [replace(first, temperature=chosen, rate=rate) for rate in added]
    further = step_of(records, 9, "beyond")
    require(further or not added, 9, "beyond")
    rate = rate_of(best([*ranked, *rated, *further]))
    if part == "fixed":
        at_first = [one for one in [*ranked, *rated] if rate_of(one) == screen.first_rate]
        two = [temperature_of(one) for one in sorted(at_first, key=score, reverse=True)[:2]]
        return [replace(first, temperature=one, rate=rate, epochs=epochs) for one in two]
    long = step_of(records, 9, "fixed")
    require(long, 9, "fixed")
    chosen = replace(first, temperature=temperature_of(best(long)), rate=rate, epochs=epochs)
    return [replace(chosen, seed=seed) for seed in DHEL_SEEDS[part]]


def other_data(part, epochs, records):
    """InfoNCE at three temperatures; then, by seed, at the best, and FlatNCE-ESS."""
    name, step = part.split("-")
    other = OTHERS[name]
    seed = int(step) if step.isdigit() else TUNING_SEED
    flat, info = (
        replace(
            run_at_target(objective, other.batch, seed, epochs or other.epochs, records),
            data=other.data,
        )
        for objective in ("flatnce", "infonce")
    )

    def infonce_at(temperatures):
        return [replace(info, temperature=one, ess=None) for one in temperatures]

    if step == "tune":
        return infonce_at(TUNED_ON_OTHERS)
    tuned = step_of(records, 12, f"{name}-tune")
    require(tuned, 12, f"{name}-tune")
    added = beyond(TUNED_ON_OTHERS, {temperature_of(best(tuned))})
    if step == "beyond":
        return infonce_at(added)
    further = step_of(records, 12, f"{name}-beyond")
    require(further or not added, 12, f"{name}-beyond")
    return [flat, *infonce_at([temperature_of(best([*tuned, *further]))])]


def changed(part, epochs, records):
    """One change each at the tuning seed; then, by seed, all changes that were kept.

    FlatNCE-ESS is trained at batch 32, InfoNCE at the batch at which it is best. An arm that keeps
    no change has its runs in piece 5.
    """
    if part in CHANGED:
        return [changed_run(*one, TUNING_SEED, epochs, records) for one in CHANGED[part]]
    return [
        changed_run(arm, changes, int(part), epochs, records)
        for arm, changes in kept_changes(epochs, records).items()
        if changes
    ]


def settled(part, epochs, records):
    """FlatNCE at a fixed temperature, for comparison with FlatNCE-ESS of piece 5."""
    arms = [arms_at(int(part), seed, epochs, records) for seed in EVALUATION_SEEDS]
    return [replace(one["FlatNCE"], temperature=SETTLED) for one in arms]


def names_of_changes(epochs, records):
    """The part and the name of the run in which each arm tries each change, or none."""
    return {
        (arm, changes): (part, changed_run(arm, changes, TUNING_SEED, epochs, records).name)
        for part, runs in CHANGED.items()
        for arm, changes in runs
    }


def kept_changes(epochs, records):
    """The changes that each arm keeps; all have to be tried before."""
    named = {one["name"]: one for one in records}
    names = names_of_changes(epochs, records)
    for part, name in names.values():
        require(name in named, 13, part)
    found = {one: named[name] for one, (_, name) in names.items()}
    return {
        arm: tuple(one for one in CHANGES if helps(found[arm, (one,)], found[arm, ()]))
        for arm in ("FlatNCE-ESS", "InfoNCE")
    }


def changed_run(arm, changes, seed, epochs, records):
    """A run of piece 13; InfoNCE with a target that moves has one in place of its temperature."""
    if arm == "FlatNCE-ESS":
        base = arms_at(SMALL, seed, epochs, records)[arm]
    else:
        held = "InfoNCE-ESS" if "target" in changes else arm
        base = arms_at(best_batch_of_infonce(records), seed, epochs, records)[held]
    return replace(base, changes=changes)


def helps(record, base):
    """Whether the linear accuracy rises by at least 0.3 points, and that of kNN rises."""
    after, before = record["evaluation"], base["evaluation"]
    return (
        after["linear"] - before["linear"] >= LEAST_GAIN - 1e-9
        and after["knn_20"] > before["knn_20"]
    )


def require(found, piece, part):
    """Refuse to go on before an earlier part has been run."""
    if not found:
        sys.exit(f"part {part} has no records: run pieces.py {piece} --parts {part} first")


def by_seed(*batches):
    return tuple(f"{batch}-{seed}" for batch in batches for seed in THREE_SEEDS)


PIECES = {
    6: Piece(tuple(f"{s}-{w}" for w in ("ends", "middle") for s in THREE_SEEDS), curve),
    7: Piece(by_seed(16, 512), four_arms),
    8: Piece(("FlatNCE-ESS", "InfoNCE"), long_run, 400),
    9: Piece(("screen", "rates", "beyond", "fixed", *DHEL_SEEDS), dhel),
    10: Piece(by_seed(256), four_arms),
    11: Piece(("1000",), longest_run, 1_000),
    12: Piece(
        tuple(f"{n}-{s}" for n in OTHERS for s in ("tune", "beyond", *THREE_SEEDS)),
        other_data,
        None,
    ),
    13: Piece((*CHANGED, *map(str, EVALUATION_SEEDS)), changed),
    14: Piece(("32", "128"), settled),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pieces = parser.add_subparsers(dest="piece", required=True)
    for number, piece in PIECES.items():
        add_part_arguments(pieces.add_parser(str(number)), piece.parts, piece.epochs)
    asked = parser.parse_args()
    number = int(asked.piece)
    run_parts(asked, number, PIECES[number].runs_of)


if __name__ == "__main__":
    main()
