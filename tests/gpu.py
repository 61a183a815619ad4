"""What the tests that need a GPU share."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def host_reads_forbidden() -> Iterator[None]:
    """Any operation that waits for the device raises."""
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
