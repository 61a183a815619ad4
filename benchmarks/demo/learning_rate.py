"""How the demo's learning rate was chosen, and how much the results depend on it.

For each rate, both objectives are trained in five settings, with seeds that the demo
itself does not use. The demo uses the rate with the highest large-pool mutual information,
averaged over settings *and objectives*. Run from the project's root:

    python benchmarks/demo/learning_rate.py
"""

import json
import statistics
import time
from pathlib import Path

from flatnce.mi.fitting import one_thread
from flatnce.paper.demo import Case, DemoConfig, train_case
from flatnce.pretrain.runs.log import environment

RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
SETTINGS = ((4, 0.05), (8, 0.05), (16, 0.05), (32, 0.05), (8, 0.2))


def measure(case: Case, config: DemoConfig) -> dict:
    with one_thread():
        *_, (_, found) = train_case(case, config)
    infonce, flatnce = found["pool_mi"][: config.seeds], found["pool_mi"][config.seeds :]
    difference = [b - a for a, b in zip(infonce, flatnce, strict=True)]
    return {**vars(case), "infonce": infonce, "flatnce": flatnce, "difference": difference}


def main() -> None:
    began = time.perf_counter()
    config = DemoConfig(first_seed=100, seeds=5, every=1500)
    rows = []
    for rate in RATES:
        for candidates, temperature in SETTINGS:
            row = measure(Case(candidates, temperature, rate), config)
            rows.append(row)
            mean, sd = statistics.fmean(row["difference"]), statistics.stdev(row["difference"])
            both = [statistics.fmean(row[name]) for name in ("infonce", "flatnce")]
            print(
                f"rate {rate:g}, K {candidates}, temperature {temperature:g}: "
                f"InfoNCE {both[0]:.2f}, FlatNCE {both[1]:.2f}, difference {mean:+.3f} ± {sd:.3f}",
                flush=True,
            )
    overall = {
        f"{rate:g}": statistics.fmean(
            value
            for row in rows
            if row["learning_rate"] == rate
            for name in ("infonce", "flatnce")
            for value in row[name]
        )
        for rate in RATES
    }
    print("mean over settings and objectives:", {k: round(v, 3) for k, v in overall.items()})
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    results = {
        "environment": environment(seeds, device="cpu"),
        "seconds": round(time.perf_counter() - began, 1),
        "width": config.width,
        "steps": config.steps,
        "overall": overall,
        "rows": rows,
    }
    path = Path(__file__).with_name("learning_rate.json")
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
