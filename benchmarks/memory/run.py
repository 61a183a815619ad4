"""Extra memory and time of one FlatNCE step on the CPU: the chunked kernel against the dense one.

    python benchmarks/memory/run.py               writes results.json beside this file
    python benchmarks/memory/run.py --speed       only the table of times, over widths and threads

Every measurement of memory is a fresh process: it makes the inputs, resets the kernel's record of
its peak, runs forward and backward once, and reads the peak. Later steps of the same process are
timed, on one thread. The table of times is one process in which the kernels alternate.
"""

import argparse
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from flatnce import functional as F
from flatnce.pretrain.runs.log import environment

SIZES = (2048, 8192, 16384, 32768)
KERNELS = ("dense", "chunked")
WIDTH, TEMPERATURE = 128, 0.1
MIB, GIB = 2**20, 2**30
SPEED_SIZES, SPEED_WIDTHS, SPEED_THREADS = (256, 512, 1024, 2048, 4096), (64, 128, 512), (1, 2)
LAYOUTS = ("views", "towers")
RESERVE = 4 * GIB
"""Memory that is left to the rest of the machine."""


def measure(kernel, n, steps, limit):
    """In a fresh process: extra peak memory of the first step, seconds of the further ones."""
    torch.set_num_threads(1)
    Path("/proc/self/oom_score_adj").write_text("1000")  # killed first if memory runs out
    allowed = status("VmSize") + limit
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))  # fail here, not in other processes
    step(kernel, *make_views(256))  # load or allocate beforehand what is needed only once
    views = make_views(n)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at the present size
    before = status("VmHWM")
    try:
        loss = step(kernel, *views)
        extra = status("VmHWM") - before
        seconds = [timed(kernel, views) for _ in range(steps)]
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        return {"fits": False}
    return {"fits": True, "extra_mib": extra / MIB, "seconds": seconds, "loss": loss}


def make_views(n, width=WIDTH, layout="views"):
    """Two views of n / 2 samples, so n anchors with n − 2 negatives; or two towers of n each."""
    generator = torch.Generator().manual_seed(0)
    samples = n // 2 if layout == "views" else n
    z1 = torch.randn(samples, width, generator=generator)
    z2 = z1 + torch.randn(samples, width, generator=generator)
    return z1.requires_grad_(), z2.requires_grad_()


def step(kernel, z1, z2, layout="views"):
    z1.grad = z2.grad = None
    pairs = F.two_view(z1, z2) if layout == "views" else F.two_tower(z1, z2, directions="left")
    loss = F.flatnce(F.contrast_of(pairs, TEMPERATURE, kernel=kernel))
    loss.backward()
    return loss.item()


def timed(kernel, views):
    """Seconds of processor time, which on one thread is close to wall time on an idle machine."""
    start = time.process_time()
    step(kernel, *views)
    return time.process_time() - start


def speed(layout, n, width, threads, least=0.8, fewest=7):
    """Seconds of steps of alternating kernels, and the quartiles of their ratio.

    Times are processor time on one thread, and wall time on several.
    """
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    views = make_views(n, width, layout)
    found = {kernel: [] for kernel in KERNELS}
    for kernel in KERNELS:
        step(kernel, *views, layout)
    end = time.perf_counter() + least
    while time.perf_counter() < end or len(found["dense"]) < fewest:
        for kernel in KERNELS:
            start = clock()
            step(kernel, *views, layout)
            found[kernel].append(clock() - start)
    ratios = [c / d for c, d in zip(found["chunked"], found["dense"], strict=True)]
    record = {"layout": layout, "n": n, "width": width, "threads": threads, "steps": len(ratios)}
    for name, values in (*found.items(), ("ratio", ratios)):
        quarters = statistics.quantiles(values, n=4)
        record[name] = [round(value, 6) for value in quarters]
        record[f"{name}_least"] = round(min(values), 6)
    return record


