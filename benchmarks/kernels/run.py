"""Time, memory and error of the loss, forward and backward, compared with peers.

    python benchmarks/kernels/run.py --peers FOLDER      writes results.json beside this file
    python benchmarks/kernels/run.py --quick             ours and plain torch, three rows
    python benchmarks/kernels/run.py --cpu               a smoke run without a GPU

All methods of a row are timed in turns, round after round, on the same inputs. README.md defines
the measurements. If a method fails or does not fit, its row gives the reason.
"""

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

import measure
import methods
import torch

from flatnce.environment import environment


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Arguments:
        name: Its name in the table.
        layout: ``one``, ``both`` or ``simclr``.
        n: Rows of scores.
        d: Width.
        products: The least number of matrix products of 2·n²·d operations.
        goal_ms: The goal for the time; None for no goal.
        goal_mib: The goal for the memory; None for no goal.
    """

    name: str
    layout: str
    n: int
    d: int
    products: int
    goal_ms: float | None = None
    goal_mib: float | None = None


# One direction needs four products: scores and the anchors' gradient in one pass, scores again and
# the keys' gradient. Both directions need five: scores, scores again for each of two gradients,
# and two gradients, because one score serves both. With anchors = keys the matrix is symmetric,
# one gradient is both, and three are enough.
CASES = (
    Case("N = 65,536, d = 256", "one", 65_536, 256, 4, 20.0, 400.0),
    Case("SimCLR, N = 65,536, d = 128", "simclr", 65_536, 128, 3, 8.0),
    Case("N = 16,384, d = 256", "one", 16_384, 256, 4, 1.3),
    Case("N = 4,096, d = 256", "one", 4_096, 256, 4, 0.15),
    Case("N = 65,536, d = 512", "one", 65_536, 512, 4),
    Case("N = 262,144, d = 512", "one", 262_144, 512, 4, None, 2048.0),
    Case("both directions, N = 65,536, d = 256", "both", 65_536, 256, 5),
    Case("N = 65,536, d = 768", "one", 65_536, 768, 4),
)
QUICK = ("N = 65,536, d = 256", "SimCLR, N = 65,536, d = 128", "N = 4,096, d = 256")
ERROR_ROWS = 2_048
EVERYWHERE = (("one", 256), ("simclr", 128))
"""Layouts and widths at which the error of every method is measured; at others, compiled methods
are left out."""
MOST_EAGER = 65_536
"""Rows up to which ordinary calls are timed in turns, too; beyond, launches do not matter."""
LARGEST_TIME = 2.0
"""Seconds per step above which a peer is estimated instead of run in the largest row."""
LARGE = 200_000


def main():
    options = parsed()
    device = torch.device("cpu" if options.cpu else "cuda", None if options.cpu else 0)
    if options.peers:
        sys.path.insert(0, str(options.peers.resolve()))
    warnings.filterwarnings("ignore")
    began = time.perf_counter()
    results = {
        "environment": environment([0], device.type),
        "packages": versions(),
        "temperature": methods.TEMPERATURE,
        "dtype": "bfloat16",
        "matmul_tflops": float(f"{measure.matmul_rate(device) / 1e12:.4g}"),
        "cases": [],
        "errors": {},
    }
    print(f"matmul of bfloat16: {results['matmul_tflops']} TFLOP/s", flush=True)
    if options.cases and options.out.exists():  # selected rows replace only themselves
        before = json.loads(options.out.read_text())
        results["cases"], results["errors"] = before["cases"], before["errors"]
    results["errors"] |= errors(options, device, began)
    times = {}  # seconds of a method by (n, d), to estimate larger rows
    chosen = chosen_cases(options)
    order = [case.name for case in (*CASES, *chosen)]
    for case in chosen:
        found = run_case(case, options, device, results["matmul_tflops"] * 1e12, times, began)
        found["commit"] = results["environment"]["commit"]
        others = [row for row in results["cases"] if row["name"] != case.name]
        results["cases"] = sorted([*others, found], key=lambda row: order.index(row["name"]))
        results["seconds"] = round(time.perf_counter() - began, 1)
        write(options.out, results)  # after every row, in case a later one fails
    print(f"\n{results['seconds']} s in all\n\n{table(results)}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="results.json beside this file by default")
    parser.add_argument("--peers", type=Path, help="a folder to import others' packages from")
    parser.add_argument("--kernels", nargs="+", help="of this package; the first is the reference")
    parser.add_argument("--skip", nargs="+", default=[], help="methods to leave out, by name")
    parser.add_argument("--cases", nargs="+", type=int, help="rows to run, from 0")
    parser.add_argument("--bound", type=float, default=0.4, help="seconds a method and row, about")
    parser.add_argument("--seconds", type=float, default=420.0, help="no peer starts after these")
    parser.add_argument("--quick", action="store_true", help="few rows, ours and plain torch")
    parser.add_argument("--cpu", action="store_true", help="tiny sizes, no card")
    options = parser.parse_args()
    if options.kernels is None:
        options.kernels = ["dense", "chunked"] if options.cpu else ["fused", "dense"]
    refuse(parser, options)
    if options.out is None:
        small = options.cpu or options.quick
        name = "results-smoke.json" if small else "results.json"
        options.out = (Path("build") if small else Path(__file__).parent) / name
    return options


def refuse(parser, options):
    """Exit with an error message before anything is measured."""
    if not options.cpu and not torch.cuda.is_available():
        parser.error("no CUDA device is there; --cpu is a smoke run without one")
    if options.peers and not options.peers.is_dir():
        parser.error(f"--peers {options.peers} is no folder")
    if options.bound <= 0:
        parser.error(f"--bound {options.bound:g} must be more than 0")
    strange = [number for number in options.cases or () if not 0 <= number < len(CASES)]
    if strange:
        parser.error(f"--cases {strange[0]}: rows are numbered from 0 to {len(CASES) - 1}")
    for kernel in options.kernels:
        if kernel not in methods.KERNELS:
            parser.error(f"--kernels {kernel}: take some of {', '.join(methods.KERNELS)}")
    known = {m.name for layout in methods.LAYOUTS for m in chosen_methods(layout, options)}
    strange = sorted(set(options.skip) - known - {m.name for m in methods.PEERS})
    if strange:
        parser.error(f"--skip {strange[0]!r} is no method; the first is {sorted(known)[0]!r}")


def chosen_cases(options):
    if options.cpu:
        tiny = {"n": 96, "d": 16, "goal_ms": None, "goal_mib": None}
        one_each = {case.layout: case for case in CASES}.values()
        return [replace(case, name=f"{case.layout}, N = 96", **tiny) for case in one_each]
    if options.quick:
        return [case for case in CASES if case.name in QUICK]
    if options.cases:
        return [CASES[number] for number in options.cases]
    return CASES


def chosen_methods(layout, options):
    """Every method that supports a layout; kernels after the first have fewer variants."""
    found = []
    for place, kernel in enumerate(options.kernels):
        found += methods.ours(kernel, everything=place == 0)
    others = methods.PEERS
    if options.quick or options.cpu:
        others = [m for m in others if m.name in ("plain torch", "lightly NTXentLoss")]
        others = others if options.cpu else others[:1]
    found += others
    return [m for m in found if layout in m.layouts and m.name not in options.skip]


def run_case(case, options, device, rate, times, began):
    """One row: the measurement of every method, or the reason why there is none."""
    floor = 1e3 * case.products * 2 * case.n**2 * case.d / rate
    print(f"\n{case.name} (floor {floor:.3g} ms)", flush=True)
    measure.clean()
    base = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    inputs = measure.make_inputs(case, device)
    steps, records = [], []
    for method in chosen_methods(case.layout, options):
        entry = {"name": method.name, "kind": method.kind}
        records.append(entry)
        late = time.perf_counter() - began > options.seconds and method.kind == "peer"
        why = refused(method, case, times, device)
        why = "not run: the time for peers was over" if late and not why else why
        if why:
            entry["failed"] = why
        else:
            prepare(case, method, inputs, base, device, steps, entry)
        print(f"  {method.name}: {entry.get('failed', entry.get('eager_ms'))}", flush=True)
    for step in steps:
        measure.record(step, device)
    measured(steps, options, device)
    if case.n <= MOST_EAGER and all("in_turns" not in step.found for step in steps):
        measure.eager_in_rounds(steps, device, 0.1 if options.cpu else options.bound / 2)
    for step in steps:
        if step.samples:
            step.found |= measure.summary(step.samples)
            if step.eager:
                step.found["eager"] = measure.summary(step.eager)
            times[step.method.name, case.n, case.d] = step.found["ms"] / 1e3
    compare(records, steps, floor)
    found = {**asdict(case), "floor_ms": round(floor, 4), "methods": records}
    found["diagnostics"] = diagnostics(steps)
    for step in steps:
        step.close()
    del steps, inputs
    measure.clean()
    return found


def refused(method, case, times, device):
    """Why a method is not tried on a row: it does not fit, or would take too long."""
    if method.most_rows is not None and case.n > method.most_rows:
        return f"not run beyond {method.most_rows:,} rows"
    if device.type == "cuda" and method.quadratic:
        room = torch.cuda.get_device_properties(device).total_memory
        needed = method.quadratic * case.n**2
        if needed > room:
            one = 2 * case.n**2 / 2**30
            return f"cannot: one matrix of scores in bfloat16 is {one:.0f} GiB"
    if case.n > LARGE and method.kind == "peer":
        before = times.get((method.name, 65_536, case.d))
        expected = None if before is None else before * (case.n / 65_536) ** 2
        if expected is None or expected > LARGEST_TIME:
            shown = "" if expected is None else f", about {expected:.1f} s by the law N²"
            return f"not run here{shown}"
    return None


def prepare(case, method, inputs, base, device, steps, entry):
    """Build and warm up one method and measure its memory; a failure is its result."""
    step, failed = None, None
    try:
        step = measure.Step(method, method.make(case.layout), inputs)
        step.found = entry
        measure.warm(step, base, device)
        steps.append(step)
    except Exception as error:
        failed = measure.first_line(error)
        if os.environ.get("VERBOSE"):
            traceback.print_exc()
    if failed:
        entry["failed"] = "out of memory" if "OutOfMemory" in failed else failed
        if step is not None:
            step.close()
    for z in inputs:
        z.grad = None
    measure.clean()


def measured(steps, options, device):
    """Time the rounds; a step that runs out of memory beside the others keeps its eager time."""
    rounds = 4 if options.cpu else 12 if options.quick else measure.MOST_ROUNDS
    bound = 0.2 if options.cpu else options.bound
    try:
        measure.in_rounds(steps, device, bound, rounds)
    except torch.OutOfMemoryError:
        print("  out of memory in turns: large steps one by one", flush=True)
        for step in steps:
            step.samples.clear()
            step.rounds.clear()
        measure.clean()
        for step in sorted(steps, key=lambda step: step.found.get("memory_mib", 0)):
            measure.in_rounds([step], device, bound, rounds)
            step.found["in_turns"] = False
            measure.clean()


def compare(records, steps, floor):
    """Share of the floor, and the ratio to this package's first kernel."""
    reference = next((s for s in steps if s.method.kind == "ours" and s.samples), None)
    for record in records:
        if "ms" not in record:
            continue
        record["share_of_floor"] = round(floor / record["ms"], 3)
        if reference is not None:
            record["ratio"] = round(record["ms"] / reference.found["ms"], 3)
            if "eager" in record:
                eager = record["eager"]["ms"] / reference.found["eager"]["ms"]
                record["eager_ratio"] = round(eager, 3)
            if "memory_mib" in record:
                ratio = record["memory_mib"] / max(reference.found["memory_mib"], 1e-9)
                record["memory_ratio"] = round(ratio, 2)


