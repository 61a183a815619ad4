"""Independent pieces of a benchmark, several processes at a time, kept as they come in."""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from flatnce.pretrain.runs.log import environment


def run_pieces(function, pieces, file, processes, **header):
    """Write {"environment", **header, "rows"} whenever a piece is done; rows in the pieces' order.

    Arguments:
        function: From a piece to a list of plain records.
        pieces: Tuples of arguments.
        file: Where to write.
        processes: How many at a time; on one GPU several share it.
        header: More to write.
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
    """A parser of what these benchmarks share: where to write, what to tabulate, how much."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--n", type=int, default=n)
    parser.add_argument("--processes", type=int, default=1)
    return parser
