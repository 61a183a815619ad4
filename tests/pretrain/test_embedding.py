"""``flatnce.load`` and ``flatnce embed``: any kind of image, from a run, an export or the hub."""

import json
import shutil
import time
from importlib import import_module
from pathlib import Path
from threading import Lock
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

import flatnce
from export_subjects import export_of, make_trained, write_run
from flatnce import extras
from flatnce.cli import main
from flatnce.messages import FlatnceWarning
from flatnce.pretrain import embedding, load_encoder, preset
from flatnce.pretrain.data import FolderSet, ImageSet
from flatnce.pretrain.evaluation import evaluate_run, extract
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training import loop, named
from flatnce.pretrain.training.loop import Outcome
from pictures import pictures

pytestmark = pytest.mark.usefixtures("_alone")


@pytest.fixture
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLATNCE_RUNS", raising=False)


@pytest.fixture
def encoder(tmp_path):
    write_run(tmp_path / "runs" / "first", channels=3)
    return flatnce.load("first", device="cpu")


@pytest.fixture
def photos(tmp_path):
    """Files of several sizes in two class folders, and their paths."""
    generator = np.random.default_rng(0)
    paths = []
    for number, size in enumerate([(20, 30), (8, 8), (16, 9), (31, 12)]):
        paths.append(tmp_path / "photos" / ("cat" if number < 2 else "dog") / f"{number}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)).save(paths[-1])
    return paths


def defined(images, labels=None):
    """The definition: what evaluation extracts."""
    loaded = load_encoder("runs/first")
    mean, std = loaded.normalisation
    labels = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    if isinstance(images, torch.Tensor):
        found = ImageSet(images, labels, ("a",))
    else:
        found = FolderSet(tuple(map(str, images)), labels, ("a",))
    options = {"size": loaded.size, "mean": mean, "std": std, "channels": loaded.channels}
    return extract(loaded.encoder.backbone, found, **options, workers=0).features


def test_files_folders_and_pillow_are_what_evaluation_extracts(encoder, photos):
    expected = defined(photos)
    assert torch.equal(encoder.embed(photos), expected)
    assert torch.equal(encoder.embed("photos"), expected)
    torch.testing.assert_close(encoder.embed("photos", batch_size=3), expected)
    assert torch.equal(encoder.embed([Image.open(path) for path in photos]), expected)
    torch.testing.assert_close(encoder.embed(photos[0]), expected[:1])
    torch.testing.assert_close(encoder.embed(Image.open(photos[1])), expected[1:2])
    levels = np.random.default_rng(0).integers(256, size=(9, 8), dtype=np.uint8)
    deep = encoder.embed(Image.fromarray(levels.astype(np.uint16) * 257))
    assert torch.equal(deep, encoder.embed(Image.fromarray(levels)))


def test_arrays_and_tensors_are_what_evaluation_extracts(encoder):
    images = torch.randint(0, 256, (5, 3, 12, 10), dtype=torch.uint8)
    expected = defined(images)
    last = images.permute(0, 2, 3, 1).numpy()
    floats = images.double() / 255
    for given in (images, list(images), last, list(last), floats, floats.numpy(), images.int()):
        assert torch.equal(encoder.embed(given), expected)
    torch.testing.assert_close(encoder.embed(last[0]), expected[:1])
    grey = images[:, :1]
    expected = defined(grey)
    for given in (grey, grey[:, 0], grey[:, 0].numpy(), list(grey[:, 0].numpy())):
        assert torch.equal(encoder.embed(given), expected)


def test_a_tensor_with_channels_last_is_not_read_as_grey_images(encoder):
    for shape in ((40, 50, 3), (64, 64, 3), (2, 40, 50, 3)):
        with pytest.raises(ValueError, match=r"tensors \(c, h, w\) or \(n, c, h, w\)"):
            encoder.embed(torch.zeros(shape, dtype=torch.uint8))


def test_one_grey_image_of_the_size_of_training_needs_no_list(encoder):
    grey = np.random.default_rng(0).integers(0, 256, encoder.shape[1:], np.uint8)
    for given in (grey, torch.from_numpy(grey)):
        assert torch.equal(encoder.embed(given), encoder.embed([grey]))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_grey_images_of_the_size_of_training_are_not_the_channels_of_one(count, tmp_path):
    write_run(tmp_path / "runs" / "grey", channels=1)
    grey = flatnce.load("grey", device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (count, *grey.shape[1:]), np.uint8)
    expected = grey.embed(list(images))
    assert expected.shape == (count, grey.width)
    for given in (images, torch.from_numpy(images)):
        assert torch.equal(grey.embed(given), expected)


def test_one_lazily_opened_image_may_stand_in_a_list_several_times(encoder, photos, monkeypatch):
    monkeypatch.setattr(embedding.image_set, "available_cores", lambda: 8)
    reading = Lock()

    class Lazy(Image.Image):
        """Fails whenever a thread uses it while another reads its file, as Pillow may."""

        file = Image.open(photos[0])
        is_read = False

        def load(self):
            assert reading.acquire(blocking=False), "two threads read one image"
            time.sleep(0.02)
            self.file.load()
            self.is_read = True
            reading.release()

        def convert(self, mode):
            if not self.is_read:
                self.load()
            return self.file.convert(mode)

    for image in (Image.open(photos[0]), Lazy()):
        found = encoder.embed([image] * 8)
        torch.testing.assert_close(found, defined(photos[:1]).expand(8, -1))


def test_a_list_may_mix_kinds_and_sizes(encoder, photos):
    array = np.asarray(Image.open(photos[1]))  # of the size of training: nothing is resized
    found = encoder.embed([str(photos[0]), array, torch.zeros(3, 40, 9, dtype=torch.uint8)])
    torch.testing.assert_close(found[:2], defined(photos[:2]))
    assert found.shape == (3, encoder.width)


def test_rows_are_normalised_and_counted_on_request(encoder, capsys):
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    found = encoder.embed(images, normalize=True, progress=True, batch_size=2)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))
    assert capsys.readouterr().err.endswith("\rembedded 5 of 5 images\n")
    assert "network" not in repr(encoder) and "name='first'" in repr(encoder)


