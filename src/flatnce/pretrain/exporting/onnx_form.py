"""``--to onnx``: the network as a graph, for onnxruntime and everything else that reads ONNX."""

import re
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.pretrain.exporting.folder import MARK, ONNX_MODEL, ExportError, file_record
from flatnce.pretrain.exporting.source import Source

PACKAGES = ("onnx", "onnxscript")
"""What torch's exporter needs; onnxruntime besides, to check the result."""

_LARGEST_FILE = 1_500_000_000
"""Bytes of weights from which on they get a file of their own: a graph holds two gigabytes."""


class _Network(nn.Module):
    """Names the input, and normalises it where asked to."""

    mean: Tensor
    std: Tensor

    def __init__(self, source: Source, normalise: bool) -> None:
        super().__init__()
        self.backbone, self.normalise = source.backbone, normalise
        for name, numbers in (("mean", source.mean), ("std", source.std)):
            self.register_buffer(name, torch.tensor(numbers).view(1, -1, 1, 1))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b width"]:
        if self.normalise:
            images = (images - self.mean) / self.std
        return self.backbone(images)


def check(source: Source) -> None:
    """Refuse where the packages of the ``onnx`` extra are missing."""
    for module in PACKAGES:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or module
            raise ModuleNotFoundError(
                f"to='onnx' needs {missing}, which is not installed: pip install 'flatnce[onnx]'",
                name=missing,
            ) from error


def can_check() -> bool:
    """Whether onnxruntime is here to check an export with."""
    return find_spec("onnxruntime") is not None


def write(source: Source, folder: Path, normalise: bool = False) -> dict[str, Any]:
    """Write ``model.onnx``: images (batch, c, size, size) to features (batch, width).

    The number of images is free, their size is not.
    """
    program = _exported(_Network(source, normalise).eval(), source)
    program.model.metadata_props.update(
        {
            "flatnce.architecture": source.architecture,
            "flatnce.mean": " ".join(map(str, source.mean)),
            "flatnce.std": " ".join(map(str, source.std)),
            "flatnce.normalised_inside": str(normalise).lower(),
        }
    )
    size = sum(tensor.nbytes for tensor in source.backbone.state_dict().values())
    program.save(str(folder / ONNX_MODEL), external_data=size > _LARGEST_FILE)
    return {MARK: {"graph": file_record(folder / ONNX_MODEL)}}


def features(folder: Path, images: Tensor) -> Tensor:
    """What onnxruntime makes of images with the exported graph, on the CPU."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it has much to say about devices it does not find
    session = onnxruntime.InferenceSession(
        str(folder / ONNX_MODEL), options, providers=["CPUExecutionProvider"]
    )
    return torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


def _exported(network: nn.Module, source: Source) -> Any:
    try:
        with warnings.catch_warnings():
            # About torch's and onnxscript's own insides; nothing a user could act on.
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network,
                # Two: a batch of one would be taken for a constant.
                (source.sample(2),),
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # its own kinds are many and change between versions
        raise ExportError(
            f"torch {torch.__version__} cannot write {source.architecture} as ONNX "
            f"({_reason(error)}); export it with to='torch' or to='timm'"
        ) from error
    return program


def _reason(error: BaseException) -> str:
    """The first line of what began it: the exporter wraps that in advice to its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