def diagnostics(steps):
    """Time with diagnostics over time without, within rounds."""
    by_name = {step.method.name: step for step in steps}
    found = {}
    for name, step in by_name.items():
        kernel, _, what = name.partition(": ")
        other = by_name.get(f"{kernel}: {what.replace(', ', ', no ')}")
        if step.method.kind == "ours" and other is not None:
            found[name] = measure.paired_ratio(step, other)
    return found


def errors(options, device, began):
    """Relative error of the gradients against float64, by layout and width, and by method."""
    found = {}
    rows = 64 if options.cpu else ERROR_ROWS
    for layout, width in dict.fromkeys((case.layout, case.d) for case in chosen_cases(options)):
        case = Case("", layout, rows, width, 0)
        inputs = measure.make_inputs(case, device)
        mine = found[errors_key(layout, width)] = {}
        for method in chosen_methods(layout, options):
            if method.kind == "peer" and time.perf_counter() - began > options.seconds:
                continue
            if method.compiles and (layout, width) not in EVERYWHERE and not options.cpu:
                continue
            try:
                step = measure.Step(method, method.make(layout), inputs)
                step.run()
                gradients = [z.grad.double() for z in inputs]
                exact = methods.exact_gradient(*inputs, layout, method)
                apart = sum((a - b).square().sum() for a, b in zip(gradients, exact, strict=True))
                size = sum(b.square().sum() for b in exact)
                mine[method.name] = float(f"{float((apart / size).sqrt()):.3g}")
            except Exception as error:
                mine[method.name] = None
                print(f"  error of {method.name}: {measure.first_line(error)}", flush=True)
    return found


