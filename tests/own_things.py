"""A small user's module, named by its import path: data, networks and augmentations."""

import random

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from flatnce.pretrain import OwnSet

COUNT = 96


class Rows(Dataset):
    """Noisy rows of two classes."""

    def __init__(self, split="train"):
        draw = torch.Generator().manual_seed(len(split))
        self.labels = torch.arange(COUNT) % 2
        self.rows = torch.randn(COUNT, 8, generator=draw) + 3 * self.labels[:, None]

    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        return self.rows[number], int(self.labels[number])


class Endless(IterableDataset):
    """The rows again and again, shuffled by the global generator."""

    def __iter__(self):
        rows = Rows()
        while True:
            yield rows[int(torch.randint(COUNT, ()))]


class Network(nn.Module):
    """Rows to features; with dropout, so that it draws at every step."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2))

    def forward(self, rows):
        return self.layers(rows)


def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))


def pairs(split):
    rows = Rows(split)
    return [(x + 0.1 * x.roll(1), x + 0.1 * x.roll(2), y) for x, y in rows]


def unlabelled(split):
    return [x for x, _ in Rows(split)]


def scalars(split):
    return [(row[0], label) for row, label in Rows(split)]


def frozen():
    return nn.Linear(8, 16).requires_grad_(False)


def grouped(split):
    return OwnSet(Rows(split), ids=[number // 4 for number in range(COUNT)])


def shake(row):
    return random.uniform(0.8, 1.2) * row + 0.3 * torch.randn(8)


def shake_all(rows):
    return rows + 0.3 * torch.randn_like(rows)


def no_network():
    return 3


def with_argument(width):
    return nn.Linear(8, width)


def maps():
    return nn.Unflatten(1, (2, 4))


network = Network()
number = 3
