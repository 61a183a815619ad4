"""The random numbers: the published function, and the distributions torchvision draws from.

Statistics have fixed seeds, so each passes or fails for good. Thresholds are those of p = 0.001:
two-sample Kolmogorov-Smirnov D < 1.95·sqrt(1/n + 1/m), chi-square below its 99.9 % point,
rates and correlations within 3.3 standard errors.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from flatnce.pretrain.data import permutation
from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.pixels import draw_boxes, draw_jitter, draw_squares
from flatnce.pretrain.data.views import Views
from pictures import BLENDS, decode

OURS, THEIRS = 40_000, 8_000
ERRORS = 3.3


GAMMA = 0x9E3779B97F4A7C15


def splitmix64(state):
    """The published generator, in Python's integers."""
    mask = 2**64 - 1
    while True:
        state = (state + GAMMA) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def nth(state, number):
    """Word ``number`` of a stream; that of -1 is the state itself, mixed."""
    return next(splitmix64(state + number * GAMMA))


def uniforms_of(count, views=1, seed=0, epoch=0):
    return draws.draw_uniforms(draws.view_keys(seed, epoch, torch.arange(count), views))


@pytest.fixture(scope="module")
def uniforms():
    return uniforms_of(OURS)


def ks_limit(n, m=math.inf):
    return 1.95 * math.sqrt(1 / n + 1 / m)


def distance(ours, theirs):
    """Kolmogorov-Smirnov's D and its limit."""
    ours, theirs = np.asarray(ours).ravel(), np.asarray(theirs).ravel()
    return stats.ks_2samp(ours, theirs).statistic, ks_limit(len(ours), len(theirs))


# ---- the generator


def test_words_are_the_published_ones():
    # The first outputs for seed 1234567, as printed with the reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = draws.word(torch.tensor(1234567), torch.arange(3)).tolist()
    assert [word % 2**64 for word in found] == published


@pytest.mark.parametrize(
    ("seed", "epoch", "index", "view"), [(0, 0, 0, 0), (7, 3, 49, 1), (2**64 - 1, 1, 20, 0)]
)
def test_a_draw_is_a_function_of_seed_epoch_index_and_view(seed, epoch, index, view):
    key = nth(nth(seed, epoch), 256 * index + view)
    expected = [nth(key, place) / 2**64 for place in range(draws.PLACES)]
    keys = draws.view_keys(seed, epoch, torch.tensor([5, index]), views=2)
    found = draws.draw_uniforms(keys)[:, 1, view]
    # The test keeps all 64 bits, the draw the upper 53.
    assert found.tolist() == pytest.approx(expected, rel=0, abs=2.0**-53)


def test_a_permutation_sorts_the_samples_by_their_words():
    state = 0
    for part in (2021, 7):
        state = nth((state + GAMMA) % 2**64 ^ part, -1)
    assert permutation(50, 2021, 7).tolist() == sorted(range(50), key=partial(nth, state))


def test_uniforms_are_uniform_at_every_place(uniforms):
    worst = max(stats.kstest(place.numpy().ravel(), "uniform").statistic for place in uniforms)
    # The largest of 39: the threshold is that of p = 0.001/39.
    assert worst < 2.4 / math.sqrt(OURS)


def test_normals_are_normal():
    normals = draws.draw_normals(draws.view_keys(0, 0, torch.arange(40), 2), 500)
    assert stats.kstest(normals.numpy().ravel(), "norm").statistic < ks_limit(normals.numel())
    assert normals.abs().max() < 7


# ---- independence


def across(axis):
    """Two equally shaped sets of draws that differ in one part of the key only."""
    found = uniforms_of(4000, views=2)
    return {
        "operations": (found[:-1], found[1:]),
        "images": (found[:, :-1], found[:, 1:]),
        "views": (found[..., 0], found[..., 1]),
        "epochs": (found, uniforms_of(4000, views=2, epoch=1)),
        "seeds": (found, uniforms_of(4000, views=2, seed=1)),
    }[axis]


def correlated(first, second):
    """Whether quarters of [0, 1) go together more often than chance allows."""
    cells = 4 * (4 * first).long() + (4 * second).long()
    table = cells.flatten().bincount(minlength=16).numpy()
    expected = table.sum() / 16
    return ((table - expected) ** 2 / expected).sum() > stats.chi2.ppf(0.999, 15)


@pytest.mark.parametrize("axis", ["operations", "images", "views", "epochs", "seeds"])
def test_draws_are_independent_across(axis):
    assert not correlated(*across(axis))


# ---- distributions, beside torchvision's


@pytest.fixture(scope="module")
def transforms():
    return pytest.importorskip("torchvision.transforms", reason="pip install 'flatnce[train]'")


CROPS = {
    "square": (32, 32, (0.08, 1.0)),
    "wide, often the fallback": (20, 60, (0.3, 1.0)),
    "tall, nearly whole": (48, 40, (0.9, 1.0)),
}
READINGS = {
    "top": lambda top, left, h, w: top,
    "left": lambda top, left, h, w: left,
    "area": lambda top, left, h, w: h * w,
    "ratio": lambda top, left, h, w: w / h,
    "middle": lambda top, left, h, w: (top + h / 2) * (left + w / 2),
}


