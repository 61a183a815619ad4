"""Random orders that are pure functions of their key, on any machine and in any version.

Samples are sorted by a 64-bit hash of (key, sample), so that there is no generator whose state
would have to be saved, and none whose stream a new release of torch or numpy might change.

References:
    Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators (SplitMix64).
"""

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def permutation(n: int, *key: int) -> Int64[Tensor, " n"]:
    """The numbers 0 to n - 1 in an order that the key decides.

    Limits: 64 bits a sample, so up to some 10^8 samples two of them almost never tie (and a tie
    is broken by the sample's number).

    Arguments:
        n: How many.
        *key: Integers, for example a seed and an epoch; their order matters.

    Examples:
        >>> permutation(6, 0, 0).tolist()
        [0, 2, 5, 4, 3, 1]
        >>> permutation(6, 0, 1).tolist()
        [4, 1, 5, 0, 3, 2]
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        state = _mix((state + np.uint64(GOLDEN)) ^ np.uint64(part & WORD))
    counters = np.arange(1, n + 1, dtype=np.uint64)
    words = _mix(counters * np.uint64(GOLDEN) + state)
    return torch.from_numpy(np.argsort(words, kind="stable"))


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser: every bit of a word comes to depend on every other."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
