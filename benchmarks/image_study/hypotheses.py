"""Decide the hypotheses from the records, by the criteria of the protocol.

python benchmarks/image_study/hypotheses.py
"""

import itertools
import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from choices import (
    ANCHOR,
    CURVE,
    EVALUATION_SEEDS,
    SMALL,
    THREE_SEEDS,
    batch_of,
    best_batch_of_infonce,
    objective_of,
    second_batch,
    target_of,
    temperature_of,
)
from pieces import PIECES, SETTLED, kept_changes, names_of_changes
from records import read_all
from scipy.stats import t as student

HERE = Path(__file__).parent
LEAST_MEAN = 85.6
"""H1: the mean of FlatNCE-ESS has to exceed this accuracy."""
LEVEL = 0.5
"""H11: the interval of the difference has to lie within this distance of 0."""
LARGEST_SPREAD = 1 / 3
"""H3: the largest ratio of FlatNCE's spread to InfoNCE's."""
LARGEST_RATIO = 1.1
"""H7: the largest ratio of settled temperatures."""
LEAST_LONG = {"linear": 90.5, "knn_20": 89.0}
"""H8: the accuracies that FlatNCE-ESS has to reach after 400 epochs."""
ARMS = {
    "InfoNCE": ("infonce", False),
    "FlatNCE": ("flatnce", False),
    "FlatNCE-ESS": ("flatnce", True),
    "InfoNCE-ESS": ("infonce", True),
    "DHEL": ("dhel", False),
}
MARGINS = {"H1": -0.5, "H2": 0, "H4": -0.5, "H5": 0, "H6": -1, "H9": 0, "H10": -0.5}
"""What the lower limit of a difference has to exceed."""
OURS = "FlatNCE-ESS"
NOT_RUN, NOT_ALL, SUPPORTED, REFUTED = "not run", "not all seeds", "supported", "refuted"


def signed(text):
    """With a minus sign in place of a hyphen."""
    return text.replace("-", "−")


