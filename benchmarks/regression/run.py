"""Compare the speed of two checkouts on one GPU: the same rows, round after round in turns.

    python benchmarks/regression/run.py --before OTHER --root DATA     writes results.json here
    python benchmarks/regression/run.py --before OTHER --cpu           a smoke run without a GPU

Each round runs `benchmarks/kernels/run.py` and `benchmarks/throughput/run.py` of both checkouts,
each with its own package, without peers. A row's number is the median over the rounds. `--random`
trains on random images of CIFAR-10's shape, which take the same time as the real ones.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
PEERS = [
    "plain torch",
    "torch.compile",
    "Inf-CL (Triton)",
    "Cut Cross-Entropy (Triton)",
    "Liger fused linear CE",
    "FlexAttention lse",
    "lightly NTXentLoss",
    "lightly DCLLoss",
]
KEPT = ("python", "torch", "numpy", "cpu", "device")
"""What results.json says about the machine."""


def random_images(root: Path) -> None:
    """Write files of CIFAR-10's shape with random bytes."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for place, name in enumerate(names):
        rows = []
        noise = os.urandom(10_000 * 3072)
        for image in range(10_000):
            rows.append(bytes([(image + place) % 10]) + noise[image * 3072 : (image + 1) * 3072])
        (folder / name).write_bytes(b"".join(rows))
    classes = "airplane automobile bird cat deer dog frog horse ship truck".split()
    (folder / "batches.meta.txt").write_text("\n".join(classes) + "\n")


def known_peers(tree: Path) -> list[str]:
    """Return the peers' names that the tree's kernel benchmark knows."""
    text = (tree / "benchmarks" / "kernels" / "methods.py").read_text(encoding="utf-8")
    return [name for name in PEERS if f'"{name}"' in text]


def ran(tree: Path, script: str, arguments: list[str], out: Path) -> dict:
    """Run a benchmark of a checkout with its own package and return its results."""
    command = [sys.executable, str(tree / "benchmarks" / script), *arguments, "--out", str(out)]
    path = os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(out.read_text(encoding="utf-8"))


def kernel_rows(found: dict) -> dict[str, float]:
    """Return milliseconds by row of the kernel benchmark."""
    return {
        f"{case['name']}, {method['name']}": method["ms"]
        for case in found["cases"]
        for method in case["methods"]
        if method.get("kind") == "ours" and "ms" in method
    }


def training_rows(found: dict) -> dict[str, float]:
    """Return milliseconds per step, or seconds, by row of the training benchmark."""
    rows = {}
    parts = {name: part["rows"] for name, part in found["parts"].items()}
    for row in parts.get("train", []):
        if "ms_per_step" in row:
            rows[f"{row['backbone']}, batch {row['batch']}, ms per step"] = row["ms_per_step"]
    sweep = parts.get("sweep", {}).get("sweep", {})
    if "images_per_second" in sweep:
        rows["sweep of 8, batch 32, ms per 1,000 images"] = 1e6 / sweep["images_per_second"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the older checkout")
    parser.add_argument("--after", type=Path, default=HERE)
    parser.add_argument("--root", type=Path, help="folder of cifar-10-batches-bin")
    parser.add_argument("--random", action="store_true", help="make random images under --root")
    parser.add_argument("--commits", nargs=2, default=(None, None), help="of the two checkouts")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="no round is to end later")
    parser.add_argument("--only", nargs="+", default=["kernels", "train", "sweep"])
    parser.add_argument("--batches", nargs="+", default=["32", "256", "16"])
    parser.add_argument("--cases", nargs="+", default=None, help="rows of the kernel benchmark")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--cpu", action="store_true", help="tiny, without a GPU")
    options = parser.parse_args()
    if options.random:
        random_images(options.root)
    small = ["--cpu"] if options.cpu else []
    kernel = "dense" if options.cpu else "fused"
    parts = [part for part in ("train", "sweep") if part in options.only]
    times: dict[str, dict[str, list[float]]] = {}
    start = time.perf_counter()
    trees = {"before": options.before.resolve(), "after": options.after.resolve()}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            taken = time.perf_counter() - start
            if number and taken * (number + 1) / number > options.seconds:
                break
            order = list(trees) if number % 2 == 0 else list(trees)[::-1]
            for name in order:
                tree, rows = trees[name], {}
                if "kernels" in options.only:
                    given = [*small, "--kernels", kernel, "--skip", *known_peers(tree)]
                    given += ["--cases", *options.cases] if options.cases else []
                    found = ran(tree, "kernels/run.py", given, Path(folder, f"k{number}{name}"))
                    rows |= kernel_rows(found)
                if parts:
                    given = [*small, "--only", *parts, "--no-table"]
                    given += [] if options.cpu else ["--batches", *options.batches]
                    given += ["--root", str(options.root)] if options.root else []
                    found = ran(tree, "throughput/run.py", given, Path(folder, f"t{number}{name}"))
                    rows |= training_rows(found)
                for row, value in rows.items():
                    times.setdefault(row, {"before": [], "after": []})[name].append(value)
                print(f"round {number}, {name}: {len(rows)} rows", flush=True)
            taken = time.perf_counter() - start
            results = {"rounds": number + 1, "seconds": round(taken, 1), **compared(times)}
            results["commits"] = dict(zip(trees, options.commits, strict=True))
            results["environment"] = {name: found["environment"][name] for name in KEPT}
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print("| row | before | after | after / before |\n|---|--:|--:|--:|")
    for row, found in results["rows"].items():
        before, after = (statistics.median(found[name]) for name in ("before", "after"))
        print(f"| {row} | {before:.4g} | {after:.4g} | {found['ratio']:.3f} |")


def compared(times: dict[str, dict[str, list[float]]]) -> dict:
    """Return the rows that both checkouts have, with the ratio of their times."""
    rows = {
        row: {**found, "ratio": ratio(found["before"], found["after"])}
        for row, found in times.items()
        if found["before"] and found["after"]
    }
    return {"rows": rows}


def ratio(before: list[float], after: list[float]) -> float:
    """The ratio of the medians of two checkouts.

    The second checkout of a round runs on a warmer GPU and takes up to 2 % longer. Checkouts are
    therefore compared at the same place in their rounds: the older one is first in rounds 0, 2, …,
    the newer one in rounds 1, 3, …; the geometric mean of both places is returned.
    """
    median = statistics.median
    if len(before) == 1:
        return after[0] / before[0]
    first = median(after[1::2]) / median(before[0::2])
    second = median(after[0::2]) / median(before[1::2])
    return math.sqrt(first * second)


if __name__ == "__main__":
    main()
