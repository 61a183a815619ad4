"""The graph that onnxruntime runs gives torch's features."""

import json
import re
import shutil
from contextlib import nullcontext

import pytest
import torch

from export_subjects import export_of, make_trained
from flatnce.pretrain.exporting import (
    FORMS,
    ExportError,
    file_record,
    load_exported,
    open_graph,
    preprocessing,
    read_config,
)

ONNX = FORMS["onnx"]
REASON = "the onnx extra is not installed: pip install 'flatnce[onnx]'"


@pytest.fixture(scope="module")
def onnxruntime():
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module, reason=REASON)
    return pytest.importorskip("onnxruntime", reason=REASON)


@pytest.fixture(scope="module")
def plain(onnxruntime, tmp_path_factory):
    subject = make_trained()
    return subject, export_of(subject, "onnx", tmp_path_factory.mktemp("plain") / "digits-onnx")


@pytest.fixture
def known_graph(plain, monkeypatch):
    """Writes the graph that was made before, as making one takes seconds."""

    def write(source, folder):
        shutil.copy(plain[1] / "model.onnx", folder)
        return {"flatnce": {"graph": file_record(folder / "model.onnx")}}

    monkeypatch.setattr(ONNX, "write", write)


def run_graph(onnxruntime, folder, images):
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    return torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


@torch.no_grad()
def close_to(found, backbone, images):
    expected = backbone(images)
    allowed = 1e-5 * max(1.0, float(expected.abs().max()))
    return bool((found - expected).abs().max() <= allowed)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_any_number_of_images_gives_the_features(onnxruntime, plain, count):
    subject, folder = plain
    images = torch.randn(count, 1, 8, 8)
    found = run_graph(onnxruntime, folder, images)
    assert close_to(found, subject.encoder.backbone, images)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "resnet18", "size": 32, "channels": 3},
        pytest.param({"name": "convnext_atto", "size": 32, "channels": 3}, marks=pytest.mark.slow),
    ],
    ids=["resnet18, small stem", "timm"],
)
def test_larger_networks_give_the_features(onnxruntime, tmp_path, given):
    subject = make_trained(**given)
    folder = export_of(subject, "onnx", tmp_path / "out")
    images = torch.randn(4, 3, 32, 32)
    assert close_to(run_graph(onnxruntime, folder, images), subject.encoder.backbone, images)


def test_a_graph_of_an_earlier_version_may_have_the_normalisation_inside(plain, tmp_path):
    config = json.loads((plain[1] / "config.json").read_text())
    config["flatnce"]["input"]["normalised_inside"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    grey = torch.full((1, 1, 8, 8), 51, dtype=torch.uint8)
    torch.testing.assert_close(preprocessing(tmp_path)(grey), torch.full((1, 1, 8, 8), 0.2))


def test_the_graph_says_what_it_takes(onnxruntime, plain):
    session = onnxruntime.InferenceSession(str(plain[1] / "model.onnx"))
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.shape) == ("images", ["batch", 1, 8, 8])
    assert (given.name, given.shape) == ("features", ["batch", 128])


def test_the_code_on_the_card_runs(plain, monkeypatch):
    subject, folder = plain
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(folder.parent)
    images = torch.randn(2, 1, 8, 8)
    found = {"images": images.numpy()}
    exec(code, found)
    assert close_to(torch.from_numpy(found["features"]), subject.encoder.backbone, images)


def test_without_onnxruntime_it_is_written_unchecked(known_graph, tmp_path, monkeypatch):
    monkeypatch.setattr("flatnce.pretrain.exporting.find_spec", lambda name: None)
    out = export_of(make_trained(), "onnx", tmp_path / "out")
    assert read_config(out)["flatnce"]["check"] is None
    assert "onnxruntime is not installed" in (out / "README.md").read_text()


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_a_graph_that_differs_is_not_exported(known_graph, tmp_path, monkeypatch, wrong):
    real = ONNX.features
    monkeypatch.setattr(ONNX, "features", lambda *given: real(*given) + wrong)
    with pytest.raises(ExportError, match="nothing was written"):
        export_of(make_trained(), "onnx", tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("relative, exported", [(9e-6, True), (2e-5, False)])
def test_rounding_is_measured_by_the_largest_feature(tmp_path, monkeypatch, relative, exported):
    subject = make_trained()
    with torch.no_grad():  # as after a few steps at a large rate
        subject.encoder.backbone.layers[-2].weight.mul_(1e5)
    near = subject.encoder.backbone
    monkeypatch.setattr(ONNX, "check", lambda source: None)
    monkeypatch.setattr(ONNX, "write", lambda *given: {"flatnce": {}})
    monkeypatch.setattr(ONNX, "features", lambda _, images: near(images) * (1 + relative))
    with nullcontext() if exported else pytest.raises(ExportError, match="where the largest is"):
        out = export_of(subject, "onnx", tmp_path / "out")
        written = read_config(out)["flatnce"]["check"]
        assert written["largest_difference"] > 1e-5 and written["largest_feature"] > 1e3
    assert (tmp_path / "out").exists() == exported


def test_a_network_that_torch_cannot_trace_is_one_message(onnxruntime, tmp_path):
    subject = make_trained()

    class Branching(torch.nn.Module):
        width = 128

        def forward(self, images):
            return images.mean((2, 3)).expand(-1, 128) * (1 if images.sum() > 0 else 2)

    subject.encoder.backbone = Branching()
    with pytest.raises(ExportError, match=r"cannot write small as ONNX.*to='torch'"):
        export_of(subject, "onnx", tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("cut", [0, 100, None], ids=["emptied", "cut", "missing"])
def test_a_damaged_graph_is_named(known_graph, tmp_path, cut):
    path = export_of(make_trained(), "onnx", tmp_path / "out") / "model.onnx"
    path.unlink() if cut is None else path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ExportError, match=r"model\.onnx is missing, was cut short or changed"):
        open_graph(tmp_path / "out")


def test_loading_a_graph_as_a_network_says_what_opens_it(plain):
    with pytest.raises(ValueError, match="onnxruntime opens"):
        load_exported(plain[1])
