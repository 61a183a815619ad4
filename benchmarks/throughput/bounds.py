"""What bounds several runs on one GPU: the kernels of a step, and the share that each fills.

    python benchmarks/throughput/bounds.py --root DATA       writes bounds.json beside this file
    python benchmarks/throughput/bounds.py --show            prints its tables and stops
    python benchmarks/throughput/bounds.py --cpu             a smoke run, without a GPU

A kernel whose blocks fill half of the GPU's slots leaves the other half to another run; one that
fills them all does not. Time x share of the slots is a kernel's slot-time, in units of the GPU.
If the blocks of a kernel take equally long, and concurrent kernels do not slow each other down
otherwise, a step of n runs takes at least n times the sum over its kernels. The times are those
of a step whose kernels run one after another.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
import trainings

from flatnce.environment import environment

BATCH, RUNS, STEPS = 32, 8, 10
OURS = ("measure", "normalise", "reduce", "differentiate")  # also with the suffix _whole
FAMILIES = {
    "convolutions and products": ("cudnn", "xmma", "cutlass", "gemm", "convolve", "nvjet"),
    "weights: optimizer, casts, checks": ("multi_tensor",),
    "views": ("views_kernel",),
    "copies and fills": ("memcpy", "memset", "copy", "fill"),
}
NORMS = "norms, ReLU and additions"
OTHER = "the rest: loss, diagnostics, small sums"


def kernels_of(trace, device):
    """The kernels and copies of a profiler's trace, with their times in microseconds."""
    events = json.loads(Path(trace).read_text())["traceEvents"]
    wanted = ("kernel", "gpu_memcpy", "gpu_memset") if device.type == "cuda" else ("cpu_op",)
    return [e for e in events if e.get("cat") in wanted and e.get("ph") == "X"]


