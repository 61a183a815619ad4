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
import math
import sys
import time
from pathlib import Path

from records import read_all
from training import OBJECTIVES, Run, add_arguments, prepare, score, trained_and_evaluated

HERE = Path(__file__).parent
PARTS = ("rate", "512", "256", "128", "32")
ADDED_RATE = 1.92
# Temperatures of the screens in the order of their accuracy: of piece 1 for batch 32, of piece 2
# for the others.
TEMPERATURES = {
    32: {"infonce": (0.2, 0.3), "flatnce": (0.1, 0.2)},
    512: {"infonce": (0.2, 0.1), "flatnce": (0.2, 0.3)},
}
SPEEDS = {512: 46_500, 256: 42_700, 128: 37_500, 32: 25_000}
"""Images per second: those of the protocol, and a cautious number for four runs at batch 32."""
IMAGES = 50_000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--until", type=float, default=1e9, help="seconds in which parts end")
    parser.add_argument(
        "--rate-failed", action="store_true", help="the added rate diverged, as the page notes"
    )
    return parser.parse_args()


def rate_at(batch, objective, records):
    """The rate by the power law through the two chosen rates of the screens."""
    chosen = {
        screened: best_rate([r for r in records if settings(r) == (objective, screened)])
        for screened in (32, 512)
    }
    power = math.log(chosen[512] / chosen[32]) / math.log(512 / 32)
    return float(f"{chosen[32] * (batch / 32) ** power:.4g}")


def settings(record):
    """Objective and batch of a screening run; None for a longer one."""
    config = record["config"]
    if record["results"]["epochs"] > 20:
        return None
    return config["loss"]["objective"], config["run"]["batch_size"]


def check_added_rate(records):
    """Refuse the larger batches before both objectives have been screened at the added rate."""
    done = {r["config"]["loss"]["objective"] for r in records if rate_of(r) == ADDED_RATE}
    if done != set(OBJECTIVES):
        sys.exit(
            f"rate {ADDED_RATE} has records for {sorted(done)}: run --parts rate first (rule 4 of "
            "the protocol), or note that it diverged and pass --rate-failed"
        )


def rate_of(record):
    return record["config"]["optimizer"]["rate"]


def best_rate(records):
    return rate_of(max(records, key=score))


def runs_of(part, epochs, records):
    """The runs of a part."""
    if part == "rate":
        return [
            Run(o, 512, TEMPERATURES[512][o][0], ADDED_RATE, min(epochs, 20)) for o in OBJECTIVES
        ]
    batch = int(part)
    screened = 32 if batch == 32 else 512
    return [
        Run(o, batch, temperature, rate_at(batch, o, records), epochs)
        for o in OBJECTIVES
        for temperature in TEMPERATURES[screened][o]
    ]


def main():
    asked, began = arguments(), time.perf_counter()
    prepare(asked)
    for part in asked.parts:
        known = read_all(HERE / "records") | read_all(asked.out / "records")
        if part not in ("rate", "32") and not asked.rate_failed:
            check_added_rate(known.values())
        runs = runs_of(part, asked.epochs, list(known.values()))
        needed = sum(IMAGES * run.epochs / SPEEDS[run.batch] for run in runs) * 1.1
        if time.perf_counter() - began + needed > asked.until:
            print(f"part {part} needs {needed:.0f} s and is left out", flush=True)
            continue
        trained_and_evaluated(asked, 3, part, runs)
        print(f"part {part} ended at {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
