"""Images per second of the ordinary training path, compared with common alternatives.

    python benchmarks/throughput/run.py --root DATA      writes results.json beside this file
    python benchmarks/throughput/run.py --only train     one part
    python benchmarks/throughput/run.py --cpu            a smoke run on digits, without a GPU

Parts, in this order: train, sweep, runs, queues, evaluate, memory, peers. A part that fails prints
its traceback and is noted; the other parts still run.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path

import torch
import trainings

from flatnce.environment import environment
from flatnce.pretrain.sweeping.sweep import MOST_AT_ONCE

BATCHES = (32, 256, 16, 64, 128, 512)
PEERS = (("resnet18", 256), ("resnet18", 32), ("resnet18", 16), ("resnet50", 256))
WITHOUT = (32, 256)
"""Batches that are also timed without diagnostics, in alternating windows."""
GOALS = {
    ("resnet18", 256): 36_000,
    ("resnet18", 32): 20_000,
    ("resnet18", 16): 12_000,
    ("resnet50", 256): 9_000,
}
SWEEP_RUNS, SWEEP_BATCH, SWEEP_GOAL = 8, 32, 30_000
RUNS_BY_COUNT, HALF_BATCH = (4, 8, 16), 16
"""Numbers of concurrent runs at a sweep's batch. At half that batch, as many runs as in a sweep
do half the work in about as many launches."""
QUEUE_COUNTS, RUNS_BY_QUEUES = (8, 16, 24, 32), (8, 16)
"""Numbers of hardware queues, and the numbers of runs that are tried with each."""
CLASSES_APART = 4.5
"""Distance between two classes, in standard deviations of a feature: small enough that kNN and a
linear probe make errors."""
VIEWS_NOISE = 1.0
"""Noise of the two views of an image for pool information: not every pair is recognised."""
EVALUATION_GOAL_S = 3.0
NETS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "small": "small network"}
MIB = 2**20


# ---- one run


def part_train(options, root):
    """The ordinary path by batch size; ResNet-50 once."""
    wanted = [("resnet18", batch) for batch in options.batches]
    if not options.cpu:
        wanted.insert(3, ("resnet50", 256))
    rows = []
    for backbone, batch in wanted:
        if time.perf_counter() > options.train_end:
            rows.append({"backbone": backbone, "batch": batch, "failed": "not run: no time left"})
            continue
        config = trainings.configured(options, root, backbone=backbone, batch_size=batch)
        net = "small" if options.cpu else backbone  # the preset of digits has a small network
        rows.append({"backbone": net, "batch": batch, **one_run(options, config, batch)})
        rows[-1]["goal"] = None if options.cpu else GOALS.get((backbone, batch))
        print(f"  {rows[-1]}", flush=True)
        release()
    return rows


def one_run(options, config, batch):
    without = batch in WITHOUT and config.model.backbone != "resnet50"
    began = time.perf_counter()
    kinds = {"on": True, "off": False} if without else {"on": True}
    runs = {name: trainings.build(config, diagnostics=on) for name, on in kinds.items()}
    for run in runs.values():
        trainings.take(run, options.warm_up)
        trainings.settle(run.device)
    found = {"build_and_warm_up_s": round(time.perf_counter() - began, 2)}
    steps = trainings.window_steps(runs["on"], options)
    times = {name: [] for name in runs}
    for _ in range(options.windows):
        for name, run in runs.items():
            times[name].append(trainings.timed(run, steps))
    found |= trainings.speed(times["on"], batch)
    found["steps_a_window"] = steps
    found["host_ms_per_step"] = round(1e3 * trainings.host_seconds(runs["on"]), 4)
    found["recorded"] = getattr(runs["on"]._take_step, "graph", None) is not None
    found["notes"] = list(runs["on"].notes)
    if without:
        found["without_diagnostics"] = trainings.speed(times["off"], batch)
        ratios = sorted(a / b for a, b in zip(times["on"], times["off"], strict=True))
        found["diagnostics_cost"] = {
            "median": round(statistics.median(ratios) - 1, 4),
            "range": [round(ratios[0] - 1, 4), round(ratios[-1] - 1, 4)],
        }
    if not options.cpu:
        found["allocated_mib"] = round(torch.cuda.memory_allocated() / MIB, 1)
    return found


# ---- several runs


def part_sweep(options, root):
    """Concurrent runs by flatnce.pretrain.sweeping.sweep, as users call it."""
    found = {"runs": options.runs, "batch": SWEEP_BATCH, "goal": goal_of(options, SWEEP_BATCH)}
    found["sweep"] = by_sweep(options, root)
    print(f"  {found['sweep']}", flush=True)
    return found


def part_runs(options, root):
    """The upper limit for a sweep, by the number of concurrent runs."""
    wanted = [(count, SWEEP_BATCH) for count in options.counts or options.all_counts]
    if not options.counts:
        wanted.append((options.runs, HALF_BATCH))
    rows = []
    for count, batch in wanted:
        goal = goal_of(options, batch) if count == options.runs else None
        rows.append({"runs": count, "batch": batch, "goal": goal})
        try:
            rows[-1] |= by_streams(options, root, count, batch)
        except Exception:
            rows[-1]["failed"] = traceback.format_exc()
            traceback.print_exc()
        print(f"  {rows[-1]}", flush=True)
        release()
    return rows


def part_queues(options, root):
    """The same by the number of hardware queues, each number in its own process."""
    counts, rows = options.counts or options.runs_by_queues, []
    for queues in map(str, options.queues):
        around = {trainings.QUEUES: queues}
        try:
            found = elsewhere("runs", options, "--counts", *map(str, counts), variables=around)
        except RuntimeError:  # still measure the other numbers
            shared = {"batch": SWEEP_BATCH, "failed": traceback.format_exc()}
            found = [{"runs": count, **shared} for count in counts]
        rows += [{**row, "goal": None, "queues": queues} for row in found]
    return rows


def goal_of(options, batch):
    """The goal of a sweep, which holds for one batch size."""
    return None if options.cpu or batch != SWEEP_BATCH else SWEEP_GOAL


def by_sweep(options, root):
    """Total images per second of several sweeps, one after another."""
    sweeps = []
    for _ in range(options.sweeps):
        sweeps.append(one_sweep(options, root))
        release()
    rates = [found["images_per_second"] for found in sweeps]
    return {
        "images_per_second": statistics.median(rates),
        "range": [min(rates), max(rates)],
        "queues": os.environ.get(trainings.QUEUES, "default"),
        "sweeps": sweeps,
    }


def one_sweep(options, root):
    """Total images per second while all runs are training, from the lines that they log."""
    from flatnce.pretrain import sweep

    every = 5 if options.cpu else None
    configs = {
        f"seed-{seed}": trainings.configured(
            options, root, batch_size=SWEEP_BATCH, epochs=1, seed=seed, log_every=every
        )
        for seed in range(options.runs)
    }
    lines, ends = {name: [] for name in configs}, []

    def report(name, line):
        now = time.perf_counter()
        if line["kind"] == "train":
            lines[name].append((now, line["step"]))
        if line["kind"] == "state" and line["state"] != "started":
            ends.append(now)

    place = Path(tempfile.mkdtemp())
    began = time.perf_counter()
    try:
        runs = sweep(configs, place / "sweep", at_once=options.runs, report=report)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    wall = time.perf_counter() - began
    start, stop = max(times[0][0] for times in lines.values()), min(ends)
    rates = []
    for times in lines.values():
        inside = [(now, step) for now, step in times if start <= now <= stop]
        if len(inside) > 1:
            (first, low), (last, high) = inside[0], inside[-1]
            rates.append((high - low) * SWEEP_BATCH / (last - first))
    images = sum(run.taken for run in runs) * SWEEP_BATCH
    return {
        "images_per_second": round(sum(rates), 1),
        "each": [round(rate, 1) for rate in sorted(rates)],
        "counted_s": round(stop - start, 2),
        "whole_s": round(wall, 2),
        "images_per_second_whole": round(images / wall, 1),
        "states": sorted({run.state for run in runs}),
    }


def by_streams(options, root, count, batch):
    """The trainings of a sweep, each on its own stream, stepped in turn; nothing else."""
    queues, device = trainings.widen(), trainings.device_of(options)
    on, runs = trainings.slots(device, count), []
    for seed, stream in enumerate(on):
        config = trainings.configured(options, root, batch_size=batch, seed=seed)
        with torch.cuda.stream(stream):  # built, recorded and replayed on one, as in a sweep
            runs.append(trainings.build(config))
            trainings.take(runs[-1], options.warm_up)
        trainings.settle(device)

    def go(steps):
        trainings.settle(device)
        began = time.perf_counter()
        for _ in range(steps):
            for run, stream in zip(runs, on, strict=True):
                with torch.cuda.stream(stream):
                    trainings.take(run, 1)
        trainings.settle(device)
        return (time.perf_counter() - began) / steps

    steps = max(2, round(options.window / go(options.trial)))
    times = [go(steps) for _ in range(options.windows)]
    return {**trainings.speed(times, batch * count), "queues": queues}


# ---- common alternatives


def part_peers(options, root):
    """The usual script with workers, and this package's own step, plain."""
    import script

    device = trainings.device_of(options)
    rows = []
    for backbone, batch in options.peers:
        config = trainings.configured(options, root, backbone=backbone, batch_size=batch)
        images = trainings.train_images.load_images(config.data).images
        seconds, workers = script.measure(
            images,
            batch,
            device,
            backbone=backbone,
            workers=0 if options.cpu else None,
            seconds=options.peer_seconds,
            warm_up=options.trial,
        )
        name = f"PIL in {workers} workers, eager bfloat16"
        entry = {"backbone": backbone, "batch": batch}
        rows.append({"name": name, **entry, **trainings.speed(seconds, batch)})
        print(f"  {rows[-1]}", flush=True)
        release()
        entry["backbone"] = "small" if options.cpu else backbone
        rows.append({"name": "flatnce, plain", **entry})
        run = trainings.build(config, recorded=False)
        trainings.take(run, options.warm_up)
        steps = trainings.window_steps(run, options)
        times = [trainings.timed(run, steps) for _ in range(options.windows)]
        rows[-1] |= trainings.speed(times, batch)
        rows[-1]["host_ms_per_step"] = round(1e3 * trainings.host_seconds(run), 4)
        print(f"  {rows[-1]}", flush=True)
        del run
        release()
    return rows


