"""Temperatures at which the controller settles at small batches, with the ESS that they give.

    python benchmarks/image_study/small_batches.py

It writes `small_batches.json`, from the committed embeddings, and prints the table that `table.py`
puts into `docs/explain/effective-sample-size.md`.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch

from flatnce import EssController, FlatNCE
from flatnce import functional as F

RUNS = {
    "infonce-b32-t0.2-r0.03-s0": "InfoNCE, τ = 0.2",
    "flatnce-b32-t0.1-r0.03-s0": "FlatNCE, τ = 0.1",
}
TARGETS = (0.3, 0.1, 0.075)
STEPS = {16: 2000, 32: 1200, 128: 500, 512: 200}
"""By batch size; the first third is left out."""
RECORD = Path(__file__).with_name("small_batches.json")


def batches_of(views, batch, steps):
    """Batches without replacement, shuffled again when all images have been drawn."""
    generator, found = torch.Generator().manual_seed(0), []
    while len(found) < steps:
        order = torch.randperm(views.shape[1], generator=generator)
        found += [views[:, chosen] for chosen in order.split(batch)]
    return found[:steps]


@torch.no_grad()
def settled(views, batch, target):
    """The geometric mean of the temperature, and the population ESS of all images there."""
    whole = F.two_view(*views)
    start = float(F.temperature_for_ess(whole, target))
    loss_fn, logs = FlatNCE(EssController(target, temperature_at_start=start)), []
    for first, second in batches_of(views, batch, STEPS[batch]):
        loss_fn(first, second)
        logs.append(math.log(float(loss_fn.temperature)))
    temperature = math.exp(np.mean(logs[len(logs) // 3 :]))
    return temperature, float(F.population_ess(F.contrast_of(whole, temperature)))


def measured():
    """Temperature and ESS by run, target and batch size."""
    stored, found = np.load(Path(__file__).with_name("embeddings.npz")), {}
    for run in RUNS:
        views = torch.nn.functional.normalize(torch.from_numpy(stored[run]).float(), dim=2)
        found[run] = {
            str(target): {
                str(batch): [round(value, 5) for value in settled(views, batch, target)]
                for batch in STEPS
            }
            for target in TARGETS
        }
    return found


def recorded():
    """What the record holds, as `measured` gives it."""
    return json.loads(RECORD.read_text(encoding="utf-8"))["settled"]


def table(found):
    """A row per run and target."""
    heads = ["Target", "run", *(f"{batch} images" for batch in STEPS)]
    lines = [f"| {' | '.join(heads)} |", "|---:|---|" + "---:|" * len(STEPS)]
    for run, name in RUNS.items():
        for target, by_batch in found[run].items():
            cells = [f"{temperature:.3f} ({ess:.3f})" for temperature, ess in by_batch.values()]
            lines.append(f"| {target} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    torch.set_num_threads(1)
    found = {
        "format_version": 1,
        "torch": torch.__version__,
        "steps": STEPS,
        "settled": measured(),
    }
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(recorded()))


if __name__ == "__main__":
    main()
