"""The model card: what the hub reads, what people read, and code that runs as it stands."""

import re
from pathlib import Path

import pytest
import torch

from export_subjects import MEAN, STD, as_run, export_of, make_trained, write_run
from flatnce.pretrain.exporting import Source, card, export
from made_runs import EVALUATION

STANDARD = {"name": "resnet18", "stem": "standard", "size": 32, "channels": 3}
AT_THE_END = {**EVALUATION, "step": 30}


def card_of(folder):
    return (folder / "README.md").read_text(encoding="utf-8")


def code_of(text):
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


OTHERS = {
    "name only": ({"protocol": "knn", "top1": 1}, "| knn |  | top-1 | 100.00 % |  |  |  |"),
    "kNN": (
        {"name": "knn", "data": "digits", "protocol": {"name": "knn, k = 20"}, "top1": 0.5},
        "| knn, k = 20 | digits | top-1 | 50.00 % |  |  |  |",
    ),
    "another measure": (
        {"name": "linear", "data": "voc2007", "measure": "top-1, first", "top1": 0.25},
        "| linear | voc2007 | top-1, first | 25.00 % |  |  |  |",
    ),
    "information": (
        {"protocol": {"name": "mi"}, "measure": "mutual information, nats", "pool_mi": 4.567},
        "| mi |  | mutual information, nats | 4.57 nats |  |  |  |",
    ),
    "folder": (
        {"protocol": {"name": "a|b"}, "data": "/secret/photos", "top1": None},
        "| a/b | a folder of images, photos | top-1 |  |  |  |  |",
    ),
    "nothing": ({}, "| unnamed |  |  |  |  |  |  |"),
}


@pytest.fixture(scope="module")
def of_a_run(tmp_path_factory):
    """The card of a run with one evaluation of every kind."""
    evaluations = [AT_THE_END, *(given for given, _ in OTHERS.values())]
    run = write_run(tmp_path_factory.mktemp("runs") / "first", evaluations=evaluations)
    return card_of(export(run, "torch"))


@pytest.mark.parametrize(
    "form, library, given", [("torch", "flatnce", {}), ("timm", "timm", STANDARD)]
)
def test_the_hub_reads_the_front_matter(tmp_path, form, library, given):
    hub = pytest.importorskip("huggingface_hub", reason="it reads what is tested here")
    folder = export_of(make_trained(**given), form, tmp_path / "out")
    read = hub.ModelCard.load(folder / "README.md").data
    assert read.library_name == library
    assert read.pipeline_tag == "image-feature-extraction"
    assert {"self-supervised-learning", "flatnce", given.get("name", "small")} <= set(read.tags)
    assert read.license is None  # the user's to choose


RESNETS = {
    "small stem": {"name": "resnet18", "size": 16, "channels": 3},
    "standard stem, grey": {"name": "resnet18", "stem": "standard", "size": 32, "channels": 1},
    "standard stem": STANDARD,
}


@pytest.mark.parametrize("given", [{}, RESNETS["small stem"]], ids=["small", "resnet18"])
def test_the_code_for_torch_runs(tmp_path, monkeypatch, given):
    subject = make_trained(**given)
    code, *_ = code_of(card_of(export_of(subject, "torch", tmp_path / 'my "best" one')))
    monkeypatch.chdir(tmp_path)
    shape = (2, subject.channels, subject.size, subject.size)
    found = {"images": torch.randint(256, shape, dtype=torch.uint8)}
    with torch.no_grad():
        exec(code, found)
        expected = subject.encoder.backbone((found["images"] / 255 - MEAN) / STD)
    torch.testing.assert_close(found["features"], expected)


@pytest.mark.parametrize("kind", RESNETS)
def test_the_code_for_torchvision_runs(tmp_path, monkeypatch, kind):
    subject = make_trained(**RESNETS[kind])
    _, code = code_of(card_of(export_of(subject, "torch", tmp_path / "first-torch")))
    monkeypatch.chdir(tmp_path)
    found = {"images": torch.randn(2, subject.channels, subject.size, subject.size)}
    with torch.no_grad():
        exec(code, found)
        assert torch.equal(found["features"], subject.encoder.backbone(found["images"]))


def test_the_code_for_timm_runs(tmp_path, monkeypatch):
    pytest.importorskip("timm", reason="timm loads what is tested here")
    image = pytest.importorskip("PIL.Image", reason="timm's transform takes its images")
    subject = make_trained(**STANDARD)
    text = card_of(export_of(subject, "timm", tmp_path / "first-timm"))
    monkeypatch.chdir(tmp_path)
    found = {"images": torch.randn(2, 3, 32, 32)}
    with torch.no_grad():
        exec("\n".join(code_of(text)), found)
        assert torch.equal(found["features"], subject.encoder.backbone(found["images"]))
    grey = found["transform"](image.new("RGB", (50, 40), (51, 51, 51)))
    torch.testing.assert_close(grey, torch.full((3, 32, 32), (0.2 - MEAN) / STD))