# ---- evaluation


def part_evaluate(options, root):
    """kNN, linear probe and large-pool information of features of ten classes that overlap."""
    from flatnce.core.diagnostics import pool_information
    from flatnce.pretrain.evaluation import Features, knn_scores, linear_probe, measure

    device = "cpu" if options.cpu else "cuda"
    n, asked, width = (600, 200, 16) if options.cpu else (50_000, 10_000, 512)
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, device=device)

    centres = CLASSES_APART / (2 * width) ** 0.5 * draw(10, width)
    labels = torch.arange(n + asked, device=device) % 10
    features = (centres[labels] + draw(n + asked, width)).relu()
    train = Features(features[:n], labels[:n])
    test = Features(features[n:], labels[n:])
    views = [features[:n] + VIEWS_NOISE * draw(n, width) for _ in range(2)]
    others = [features[n:] + VIEWS_NOISE * draw(asked, width) for _ in range(2)]
    numbers = {}

    def knn():
        found = measure(knn_scores(train, test.features)[200], test.labels)
        numbers["knn"] = found["top1"]

    def probe():
        found = linear_probe(train, test)
        numbers["linear"] = measure(found.scores, test.labels)["top1"]
        for name in ("converged", "regularisation", "iterations"):
            numbers[f"linear_{name}"] = found.protocol[name]

    def information():
        numbers["pool"] = pool_information(*views, 0.1, calibration=tuple(others))

    rounds = []
    for _ in range(2 if options.cpu else 4):
        took = {}
        for name, work in (("knn", knn), ("linear", probe), ("information", information)):
            trainings.settle(torch.device(device))
            began = time.perf_counter()
            work()
            trainings.settle(torch.device(device))
            took[name] = round(time.perf_counter() - began, 4)
        rounds.append({**took, "sum": round(sum(took.values()), 4)})
        print(f"  {rounds[-1]}", flush=True)
    warm = sorted(row["sum"] for row in rounds[1:])
    peer = by_scikit_learn(train, test, 1 if options.cpu else 3)
    print(f"  scikit-learn: {peer}", flush=True)
    return {
        "scikit_learn": peer,
        "features": [n, width],
        "queries": asked,
        "cold_s": rounds[0]["sum"],
        "warm_s": statistics.median(warm),
        "warm_range_s": [warm[0], warm[-1]],
        "rounds": rounds,
        "goal_s": None if options.cpu else EVALUATION_GOAL_S,
        "numbers": numbers,
    }


