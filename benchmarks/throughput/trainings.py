"""Trainings to be timed: the ordinary path, a plain one, and one without diagnostics."""

import functools
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from flatnce.pretrain import preset
from flatnce.pretrain.data.augmentation import fused
from flatnce.pretrain.sweeping.sweep import QUEUES, request_cuda_queues
from flatnce.pretrain.training import images as train_images
from flatnce.pretrain.training.state import Training

RECORDS, FOLDER = 10_000, "cifar-10-batches-bin"


class NoMonitor:
    """A Monitor that does nothing."""

    def update(self, last):
        """Do nothing with a step's diagnostics."""


class PlainViews:
    """Views by torch's operations one after another, even if one launch could make them."""

    def __init__(self, views):
        self.views = views

    def __call__(self, *arguments, **options):
        """The same views."""
        takes, fused.takes = fused.takes, lambda *_: False
        try:
            return self.views(*arguments, **options)
        finally:
            fused.takes = takes


def data_root(options):
    """The folder of CIFAR-10, and its kind: the real images or random bytes of its layout."""
    if options.cpu:
        return None, "digits"
    if options.root is not None and (options.root / FOLDER / "data_batch_1.bin").exists():
        return str(options.root), "CIFAR-10"
    root = Path(tempfile.gettempdir()) / "flatnce-random-images"
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        if not (folder / f"{name}.bin").exists():
            rows = torch.randint(256, (RECORDS, 3073), generator=generator, dtype=torch.uint8)
            rows[:, 0] %= 10
            (folder / f"{name}.bin").write_bytes(rows.numpy().tobytes())
    (folder / "batches.meta.txt").write_text("".join(f"class {k}\n" for k in range(10)))
    print("--root has no CIFAR-10: random bytes of the same shape instead", flush=True)
    return str(root), "random bytes"


def configured(options, root, **changes):
    """The preset of the data on the requested device, without evaluation during training."""
    device = "cpu" if options.cpu else "cuda"
    shared = {"device": device, "watch_every": 0.0, "tensorboard": False, "checkpoint_every": 1e6}
    if options.cpu:
        changes.pop("backbone", None)
        return preset("digits").override(**shared, **changes)
    return preset("cifar10").override(root=root, **shared, **changes)


def device_of(options):
    return torch.device("cpu") if options.cpu else torch.device("cuda", 0)


def widen():
    """Ask CUDA for as many hardware queues as a sweep does, and return their number.

    CUDA reads it once, at its first use. A process that has used CUDA keeps its number.
    """
    request_cuda_queues()
    return os.environ.get(QUEUES, "default")


def slots(device, count):
    """Streams for concurrent runs, with the priority of a sweep's, above that of side streams."""
    if device.type != "cuda":
        return [None] * count
    return [torch.cuda.Stream(device, priority=-1) for _ in range(count)]


def build(config, *, recorded=True, diagnostics=True, plain=False, directory=None):
    """A run in memory: the ordinary path, or plain, with torch's operations launched eagerly."""
    _read_images_once()
    device = torch.device("cpu") if config.run.device == "cpu" else torch.device("cuda", 0)
    place = directory or Path(tempfile.gettempdir()) / "flatnce-throughput"
    training = Training(config, place, device)
    stepper = training._take_step
    step = getattr(stepper, "step", stepper)
    if not diagnostics:
        step.monitor = NoMonitor()
    if not recorded:
        training._take_step = step
    if plain or not recorded:
        step.views = PlainViews(step.views)
        training.learner.call_through(training.learner.encoder)
        training.learner.objective.kernel = "dense"
    training.feed = _batches(training)
    return training


@functools.cache
def _read_images_once():
    """Cache the images, because every training reads the same files."""
    train_images.load = functools.cache(train_images.load)


def _batches(training):
    """Endless batches from the current step of the training on."""
    while True:
        epoch, done = divmod(training.step, training.steps_per_epoch)
        for batch in training.images.loader.epoch(epoch, start=done):
            yield batch, epoch


def take(training, steps):
    """Take steps as a run does; nothing is read from the device."""
    end = training.step + steps
    while training.step < end:
        training.take_step(*next(training.feed))


def settle(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(training, steps):
    """Seconds of wall time that steps take, from an idle device to an idle device."""
    settle(training.device)
    before, began = training.step, time.perf_counter()
    take(training, steps)
    settle(training.device)
    return (time.perf_counter() - began) / (training.step - before)


def host_seconds(training, steps=16):
    """Seconds per step that the host needs to launch it, from an idle device."""
    settle(training.device)
    before, began = training.step, time.perf_counter()
    take(training, steps)
    found = (time.perf_counter() - began) / (training.step - before)
    settle(training.device)
    return found


def window_steps(training, options):
    """The number of steps that fill a window, from a short trial."""
    return max(2, round(options.window / max(timed(training, options.trial), 1e-6)))


def speed(seconds_a_step, images_a_step):
    """Images per second: the median of the windows, and their range."""
    rates = sorted(images_a_step / seconds for seconds in seconds_a_step)
    return {
        "images_per_second": round(statistics.median(rates), 1),
        "range": [round(rates[0], 1), round(rates[-1], 1)],
        "windows": len(rates),
        "ms_per_step": round(1e3 * statistics.median(seconds_a_step), 4),
    }
