"""Where the ESS controller settles on stored embeddings, by the number of negatives.

    python benchmarks/image_study/settle.py --out FILE --embeddings FILE.npz ...

`ess_invariance.py` solves for the temperature at which an estimator is equal to its target. This
script runs the controller of the package itself: it is shown batches of embeddings of a trained
run, as the loss shows them in training, and moves the temperature at its default rate. The settled
temperature is the geometric mean over the steps after the burn-in. It decides hypothesis H7.

The files hold, per run, an array (2 views, images, width) of unit vectors.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from ess_invariance import BATCHES, SEED, TARGETS, as_text, row_of

from flatnce import EssController, FlatNCE

START = 0.2
BURN_IN = 600
STEPS = {batch: 1_000 if batch >= 128 else 2_000 for batch in BATCHES}
"""Steps in all; more where a batch is small and its estimate noisy."""


def batches_of(views, batch, steps):
    """Two views of images drawn without replacement, shuffled again when none are left."""
    generator = torch.Generator().manual_seed(SEED)
    while True:
        order = torch.randperm(views.shape[1], generator=generator)
        for start in range(0, views.shape[1] - batch + 1, batch):
            yield views[:, order[start : start + batch]]
            steps -= 1
            if not steps:
                return


@torch.no_grad()
def settled(views, batch, target):
    """The temperature at which the controller settles."""
    loss = FlatNCE(EssController(target, temperature_at_start=START)).train()
    logs = []
    for first, second in batches_of(views, batch, STEPS[batch]):
        loss(first, second)
        logs.append(math.log(float(loss.temperature)))
    return math.exp(np.mean(logs[BURN_IN:]))


def study(views):
    """A row per target: settled temperatures by the number of negatives, and their ratio."""
    wide = torch.nn.functional.normalize(torch.from_numpy(views).float(), dim=2)
    return [
        row_of(
            "controller",
            target,
            {2 * batch - 2: (settled(wide, batch, target), None) for batch in BATCHES},
        )
        for target in TARGETS
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", nargs="+", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    asked = parser.parse_args()
    studies = {}
    for path in asked.embeddings:
        for name, views in np.load(path).items():
            studies[name] = study(views)
            for row in studies[name]:
                print(name, row["target"], row["ratio_30_to_1022"], flush=True)
            asked.out.write_text(as_text(studies), encoding="utf-8")


if __name__ == "__main__":
    main()
