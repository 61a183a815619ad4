"""The tables of the README, from the committed runs.

python benchmarks/small_batch/table.py
"""

import json
from pathlib import Path

HERE = Path(__file__).parent


def read(folder):
    return {
        name: json.loads((folder / f"{name}.json").read_text()) for name in ("config", "results")
    }


def settings(run):
    config = run["config"]["config"]
    where = config["loss"], config["optimizer"], config["run"]
    return where[0]["objective"], where[0]["temperature"], where[1]["rate"], where[2]["seed"]


def percent(share):
    return f"{100 * share:.1f}"


def main():
    print(
        "| temperature | seed | objective | kNN 200 | kNN 20 | linear | gain | ESS | K-sample MI"
        " | large-pool MI |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    runs = sorted(
        (read(folder) for folder in (HERE / "runs").iterdir()),
        key=lambda run: (settings(run)[1], settings(run)[3], settings(run)[0]),
    )
    for run in runs:
        objective, temperature, _, seed = settings(run)
        results = run["results"]
        found = {e["protocol"]["name"]: e["top1"] for e in results["evaluations"]}
        last, watch = results["last"], results["watch"]
        cells = [
            temperature,
            seed,
            objective,
            *(percent(found[name]) for name in ("knn, k = 200", "knn, k = 20", "linear")),
        ]
        cells += [f"{last['gain']:.2f}", f"{last['ess']:.2f}"]
        cells += [f"{last['mi']:.2f} of {last['mi_ceiling']:.2f}"]
        cells += [f"{watch['pool_mi']:.2f} of {watch['pool_ceiling']:.2f}"]
        print("| " + " | ".join(map(str, cells)) + " |")
    print("\n| rate at batch 32 | FlatNCE | InfoNCE |\n|---|---|---|")
    trials = [read(folder) for folder in (HERE / "tuning").iterdir()]
    scores = {settings(run)[:3:2]: run["results"]["watch"]["knn"] for run in trials}
    for rate in sorted({rate for _, rate in scores}):
        print(
            f"| {rate} | {percent(scores['flatnce', rate])} | {percent(scores['infonce', rate])} |"
        )


if __name__ == "__main__":
    main()
