"""What importing the data, models and fused layers loads."""

import json

import pytest

CODE = """
import json, sys, torch
before = set(sys.modules)
import flatnce.pretrain.data, flatnce.pretrain.fused_resnet, flatnce.pretrain.models
loaded = sorted({module.split(".")[0] for module in set(sys.modules) - before})
mi = [module for module in sys.modules if module.startswith("flatnce.mi")]
views = flatnce.pretrain.data.Views(8, seed=0)
views(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), 0)
print(json.dumps({"loaded": loaded, "mi": mi, "by views": sorted(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def found(run_python):
    return json.loads(run_python(CODE))


@pytest.mark.parametrize("library", ["torchvision", "timm", "PIL", "sklearn", "triton"])
def test_no_optional_library_is_loaded(library, found):
    assert library not in found["loaded"]


def test_the_estimation_of_mutual_information_is_not_loaded(found):
    assert not found["mi"]


def test_views_on_the_cpu_do_not_load_triton(found):
    assert "triton" not in found["by views"]
