"""From planes in [0, 1] to what a network is given."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

__all__ = ["Normalisation"]


@dataclass(frozen=True)
class Normalisation:
    """Subtract a mean and divide by a standard deviation, channel by channel.

    Arguments:
        mean: Of values in [0, 1]; one number for all channels, or one each.
        std: Likewise, positive.

    Examples:
        >>> Normalisation(0.5, (0.25,)).channels(3)
        [(0.5, 0.25), (0.5, 0.25), (0.5, 0.25)]
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(_numbers("std", self.std)) <= 0:
            raise ValueError(f"std={self.std} divides; every entry must be positive")
        _numbers("mean", self.mean)

    def channels(self, count: int) -> list[tuple[float, float]]:
        """Mean and standard deviation of each of ``count`` channels."""
        found = []
        for name in ("mean", "std"):
            numbers = _numbers(name, getattr(self, name))
            if len(numbers) not in (1, count):
                raise ValueError(
                    f"{name} has {len(numbers)} entries for images of {count} channels; pass one "
                    f"number, or {count}"
                )
            found.append(numbers * (count if len(numbers) == 1 else 1))
        return list(zip(*found, strict=True))

    def __call__(self, planes: Float[Tensor, "c n y x"]) -> Float[Tensor, "c n y x"]:
        """The planes, normalised in place."""
        # Python numbers rather than a tensor: nothing has to be copied to the device.
        for plane, (mean, std) in zip(planes, self.channels(planes.shape[0]), strict=True):
            plane.sub_(mean).div_(std)
        return planes


def _numbers(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    entries = (value,) if isinstance(value, int | float) else tuple(value)
    if not entries or not all(isinstance(entry, int | float) for entry in entries):
        raise ValueError(f"{name}={value!r} must be a number, or one number a channel")
    return tuple(float(entry) for entry in entries)
