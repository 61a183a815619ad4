"""Score estimators on the distributions of the suite: error, coverage and seconds.

    python benchmarks/mi_suite/score.py run --out FILE [--methods ...] [--processes 2]
    python benchmarks/mi_suite/score.py table FILE [FILE ...]

With ``--held-out`` both commands take the distributions of ``held_out.py``, not of ``laws.py``.
``run`` appends one JSON line per fit and leaves out fits that the file already holds, so it may be
stopped at any time and continued. In each block of five seeds the small tables come first.
"""

import argparse
import json
import math
import multiprocessing
import time
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
from held_out import HELD_OUT
from laws import LAWS
from methods import METHODS

ALL_LAWS = LAWS | HELD_OUT
FAMILIES = tuple(dict.fromkeys(law.family for law in ALL_LAWS.values()))
ROWS = (200, 1000, 5000)
KEY = ("law", "n", "seed", "method")  # of a record
SEEDS_AT_ONCE = 5
WITHIN = 1.1  # of the smallest error counts as the best
SLACK = 0.002  # nats: a smaller difference of errors is a tie


def generator_of(law, n, seed):
    """The random numbers of one table: the same for every method."""
    return np.random.default_rng([zlib.crc32(law.encode()), n, seed])


def fit(piece):
    """One method on one table, as a record; an error is recorded and scored as the answer 0."""
    import torch

    torch.set_num_threads(1)
    law, n, seed, name = piece
    record = {"law": law, "n": n, "seed": seed, "method": name}
    x, y, kinds = ALL_LAWS[law].sample(n, generator_of(law, n, seed))
    began = time.perf_counter()
    try:
        answer = METHODS[name](x, y, kinds, seed)
    except Exception as error:  # a method that fails must not end the run
        answer = {"error": f"{type(error).__name__}: {error}"[:200]}
    if answer is None:
        return {**record, "value": None, "applies": False}
    return {**record, **answer, "seconds": round(time.perf_counter() - began, 3)}


def read(paths, names=KEY):
    """All complete records of some files, by the values of these names.

    The last line of a run that was killed may be incomplete, and is left out.
    """
    records = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            records[tuple(record[name] for name in names)] = record
    return records


def append_missing(out, pieces, names, fit, processes):
    """Append one record for each piece that the file does not hold yet."""
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = read([out], names) if out.exists() else {}
    waiting = [piece for piece in pieces if piece not in done]
    print(f"{len(waiting)} of {len(pieces)} fits to do", flush=True)
    context = multiprocessing.get_context("spawn")
    with out.open("a") as file, context.Pool(processes) as pool:
        file.write("\n" if out.stat().st_size else "")  # after a line that was cut off
        for number, record in enumerate(pool.imap_unordered(fit, waiting), 1):
            file.write(json.dumps(record) + "\n")
            file.flush()
            if number % 50 == 0:
                print(f"{number} of {len(waiting)}", flush=True)


def run(args):
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    pieces = [
        (law, n, seed, method)
        for start in range(0, len(seeds), SEEDS_AT_ONCE)
        for rows in ([n for n in args.n if n <= 1000], [n for n in args.n if n > 1000])
        for seed in seeds[start : start + SEEDS_AT_ONCE]
        for n in rows
        for law in args.laws or (HELD_OUT if args.held_out else LAWS)
        for method in args.methods
    ]
    append_missing(args.out, pieces, KEY, fit, args.processes)


def answer_of(record):
    """The number that is scored: 0 for an error or a number that is not finite."""
    value = record.get("value")
    return value if value is not None and math.isfinite(value) else 0.0


def with_limit(records):
    """Add the certified limit as a method of its own, from the same fits."""
    added = dict(records)
    for (law, n, seed, method), record in records.items():
        if record.get("lower") is not None:
            key = (law, n, seed, f"{method}-limit")
            added[key] = {**record, "method": key[3], "value": record["lower"]}
            added[key] |= {"lower": None, "low": None, "high": None}
    return added


def errors(records):
    """Root mean square error by law, method and n; a method that does not apply is left out."""
    squares = defaultdict(list)
    for (law, n, _, method), record in records.items():
        if record.get("applies", True):
            squares[law, method, n].append((answer_of(record) - ALL_LAWS[law].truth) ** 2)
    by_n = defaultdict(dict)
    for (law, method, n), values in squares.items():
        by_n[law, method][n] = math.sqrt(sum(values) / len(values))
    return by_n


def near(least):
    """The largest error that is a tie with the smallest one."""
    return max(WITHIN * least, least + SLACK)


def interval(hits, total):
    """Exact 95 % interval of a share (Clopper and Pearson)."""
    from scipy.stats import binomtest

    found = binomtest(hits, total).proportion_ci(0.95)
    return f"{hits / total:6.1%} [{found.low:.1%}, {found.high:.1%}] of {total}"


def print_errors(records):
    by_n = errors(records)
    sizes = sorted({n for cells in by_n.values() for n in cells})
    methods = sorted({method for _, method in by_n})
    best = {method: 0 for method in methods}
    print(f"| distribution | truth | {' | '.join(methods)} |\n|{'---|' * (len(methods) + 2)}")
    laws = [name for name in ALL_LAWS if any((name, method) in by_n for method in methods)]
    for name in laws:
        # A method is compared where it was run on every n.
        whole = {
            method: sum(by_n[name, method].values()) / len(sizes)
            for method in methods
            if len(by_n.get((name, method), ())) == len(sizes)
        }
        ranked = [value for method, value in whole.items() if not method.endswith("-limit")]
        least = min(ranked, default=math.inf)
        cells = []
        for method in methods:
            if method not in whole:
                cells.append("–")
                continue
            good = whole[method] <= near(least)
            good &= not method.endswith("-limit")
            best[method] += good
            cells.append(f"**{whole[method]:.3f}**" if good else f"{whole[method]:.3f}")
        print(f"| {name} | {ALL_LAWS[name].truth:.3f} | {' | '.join(cells)} |")
    counts = " | ".join(str(best[method]) for method in methods)
    print(f"| best or within 10 % | {len(laws)} distributions | {counts} |")


