"""Backbones, heads, the encoder, its momentum copy, and batch norm over processes."""

import copy
import inspect
import urllib.error
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from flatnce.pretrain import models
from flatnce.pretrain.models import (
    BACKBONES,
    RESNETS,
    Encoder,
    GatheredBatchNorm,
    MomentumEncoder,
    SmallNet,
    backbone,
    head,
    sync_batch_norm,
)
from forked import Forked
from paths import ROOT

pytest.importorskip("torchvision", reason="the train extra is not installed")
timm = pytest.importorskip("timm", reason="the train extra is not installed")

MODELS = "src/flatnce/pretrain/models.py"
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


@pytest.mark.parametrize(("name", "stem"), SIZES)
def test_a_resnet_has_the_published_size_and_width(name, stem):
    network = on_meta(name, stem=stem)
    count, width = SIZES[name, stem]
    assert sum(parameter.numel() for parameter in network.parameters()) == count
    assert network.width == width
    assert network(torch.zeros(2, 3, 64, 64, device="meta")).shape == (2, width)


def test_every_function_that_builds_a_backbone_has_an_entry():
    signature = inspect.signature(BACKBONES["small"])
    builders = {
        function
        for _, function in inspect.getmembers(models, inspect.isfunction)
        if inspect.signature(function) == signature
    }
    used = {models._timm_backbone, *BACKBONES.values()}
    assert builders == used, f"BACKBONES in {MODELS} lacks an entry"


@pytest.mark.parametrize("name", sorted(BACKBONES.keys() - RESNETS))
def test_a_backbone_with_one_stem_refuses_the_other(name):
    with pytest.raises(ValueError, match="stem="):  # the function is in MODELS
        for stem in ("small", "standard"):
            on_meta(name, stem=stem, size=32)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_has_its_width_and_its_row_in_the_docs(name):
    docs = (ROOT / "docs" / "reference" / "training.md").read_text()
    start, end = f"| `{name}` | ", f" | {on_meta(name, size=32).width} |"
    rows = [row for row in docs.splitlines() if row.startswith(start) and row.endswith(end)]
    assert rows, f"docs/reference/training.md lacks {start}what it is{end}"


@pytest.mark.parametrize(("size", "side"), [(8, 8), (32, 32), (64, 64), (65, 17), (224, 56)])
@pytest.mark.parametrize(("name", "channels"), [("resnet18", 3), ("resnet18", 1), ("resnet50", 3)])
def test_auto_takes_the_small_stem_up_to_64_pixels(name, channels, size, side):
    network, seen = on_meta(name, stem="auto", size=size, channels=channels), []
    network.layer1.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    network(torch.zeros(2, channels, size, size, device="meta"))
    assert seen[0][2:] == (side, side)  # height and width of what the first block sees


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
    monkeypatch.setattr(function, Mock(side_effect=urllib.error.URLError("no route")))
    with pytest.raises(OSError, match=rf"{name} could not be fetched.*no route.*pretrained=False"):
        backbone(name, size=32, pretrained=True)


# --- What cannot be built ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnt50", {}, "backbone='resnt50' .* did you mean .*resnet50"),
        ("smal", {}, "backbone='smal' .* did you mean .*small"),
        ("zzz", {}, "backbone='zzz' .*list_models"),
        ("resnet18", {}, "stem='auto' .* size="),
        ("resnet18", {"stem": "tiny"}, "stem='tiny' is unknown; choose one of auto, small"),
        ("resnet18", {"size": 0}, "size=0 must be at least 1"),
        ("resnet18", {"size": 32, "channels": 0}, "channels=0 must be"),
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
    absent = ModuleNotFoundError(name=library)
    monkeypatch.setattr("flatnce.extras.import_module", Mock(side_effect=absent))
    with pytest.raises(ImportError, match=rf"{library}.*pip install 'flatnce\[train\]'"):
        backbone(name, stem="standard")


