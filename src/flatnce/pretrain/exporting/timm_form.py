"""``--to timm``: a folder that ``timm.create_model("local-dir:...")`` reads, as the hub's are."""

from pathlib import Path
from typing import Any

from torch import Tensor

from flatnce.extras import needed
from flatnce.pretrain.exporting.folder import ExportError, read_config
from flatnce.pretrain.exporting.source import Source
from flatnce.pretrain.exporting.torch_form import write_weights

# Of a pretrained_cfg of timm's, what describes the network; the rest is about weights of others.
_OF_THE_NETWORK = ("fixed_input_size", "pool_size", "first_conv", "classifier")


def check(source: Source) -> None:
    """Refuse what timm has no name for, with the form to take instead."""
    if source.architecture == "small":
        raise ValueError(
            "to='timm': backbone 'small' is flatnce's own and timm has none like it; export it "
            "with to='torch' or to='onnx'"
        )
    if source.stem == "small":
        raise ValueError(
            f"to='timm': timm's {source.architecture} has a 7x7 stem of stride 2 with a max-pool "
            "and no setting for the small-image stem that this run has; export it with "
            "to='torch', whose README.md shows how to put the weights into timm's or "
            "torchvision's network, or with to='onnx'"
        )
    needed("timm", "exporting to timm")
    needed("safetensors.torch", "exporting weights")


def write(source: Source, folder: Path) -> dict[str, Any]:
    """Write the weights; return what timm looks for in ``config.json``.

    The input size, mean and standard deviation are what ``timm.data.resolve_model_data_config``
    reads; the names of the first convolution and the classifier let timm adapt the network to
    other channels or add classes.
    """
    known = _known(source)
    if source.channels != 3:
        # timm would fold the first convolution as if it came with three channels.
        known["first_conv"] = None
    return {
        # Without the tag that names weights of timm's own.
        "architecture": source.architecture.partition(".")[0],
        "num_classes": 0,
        "num_features": source.width,
        "pretrained_cfg": {
            **known,
            "num_classes": 0,
            "input_size": [source.channels, source.size, source.size],
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(source.mean),
            "std": list(source.std),
        },
        **write_weights(source, folder),
    }


def features(folder: Path, images: Tensor) -> Tensor:
    """What timm makes of images with the exported folder."""
    timm = needed("timm", "loading from timm")
    try:
        network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    except Exception as error:
        # Some of its networks rename weights by rules that need a classifier to be among them.
        name = read_config(folder)["architecture"]
        reason = str(error).strip().splitlines()[:1]
        raise ExportError(
            f"timm {timm.__version__} cannot read {name} back without its classifier "
            f"({type(error).__name__}: {' '.join(reason)}); export it with to='torch' or to='onnx'"
        ) from error
    return network(images)


def _known(source: Source) -> dict[str, Any]:
    if source.from_torchvision:
        return {"first_conv": "conv1", "classifier": "fc"}
    found = getattr(source.backbone, "pretrained_cfg", None) or {}
    return {name: found[name] for name in _OF_THE_NETWORK if name in found}
