"""Pictures to test with, and the views torchvision makes of them, one by one."""

import torch
from torch import Tensor

from flatnce.pretrain.data.augmentation.pixels import Jitter
from flatnce.pretrain.data.views import Plan, Views

BLENDS = ("brightness", "contrast", "saturation")
EVERYTHING = {"blur": 0.5, "solarize": 0.3, "cutout": 0.5, "noise": 0.1}


def pictures(n: int, channels: int = 3, height: int = 32, width: int | None = None) -> Tensor:
    """Smooth colours with some noise on them: uint8 of shape (n, channels, height, width)."""
    generator = torch.Generator().manual_seed(n + 7 * channels + height)
    width = width or height
    coarse = torch.rand(n, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    noise = torch.rand(n, channels, height, width, generator=generator)
    return (255 * (0.8 * smooth + 0.2 * noise).clamp(0, 1)).round().to(torch.uint8)


# Views and the images they are made of. The kernel for a GPU does not take the large ones.
SETTINGS = {
    "plain": (Views(32, seed=1), pictures(24)),
    "everything": (Views(33, seed=1, **EVERYTHING), pictures(24, 3, 40, 37)),
    "grey": (Views(21, seed=1, **EVERYTHING), pictures(24, 1, 28)),
    "large": (Views(70, seed=1), pictures(24, 3, 80)),
}


def decode(jitter: Jitter, i: int, v: int) -> list[tuple[str, float]]:
    """The operations of one view in their order, with their factors; empty if not jittered."""
    hue = jitter.hue[i, v].item()
    if hue == 0:
        return []
    contrast, saturation = -jitter.mean[i, v], -jitter.luminance[i, v]
    brightness = jitter.scale[i, v] - 1 - contrast - saturation
    places = {2.5: ("hue", hue)}
    for name, changes in zip(BLENDS, (brightness, contrast, saturation), strict=True):
        slot = int(changes.abs().argmax())
        places[slot] = (name, 1 + changes[slot].item())
    return [places[place] for place in sorted(places)]


def by_torchvision(image: Tensor, size: int, plan: Plan, i: int, v: int) -> Tensor:
    """View v of image i by torchvision's functions, in float, from what the plan says.

    Noise, normalisation and cutout are left out.
    """
    from torchvision.transforms.v2 import functional as TF

    top, left, height, width, mirrored = (int(field[i, v]) for field in plan.boxes)
    x = TF.resized_crop(image / 255, top, left, height, width, [size, size], antialias=True)
    x = TF.horizontal_flip(x) if mirrored else x
    for name, factor in decode(plan.jitter, i, v) if plan.jitter else []:
        x = getattr(TF, f"adjust_{name}")(x, factor)
    if plan.grayscale is not None and plan.grayscale[i, v]:
        x = TF.rgb_to_grayscale(x, x.shape[0])
    if plan.blur is not None and plan.blur[i, v]:
        kernel = 2 * (size // 20) + 1
        x = TF.gaussian_blur(x, [kernel, kernel], [plan.blur_sigma[i, v].item()] * 2)
    if plan.solarize is not None and plan.solarize[i, v]:
        x = TF.solarize(x, 128 / 255)
    return x
