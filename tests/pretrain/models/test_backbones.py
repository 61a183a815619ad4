"""Backbones: known sizes, both stems, timm's names, and what is said when one cannot be built."""

import urllib.error
from pathlib import Path

import pytest
import torch
from torch import nn

from flatnce.pretrain.models import BACKBONES, backbone

pytest.importorskip("torchvision", reason="the train extra is not installed")
timm = pytest.importorskip("timm", reason="the train extra is not installed")

# Of the published networks, less the classifier: 11,689,512 - 513,000 and 25,557,032 - 2,049,000.
# The small stem has 64 * 3 * 3 * 3 weights in place of 64 * 3 * 7 * 7.
SIZES = {
    ("resnet18", "standard"): (11_176_512, 512),
    ("resnet18", "small"): (11_168_832, 512),
    ("resnet50", "standard"): (23_508_032, 2048),
    ("resnet50", "small"): (23_500_352, 2048),
}


def on_meta(name: str, **options) -> nn.Module:
    """A backbone that has shapes and no numbers: built and run in no time."""
    with torch.device("meta"):
        return backbone(name, **options)


def first_map(network: nn.Module, size: int, channels: int = 3) -> tuple[int, ...]:
    """Height and width of what the first block sees."""
    seen = []
    network.layer1.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    network(torch.zeros(2, channels, size, size, device="meta"))
    return tuple(seen[0][2:])


@pytest.mark.parametrize(("name", "stem"), SIZES)
def test_a_resnet_has_the_published_size_and_width(name, stem):
    network = on_meta(name, stem=stem)
    count, width = SIZES[name, stem]
    assert sum(parameter.numel() for parameter in network.parameters()) == count
    assert network.width == width
    assert network(torch.zeros(2, 3, 64, 64, device="meta")).shape == (2, width)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_has_its_width_and_its_row_in_the_docs(name):
    entry = BACKBONES[name]
    assert on_meta(name, size=32).width == entry.width, "backbones.py: the width is another"
    row = f"| `{name}` | {entry.title} | {entry.width} |"
    docs = Path(__file__).parents[3] / "docs" / "reference" / "training.md"
    assert row in docs.read_text(), f"docs/reference/training.md lacks {row}"


@pytest.mark.parametrize(("size", "side"), [(8, 8), (32, 32), (64, 64), (65, 17), (224, 56)])
@pytest.mark.parametrize(("name", "channels"), [("resnet18", 3), ("resnet18", 1), ("resnet50", 3)])
def test_auto_takes_the_small_stem_up_to_64_pixels(name, channels, size, side):
    network = on_meta(name, stem="auto", size=size, channels=channels)
    assert first_map(network, size, channels) == (side, side)


def test_the_new_stem_is_drawn_like_the_old_one():
    network = backbone("resnet18", stem="small")
    expected = (2 / (64 * 9)) ** 0.5  # He et al., fan-out
    assert network.conv1.weight.std().item() == pytest.approx(expected, rel=0.05)
    assert network.conv1.bias is None


def test_a_resnet_keeps_the_names_that_other_libraries_load():
    theirs = timm.create_model("resnet18", num_classes=0)
    mine = backbone("resnet18", stem="standard").eval()
    theirs.load_state_dict(mine.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(theirs.eval()(x), mine(x))


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_a_timm_backbone_is_as_wide_as_it_says(name):
    network = backbone(name, size=32, channels=1).eval()
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, network.width)


# --- Published weights ---------------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch):
    """What a download of ResNet-18's weights would give."""
    from torchvision.models import resnet18

    weights = resnet18().state_dict()
    where = "torchvision.models._api.load_state_dict_from_url"
    monkeypatch.setattr(where, lambda *_, **__: dict(weights))
    return weights


def test_published_weights_are_loaded_where_they_fit(published):
    network = backbone("resnet18", stem="small", pretrained=True)
    found = network.state_dict()
    assert torch.equal(found["layer1.0.conv1.weight"], published["layer1.0.conv1.weight"])
    assert found["conv1.weight"].shape == (64, 3, 3, 3)
    network = backbone("resnet18", stem="standard", pretrained=True)
    assert torch.equal(network.conv1.weight, published["conv1.weight"])


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("resnet18", "torchvision.models._api.load_state_dict_from_url"),
        ("convnext_atto", "timm.create_model"),
    ],
)
def test_weights_that_cannot_be_fetched_are_named(name, function, monkeypatch):
    def offline(*_, **__):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(function, offline)
    with pytest.raises(OSError, match=rf"{name} could not be fetched.*no route.*pretrained=False"):
        backbone(name, size=32, pretrained=True)


# --- What cannot be built ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnt50", "did you mean .*resnet50"),
        ("smal", "did you mean .*small"),
        ("zzz", "list_models"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(name, suggestion):
    with pytest.raises(ValueError, match=rf"name='{name}'.*{suggestion}"):
        backbone(name, size=32)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {}, "stem='auto' .* size="),
        ("resnet18", {"stem": "tiny"}, "stem='tiny' is unknown; choose one of auto, small"),
        ("resnet18", {"size": 0}, "size=0 must be at least 1"),
        ("resnet18", {"size": 32, "channels": 0}, "channels=0 must be"),
        ("small", {"stem": "standard"}, "one stem"),
        ("small", {"pretrained": True}, "no published weights"),
        ("convnext_atto", {"stem": "small"}, "stem='small' exists for resnet18"),
        ("convnext_atto.nothing", {}, "timm cannot build convnext_atto.nothing"),
    ],
)
def test_bad_arguments_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        backbone(name, **options)


@pytest.mark.parametrize(
    ("name", "library"), [("resnet18", "torchvision"), ("convnext_atto", "timm")]
)
def test_a_missing_library_says_what_to_install(monkeypatch, name, library):
    def without(module: str):
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr("flatnce.extras.import_module", without)
    with pytest.raises(ImportError, match=rf"{library}.*pip install 'flatnce\[train\]'"):
        backbone(name, stem="standard")
