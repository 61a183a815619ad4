"""Runs independent pieces of a benchmark in several processes and saves each when it is done."""

import argparse
import json
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from mixtures import MIXTURES

from flatnce import mi
from flatnce.environment import plain
from flatnce.pretrain.runs.log import environment


def task_rows(methods, task, n, seeds):
    """Estimates of a task by each method, as plain records; the seeds are trained together."""
    law = MIXTURES.get(task) or mi.tasks.find(task)
    pairs = [law.sample(n, seed) for seed in seeds]
    return [_task_row(method, law, pairs, tuple(seeds)) for method in methods]


def _task_row(method, law, pairs, seeds):
    began = time.perf_counter()
    found = mi.estimate_each(pairs, method=method, seed=seeds[0], baselines=False)
    seconds = time.perf_counter() - began
    values, limits = [one.nats for one in found], [one.lower for one in found]
    flags = Counter(flag.name for one in found for flag in one.flags)
    flags.pop("no_limit", None)
    covered = [low <= law.mi for low in limits if low == low]
    return plain(
        {
            "task": law.id,
            "method": method,
            "true": law.mi,
            "rows": len(pairs[0][0]),
            "seeds": seeds,
            "estimates": values,
            "lower": limits,
            "standard_errors": [one.standard_error for one in found],
            "p_values": [one.p_value for one in found],
            "flags": dict(flags),
            "seconds": seconds,
            "mean": statistics.fmean(values),
            "spread": statistics.stdev(values) if len(values) > 1 else float("nan"),
            "covered": sum(covered) / len(covered) if covered else float("nan"),
        }
    )


def run_pieces(function, pieces, file, processes, **header):
    """Write {"environment", **header, "rows"} after each piece, with rows in the pieces' order.

    Arguments:
        function: Maps a piece to a list of plain records.
        pieces: Tuples of arguments.
        file: The file to write.
        processes: The number of processes; on one GPU they share it.
        header: Additional entries of the file.
    """
    found = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(function, *piece): k for k, piece in enumerate(pieces)}
        for done in as_completed(waiting):
            number = waiting[done]
            found[number] = done.result()
            rows = [row for k in sorted(found) for row in found[k]]
            record = {"environment": environment(), **header, "rows": rows}
            file.write_text(json.dumps(record, indent=1))
            print(f"{len(found)} of {len(pieces)}: {pieces[number]}", flush=True)


def options_of(description, n):
    """A parser of the options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--n", type=int, default=n)
    parser.add_argument("--processes", type=int, default=1)
    return parser
