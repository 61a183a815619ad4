"""Why InfoNCE is ahead in some settings: the effect of the gain as a weight.

From the project's root:

    python benchmarks/demo/weighting.py

Per row, InfoNCE's gradient is FlatNCE's times the gain. Adam removes a constant factor, so the
gain acts as a weighting of rows within a batch and of batches. Each is tried alone.
"""

import json
import statistics
import time
from pathlib import Path

import torch

from flatnce import functional as F
from flatnce.mi.fitting import one_thread
from flatnce.paper.demo import Case, DemoConfig, train_case
from flatnce.pretrain.runs.log import environment

SETTINGS = (Case(8, 0.2, 4e-3), Case(8, 0.2, 1e-3), Case(8, 0.05, 1e-3))


def halves_of_the_gain(logits: torch.Tensor) -> torch.Tensor:
    """Weight rows within a batch by the gain (first half of the runs), or batches (second)."""
    runs, batch, _ = logits.shape
    own = torch.arange(batch).repeat(runs)
    contrast = F.contrast_from_logits(logits.reshape(runs * batch, batch), own)
    gap = contrast.gap.reshape(runs, batch)
    gain = gap.detach().sigmoid()
    level = gain.mean(dim=1, keepdim=True)
    by_row, by_batch = (gain / level * gap).mean(dim=1), (level * gap).mean(dim=1)
    return torch.cat([by_row[: runs // 2], by_batch[runs // 2 :]])


def final(case: Case, config: DemoConfig, **losses) -> list[list[float]]:
    with one_thread():
        *_, (_, found) = train_case(case, config, **losses)
    return [found["pool_mi"][: config.seeds], found["pool_mi"][config.seeds :]]


def main() -> None:
    began, config = time.perf_counter(), DemoConfig(first_seed=100, seeds=5, every=1500)
    rows = []
    for case in SETTINGS:
        infonce, flatnce = final(case, config)
        by_row, by_batch = final(case, config, losses=halves_of_the_gain)
        measured = {"infonce": infonce, "rows": by_row, "batches": by_batch, "flatnce": flatnce}
        rows.append({**vars(case), "pool_mi": measured})
        for name, values in measured.items():
            gaps = [a - b for a, b in zip(values, flatnce, strict=True)]
            print(
                f"temperature {case.temperature:g}, rate {case.learning_rate:g}, {name}: "
                f"{statistics.fmean(values):.2f}, minus FlatNCE {statistics.fmean(gaps):+.2f} ± "
                f"{statistics.stdev(gaps):.2f}",
                flush=True,
            )
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    results = {
        "environment": environment(seeds, device="cpu"),
        "seconds": round(time.perf_counter() - began, 1),
        "rows": rows,
    }
    path = Path(__file__).with_name("weighting.json")
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