def errors_key(layout, width):
    return f"{layout}, {width}"


def versions():
    names = ("triton", "lightly", "liger-kernel", "cut-cross-entropy")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def write(path, results):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def table(results):
    """The table between the marks of README.md."""
    lines = [
        "| row | method | time (quartiles) | peak memory | ratio | share of floor "
        "| ordinary calls | ratio of these | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in results["cases"]:
        error = results["errors"].get(errors_key(case["layout"], case["d"]), {})
        for place, record in enumerate(case["methods"]):
            lines.append(line(case, record, place, error.get(record["name"])))
            if case["commit"] != results["environment"]["commit"] and place == 0:
                lines[-1] = lines[-1].replace(case["name"], f"{case['name']}, earlier commit", 1)
    lines += ["", "Diagnostics on against off, time within rounds, median (quartiles):", ""]
    for case in results["cases"]:
        for name, ratio in case["diagnostics"].items():
            if ratio is not None:
                low, high = ratio["quartiles"]
                lines.append(f"- {case['name']}, {name}: {ratio['median']} ({low} to {high})")
    return "\n".join(lines)


def line(case, record, place, error):
    goals = [] if case["goal_ms"] is None else [f"{case['goal_ms']:g} ms"]
    goals += [] if case["goal_mib"] is None else [f"{case['goal_mib']:g} MiB"]
    goal = f"; goal {', '.join(goals)}" if goals else ""
    row = f"{case['name']} (floor {case['floor_ms']:.3g} ms{goal})" if place == 0 else ""
    name = f"**{record['name']}**" if record["kind"] == "ours" else record["name"]
    if "ms" not in record:
        return f"| {row} | {name} | {record.get('failed', 'not timed')} | | | | | | |"
    took = spread(record) + (", eager" if record["timed"] == "eager" else "")
    # One sample of two calls if ordinary calls were not timed in turns.
    calls = f"{record['eager_ms']:.{digits_of(record['eager_ms'])}f} ms"
    if "eager" in record:
        calls = spread(record["eager"])
    memory = f"{record['memory_mib']:,.0f} MiB" if "memory_mib" in record else ""
    ratio, share = record.get("ratio"), record.get("share_of_floor")
    shown = "" if error is None else f"{error:.1e}"
    eager = record.get("eager_ratio", "")
    counted = f"{ratio} | {share:.0%} | {calls} | {eager}"
    return f"| {row} | {name} | {took} | {memory} | {counted} | {shown} |"


def spread(found):
    """Median and quartiles, in words."""
    low, high = found["quartiles_ms"]
    digits = digits_of(found["ms"])
    return f"{found['ms']:.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"


def digits_of(milliseconds):
    return 3 if milliseconds < 10 else 1


if __name__ == "__main__":
    main()
