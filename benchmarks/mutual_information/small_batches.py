"""FlatNCE against InfoNCE as objectives for MI critics, at batches of 8 to 256.

    python benchmarks/mutual_information/small_batches.py --out FOLDER   writes small_batches.json
    python benchmarks/mutual_information/small_batches.py --table FILE   prints the table

Staircase laws of 2 to 10 nats, n = 10,000, three seeds. Both objectives train a cosine critic at
each of six scales; InfoNCE also trains an unbounded product. There is no Gaussian start. The scale
is chosen on validation rows (mean over seeds). The reported number is InfoNCE on test rows after
calibration, for all methods. The best of each objective are compared.
"""

import json
import statistics

from pieces import options_of, run_pieces

from flatnce import mi
from flatnce.mi.estimator import EstimationOptions, prepare, train

NATS, BATCHES, SEEDS = (2, 4, 6, 8, 10), (8, 16, 32, 64, 128, 256), (0, 1, 2)
SCALES = (2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
KINDS = (("flatnce", "cosine"), ("infonce", "cosine"), ("infonce", "dot"))


def one(batch, method, critic, n):
    jobs = []
    for nats in NATS:
        for seed in SEEDS:
            x, y = mi.tasks.staircase(nats).sample(n, seed)
            for scale in SCALES if critic == "cosine" else (1.0,):
                options = EstimationOptions(
                    method=method,
                    critic=critic,
                    batch_size=batch,
                    scale=scale,
                    seed=seed,
                    baselines=False,
                    permutations=19,
                )
                jobs.append((nats, seed, scale, prepare(x, y, options)))
    train([job for *_, job in jobs])
    rows = []
    for nats, seed, scale, job in jobs:
        fitted, found = job.folds[0].critic, job.finish()
        rows.append(
            {
                "batch": batch,
                "method": method,
                "critic": critic,
                "nats": nats,
                "seed": seed,
                "scale": scale,
                "validation": fitted.validation,
                "estimate": found.nats,
                "standard_error": found.standard_error,
                "flo": found.readouts["flo-cross-fitted"].nats,
                "calibration": fitted.scale,
                "step": fitted.step,
                "last_step": fitted.history[-1]["step"],
                "flags": [flag.name for flag in found.flags],
            }
        )
    return rows


def run(out, n, processes):
    pieces = [(batch, *kind, n) for batch in BATCHES for kind in KINDS]
    run_pieces(one, pieces, out / "small_batches.json", processes, n=n)


def best(rows, batch, method, critic, nats):
    """Estimates at the scale whose mean validation value is largest, and that scale."""
    chosen = [
        row for row in rows
        if (row["batch"], row["method"], row["critic"], row["nats"])
        == (batch, method, critic, nats)
    ]  # fmt: skip
    scales = {row["scale"] for row in chosen}

    def value(scale):
        return statistics.mean(row["validation"] for row in chosen if row["scale"] == scale)

    scale = max(scales, key=value)
    return [row["estimate"] for row in chosen if row["scale"] == scale], scale


def table(path):
    rows = json.loads(path.read_text())["rows"]
    head = " | ".join(f"{method}, {critic}" for method, critic in KINDS)
    print(f"| I | batch | {head} | FlatNCE − best InfoNCE | |\n|---|---|---|---|---|---|---|")
    for nats in NATS:
        for batch in BATCHES:
            found = [best(rows, batch, *kind, nats) for kind in KINDS]
            means = [statistics.mean(values) for values, _ in found]
            cells = [
                f"{statistics.mean(v):.2f} ± {statistics.stdev(v):.2f} (×{s:g})" for v, s in found
            ]
            rival = max((1, 2), key=lambda k: means[k])
            paired = [a - b for a, b in zip(found[0][0], found[rival][0], strict=True)]
            gap, error = statistics.mean(paired), statistics.stdev(paired) / len(paired) ** 0.5
            verdict = "win" if gap > 2 * error else "loss" if gap < -2 * error else "tie"
            cells.append(f"{gap:+.3f} ± {error:.3f}")
            print(f"| {nats} | {batch} | {' | '.join(cells)} | {verdict} |")


if __name__ == "__main__":
    options = options_of(__doc__, n=10_000).parse_args()
    table(options.table) if options.table else run(options.out, options.n, options.processes)
