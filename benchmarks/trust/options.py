"""Options that the fuzzer and the harness share, and how a record describes its making."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, as_completed
from pathlib import Path
from typing import Any

import torch


class Series:
    """The numbers that a command line asks for, and the record of their results.

    Everything runs on a CPU with one thread per process.

    Args:
        parser: Gets the options that both programs have.
        things: The plural name of what is numbered.
        count: The default number.
    """

    def __init__(self, parser: argparse.ArgumentParser, things: str, count: int) -> None:
        parser.add_argument(f"--{things}", type=int, default=count, dest="count", metavar="N")
        parser.add_argument("--start", type=int, default=0, help="number of the first")
        parser.add_argument("--processes", type=int, default=1, help="that share the numbers")
        parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
        parser.add_argument("--only", type=int, help="a single number")
        parser.add_argument("--commit", help="of this version, for the record")
        parser.add_argument("--out", type=Path, help="write the counts as JSON")
        self.given = given = parser.parse_args()
        if min(given.count, given.processes) < 1:
            parser.error(f"--{things} and --processes must be at least 1")
        single = range(given.only or 0, (given.only or 0) + 1)
        several = range(given.start, given.start + given.count)
        self.numbers = several if given.only is None else single
        self.processes = min(given.processes, len(self.numbers))
        self.began = time.time()
        self.deadline = self.began + given.seconds
        os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        torch.set_num_threads(1)

    def follow(
        self, waiting: list[Future[Any]], record_of: Callable[[list[Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Write the record whenever a part has ended, so that an interrupted series has one."""
        found: list[Any] = []
        record: dict[str, Any] = {}
        ended = True
        for one in as_completed(waiting):
            try:
                found.append(one.result())
            except BrokenExecutor:  # a process died; its traceback, if any, is printed
                ended = False
            record = {**record_of(found), "every_process_ended": ended, **self.made()}
            if self.given.out:
                partial = self.given.out.with_suffix(".partial")
                partial.write_text(json.dumps(record, indent=1) + "\n")
                partial.replace(self.given.out)
        return record

    def made(self) -> dict[str, Any]:
        """How a record was made."""
        return {
            "first": self.numbers[0],
            "processes": self.processes,
            "seconds": round(time.time() - self.began),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "commit": self.given.commit,
        }