# ---- heads and the encoder


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("norm", [True, False])
def test_a_head_has_as_many_layers_as_asked(layers, norm):
    out = 128
    projection = head(32, layers=layers, hidden=48, out=out, norm=norm)
    kinds = [type(part) for part in projection]
    between = [nn.Linear, nn.BatchNorm1d, nn.ReLU] if norm else [nn.Linear, nn.ReLU]
    assert kinds == between * (layers - 1) + [nn.Linear]
    assert projection(torch.randn(4, 32)).shape == (4, out)
    assert projection.width == out
    # Batch norm takes the place of the bias.
    biases = [part.bias is not None for part in projection if isinstance(part, nn.Linear)]
    assert biases == [not norm] * (layers - 1) + [True]


def test_a_head_without_layers_is_the_identity_and_hidden_layers_are_as_wide_as_features():
    projection, z = head(16, layers=0, out=128), torch.randn(3, 16)
    assert torch.equal(projection(z), z) and projection.width == 16
    assert head(24)[0].out_features == 24


@pytest.mark.parametrize("options", [{"layers": -1}, {"hidden": 0}, {"out": 0}])
def test_bad_sizes_of_a_head_are_named(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value} must be at least"):
        head(8, **options)


def small_encoder() -> Encoder:
    return Encoder(backbone("small", channels=1), head(128, out=16))


def test_an_encoder_returns_features_and_embeddings():
    encoder = small_encoder().eval()
    x = torch.randn(5, 1, 8, 8)
    h, z = encoder(x)
    assert torch.equal(h, encoder.backbone(x))
    assert torch.equal(z, encoder.head(h))
    assert (encoder.width, encoder.embedding_width) == (h.shape[1], z.shape[1]) == (128, 16)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "torch.uint8 .* floating-point images"),
        (torch.zeros(1, 8, 8), r"shape \(1, 8, 8\)"),
        (torch.zeros(2, 4, 1, 8, 8), "height, width"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        small_encoder()(x)


@pytest.mark.parametrize("role", ["backbone", "head"])
def test_parts_that_do_not_fit_or_have_no_width_are_refused(role):
    with pytest.raises(ValueError, match=r"512 wide and backbone gives 128"):
        Encoder(backbone("small"), head(512))
    parts = {"backbone": backbone("small"), "head": head(128), role: nn.Flatten()}
    with pytest.raises(ValueError, match=rf"{role}=Flatten .* set {role}\.width"):
        Encoder(**parts)


# ---- the momentum encoder


def double_encoder() -> Encoder:
    return Encoder(SmallNet(channels=1, width=16), head(16, out=4)).double()


def double_images(b: int = 6) -> torch.Tensor:
    return torch.randn(b, 1, 8, 8, dtype=torch.float64)


def disturb(encoder: nn.Module) -> None:
    """Move parameters, as an optimizer does, and running statistics, as a pass does."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    encoder.train()(double_images())


def assert_averaged(slow, before, now, momentum: float, tolerance: float) -> None:
    for name, tensor in slow.encoder.state_dict().items():
        expected = now[name]
        if tensor.is_floating_point():
            expected = momentum * before[name] + (1 - momentum) * now[name]
        torch.testing.assert_close(tensor, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99, 1.0])
def test_parameters_and_statistics_are_averaged_and_counts_copied(momentum):
    encoder = double_encoder()
    slow = MomentumEncoder(encoder, momentum)
    for _ in range(2):
        before = copy.deepcopy(slow.encoder.state_dict())
        disturb(encoder)
        slow.update()
        assert_averaged(slow, before, encoder.state_dict(), momentum, 1e-14)


def test_there_is_no_gradient_in_it():
    encoder = double_encoder()
    encoder(double_images())[1].sum().backward()
    slow = MomentumEncoder(encoder)
    h, z = slow(double_images())
    assert not h.requires_grad and not z.requires_grad
    assert not any(p.requires_grad or p.grad is not None for p in slow.parameters())
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_training_mode_normalises_by_the_batch_and_remembers_nothing():
    slow = MomentumEncoder(double_encoder())
    state = copy.deepcopy(slow.encoder.state_dict())
    before = {n: t for n, t in state.items() if t.is_floating_point()}
    x = double_images()
    slow.train()
    by_batch = slow(x)[1]
    after = slow.encoder.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    slow.eval()
    assert not torch.allclose(slow(x)[1], by_batch)


def test_the_encoder_is_referred_to_and_not_owned():
    encoder = double_encoder()
    slow = MomentumEncoder(encoder)
    names = {*slow.state_dict()}
    assert names == {"updates", *(f"encoder.{name}" for name in encoder.state_dict())}
    assert sum(1 for _ in slow.modules()) == 1 + sum(1 for _ in encoder.modules())


def test_a_restored_one_goes_on_exactly():
    encoder = double_encoder()
    slow = MomentumEncoder(encoder, 0.9)
    disturb(encoder), slow.update()
    other = copy.deepcopy(encoder)
    restored = MomentumEncoder(other, 0.9)
    restored.load_state_dict(slow.state_dict())
    with torch.no_grad():
        for net in (encoder, other):
            for parameter in net.parameters():
                parameter.mul_(1.5)
    slow.update(), restored.update()
    mine, theirs = slow.state_dict(), restored.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert int(restored.updates) == 2


# ---- batch norm over two gloo processes equals batch norm over the whole batch

WORKER = """
import sys, torch, torch.distributed as dist
from torch import nn
from flatnce.pretrain.models import sync_batch_norm
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4),
                    nn.BatchNorm1d(4, affine=False)).double()
