"""Before a sweep begins: what its runs would refuse is refused, and how many fit at once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from flatnce.pretrain.data import Batching
from flatnce.pretrain.training.config import LossConfig, TrainConfig
from flatnce.pretrain.training.estimate import RunEstimate, estimate_run
from flatnce.pretrain.training.images import load_images, view_size, views_of
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.state import check_ess

__all__ = ["SweepPlan", "SLACK", "plan", "workspace"]

MOST_AT_ONCE = 16
"""A card is full long before, and each run holds files, and on a GPU streams, of its own."""
SHARE = 0.8
"""Of the memory that is free: an estimate is one."""
SLACK = 1.5
"""What a run takes for each byte that its expectation counts: temporary results, fragments."""
WORKSPACE = {"cuda": 2**29, "cpu": 2**26}
"""What libraries, and kNN and the pool on the way, take for each run."""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is about to do.

    Arguments:
        device: Where all its runs compute.
        at_once: Runs side by side; the others wait their turn.
        bytes: Memory that the largest run is expected to take, without the images.
        images: Of the largest set.
        steps: Of all runs.
    """

    device: torch.device
    at_once: int
    bytes: int
    images: int
    steps: int


def plan(configs: Mapping[str, TrainConfig], at_once: int | None = None) -> SweepPlan:
    """Check every run, load its images, and count how many runs fit side by side."""
    whole = isinstance(at_once, int) and not isinstance(at_once, bool)
    if at_once is not None and not (whole and 1 <= at_once <= MOST_AT_ONCE):
        raise ValueError(
            f"at_once={at_once!r} must be a whole number between 1 and {MOST_AT_ONCE}; further "
            "runs wait"
        )
    device = _one_device(configs)
    images = steps = 0
    largest: dict[TrainConfig, TrainConfig] = {}
    for name, config in configs.items():
        try:
            found = load_images(config.data, device)
            batching = Batching(len(found), config.run.batch_size, config.run.seed)
            views_of(config, view_size(config, found))
            check_ess(config)
        except ValueError as error:
            raise ValueError(f"run {name}: {error}") from error
        images, steps = max(images, len(found)), steps + config.run.epochs * len(batching)
        kind = _kind(config)
        if kind not in largest or largest[kind].run.batch_size < config.run.batch_size:
            largest[kind] = config
    # The trace of a network is the slow part: once a network, at its largest batch.
    expected = {kind: (config, estimate_run(config, device)) for kind, config in largest.items()}
    needs = [_need(config, *expected[_kind(config)], device) for config in configs.values()]
    fitting = at_once or _fitting(needs, _free(device))
    return SweepPlan(device, min(fitting, len(configs)), max(needs), images, steps)


def _one_device(configs: Mapping[str, TrainConfig]) -> torch.device:
    devices = {choose_device(config.run.device): name for name, config in configs.items()}
    if len(devices) > 1:
        (one, first), (two, second) = list(devices.items())[:2]
        raise ValueError(
            f"device: run {first} asks for {one} and run {second} for {two}; a sweep shares one "
            "device: give all runs the same, or make a sweep for each"
        )
    return next(iter(devices))


def _kind(config: TrainConfig) -> TrainConfig:
    """The config without what changes no memory but by the size of the batch."""
    run = replace(config.run, epochs=1, batch_size=2, micro_batch=None, seed=0)
    return replace(config, loss=LossConfig(), run=run)


def _need(
    config: TrainConfig, traced: TrainConfig, found: RunEstimate, device: torch.device
) -> int:
    """Bytes that a run takes beside its images, from those of a larger batch."""
    share = _held(config) / _held(traced)
    own = found.model_bytes + share * found.activation_bytes + found.loss_bytes
    return round(SLACK * own) + workspace(device)


def workspace(device: torch.device) -> int:
    """Bytes for libraries, and for kNN and the pool on the way, of each run."""
    return WORKSPACE["cuda" if device.type == "cuda" else "cpu"]


def _held(config: TrainConfig) -> int:
    """Images of a batch that are in memory together."""
    return min(config.run.micro_batch or config.run.batch_size, config.run.batch_size)


def _fitting(needs: list[int], free: int) -> int:
    """How many runs fit, were they the largest; at least one."""
    room, count = SHARE * free, 0
    for need in sorted(needs, reverse=True)[:MOST_AT_ONCE]:
        room -= need
        if room < 0:
            break
        count += 1
    return max(count, 1)


def _free(device: torch.device) -> int:
    """Bytes that are free where the runs compute."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    stated = Path("/proc/meminfo")
    if stated.is_file():
        for line in stated.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 2**32
