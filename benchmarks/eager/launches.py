"""Count what one eager call of each loss does: kernel launches, operations, host and GPU time.

python benchmarks/eager/launches.py --device cuda --output launches.json
"""

import argparse
import json
import time
from pathlib import Path

import run
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from flatnce import functional as F

CALLS, MOST = 20, 14
MOVES = ("cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaEventSynchronize")


def subjects(device, batch, dtype):
    """The functions of every group of run.py with their inputs."""
    views = [
        torch.randn(batch, run.WIDTH, device=device, dtype=dtype).requires_grad_()
        for _ in range(2)
    ]
    losses = run.losses(device, None)
    found = {f"loss: {name}": (function, views) for name, function in losses.items()}
    if dtype == torch.float32:
        target = torch.arange(2 * batch, device=device).roll(batch)
        logits = [torch.randn(2 * batch, 2 * batch, device=device).requires_grad_()]
        found["logits: torch cross_entropy"] = (lambda x: cross_entropy(x, target), logits)
        found["logits: flatnce cross_entropy"] = (lambda x: F.cross_entropy(x, target), logits)
        for name, function in run.banks(device).items():
            found[f"bank: {name}"] = (function, views)
    return found


def called(function, inputs):
    for tensor in inputs:
        tensor.grad = None
    function(*inputs).backward()


def counted(function, inputs, device):
    """Counts and microseconds per call, forward and backward together."""
    for _ in range(10):
        called(function, inputs)
    run.wait(device)
    start = time.perf_counter()
    for _ in range(5 * CALLS):  # without waiting, so this is the larger of host and GPU time
        called(function, inputs)
    run.wait(device)
    stream = 1e6 * (time.perf_counter() - start) / (5 * CALLS)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities) as taken:
        for _ in range(CALLS):
            called(function, inputs)
        run.wait(device)
    events = taken.key_averages()
    launches = sum(e.count for e in events if "LaunchKernel" in e.key)
    operations = [e for e in events if e.key.startswith("aten::")]
    longest = sorted(events, key=lambda e: -e.self_cpu_time_total)[:MOST]
    return {
        "microseconds_without_waiting": round(stream, 1),
        "launches": launches / CALLS,
        "moves": {e.key: e.count / CALLS for e in events if e.key in MOVES},
        "aten_operations": sum(e.count for e in operations) / CALLS,
        "gpu_microseconds": round(sum(e.self_device_time_total for e in events) / CALLS, 1),
        "cpu_microseconds_profiled": round(
            sum(e.self_cpu_time_total for e in events if "Synchronize" not in e.key) / CALLS, 1
        ),
        "longest_on_the_host": [
            [e.key[:60], e.count / CALLS, round(e.self_cpu_time_total / CALLS, 1)] for e in longest
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=(32, 1024))
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("launches.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    found = {"device": name, "torch": str(torch.__version__), "calls": CALLS, "rows": {}}
    for dtype_name, dtype in run.DTYPES.items():
        for batch in options.batches:
            for what, (function, inputs) in subjects(options.device, batch, dtype).items():
                row = counted(function, inputs, options.device)
                found["rows"][f"{what}, {batch:,}, {dtype_name}"] = row
                shown = {k: v for k, v in row.items() if k != "longest_on_the_host"}
                print(f"{what}, {batch:,}, {dtype_name}: {shown}", flush=True)
    rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found.pop("rows").items())
    options.output.write_text(f'{json.dumps(found)[:-1]},\n "rows": {{\n{rows}\n }}\n}}\n')


if __name__ == "__main__":
    main()
