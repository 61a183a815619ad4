"""Colour: jitter in random order, grayscale, solarize. Values stay in [0, 1], in float.

Brightness, contrast and saturation are one operation, a blend of three things: the picture x, its
luminance g(x), and the mean of its luminance:

    clamp(a·x + u·g(x) + m·mean g(x), 0, 1)

    brightness f:  a = f, u = m = 0        contrast f:  a = f, m = 1 − f
    saturation f:  a = f, u = 1 − f        nothing:     a = 1, u = m = 0

so their order is only a matter of coefficients. Hue is the odd one out and the expensive one:
whatever a view's order is, it has up to three blends before its hue and up to three after. So
six blends with one hue shift in the middle do every order at once, most blends of a view doing
nothing.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.draws import Uniforms

__all__ = ["Jitter", "draw_jitter", "grayscale", "jitter", "solarize"]

BLENDS = 3
"""Brightness, contrast, saturation, in this order; the fourth operation is hue."""

LUMINANCE = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601), as torchvision rounds them."""

SOLARIZE_THRESHOLD = 128 / 255

MEAN_GRID = 2**14
"""The luminance is rounded to 1/MEAN_GRID for its mean: rows up to 1,024 pixels add exactly."""


class Jitter(NamedTuple):
    """What colour jitter does to every image and view; slots 0 to 2 come before the hue."""

    scale: Float[Tensor, "b v slots"]
    luminance: Float[Tensor, "b v slots"]
    mean: Float[Tensor, "b v slots"]
    hue: Float[Tensor, "b v"]

    def rows(self, start: int, stop: int) -> "Jitter":
        """The part of some of the images."""
        return Jitter(*(field[start:stop] for field in self))


def draw_jitter(
    uniforms: Uniforms, amount: tuple[float, float, float, float], probability: float
) -> Jitter:
    """Factors distributed as torchvision's ColorJitter, in uniform order, with a probability.

    Factors are uniform in [max(0, 1 − amount), 1 + amount], the hue shift in ± its amount.
    """
    applied = uniforms[draws.JITTER] < probability
    chosen = uniforms[draws.JITTER_FACTORS]
    changes = [  # factor − 1, nothing where the view is left alone
        applied * (max(0.0, 1 - a) - 1 + (1 + a - max(0.0, 1 - a)) * u)
        for a, u in zip(amount[:BLENDS], chosen[:BLENDS], strict=True)
    ]
    hue = applied * (amount[BLENDS] * (2 * chosen[BLENDS] - 1))
    # The rank of four numbers is a uniform permutation: rank[o] is when operation o happens.
    order = uniforms[draws.JITTER_ORDER]
    rank = (order[:, None] > order[None]).sum(dim=1)
    slot = rank[:BLENDS] + 2 * (rank[:BLENDS] > rank[BLENDS])
    places = torch.arange(2 * BLENDS, device=order.device)
    change = (slot[..., None] == places) * torch.stack(changes)[..., None]
    _, contrast, saturation = change
    fields = (1 + change.sum(dim=0), -saturation, -contrast, hue)
    return Jitter(*(field.to(torch.float32) for field in fields))


def jitter(planes: Float[Tensor, "c n y x"], drawn: Jitter) -> Float[Tensor, "c n y x"]:
    """Colour jitter, every view by its own factors in its own order.

    A picture of one channel has no colour: saturation and hue leave it as it is.
    """
    coefficients = [field.flatten(0, 1).T[..., None, None] for field in drawn[:BLENDS]]
    for slot, (scale, of_luminance, of_mean) in enumerate(zip(*coefficients, strict=True)):
        if slot == BLENDS and planes.shape[0] == len(LUMINANCE):
            hue = drawn.hue.flatten()[:, None, None]
            planes = torch.lerp(planes, shift_hue(planes, hue), (hue != 0).to(planes.dtype))
        planes = blend(planes, scale, of_luminance, of_mean)
    return planes


