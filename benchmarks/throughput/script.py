"""The usual SimCLR script: Pillow augmentation in worker processes and an eager bfloat16 step.

The common setup in few lines: torchvision's transforms for each image, a DataLoader with one
worker per core, a ResNet with a 3 x 3 stem, NT-Xent by cross_entropy, SGD.
"""

import os
import time

import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TEMPERATURE = 0.1


class TwoViews(Dataset):
    """Decoded images and their two views."""

    def __init__(self, images, size):
        self.images = images
        colours = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([colours], 0.8),
                transforms.RandomGrayscale(0.2),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        """Two views of an image."""
        image = Image.fromarray(self.images[index])
        return self.augment(image), self.augment(image)


def network(backbone):
    net = getattr(torchvision.models, backbone)()
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    width = net.fc.in_features
    net.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))
    return net


def step(net, optimizer, views, device):
    views = torch.cat(views).to(device, non_blocking=True)
    if device.type == "cuda":
        views = views.contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16):
        z = nn.functional.normalize(net(views).float())
    logits = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    target = torch.arange(len(z), device=device).roll(len(z) // 2)
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits, target).backward()
    optimizer.step()


def measure(images, batch, device, *, backbone, workers=None, seconds=10.0, warm_up=20, windows=5):
    """Seconds per step for each window, and the number of workers."""
    workers = os.cpu_count() if workers is None else workers
    pixels = images.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).contiguous().cpu().numpy()
    loader = DataLoader(
        TwoViews(pixels, pixels.shape[1]),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
    torch.manual_seed(0)
    net = network(backbone).to(device)
    if device.type == "cuda":
        net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=5e-4)
    feed = _endless(loader)
    for _ in range(warm_up):
        step(net, optimizer, next(feed), device)
    found = []
    for _ in range(windows):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / windows:
            step(net, optimizer, next(feed), device)
            steps += 1
            if device.type == "cuda" and steps % 50 == 0:
                torch.cuda.synchronize()  # as printing the loss from time to time does
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / steps)
    return found, workers


def _endless(loader):
    while True:
        yield from loader
