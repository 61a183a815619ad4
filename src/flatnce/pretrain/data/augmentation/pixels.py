"""The operations of the views on a batch of images: crop, colour, blur, noise, cutout.

Pixels are held as *planes*, float32 of shape (c, n, y, x) with values in [0, 1]; ``n`` counts
views, image after image. The pixels of a view have the same bits whatever else is in the batch:
every sum over pixels is exact, so that its order does not matter. Resizing and blurring are R·X·Cᵀ
with a small matrix R of row weights and C of column weights per view. Weights are whole multiples
of 2⁻¹¹ and values whole numbers up to 2¹¹, so that any sum of products whose weights add up to one
has at most 22 bits: float32 holds it exactly, with or without TF32. (Not with bfloat16, which
``torch.set_float32_matmul_precision("medium")`` may use.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.draws import Keys, Uniforms

__all__ = ["Normalisation"]

Planes: TypeAlias = Float[Tensor, "c n y x"]
PerView: TypeAlias = Float[Tensor, "n 1 1"]
PerImage: TypeAlias = Float[Tensor, "b v"]  # one number per image and view

# Weights are multiples of 1/GRID, held as whole numbers; values go up to GRID.
GRID = 2048


def to_grid(weights: Float[Tensor, "*n taps"]) -> Float[Tensor, "*n taps"]:
    """Weights along the last axis, scaled to sum to GRID and rounded to whole numbers."""
    return (weights * (GRID / weights.sum(dim=-1, keepdim=True))).round()


def filter_separably(
    pixels: Float[Tensor, "b h c w"],
    rows: Float[Tensor, "b v y h"],
    columns: Float[Tensor, "b v x w"],
    refine: int,
) -> Planes:
    """Every view's rows and columns applied to its image; n = b·v."""
    b, h, c, w = pixels.shape
    v, y, x = rows.shape[1], rows.shape[2], columns.shape[2]
    across = _product(rows.reshape(b, v * y, h), pixels.reshape(b, h, c * w))
    across = across.mul_(refine / GRID).round_().to(pixels.dtype)
    done = _product(across.view(b * v, y * c, w), columns.reshape(b * v, x, w).transpose(1, 2))
    return done.view(b * v, y, c, x).permute(2, 0, 1, 3).contiguous().mul_(1 / GRID)


def _product(a: Float[Tensor, "n i k"], b: Float[Tensor, "n k j"]) -> Float[Tensor, "n i j"]:
    """The product in float32; a GPU multiplies float16, which holds the values, much faster."""
    if torch.float16 not in (a.dtype, b.dtype):
        return torch.bmm(a, b)
    return torch.bmm(a.to(torch.float16), b.to(torch.float16), out_dtype=torch.float32)


RATIO = 4 / 3  # of the widest box; that of the tallest is its inverse
LEVELS = 255
REFINE = 8  # pixels are kept in eighths of a level between rows and columns: 8·255 fits the grid


class Boxes(NamedTuple):
    """A box of whole pixels per image and view, and whether it is mirrored."""

    top: PerImage
    left: PerImage
    height: PerImage
    width: PerImage
    mirrored: PerImage


Extent = TypeVar("Extent", int, Tensor)  # of all images, or one per image, float64 (b, 1)


def fallback_box(height: Extent, width: Extent) -> tuple[Extent, Extent]:
    """Height and width of the largest central box whose ratio is allowed."""
    if isinstance(height, Tensor):
        tallest, widest = (width * RATIO).round(), (height * RATIO).round()
        return torch.minimum(height, tallest), torch.minimum(width, widest)
    return min(height, round(width * RATIO)), min(width, round(height * RATIO))