def of_table(heads, rows):
    """A table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


LIMITS = {name: signed(f"lower limit > {margin:g}") for name, margin in MARGINS.items()}
CRITERIA = LIMITS | {
    "H1": f"{LIMITS['H1']} and mean > {LEAST_MEAN}",
    "H3": f"ratio ≤ {LARGEST_SPREAD:.2f}",
    "H4": f"{LIMITS['H4']} at both batches",
    "H7": f"ratio ≤ {LARGEST_RATIO}",
    "H8": f"linear ≥ {LEAST_LONG['linear']} and kNN ≥ {LEAST_LONG['knn_20']:g}",
    "H10": f"{LIMITS['H10']} and estimate ≥ 0",
    "H11": f"interval within ± {LEVEL} at both batches",
}
"""What supports each hypothesis."""


@dataclass(frozen=True)
class Difference:
    """A mean difference paired by seed, with its two-sided 95 % interval."""

    of: str
    seeds: tuple[int, ...]
    mean: float
    low: float
    high: float

    def verdict(self, margin, seeds=EVALUATION_SEEDS):
        """Supported above the margin, refuted below it, else undecided; over these seeds."""
        if self.seeds != seeds:
            return NOT_ALL if self.seeds else NOT_RUN
        return SUPPORTED if self.low > margin else REFUTED if self.high < margin else "undecided"

    @property
    def shown(self):
        """The mean and the interval in words; empty if there are none."""
        if len(self.seeds) < 2:
            return "", ""
        return signed(f"{self.mean:+.2f}"), signed(f"{self.low:+.2f} to {self.high:+.2f}")


@dataclass(frozen=True)
class Finding:
    """What the records say about one measure of a hypothesis."""

    hypothesis: str
    of: str
    n: int
    estimate: str
    interval: str
    verdict: str
    counted: str = ""
    """What the table shows in place of n."""


def accuracies(records, arm, batch, piece=5, measure="linear"):
    """Accuracy on test images in per cent, by seed."""
    wanted = (*ARMS[arm], batch, piece)
    return {
        one["seed"]: 100 * one["evaluation"][measure]
        for one in records
        if one["seed"] in EVALUATION_SEEDS
        and (objective_of(one), target_of(one) is not None, batch_of(one), one["piece"]) == wanted
    }


def difference(records, first, second, measure="linear"):
    """The mean difference between two arms over the seeds of both.

    Each arm is given with its batch, and with its piece if that is not 5.
    """
    a, b = (accuracies(records, *arm, measure=measure) for arm in (first, second))
    return paired(f"{first[0]} at {first[1]} − {second[0]} at {second[1]}", a, b)


def paired(name, a, b):
    """The mean difference of accuracies by seed, over the seeds of both."""
    seeds = tuple(sorted(a.keys() & b.keys()))
    each = [a[seed] - b[seed] for seed in seeds]
    if len(each) < 2:
        return Difference(name, seeds, math.nan, math.nan, math.nan)
    mean = statistics.fmean(each)
    half = statistics.stdev(each) / math.sqrt(len(each)) * student.ppf(0.975, len(each) - 1)
    return Difference(name, seeds, mean, mean - half, mean + half)


def decided(records):
    """Pairs of a difference and its verdict, by hypothesis of piece 5."""
    batches = SMALL, second_batch(records)
    own, fixed = ("FlatNCE-ESS", SMALL), ("FlatNCE", SMALL)
    first = difference(records, own, ("InfoNCE", best_batch_of_infonce(records)))
    found = {"H1": [(first, first.verdict(MARGINS["H1"]))]}
    reached = accuracies(records, *own)
    if reached.keys() == {*EVALUATION_SEEDS} and statistics.fmean(reached.values()) <= LEAST_MEAN:
        found["H1"] = [(first, REFUTED)]
    for name, arms in (
        ("H2", [(fixed, ("InfoNCE", SMALL))]),
        ("H4", [(("FlatNCE-ESS", b), ("FlatNCE", b)) for b in batches]),
        ("H5", [(own, ("InfoNCE-ESS", SMALL))]),
    ):
        each = [difference(records, *pair) for pair in arms]
        found[name] = [(one, one.verdict(MARGINS[name])) for one in each]
    return found


def together(verdicts):
    """One verdict from those of several batches: all support it, or one refutes it."""
    if REFUTED in verdicts:
        return REFUTED
    if {NOT_RUN, NOT_ALL} & set(verdicts):
        return NOT_RUN if set(verdicts) == {NOT_RUN} else NOT_ALL
    return SUPPORTED if set(verdicts) == {SUPPORTED} else "undecided"


def runs_of_curve(records, objective):
    """The runs of the temperature curve at batch 32.

    The temperature that piece 3 chose has its runs in piece 5, the others in piece 6.
    """
    runs = [one for one in records if one["piece"] in (5, 6) and one["seed"] in THREE_SEEDS]
    fits = objective, None, SMALL
    return [one for one in runs if (objective_of(one), target_of(one), batch_of(one)) == fits]


def of_curve(records, objective):
    """Linear accuracy at batch 32 by temperature and seed, for the seeds of the curve."""
    found = {temperature: {} for temperature in CURVE}
    for one in runs_of_curve(records, objective):
        found[temperature_of(one)][one["seed"]] = 100 * one["evaluation"]["linear"]
    return found


def spread(curve, seeds):
    """Maximum − minimum of the means over seeds; a seed that is listed twice counts twice."""
    means = [statistics.fmean(by_seed[seed] for seed in seeds) for by_seed in curve.values()]
    return max(means) - min(means)


def ratio_of_spreads(flat, info, seeds):
    """FlatNCE's spread over InfoNCE's, infinite where InfoNCE has none."""
    below = spread(info, seeds)
    return spread(flat, seeds) / below if below else math.inf


def third(records):
    """H3: the ratio of the spreads, with the percentile bootstrap over all resamples of seeds."""
    flat, info = (of_curve(records, objective) for objective in ("flatnce", "infonce"))
    cells = [*flat.values(), *info.values()]
    seeds = [seed for seed in THREE_SEEDS if all(seed in by_seed for by_seed in cells)]
    of = f"spread over τ at {SMALL}, FlatNCE / InfoNCE"
    if len(seeds) < len(THREE_SEEDS):
        begun = any(one["piece"] == 6 for one in records)
        common = [len(flat[at].keys() & info[at].keys()) for at in CURVE]
        run = [number for number in common if number]
        counted = (
            f"{min(run)} of {len(THREE_SEEDS)}, at {len(run)} of {len(CURVE)} τ" if run else ""
        )
        return Finding("H3", of, len(seeds), "", "", NOT_ALL if begun else NOT_RUN, counted)
    ratio = ratio_of_spreads(flat, info, seeds)
    resamples = itertools.product(seeds, repeat=len(seeds))
    each = [ratio_of_spreads(flat, info, some) for some in resamples]
    low, high = np.quantile(each, (0.025, 0.975))
    verdict = SUPPORTED if ratio <= LARGEST_SPREAD else REFUTED
    return Finding("H3", of, len(seeds), f"{ratio:.2f}", f"{low:.2f} to {high:.2f}", verdict)


def seventh(studies):
    """H7: the largest ratio of settled temperatures over all runs and targets."""
    rows = [row for rows in studies.values() for row in rows]
    of = "settled τ, largest / smallest for 30 to 1,022 negatives, worst of the runs and targets"
    ratio = max(row["ratio_30_to_1022"] for row in rows)
    verdict = SUPPORTED if ratio <= LARGEST_RATIO else REFUTED
    return Finding("H7", of, len(studies), f"{ratio:.3f}", "", verdict, f"{len(studies)} runs")


def eighth(records):
    """H8: one run, two accuracies; both have to be reached."""
    runs = [one for one in records if one["piece"] == 8]
    runs = [one for one in runs if (objective_of(one), target_of(one) is not None) == ARMS[OURS]]
    found = {key: [100 * one["evaluation"][key] for one in runs] for key in LEAST_LONG}
    names = {"linear": "linear", "knn_20": "kNN, k = 20"}
    verdict = NOT_RUN
    if runs:
        reached = all(min(found[key]) >= least for key, least in LEAST_LONG.items())
        verdict = SUPPORTED if reached else REFUTED
    return [
        Finding(
            "H8",
            f"{OURS} at {SMALL}, 400 epochs, {names[key]}",
            len(runs),
            f"{min(found[key]):.2f}" if runs else "",
            "",
            verdict,
        )
        for key in LEAST_LONG
    ]


def of_three_seeds(records, name, first, second, suffix=""):
    """A hypothesis about one difference over three seeds."""
    found = difference(records, first, second)
    verdict = found.verdict(MARGINS[name], THREE_SEEDS)
    return Finding(name, found.of + suffix, len(found.seeds), *found.shown, verdict)


def with_changes(records, arm, batch, kept):
    """Linear accuracy by seed of an arm with the changes that it keeps; of piece 5 without any."""
    if not kept:
        return accuracies(records, arm, batch)
    objectives = (ARMS[arm][0], ARMS[arm][0] + ANCHOR)
    return {
        one["seed"]: 100 * one["evaluation"]["linear"]
        for one in records
        if one["piece"] == 13 and objective_of(one) in objectives
        if one["seed"] in EVALUATION_SEEDS
    }


def tenth(records):
    """H10: both arms with the changes that piece 13 kept, once it has tried them all."""
    large = best_batch_of_infonce(records)
    of = f"{OURS} at {SMALL} − InfoNCE at {large}, with the changes kept"
    epochs, there = PIECES[13].epochs, {one["name"] for one in records}
    if not all(name in there for _, name in names_of_changes(epochs, records).values()):
        return Finding("H10", of, 0, "", "", NOT_RUN)
    kept = kept_changes(epochs, records)
    arms = ((OURS, SMALL), ("InfoNCE", large))
    found = paired(of, *(with_changes(records, *arm, kept[arm[0]]) for arm in arms))
    begun = any(one["piece"] == 13 and one["seed"] in EVALUATION_SEEDS for one in records)
    verdict = NOT_ALL if begun else NOT_RUN
    if found.seeds == EVALUATION_SEEDS:
        level = found.low > MARGINS["H10"] and found.mean >= 0
        verdict = SUPPORTED if level else REFUTED if found.high < 0 else "undecided"
    return Finding("H10", of, len(found.seeds), *found.shown, verdict)


def eleventh(records):
    """H11: the target against the constant temperature at which it settles."""
    found, verdicts = [], []
    for batch in (SMALL, second_batch(records)):
        one = difference(records, (OURS, batch), ("FlatNCE", batch, 14))
        verdict = one.verdict(-LEVEL)
        if verdict == SUPPORTED and one.high >= LEVEL:
            verdict = REFUTED if one.low > LEVEL else "undecided"
        found.append(replace(one, of=f"{one.of} and τ = {SETTLED}"))
        verdicts.append(verdict)
    verdict = together(verdicts)
    return [Finding("H11", one.of, len(one.seeds), *one.shown, verdict) for one in found]


def of_piece_5(records):
    """A finding per difference of the main comparison."""
    return [
        Finding(name, one.of, len(one.seeds), *one.shown, together([v for _, v in pairs]))
        for name, pairs in decided(records).items()
        for one, _ in pairs
    ]


def findings(records):
    """What the records say about every hypothesis, in order."""
    main = of_piece_5(records)
    ours = accuracies(records, OURS, SMALL).values()
    mean = f"{statistics.fmean(ours):.2f}" if ours else ""
    named = f"mean of {OURS} at {SMALL}"
    first = Finding("H1", named, len(ours), mean, "", main[0].verdict)
    best = ("InfoNCE", best_batch_of_infonce(records))
    sixth = of_three_seeds(records, "H6", (OURS, 16, 7), best)
    tiny = ((OURS, 64, 12), ("InfoNCE", 64, 12))
    ninth = of_three_seeds(records, "H9", *tiny, ", Tiny-ImageNet")
    found = [*main, first, third(records), sixth, seventh(settled()), *eighth(records), ninth]
    return [*sorted(found, key=lambda one: one.hypothesis), tenth(records), *eleventh(records)]


def table(records):
    """A row per measure of every hypothesis."""
    names = ("measure", "n", "estimate", "95 % interval", "supported if", "verdict")
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for one in findings(records):
        needed = CRITERIA[one.hypothesis]
        n = one.counted or one.n
        cells = (one.hypothesis, one.of, n, one.estimate, one.interval, needed, one.verdict)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def settled():
    """The studies of settled temperatures."""
    return json.loads((HERE / "settled.json").read_text(encoding="utf-8"))["studies"]


if __name__ == "__main__":
    print(table(list(read_all(HERE / "records").values())))
