"""One run of the comparison: FlatNCE or InfoNCE on CIFAR-10 with a small batch.

    python benchmarks/small_batch/run.py --data ROOT --out FOLDER --objective flatnce --seed 0

It is `flatnce train cifar10` with the settings below, for machines without the command line's
packages. A run that is already in the folder is resumed; a finished one is left alone.
"""

import argparse
import time
from pathlib import Path

import torch

from flatnce.pretrain import preset, resume, train
from flatnce.pretrain.evaluation import evaluate_run
from flatnce.pretrain.runs.log import read_run


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="where data sets lie")
    parser.add_argument("--out", required=True, type=Path, help="the runs go below it")
    parser.add_argument("--objective", default="flatnce")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.03, help="at batch 32")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--no-evaluation", action="store_true")
    parser.add_argument("--max-steps", type=int, help="stop after so many, to measure speed")
    return parser.parse_args()


def main():
    asked = arguments()
    config = preset("cifar10").override(
        root=asked.data,
        objective=asked.objective,
        seed=asked.seed,
        rate=asked.rate,
        base_batch=32,
        temperature=asked.temperature,
        epochs=asked.epochs,
        batch_size=asked.batch_size,
        warmup_epochs=min(1.0, asked.epochs / 4),
        log_every=100,
        tensorboard=False,
    )
    name = f"{asked.objective}-t{asked.temperature:g}-r{asked.rate:g}-s{asked.seed}"
    directory = asked.out / name
    started = time.perf_counter()

    class Enough(Exception):
        pass

    def report(line):
        if line["kind"] == "watch":
            shown = {k: round(v, 4) for k, v in line.items() if isinstance(v, int | float)}
            keys = ("step", "epoch", "loss", "gain", "ess", "knn", "pool_mi", "images_per_second")
            print(name, {k: shown[k] for k in keys if k in shown}, flush=True)
        if asked.max_steps and line["step"] >= asked.max_steps:
            raise Enough

    try:
        if not directory.exists():
            train(config, directory, report=report)
        elif (read_run(directory).results or {}).get("evaluations"):
            return
        else:
            resume(directory, report=report)
    except Enough:
        return
    if not asked.no_evaluation:
        evaluate_run(directory, ["knn", "linear"], device="auto")
        for found in read_run(directory).results["evaluations"]:
            print(name, found["protocol"]["name"], found["top1"], found["interval"], flush=True)
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    print(f"{name}: {time.perf_counter() - started:.0f} s, {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
