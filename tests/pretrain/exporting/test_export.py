"""A backbone written and loaded back is the same function."""

import errno
import json
from unittest.mock import Mock

import pytest
import torch

from export_subjects import MEAN, STD, export_of, make_trained, write_run
from flatnce.pretrain import load_encoder
from flatnce.pretrain.data.views import CentreCrop
from flatnce.pretrain.exporting import FORMS, ExportError, export, load_exported, preprocessing

BACKBONES = {
    "small": {"name": "small", "size": 8, "channels": 1},
    "small stem": {"name": "resnet18", "size": 32, "channels": 3},
    "small stem, grey": {"name": "resnet18", "size": 28, "channels": 1},
    "standard stem": {"name": "resnet18", "stem": "standard", "size": 64, "channels": 3},
    "bottlenecks": {"name": "resnet50", "stem": "standard", "size": 32, "channels": 3},
    "standard stem, grey": {"name": "resnet18", "stem": "standard", "size": 32, "channels": 1},
    "timm, any size": {"name": "convnext_atto", "size": 64, "channels": 3},
    "timm, grey": {"name": "mobilenetv3_small_050", "size": 32, "channels": 1},
    "timm, fixed size": {"name": "vit_tiny_patch16_224", "size": 32, "channels": 3},
}
NOT_IN_TIMM = ("small", "small stem", "small stem, grey")
IN_TIMM = [
    pytest.param(kind, marks=pytest.mark.slow if kind == "bottlenecks" else ())
    for kind in BACKBONES
    if kind not in NOT_IN_TIMM
]


@pytest.fixture
def small():
    return make_trained()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export_of(make_trained(), "torch", tmp_path_factory.mktemp("one") / "digits-torch")


def images_for(subject, count=5):
    return torch.randn(count, subject.channels, subject.size, subject.size)


@torch.no_grad()
def features_of(network, images):
    return network(images)


@pytest.mark.parametrize("kind", [*NOT_IN_TIMM, "standard stem", "timm, fixed size"])
def test_torch_gives_the_same_features_to_the_bit(tmp_path, kind):
    subject = make_trained(**BACKBONES[kind])
    network = load_exported(export_of(subject, "torch", tmp_path / "out"))
    images = images_for(subject)
    expected = features_of(subject.encoder.backbone, images)
    assert torch.equal(features_of(network, images), expected)
    assert not network.training and network.width == expected.shape[1]


@pytest.fixture(scope="module", params=IN_TIMM)
def loaded_by_timm(request, tmp_path_factory):
    """What was exported, where to, and the network that timm makes of it."""
    timm = pytest.importorskip("timm", reason="timm loads what is tested here")
    subject = make_trained(**BACKBONES[request.param])
    out = export_of(subject, "timm", tmp_path_factory.mktemp("timm") / "out")
    return subject, out, timm.create_model(f"local-dir:{out}", pretrained=True).eval()


def test_timm_gives_the_same_features_to_the_bit(loaded_by_timm):
    subject, out, network = loaded_by_timm
    images = images_for(subject)
    expected = features_of(subject.encoder.backbone, images)
    assert torch.equal(features_of(network, images), expected)
    assert torch.equal(features_of(load_exported(out), images), expected)


def test_timm_reads_size_and_normalisation(loaded_by_timm):
    from timm.data import resolve_model_data_config

    subject, _, network = loaded_by_timm
    read = resolve_model_data_config(network)
    assert list(read["input_size"]) == [subject.channels, subject.size, subject.size]
    assert list(read["mean"]) == [MEAN] * subject.channels
    assert list(read["std"]) == [STD] * subject.channels
    assert (read["crop_pct"], read["interpolation"]) == (1.0, "bicubic")


def test_timm_can_add_a_classifier(loaded_by_timm):
    import timm

    subject, out, _ = loaded_by_timm
    network = timm.create_model(f"local-dir:{out}", pretrained=True, num_classes=7).eval()
    images = images_for(subject)
    assert features_of(network, images).shape == (5, 7)
    with torch.no_grad():
        before = network.forward_head(network.forward_features(images), pre_logits=True)
    torch.testing.assert_close(before, features_of(subject.encoder.backbone, images))