@pytest.mark.parametrize(
    "given, said",
    [
        (3.0, "images is a float; pass paths of files"),
        ([], "holds no image"),
        ([None], "holds a NoneType"),
        (np.zeros((2, 5, 8, 8), np.uint8), r"images has shape \(2, 5, 8, 8\)"),
        (np.zeros((9, 8, 4), np.uint8), r"images has shape \(9, 8, 4\); .* 1 or 3 channels"),
        (np.zeros((5, 64)), r"shape \(5, 64\); .* or a list of grey images \(h, w\)$"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], "holds 2 images, not one"),
        (torch.full((3, 8, 8), 1.5), "floats from 0 to 1 that are not normalised"),
        (torch.full((3, 8, 8), torch.nan), "floats from 0 to 1"),
        (torch.full((3, 8, 8), 300), "bytes from 0 to 255"),
        ("photo", "^images: no such file or folder 'photo'$"),
        ([np.zeros((8, 8), np.uint8), Path("photo")], "no such file or folder 'photo'"),
    ],
)
def test_what_is_not_an_image_is_refused(encoder, given, said):
    with pytest.raises((ValueError, OSError), match=said):
        encoder.embed(given)


@pytest.mark.parametrize("form", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_an_export_and_the_hubs_folder_give_the_features_of_the_run(tmp_path, form):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    subject = make_trained(channels=3)
    folder = export_of(subject, form, tmp_path / "taken")
    images = torch.randint(0, 256, (3, 3, 11, 8), dtype=torch.uint8)
    mean, std = subject.normalisation
    classes = ImageSet(images, torch.zeros(3, dtype=torch.int64), ("a",))
    options = {"size": subject.size, "mean": mean, "std": std}
    expected = extract(subject.encoder.backbone, classes, **options).features
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if form == "onnx" else {"rtol": 0, "atol": 0}
    found = flatnce.load("taken", device="cpu")
    assert (found.step, found.width) == (30, expected.shape[1])
    torch.testing.assert_close(found.embed(images), expected, **tolerance)
    # As the hub's library keeps a download: files are links, other files lie beside them.
    hub = tmp_path / "models--org--net"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("abc123")
    (hub / "snapshots" / "abc123").mkdir(parents=True)
    for file in folder.iterdir():
        (hub / "snapshots" / "abc123" / file.name).symlink_to(file)
    (hub / "snapshots" / "abc123" / ".gitattributes").touch()
    for place in (hub, hub / "snapshots" / "abc123"):
        torch.testing.assert_close(flatnce.load(place).embed(images), expected, **tolerance)
    with pytest.raises(ValueError, match="is an export"):
        flatnce.load(folder, step=3)


def test_a_name_that_is_nothing_is_answered_with_the_nearest(encoder):
    with pytest.raises(ValueError, match="did you mean 'first'"):
        flatnce.load("frist")
    with pytest.raises(ValueError, match=r"^name='frist' is not a run directory"):
        flatnce.load("frist")
    with pytest.raises(ValueError, match=r"^data='digit' is not a data set"):
        flatnce.train("digit")


# The command.


def test_a_folder_is_embedded_with_names_and_labels(encoder, photos, capsys):
    assert main(["embed", "first", "photos", "--out", "e.npz", "--normalize", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["arrays"]["embeddings"] == [4, encoder.width] and said["step"] == 30
    found = np.load("e.npz")
    assert list(found["files"]) == ["cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png"]
    assert list(found["labels"]) == [0, 0, 1, 1] and list(found["classes"]) == ["cat", "dog"]
    expected = torch.nn.functional.normalize(defined(photos))
    assert np.array_equal(found["embeddings"], expected.numpy())
    assert main(["embed", "first", "photos", "--out", "e.npz"]) == 2
    assert "already exists" in capsys.readouterr().err


def test_parts_of_a_folder_are_not_classes_and_a_flat_folder_has_none(encoder, photos, capsys):
    shutil.copytree("photos", "split/train")
    shutil.copytree("photos", "split/val")
    assert main(["embed", "first", "split"]) == 0
    found = np.load("embeddings.npz")
    assert list(found["labels"]) == [0, 0, 1, 1] * 2 and "train/cat/0.png" in found["files"]
    assert main(["embed", "first", "photos/cat", "--replace"]) == 0
    assert sorted(np.load("embeddings.npz")) == ["embeddings", "files"]
    assert "2 images by first at step 30: embeddings.npz" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_named_once_with_what_to_do(encoder, tmp_path, capsys):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "torn.png").write_bytes(b"no image")
    assert main(["embed", "first", "bad"]) == 1
    said = capsys.readouterr().err
    assert said.count("cannot be read") == 1 and "torn.png" in said
    assert "replace or remove it, or skip it with --skip-unreadable (in Python" in said


def test_a_torchvision_that_cannot_be_imported_is_one_line(encoder, photos, monkeypatch, capsys):
    def broken(name):
        if name.startswith("torchvision"):
            raise RuntimeError("operator torchvision::nms does not exist")
        return import_module(name)

    monkeypatch.setattr(extras, "import_module", broken)
    train = "train ./photos --backbone small --batch-size 2 --decode-size 8 --workers 1".split()
    for command in (["embed", "first", "photos"], train):
        assert main(command) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert "which cannot be imported (RuntimeError: operator torchvision::nms" in said
        assert said.endswith("); install it again (`flatnce doctor` checks the installation)")


def test_files_that_cannot_be_read_are_skipped_if_asked(encoder, photos, capsys):
    Path("photos/cat/torn.png").write_bytes(b"no image")
    with pytest.warns(FlatnceWarning, match=r"1 of 5 files cannot be read .*torn.png"):
        assert main(["embed", "first", "photos", "--skip-unreadable"]) == 0
    found = np.load("embeddings.npz")
    assert list(found["labels"]) == [0, 0, 1, 1] and "cat/torn.png" not in found["files"]


@pytest.mark.parametrize(
    "typed, said",
    [
        ("frist photos", "did you mean 'first'"),
        ("first ./nowhere", "./nowhere is not a folder of images; name one that exists"),
        ("first ./nowhere --out photos", "./nowhere is not a folder"),
        ("first runs/first/config.json", "flatnce.load('first').embed('runs/first/config.json')"),
        ("first runs", "runs holds no image"),
        ("first photos --out e.txt", "--out e.txt must be a file .npz"),
        ("first photos --out no/e.npz", "--out no/e.npz: the folder no does not exist; make it"),
    ],
)
def test_misuse_of_embed_is_one_line(encoder, photos, capsys, typed, said):
    assert main(["embed", *typed.split()]) == 2
    assert said in capsys.readouterr().err


# flatnce.train


def test_train_starts_a_run_with_its_settings_and_passes_the_rest_on(monkeypatch):
    calls, train = [], loop.train

    def trained(config, directory, **rest):
        calls.append((config, str(directory), rest))
        return Outcome(write_run(Path("runs/any"), finished=False), finished=False, step=30)

    monkeypatch.setattr(loop, "train", trained)
    flatnce.train("digits", objective="infonce", batch_size=32, name="mine", replace=True)
    config, directory, rest = calls.pop()
    assert config == preset("digits").override(objective="infonce", batch_size=32)
    assert directory == "runs/mine" and rest.pop("report")
    assert rest == {"replace": True, "evaluate": ("knn", "linear")}
    shutil.rmtree("runs")
    flatnce.train("digits", preset="cifar10", seed=3)
    config, directory, _ = calls.pop()
    assert config == preset("cifar10").override(data="digits", split="train", seed=3)
    assert directory == "runs/digits-flatnce-b256-s3"
    shutil.rmtree("runs")
    own = object()
    flatnce.train(own, name="own", encoder="network")
    config, _, rest = calls.pop()
    assert config.data.data.value is own and rest.pop("report")
    assert config.model.backbone == "network" and rest == {"evaluate": ("knn", "linear")}
    with pytest.raises(ValueError, match=r"^stem='small' has no effect here, it is for a ResNet"):
        flatnce.train(own, encoder=torch.nn.Linear(8, 8), stem="small")
    with pytest.raises(TypeError, match="multiple values for keyword argument 'backbone'"):
        flatnce.train(own, encoder="network", backbone="resnet50")
    with pytest.raises(ValueError, match=r"'epoch' is not a setting .*; did you mean 'epochs'"):
        flatnce.train("digits", epoch=2)
    with pytest.raises(
        ValueError, match=r"^ess_rate=0\.1 has no effect.*such as ess=0\.075; give"
    ):
        flatnce.train("digits", ess_rate=0.1)
    with pytest.raises(
        ValueError, match=r"^flip=0\.9 has no effect.*the built-in views: leave it"
    ):
        flatnce.train([], augment=len, flip=0.9)
    assert not calls
    shutil.rmtree("runs")
    settings = preset("digits").override(seed=4).flat()  # those without effect are the usual ones
    flatnce.train(settings.pop("data"), name="again", **settings)
    assert calls.pop()[0] == preset("digits").override(seed=4)
    monkeypatch.setattr(loop, "train", train)
    shutil.rmtree("runs")
    for wrong in (["linaer"], "linaer"):
        with pytest.raises(ValueError, match="did you mean 'linear'"):
            flatnce.train("digits", evaluate=wrong)
    assert not Path("runs").exists()


def test_one_protocol_may_be_named_without_a_list():
    quick = {"epochs": 1, "batch_size": 256, "tensorboard": False, "device": "cpu", "quiet": True}
    run = read_run(flatnce.train("digits", evaluate="mi", name="one-protocol", **quick).directory)
    assert run.environment["evaluate"] == ["mi"]
    assert [one["name"] for one in run.results["evaluations"]] == ["mi"]


@pytest.mark.parametrize("rank, pages", [("0", 1), ("1", 0)])
def test_the_first_process_alone_evaluates_and_writes_the_page(monkeypatch, rank, pages):
    outcome = Outcome(Path("runs/any"), finished=True, step=30)
    monkeypatch.setattr(loop, "train", Mock(return_value=outcome))
    monkeypatch.setattr(named, "read_run", Mock(return_value=Mock(results={"labelled": True})))
    for name in ("evaluate_run", "run_page", "read_config"):
        monkeypatch.setattr(named, name, Mock())
    monkeypatch.setenv("RANK", rank)
    assert flatnce.train("digits", quiet=True) is outcome
    assert named.evaluate_run.call_count == named.run_page.call_count == pages


def test_labels_of_one_class_leave_a_trained_run_without_an_evaluation(capsys):
    items = [(image, 0) for image in pictures(40, height=8)]
    quick = {"epochs": 1, "batch_size": 20, "tensorboard": False, "device": "cpu", "workers": 0}
    why = r"runs/one is trained and saved, but its evaluation did not finish: object:list.* has no"
    why += r" test part .* \(it has one class, 0\)\. Pass test_data=\.\.\. to flatnce.train, or"
    why += r" evaluate on another set: flatnce.pretrain.evaluation.evaluate_run\(run, 'knn', "
    with pytest.warns(FlatnceWarning, match=why):
        outcome = flatnce.train(items, name="one", **quick)
    assert outcome.finished and "(it has one class, 0)" in outcome.not_evaluated
    assert "the page: runs/one/report.html" in capsys.readouterr().out
    with pytest.warns(FlatnceWarning, match=why):
        assert flatnce.resume("one", evaluate=["knn"], quiet=True, data=items).finished
    assert not capsys.readouterr().out
    assert evaluate_run("runs/one", "knn", ["digits"])[0]["data"] == "digits"  # what it advises


@pytest.mark.parametrize("step, asked", [(10, ["knn"]), (30, None)])
def test_an_evaluation_of_an_earlier_step_does_not_stand_for_the_last_one(
    monkeypatch, step, asked, capsys
):
    earlier = {"name": "linear", "step": step, "top1": 0.5, "protocol": {"data": "digits"}}
    results = {"step": 30, "seconds": 1.0, "verdict": "healthy", "evaluations": [earlier]}
    run = Mock(results=results, environment={"evaluate": ["knn"]})
    monkeypatch.setattr(named, "read_run", Mock(return_value=run))
    monkeypatch.setattr(named, "_next_calls", Mock(return_value="no more"))
    for name in ("evaluate_run", "run_page", "read_config"):
        monkeypatch.setattr(named, name, Mock())
    outcome = Outcome(Path("runs/any"), finished=True, step=30)
    assert named.finish_run(outcome, None) is None
    called = named.evaluate_run.call_args
    assert (called and called.args[1]) == asked
    named.print_results(outcome)
    assert ("linear" in capsys.readouterr().out) == (step == 30)


@pytest.mark.slow
def test_a_run_of_train_is_evaluated_has_a_page_and_is_found_by_load(tmp_path, capsys):
    quick = {"epochs": 1, "batch_size": 300, "tensorboard": False, "device": "cpu", "pool": 64}
    outcome = flatnce.train("digits", name="mine", evaluate=["knn"], **quick)
    assert outcome.finished and outcome.directory.resolve() == tmp_path / "runs" / "mine"
    assert (outcome.directory / "report.html").is_file()
    results = json.loads((outcome.directory / "results.json").read_text())
    assert {one["name"] for one in results["evaluations"]} == {"knn"}
    assert flatnce.load("mine").step == outcome.step
    shown = capsys.readouterr()
    assert "epoch 1.0/1" in shown.out and "next: flatnce evaluate mine" in shown.out
    flatnce.train("digits", name="mine", evaluate=[], quiet=True, replace=True, **quick)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="replace=True"):
        flatnce.train("digits", name="mine", **quick)
