"""The view that evaluation sees: no randomness, the middle of the picture."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from flatnce.pretrain.data.augmentation.arguments import check_images, check_size
from flatnce.pretrain.data.augmentation.normalise import Normalisation

__all__ = ["CentreCrop"]


@dataclass(frozen=True)
class CentreCrop:
    """Resize the shorter side (bicubic, antialiased), take the middle square, normalise.

    As torchvision's ``Resize(resize, BICUBIC)`` and ``CenterCrop(size)``, in float: what
    overshoots is clamped to [0, 1], nothing is rounded to whole levels.

    Arguments:
        size: Side of the result.
        resize: What the shorter side is resized to; ``size`` by default.
        mean: Subtracted from values in [0, 1]; one number, or one a channel.
        std: Divided by.

    Examples:
        >>> import torch
        >>> images = torch.zeros(4, 3, 40, 50, dtype=torch.uint8)
        >>> CentreCrop(32, resize=36, mean=0.5, std=0.5)(images).shape
        torch.Size([4, 3, 32, 32])
    """

    size: int
    resize: int | None = None
    _: KW_ONLY
    mean: float | Sequence[float] = 0.5
    std: float | Sequence[float] = 0.25

    def __post_init__(self) -> None:
        """Check the sizes."""
        check_size("size", self.size)
        if self.resize is not None:
            check_size("resize", self.resize)
            if self.resize < self.size:
                raise ValueError(
                    f"resize={self.resize} is smaller than size={self.size}; the square is cut "
                    "out of the resized picture, so resize to at least its size"
                )
        Normalisation(self.mean, self.std)

    def __call__(self, images: Tensor) -> Tensor:
        """Views of shape (b, c, size, size), float32."""
        check_images(images)
        normalise = Normalisation(self.mean, self.std)
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            middle = self._middle(images)
            return normalise(middle.transpose(0, 1)).transpose(0, 1)

    def _middle(self, images: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b c size size"]:
        height, width = images.shape[2:]
        short, wanted = min(height, width), self.resize or self.size
        # The longer side is rounded down, as torchvision does.
        target = tuple(wanted * side // short for side in (height, width))
        pixels = images.to(torch.float32) * (1 / 255)
        if target != (height, width):
            pixels = torch.nn.functional.interpolate(
                pixels, target, mode="bicubic", antialias=True, align_corners=False
            ).clamp_(0.0, 1.0)
        # torchvision's rounding of half a pixel: to even.
        top, left = (round((side - self.size) / 2) for side in target)
        return pixels[:, :, top : top + self.size, left : left + self.size].contiguous()
