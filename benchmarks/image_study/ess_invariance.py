"""Compare estimators of the effective sample size (ESS) over the number of negatives.

    python benchmarks/image_study/ess_invariance.py --out FILE --embeddings FILE.npz ...

A controller holds an ESS of `target`. The script measures at which temperature it settles, and
whether that temperature depends on the number of negatives: for every estimator and number of
negatives m it finds the temperature at which the estimator's mean over batches is the target.

Estimators, for e = exp(cosine / temperature) over the m negatives of an anchor:

- raw: mean over anchors of (sum e)^2 / (m sum e^2), the paper's form;
- row: mean over anchors of a / b, with a = [(sum e)^2 - sum e^2] / (m (m - 1)) and
  b = sum e^2 / m, which are unbiased for (E e)^2 and E e^2;
- pooled: (mean of a) / (mean of b) over the anchors of a batch, then the mean over batches;
- running: (mean of a) / (mean of b) over all batches, as a controller with running means has it;
- images: as running, but a sums over pairs of negatives of different images only: two views of
  one image are alike, so their product is not an estimate of (E e)^2;
- closed: temperature = sd / sqrt(-ln target), exact for Gaussian scores; sd^2 is the variance of
  the cosines of an anchor's negatives, averaged over the anchors of a batch;
- closed-running: the same with sd^2 averaged over all batches.

Gaussian scores are always studied; they need no file. A file of embeddings holds, per run, an
array (2 views, images, width) of unit vectors. A batch of B images is B of them, with 2 B anchors
and m = 2 B - 2 negatives per anchor.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

BATCHES = (8, 16, 32, 64, 128, 256, 512)
TARGETS = (0.15, 0.3, 0.45, 0.6)
TEMPERATURES = np.geomspace(0.015, 3.0, 100)
GAUSSIAN_SD = 0.25
LEAST_ANCHORS = 4_096
"""Anchors per number of negatives, over all batches; small batches get more."""
TOLERANCE = 1.1
"""Largest over smallest settled temperature that counts as invariant."""
SEED = 0


def gaussian_batches(batch, generator):
    """Independent Gaussian cosines: (anchors, negatives) per batch."""
    for _ in range(count_of(batch, 2 * batch)):
        yield generator.normal(0.0, GAUSSIAN_SD, (2 * batch, 2 * batch - 2)).astype(np.float32)


def embedded_batches(views, batch, generator):
    """Cosines of the negatives in batches of images, drawn without replacement, reshuffled."""
    images = views.shape[1]
    left = count_of(batch, 2 * batch)
    keep = ~(np.eye(2 * batch, dtype=bool) | np.eye(2 * batch, k=batch, dtype=bool))
    keep &= ~np.eye(2 * batch, k=-batch, dtype=bool)
    while left > 0:
        order = generator.permutation(images)
        for start in range(0, images - batch + 1, batch):
            if left == 0:
                return
            left -= 1
            rows = views[:, order[start : start + batch]].reshape(2 * batch, -1)
            yield (rows @ rows.T)[keep].reshape(2 * batch, -1)


def count_of(batch, anchors):
    """Batches of a size: enough anchors, and at least a million scores where they are cheap."""
    return max(LEAST_ANCHORS // anchors, min(512, 1_000_000 // (anchors * (2 * batch - 2))), 4)


def curves(batches):
    """Each estimator by temperature, as means over batches; and the variances of the cosines."""
    raw, row, pooled, tops, apart, bottoms, variances = [], [], [], [], [], [], []
    for cosines in batches:
        m = cosines.shape[1]
        variances.append(float(cosines.var(axis=1, ddof=1, dtype=np.float64).mean()))
        largest = cosines.max(axis=1).astype(np.float64)
        shifted = cosines - cosines.max(axis=1, keepdims=True)
        total, squares, within = [], [], []
        for temperature in TEMPERATURES:
            e = np.exp(shifted / np.float32(temperature))
            total.append(e.sum(1, dtype=np.float64))
            squares.append((e * e).sum(1, dtype=np.float64))
            # The first half of the columns is one view of each image, the second half the other.
            within.append(2 * (e[:, : m // 2] * e[:, m // 2 :]).sum(1, dtype=np.float64))
        total, squares, within = map(np.array, (total, squares, within))  # by temperature, anchor
        ess = total**2 / (m * squares)
        # Back from units of each anchor's largest score to units of the batch's.
        unit = np.exp(2 * (largest - largest.max()) / TEMPERATURES[:, None])
        a, b = unit * (total**2 - squares) / (m * (m - 1)), unit * squares / m
        other = unit * (total**2 - squares - within).clip(0) / (m * (m - 2))
        raw.append(ess.mean(1))
        row.append(((ess * m - 1) / (m - 1)).mean(1))
        pooled.append(a.mean(1) / b.mean(1))
        logs = 2 * largest.max() / TEMPERATURES
        tops.append(np.log(np.maximum(a.mean(1), 1e-300)) + logs)
        apart.append(np.log(np.maximum(other.mean(1), 1e-300)) + logs)
        bottoms.append(np.log(b.mean(1)) + logs)
    below = log_mean(np.array(bottoms))
    running = {
        "running": np.exp(log_mean(np.array(tops)) - below),
        "images": np.exp(log_mean(np.array(apart)) - below),
    }
    found = {"raw": raw, "row": row, "pooled": pooled}
    return {k: np.array(v) for k, v in found.items()}, running, np.array(variances)


def log_mean(logs):
    """Logarithm of the mean over the first axis."""
    most = logs.max(0)
    return most + np.log(np.exp(logs - most).mean(0))


def temperature_at(curve, target):
    """Where a rising curve meets the target; NaN where it does not on the grid."""
    curve = np.maximum.accumulate(curve)
    if not curve[0] < target < curve[-1]:
        return math.nan
    return float(np.exp(np.interp(target, curve, np.log(TEMPERATURES))))


def settled(batches):
    """By estimator and target: the settled temperature, and the spread over single batches."""
    by_batch, running, variances = curves(batches)
    found = {name: {} for name in (*by_batch, *running, "closed", "closed-running")}
    for target in TARGETS:
        scale = 1 / math.sqrt(-math.log(target))
        for name, all_curves in by_batch.items():
            each = np.array([temperature_at(one, target) for one in all_curves])
            found[name][target] = (temperature_at(all_curves.mean(0), target), spread(each))
        for name, curve in running.items():
            found[name][target] = (temperature_at(curve, target), None)
        each = np.sqrt(variances) * scale
        found["closed"][target] = (float(each.mean()), spread(each))
        found["closed-running"][target] = (float(math.sqrt(variances.mean()) * scale), None)
    return found


def spread(each):
    """Standard deviation over batches, relative to the mean; None where a batch has none."""
    if len(each) < 2 or not np.isfinite(each).all():
        return None
    return float(each.std(ddof=1) / each.mean())


def study(make):
    """Settled temperatures by estimator, target and number of negatives, and their ratio."""
    generator = np.random.default_rng(SEED)
    by_size = {2 * batch - 2: settled(make(batch, generator)) for batch in BATCHES}
    return [
        row_of(name, target, {m: found[name][target] for m, found in by_size.items()})
        for name in next(iter(by_size.values()))
        for target in TARGETS
    ]


def row_of(estimator, target, pairs):
    """The row of an estimator and target, from temperature and spread by number of negatives."""
    temperatures = {m: pair[0] for m, pair in pairs.items()}
    values = list(temperatures.values())
    from_30 = [value for m, value in temperatures.items() if m >= 30]
    ratio = max(values) / min(values) if np.isfinite(values).all() else None
    usual = max(from_30) / min(from_30) if np.isfinite(from_30).all() else None
    return {
        "estimator": estimator,
        "target": target,
        "temperature": {str(m): shown(v) for m, v in temperatures.items()},
        "spread_over_batches": {str(m): shown(pair[1]) for m, pair in pairs.items()},
        "ratio_14_to_1022": shown(ratio),
        "ratio_30_to_1022": shown(usual),
        "invariant_from_30": usual is not None and usual <= TOLERANCE,
    }


def shown(value):
    return None if value is None or not math.isfinite(value) else round(float(value), 5)


def gaussian_truth(rows):
    """Add the population ESS that each settled temperature gives for Gaussian scores."""
    for row in rows:
        row["population_ess"] = {
            m: None if t is None else round(math.exp(-((GAUSSIAN_SD / t) ** 2)), 4)
            for m, t in row["temperature"].items()
        }
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", nargs="*", default=[], type=Path)
    parser.add_argument("--out", required=True, type=Path)
    asked = parser.parse_args()
    studies = {f"Gaussian scores, sd {GAUSSIAN_SD}": gaussian_truth(study(gaussian_batches))}
    for path in asked.embeddings:
        for name, views in np.load(path).items():
            wide = views.astype(np.float32)
            wide /= np.linalg.norm(wide, axis=2, keepdims=True)

            def make(batch, generator, wide=wide):
                return embedded_batches(wide, batch, generator)

            studies[name] = study(make)
            print(name, flush=True)
    asked.out.write_text(as_text(studies), encoding="utf-8")
    for name, rows in studies.items():
        print(name)
        for row in rows:
            marks = row["temperature"].values()
            print(f"  {row['estimator']:15s} {row['target']:<5} {row['ratio_30_to_1022']}", *marks)


def as_text(studies):
    """JSON with one line per estimator and target."""
    head = {"format_version": 1, "seed": SEED, "tolerance": TOLERANCE}
    parts = []
    for name, rows in studies.items():
        lines = ",\n".join("   " + json.dumps(row, allow_nan=False) for row in rows)
        parts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
    return json.dumps(head)[:-1] + ',\n "studies": {\n' + ",\n".join(parts) + "\n }\n}\n"


if __name__ == "__main__":
    main()
