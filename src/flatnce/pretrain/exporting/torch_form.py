"""``--to torch``: weights in safetensors with a plain config, and the way back."""

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flatnce.extras import needed
from flatnce.pretrain.data.views import CentreCrop
from flatnce.pretrain.exporting.folder import MARK, WEIGHTS, ExportError, file_record, read_config
from flatnce.pretrain.exporting.source import Source
from flatnce.pretrain.models import backbone


def check(source: Source) -> None:
    """Whether this form can hold the backbone: it always can, given safetensors."""
    needed("safetensors.torch", "exporting weights")


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the weights; return what ``config.json`` says besides what it always says."""
    return write_weights(source, folder)


def write_weights(source: Source, folder: Path) -> dict[str, Any]:
    """Write the state dict as safetensors; return how to recognise the file."""
    library = needed("safetensors.torch", "exporting weights")
    content: bytes = library.save(source.weights(), metadata={"format": "pt"})
    (folder / WEIGHTS).write_bytes(content)
    return {MARK: {"weights": file_record(folder / WEIGHTS)}}


def features(folder: Path, images: Tensor) -> Tensor:
    """What the exported backbone, loaded back, makes of images."""
    return load_exported(folder)(images)


def load_exported(folder: str | Path) -> nn.Module:
    """Rebuild a backbone that ``flatnce export`` wrote: images to features, in evaluation mode.

    Reads the forms ``torch`` and ``timm``; the features are the trained network's own, bit for
    bit, on the same device and with the same number of threads. No code of the folder is run, and
    the weights are compared with their checksum.

    Relations:
        :func:`preprocessing` makes what it takes of uint8 images.

    Arguments:
        folder: The exported folder.
    """
    place = Path(folder)
    described = read_config(place)[MARK]
    if "weights" not in described:
        raise ValueError(
            f"folder={str(folder)!r} holds the form {described.get('form')!r}, which onnxruntime "
            "opens (its README.md shows how); to load it here export with to='torch'"
        )
    weights = _read_weights(place, described["weights"])
    try:
        network = backbone(**described["backbone"])
        network.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        raise ExportError(
            f"{place} describes another backbone than its weights are of: its files are not of "
            "one export; export the run again"
        ) from error
    return network.eval()


def preprocessing(folder: str | Path) -> CentreCrop:
    """What an exported backbone takes, made of uint8 images (b, c, h, w) of any size.

    The shorter side is resized (bicubic) to the backbone's input, the middle cut out and
    normalised, as ``flatnce evaluate`` does.

    Arguments:
        folder: The exported folder, of any form.
    """
    taken = read_config(folder)[MARK]["input"]
    if taken["normalised_inside"]:
        return CentreCrop(taken["size"], mean=0.0, std=1.0)
    return CentreCrop(taken["size"], mean=taken["mean"], std=taken["std"])


def _read_weights(folder: Path, expected: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    library = needed("safetensors.torch", "loading exported weights")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ExportError(f"{path} is missing; export the run again") from error
    if hashlib.sha256(content).hexdigest() != expected.get("sha256"):
        raise ExportError(
            f"{path} was cut short or changed after the export ({len(content):,} bytes of "
            f"{expected.get('bytes', 0):,}); export the run again, or copy it whole"
        )
    found: dict[str, Tensor] = library.load(content)
    return found
