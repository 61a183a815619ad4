"""What importing the data, models and fused layers loads, and what drawing views adds to it."""

CODE = """
import sys, torch
before = set(sys.modules)
import flatnce.pretrain.data, flatnce.pretrain.fused_resnet, flatnce.pretrain.models
print(*set(sys.modules) - before)
views = flatnce.pretrain.data.Views(8, seed=0)
views(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), 0)
print(*set(sys.modules) - before)
"""


def test_neither_optional_libraries_nor_mutual_information_are_loaded(run_python):
    imported, by_views = (set(line.split()) for line in run_python(CODE).splitlines())
    unwanted = {"torchvision", "timm", "PIL", "sklearn", "triton", "flatnce.mi"}
    assert not unwanted & imported
    assert "triton" not in by_views
