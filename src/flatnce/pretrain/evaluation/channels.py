"""Grey images for a colour network, and colour images for a grey one."""

import torch
from jaxtyping import UInt8
from torch import Tensor

# ITU-R BT.601 in 16 bits, as Pillow's convert("L"): the weights sum to 65,536.
LUMA = (19_595, 38_470, 7_471)


def to_channels(images: UInt8[Tensor, "b c h w"], channels: int) -> UInt8[Tensor, "b k h w"]:
    """The images with the channels that a network takes.

    Grey becomes colour by repeating it, colour becomes grey by luma (BT.601, to the level what
    Pillow's ``convert("L")`` gives).

    Arguments:
        images: Unsigned bytes with 1 or 3 channels.
        channels: 1 or 3.

    Examples:
        >>> import torch
        >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(1, 3, 1, 1)
        >>> to_channels(red, 1).item(), to_channels(to_channels(red, 1), 3).flatten().tolist()
        (76, [76, 76, 76])
    """
    found = images.shape[1]
    if {found, channels} - {1, 3}:
        raise ValueError(f"channels={channels} of images with {found}: both must be 1 or 3")
    if found == channels:
        return images
    if found == 1:
        return images.expand(-1, 3, -1, -1)
    red, green, blue = (plane.to(torch.int32) for plane in images.unbind(1))
    luma = red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]
    return ((luma + 2**15) >> 16).to(torch.uint8).unsqueeze(1)


def conversion(found: int, channels: int) -> str:
    """What :func:`to_channels` does, in words for a protocol.

    Arguments:
        found: Channels of the images.
        channels: Channels that the network takes.

    Examples:
        >>> conversion(3, 1)
        'colour to grey by luma (BT.601)'
    """
    if found == channels:
        return "none"
    return "grey repeated to 3 channels" if found == 1 else "colour to grey by luma (BT.601)"
