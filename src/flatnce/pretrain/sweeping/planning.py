"""The plan of a sweep: refuse what its runs would refuse, and how many runs fit in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from flatnce.environment import available_memory
from flatnce.pretrain.data import Batching
from flatnce.pretrain.training.config import LossConfig, TrainConfig
from flatnce.pretrain.training.estimate import RunEstimate, estimate_run
from flatnce.pretrain.training.images import load_images, view_size, views_of
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.state import check_ess

__all__ = ["SLACK", "SweepPlan", "plan_sweep", "workspace"]

MOST_AT_ONCE = 16
"""A GPU is full long before, and each run has its own files and streams."""
SHARE = 0.8
"""Share of the free memory to plan with, because the estimate is not exact."""
SLACK = 1.5
"""Bytes that a run takes per byte of its estimate: temporaries and fragmentation."""
WORKSPACE = {"cuda": 2**29, "cpu": 2**26}
"""Bytes per run for libraries, kNN and the pool."""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is about to do.

    Arguments:
        device: The device of all its runs.
        at_once: Runs side by side; the others wait.
        bytes: Expected memory of the largest run, without the images.
        images: Images of the largest set.
        steps: Steps of all runs.
    """

    device: torch.device
    at_once: int
    bytes: int
    images: int
    steps: int


def plan_sweep(configs: Mapping[str, TrainConfig], at_once: int | None = None) -> SweepPlan:
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
    # Tracing a network is slow: do it once per network, at its largest batch.
    traced = {kind: (config, estimate_run(config, device)) for kind, config in largest.items()}
    needs = [_need(config, *traced[_kind(config)], device) for config in configs.values()]
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
    """The config without settings that affect memory at most through the batch size."""
    run = replace(config.run, epochs=1, batch_size=2, micro_batch=None, seed=0)
    return replace(config, loss=LossConfig(), run=run)


def _need(
    config: TrainConfig, traced: TrainConfig, found: RunEstimate, device: torch.device
) -> int:
    """Bytes of a run without its images, scaled from those of a larger batch."""
    share = _images_held(config) / _images_held(traced)
    own = found.model_bytes + share * found.activation_bytes + found.loss_bytes
    return round(SLACK * own) + workspace(device)


def workspace(device: torch.device) -> int:
    """Bytes per run for libraries, kNN and the pool."""
    return WORKSPACE["cuda" if device.type == "cuda" else "cpu"]


def _images_held(config: TrainConfig) -> int:
    return min(config.run.micro_batch or config.run.batch_size, config.run.batch_size)


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