def by_scikit_learn(train, test, times):
    """The same kNN and probe by scikit-learn on all cores; no information.

    The probe does the same work. Features are standardised. Each strength of the grid is fitted
    on the same nine tenths, from the strongest to the weakest, each fit starting from the last.
    The strength that is best on the rest is refitted on all rows. Differences from ours: float32,
    its own tolerance (1e-4), and neighbours with equal weight.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import StandardScaler

    from flatnce.pretrain.evaluation.probe import REGULARISATIONS, VALIDATION, validation_split

    features, labels = train.features.cpu().numpy(), train.labels.cpu().numpy()
    asked, truth = test.features.cpu().numpy(), test.labels.cpu().numpy()
    rest, held = (part.numpy() for part in validation_split(train.labels.cpu(), VALIDATION, 0))
    found = {}

    def knn():
        near = KNeighborsClassifier(200, algorithm="brute", metric="cosine", n_jobs=-1)
        found["knn"] = float((near.fit(features, labels).predict(asked) == truth).mean())

    def probe():
        scaler = StandardScaler().fit(features)
        x = scaler.transform(features)
        path, right, weights = LogisticRegression(max_iter=1_000, warm_start=True), {}, {}
        iterations, fitted_on, fitted_to = [], x[rest], labels[rest]
        for strength in sorted(REGULARISATIONS, reverse=True):
            path.set_params(C=1 / (strength * len(rest))).fit(fitted_on, fitted_to)
            iterations.append(int(path.n_iter_.max()))
            right[strength] = path.score(x[held], labels[held])
            weights[strength] = path.coef_.copy(), path.intercept_.copy()
        best = max(right, key=right.get)  # the strongest if several are equal
        path.coef_, path.intercept_ = weights[best]
        path.set_params(C=1 / (best * len(x))).fit(x, labels)
        found["linear"] = float(path.score(scaler.transform(asked), truth))
        found["linear_regularisation"] = best
        found["linear_iterations"] = [*iterations, int(path.n_iter_.max())]

    rounds = []
    for _ in range(times):
        took = {}
        for name, work in (("knn_s", knn), ("linear_s", probe)):
            began = time.perf_counter()
            work()
            took[name] = round(time.perf_counter() - began, 2)
        rounds.append(took)
    sums = sorted(sum(took.values()) for took in rounds)
    for name in rounds[0]:
        found[name] = statistics.median(took[name] for took in rounds)
    found["sum_s"] = round(statistics.median(sums), 2)
    found["range_s"] = [round(sums[0], 2), round(sums[-1], 2)]
    return {**found, "rounds": rounds}


# ---- memory


def part_memory(options, root):
    """Bytes after some steps and after a thousand more."""
    early, late = (4, 24) if options.cpu else (100, 1_100)
    if options.cpu:
        print("  without a card nothing is counted, only trained", flush=True)
    run = trainings.build(trainings.configured(options, root, batch_size=32))
    found = {"steps": [early, late], "allocated": [], "reserved": [], "peak": []}
    for steps in (early, late):
        trainings.take(run, steps - run.step)
        trainings.settle(run.device)
        gc.collect()
        if run.device.type == "cuda":
            found["allocated"].append(torch.cuda.memory_allocated())
            found["reserved"].append(torch.cuda.memory_reserved())
            found["peak"].append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
    if found["allocated"]:
        found["grown"] = found["allocated"][1] - found["allocated"][0]
    return found


# ---- all of it

PARTS = {
    "train": part_train,
    "sweep": part_sweep,
    "runs": part_runs,
    "queues": part_queues,
    "evaluate": part_evaluate,
    "memory": part_memory,
    "peers": part_peers,
}
OF_A_PART = ("commit", "device")
"""Recorded with each part, because one file may hold parts of several runs."""
SMOKE = "a smoke run, whose numbers say nothing of speed; written to"
AFRESH = ("sweep", "runs", "memory")
"""Parts that need their own process: the first two configure CUDA differently, and the measured
memory must not include what other parts have allocated."""


def main():
    options = parsed()
    began = time.perf_counter()
    options.train_end = began + options.seconds
    root, data = trainings.data_root(options)
    results = {
        "environment": {},  # filled later: a sweep must be the first to use CUDA
        "packages": {name: version(name) for name in ("torchvision", "pillow", "triton")},
        "data": data,
        "parts": {},
    }
    if options.out.exists() and set(options.only) != set(PARTS):
        results["parts"] = kept(options.out, data)  # a single part replaces only itself
    for name in options.only:
        start = time.perf_counter()
        if not options.no_table:
            print(f"{name}", flush=True)
        try:
            found = {"rows": measured_of(name, options, root)}
        except Exception:
            found = {"failed": traceback.format_exc()}
            traceback.print_exc()
        found["seconds"] = round(time.perf_counter() - start, 1)
        results["parts"][name] = found
        results["environment"] = environment([0], "cpu" if options.cpu else "cuda")
        found |= {key: results["environment"][key] for key in OF_A_PART}
        results["seconds"] = round(time.perf_counter() - began, 1)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        release()
    if not options.no_table:
        print(f"\n{results['seconds']} s in all, data: {data}\n\n{table(results)}")
        print(f"\n{SMOKE if options.cpu else 'written to'} {options.out}")
    sys.exit(any("failed" in results["parts"][name] for name in options.only))


def kept(path, data):
    """The parts of an earlier run, which are kept beside those of this one."""
    before = json.loads(path.read_text())
    if before.get("data", data) != data:
        said = f"{path} holds a run on {before['data']}, and this one is on {data}"
        sys.exit(f"run.py: {said}; name another file by --out")
    keep_peers(before["parts"])
    return before["parts"]


def measured_of(name, options, root):
    """The rows of a part, from its own process if it needs one."""
    if name not in AFRESH or options.only == [name]:
        return PARTS[name](options, root)
    return elsewhere(name, options)


def elsewhere(name, options, *more, variables=None):
    """The rows of a part from its own process, with additional arguments and variables."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    aside = options.out.with_suffix(f".{name}.json")
    # The last value of an option counts, so earlier ones need not be removed.
    given = [*sys.argv[1:], "--only", name, "--out", str(aside), "--no-table", *more]
    around = {**os.environ, **(variables or {})}
    aside.unlink(missing_ok=True)
    ended = subprocess.run([sys.executable, __file__, *given], env=around)
    if not aside.exists():
        raise RuntimeError(f"the process of part {name} ended with {ended.returncode}")
    part = json.loads(aside.read_text())["parts"][name]
    aside.unlink()
    if "failed" in part:
        raise RuntimeError(part["failed"])
    return part["rows"]


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="where cifar-10-batches-bin lies")
    parser.add_argument("--out", type=Path, help="results.json beside this file by default; "
                        "build/throughput-smoke.json with --cpu")  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batches", nargs="+", type=int, help="of ResNet-18, in this order")
    parser.add_argument(
        "--counts", nargs="+", type=int, help="of runs by streams, at batch 32 alone"
    )
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--window", type=float, default=0.5, help="seconds")
    parser.add_argument("--warm-up", type=int, default=30, help="steps")
    parser.add_argument("--peer-seconds", type=float, default=5.0)
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="of part train: no batch starts later"
    )
    parser.add_argument("--cpu", action="store_true", help="digits, tiny, no card")
    parser.add_argument("--no-table", action="store_true", help="print rows alone")
    options = parser.parse_args()
    refuse(parser, options)
    options.trial, options.peers = 20, PEERS
    options.sweeps = 1 if options.cpu else 3
    options.runs, options.all_counts = SWEEP_RUNS, RUNS_BY_COUNT
    options.queues, options.runs_by_queues = QUEUE_COUNTS, RUNS_BY_QUEUES
    if options.cpu:
        options.runs, options.all_counts = 2, (1, 2)
        options.queues, options.runs_by_queues = QUEUE_COUNTS[:1], (2,)
        options.windows, options.window, options.warm_up, options.trial = 3, 0.05, 3, 2
        options.batches, options.peers = options.batches or [32], PEERS[1:2]
        options.peer_seconds = 0.5
    options.batches = options.batches or list(BATCHES)
    if options.out is None:
        small = Path("build") / "throughput-smoke.json"
        options.out = small if options.cpu else Path(__file__).with_name("results.json")
    return options