def luminance(planes: Float[Tensor, "c n y x"]) -> Float[Tensor, "n y x"]:
    """How bright each pixel is; a single channel is its own luminance."""
    if planes.shape[0] == 1:
        return planes[0]
    red, green, blue = planes.unbind()
    total = torch.add(red * LUMINANCE[0], green, alpha=LUMINANCE[1])
    return total.add_(blue, alpha=LUMINANCE[2])


def blend(
    planes: Float[Tensor, "c n y x"],
    scale: Float[Tensor, "n 1 1"],
    of_luminance: Float[Tensor, "n 1 1"],
    of_mean: Float[Tensor, "n 1 1"],
) -> Float[Tensor, "c n y x"]:
    """The picture, its luminance and its mean luminance, added with these weights and clamped."""
    grey = luminance(planes)
    counted = (grey * MEAN_GRID).round_().sum(dim=-1).sum(dim=-1, dtype=torch.float64)
    mean = (counted / (MEAN_GRID * grey.shape[-1] * grey.shape[-2])).to(torch.float32)
    rest = torch.addcmul(of_mean * mean[:, None, None], grey, of_luminance)
    return torch.addcmul(rest, planes, scale).clamp_(0.0, 1.0)


def shift_hue(
    planes: Float[Tensor, "3 n y x"], shift: Float[Tensor, "n 1 1"]
) -> Float[Tensor, "3 n y x"]:
    """Hue turned by a share of the circle; the largest and smallest channel values stay.

    With V the largest channel, C the chroma (largest − smallest) and h in [0, 6) the hue in
    sixths of the circle, the channels are

        red V − 2C + C·[|h − 3|],   green V + C − C·[|h − 2|],   blue V + C − C·[|h − 4|],

    where [t] is t clamped to [1, 2].

    References:
        Smith, 1978, "Color gamut transform pairs", SIGGRAPH (the hexcone).
    """
    red, green, blue = planes.unbind()
    largest = torch.maximum(torch.maximum(red, green), blue)
    chroma = largest - torch.minimum(torch.minimum(red, green), blue)
    # Zero or one in float, chosen by lerp: exact, and several times faster on a CPU than where.
    is_red, is_green = (red - largest).ge_(0.0), (green - largest).ge_(0.0)
    lead = torch.lerp(torch.lerp(red - green, blue - red, is_green), green - blue, is_red)
    sector = (4 - 2 * is_green) * (1 - is_red)
    # Grey has no hue and no chroma: 0 / tiny is 0, and whatever comes of it is multiplied by 0.
    h = lead.div_(chroma.clamp_min(torch.finfo(planes.dtype).tiny)).add_(sector).add_(6 * shift)
    h = torch.sub(h, torch.floor(h * (1 / 6)), alpha=6)
    lower, upper = torch.sub(largest, chroma, alpha=2), largest + chroma
    return torch.stack(
        [
            torch.addcmul(lower, chroma, (h - 3).abs_().clamp_(1.0, 2.0)),
            torch.addcmul(upper, chroma, (h - 2).abs_().clamp_(1.0, 2.0), value=-1),
            torch.addcmul(upper, chroma, (h - 4).abs_().clamp_(1.0, 2.0), value=-1),
        ]
    )


def grayscale(
    planes: Float[Tensor, "c n y x"], applied: Float[Tensor, "n 1 1"]
) -> Float[Tensor, "c n y x"]:
    """Every channel replaced by the luminance, where ``applied`` is one."""
    return torch.lerp(planes, luminance(planes).expand_as(planes), applied)


def solarize(
    planes: Float[Tensor, "c n y x"], applied: Float[Tensor, "n 1 1"]
) -> Float[Tensor, "c n y x"]:
    """Values from level 128 of 255 up inverted, where ``applied`` is one."""
    inverted = (planes >= SOLARIZE_THRESHOLD) * applied
    return torch.lerp(planes, 1 - planes, inverted)
