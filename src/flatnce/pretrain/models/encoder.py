"""An encoder: a backbone and a projection head, which return features and embeddings."""

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """Images to (features h, embeddings z): z is trained on, h is what is kept.

    Arguments:
        backbone: Images to features, with an attribute ``width``; see :func:`backbone`.
        head: Features to embeddings, with an attribute ``width``; see :func:`head`.

    Examples:
        >>> import torch
        >>> from flatnce.pretrain.models import backbone, head
        >>> encoder = Encoder(backbone("small", channels=1), head(128, out=64))
        >>> h, z = encoder(torch.zeros(2, 1, 8, 8))
        >>> h.shape, z.shape
        (torch.Size([2, 128]), torch.Size([2, 64]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        """Check that both say how wide they are, and that they fit."""
        super().__init__()
        self.width = _width("backbone", backbone)
        self.embedding_width = _width("head", head)
        first = next((part for part in head.modules() if isinstance(part, nn.Linear)), None)
        if first is not None and first.in_features != self.width:
            raise ValueError(
                f"head takes features {first.in_features} wide and backbone gives {self.width}; "
                "build it with head(backbone.width)"
            )
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "b width"], Float[Tensor, "b d"]]:
        """Features and embeddings.

        Arguments:
            x: Images, shape (b, c, h, w), floating point and normalised.
        """
        if x.ndim != 4 or not x.is_floating_point():
            raise ValueError(
                f"x is {x.dtype} of shape {tuple(x.shape)}; pass floating-point images (batch, "
                "channels, height, width), as Views makes them of bytes"
            )
        features = self.backbone(x)
        return features, self.head(features)


def _width(role: str, module: nn.Module) -> int:
    width = getattr(module, "width", None)
    if not isinstance(width, int):
        raise ValueError(
            f"{role}={type(module).__name__} does not say how wide its output is; build it with "
            f"flatnce.pretrain.models.{role}, or set {role}.width"
        )
    return width