def share_of(kernel, card):
    """The share of the GPU's slots for blocks that a kernel fills, averaged over its time.

    A multiprocessor has as many slots as blocks of this kernel fit on it. If all blocks take
    equally long, they run in waves, and all waves except the last are full: 133 blocks on 132
    slots take two waves and fill half of the GPU. The share times the kernel's time is the
    slot-time that other runs cannot use. If blocks differ, it is only an estimate.
    """
    given = kernel["args"]
    if "grid" not in given:
        return 0.0  # a copy does not use the multiprocessors
    threads = math.prod(given["block"])
    warps = -(-threads // 32)
    registers = max(1, given.get("registers per thread", 32)) * 32 * warps
    shared = given.get("shared memory", 0) + 1024
    fit = min(
        card["registers"] // registers, card["shared"] // shared, card["threads"] // threads, 32
    )
    slots = card["processors"] * max(1, fit)
    blocks = math.prod(given["grid"])
    return blocks / (slots * -(-blocks // slots))


def family_of(name):
    if name.removesuffix("_whole") in OURS:
        return NORMS
    low = name.lower()
    return next((f for f, words in FAMILIES.items() if any(w in low for w in words)), OTHER)


def busy(kernels):
    """Microseconds in which at least one kernel ran."""
    found, end = 0.0, -math.inf
    for kernel in sorted(kernels, key=lambda k: k["ts"]):
        start, stop = kernel["ts"], kernel["ts"] + kernel["dur"]
        found += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return found


def summed(kernels, steps, card):
    """Per step: the time of each kind of kernel, and the share of the GPU that it fills."""
    families, names = defaultdict(lambda: [0, 0.0, 0.0]), defaultdict(lambda: [0, 0.0, 0.0])
    for kernel in kernels:
        share = share_of(kernel, card)
        for row in (families[family_of(kernel["name"])], names[kernel["name"][:90]]):
            row[0] += 1
            row[1] += kernel["dur"]
            row[2] += kernel["dur"] * share

    def rows(of):
        order = sorted(of.items(), key=lambda item: -item[1][1])
        return [
            {
                "name": name,
                "launches": round(count / steps, 2),
                "us": round(time / steps, 2),
                "card_us": round(filled / steps, 2),
            }
            for name, (count, time, filled) in order
        ]

    whole = rows({"all": [sum(column) for column in zip(*families.values(), strict=True)]})[0]
    return {**whole, "busy_us": round(busy(kernels) / steps, 2), "families": rows(families),
            "kernels": rows(names)[:40]}  # fmt: skip


def profiled(go, steps, device):
    """The kernels of some steps; on the CPU, operations."""
    kinds = [getattr(torch.profiler.ProfilerActivity, device.type.upper())]
    with tempfile.TemporaryDirectory() as place:
        with torch.profiler.profile(activities=kinds) as found:
            go(steps)
            trainings.settle(device)
        path = Path(place) / "trace.json"
        found.export_chrome_trace(str(path))
        return kernels_of(path, device)


def one_after_another(training):
    """Prevent kernels of a step from overlapping, so that each is timed alone."""
    training.learner.called.overlap = False
    getattr(training._take_step, "step", training._take_step).side = None
    return training


def card_of(device):
    """The limits of a multiprocessor, and how many there are; on the CPU they are not used."""
    if device.type != "cuda":
        return {}
    facts = torch.cuda.get_device_properties(device)
    return {
        "processors": facts.multi_processor_count,
        "registers": facts.regs_per_multiprocessor,
        "shared": facts.shared_memory_per_multiprocessor,
        "threads": facts.max_threads_per_multi_processor,
    }


def measured(options):
    root, data = trainings.data_root(options)
    queues, device = trainings.widen(), trainings.device_of(options)
    on, runs = trainings.slots(device, options.runs), []
    for seed, stream in enumerate(on):
        config = trainings.configured(options, root, batch_size=BATCH, seed=seed)
        with torch.cuda.stream(stream):
            runs.append(trainings.build(config))
            trainings.take(runs[-1], options.warm_up)
        trainings.settle(device)
    single = one_after_another(trainings.build(config))
    trainings.take(single, options.warm_up)

    def go(steps, count=options.runs):
        for _ in range(steps):
            for one, stream in list(zip(runs, on, strict=True))[:count]:
                with torch.cuda.stream(stream):
                    trainings.take(one, 1)
        trainings.settle(device)

    card = card_of(device)
    go(STEPS)
    by_itself = profiled(lambda steps: trainings.take(single, steps), STEPS, device)
    alone = summed(by_itself, STEPS, card)
    together = summed(profiled(go, STEPS, device), STEPS, card)
    times = {}
    for name, count in (("alone", 1), ("together", options.runs)):
        times[name] = []
        for _ in range(5):
            began = time.perf_counter()
            go(options.timed, count)
            took = 1e3 * (time.perf_counter() - began) / options.timed
            times[name].append(round(took, 4))
        times[name].sort()
    return {
        "environment": environment(list(range(options.runs)), device.type),
        "data": data,
        "runs": options.runs,
        "batch": BATCH,
        "queues": queues,
        "card": card,
        "ms_a_step": times,
        "alone": alone,
        "together": together,
    }


def table(found):
    """Markdown: a step of one run by kind of kernel, and the least time for eight runs."""
    alone, together, runs = found["alone"], found["together"], found["runs"]
    lines = ["| kernels of a step | launches | µs alone | µs × share of the card |"]
    lines.append("|---|---|---|---|")
    for row in [*alone["families"], {**alone, "name": "all"}]:
        cells = [
            row["name"],
            f"{row['launches']:g}",
            f"{row['us']:,.0f}",
            f"{row['card_us']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    bound = runs * alone["card_us"] / 1e3
    low, middle, high = (found["ms_a_step"]["together"][k] for k in (0, 2, 4))
    lines.append(
        f"\n{runs} runs need {bound:.2f} ms per step by that; they take {middle:.2f} ms "
        f"({low:.2f} to {high:.2f}). In the profiled steps, which take longer, a kernel is on the "
        f"card for {together['busy_us'] / 1e3:.2f} ms of each; kernels last "
        f"{together['us'] / runs / alone['us']:.2f} times as long as alone."
    )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="where cifar-10-batches-bin lies")
    parser.add_argument("--out", type=Path, help="bounds.json beside this file by default")
    parser.add_argument("--show", action="store_true", help="print the tables of --out and stop")
    parser.add_argument(
        "--cpu", action="store_true", help="digits, two runs, no card and no bound"
    )
    options = parser.parse_args()
    options.runs, options.warm_up, options.timed = (2, 3, 5) if options.cpu else (RUNS, 30, 100)
    if options.out is None:
        small = Path("build") / "bounds-smoke.json"
        options.out = small if options.cpu else Path(__file__).with_name("bounds.json")
    if not options.show:
        trainings.widen()  # before the first use of CUDA
        if not options.cpu and not torch.cuda.is_available():
            sys.exit("a profile of the card needs a CUDA device")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(measured(options), indent=1) + "\n")
    print(table(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()
