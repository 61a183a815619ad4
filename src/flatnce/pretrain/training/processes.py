"""The process of a run: its device, torchrun's process group, signals, and the run's lock."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from flatnce.cli.launch import stop_requested
from flatnce.core import distributed
from flatnce.pretrain.runs.log import read_run

__all__ = ["Interrupts", "choose_device", "is_launched"]

RESTARTS = "TORCHELASTIC_RESTART_COUNT"

_joined = 0  # how often this process has joined a group: a script may train several times


def choose_device(device: str) -> torch.device:
    """The device of a setting; under torchrun each process gets its own GPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        if chosen.type != "cuda":
            torch.empty(1, device=chosen).item()  # on meta, there is nothing to read
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r} is unknown; use cpu, cuda, cuda:0 or auto") from error
    if chosen.type != "cuda":
        return chosen
    if not torch.cuda.is_available():
        raise ValueError(f"device={device!r} needs a GPU, and torch finds none; use device='cpu'")
    place = int(os.environ.get("LOCAL_RANK", "0")) if chosen.index is None else chosen.index
    there = torch.cuda.device_count()
    if place >= there:
        raise ValueError(
            f"device={device!r}: there is no GPU {place}, the number of GPUs is {there}; name "
            "another one, and start at most one process per GPU"
        )
    return torch.device("cuda", place)


def is_launched() -> bool:
    """Whether torchrun or a compatible launcher started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def started_by_this_launch(directory: Path, device: torch.device) -> bool:
    """Whether this launch started the run in a directory, before one of its processes died.

    The first process decides for all. A launch is identified by its rendezvous id; the default id
    of one machine, ``none``, counts only after a restart.
    """
    launch = os.environ.get("TORCHELASTIC_RUN_ID")
    found = False
    if launch and distributed.rank() == 0 and (directory / "config.json").is_file():
        same = read_run(directory).environment.get("launch") == launch
        found = same and (launch != "none" or os.environ.get(RESTARTS, "0") != "0")
    return bool(distributed.mean(torch.tensor(float(found), device=device)) > 0)


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """This process's device; joins the process group of torchrun during the block."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if not is_launched() or dist.is_initialized():
        yield chosen
        return
    store, rank, world_size = next(dist.rendezvous("env://"))
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world_size):
        # torchrun keeps its store over restarts, with the addresses of dead processes. On several
        # machines the restart counts may differ; there the launcher must not share its store
        # (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1).
        global _joined
        _joined += 1
        store = dist.PrefixStore(f"attempt-{os.environ.get(RESTARTS)}-{_joined}", store)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    yield chosen
    # Not after an exception: the others may wait in a collective that never comes, and the
    # launcher ends them when this process ends.
    dist.barrier()  # no process leaves while another still communicates
    dist.destroy_process_group()


class Interrupts:
    """Turns the first SIGINT (Ctrl-C) or SIGTERM into a request to stop.

    The second raises KeyboardInterrupt at once. Outside the main thread signals are left alone.
    ``requested`` says whether another process, by default the launcher, asked this one to stop.
    """

    def __init__(self, requested: Callable[[], bool] = stop_requested) -> None:
        self.signalled, self.requested = False, requested
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned

    @property
    def asked(self) -> bool:
        """Whether a signal or another process asked this process to stop."""
        return self.signalled or self.requested()

    def agreed(self, device: torch.device) -> bool:
        """Whether any process was asked to stop; collective."""
        if not distributed.is_active():
            return self.asked
        return bool(distributed.mean(torch.tensor(float(self.asked), device=device)) > 0)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.signalled:
            raise KeyboardInterrupt
        self.signalled = True
