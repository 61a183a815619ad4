"""Compare the doctor's findings with every labelled case, on seeds that chose no threshold.

Run it by::

    python benchmarks/doctor/run.py             writes results.json beside this file
    python benchmarks/doctor/run.py --tuning    seeds that thresholds were chosen on
"""

import argparse
import json
import zlib
from collections import Counter
from pathlib import Path

import torch
from cases import CASES
from trained import TRAINED, trained

from flatnce import doctor
from flatnce.diagnose import KINDS
from flatnce.pretrain.runs.log import environment

# Few tuning seeds for trainings, because they take longest.
TUNING = {"made": range(5), "trained": range(2)}
REPORTED = range(1000, 1010)
COLUMNS = {"found": 8, "missed": 8, "false alarm": 13, "rightly silent": 16}


def first_of(kinds):
    return min(kinds, key=KINDS.index) if kinds else "healthy"


def made(name, seed):
    # A separate stream for each case and seed. Torch's CPU generator reads 32 bits of a seed and
    # silently drops the others, so both are hashed into 32 bits.
    stream = zlib.crc32(f"{seed} {name}".encode())
    return CASES[name][1](torch.Generator().manual_seed(stream))


def examined(name, expected, case, seed):
    found = doctor(**case.arguments)
    line = {
        "case": name,
        "seed": seed,
        "expected": sorted(expected, key=KINDS.index),
        "found": list(found.kinds),
        "gain": found.numbers["gain"],
    }
    if "rate" in case.truth:
        line["rate"] = case.truth["rate"]
        line["estimated_rate"] = found.numbers["false_negative_rate_by_similarity"]
    return line


def by_kind(lines):
    """Right, missed and wrongly raised, and rightly silent, for every kind that occurs."""
    table = {}
    for kind in KINDS:
        counts = Counter((kind in line["expected"], kind in line["found"]) for line in lines)
        if counts[True, True] + counts[True, False] + counts[False, True]:
            numbers = (counts[True, True], counts[True, False], counts[False, True])
            table[kind] = dict(zip(COLUMNS, (*numbers, counts[False, False]), strict=True))
    return table


def confusion(lines):
    """First findings: how often each true kind was reported as each kind."""
    pairs = Counter((first_of(line["expected"]), first_of(line["found"])) for line in lines)
    return {f"{true} -> {told}": count for (true, told), count in sorted(pairs.items())}


def summary(lines):
    return {
        "cases": len({line["case"] for line in lines}),
        "examinations": len(lines),
        # Gains of different data differ except for rounding, so this shows a seed without effect.
        "distinct": len({(line["case"], line["gain"]) for line in lines}),
        "exactly_right": sum(set(line["expected"]) == set(line["found"]) for line in lines),
        "verdict_right": sum(
            first_of(line["expected"]) == first_of(line["found"]) for line in lines
        ),
        "by_kind": by_kind(lines),
        "first_findings": confusion(lines),
        "false_negative_rates": [line for line in lines if "rate" in line],
        "wrong": [line for line in lines if set(line["expected"]) != set(line["found"])],
    }


def show(title, found):
    print(f"\n{title}: {found['exactly_right']} of {found['examinations']} exactly right")
    print(f"  {found['distinct']} different gains")
    for line in found["wrong"]:
        print(f"  {line['case']}, seed {line['seed']}: {line['found']} for {line['expected']}")
    print(" " * 24 + "".join(f"{name:>{width}}" for name, width in COLUMNS.items()))
    for kind, row in found["by_kind"].items():
        print(f"{kind:<24}" + "".join(f"{row[name]:>{COLUMNS[name]}}" for name in COLUMNS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tuning", action="store_true", help="the tuning seeds; writes nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    options = parser.parse_args()
    seeds = TUNING if options.tuning else {"made": REPORTED, "trained": REPORTED}
    results = {"environment": environment(seeds["made"])}
    results["made"] = summary(
        [examined(n, CASES[n][0], made(n, seed), seed) for n in CASES for seed in seeds["made"]]
    )
    show("made", results["made"])
    results["trained"] = summary(
        [
            examined(n, TRAINED[n], trained(n, seed), seed)
            for n in TRAINED
            for seed in seeds["trained"]
        ]
    )
    show("trained", results["trained"])
    if not options.tuning:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
