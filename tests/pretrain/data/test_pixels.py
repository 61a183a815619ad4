"""Every operation's pixels beside torchvision's, given the same parameters.

Tolerances are in units of the full range: one of 255 levels is 0.0039.
"""

import pytest
import torch

from flatnce.pretrain.data.augmentation.pixels import (
    GRID,
    Boxes,
    Squares,
    blend,
    blur,
    blur_radius,
    blur_weights,
    crop_and_resize,
    cut_out,
    filter_separably,
    grayscale,
    shift_hue,
    solarize,
)
from pictures import pictures

pytest.importorskip("torchvision", reason="the reference; pip install 'flatnce[train]'")
from torchvision.transforms.v2 import functional as TF

LEVEL = 1 / 255
CROP_TOLERANCE = 0.4 * LEVEL  # seen: 0.07 without downscaling, 0.35 with
BLUR_TOLERANCE = 0.4 * LEVEL  # seen: 0.31, on white noise
EXACT = 2e-7
N = 24

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FACTORS = torch.linspace(0.0, 1.9, N)
NOTHING, EVERYWHERE = torch.zeros(N, 1, 1), torch.ones(N, 1, 1)


def planes_of(images):
    return (images / 255).transpose(0, 1).contiguous()


@pytest.fixture(scope="module")
def images():
    """Pictures, and some that hue finds awkward: grey, black, white, saturated, two equal tops."""
    found = pictures(N, height=12, width=10)
    found[0], found[1], found[2] = 77, 0, 255
    found[3] = (found[3] > 127) * torch.tensor(255, dtype=torch.uint8)
    found[4, 1] = found[4, 0]
    found[5, 2] = 0
    return found


def largest_difference(planes, images, reference):
    expected = torch.stack([reference(image / 255, i) for i, image in enumerate(images)])
    return (planes.transpose(0, 1) - expected).abs().max().item()


def random_boxes(n, height, width):
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(5, n, 1, generator=generator)
    h, w = (1 + (u[0] * height).floor()), (1 + (u[1] * width).floor())
    h[0], w[0] = height, width  # the whole image
    top, left = (u[2] * (height - h + 1)).floor(), (u[3] * (width - w + 1)).floor()
    return Boxes(top, left, h, w, (u[4] < 0.5).float())


def crops_of(images, boxes, size, resized_crop):
    found = []
    for image, top, left, h, w, mirrored in zip(images, *boxes, strict=True):
        crop = resized_crop(image, int(top), int(left), int(h), int(w), [size, size])
        found.append(crop.flip(-1) if mirrored else crop)
    return torch.stack(found)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 32), (20, 37, 32), (50, 41, 19), (96, 120, 32)]
)
def test_crop_is_torchvisions_antialiased_bilinear(height, width, size, channels):
    images, boxes = pictures(N, channels, height, width), random_boxes(N, height, width)

    def resized_crop(image, *where):
        return TF.resized_crop(image.float(), *where, antialias=True) / 255

    pixels = images.permute(0, 2, 1, 3).float()
    found = crop_and_resize(pixels, boxes, size).transpose(0, 1)
    expected = crops_of(images, boxes, size, resized_crop)
    assert (found - expected).abs().max() < CROP_TOLERANCE


# ---- sums are exact, so their order cannot matter