def refuse(parser, options):
    """Exit with an error message before anything is measured or written."""
    # torch.cuda.is_available would start CUDA, and a sweep could no longer set its queues.
    if not options.cpu and not torch.cuda.device_count():
        parser.error("no CUDA device is there; --cpu is a smoke run without one")
    if options.root is not None and not (options.root / trainings.FOLDER).is_dir():
        parser.error(f"--root {options.root} holds no {trainings.FOLDER}; see `flatnce data`")
    for name, value in (("windows", options.windows), ("window", options.window)):
        if value <= 0:
            parser.error(f"--{name} {value:g} must be more than 0")
    small = [batch for batch in options.batches or () if batch < 2]
    if small:
        parser.error(f"--batches {small[0]}: a batch of at least 2 has negatives")
    if options.out is None and not options.cpu and (options.batches or options.counts):
        parser.error("--batches and --counts leave rows out: name another file by --out")
    strange = [count for count in options.counts or () if not 1 <= count <= MOST_AT_ONCE]
    if strange:
        parser.error(f"--counts {strange[0]}: a sweep has 1 to {MOST_AT_ONCE} runs at once")


def release():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def table(results):
    """The table between the marks of README.md."""
    parts = results["parts"]
    rows = {name: part.get("rows") for name, part in parts.items()}
    lines = ["| what | goal | measured | range | peer | ratio |", "|---|---|---|---|---|---|"]
    # Without a GPU the runs use a small network, and the script does not.
    peers = {} if results.get("data") == "digits" else peers_of(parts)
    for row in sorted(rows.get("train") or [], key=lambda row: (row["backbone"], row["batch"])):
        lines.append(train_line(row, peers))
    swept = rows.get("sweep")
    if swept:
        what = f"{swept['runs']} runs at batch {swept['batch']}"
        peer = peer_of(swept, peers)
        lines.append(speed_line(f"{what}, in sum, by sweep", swept["goal"], swept["sweep"], peer))
        whole = f"{what}: the whole sweep, building and saving included"
        lines.append(speed_line(whole, None, whole_speed(swept["sweep"]), None))
    for part in ("runs", "queues"):
        for row in rows.get(part) or []:
            several = "1 run" if row["runs"] == 1 else f"{row['runs']} runs"
            what = f"{several} at batch {row['batch']}, in sum, by streams"
            what += f", {row['queues']} queues" if part == "queues" else ""
            lines.append(speed_line(what, row["goal"], row, peer_of(row, peers)))
    for row in rows.get("peers") or []:
        what = f"{row['name']}: {NETS[row['backbone']]}, batch {row['batch']}"
        lines.append(speed_line(what, None, row, None))
    found = rows.get("evaluate")
    if found:
        low, high = found["warm_range_s"]
        size = " × ".join(f"{value:,}" for value in found["features"])
        what = f"kNN, linear probe and pool information of {size} features"
        took = f"{found['warm_s']:.2f} s (the first time {found['cold_s']:.2f} s)"
        goal = "" if found["goal_s"] is None else f"{found['goal_s']:g} s"
        peer = found["scikit_learn"]
        other = peer.get("sum_s", peer["knn_s"] + peer["linear_s"])
        spread = "{:.1f} to {:.1f}, ".format(*peer["range_s"]) if "range_s" in peer else ""
        beside = (
            f"{other:.1f} s ({spread}scikit-learn, without information) | "
            f"{other / found['warm_s']:.0f}"
        )
        lines.append(f"| {what} | {goal} | {took} | {low:.2f} to {high:.2f} | {beside} |")
    found = rows.get("memory")
    if found and found["allocated"]:
        first, last = (f"{value / MIB:,.1f}" for value in found["allocated"])
        steps = " and ".join(f"{step:,}" for step in found["steps"])
        what = f"MiB allocated after {steps} steps"
        lines.append(f"| {what} | no growth | {first} and {last} | | | |")
    lines += [f"\n{name} failed." for name, part in parts.items() if "failed" in part]
    now = results["environment"]
    earlier = []
    for name, part in parts.items():
        own = {key: part.get(key, now.get(key)) for key in OF_A_PART}
        if any(own[key] != now.get(key) for key in OF_A_PART):
            earlier.append(f"`{name}` ({own['commit'][:7]}, {own['device']})")
    if earlier:
        lines.append(f"\nOf an earlier run: {', '.join(earlier)}.")
    return "\n".join(lines)


