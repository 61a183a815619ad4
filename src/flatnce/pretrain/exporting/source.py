"""What is exported: a backbone, its input, and the run it comes from."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.pretrain.data.augmentation.pixels import Normalisation
from flatnce.pretrain.models import RESNETS
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.pretrain.training.saved import LoadedEncoder, find_run, load_encoder


@dataclass(frozen=True)
class Source:
    """A backbone and everything its card says.

    Arguments:
        name: Name of the run.
        backbone: On the CPU, in evaluation mode and float32.
        architecture: Its name, as :func:`flatnce.pretrain.models.backbone` takes it.
        stem: ``small`` or ``standard`` for a ResNet; ``auto`` for others.
        channels: Channels of an image.
        size: Side of an image in pixels.
        mean: Mean of each channel, for values from 0 to 1.
        std: Standard deviation of each channel.
        step: Training steps.
        settings: The config of the run, flat.
        run: The run directory; None if only the network was given.
    """

    name: str
    backbone: nn.Module
    architecture: str
    stem: str
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    step: int
    settings: Mapping[str, Any]
    run: Run | None

    @property
    def width(self) -> int:
        """Width of the features."""
        return int(self.backbone.width)  # type: ignore[arg-type]  # torch types attributes so

    @property
    def from_torchvision(self) -> bool:
        """Whether it is a ResNet with torchvision's parameter names."""
        return self.architecture in RESNETS

    def sample(self, count: int = 3) -> Float[Tensor, "b c h w"]:
        """A few images of noise to compare features on, the same every time."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(count, self.channels, self.size, self.size, generator=generator)


def source_of(given: LoadedEncoder | str | Path, step: int | None, name: str | None) -> Source:
    """Read a run, or take a loaded encoder, and move its backbone to the CPU."""
    run: Run | None = None
    if isinstance(given, LoadedEncoder):
        if step is not None:
            raise ValueError(
                f"step={step} chooses a checkpoint of a run, but a network was given, of step "
                f"{given.step}; pass the run's name or folder instead"
            )
        loaded = given
    else:
        directory = find_run(str(given))
        loaded = load_encoder(directory, step=step)
        run = read_run(directory)
        name = directory.resolve().name
    backbone = copy.deepcopy(loaded.encoder.backbone).cpu().float().eval()
    backbone = backbone.to(memory_format=torch.contiguous_format)
    settings = loaded.config.flat()
    architecture = str(settings["backbone"])
    # The stem of the network itself; the rule of ``auto`` may change later.
    stem = "auto"
    if architecture in RESNETS:
        stem = "small" if isinstance(backbone.maxpool, nn.Identity) else "standard"
    numbers = Normalisation(*loaded.normalisation).channels(loaded.channels)
    return Source(
        name or architecture,
        backbone,
        architecture,
        stem,
        loaded.channels,
        loaded.size,
        tuple(mean for mean, _ in numbers),
        tuple(std for _, std in numbers),
        loaded.step,
        settings,
        run,
    )
