"""Views of images: :class:`Views` for training and :class:`CentreCrop` for evaluation."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from flatnce.core import faults
from flatnce.pretrain.data.augmentation import draws, fused, pixels
from flatnce.pretrain.data.augmentation.pixels import Normalisation

__all__ = ["CentreCrop"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CACHED_VALUES = 2**19  # of a chunk on the CPU: the tensors of a chunk stay in the cache


@dataclass(frozen=True)
class CentreCrop:
    """Resize the shorter side (bicubic, antialiased), take the centre square, normalise.

    Like torchvision's ``Resize(resize, BICUBIC)`` and ``CenterCrop(size)``, in float: values are
    clamped to [0, 1] and not rounded to whole levels. ``resize`` is ``size`` by default.
    """

    size: int
    resize: int | None = None
    _: KW_ONLY
    mean: float | Sequence[float] = 0.5
    std: float | Sequence[float] = 0.25

    def __post_init__(self) -> None:
        _check_whole("size", self.size, 1)
        if self.resize is not None:
            _check_whole("resize", self.resize, self.size)
        Normalisation(self.mean, self.std)

    def __call__(self, images: Tensor) -> Tensor:
        """Views of shape (b, c, size, size), float32."""
        _check_images(images)
        short, wanted = min(images.shape[2:]), self.resize or self.size
        # The longer side is rounded down, as torchvision does.
        target = tuple(wanted * side // short for side in images.shape[2:])
        # torchvision's rounding of half a pixel: to even.
        top, left = (round((side - self.size) / 2) for side in target)
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            values = images.to(torch.float32) * (1 / 255)
            if target != tuple(images.shape[2:]):
                values = torch.nn.functional.interpolate(
                    values, target, mode="bicubic", antialias=True, align_corners=False
                ).clamp_(0.0, 1.0)
            middle = values[:, :, top : top + self.size, left : left + self.size].contiguous()
            planes = middle.transpose(0, 1)
            return Normalisation(self.mean, self.std).apply(planes).transpose(0, 1)


class Plan(NamedTuple):
    """Everything drawn for a batch. None means switched off, zero not applied."""

    keys: draws.Keys
    boxes: pixels.Boxes
    jitter: pixels.Jitter | None
    grayscale: pixels.PerImage | None
    blur: pixels.PerImage | None
    blur_sigma: pixels.PerImage | None
    solarize: pixels.PerImage | None
    squares: pixels.Squares | None


def _rows(drawn: Any, start: int, stop: int) -> Any:
    """The part of a plan, or of one of its fields, for some of the images."""
    if drawn is None or isinstance(drawn, Tensor):
        return None if drawn is None else drawn[start:stop]
    return type(drawn)(*(_rows(field, start, stop) for field in drawn))


@dataclass(frozen=True)
class Views:
    """Random views of uint8 images: crop, flip, colour jitter, grayscale, blur and options.

    In this order: random resized crop, horizontal flip, colour jitter (probability 0.8, four
    operations in random order), grayscale, Gaussian blur (σ uniform in [0.1, 2]), solarize,
    noise, normalisation, cutout. Every random number is a function of (seed, epoch, index, view,
    operation): the views of a sample do not depend on its batch, its place in the batch, the
    number of processes, or torch's generator.

    Distributions are torchvision's; pixels stay in float from the crop to the end. A call can be
    compiled (``fullgraph=True``) or captured in a CUDA graph (with ``epoch`` as a tensor).
    Images that a loader has cropped already, (b, views, c, size, size), are not cropped again.
    Compiled, or on another device, the draws have the same bits and pixels agree to rounding. On a
    GPU, views up to 64 pixels are rendered by one Triton kernel.

    References:
        Chen et al., 2020, SimCLR, Appendix A, arXiv:2002.05709 (crop, jitter, grayscale, blur);
        Grill et al., 2020, BYOL, Appendix B (solarize).

    Arguments:
        size: Side of the views in pixels.
        seed: Seed of every draw.
        crop: Smallest and largest share of the image's area that a crop takes.
        flip: Probability of mirroring.
        jitter: Strength s, at most 2.5: brightness, contrast and saturation change by up to 0.8·s,
            hue by 0.2·s of the circle.
        grayscale: Probability of removing the colour.
        blur: Probability; ``auto`` is 0.5 from 64 pixels up and 0 below. The kernel is a tenth of
            ``size`` wide.
        solarize: Probability of inverting the levels from 128 up.
        cutout: Probability of a square of half the side being set to the mean.
        noise: Standard deviation of normal noise, in units of the full range of levels.
        mean: Subtracted from values in [0, 1]; one number, or one per channel.
        std: Divisor after that; one number, or one per channel.

    Examples:
        >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> draw = Views(32, seed=0)
        >>> views = draw(images, torch.arange(4), epoch=0)
        >>> views.shape
        torch.Size([2, 4, 3, 32, 32])
        >>> torch.equal(draw(images[2:3], torch.tensor([2]), epoch=0)[:, 0], views[:, 2])
        True
    """

    size: int
    _: KW_ONLY
    seed: int
    crop: tuple[float, float] = (0.08, 1.0)
    flip: float = 0.5
    jitter: float = 0.5
    grayscale: float = 0.2
    blur: float | Literal["auto"] = "auto"
    solarize: float = 0.0
    cutout: float = 0.0
    noise: float = 0.0
    mean: float | Sequence[float] = 0.5
    std: float | Sequence[float] = 0.25

    def __post_init__(self) -> None:
        _check_whole("size", self.size, 1)
        _check_whole("seed", self.seed)
        if not isinstance(self.crop, tuple | list) or not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError(
                f"crop={self.crop!r} must be the least and the largest share of the image's area, "
                "0 < least <= largest <= 1"
            )
        for name in ("flip", "grayscale", "solarize", "cutout", "noise", "jitter", "blur"):
            value, most = getattr(self, name), 2.5 if name == "jitter" else 1.0
            if name == "blur" and value == "auto":
                continue
            if not isinstance(value, int | float) or not 0 <= value <= most:
                raise ValueError(f"{name}={value!r} must be a number from 0 to {most}")
        if self.blur != "auto" and self.blur > 0 and pixels.blur_radius(self.size) == 0:
            raise ValueError(
                f"blur={self.blur} does nothing at size={self.size}; pass blur=0.0, or views of "
                "at least 20 pixels"
            )
        Normalisation(self.mean, self.std)

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        epoch: int | Tensor,
        views: int = 2,
        *,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Tensor:
        """Views of shape (views, b, c, size, size), on the images' device."""
        _check_images(images, views, self.size)
        _check_request(images, indices, epoch, views)
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r} is not a type of views; pass one of {DTYPES}")
        if fused.takes(images, self.size):
            return fused.render(self, images, indices, epoch, views, dtype, channels_last)
        b, c = images.shape[0], images.shape[-3]
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            keys = draws.view_keys(self.seed, epoch, indices, views)
            plan = self.plan(keys, *images.shape[-2:])
            many = b
            if faults.can_raise_now(images):  # on the CPU and not compiled
                many = max(1, CACHED_VALUES // (views * c * self.size**2))
            parts = [
                self._render(images[start : start + many], _rows(plan, start, start + many))
                for start in range(0, b, many)
            ]
            whole = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(dtype)
            if channels_last:
                whole = whole.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
            return whole

    def plan(self, keys: draws.Keys, height: int, width: int) -> Plan:
        """The draws for images of this size."""
        uniforms = draws.draw_uniforms(keys)

        def drawn(place: int, probability: float) -> pixels.PerImage | None:
            return (uniforms[place] < probability).to(torch.float32) if probability else None

        blurred = drawn(draws.BLUR, self.blur_probability)
        least, most = pixels.BLUR_SIGMA
        sigma = least + (most - least) * uniforms[draws.BLUR_SIGMA]
        return Plan(
            keys,
            pixels.draw_boxes(uniforms, height, width, self.crop, self.flip),
            pixels.draw_jitter(uniforms, self.jitter) if self.jitter else None,
            drawn(draws.GRAYSCALE, self.grayscale),
            blurred,
            None if blurred is None else sigma.to(torch.float32),
            drawn(draws.SOLARIZE, self.solarize),
            pixels.draw_squares(uniforms, self.size, self.cutout) if self.cutout else None,
        )

    def boxes(
        self,
        indices: Int64[Tensor, " b"],
        epoch: int,
        heights: Sequence[int],
        widths: Sequence[int],
        views: int = 2,
    ) -> pixels.Boxes:
        """The crops of images of these sizes: those that a call would draw, not mirrored."""
        uniforms = draws.draw_uniforms(draws.view_keys(self.seed, epoch, indices, views))
        height, width = torch.tensor([heights, widths], dtype=torch.float64)[..., None]
        return pixels.draw_boxes(uniforms, height, width, self.crop, flip=0.0)

    def _render(
        self, images: UInt8[Tensor, "b ..."], plan: Plan
    ) -> Float[Tensor, "v b c size size"]:
        """The pixels of a plan."""

        def each(field: pixels.PerImage) -> Float[Tensor, "n 1 1"]:
            return field.reshape(-1, 1, 1)

        if images.ndim == 5:
            planes = pixels.mirror(images, plan.boxes.mirrored)
        else:
            rows = images.permute(0, 2, 1, 3).to(torch.float32).contiguous()
            planes = pixels.crop_and_resize(rows, plan.boxes, self.size)
        if plan.jitter is not None:
            planes = pixels.jitter(planes, plan.jitter)
        if plan.grayscale is not None and planes.shape[0] > 1:
            planes = pixels.grayscale(planes, each(plan.grayscale))
        if plan.blur is not None and plan.blur_sigma is not None:
            planes = pixels.blur(planes, plan.blur_sigma.flatten(), each(plan.blur))
        if plan.solarize is not None:
            planes = pixels.solarize(planes, each(plan.solarize))
        if self.noise:
            planes = pixels.add_noise(planes, plan.keys, self.noise)
        planes = Normalisation(self.mean, self.std).apply(planes)
        if plan.squares is not None:
            planes = pixels.cut_out(planes, plan.squares)
        b, v = plan.keys.shape
        return planes.view(-1, b, v, self.size, self.size).permute(2, 1, 0, 3, 4).contiguous()

    @property
    def blur_probability(self) -> float:
        """The probability of blurring, with ``auto`` resolved."""
        return self.blur if self.blur != "auto" else 0.5 if self.size >= 64 else 0.0


@dataclass(frozen=True)
class ReadyViews(Views):
    """Views (b, 2, ...) that a loader has made of a user's data: a call only arranges them."""

    def __call__(
        self, images: Tensor, *place: Any, dtype: torch.dtype = torch.float32, **options: Any
    ) -> Tensor:
        """The views as (2, b, ...), floating-point ones in the dtype."""
        ready = images.transpose(0, 1)
        return ready.to(dtype) if ready.is_floating_point() else ready


def _check_whole(name: str, value: int, least: int = -(2**63), most: int = 2**64) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}={value!r} must be a whole number from {least} to {most}")


