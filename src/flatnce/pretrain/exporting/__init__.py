"""Trained backbones for others to load: timm, plain torch, ONNX, each with a model card."""

from flatnce.pretrain.exporting.export import FORMS, TOLERANCE, export
from flatnce.pretrain.exporting.folder import ExportError
from flatnce.pretrain.exporting.torch_form import load_exported, preprocessing

__all__ = ["FORMS", "TOLERANCE", "ExportError", "export", "load_exported", "preprocessing"]