def speed_row(record):
    def of(name, scale, digits):
        low, middle, high = (f"{scale * value:,.{digits}f}" for value in record[name])
        return f"{middle} ({low} to {high})"

    least = record["chunked_least"] / record["dense_least"]
    return (
        f"| {record['layout']} | {record['threads']} | {record['n']:,} | {record['width']} "
        f"| {of('dense', 1e3, 1)} | {of('chunked', 1e3, 1)} | {of('ratio', 1, 2)} | {least:.2f} |"
    )


def compare_speed(several):
    print(
        "| layout | threads | n = m | d | dense, ms | chunked, ms | ratio | of the fastest |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    records = []
    for layout in LAYOUTS:
        for threads in several:
            for n in SPEED_SIZES:
                for width in SPEED_WIDTHS:
                    records.append(speed(layout, n, width, threads))
                    print(speed_row(records[-1]), flush=True)
    return records


def status(field):
    """A memory size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def available():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def in_fresh_process(kernel, n, steps):
    limit = available() - RESERVE
    command = [sys.executable, __file__, "--child", kernel, str(n), str(steps), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == -signal.SIGKILL:
        return {"fits": False}
    if done.returncode != 0:
        raise RuntimeError(f"{kernel} at n={n} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def in_turns(n, kernels, rounds, steps):
    """Run every kernel once per round, so that a busy machine slows all of them."""
    found = {kernel: [] for kernel in kernels}
    for _ in range(rounds):
        for kernel in kernels:
            found[kernel].append(in_fresh_process(kernel, n, steps))
    return {kernel: merge(runs) for kernel, runs in found.items()}


def merge(runs):
    if not all(run["fits"] for run in runs):
        return {"fits": False}
    return {
        "fits": True,
        "extra_mib": [round(run["extra_mib"], 1) for run in runs],
        "seconds": [round(seconds, 4) for run in runs for seconds in run["seconds"]],
        "loss": runs[0]["loss"],
    }


def row(n, kernel, record):
    if not record["fits"]:
        expected = record.get("expected_mib")
        size = "" if expected is None else f" (about {expected / 1024:.0f} GiB by the law n²)"
        return f"| {n:,} | {kernel} | does not fit{size} | |"
    low, high = min(record["extra_mib"]), max(record["extra_mib"])
    times = sorted(record["seconds"])
    middle = times[len(times) // 2]
    return (
        f"| {n:,} | {kernel} | {low:,.0f} to {high:,.0f} MiB "
        f"| {middle:.2f} s ({times[0]:.2f} to {times[-1]:.2f}) |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes a kernel and size")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per process")
    parser.add_argument("--speed", action="store_true", help="only the table of times")
    parser.add_argument("--threads", type=int, nargs="+", default=SPEED_THREADS, help="of it")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kernel, n, steps, limit = options.child
        print(json.dumps(measure(kernel, int(n), int(steps), int(limit))))
        return
    if options.speed:
        results = json.loads(options.out.read_text()) if options.out.exists() else {}
        former = results.get("speed", {}).get("records", [])
        kept = [record for record in former if record["threads"] not in options.threads]
        where = environment([0], "cpu") | {"threads": options.threads}
        results["speed"] = {"environment": where, "records": compare_speed(options.threads) + kept}
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        return
    per_score, records = 0.0, []
    print("| anchors | kernel | extra peak memory | forward and backward |\n|---|---|---|---|")
    for n in sorted(options.sizes):
        expected = per_score * n**2
        kernels = KERNELS if expected < available() - RESERVE else ("chunked",)
        found = in_turns(n, kernels, options.rounds, options.steps)
        dense = found.setdefault("dense", {"fits": False, "expected_mib": expected / MIB})
        if dense["fits"]:
            per_score = max(dense["extra_mib"]) * MIB / n**2
        for kernel in KERNELS:
            records.append({"n": n, "kernel": kernel, **found[kernel]})
            print(row(n, kernel, found[kernel]), flush=True)
    about = {"width": WIDTH, "temperature": TEMPERATURE, "dtype": "float32"}
    where = environment([0], "cpu") | {"threads": 1}
    results = {"environment": where, **about, "records": records}
    results["speed"] = {"environment": where, "records": compare_speed(options.threads)}
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
