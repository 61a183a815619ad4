"""What is exported: a backbone, what it takes, and how it came to be."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """A backbone ready to be written, and everything its card says.

    Arguments:
        name: What the run is called.
        backbone: On the CPU, in evaluation mode and float32.
        architecture: Its name, as :func:`flatnce.pretrain.models.backbone` takes it.
        stem: Of a ResNet ``small`` or ``standard``; ``auto`` for others.
        channels: Colours of an image.
        size: Side of an image in pixels.
        mean: Of each channel, of values from 0 to 1.
        std: Likewise.
        step: Steps of training done.
        settings: The run's config, flat.
        run: The run's folder, read; None where only the network was given.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: Run | None = None

    @property
    def width(self) -> int:
        """Width of the features."""
        return int(self.backbone.width)  # type: ignore[arg-type]  # torch types attributes so

    @property
    def from_torchvision(self) -> bool:
        """Whether it is a ResNet with torchvision's parameter names."""
        return self.architecture in RESNETS

    def weights(self) -> dict[str, Tensor]:
        """The state dict, every tensor with memory of its own."""
        state = self.backbone.state_dict()
        return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}

    def sample(self, count: int = 3) -> Float[Tensor, "b c h w"]:
        """A few images to compare features on: noise, the same every time."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(count, self.channels, self.size, self.size, generator=generator)

    @torch.no_grad()
    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b width"]:
        """What the backbone itself makes of images."""
        return self.backbone(images)


def source_of(given: LoadedEncoder | str | Path, step: int | None, name: str | None) -> Source:
    """Read a run, or take what was read, and bring its backbone to the CPU."""
    run: Run | None = None
    if isinstance(given, LoadedEncoder):
        if step is not None:
            raise ValueError(
                f"step={step} chooses a checkpoint of a run, but a network was given, of step "
                f"{given.step}; pass the run's name or folder instead"
            )
        read = given
    else:
        directory = find_run(str(given))
        read = load_encoder(directory, step=step)
        run = read_run(directory)
        name = directory.resolve().name
    backbone = copy.deepcopy(read.encoder.backbone).cpu().float().eval()
    backbone = backbone.to(memory_format=torch.contiguous_format)
    settings = read.config.flat()
    architecture = str(settings["backbone"])
    numbers = Normalisation(*read.normalisation).channels(read.channels)
    return Source(
        name or architecture,
        backbone,
        architecture,
        _stem_of(architecture, backbone),
        read.channels,
        read.size,
        tuple(mean for mean, _ in numbers),
        tuple(std for _, std in numbers),
        read.step,
        settings,
        run,
    )


def _stem_of(architecture: str, backbone: nn.Module) -> str:
    """Read off the network: what ``auto`` chose must not depend on a later rule."""
    if architecture not in RESNETS:
        return "auto"
    return "small" if isinstance(backbone.maxpool, nn.Identity) else "standard"