def peers_of(parts):
    """The usual script's speed by network and batch."""
    return {
        (row["backbone"], row["batch"]): row["images_per_second"]
        for row in parts.get("peers", {}).get("rows") or []
        if row["name"].startswith("PIL") and "images_per_second" in row
    }


def peer_of(found, peers):
    """The usual script's speed for comparison with several runs, from the same measurement."""
    return found.get("peer", peers.get(("resnet18", found["batch"])))


def keep_peers(parts):
    """Record the usual script's speed in kept parts, because the next measurement may differ."""
    peers = peers_of(parts)
    swept = parts.get("sweep", {}).get("rows")
    several = [row for name in ("runs", "queues") for row in parts.get(name, {}).get("rows") or []]
    for found in [*([swept] if swept else []), *several]:
        peer = peer_of(found, peers)
        if peer is not None:
            found["peer"] = peer


def whole_speed(found):
    """Images per second of sweeps from their call to their return."""
    if "sweeps" not in found:
        return found
    rates = [one["images_per_second_whole"] for one in found["sweeps"]]
    return {"images_per_second": statistics.median(rates), "range": [min(rates), max(rates)]}


def train_line(row, peers):
    net = NETS[row["backbone"]]
    peer = peers.get((row["backbone"], row["batch"]))
    text = speed_line(f"{net}, batch {row['batch']}", row.get("goal"), row, peer)
    if "diagnostics_cost" in row:
        cost = row["diagnostics_cost"]
        low, high = cost["range"]
        what = f"{net}, batch {row['batch']}: diagnostics on against off"
        goal = "3 %" if row.get("goal") else ""
        text += f"\n| {what} | {goal} | {cost['median']:.1%} | {low:.1%} to {high:.1%} | | |"
    return text


def speed_line(what, goal, row, peer):
    if "images_per_second" not in row:
        said = row.get("failed", "").strip().splitlines() or [""]
        return f"| {what} | {shown(goal)} | {said[-1][:100]} | | | |"
    measured = row["images_per_second"]
    low, high = row.get("range") or (None, None)
    spread = "" if low is None else f"{low:,.0f} to {high:,.0f}"
    beside = "" if peer is None else f"{peer:,.0f}"
    ratio = "" if peer is None else f"{measured / peer:.1f}"
    rate = f"**{measured:,.0f}** images/s"
    return f"| {what} | {shown(goal)} | {rate} | {spread} | {beside} | {ratio} |"


def shown(goal):
    return "" if goal is None else f"{goal:,.0f}"


if __name__ == "__main__":
    main()
