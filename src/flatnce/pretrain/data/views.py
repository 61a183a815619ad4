"""SimCLR's augmentation, batched on the device: an independent draw for every image and view."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import faults
from flatnce.pretrain.data.augmentation import draws, fused
from flatnce.pretrain.data.augmentation.arguments import (
    check_crop,
    check_images,
    check_probability,
    check_range,
    check_request,
    check_size,
)
from flatnce.pretrain.data.augmentation.blur import blur, blur_radius
from flatnce.pretrain.data.augmentation.colour import (
    Jitter,
    draw_jitter,
    grayscale,
    jitter,
    solarize,
)
from flatnce.pretrain.data.augmentation.corruption import Squares, add_noise, cut_out, draw_squares
from flatnce.pretrain.data.augmentation.crop import Boxes, crop_and_resize, draw_boxes
from flatnce.pretrain.data.augmentation.fused_settings import Settings
from flatnce.pretrain.data.augmentation.normalise import Normalisation
from flatnce.pretrain.data.centre_crop import CentreCrop

JITTER_PROBABILITY = 0.8
JITTER_AMOUNT = (0.8, 0.8, 0.8, 0.2)
"""Of brightness, contrast, saturation and hue, at strength 1."""

BLUR_FROM = 64
BLUR_PROBABILITY = 0.5
BLUR_SIGMA = (0.1, 2.0)

CACHED_VALUES = 2**19
"""Values of a chunk on the CPU: two megabytes a tensor, so that a chunk's few tensors stay in the
cache while some hundred operations pass over them. Elsewhere the whole batch is one chunk."""


class Plan(NamedTuple):
    """Everything drawn for a batch: what will be done to every image and view.

    None stands for what is switched off; zero for what was not drawn.
    """

    keys: draws.Keys
    boxes: Boxes
    jitter: Jitter | None
    grayscale: Float[Tensor, "b v"] | None
    blur: Float[Tensor, "b v"] | None
    blur_sigma: Float[Tensor, "b v"] | None
    solarize: Float[Tensor, "b v"] | None
    squares: Squares | None

    def rows(self, start: int, stop: int) -> "Plan":
        """The plan of some of the images."""
        fields: list[Any] = []
        for field in self:
            if isinstance(field, Tensor):
                fields.append(field[start:stop])
            else:
                fields.append(None if field is None else field.rows(start, stop))
        return Plan(*fields)


@dataclass(frozen=True)
class Views:
    """Random views of uint8 images: crop, flip, colour jitter, grayscale, blur and options.

    In this order: random resized crop, horizontal flip, colour jitter (probability 0.8, four
    operations in random order), grayscale, Gaussian blur (σ uniform in [0.1, 2]), solarize,
    noise, normalisation, cutout. Every random number is a function of (seed, epoch, index, view,
    operation), see :mod:`flatnce.pretrain.data.augmentation.draws`: a sample's views do not depend on the
    batch it comes in, its place there, the number of processes, or torch's generator.

    Distributions are torchvision's; pixels stay in float from the crop to the end, where Pillow
    rounds to whole levels after every operation. No host read, static shapes: a call can be
    compiled (``fullgraph=True``) or captured in a CUDA graph (with ``epoch`` as a tensor).
    Compiled, or on another device, the draws have the same bits and pixels agree to rounding.
    On a GPU views up to 64 pixels are one launch, see :mod:`flatnce.pretrain.data.augmentation.fused`.

    References:
        Chen et al., 2020, "A simple framework for contrastive learning of visual representations",
        Appendix A, https://arxiv.org/abs/2002.05709 (crop, jitter, grayscale, blur);
        Grill et al., 2020, "Bootstrap your own latent", Appendix B (solarize).

    Arguments:
        size: Side of the views in pixels.
        seed: Of every draw.
        crop: Least and largest share of the image's area that a crop takes.
        flip: Probability of mirroring.
        jitter: Strength s: brightness, contrast and saturation change by up to 0.8·s, hue by
            0.2·s of the circle. At most 2.5; 0 for none.
        grayscale: Probability.
        blur: Probability; ``auto`` is 0.5 from 64 pixels up and 0 below. The kernel is a tenth of
            ``size`` wide.
        solarize: Probability of inverting the levels from 128 up.
        cutout: Probability of a square of half the side being set to the mean.
        noise: Standard deviation of normal noise, in units of the full range of levels.
        mean: Subtracted from values in [0, 1]; one number, or one a channel.
        std: Divided by.

    Examples:
        >>> import torch
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
        """Check the settings."""
        check_size("size", self.size)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed={self.seed!r} must be a whole number")
        check_crop(self.crop)
        for name in ("flip", "grayscale", "solarize", "cutout"):
            check_probability(name, getattr(self, name))
        check_range("jitter", self.jitter, 0.5 / JITTER_AMOUNT[-1])
        check_range("noise", self.noise, 1.0)
        if self.blur != "auto":
            check_probability("blur", self.blur)
            if self.blur > 0 and blur_radius(self.size) == 0:
                raise ValueError(
                    f"blur={self.blur} does nothing at size={self.size}: a tenth of it is a "
                    "kernel of one pixel; pass blur=0.0, or views of at least 20 pixels"
                )
        Normalisation(self.mean, self.std)

    @staticmethod
    def evaluation(
        size: int,
        resize: int | None = None,
        *,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.25,
    ) -> CentreCrop:
        """What evaluation sees: the resized middle of the picture, nothing random.

        Arguments:
            size: Side of the result.
            resize: What the shorter side is resized to first; ``size`` by default.
            mean: As for the views.
            std: As for the views.
        """
        return CentreCrop(size, resize, mean=mean, std=std)

    @classmethod
    def finetune(
        cls,
        size: int,
        *,
        seed: int,
        crop: tuple[float, float] = (0.08, 1.0),
        flip: float = 0.5,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.25,
    ) -> "Views":
        """Random resized crops and flips only; call it with ``views=1``.

        Arguments:
            size: Side of the result.
            seed: As for the views.
            crop: As for the views.
            flip: As for the views.
            mean: As for the views.
            std: As for the views.
        """
        plain = {"jitter": 0.0, "grayscale": 0.0, "blur": 0.0}
        return cls(size, seed=seed, crop=crop, flip=flip, mean=mean, std=std, **plain)

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
        check_images(images)
        check_request(images, indices, epoch, views)
        fused.check_dtype(dtype)
        if fused.takes(images, self.size):
            return fused.render(
                self._settings(), images, indices, epoch, views, dtype, channels_last
            )
        b, c, h, w = images.shape
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            plan = self.plan(draws.view_keys(self.seed, epoch, indices, views), h, w)
            pixels = images.permute(0, 2, 1, 3).to(torch.float32).contiguous()
            many = b
            if faults.can_raise_now(images):  # on the CPU and not compiled
                many = max(1, CACHED_VALUES // (views * c * self.size**2))
            parts = [
                self._render(pixels[start : start + many], plan.rows(start, start + many))
                for start in range(0, b, many)
            ]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            return fused.arrange(whole, dtype, channels_last)

    def plan(self, keys: draws.Keys, height: int, width: int) -> Plan:
        """What will be done to images of this size.

        Arguments:
            keys: From :func:`~flatnce.pretrain.data.augmentation.draws.view_keys`.
            height: Height of the images.
            width: Width of the images.
        """
        uniforms = draws.draw_uniforms(keys)

        def drawn(place: int, probability: float) -> Float[Tensor, "b v"] | None:
            return (uniforms[place] < probability).to(torch.float32) if probability else None

        blurred = drawn(draws.BLUR, self._blur_probability())
        least, most = BLUR_SIGMA
        sigma = least + (most - least) * uniforms[draws.BLUR_SIGMA]
        return Plan(
            keys,
            draw_boxes(uniforms, height, width, self.crop, self.flip),
            draw_jitter(uniforms, self._amount(), JITTER_PROBABILITY) if self.jitter else None,
            drawn(draws.GRAYSCALE, self.grayscale),
            blurred,
            None if blurred is None else sigma.to(torch.float32),
            drawn(draws.SOLARIZE, self.solarize),
            draw_squares(uniforms, self.size, self.cutout) if self.cutout else None,
        )

    def _render(
        self, pixels: Float[Tensor, "b h c w"], plan: Plan
    ) -> Float[Tensor, "v b c size size"]:
        """The pixels of a plan."""

        def each(field: Float[Tensor, "b v"]) -> Float[Tensor, "n 1 1"]:
            return field.reshape(-1, 1, 1)

        planes = crop_and_resize(pixels, plan.boxes, self.size)
        if plan.jitter is not None:
            planes = jitter(planes, plan.jitter)
        if plan.grayscale is not None and planes.shape[0] > 1:
            planes = grayscale(planes, each(plan.grayscale))
        if plan.blur is not None and plan.blur_sigma is not None:
            planes = blur(planes, plan.blur_sigma.flatten(), each(plan.blur))
        if plan.solarize is not None:
            planes = solarize(planes, each(plan.solarize))
        if self.noise:
            planes = add_noise(planes, plan.keys, self.noise)
        planes = Normalisation(self.mean, self.std)(planes)
        if plan.squares is not None:
            planes = cut_out(planes, plan.squares)
        b, v = plan.keys.shape
        return planes.view(-1, b, v, self.size, self.size).permute(2, 1, 0, 3, 4).contiguous()

    def _settings(self) -> Settings:
        colour = (JITTER_PROBABILITY if self.jitter else 0.0, self._amount(), self.grayscale)
        rest: tuple[Any, ...] = (self.solarize, self.cutout, self.noise, self.mean, self.std)
        blur = (self._blur_probability(), BLUR_SIGMA)
        return Settings(self.size, self.seed, self.crop, self.flip, *colour, *blur, *rest)

    def _amount(self) -> tuple[float, float, float, float]:
        brightness, contrast, saturation, hue = (self.jitter * full for full in JITTER_AMOUNT)
        return brightness, contrast, saturation, hue

    def _blur_probability(self) -> float:
        if self.blur == "auto":
            return BLUR_PROBABILITY if self.size >= BLUR_FROM else 0.0
        return self.blur