def mean_errors(records):
    """Error of each law of one method, averaged over n."""
    by_n = errors(records)
    return {law: sum(cells.values()) / len(cells) for (law, _), cells in by_n.items()}


def print_pairs(records, ours="flatnce"):
    """Compare ours with every other method on the tables that both were given."""
    names = (
        "method | tables | distributions | its error | ours | ours nearer | a tie | it is nearer"
    )
    print(f"\n| {names} |\n|{'---|' * 8}")
    for method in sorted({key[3] for key in records} - {ours, f"{ours}-limit"}):
        theirs = {
            key: record
            for key, record in records.items()
            if key[3] == method and record.get("applies", True) and (*key[:3], ours) in records
        }
        if not theirs:
            continue
        mine = {(*key[:3], ours): records[*key[:3], ours] for key in theirs}
        left, right = mean_errors(mine), mean_errors(theirs)
        bounds = {law: near(min(left[law], right[law])) for law in left}
        ahead = sum(left[law] < right[law] > bounds[law] for law in left)
        behind = sum(right[law] < left[law] > bounds[law] for law in left)
        means = " | ".join(f"{sum(side.values()) / len(side):.3f}" for side in (right, left))
        counts = f"{ahead} | {len(left) - ahead - behind} | {behind}"
        print(f"| {method} | {len(theirs)} | {len(left)} | {means} | {counts} |")


def print_least_favourable(records, ours="flatnce"):
    """Laws on which ours is best or within 10 % of every method on the tables both were given.

    Methods that were not run on every n or seed, which `print_errors` leaves out, count here too.
    """
    kept = set(LAWS) | set(HELD_OUT)
    for method in {key[3] for key in records} - {ours, f"{ours}-limit"}:
        theirs = {
            key: record
            for key, record in records.items()
            if key[3] == method and record.get("applies", True) and (*key[:3], ours) in records
        }
        mine = mean_errors({(*key[:3], ours): records[*key[:3], ours] for key in theirs})
        kept -= {law for law, least in mean_errors(theirs).items() if mine[law] > near(least)}
    laws = {key[0] for key in records if key[3] == ours}
    print(f"\nno method nearer by more than 10 %: {len(kept & laws)} of {len(laws)} distributions")


def print_coverage(records):
    for method in sorted({key[3] for key in records}):
        own = [record for record in records.values() if record["method"] == method]
        limits = [r for r in own if r.get("lower") is not None]
        sides = [r for r in own if r.get("low") is not None]
        if not limits and not sides:
            continue
        print(f"\n{method}: smallest number {min(answer_of(r) for r in own):.4g}")
        for family in (*FAMILIES, "all"):
            part = [r for r in limits if family in (ALL_LAWS[r["law"]].family, "all")]
            two = [r for r in sides if family in (ALL_LAWS[r["law"]].family, "all")]
            if not part and not two:
                continue
            text = f"  {family:<13}"
            if part:
                above = sum(r["lower"] > ALL_LAWS[r["law"]].truth + 1e-9 for r in part)
                text += f"  limit above the truth {interval(above, len(part))}"
            if two:
                held = sum(
                    r["low"] - 1e-9 <= ALL_LAWS[r["law"]].truth <= r["high"] + 1e-9 for r in two
                )
                text += f"  interval holds it {interval(held, len(two))}"
            print(text)


def print_seconds(records):
    print("\nmean seconds, errors")
    for method in sorted({key[3] for key in records}):
        own = [r for r in records.values() if r["method"] == method and r.get("applies", True)]
        cells = []
        for n in sorted({r["n"] for r in own}):
            seconds = [r["seconds"] for r in own if r["n"] == n and "seconds" in r]
            cells.append(f"n = {n}: {np.mean(seconds):.2f} s ({len(seconds)} fits)")
        failed = sum(
            "error" in r or r.get("value") is None or not math.isfinite(r["value"]) for r in own
        )
        print(f"  {method:<16} {', '.join(cells)}; failed {failed}")


def table(args):
    laws = HELD_OUT if args.held_out else LAWS
    records = {
        key: record
        for key, record in read(args.files).items()
        if key[0] in laws and (not args.n or key[1] in args.n)
    }
    everything = with_limit(records)
    if args.compared:
        wanted = {name for name in args.compared} | {f"{name}-limit" for name in args.compared}
        everything = {key: r for key, r in everything.items() if key[3] in wanted}
    print_errors(everything)
    print_pairs(everything)
    print_least_favourable(everything)
    print_coverage(records)
    print_seconds(records)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--out", required=True)
    command.add_argument("--methods", nargs="+", default=["flatnce"], choices=list(METHODS))
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument("--laws", nargs="+", choices=list(ALL_LAWS))
    chosen.add_argument("--held-out", action="store_true", help="the distributions of held_out.py")
    command.add_argument("--n", nargs="+", type=int, default=list(ROWS))
    command.add_argument("--seeds", type=int, default=20)
    command.add_argument("--first-seed", type=int, default=0)
    command.add_argument("--processes", type=int, default=1)
    command.set_defaults(function=run)
    command = commands.add_parser("table")
    command.add_argument("files", nargs="+")
    command.add_argument(
        "--held-out", action="store_true", help="the distributions of held_out.py"
    )
    command.add_argument("--compared", nargs="+", help="only these methods")
    command.add_argument("--n", nargs="+", type=int, help="only these numbers of rows")
    command.set_defaults(function=table)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
