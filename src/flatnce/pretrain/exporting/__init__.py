"""Trained backbones for other programs: timm, plain torch, ONNX, each with a model card."""

from flatnce.pretrain.exporting.export import TOLERANCE, export
from flatnce.pretrain.exporting.forms import FORMS, ExportError, load_exported, preprocessing

__all__ = ["FORMS", "TOLERANCE", "ExportError", "export", "load_exported", "preprocessing"]