def test_the_card_of_a_run_says_how_it_was_trained_and_evaluated(of_a_run):
    for words in (
        "# first",
        "pretrained without labels on digits (train) with FlatNCE",
        "| Objective | FlatNCE |",
        "| Batch size | 64 |",
        "| Epochs | 5 (step 30) |",
        "| Temperature | 0.1 |",
        "| Seed | 0 |",
        "float32, (batch, 1, 8, 8), grey",
        "| linear | digits | top-1 | 95.12 % | 93.00 % to 97.00 % | 99.90 % | 1,359 |",
        *(row for _, row in OTHERS.values()),
        "trained on images of 8 x 8 pixels",
        "loaded back: the same features to the bit",
    ):
        assert words in of_a_run, words


def test_the_card_of_an_unfinished_run_says_that_its_epochs_were_asked_for(tmp_path):
    text = card_of(export(write_run(tmp_path / "first", finished=False), "torch"))
    assert "| Epochs | 5 asked for (step 30) |" in text


@pytest.mark.parametrize("commit", [None, "0123abc"])
def test_the_card_names_a_commit_only_where_there_is_one(tmp_path, monkeypatch, commit):
    monkeypatch.setattr("flatnce.environment._commit", lambda: commit)
    text = card_of(export(write_run(tmp_path / "first"), "torch"))
    assert ("| Commit of flatnce | 0123abc |" in text) == (commit is not None)
    assert re.search(r"\| Trained with \| flatnce \d", text) and "| unknown |" not in text


def test_the_card_says_that_the_encoder_was_pretrained_on_the_images(tmp_path):
    held_out = {"name": "knn", "data": "/home/me/photos", "test": {}}
    held_out["test"] = {"split": "held out of train", "note": "pretrained on these"}
    cases = [({"name": "knn"}, "On the test set.\n"), (held_out, "training samples. photos has")]
    for number, (protocol, said) in enumerate(cases):
        evaluations = [{**AT_THE_END, "protocol": protocol}]
        run = write_run(tmp_path / str(number), evaluations=evaluations)
        text = card_of(export(run, "torch"))
        assert said in text and "/home/me" not in text


def test_evaluations_of_other_steps_are_left_out(tmp_path):
    others = [{**EVALUATION, "step": 0}]
    text = card_of(export(write_run(tmp_path / "first", evaluations=others), "torch"))
    assert "95.12 %" not in text
    assert (
        "None was recorded for this step" in text
        and "other steps of the run, left out here: 1." in text
    )


def test_the_card_names_no_path_of_this_machine(tmp_path):
    data = str(Path.home() / "secret" / "photos")
    run = write_run(tmp_path / "first", data=data, channels=3)
    folder = export(run, "torch")
    text = card_of(folder) + (folder / "config.json").read_text()
    assert "a folder of images, photos (train)" in text
    assert "secret" not in text and str(tmp_path) not in text


PRETRAINED = {"name": "resnet18", "pretrained": True}


@pytest.mark.parametrize(
    "settings, words",
    [
        (PRETRAINED, "started from the published resnet18 weights of torchvision"),
        (PRETRAINED, "licence of the weights that it started from"),
        ({"flip": 0.5}, "left and right"),
        ({"queue": 512, "momentum_encoder": 0.99}, "512 past keys, momentum encoder 0.99"),
        ({"micro_batch": 16}, "64, 16 in memory at once"),
        ({"objective": "holder", "gamma": 3.0}, "Hölder-FlatNCE, gamma 3"),
        ({"temperature_end": 0.05}, "0.1 to 0.05 along a cosine"),
        ({"learn_temperature": True}, "learned, from 0.1"),
        ({"ess": 0.3}, "an effective sample size of 0.3, from 0.1"),
        ({"ess": 0.3, "ess_end": 0.1}, "of 0.3 to 0.1 along a cosine"),
        ({"head_layers": 0}, "| Projection head | none |"),
    ],
)
def test_settings_are_told(settings, words):
    with as_run(make_trained(**settings)) as run:
        assert words in card(Source(run), "torch", "out", "")


@pytest.mark.parametrize("size, blurred", [(8, False), (64, True)])
def test_the_card_says_how_the_views_differed(tmp_path, size, blurred):
    run = write_run(tmp_path / "first", size=size)
    text = card_of(export(run, "torch"))
    (row,) = re.findall(r"\| Augmentation \| (.*) \|", text)
    assert "auto" not in row and ("blur 0.5" in row) == blurred
    (said,) = re.findall(r"- The views of an image differed in these properties: (.*)", text)
    assert "place and scale; " in said and ("sharpness" in said) == blurred
    assert said.endswith(". The features tend to ignore them, also where your task needs them.")
