"""Trained backbones for others to load: timm, plain torch, ONNX, each with a model card."""

from flatnce.export.exporting import FORMS, TOLERANCE, export
from flatnce.export.layout import ExportError
from flatnce.export.torch_form import load_exported, preprocessing

__all__ = ["FORMS", "TOLERANCE", "ExportError", "export", "load_exported", "preprocessing"]
