"""Pairs that are not images: two noisy sensors that recorded the same movement.

python examples/own_pairs.py sensors        # the run is runs/sensors
"""

import sys

import torch
from torch import Tensor, nn

import flatnce


def recordings(seed: int, count: int = 1024) -> list[tuple[Tensor, Tensor, int]]:
    """Two series of 32 readings of each movement, and which of four movements it is."""
    draw = torch.Generator().manual_seed(seed)
    kind = torch.arange(count) % 4
    phase, time = 6.28 * torch.rand(count, 1, generator=draw), torch.linspace(0, 6.28, 32)
    movement = torch.sin((1 + kind[:, None]) * time + phase)
    sensors = movement + 0.5 * torch.randn(2, count, 32, generator=draw)
    return [(sensors[0, n, None], sensors[1, n, None], int(kind[n])) for n in range(count)]


def network() -> nn.Module:
    """From series (b, 1, 32) to features (b, 64)."""
    layers = (nn.Conv1d(1, 32, 7, 2, 3), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 5, 2, 2))
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())


def main(name: str = "sensors") -> None:
    own = {"encoder": network, "data": recordings(0), "test_data": recordings(1)}
    settings = {"epochs": 2, "batch_size": 64, "ess": 0.3, "rate": 0.24, "workers": 0}
    flatnce.train(**own, name=name, evaluate=["knn", "linear", "mi"], **settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