sync_batch_norm(net, "cpu")
x = torch.randn(6, 2, 4, 4, dtype=torch.float64)
mine = x.chunk(2)[rank].clone().requires_grad_()
for _ in range(2):
    y = net(mine)
weight = torch.arange(24, dtype=torch.float64).view(6, 4).chunk(2)[rank]
(y * weight).sum().backward()
gradients = [p.grad for p in net.parameters()]
for gradient in gradients:
    dist.all_reduce(gradient)
torch.save({"y": y, "x": mine.grad, "gradients": gradients, "state": net.state_dict()},
           f"{folder}/{rank}.pt")
dist.barrier()
"""


def test_two_processes_normalise_as_one(tmp_path):
    running = [Forked(rank, tmp_path, code=WORKER) for rank in range(2)]
    done = [process.wait(timeout=120) for process in running]
    assert [one.returncode for one in done] == [0, 0], done
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    torch.manual_seed(0)
    first = (nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten())
    net = nn.Sequential(*first, nn.Linear(12, 4), nn.BatchNorm1d(4, affine=False)).double()
    x = torch.randn(6, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        y = net(x)
    (y * torch.arange(24, dtype=torch.float64).view(6, 4)).sum().backward()

    exact = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(torch.cat([part["y"] for part in parts]), y, **exact)
    torch.testing.assert_close(torch.cat([part["x"] for part in parts]), x.grad, **exact)
    gradients = [parameter.grad for parameter in net.parameters()]
    for part in parts:
        torch.testing.assert_close(part["gradients"], gradients, **exact)
        torch.testing.assert_close(part["state"], net.state_dict(), **exact)


def test_in_one_process_every_norm_is_plain():
    net, x = backbone("resnet18", size=32), torch.randn(4, 3, 32, 32)
    plain = copy.deepcopy(net)
    sync_batch_norm(net, "cpu")
    assert sum(isinstance(part, GatheredBatchNorm) for part in net.modules()) == 20
    torch.testing.assert_close(net(x), plain(x))
    torch.testing.assert_close(net.state_dict(), plain.state_dict())


def test_a_norm_that_is_not_known_is_refused():
    class Strange(nn.BatchNorm2d):
        pass

    with pytest.raises(ValueError, match="Strange is a batch norm that cannot be synchronised"):
        sync_batch_norm(nn.Sequential(Strange(3)), "cpu")
