"""How many streams a GPU takes work from at once: asked for while CUDA still listens."""

import ctypes
import os

import torch

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""With CUDA's default, eight, runs side by side wait for one another where they need not."""
ENOUGH = "24"
"""Of 8 to 32, the most there are, eight runs at batch 32 were fastest with these on an H200: by a
quarter than with 8, by one to three hundredths than with 32 (benchmarks/throughput)."""
TOO_LATE = (
    "CUDA was in use before this sweep (torch.cuda.is_available() is use): its runs share eight "
    "queues to the GPU and wait for one another, a fifth slower on an H200; call sweep first, or "
    f"set {QUEUES}={ENOUGH} before Python starts"
)


def ask_for_queues() -> bool:
    """Ask CUDA for enough queues, unless told otherwise; whether it was in time.

    A variable that is there already counts as in time: when it was set, nobody can tell.
    """
    if QUEUES in os.environ or torch.version.hip:
        return True
    os.environ[QUEUES] = ENOUGH  # before the driver is looked for, whenever that reads it
    if _driver_has_started():
        del os.environ[QUEUES]
        return False
    return True


def _driver_has_started() -> bool:
    """Whether CUDA has read its settings: torch only knows whether it made a context itself."""
    if torch.cuda.is_initialized():
        return True
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:  # no driver
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)  # else an error
