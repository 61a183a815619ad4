"""Trained backbones for other programs: timm, plain torch, ONNX, each with a model card."""

from flatnce.pretrain.exporting.forms import (
    FORMS,
    TOLERANCE,
    ExportError,
    export,
    load_exported,
    open_graph,
    preprocessing,
)

__all__ = [
    "FORMS",
    "TOLERANCE",
    "ExportError",
    "export",
    "load_exported",
    "open_graph",
    "preprocessing",
]
