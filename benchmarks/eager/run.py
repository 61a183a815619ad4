"""Time forward and backward of the loss in an eager loop, compared with plain torch and lightly.

    python benchmarks/eager/run.py --device cpu --threads 1
    python benchmarks/eager/run.py --device cuda
    python benchmarks/eager/run.py --show

The methods of a group are called in turn, so that all see the same load of the machine. The script
reports the median of the calls and the quartiles of the ratio to the group's base. It merges the
results into results.json under the device's name.
"""

import argparse
import json
import platform
import random
import statistics
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, normalize

from flatnce import EssController, FlatNCE, InfoNCE, KeyQueue, Monitor
from flatnce import functional as F

RESULTS = Path(__file__).with_name("results.json")
WIDTH, TEMPERATURE, BANK = 128, 0.1, 4096
BATCHES = (32, 256, 1024, 4096)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CALLS = {"cuda": (200, 200, 200, 200), "cpu": (200, 200, 40, 6)}
GOALS = {
    "FlatNCE": {"cpu": 1.0, "cuda": 1.05},
    "FlatNCE, EssController": {"cpu": 1.15, "cuda": 1.15},
    "FlatNCE, Monitor": {"cpu": 1.3, "cuda": 1.3},
    "flatnce cross_entropy": {"cpu": 1.1, "cuda": 1.1},
    "FlatNCE, KeyQueue": {"cpu": 1.0, "cuda": 1.0},
}
BASES = {"loss": "plain NT-Xent", "logits": "torch cross_entropy", "bank": "lightly NTXentLoss"}


def plain(z1, z2):
    """NT-Xent as scripts write it: normalise, product, fill_diagonal_, cross_entropy."""
    z = normalize(torch.cat([z1, z2]), dim=1)
    scores = z @ z.T / TEMPERATURE
    scores.fill_diagonal_(-torch.inf)
    target = torch.arange(len(z), device=z.device).roll(len(z1))
    return cross_entropy(scores, target)


def losses(device, compiled):
    """Two views: every loss of the comparison by name."""
    from lightly.loss.dcl_loss import DCLLoss
    from lightly.loss.ntx_ent_loss import NTXentLoss

    controlled = FlatNCE(EssController(0.3)).to(device)
    watched, monitor = FlatNCE(TEMPERATURE), Monitor()

    def with_monitor(z1, z2):
        loss = watched(z1, z2)
        monitor.update(watched.last)
        return loss

    return {
        "plain NT-Xent": plain,
        **({"plain NT-Xent, torch.compile": compiled} if compiled else {}),
        "lightly NTXentLoss": NTXentLoss(TEMPERATURE),
        "lightly DCLLoss": DCLLoss(TEMPERATURE),
        "FlatNCE": FlatNCE(TEMPERATURE),
        "InfoNCE": InfoNCE(TEMPERATURE),
        "FlatNCE, EssController": controlled,
        "FlatNCE, Monitor": with_monitor,
    }


def banks(device):
    """A query, its key and a bank of past keys."""
    from lightly.loss.ntx_ent_loss import NTXentLoss

    queue = KeyQueue(BANK, WIDTH)
    queue.enqueue(torch.randn(BANK, WIDTH))
    ours = FlatNCE(TEMPERATURE, queue=queue, in_batch=False).to(device)
    theirs = NTXentLoss(TEMPERATURE, memory_bank_size=(BANK, WIDTH)).to(device)
    return {"lightly NTXentLoss": theirs, "FlatNCE, KeyQueue": ours}


def times_of(functions, inputs, calls, device):
    """Milliseconds of every call; the functions are called in turn."""
    times = {name: [] for name in functions}
    order, shuffle = list(functions.items()), random.Random(0).shuffle
    for call in range(calls + 3):
        shuffle(order)  # so that no method always follows the same one
        for name, function in order:
            for tensor in inputs:
                tensor.grad = None
            wait(device)
            start = time.perf_counter()
            function(*inputs).backward()
            wait(device)
            if call >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times


def quartiles(times, base):
    """First and third quartile of the ratio to the base's call of the same round."""
    found = {}
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times[base], strict=True)]
        first, _, third = statistics.quantiles(ratios, n=4)
        found[name] = [round(first, 3), round(third, 3)]
    return found


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(device, batches, calls):
    """Every group at every size and precision."""
    found = []
    compiled = try_to_compile(device)
    for dtype_name, dtype in DTYPES.items():
        for batch, number in zip(BATCHES, calls, strict=True):
            if batch not in batches:
                continue
            views = [
                torch.randn(batch, WIDTH, device=device, dtype=dtype).requires_grad_()
                for _ in range(2)
            ]
            groups = {"loss": (losses(device, compiled), views)}
            if dtype_name == "float32":
                target = torch.arange(2 * batch, device=device).roll(batch)
                logits = torch.randn(2 * batch, 2 * batch, device=device).requires_grad_()
                heads = {
                    "torch cross_entropy": lambda x, t=target: cross_entropy(x, t),
                    "flatnce cross_entropy": lambda x, t=target: F.cross_entropy(x, t),
                }
                groups["logits"] = (heads, [logits])
                groups["bank"] = (banks(device), views)
            for group, (functions, inputs) in groups.items():
                times = times_of(functions, inputs, number, device)
                row = {"group": group, "dtype": dtype_name, "batch": batch, "calls": number}
                row["milliseconds"] = {name: statistics.median(t) for name, t in times.items()}
                found.append({**row, "ratio_quartiles": quartiles(times, BASES[group])})
                print(line_of(found[-1]), flush=True)
    return found


def try_to_compile(device):
    try:
        compiled = torch.compile(plain, dynamic=False)
        z = torch.randn(4, WIDTH, device=device, requires_grad=True)
        compiled(z, z).backward()
    except Exception as error:
        print("torch.compile is left out:", type(error).__name__)
        return None
    torch._dynamo.config.cache_size_limit = 64
    return compiled


def line_of(row):
    times, base = row["milliseconds"], row["milliseconds"][BASES[row["group"]]]
    shown = ", ".join(f"{name} {t:.3f} ({t / base:.2f})" for name, t in times.items())
    return f"{row['dtype']} {row['batch']}: {shown}"


def table(rows, device):
    """Ratios to the group's base as a table in Markdown."""
    lines = []
    for group, base in BASES.items():
        chosen = [row for row in rows if row["group"] == group]
        names = [name for name in chosen[0]["milliseconds"] if name != base]
        lines += [f"| {group}: batch, precision | {base}, ms | {' | '.join(names)} |"]
        lines += ["|---" * (len(names) + 2) + "|"]
        for row in chosen:
            times = row["milliseconds"]
            ratios = [f"{times[n] / times[base]:.2f}" if n in times else "" for n in names]
            lines.append(
                f"| {row['batch']:,}, {row['dtype']} | {times[base]:.3f} | {' | '.join(ratios)} |"
            )
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--calls", type=int, help="calls of each method, at every size")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="print the tables of results.json")
    options = parser.parse_args()
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.show:
        for device, result in saved.items():
            print(f"{device}: {result['machine']}\n\n{table(result['rows'], device)}")
        return
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    calls = CALLS[options.device] if options.calls is None else (options.calls,) * len(BATCHES)
    machine = platform.processor() or platform.machine()
    if options.device == "cuda":
        machine = torch.cuda.get_device_name()
    saved[options.device] = {
        "machine": machine,
        "torch": torch.__version__,
        "threads": options.threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "rows": measure(options.device, options.batches, calls),
    }
    options.output.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
