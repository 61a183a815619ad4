"""Does the gradient survive the arithmetic? The usual loss, computed in a precision and exactly.

Computed is what scripts do: rows, scores and their gradients in the precision, the
cross-entropy between in float32, as GPUs compute it. flatnce's own losses compute scores in
float32 by themselves and do not die so.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from flatnce.diagnose.findings import Finding

PRECISIONS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

ALIVE = 0.7
"""Cosine of the gradient with the exact one, below which it is dead: there the error is as long
as what is left of the signal (the cosine of 45 degrees)."""

LOSS_SCALE = 2.0**16
"""What torch.amp.GradScaler starts with, which float16 is not used without."""

MOST_SAMPLES = 256
"""Enough rows for a cosine of two long vectors, few enough to cost nothing."""


def survival(
    z1: Tensor,
    z2: Tensor,
    temperature: float,
    precision: str,
    *,
    layout: str = "two_view",
    loss_scale: float = 1.0,
) -> float | None:
    """Cosine of the gradient in a precision with the exact one; None if there is no gradient.

    Arguments:
        z1: First views, as the head gives them.
        z2: Second views.
        temperature: Of the loss.
        precision: One of :data:`PRECISIONS`.
        layout: ``two_view`` or ``two_tower``.
        loss_scale: What the loss is multiplied by before, and its gradient divided by after.

    Examples:
        >>> z = torch.eye(8)
        >>> round(survival(z, z.roll(1, 1), 0.5, "bfloat16"), 2)
        1.0
    """
    whole = torch.cat([z1[:MOST_SAMPLES], z2[:MOST_SAMPLES]]).detach()
    exact = _gradient(whole.double(), temperature, layout, 1.0)
    length = exact.norm()
    if not bool(length > 0):
        return None
    found = _gradient(whole.to(PRECISIONS[precision]), temperature, layout, loss_scale)
    cosine = float((exact * found).sum() / (length * found.norm()))
    return cosine if bool(found.isfinite().all()) and cosine == cosine else 0.0


def dead_in(precision: str, cosine: float, bare: float | None = None) -> Finding:
    """The finding that a gradient does not survive."""
    scaled = "" if bare is None else f" with a gradient scaler ({bare:.2f} without)"
    float32 = (
        "compute rows, scores and loss in float32: flatnce's losses do by themselves; elsewhere "
        "`z.float()` before normalising, with autocast off"
    )
    remedies: tuple[str, ...] = (
        float32,
        "replace the loss by FlatNCE, whose gradient does not shrink with the positive's lead",
        "spread the embeddings first: batch normalisation at the end of the head, a longer "
        "warm-up",
    )
    if precision == "float16":
        remedies = (float32, "keep a gradient scaler, or use bfloat16", *remedies[1:])
    if precision == "float32":
        remedies = remedies[1:]
    return Finding(
        f"dead in {precision}",
        f"the gradient computed in {precision} has a cosine of {cosine:.2f} with the exact "
        f"one{scaled}",
        remedies,
    )


def _gradient(
    z: Float[Tensor, "n d"], temperature: float, layout: str, scale: float
) -> Float[Tensor, "n d"]:
    """Of the mean cross-entropy over both views' rows, in the rows' precision."""
    n = z.shape[0]
    with torch.enable_grad(), torch.autocast(z.device.type, enabled=False):
        leaf = z.clone().requires_grad_(True)
        rows = normalize(leaf, dim=1)
        scores = (rows @ rows.T) / temperature
        places = torch.arange(n, device=z.device)
        side = places // (n // 2)
        left_out = places[:, None] == places
        if layout == "two_tower":
            left_out = side[:, None] == side
        logits = scores.to(torch.promote_types(z.dtype, torch.float32))
        loss = cross_entropy(logits.masked_fill(left_out, -torch.inf), places.roll(n // 2))
        (loss * scale).backward()
    assert leaf.grad is not None
    return leaf.grad.double() / scale