def _check_images(images: Tensor, views: int = 0, size: int = 0) -> None:
    """Whole images, or with ``views`` crops of that ``size``."""
    right = isinstance(images, Tensor) and images.dtype == torch.uint8 and 0 not in images.shape
    if right and images.ndim == 5:
        right = (images.shape[1], *images.shape[3:]) == (views, size, size)
    if not right or images.ndim not in (4, 5) or images.shape[-3] not in (1, 3):
        cropped = f"; or crops of shape (batch, {views}, channels, {size}, {size})" * bool(views)
        raise ValueError(
            f"images is {_described(images)}; pass uint8 levels from 0 to 255 of shape (batch, "
            f"channels, height, width), not empty, with 1 or 3 channels{cropped}"
        )


def _check_request(images: Tensor, indices: Tensor, epoch: int | Tensor, views: int) -> None:
    whole = isinstance(indices, Tensor) and indices.dtype in (torch.int32, torch.int64)
    if not whole or indices.shape != images.shape[:1] or indices.device != images.device:
        raise ValueError(
            f"indices is {_described(indices)}; pass each image's number in its data set, int64 "
            f"of shape ({images.shape[0]},) on {images.device}"
        )
    if isinstance(epoch, Tensor):
        right = not epoch.ndim and epoch.dtype == torch.int64 and epoch.device == images.device
    else:
        right = isinstance(epoch, int | torch.SymInt) and epoch >= 0
    if not right:
        raise ValueError(
            f"epoch is {_described(epoch)}; pass a whole number from 0, or a zero-dimensional "
            f"int64 tensor on {images.device}"
        )
    _check_whole("views", views, 1, draws.MOST_VIEWS)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
    return repr(value)
