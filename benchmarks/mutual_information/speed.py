"""Seconds and memory: the default on 10,000 rows, a large evaluation, a million rows on a GPU.

    python benchmarks/mutual_information/speed.py --out FOLDER    writes speed-cpu.json or -cuda

Each part runs in its own process, so that its peak memory is measured alone.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from flatnce import mi
from flatnce.pretrain.runs.log import environment

HERE = Path(__file__).parent


def whole(task, n, **choices):
    x, y = mi.tasks.find(task).sample(n, 0)
    began = time.perf_counter()
    found = mi.estimate(x, y, **choices)
    return {
        "seconds": time.perf_counter() - began,
        "sentence": found.sentence(),
        "steps": found.history[-1]["step"],
        "flags": [flag.name for flag in found.flags],
    }


def readout(n, columns):
    """Every statistic of an estimate on all pairs of n rows, with a critic of the usual shape."""
    from flatnce.mi.readouts import EvaluationPart, group_sums, readouts_of

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x, y, pool = (torch.randn(n, columns, device=device) for _ in range(3))
    critic = mi.critic_for("dot", (columns, columns)).to(device).eval()
    before = _peak()
    began = time.perf_counter()
    group = torch.arange(n, device=device) % 20
    readouts_of([group_sums(EvaluationPart(critic, 1.0, x, y, pool, group))])
    return {"seconds": time.perf_counter() - began, "peak_over_start_mib": _peak() - before}


def side_by_side(task, n, count):
    pairs = [mi.tasks.find(task).sample(n, seed) for seed in range(count)]
    began = time.perf_counter()
    mi.estimate_each(pairs, baselines=False, steps=500)
    together = time.perf_counter() - began
    began = time.perf_counter()
    for seed, (x, y) in enumerate(pairs):
        mi.estimate(x, y, baselines=False, steps=500, seed=seed)
    return {"together": together, "one_by_one": time.perf_counter() - began, "fits": count}


def _peak():
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


PARTS = {
    "default, 10,000 rows, staircase 20 + 20": lambda: whole("staircase-6", 10_000),
    "default, 10,000 rows, cubic 20 + 20": lambda: whole("cubic-6", 10_000),
    "default, 10,000 rows, spiral 25 + 25": lambda: whole(
        "spiral-multinormal-sparse-25-25-2-2.0", 10_000
    ),
    "default, 10,000 rows, spiral 3 + 3": lambda: whole(
        "spiral-multinormal-sparse-3-3-2-2.0", 10_000
    ),
    "read-out of 20,000 x 20,000": lambda: readout(20_000, 20),
    "ten fits of 2,000 rows": lambda: side_by_side("multinormal-sparse-5-5-2-2.0", 2000, 10),
}
ON_A_GPU = {
    "default, 1,000,000 rows, staircase 20 + 20": lambda: whole("staircase-6", 1_000_000),
    "default, 1,000,000 rows, candidates 250,000": lambda: whole(
        "staircase-10", 1_000_000, pool=250_000
    ),
}


def run(out):
    out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    cuda = torch.cuda.is_available()
    names = [*PARTS, *(ON_A_GPU if cuda else ())]
    found = {"environment": environment(), "threads": torch.get_num_threads(), "parts": {}}
    for name in names:
        answer = subprocess.run(
            [sys.executable, __file__, "--part", name], capture_output=True, text=True, check=False
        )
        last = answer.stdout.strip().splitlines()[-1:] or [json.dumps({"failed": answer.stderr})]
        found["parts"][name] = json.loads(last[0])
        print(name, found["parts"][name], flush=True)
    file = out / ("speed-cuda.json" if cuda else "speed-cpu.json")
    file.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--part")
    options = parser.parse_args()
    if options.part:
        answer = {**PARTS, **ON_A_GPU}[options.part]()
        print(json.dumps({**answer, "peak_mib": _peak()}))
    else:
        run(options.out)
