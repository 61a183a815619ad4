"""The plan of a sweep: refuse what its runs would refuse, and how many runs fit in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from flatnce.environment import available_memory
from flatnce.pretrain.training.config import LossConfig, TrainConfig
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.images import load_images
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.state import check_ess

__all__ = ["SLACK", "SweepPlan", "plan_sweep", "workspace"]

MOST_AT_ONCE = 16
"""A GPU is full long before, and each run has its own files and streams."""
SHARE = 0.8
"""Share of the free memory to plan with, because the estimate is not exact."""
SLACK = 1.5
"""Bytes that a run takes per byte of its estimate: temporaries and fragmentation."""


@dataclass(frozen=True)
class SweepPlan:
    """The device of a sweep, the runs side by side, the bytes of the largest, and all steps."""

    device: torch.device
    at_once: int
    bytes: int
    steps: int


def plan_sweep(configs: Mapping[str, TrainConfig], at_once: int | None = None) -> SweepPlan:
    """Check every run, load its images, and count how many runs fit side by side."""
    if at_once is not None and not 1 <= at_once <= MOST_AT_ONCE:
        raise ValueError(
            f"at_once={at_once} must be a whole number between 1 and {MOST_AT_ONCE}; further "
            "runs wait"
        )
    device = _one_device(configs)
    # Tracing a network is slow: do it once for runs that need the same memory.
    estimates = {}
    needs, steps = [], 0
    for name, config in configs.items():
        kind = replace(config, loss=LossConfig(), run=replace(config.run, epochs=1, seed=0))
        try:
            load_images(config.data, device)
            check_ess(config)
            if kind not in estimates:
                estimates[kind] = estimate_run(kind, device)
        except ValueError as error:
            raise ValueError(f"run {name}: {error}") from error
        found = estimates[kind]
        needs.append(round(SLACK * (found.bytes - found.data_bytes)) + workspace(device))
        steps += config.run.epochs * found.steps_per_epoch
    fitting = at_once or _fitting(needs, _free(device))
    return SweepPlan(device, min(fitting, len(configs)), max(needs), steps)


def _one_device(configs: Mapping[str, TrainConfig]) -> torch.device:
    devices = {choose_device(config.run.device): name for name, config in configs.items()}
    if len(devices) > 1:
        (one, first), (two, second) = list(devices.items())[:2]
        raise ValueError(
            f"device: run {first} asks for {one} and run {second} for {two}; a sweep shares one "
            "device: give all runs the same, or make a sweep for each"
        )
    return next(iter(devices))


def workspace(device: torch.device) -> int:
    """Bytes per run for libraries, kNN and the pool."""
    return 2**29 if device.type == "cuda" else 2**26


def _fitting(needs: list[int], free: int) -> int:
    """How many runs fit, the largest first; at least one."""
    room, count = SHARE * free, 0
    for need in sorted(needs, reverse=True)[:MOST_AT_ONCE]:
        room -= need
        if room < 0:
            break
        count += 1
    return max(count, 1)


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory() or 2**32