@pytest.mark.parametrize("held", [torch.float32, pytest.param(torch.float16, marks=needs_cuda)])
@pytest.mark.parametrize(("most", "refine"), [(255, 8), (GRID, 1)])
def test_filters_are_whole_number_arithmetic(most, refine, held):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(most + 1, (2, 30, 3, 40), generator=generator)
    rows, columns = (
        torch.randint(GRID // side, (2, 3, 20, side), generator=generator) for side in (30, 40)
    )
    across = torch.einsum("bvyh,bhcw->bvycw", rows, pixels)
    across = (across.double() * refine / GRID).round().long()
    expected = torch.einsum("bvycw,bvxw->cbvyx", across, columns).flatten(1, 2)
    device = "cpu" if held == torch.float32 else "cuda"  # only a GPU multiplies float16 exactly
    factors = (part.to(device, torch.float32) for part in (rows, columns))
    found = filter_separably(pixels.to(device, held), *factors, refine)
    assert torch.equal(found.cpu().double() * GRID, expected.double())


BLENDS = {
    "brightness": lambda f: (f, NOTHING, NOTHING),
    "contrast": lambda f: (f, NOTHING, 1 - f),
    "saturation": lambda f: (f, 1 - f, NOTHING),
}


@pytest.mark.parametrize(
    ("name", "tolerance"), [("brightness", EXACT), ("contrast", 7e-5), ("saturation", EXACT)]
)
def test_blend_is_torchvisions(name, tolerance, images):
    found = blend(planes_of(images), *BLENDS[name](FACTORS[:, None, None]))
    adjust = getattr(TF, f"adjust_{name}")
    # The mean luminance is rounded to 2^-14 before it is taken: 6e-5 at factor 0 or 2.
    difference = largest_difference(
        found, images, lambda image, i: adjust(image, FACTORS[i].item())
    )
    assert difference <= tolerance


@pytest.mark.parametrize("shift", [-0.5, -0.31, -0.1, 1e-3, 0.05, 0.2, 1 / 3, 0.5])
def test_hue_is_torchvisions(shift, images):
    found = shift_hue(planes_of(images), torch.full((N, 1, 1), shift))
    difference = largest_difference(found, images, lambda image, _: TF.adjust_hue(image, shift))
    assert difference < 5e-6


def test_grayscale_and_solarize_are_torchvisions_at_the_threshold_too(images):
    images = images.clone()
    images[6, :, 0], images[6, :, 1] = 127, 128
    found = grayscale(planes_of(images), EVERYWHERE)
    assert largest_difference(found, images, lambda x, _: TF.rgb_to_grayscale(x, 3)) <= EXACT
    found = solarize(planes_of(images), EVERYWHERE)
    assert largest_difference(found, images, lambda x, _: TF.solarize(x, 128 / 255)) <= EXACT


@pytest.mark.parametrize("size", [20, 64, 75])
def test_blur_is_torchvisions(size):
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(N, 3, size, size, generator=generator)
    sigma = torch.linspace(0.1, 2.0, N)
    kernel = [2 * blur_radius(size) + 1] * 2
    found = blur(noise.transpose(0, 1).contiguous(), sigma, EVERYWHERE).transpose(0, 1)
    expected = torch.stack(
        [TF.gaussian_blur(x, kernel, [s.item()] * 2) for x, s in zip(noise, sigma, strict=True)]
    )
    assert (found - expected).abs().max() < BLUR_TOLERANCE
    weights = blur_weights(sigma, 4, size)
    assert torch.equal(weights.sum(dim=2), torch.full((N, size), float(GRID)))


OPTIONAL = {
    "grayscale": grayscale,
    "solarize": solarize,
    "blur": lambda planes, applied: blur(planes, torch.full((N,), 1.5), applied),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_operation_not_drawn_leaves_every_bit(name):
    images = pictures(N, height=24)
    applied = torch.zeros(N, 1, 1)
    applied[::2] = 1
    planes = planes_of(images)
    found = OPTIONAL[name](planes, applied)
    assert torch.equal(found[:, 1::2], planes[:, 1::2])
    assert not torch.equal(found[:, ::2], planes[:, ::2])
    assert torch.equal(blend(planes, EVERYWHERE, NOTHING, NOTHING), planes)


def test_cutout_clears_its_square_and_nothing_else():
    planes = torch.ones(3, 2, 10, 10)
    squares = Squares(*(torch.tensor([[value], [value]]) for value in (2.0, -3.0, 1.0)))
    squares.applied[1] = 0.0
    found = cut_out(planes, squares)
    expected = torch.ones(3, 2, 10, 10)
    expected[:, 0, 2:7, 0:2] = 0  # half the side is 5; columns -3 to 1 hang over the border
    assert torch.equal(found, expected)
