"""Whether a table fits into memory, asked before it is read."""

import os
from pathlib import Path

LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
# A limit above this is a way of saying that there is none.
NO_LIMIT = 1 << 60


def available_bytes() -> int | None:
    """Memory that can be had without swapping, as far as the system tells; None if it does not.

    A container's own limit counts where it is the smaller one.
    """
    found = [number for number in (_of_machine(), *map(_of_container, LIMITS)) if number]
    return min(found, default=None)


def check_fits(needed: int, available: int | None, what: str) -> None:
    """Refuse a table that would not fit, with numbers and remedies."""
    if available is not None and needed > available:
        raise ValueError(
            f"{what} would take about {size_in_words(needed)} of memory and "
            f"{size_in_words(available)} are free; choose fewer columns (--x, --y), take a random "
            "subset of its rows (--rows 100000), or, if it is text, convert it to parquet"
        )


def size_in_words(count: int) -> str:
    """A number of bytes as people say it.

    Arguments:
        count: Bytes.

    Examples:
        >>> size_in_words(3_200_000_000), size_in_words(45_000_000), size_in_words(900)
        ('3.2 GB', '45 MB', '900 bytes')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.{1 if count < 10 * size else 0}f} {unit}"
    return f"{count} bytes"


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_container(files: tuple[str, str]) -> int | None:
    try:
        limit, used = (int(Path(file).read_text(encoding="utf-8")) for file in files)
    except (OSError, ValueError):  # no such file, or "max"
        return None
    return max(1, limit - used) if limit < NO_LIMIT else None
