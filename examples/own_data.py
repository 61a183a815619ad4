"""Your own network, Dataset and augmentation. Kill it at any time: it continues exactly.

python examples/own_data.py stripes        # the run is runs/stripes, or in $FLATNCE_RUNS
"""

import random
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import flatnce
from flatnce.pretrain import find_run


class Stripes(Dataset):
    """Grey pictures of stripes in four directions; frequency and phase vary."""

    def __init__(self, seed: int, count: int = 512) -> None:
        self.seed, self.count = seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        drawn = torch.rand(2, generator=torch.Generator().manual_seed(self.seed + number))
        angle, y, x = torch.tensor(number % 4) * torch.pi / 4, torch.arange(16), torch.arange(16)
        along = y[:, None] * angle.sin() + x[None, :] * angle.cos()
        return torch.sin((0.8 + drawn[0]) * along + 6.28 * drawn[1])[None], number % 4


def augment(picture: Tensor) -> Tensor:
    """Shift the picture, change its contrast and add noise, in the workers."""
    shifted = picture.roll((random.randrange(16), random.randrange(16)), (1, 2))
    return random.uniform(0.5, 1.5) * shifted + 0.3 * torch.randn(1, 16, 16)


def network() -> nn.Module:
    """From pictures (b, 1, 16, 16) to features (b, 32)."""
    layers = (nn.Conv2d(1, 16, 5, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3))
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def main(name: str = "stripes", **options: object) -> None:
    own = {"encoder": network, "data": Stripes(0), "test_data": Stripes(9999), "augment": augment}
    try:
        find_run(name)
    except ValueError:  # there is none
        settings = {"epochs": 2, "batch_size": 64, "ess": 0.3, "workers": 0}
        often = {"log_every": 1, "checkpoint_every": 0.5}
        flatnce.train(**own, name=name, **settings, **often, **options)
    else:
        flatnce.resume(name, **own, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
