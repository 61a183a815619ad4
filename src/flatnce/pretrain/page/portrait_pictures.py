"""A small picture of an image as text, which a page can show without a file beside it."""

import base64
import io

from torch import Tensor

from flatnce.extras import needed
from flatnce.pretrain.data import FolderSet, ImageSet

LARGEST = 64
# Up to this side a picture without loss is small enough.
LOSSLESS = 40


def picture_of(images: ImageSet | FolderSet, number: int) -> str:
    """One image of a set as a ``data:`` address, at most 64 pixels wide and high.

    Arguments:
        images: The set.
        number: Which image.

    Examples:
        >>> import torch
        >>> pixels = torch.zeros((1, 1, 8, 8), dtype=torch.uint8)
        >>> picture_of(ImageSet(pixels, torch.tensor([0]), ("a",)), 0)[:22]
        'data:image/png;base64,'
    """
    pixels = images.decode(number) if isinstance(images, FolderSet) else images.images[number]
    image = needed("PIL.Image", "pictures of neighbours")
    shown = image.fromarray(_last(pixels))
    shown.thumbnail((LARGEST, LARGEST))
    kind = "PNG" if max(shown.size) <= LOSSLESS else "JPEG"
    buffer = io.BytesIO()
    shown.save(buffer, kind, **({"optimize": True} if kind == "PNG" else {"quality": 80}))
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"


def _last(pixels: Tensor):
    """Channels last for colour, none for grey."""
    moved = pixels.cpu()
    return (moved[0] if moved.shape[0] == 1 else moved.permute(1, 2, 0)).contiguous().numpy()
