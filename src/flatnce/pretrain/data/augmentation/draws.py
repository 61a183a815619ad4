"""Random numbers as a function of (seed, epoch, sample, view, draw), with no state anywhere.

The function is SplitMix64. Its stream with state k has as its j-th word

    word(k, j) = mix(k + (j + 1)·γ),    γ = 0x9E3779B97F4A7C15,    all modulo 2⁶⁴,

so any word can be computed alone: word number ``epoch`` of the seed's stream is the key of the
epoch, word number ``256·sample + view`` of the epoch's stream is the key of the view, and the
words of the view's stream are its draws. Each operation owns fixed places of that stream, so
switching one on changes no other. CPU and GPU agree in every bit (Steele, Lea, Flood, 2014, "Fast
splittable pseudorandom number generators", with the constants of java.util.SplittableRandom).
"""

from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

Keys: TypeAlias = Int[Tensor, "b v"]  # one stream per image and view
# Numbers in [0, 1) by place in the stream; float64, of 53 random bits.
Uniforms: TypeAlias = Float[Tensor, "draws b v"]

MOST_VIEWS = 256
ATTEMPTS = 10

# Places in a view's stream. Ranges are slices, single numbers are integers.
CROP_AREA = slice(0, ATTEMPTS)
CROP_RATIO = slice(ATTEMPTS, 2 * ATTEMPTS)
CROP_TOP = 20
CROP_LEFT = 21
FLIP = 22
JITTER = 23
JITTER_ORDER = slice(24, 28)
JITTER_FACTORS = slice(28, 32)
GRAYSCALE = 32
BLUR = 33
BLUR_SIGMA = 34
SOLARIZE = 35
CUTOUT = 36
CUTOUT_ROW = 37
CUTOUT_COLUMN = 38
PLACES = 39
NOISE_FROM = 64  # from here on, one word for every value of the picture


def signed(value: int) -> int:
    """The int64 with the same lowest 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


GAMMA = signed(0x9E3779B97F4A7C15)
FIRST_FACTOR = signed(0xBF58476D1CE4E5B9)
SECOND_FACTOR = signed(0x94D049BB133111EB)


def _shifted(z: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    # int64 shifts copy the sign down; the mask makes it the unsigned shift of the definition.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def word(key: Int[Tensor, "..."], number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Word ``number`` of the SplitMix64 stream whose state is ``key``: 64 random bits."""
    return mix(key + (number + 1) * GAMMA)


def mix(z: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """SplitMix64's finaliser."""
    z = (z ^ _shifted(z, 30)) * FIRST_FACTOR
    z = (z ^ _shifted(z, 27)) * SECOND_FACTOR
    return z ^ _shifted(z, 31)


def view_keys(seed: int, epoch: int | Tensor, indices: Int[Tensor, " b"], views: int) -> Keys:
    """The key of every image and view."""
    device = indices.device
    # full fills on the device; torch.tensor would copy from the host and wait.
    first = torch.full((), signed(seed), dtype=torch.int64, device=device)
    if not isinstance(epoch, Tensor):
        epoch = torch.full((), epoch, dtype=torch.int64, device=device)
    number = indices.to(torch.int64)[:, None] * MOST_VIEWS + torch.arange(views, device=device)
    return word(word(first, epoch), number)


def draw_uniforms(keys: Keys) -> Uniforms:
    """Every place of every view's stream, uniform in [0, 1)."""
    words = word(keys, torch.arange(PLACES, device=keys.device)[:, None, None])
    return _shifted(words, 11).to(torch.float64) * 2.0**-53


def draw_normals(keys: Keys, count: int) -> Float[Tensor, "b v count"]:
    """Independent normal numbers by the Box-Muller transform, one word of the stream each."""
    places = torch.arange(NOISE_FROM, NOISE_FROM + count, device=keys.device)
    words = word(keys[..., None], places)
    # The upper 24 bits of a word give the radius, the lower 24 bits the angle; float32 holds
    # both exactly. Adding 0.5 keeps the logarithm away from zero.
    radius = (_shifted(words, 40).to(torch.float32) + 0.5) * 2.0**-24
    angle = ((words & (2**24 - 1)).to(torch.float32)) * (2.0**-23 * torch.pi)
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(angle)