@pytest.fixture(scope="module")
def boxes(uniforms, transforms):
    found = {}
    for name, (height, width, scale) in CROPS.items():
        torch.manual_seed(0)
        image = torch.empty(1, height, width)
        theirs = [
            transforms.RandomResizedCrop.get_params(image, scale, (3 / 4, 4 / 3))
            for _ in range(THEIRS)
        ]
        ours = draw_boxes(uniforms, height, width, scale, 0.5)
        found[name] = (torch.stack(ours[:4]).flatten(1).double(), torch.tensor(theirs).double().T)
    return found


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("crop", CROPS)
def test_boxes_are_distributed_as_torchvisions(crop, reading, boxes):
    ours, theirs = boxes[crop]
    found, limit = distance(READINGS[reading](*ours), READINGS[reading](*theirs))
    assert found < limit


@pytest.mark.parametrize("crop", CROPS)
def test_boxes_lie_inside_the_image(crop, boxes):
    height, width, _ = CROPS[crop]
    top, left, h, w = boxes[crop][0]
    assert (top >= 0).all() and (left >= 0).all() and (h >= 1).all() and (w >= 1).all()
    assert (top + h <= height).all() and (left + w <= width).all()


AMOUNT = (0.4, 0.4, 0.4, 0.1)  # at strength 0.5
COUNT = 6000


@pytest.fixture(scope="module")
def ours_and_theirs(uniforms, transforms):
    """Factors by name, and the permutations, of both."""
    applied = uniforms[:, uniforms[draws.JITTER, :, 0] < 0.8]
    jitter = draw_jitter(applied[:, :COUNT], 0.5)
    ours = [decode(jitter, i, 0) for i in range(COUNT)]
    torch.manual_seed(0)
    ranges = [(1 - a, 1 + a) for a in AMOUNT[:3]] + [(-AMOUNT[3], AMOUNT[3])]
    theirs = [transforms.ColorJitter.get_params(*ranges) for _ in range(COUNT)]
    return ours, theirs


@pytest.mark.parametrize(("place", "name"), list(enumerate([*BLENDS, "hue"])))
def test_factors_are_distributed_as_torchvisions(place, name, ours_and_theirs):
    ours, theirs = ours_and_theirs
    found, limit = distance(
        [dict(operations)[name] for operations in ours], [drawn[1 + place] for drawn in theirs]
    )
    assert found < limit


def test_orders_are_uniform_over_all_24(ours_and_theirs):
    orders = [tuple(name for name, _ in operations) for operations in ours_and_theirs[0]]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).statistic < stats.chi2.ppf(0.999, 23)


def test_a_strength_beyond_one_keeps_factors_positive(uniforms):
    jitter = draw_jitter(uniforms[:, uniforms[draws.JITTER, :, 0] < 0.8], 2.0)
    contrast = 1 - jitter.mean.sum(dim=-1)
    assert contrast.min() >= 0
    found = stats.kstest(contrast.ravel().numpy(), "uniform", (0, 2.6)).statistic
    assert found < ks_limit(contrast.numel())


def test_blur_widths_are_distributed_as_torchvisions(transforms):
    plan = Views(64, seed=0).plan(draws.view_keys(0, 0, torch.arange(OURS), 1), 64, 64)
    torch.manual_seed(0)
    theirs = [transforms.GaussianBlur.get_params(0.1, 2.0) for _ in range(THEIRS)]
    found, limit = distance(plan.blur_sigma, theirs)
    assert found < limit


RATES = {"flip": 0.5, "jitter": 0.8, "grayscale": 0.2, "blur": 0.5, "solarize": 0.3, "cutout": 0.7}


@pytest.fixture(scope="module")
def applied():
    settings = Views(64, seed=0, solarize=0.3, cutout=0.7)
    plan = settings.plan(draws.view_keys(0, 0, torch.arange(OURS // 2), 2), 64, 64)
    return {
        "flip": plan.boxes.mirrored,
        "jitter": (plan.jitter.hue != 0).float(),
        "grayscale": plan.grayscale,
        "blur": plan.blur,
        "solarize": plan.solarize,
        "cutout": plan.squares.applied,
    }


@pytest.mark.parametrize("name", RATES)
def test_rate_is_the_probability_and_says_nothing_about_other_operations(name, applied):
    rate = RATES[name]
    error = math.sqrt(rate * (1 - rate) / OURS)
    assert abs(applied[name].mean().item() - rate) < ERRORS * error
    others = torch.stack([field.flatten() for other, field in applied.items() if other != name])
    here = applied[name].flatten().expand_as(others)
    pairs = [torch.stack(pair) for pair in zip(here, others, strict=True)]
    correlations = torch.stack([torch.corrcoef(pair)[0, 1] for pair in pairs])
    assert correlations.abs().max() < ERRORS / math.sqrt(OURS)


def test_cutout_middles_are_uniform_over_the_pixels(uniforms):
    squares = draw_squares(uniforms, 10, 1.0)
    counts = np.histogram2d(squares.top.ravel(), squares.left.ravel(), 10)[0]
    assert squares.top.min() == squares.left.min() == -2  # a side of 5 around pixel 0
    assert squares.top.max() == squares.left.max() == 7
    assert stats.chisquare(counts.ravel()).statistic < stats.chi2.ppf(0.999, 99)
