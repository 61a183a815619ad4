"""Accuracy of the fast path against torch's own operations: CIFAR-10, batch 32.

    python benchmarks/throughput/accuracy.py --root DATA --path graph     accuracy-graph.json
    python benchmarks/throughput/accuracy.py --root DATA --path plain     accuracy-plain.json
    python benchmarks/throughput/accuracy.py --root DATA --path eager     accuracy-eager.json
    python benchmarks/throughput/accuracy.py --root DATA --path eager --probe    what it would take
    python benchmarks/throughput/accuracy.py --root DATA --path eager --stage 400 --keep DIR
    python benchmarks/throughput/accuracy.py --root DATA --path plain --same 300

FlatNCE at the preset, three seeds at the same time. ``graph`` (fused kernels) and ``plain``
(torch's own operations) are recorded and run in one process, each seed on its own stream.
``eager`` launches torch's own operations one by one, each seed in its own process. Then follow
kNN (200 neighbours) and a linear probe on the test set. Once two paths are measured, the script
prints the differences for each seed, and the spread of the seeds.

``--same STEPS`` trains the plain path twice for that many steps, recorded and eager, and compares
the weights of each seed bit by bit. If they are equal, plain and eager have the same accuracy.

``--stage SECONDS`` is for the eager path, which is slow: it trains for that many seconds, saves
each seed under ``--keep`` and stops. The same command continues exactly from there, and evaluates
when all steps are done. Start-up and evaluation take additional time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import trainings

from flatnce.environment import environment
from flatnce.pretrain import TrainConfig
from flatnce.pretrain.data import load
from flatnce.pretrain.evaluation import extract, knn_scores, linear_probe, measure
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.training.images import normalisation
from flatnce.pretrain.training.saved import CHECKPOINTS

HERE = Path(__file__).parent
BATCH, NEIGHBOURS = 32, 200
RATE = 0.12
"""At batch 256: that of the preset when the paths were compared."""
PATHS = ("graph", "plain", "eager")
MEASURES = ("knn", "linear")
PROBE_STEPS, PROBE_WARM_UP = 150, 30


def built(options, seed, path):
    """A run of a path, continued from its checkpoint if one was kept."""
    root, _ = trainings.data_root(options)
    config = trainings.configured(
        options, root, batch_size=BATCH, epochs=options.epochs, seed=seed, rate=RATE
    )
    place = options.keep / f"seed-{seed}" if options.keep else None
    kinds = {"recorded": path != "eager", "plain": path == "plain"}
    run = trainings.build(config, **kinds, directory=place)
    if place and checkpoint.steps(place / CHECKPOINTS):
        found = checkpoint.load(place / CHECKPOINTS)
        there = TrainConfig.from_plain(found.state["config"])
        if there.override(root=root) != config:  # the images may be in another folder
            raise SystemExit(f"--keep {options.keep} holds other runs; name another folder")
        run.restore(found)
    return run


def trained_together(options):
    """All seeds in this process, stepped in turn, each on its own stream."""
    runs = [built(options, seed, options.path) for seed in options.seeds]
    device = runs[0].device
    on = [torch.cuda.Stream() for _ in runs] if device.type == "cuda" else [None] * len(runs)
    trainings.settle(device)
    for run, stream in zip(runs, on, strict=True):  # recorded on an idle GPU
        with torch.cuda.stream(stream):
            trainings.take(run, min(6, run.steps))
        trainings.settle(device)
    steps = PROBE_STEPS if options.probe else runs[0].steps
    began, start = time.perf_counter(), runs[0].step
    while runs[0].step < steps:
        for run, stream in zip(runs, on, strict=True):
            with torch.cuda.stream(stream):
                trainings.take(run, 1)
        progress(runs[0], steps, began, start)
    trainings.settle(device)
    seconds = time.perf_counter() - began
    if options.probe:
        return foreseen(seconds / (steps - start), runs[0].steps)
    for run in runs:
        run.check()
    found = [evaluated(options, run) for run in runs]
    return {"seconds": round(seconds, 1), "seeds": found}


def same_bits(options):
    """Whether plain and eager weights are equal bit by bit, after some steps of each seed."""
    found = []
    for seed in options.seeds:
        weights = []
        for path in ("plain", "eager"):
            run = built(options, seed, path)
            trainings.take(run, options.same)
            trainings.settle(run.device)
            weights.append([value.clone() for value in run.learner.state_dict().values()])
        pairs = list(zip(*weights, strict=True))
        differ = sum(not torch.equal(one, two) for one, two in pairs)
        found.append({"seed": seed, "tensors": len(pairs), "differ": differ})
        print(f"plain, recorded and eager, {options.same} steps: {found[-1]}", flush=True)
    return {"steps": options.same, "seeds": found}


def trained_apart(options):
    """A process for each seed, all at once; each writes its numbers to a file."""
    parts = [options.out.with_suffix(f".{seed}.json") for seed in options.seeds]
    shared = ["--path", options.path, "--epochs", str(options.epochs)]
    shared += ["--root", str(options.root)] if options.root else []
    shared += ["--cpu"] * options.cpu + ["--probe"] * options.probe
    if options.stage:
        shared += ["--stage", str(options.stage), "--keep", str(options.keep)]
    began = time.perf_counter()
    children = []
    for seed, part in zip(options.seeds, parts, strict=True):
        part.unlink(missing_ok=True)
        command = [sys.executable, __file__, *shared, "--child", str(seed), "--out", str(part)]
        children.append(subprocess.Popen(command))
    codes = [child.wait() for child in children]
    if any(codes):
        raise SystemExit(f"the processes of seeds {options.seeds} ended with {codes}")
    found = [json.loads(part.read_text()) for part in parts]
    for part in parts:
        part.unlink()
    if options.probe:
        return max(found, key=lambda one: one["needs_s"])
    if any("left_at" in one for one in found):
        reached = ", ".join(f"{one.get('left_at', one['steps']):,}" for one in found)
        seeds = ", ".join(map(str, options.seeds))
        print(
            f"not done: seeds {seeds} are at steps {reached} of {found[0]['steps']:,}, kept in "
            f"{options.keep}; the same command goes on"
        )
        return None
    # The seeds were trained at the same time, so a run in stages took as long as its longest seed.
    longest = max(one["training_s"] for one in found)
    wall = longest if options.stage else time.perf_counter() - began
    return {"seconds": round(wall, 1), "seeds": found}


def trained_alone(options, seed):
    """One seed in this process; to the end, or for a stage."""
    run = built(options, seed, options.path)
    trainings.take(run, min(PROBE_WARM_UP, run.steps - run.step))
    trainings.settle(run.device)
    steps = min(PROBE_STEPS, run.steps) if options.probe else run.steps
    began, start = time.perf_counter(), run.step
    end = began + (options.stage or float("inf"))
    while run.step < steps and time.perf_counter() < end:
        trainings.take(run, 1)
        if seed == options.seeds[0]:
            progress(run, steps, began, start)
    trainings.settle(run.device)
    seconds = time.perf_counter() - began
    if options.probe:
        return foreseen(seconds / max(steps - start, 1), run.steps)
    run.check()
    run.seconds += seconds  # add the earlier stages, read from the checkpoint
    if options.keep:
        run.save()
    if run.step < steps:
        return {"left_at": run.step, "steps": steps}
    return {**evaluated(options, run), "training_s": round(run.seconds, 1)}


def progress(run, steps, began, start):
    """Print a line after each tenth of the steps."""
    tenth = max(1, steps // 10)
    if run.step % tenth == 0:
        trainings.settle(run.device)
        each = (time.perf_counter() - began) / max(run.step - start, 1)
        left = each * (steps - run.step)
        print(f"  step {run.step} of {steps}, {1e3 * each:.2f} ms, {left:.0f} s left", flush=True)


def foreseen(seconds_a_step, steps):
    return {
        "ms_per_step": round(1e3 * seconds_a_step, 3),
        "steps": steps,
        "needs_s": round(seconds_a_step * steps, 1),
    }


def evaluated(options, run):
    """KNN and linear probe of the backbone on the test set."""
    data, views = run.config.data, run.images.views
    mean, std = normalisation(data.data)
    parts = {}
    for split in ("train", "test"):
        images = load(data.data, split, data.root).to(run.device)
        parts[split] = extract(
            run.learner.encoder.backbone, images, size=views.size, mean=mean, std=std
        )
    train, test = parts["train"], parts["test"]
    k = min(NEIGHBOURS, len(train))
    knn = measure(knn_scores(train, test.features, (k,))[k], test.labels)["top1"]
    probe = linear_probe(train, test)
    found = {
        "seed": run.config.run.seed,
        "steps": run.step,
        "recorded": getattr(run._take_step, "graph", None) is not None,
        "notes": list(run.notes),
        "knn": knn,
        "linear": measure(probe.scores, test.labels)["top1"],
        "loss": run.monitor.compute(run.step)["loss"],
    }
    print(f"  {found}", flush=True)
    return found


def compared(paths):
    """Differences for each seed, and the spread of the seeds of one path."""
    lines = [
        "| measure | path | seeds | mean | standard deviation of the seeds |",
        "|---|---|---|---|---|",
    ]
    numbers = {}
    for name in MEASURES:
        for path in paths:
            values = [one[name] for one in sorted(paths[path]["seeds"], key=lambda s: s["seed"])]
            numbers[name, path] = values
            each = ", ".join(f"{100 * value:.2f}" for value in values)
            spread = statistics.stdev(values) if len(values) > 1 else float("nan")
            mean = 100 * statistics.mean(values)
            lines.append(f"| {name} | {path} | {each} | {mean:.2f} % | {100 * spread:.2f} |")
    other = next(path for path in ("eager", "plain") if path in paths)
    lines += ["", f"| measure | graph − {other}, by seed | mean difference |", "|---|---|---|"]
    for name in MEASURES:
        pairs = zip(numbers[name, "graph"], numbers[name, other], strict=True)
        apart = [100 * (a - b) for a, b in pairs]
        each = ", ".join(f"{value:+.2f}" for value in apart)
        lines.append(f"| {name} | {each} | {statistics.mean(apart):+.2f} points |")
    return "\n".join(lines)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", choices=PATHS, required=True)
    parser.add_argument("--root", type=Path, help="where cifar-10-batches-bin lies")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--probe", action="store_true", help="a few steps: what would it take?")
    parser.add_argument("--same", type=int, help="steps to compare with eager ones, bit by bit")
    parser.add_argument("--stage", type=float, help="seconds to train for; eager only")
    parser.add_argument("--keep", type=Path, help="where the runs of a stage are kept")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cpu", action="store_true", help="digits, a smoke run")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.stage is None) != (options.keep is None):
        parser.error("--stage and --keep go together")
    if options.stage is not None and not options.stage > 0:
        parser.error(f"argument --stage: {options.stage:g} must be more than 0")
    if options.stage and (options.path != "eager" or options.same or options.probe):
        parser.error("--stage is for --path eager, without --same and --probe")
    if options.same and options.path != "plain":
        parser.error("--same is for --path plain, whose accuracy goes into the same file")
    if options.out is None:
        folder = Path("build") if options.cpu or options.probe else HERE
        folder.mkdir(exist_ok=True)
        options.out = folder / f"accuracy-{options.path}.json"
    return options


def main():
    options = parsed()
    # The setting of recorded steps; without it eager steps would not be reproducible bit by bit.
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    if options.child is not None:
        found = trained_alone(options, options.child)
        options.out.write_text(json.dumps(found) + "\n")
        return
    if trainings.data_root(options)[1] == "random bytes" and not options.probe:
        raise SystemExit(
            f"--root {options.root} holds no CIFAR-10, and accuracy needs the real one"
        )
    same = {"same_as_eager": same_bits(options)} if options.same else {}
    found = trained_apart(options) if options.path == "eager" else trained_together(options)
    if found is None:  # more stages follow
        return
    if options.probe:
        needs = found["needs_s"]
        print(
            f"{options.path}: {found['ms_per_step']} ms per step of {len(options.seeds)} runs; "
            f"{options.epochs} epochs are {found['steps']} steps, {needs:.0f} s "
            f"({needs / 60:.1f} minutes), and about 30 s of evaluation"
        )
        return
    data = trainings.data_root(options)[1]
    found = {
        "environment": environment(options.seeds, "cpu" if options.cpu else "cuda"),
        "data": data,
        "path": options.path,
        "epochs": options.epochs,
        "batch": BATCH,
        **same,
        **found,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{options.path}: {found['seconds']} s; wrote {options.out.name}")
    paths = found_in(options.out.parent)
    if "graph" in paths and len(paths) > 1:
        print(compared(paths))


def found_in(folder):
    """What was measured so far, by path."""
    files = {path: folder / f"accuracy-{path}.json" for path in PATHS}
    return {path: json.loads(file.read_text()) for path, file in files.items() if file.exists()}


if __name__ == "__main__":
    main()