@pytest.mark.parametrize("kind", NOT_IN_TIMM)
def test_what_timm_has_no_name_for_is_refused_with_another_form(tmp_path, kind):
    with pytest.raises(ValueError, match=r"to='torch'.*to='onnx'"):
        export_of(make_trained(**BACKBONES[kind]), "timm", tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_what_timm_cannot_read_back_is_refused_with_another_form(tmp_path, monkeypatch):
    timm = pytest.importorskip("timm", reason="timm loads what is tested here")
    subject = make_trained(**BACKBONES["timm, fixed size"])
    refused = RuntimeError("Error(s) in loading state_dict\nMissing key(s)")
    monkeypatch.setattr(timm, "create_model", Mock(side_effect=refused))
    with pytest.raises(ExportError, match=r"cannot read vit_tiny.*to='torch' or to='onnx'"):
        export_of(subject, "timm", tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_preprocessing_is_that_of_evaluation(folder):
    images = torch.randint(256, (2, 1, 12, 10), dtype=torch.uint8)
    expected = CentreCrop(8, mean=MEAN, std=STD)(images)
    torch.testing.assert_close(preprocessing(folder)(images), expected)


@pytest.mark.parametrize("step, name", [(None, "first-torch"), (0, "first-step-0-torch")])
def test_a_checkpoint_is_exported_into_the_folder_of_its_run(tmp_path, step, name):
    run = write_run(tmp_path / "first")
    out = export(run, "torch", step=step)
    assert out == run / "exports" / name
    images = torch.randn(2, 1, 8, 8)
    last, first = (features_of(load_encoder(run, s).encoder.backbone, images) for s in (None, 0))
    assert not torch.equal(first, last)
    expected = last if step is None else first
    assert torch.equal(features_of(load_exported(out), images), expected)


def test_a_second_export_replaces_the_first_only_on_request(tmp_path, small):
    out = export_of(small, "torch", tmp_path / "out")
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"already holds an export.*replace=True"):
        export_of(small, "torch", out)
    out.rename(tmp_path / ".out.replaced")  # as an export that is killed leaves it
    with pytest.raises(ValueError, match=r"already holds an export.*replace=True"):
        export_of(small, "torch", out)
    assert (out / "model.safetensors").read_bytes() == before
    assert export_of(make_trained(step=60), "torch", out, replace=True) == out
    assert json.loads((out / "config.json").read_text())["flatnce"]["step"] == 60
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("replace", [False, True])
def test_files_of_others_are_never_removed(tmp_path, small, replace):
    out = export_of(small, "torch", tmp_path / "out")
    (out / "LICENSE").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architecture": "resnet18"}')
    for place in (out, tmp_path / "other"):
        with pytest.raises(ValueError, match="never removed"):
            export_of(small, "torch", place, replace=replace)
    assert (out / "LICENSE").read_text() == "mine"


@pytest.mark.parametrize(
    "error, raised, words",
    [
        (OSError(errno.ENOSPC, "No space left on device"), ExportError, "No space left"),
        (PermissionError(errno.EACCES, "Permission denied"), ExportError, "Permission denied"),
        (KeyboardInterrupt("asked to stop"), KeyboardInterrupt, "asked to stop"),
    ],
    ids=["full disk", "no permission", "interrupt"],
)
def test_what_fails_leaves_the_earlier_export_and_nothing_else(
    tmp_path, small, monkeypatch, error, raised, words
):
    def fail(source, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    out = export_of(small, "torch", tmp_path / "out")
    monkeypatch.setattr(FORMS["torch"], "write", fail)
    with pytest.raises(raised, match=words):
        export_of(make_trained(step=60), "torch", out, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert json.loads((out / "config.json").read_text())["flatnce"]["step"] == 30
    load_exported(out)


def test_an_export_that_is_interrupted_while_it_waits_leaves_the_other_one(
    tmp_path, small, monkeypatch
):
    other = tmp_path / ".out.partial"  # of the process that it waits for
    other.mkdir()
    interrupted = Mock(side_effect=KeyboardInterrupt("while waiting"))
    monkeypatch.setattr("flatnce.pretrain.exporting.lock", interrupted)
    with pytest.raises(KeyboardInterrupt, match="while waiting"):
        export_of(small, "torch", tmp_path / "out")
    assert other.is_dir()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"to": "tim"}, "did you mean 'timm'"),
        ({"to": "tensorflow"}, "choose one of timm, torch, onnx"),
    ],
)
def test_misuse_is_named(tmp_path, small, options, words):
    with pytest.raises(ValueError, match=words):
        export_of(small, out=tmp_path / "out", **options)
    with torch.no_grad():
        small.encoder.backbone.layers[0].weight[0] = torch.nan
    with pytest.raises(ExportError, match="diverged; export an earlier step"):
        export_of(small, "torch", tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "file, content, error, words",
    [
        ("model.safetensors", b"cut", ExportError, "is missing, was cut short or changed"),
        ("config.json", None, ValueError, "no config.json"),
        ("config.json", b"[]", ExportError, "damaged"),
        ("config.json", b'{"flatnce": {"format_version": 99}}', ExportError, "upgrade flatnce"),
    ],
)
def test_a_damaged_export_is_named(tmp_path, small, file, content, error, words):
    path = export_of(small, "torch", tmp_path / "out") / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(error, match=words):
        load_exported(tmp_path / "out")


def test_weights_of_another_backbone_are_named(tmp_path, small):
    out = export_of(small, "torch", tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    config["flatnce"]["backbone"]["channels"] = 3
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="not of one export"):
        load_exported(out)
