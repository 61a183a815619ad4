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
from flatnce.pretrain.exporting.hub import check_repository, push_to_hub

__all__ = [
    "FORMS",
    "TOLERANCE",
    "ExportError",
    "check_repository",
    "export",
    "load_exported",
    "open_graph",
    "preprocessing",
    "push_to_hub",
]
