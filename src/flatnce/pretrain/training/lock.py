"""One writer a run: a second process that would train it is refused, not interleaved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LOCK", "only_writer"]

LOCK = ".training"


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Be the one that trains a run, while it lasts; the system lets go when a process dies."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (directory / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{directory} is being trained by another process; wait for it, or stop it first"
            ) from error
        yield


def refuse_if_busy(directory: Path) -> None:
    """Refuse a run that another process is training."""
    if (directory / LOCK).exists():
        with only_writer(directory):
            pass