def draw_boxes(
    uniforms: Uniforms, height: Extent, width: Extent, scale: tuple[float, float], flip: float
) -> Boxes:
    """Boxes distributed as torchvision's RandomResizedCrop, mirrored with probability ``flip``.

    The area is uniform in ``scale`` times the image's, the logarithm of the ratio uniform between
    3/4 and 4/3. The first of ten attempts that fits is taken, else the largest central box.
    """
    area = height * width * (scale[0] + (scale[1] - scale[0]) * uniforms[draws.CROP_AREA])
    ratio = torch.exp(math.log(RATIO) * (2 * uniforms[draws.CROP_RATIO] - 1))
    widths, heights = torch.sqrt(area * ratio).round(), torch.sqrt(area / ratio).round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    found = fits.any(dim=0)
    first = fits.to(torch.uint8).argmax(dim=0, keepdim=True)  # the first of several ones
    spare_height, spare_width = fallback_box(height, width)
    h = torch.where(found, heights.gather(0, first)[0], spare_height)
    w = torch.where(found, widths.gather(0, first)[0], spare_width)
    top = torch.floor(uniforms[draws.CROP_TOP] * (height - h + 1))
    left = torch.floor(uniforms[draws.CROP_LEFT] * (width - w + 1))
    top = torch.where(found, top, (height - spare_height) // 2)
    left = torch.where(found, left, (width - spare_width) // 2)
    mirrored = uniforms[draws.FLIP] < flip
    return Boxes(*(field.to(torch.float32) for field in (top, left, h, w, mirrored)))


def crop_and_resize(pixels: Float[Tensor, "b h c w"], boxes: Boxes, size: int) -> Planes:
    """Every box of every image resized to a square, as planes in [0, 1].

    Bilinear with antialiasing, as torchvision's ``resized_crop(..., antialias=True)``, within 0.4
    of a level of 255 of the same in float.
    """
    h, w = pixels.shape[1], pixels.shape[3]
    rows = _window(boxes.top, boxes.height, None, size, h)
    columns = _window(boxes.left, boxes.width, boxes.mirrored, size, w)
    planes = filter_separably(pixels, rows, columns, REFINE)
    return planes.mul_(1 / (REFINE * LEVELS)).clamp_max_(1.0)


def mirror(crops: UInt8[Tensor, "b v c s s"], mirrored: PerImage) -> Planes:
    """Crops, each mirrored or not, as planes in [0, 1]."""
    turned = torch.where(mirrored[..., None, None, None] > 0, crops.flip(-1), crops)
    planes = turned.permute(2, 0, 1, 3, 4).to(torch.float32).flatten(1, 2)
    return planes.mul_(1 / LEVELS).clamp_max_(1.0)


def _window(
    start: PerImage, length: PerImage, mirrored: PerImage | None, size: int, extent: int
) -> Float[Tensor, "b v s e"]:
    """Weights of ``extent`` source pixels in each of ``size`` results along one axis."""
    device = start.device
    source = torch.arange(1, 2 * extent, 2, device=device, dtype=torch.float32)
    result = torch.arange(1, 2 * size, 2, device=device, dtype=torch.float32)
    start, length = start[..., None], length[..., None]
    if mirrored is not None:  # 2i + 1 becomes 2·(size − 1 − i) + 1
        result = torch.lerp(result, 2 * size - result, mirrored[..., None])
    centre = torch.addcmul(2 * size * start, result, length)
    inside = ((source - 2 * start - length).abs_() < length).to(torch.float32)
    reach = 2 * length.clamp_min(size)
    distance = (size * source - centre[..., None]).abs_()
    weights = torch.sub(reach[..., None], distance).clamp_min_(0.0)
    return to_grid(weights.mul_(inside[..., None, :]))


BLENDS = 3  # brightness, contrast, saturation, in this order; the fourth operation is hue
LUMINANCE = (0.2989, 0.587, 0.114)  # red, green, blue (ITU-R BT.601), as torchvision rounds them
JITTER_PROBABILITY = 0.8
JITTER_AMOUNT = (0.8, 0.8, 0.8, 0.2)  # of brightness, contrast, saturation, hue at strength 1
BLUR_SIGMA = (0.1, 2.0)
SOLARIZE_THRESHOLD = 128 / 255
# The luminance is rounded to 1/MEAN_GRID for its mean: rows up to 1,024 pixels add exactly.
MEAN_GRID = 2**14


class Jitter(NamedTuple):
    """The colour jitter of every image and view; slots 0 to 2 come before the hue."""

    scale: Float[Tensor, "b v slots"]
    luminance: Float[Tensor, "b v slots"]
    mean: Float[Tensor, "b v slots"]
    hue: PerImage


def jitter_ranges(strength: float) -> tuple[list[tuple[float, float]], float]:
    """Least value and width of the range of each blend's factor − 1; amount of hue.

    Factors are uniform in [max(0, 1 − amount), 1 + amount], the hue shift in ± its amount.
    """
    *amounts, hue = (strength * full for full in JITTER_AMOUNT)
    return [(max(0.0, 1 - a) - 1, 1 + a - max(0.0, 1 - a)) for a in amounts], hue


def draw_jitter(uniforms: Uniforms, strength: float) -> Jitter:
    """Factors distributed as torchvision's ColorJitter, in uniform order, with probability 0.8."""
    applied = uniforms[draws.JITTER] < JITTER_PROBABILITY
    chosen = uniforms[draws.JITTER_FACTORS]
    ranges, most = jitter_ranges(strength)
    changes = [  # factor − 1; 0 where the view is not jittered
        applied * (least + width * u)
        for (least, width), u in zip(ranges, chosen[:BLENDS], strict=True)
    ]
    hue = applied * (most * (2 * chosen[BLENDS] - 1))
    # The rank of four numbers is a uniform permutation: rank[o] is when operation o happens.
    order = uniforms[draws.JITTER_ORDER]
    rank = (order[:, None] > order[None]).sum(dim=1)
    slot = rank[:BLENDS] + 2 * (rank[:BLENDS] > rank[BLENDS])
    places = torch.arange(2 * BLENDS, device=order.device)
    change = (slot[..., None] == places) * torch.stack(changes)[..., None]
    _, contrast, saturation = change
    fields = (1 + change.sum(dim=0), -saturation, -contrast, hue)
    return Jitter(*(field.to(torch.float32) for field in fields))


def jitter(planes: Planes, drawn: Jitter) -> Planes:
    """Colour jitter, every view with its own factors in its own order."""
    coefficients = [field.flatten(0, 1).T[..., None, None] for field in drawn[:BLENDS]]
    for slot, (scale, of_luminance, of_mean) in enumerate(zip(*coefficients, strict=True)):
        if slot == BLENDS and planes.shape[0] == len(LUMINANCE):
            hue = drawn.hue.flatten()[:, None, None]
            planes = torch.lerp(planes, shift_hue(planes, hue), (hue != 0).to(planes.dtype))
        planes = blend(planes, scale, of_luminance, of_mean)
    return planes


def luminance(planes: Planes) -> Float[Tensor, "n y x"]:
    """The luminance of each pixel; a single channel is its own luminance."""
    if planes.shape[0] == 1:
        return planes[0]
    red, green, blue = planes.unbind()
    total = torch.add(red * LUMINANCE[0], green, alpha=LUMINANCE[1])
    return total.add_(blue, alpha=LUMINANCE[2])


def blend(planes: Planes, scale: PerView, of_luminance: PerView, of_mean: PerView) -> Planes:
    """The picture, its luminance and its mean luminance, added with these weights and clamped."""
    grey = luminance(planes)
    counted = (grey * MEAN_GRID).round_().sum(dim=-1).sum(dim=-1, dtype=torch.float64)
    mean = (counted / (MEAN_GRID * grey.shape[-1] * grey.shape[-2])).to(torch.float32)
    rest = torch.addcmul(of_mean * mean[:, None, None], grey, of_luminance)
    return torch.addcmul(rest, planes, scale).clamp_(0.0, 1.0)


def shift_hue(planes: Float[Tensor, "3 n y x"], shift: PerView) -> Float[Tensor, "3 n y x"]:
    """The hue shifted by a share of the circle (Smith, 1978, "Color gamut transform pairs").

    With V the largest channel, C the chroma (largest − smallest) and h in [0, 6) the hue in
    sixths of the circle, the channels are V − 2C + C·[|h − 3|], V + C − C·[|h − 2|] and
    V + C − C·[|h − 4|], where [t] is t clamped to [1, 2].
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


def grayscale(planes: Planes, applied: PerView) -> Planes:
    """Every channel replaced by the luminance, where ``applied`` is one."""
    return torch.lerp(planes, luminance(planes).expand_as(planes), applied)


def solarize(planes: Planes, applied: PerView) -> Planes:
    """Values from level 128 of 255 up inverted, where ``applied`` is one."""
    inverted = (planes >= SOLARIZE_THRESHOLD) * applied
    return torch.lerp(planes, 1 - planes, inverted)


def blur_radius(size: int) -> int:
    """Pixels on either side of the kernel's centre: a kernel of about a tenth of the picture."""
    return size // 20


def blur_weights(
    sigma: Float[Tensor, " n"], radius: int, size: int
) -> Float[Tensor, "n size size"]:
    """The blur along one axis as a matrix (target, source) on the grid, with borders reflected."""
    offsets = torch.arange(-radius, radius + 1, device=sigma.device, dtype=torch.float32)
    kernel = to_grid(torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2))
    # The middle takes the rounding error: the weights then sum to one exactly.
    middle = kernel[:, radius:] * (offsets[radius:] > 0)
    middle[:, 0] = GRID - 2 * middle.sum(dim=1)
    pixel = torch.arange(size, device=sigma.device)
    reach = torch.arange(radius + 1, device=sigma.device)[:, None, None]
    target, source = pixel[:, None], pixel[None]
    direct = (target - source).abs() == reach
    before = (target + source == reach) & (source > 0)
    after = (2 * (size - 1) - target - source == reach) & (source < size - 1)
    places = direct.to(torch.float32) + before + after
    return (middle @ places.flatten(1)).view(-1, size, size)


def blur(planes: Planes, sigma: Float[Tensor, " n"], applied: PerView) -> Planes:
    """Gaussian blur where ``applied`` is one, as torchvision's, within 0.4 of a level of 255."""
    size = planes.shape[-1]
    weights = blur_weights(sigma, blur_radius(size), size)[:, None]
    pixels = (planes.permute(1, 2, 0, 3) * GRID).round_()
    blurred = filter_separably(pixels, weights, weights, 1).mul_(1 / GRID)
    return torch.lerp(planes, blurred, applied)


class Squares(NamedTuple):
    """A square per image and view, and whether it is cut out."""

    top: PerImage
    left: PerImage
    applied: PerImage


def draw_squares(uniforms: Uniforms, size: int, probability: float) -> Squares:
    """Squares of half the picture's side whose middle is uniform over the pixels (Cutout)."""
    top, left = (
        torch.floor(uniforms[place] * size) - square_side(size) // 2
        for place in (draws.CUTOUT_ROW, draws.CUTOUT_COLUMN)
    )
    applied = uniforms[draws.CUTOUT] < probability
    return Squares(*(field.to(torch.float32) for field in (top, left, applied)))


def cut_out(planes: Planes, squares: Squares) -> Planes:
    """Zero inside every square that applies."""
    size = planes.shape[-1]
    pixel = torch.arange(size, device=planes.device)
    top, left, applied = (field.flatten()[:, None] for field in squares)
    rows = (pixel >= top) & (pixel < top + square_side(size)) & (applied > 0)
    columns = (pixel >= left) & (pixel < left + square_side(size))
    return planes * ~(rows[:, :, None] & columns[:, None])


def add_noise(planes: Planes, keys: Keys, sigma: float) -> Planes:
    """Normal noise added to every value, clamped to [0, 1], as torchvision's GaussianNoise."""
    c, n, y, x = planes.shape
    normals = draws.draw_normals(keys, c * y * x).view(n, c, y, x).transpose(0, 1)
    return (planes + sigma * normals).clamp_(0.0, 1.0)


def square_side(size: int) -> int:
    """The side of the square that is cut out."""
    return max(1, size // 2)


@dataclass(frozen=True)
class Normalisation:
    """Subtract a mean and divide by a standard deviation: one number, or one per channel."""

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("std", self.std)):
            entries = (value,) if isinstance(value, int | float) else tuple(value)
            right = entries and all(isinstance(entry, int | float) for entry in entries)
            if not right or (name == "std" and min(entries) <= 0):
                raise ValueError(
                    f"{name}={value!r} must be a number, or one number per channel; std positive"
                )

    def channels(self, count: int) -> list[tuple[float, float]]:
        """Mean and standard deviation of each of ``count`` channels."""
        found = []
        for name, value in (("mean", self.mean), ("std", self.std)):
            numbers = [value] if isinstance(value, int | float) else list(value)
            if len(numbers) not in (1, count):
                raise ValueError(
                    f"{name} has {len(numbers)} entries for images of {count} channels; pass one "
                    f"number, or {count}"
                )
            found.append([float(number) for number in numbers] * (count // len(numbers)))
        return list(zip(*found, strict=True))

    def apply(self, planes: Planes) -> Planes:
        """The planes, normalised in place."""
        # Python numbers instead of a tensor, which would be copied to the device.
        for plane, (mean, std) in zip(planes, self.channels(planes.shape[0]), strict=True):
            plane.sub_(mean).div_(std)
        return planes
