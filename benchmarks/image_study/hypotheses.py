"""Decide the hypotheses of piece 5 from its records, by the criteria of the protocol.

python benchmarks/image_study/hypotheses.py
"""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from choices import (
    EVALUATION_SEEDS,
    SMALL,
    batch_of,
    best_batch_of_infonce,
    objective_of,
    second_batch,
    target_of,
)
from records import read_all
from scipy.stats import t as student

HERE = Path(__file__).parent
LEAST_MEAN = 85.6
"""What the mean of FlatNCE-ESS has to exceed in H1."""
ARMS = {
    "InfoNCE": ("infonce", False),
    "FlatNCE": ("flatnce", False),
    "FlatNCE-ESS": ("flatnce", True),
    "InfoNCE-ESS": ("infonce", True),
}


@dataclass(frozen=True)
class Difference:
    """A mean difference paired by seed, with its two-sided 95 % interval."""

    of: str
    seeds: tuple[int, ...]
    mean: float
    low: float
    high: float

    def verdict(self, margin):
        """Supported above the margin, refuted below it, else undecided."""
        if self.seeds != EVALUATION_SEEDS:
            return "not all seeds"
        return (
            "supported" if self.low > margin else "refuted" if self.high < margin else "undecided"
        )


def accuracies(records, arm, batch):
    """Linear accuracy on test images in per cent, by seed."""
    wanted = (*ARMS[arm], batch)
    return {
        one["seed"]: 100 * one["evaluation"]["linear"]
        for one in records
        if one["piece"] == 5
        and (objective_of(one), target_of(one) is not None, batch_of(one)) == wanted
    }


def difference(records, first, second):
    """The mean difference between two arms, each with its batch, over the seeds of both."""
    a, b = accuracies(records, *first), accuracies(records, *second)
    seeds = tuple(sorted(a.keys() & b.keys()))
    each = [a[seed] - b[seed] for seed in seeds]
    name = f"{first[0]} at {first[1]} − {second[0]} at {second[1]}"
    if len(each) < 2:
        return Difference(name, seeds, math.nan, math.nan, math.nan)
    mean = statistics.fmean(each)
    half = statistics.stdev(each) / math.sqrt(len(each)) * student.ppf(0.975, len(each) - 1)
    return Difference(name, seeds, mean, mean - half, mean + half)


def decided(records):
    """Pairs of a difference and its verdict, by hypothesis."""
    batches = SMALL, second_batch(records)
    own, fixed = ("FlatNCE-ESS", SMALL), ("FlatNCE", SMALL)
    first = difference(records, own, ("InfoNCE", best_batch_of_infonce(records)))
    found = {"H1": [(first, first.verdict(-0.5))]}
    means = accuracies(records, *own).values()
    if first.seeds == EVALUATION_SEEDS and statistics.fmean(means) <= LEAST_MEAN:
        found["H1"] = [(first, "refuted")]
    for name, arms, margin in (
        ("H2", [(fixed, ("InfoNCE", SMALL))], 0),
        ("H4", [(("FlatNCE-ESS", b), ("FlatNCE", b)) for b in batches], -0.5),
        ("H5", [(own, ("InfoNCE-ESS", SMALL))], 0),
    ):
        each = [difference(records, *pair) for pair in arms]
        found[name] = [(one, one.verdict(margin)) for one in each]
    return found


def together(verdicts):
    """One verdict from those of several batches: all support it, or one refutes it."""
    if "not all seeds" in verdicts:
        return "not all seeds"
    if "refuted" in verdicts:
        return "refuted"
    return "supported" if set(verdicts) == {"supported"} else "undecided"


def table(records):
    """A row per difference."""
    lines = ["| | difference, linear | n | mean | 95 % interval | verdict |", "|---" * 6 + "|"]
    for name, pairs in decided(records).items():
        whole = together([verdict for _, verdict in pairs])
        for one, _ in pairs:
            numbers = (f"{one.mean:+.2f}", f"{one.low:+.2f} to {one.high:+.2f}")
            shown = numbers if len(one.seeds) > 1 else ("", "")
            cells = (name, one.of, len(one.seeds), *shown, whole)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(list(read_all(HERE / "records").values())))
