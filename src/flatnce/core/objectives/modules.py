"""The family as modules: ``loss_fn(z1, z2)`` is a scalar, ``loss_fn.last`` says how it went."""

from abc import ABC
from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from flatnce.core.contrast import Contrast
from flatnce.core.objectives import functional
from flatnce.core.objectives.base import Objective, Options
from flatnce.core.objectives.functional import Value
from flatnce.core.objectives.temperature import Temperature

__all__ = ["DCL", "FlatNCE", "FlatNCEPlus", "HolderFlatNCE", "InfoNCE"]


class InfoNCE(Objective):
    """InfoNCE (NT-Xent, CLIP's loss by layout); see :func:`flatnce.functional.infonce`.

    Examples:
        >>> import torch
        >>> loss_fn = InfoNCE(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """InfoNCE of a contrast."""
        return functional.infonce(contrast)


class DCL(Objective):
    """Decoupled contrastive loss; see :func:`flatnce.functional.dcl`."""

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """DCL of a contrast."""
        return functional.dcl(contrast)


class _Flat(Objective, ABC):
    """An objective whose value is detached, and may be shown in two forms."""

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        value: Value = "infonce",
        **options: Unpack[Options],
    ) -> None:
        """Keep the form of the value."""
        super().__init__(temperature, **options)
        if value not in ("infonce", "constant"):
            raise ValueError(f"value={value!r} is unknown; choose 'infonce' or 'constant'")
        self.value = value


class FlatNCE(_Flat):
    """FlatNCE: InfoNCE's value, DCL's gradient; see :func:`flatnce.functional.flatnce`.

    Arguments:
        temperature: As in :class:`Objective`.
        value: ``infonce``, or ``constant`` for the paper's form, which is 1 for ever.
        **options: As in :class:`Objective`.

    Examples:
        >>> import torch
        >>> loss_fn = FlatNCE(temperature=0.5)
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        0.5944
    """

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE of a contrast."""
        return functional.flatnce(contrast, self.value)


class FlatNCEPlus(_Flat):
    """FlatNCE⊕, whose gradient is InfoNCE's; see :func:`flatnce.functional.flatnce_plus`.

    Arguments:
        temperature: As in :class:`Objective`.
        value: ``infonce``, or ``constant`` for the paper's form.
        **options: As in :class:`Objective`.
    """

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE⊕ of a contrast."""
        return functional.flatnce_plus(contrast, self.value)


class HolderFlatNCE(Objective):
    """Hölder-FlatNCE: negatives pooled by a power mean; γ = 1 is FlatNCE.

    Arguments:
        temperature: As in :class:`Objective`.
        gamma: Any real number or ±inf; see :func:`flatnce.functional.contrast_of`.
        **options: As in :class:`Objective`.
    """

    def __init__(
        self,
        temperature: Temperature = 0.1,
        *,
        gamma: float = 2.0,
        **options: Unpack[Options],
    ) -> None:
        """Keep the power."""
        super().__init__(temperature, **options)
        if gamma != gamma:
            raise ValueError(f"gamma={gamma!r} is not a number; pass a real number or ±inf")
        self.power = float(gamma)

    def extra_repr(self) -> str:
        """The power and the options, for print."""
        return ", ".join(filter(None, [f"gamma={self.power}", super().extra_repr()]))

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """FlatNCE of a contrast taken at the power."""
        return functional.flatnce(contrast)
