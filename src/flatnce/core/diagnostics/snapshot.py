"""What a loss leaves behind after a call: detached tensors, read when the user likes."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from flatnce.core import faults
from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.ess import effective_sample_size
from flatnce.core.diagnostics.saturation import (
    gradient_gain,
    mutual_information,
    mutual_information_ceiling,
    retrieval_top1,
    saturated_share,
)


@dataclass(frozen=True)
class Snapshot:
    """The last batch of a loss: ``loss_fn.last``.

    Every number is a zero-dimensional tensor on the device. Reading one first raises what was
    found wrong with the batch, which (only on an accelerator) waits for it; feed a
    :class:`~flatnce.Monitor` instead of reading in a hot loop.

    Arguments:
        contrast: Row statistics, detached.
        loss: The value the loss returned, detached.
        embeddings: One row a sample, detached, for the geometry.
        objective: Name of the objective.
        unit_rows: Whether scores are cosines over the temperature.
    """

    contrast: Contrast
    loss: Float[Tensor, ""]
    embeddings: Float[Tensor, "b d"] | None = field(default=None, repr=False)
    objective: str = ""
    unit_rows: bool = True

    @property
    def ess(self) -> Float[Tensor, ""]:
        """Mean effective sample size of the negatives' weights, without the positive."""
        return effective_sample_size(self._checked())

    @property
    def ess_with_positive(self) -> Float[Tensor, ""]:
        """Mean effective sample size with the positive in the pool (InfoNCE's weights)."""
        return effective_sample_size(self._checked(), with_positive=True)

    @property
    def gain(self) -> Float[Tensor, ""]:
        """Mean gradient gain: what InfoNCE would multiply the gradient by."""
        return gradient_gain(self._checked())

    @property
    def mi(self) -> Float[Tensor, ""]:
        """K-sample mutual information, in nats."""
        return mutual_information(self._checked())

    @property
    def mi_ceiling(self) -> Float[Tensor, ""]:
        """The most ``mi`` could be: log K."""
        return mutual_information_ceiling(self._checked())

    @property
    def saturated(self) -> Float[Tensor, ""]:
        """Share of saturated rows."""
        return saturated_share(self._checked())

    @property
    def top1(self) -> Float[Tensor, ""]:
        """Share of rows whose positive beats every negative."""
        return retrieval_top1(self._checked())

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """The temperature that was used."""
        return self._checked().beta.reciprocal()

    def __repr__(self) -> str:
        """Sizes, and numbers where reading them is free; it never waits for a device."""
        said = [f"objective={self.objective!r}"] if self.objective else []
        said.append(f"rows={self.contrast.positive.shape[0]}")
        if self.embeddings is not None:
            said.append(f"embeddings={tuple(self.embeddings.shape)}")
        # Tensors of another type stand for numbers that are not there, as while exporting.
        if not faults.can_raise_now(self.loss) or type(self.loss) is not Tensor:
            return f"Snapshot({', '.join(said)}, on {self.loss.device}, numbers not read)"
        numbers = {
            "negatives": self.contrast.count.float().mean(),
            "loss": self.loss,
            "gain": gradient_gain(self.contrast),
            "ess": effective_sample_size(self.contrast),
            "temperature": self.contrast.beta.reciprocal(),
        }
        said += [f"{name}={float(value):.4g}" for name, value in numbers.items()]
        if found := faults.flagged(self.contrast.faults):
            said.append(f"faults={'+'.join(found)}")
        return f"Snapshot({', '.join(said)})"

    def _checked(self) -> Contrast:
        flags = self.contrast.faults
        if not faults.must_not_read(self.contrast.beta):
            faults.raise_flagged(flags)
        return self.contrast
