"""The kernel of the views: the plain path's draws bit for bit, its pixels to rounding.

Without a GPU the kernel runs in Triton's interpreter, on few and small pictures.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flatnce.pretrain.data.augmentation import draws, fused
from flatnce.pretrain.data.views import Views
from pictures import BLENDS, EVERYTHING, pictures

triton = pytest.importorskip("triton", reason="the kernel needs Triton")
tl = triton.language
kernel = pytest.importorskip("flatnce.pretrain.data.augmentation.kernels")
GRAYSCALE_PLACE, SOLARIZE_PLACE = kernel.GRAYSCALE_PLACE, kernel.SOLARIZE_PLACE
draw_blur, draw_box, draw_jitter = kernel.draw_blur, kernel.draw_box, kernel.draw_jitter
draw_square, drawn, view_key = kernel.draw_square, kernel.drawn, kernel.view_key

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JITTER_ONLY = {"flip": 0.0, "grayscale": 0.0}

# Views, shape of the images, and how many views of each: the interpreter takes its time.
SETTINGS = {
    "default": (Views(12, seed=1), (2, 3, 12, 12), 2),
    "one channel, odd size": (Views(7, seed=2), (3, 1, 7, 7), 1),
    "smaller than the image": (Views(9, seed=3), (2, 3, 16, 16), 1),
    "larger than the image": (Views(17, seed=5), (2, 3, 6, 9), 1),
    "wide image": (Views(8, seed=6), (2, 3, 4, 11), 1),
    "one pixel": (Views(1, seed=7), (2, 3, 2, 2), 1),
    "strong jitter": (Views(6, seed=8, jitter=2.5, **JITTER_ONLY), (5, 3, 6, 6), 1),
    "always grey": (Views(6, seed=9, jitter=0.0, grayscale=1.0), (2, 3, 6, 6), 1),
    "finetune": (
        Views(6, seed=10, crop=(0.5, 0.6), flip=1.0, jitter=0.0, grayscale=0.0),
        (2, 3, 6, 6),
        1,
    ),
    "noise": (Views(6, seed=11, noise=0.2, mean=(0.1, 0.5, 0.7), std=0.3), (2, 3, 6, 6), 1),
    "cutout": (Views(7, seed=13, cutout=1.0, std=(0.2, 0.3, 0.25)), (2, 3, 7, 7), 1),
}
# A pixel on solarize's threshold, or on the half of the blur's grid, may fall to the other side.
WITH_STEPS = {
    "solarize": (Views(6, seed=15, solarize=1.0), (2, 3, 6, 6), 1),
    "blur": (Views(20, seed=16, blur=1.0), (2, 3, 20, 20), 1),
    "everything": (Views(33, seed=17, **EVERYTHING), (2, 3, 40, 37), 2),
    "everything on one channel": (Views(21, seed=18, **EVERYTHING), (3, 1, 21, 21), 1),
}


def batch(shape):
    images = pictures(*shape)
    return images.to(DEVICE), (1000 - 7 * torch.arange(len(images))).to(DEVICE)


def plain(draw, monkeypatch, *arguments, **named):
    """The views without the kernel."""
    with monkeypatch.context() as patch:
        patch.setattr(fused, "FOUND", False)
        return draw(*arguments, **named)


# ---- draws


FIELDS = (
    *("top", "left", "height", "width", "mirrored"),
    *("brightness_slot", "contrast_slot", "saturation_slot"),
    *("brightness", "contrast", "saturation"),
    *("cut_top", "cut_left", "cut"),
    *("jittered", "hue", "grayscale", "blurred", "sigma", "solarized"),
)
"""What :func:`draws_kernel` writes of a view, in this order."""

MANY = 256
"""Views whose draws are recorded by one program."""


@triton.jit(do_not_specialize=["seed", "views", "count"])
def draws_kernel(
    indices,
    epoch,
    out,
    seed,
    views,
    count,
    SHAPE: tl.constexpr,
    CROP: tl.constexpr,
    JITTER: tl.constexpr,
    GRAYSCALE: tl.constexpr,
    BLUR: tl.constexpr,
    SOLARIZE: tl.constexpr,
    CUTOUT: tl.constexpr,
    MANY: tl.constexpr,
):
    """What is drawn for every view, by the functions that the views are made with."""
    number = tl.program_id(0) * MANY + tl.arange(0, MANY)[:, None]
    inside, target = number < count, out + number
    index = tl.load(indices + number // views, mask=inside, other=0)
    key = view_key(seed, tl.load(epoch), index, number % views)
    box = draw_box(key, SHAPE, CROP, True)
    jittered, slots, changes, hue = draw_jitter(key, JITTER)
    blurred, sigma = draw_blur(key, BLUR)
    square = draw_square(key, SHAPE, CUTOUT)
    for field in tl.static_range(5):
        tl.store(target + field * count, box[field].to(tl.float64), mask=inside)
    for field in tl.static_range(3):
        tl.store(target + (5 + field) * count, slots[field].to(tl.float64), mask=inside)
        tl.store(target + (8 + field) * count, changes[field], mask=inside)
        tl.store(target + (11 + field) * count, square[field].to(tl.float64), mask=inside)
    tl.store(target + 14 * count, jittered.to(tl.float64), mask=inside)
    tl.store(target + 15 * count, hue, mask=inside)
    grayscale = drawn(key, GRAYSCALE_PLACE, GRAYSCALE)
    tl.store(target + 16 * count, grayscale.to(tl.float64), mask=inside)
    tl.store(target + 17 * count, blurred.to(tl.float64), mask=inside)
    tl.store(target + 18 * count, sigma.to(tl.float64), mask=inside)
    solarized = drawn(key, SOLARIZE_PLACE, SOLARIZE)
    tl.store(target + 19 * count, solarized.to(tl.float64), mask=inside)


def record_draws(settings, shape, indices, epoch, views):
    """What the kernel draws, by the names of ``FIELDS``."""
    count = shape[0] * views
    out = torch.empty(len(FIELDS), shape[0], views, dtype=torch.float64, device=indices.device)
    given = fused.constants(fused.setting_numbers(settings, shape[1]), settings.size, *shape[1:])
    used = {name: given[name] for name in draws_kernel.arg_names if name in given}
    seed = draws.signed(settings.seed)
    draws_kernel[(-(-count // MANY),)](
        indices, epoch, out, seed, views, count, **used, MANY=MANY, enable_fp_fusion=False
    )
    return dict(zip(FIELDS, out, strict=True))


@pytest.mark.parametrize(
    ("size", "seed", "epoch", "first"),
    [
        ((32, 32), 0, 0, 0),
        ((28, 28), -7, 3, 2**40),
        ((40, 37), 2**64 - 1, 2**33, 50_000),
        ((10, 40), 1, 1, 0),  # often no box fits
        ((3, 2), 2**31, 7, 0),
    ],
)
def test_draws_are_the_plain_paths(size, seed, epoch, first):
    draw = Views(24, seed=seed, **EVERYTHING)
    indices = first + 3 * torch.arange(512, device=DEVICE)
    now = torch.tensor(epoch, device=DEVICE)
    shape = torch.Size((512, 3, *size))
    found = record_draws(draw, shape, indices, now, 2)
    plan = draw.plan(draws.view_keys(seed, now, indices, 2), *size)
    expected = dict(zip(("top", "left", "height", "width", "mirrored"), plan.boxes, strict=True))
    expected |= {"grayscale": plan.grayscale, "blurred": plan.blur, "solarized": plan.solarize}
    expected |= dict(zip(("cut_top", "cut_left", "cut"), plan.squares, strict=True))
    expected |= {"sigma": plan.blur_sigma, "hue": plan.jitter.hue}
    found["hue"] = found["hue"] * found["jittered"]
    for name, values in expected.items():
        assert torch.equal(found[name].to(torch.float32), values), name
    slots = [found[f"{name}_slot"][..., None] == torch.arange(6, device=DEVICE) for name in BLENDS]
    changes = [(found[name] * found["jittered"])[..., None] for name in BLENDS]
    brightness, contrast, saturation = (s * c for s, c in zip(slots, changes, strict=True))
    scale = 1 + (brightness + contrast + saturation)
    assert torch.equal(scale.to(torch.float32), plan.jitter.scale)
    assert torch.equal(-saturation.to(torch.float32), plan.jitter.luminance)
    assert torch.equal(-contrast.to(torch.float32), plan.jitter.mean)


def test_probabilities_are_compared_in_double_precision():
    # The draw lies between a probability and the float32 next to it: rounding would decide.
    indices = torch.arange(1, device=DEVICE)
    now = torch.tensor(0, device=DEVICE)
    uniforms = draws.draw_uniforms(draws.view_keys(0, now, indices, 1))
    exact = uniforms[draws.GRAYSCALE].item()
    for probability, expected in ((exact, 0.0), (exact * (1 + 2**-50), 1.0)):
        settings = Views(8, seed=0, grayscale=probability)
        found = record_draws(settings, torch.Size((1, 3, 8, 8)), indices, now, 1)
        assert found["grayscale"].item() == expected


# ---- pixels


@pytest.mark.parametrize("name", SETTINGS | WITH_STEPS)
def test_views_are_the_plain_paths_to_rounding(name, monkeypatch):
    draw, shape, views = (SETTINGS | WITH_STEPS)[name]
    images, indices = batch(shape)
    expected = plain(draw, monkeypatch, images, indices, 4, views)
    found = fused.render(draw, images, indices, 4, views)
    assert found.shape == expected.shape and found.is_contiguous()
    difference = (found - expected).abs()
    assert difference.max() < (0.05 if name in WITH_STEPS else 1e-5)
    assert (difference > 1e-5).double().mean() < 1e-3


@pytest.mark.parametrize("count", [1, 3])
def test_a_view_does_not_depend_on_the_batch_the_count_or_how_the_epoch_is_given(count):
    draw, shape, _ = SETTINGS["default"]
    images, indices = batch(shape)
    epoch = torch.tensor(2, device=DEVICE)
    whole = fused.render(draw, images, indices, 2, views=2)
    other = images[1:].contiguous(memory_format=torch.channels_last)
    some = fused.render(draw, other, indices[1:].to(torch.int32), epoch, count)
    both = min(count, 2)
    assert torch.equal(some[:both, 0], whole[:both, 1])


# ---- types and memory orders, on both paths


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_type_and_memory_order_change_nothing_else(channels, dtype, monkeypatch):
    draw = Views(6, seed=1)
    images, indices = batch((1, channels, 6, 6))
    with pytest.raises(ValueError, match=r"dtype=torch.float64 .* torch.bfloat16"):
        draw(images, indices, 0, dtype=torch.float64)
    expected = plain(draw, monkeypatch, images, indices, 0)
    # The interpreter does not round bfloat16 to the nearest.
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}[dtype]
    for views in (
        plain(draw, monkeypatch, images, indices, 0, dtype=dtype, channels_last=True),
        fused.render(draw, images, indices, 0, 2, dtype, channels_last=True),
    ):
        assert views.dtype == dtype
        flat = views.flatten(0, 1)
        assert flat.is_contiguous(memory_format=torch.channels_last)
        assert flat.data_ptr() == views.data_ptr()
        assert views.permute(0, 1, 3, 4, 2).is_contiguous()
        torch.testing.assert_close(views.float(), expected, rtol=0, atol=tolerance)


# ---- which path is taken


@pytest.mark.parametrize(
    ("device", "size", "extent", "expected"),
    [
        ("cuda", 32, (32, 32), True),
        ("cuda", 65, (65, 65), False),
        ("cuda", 16, (64, 64), True),
        ("cuda", 16, (65, 64), False),
        ("cpu", 32, (32, 32), False),
    ],
)
def test_the_kernel_takes_small_views_on_a_gpu(device, size, extent, expected, monkeypatch):
    with FakeTensorMode():
        images = torch.empty(2, 3, *extent, dtype=torch.uint8, device=device)
    assert fused.takes(images, size) is expected
    monkeypatch.setattr(fused, "FOUND", False)  # without Triton
    assert not fused.takes(images, size)


# ---- the operator


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_operator_is_registered_rightly(channels_last):
    images, indices = batch((1, 3, 6, 6))
    numbers = fused.setting_numbers(Views(6, seed=0), 3)
    rest = (0, numbers, 6, 1, torch.float32, channels_last)
    arguments = (images, indices, torch.tensor(0, device=DEVICE), *rest)
    torch.library.opcheck(fused._render, arguments, test_utils=("test_schema", "test_faketensor"))


# ---- on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(512, 3, 32, 32), (512, 1, 28, 28)], ids=str)
def test_thousands_of_views_are_the_plain_paths_on_a_gpu(shape, monkeypatch):
    images = torch.randint(256, shape, dtype=torch.uint8, device="cuda")
    indices = torch.arange(len(images), device="cuda")
    draw = Views(shape[-1], seed=0)
    expected = plain(draw, monkeypatch, images, indices, 1)
    found = draw(images, indices, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(draw(images, indices, 1), found)
    half = draw(images, indices, 1, dtype=torch.bfloat16, channels_last=True)
    assert torch.equal(half, found.to(torch.bfloat16))
