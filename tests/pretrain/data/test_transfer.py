"""The sets that encoders are carried over to, held against torchvision's own reading."""

import hashlib
from pathlib import Path

import pytest
import torch
from torchvision import datasets

from flatnce.pretrain.data import DamagedData, MissingData, load
from flatnce.pretrain.data.readers import VOC_CLASSES
from tiny_sets import shrink, write_caltech, write_flowers, write_sun, write_voc

VOC_IMAGES = {
    "train": [("dog", 1), ("person", 0), ("person", 1)],
    "val": [("sofa", 0), ("dog", 0), ("dog", 1)],
    "test": [("cat", 1), ("cat", 1), ("train", 0)],
}


@pytest.fixture
def flowers(tmp_path, monkeypatch):
    shrink(monkeypatch, "flowers102", train=2, validation=2, trainval=4, test=2)
    write_flowers(tmp_path)
    folder = tmp_path / "flowers-102"
    known = {
        part: (name, hashlib.md5((folder / name).read_bytes()).hexdigest())
        for part, name in (("label", "imagelabels.mat"), ("setid", "setid.mat"))
    }
    monkeypatch.setattr(datasets.Flowers102, "_file_dict", known)
    return tmp_path


@pytest.mark.parametrize(
    "split, images, labels",
    [
        ("train", [6, 2], [4, 0]),
        ("validation", [1, 4], [4, 1]),
        ("trainval", [6, 2, 1, 4], [4, 0, 4, 1]),
        ("test", [3, 5], [101, 1]),
    ],
)
def test_flowers_have_their_official_parts(flowers, split, images, labels):
    found = load("flowers102", split, flowers)
    assert [Path(path).name for path in found.paths] == [f"image_{i:05d}.jpg" for i in images]
    assert found.labels.tolist() == labels
    assert found.classes[0] == "pink primrose" and len(found.classes) == 102
    assert found.decode(0).shape == (3, 224, 224)


def test_flowers_whose_lists_were_changed_are_refused(flowers):
    (flowers / "flowers-102" / "setid.mat").write_bytes(b"changed")
    with pytest.raises(DamagedData, match="Flowers102 are not complete"):
        load("flowers102", root=flowers)


def test_a_missing_flower_is_named(flowers):
    (flowers / "flowers-102" / "jpg" / "image_00002.jpg").unlink()
    with pytest.raises(MissingData, match=r"image_00002.jpg"):
        load("flowers102", root=flowers)


@pytest.fixture
def caltech(tmp_path, monkeypatch):
    shrink(monkeypatch, "caltech101", train=60, test=7)
    write_caltech(tmp_path, {"ant": 35, "bass": 32})
    return tmp_path


def test_caltech_trains_on_thirty_images_a_class_drawn_without_replacement(caltech):
    train, test = load("caltech101", root=caltech), load("caltech101", "test", caltech)
    assert train.counts().tolist() == [30, 30]
    assert test.counts().tolist() == [5, 2]
    assert len(set(train.paths)) == 60
    assert not set(train.paths) & set(test.paths)
    assert train.classes == ("ant", "bass")  # without the background
    assert all(Path(path).is_file() for path in train.paths + test.paths)


def test_caltechs_draw_is_fixed(caltech):
    test = load("caltech101", "test", caltech)
    numbers = [int(path[-8:-4]) for path in test.paths]
    assert numbers == [5, 19, 21, 24, 35, 2, 10]
    assert test.labels.tolist() == [0] * 5 + [1] * 2


def test_caltech_with_too_few_images_is_refused(tmp_path):
    write_caltech(tmp_path, {"ant": 35, "bass": 30})
    with pytest.raises(DamagedData, match="bass has 30 images, 31 or more"):
        load("caltech101", root=tmp_path)


@pytest.fixture
def scenes(tmp_path, monkeypatch):
    shrink(monkeypatch, "sun397", train=3, test=3)
    write_sun(tmp_path)
    return tmp_path


@pytest.mark.parametrize("split, number", [("train", 1), ("test", 2)])
def test_sun_has_its_first_official_partition(scenes, split, number):
    found = load("sun397", split, scenes)
    assert [Path(path).name for path in found.paths] == [f"sun_{i}{number}.jpg" for i in range(3)]
    assert found.labels.tolist() == [0, 1, 2]
    assert found.classes == ("abbey", "bar", "barn/outdoor")


def test_a_missing_scene_is_named(scenes):
    (scenes / "SUN397" / "b" / "bar" / "sun_11.jpg").unlink()
    with pytest.raises(MissingData, match=r"sun_11.jpg and 0 more"):
        load("sun397", root=scenes)


@pytest.fixture
def voc(tmp_path, monkeypatch):
    for name in ("voc2007", "voc2007-top1"):
        shrink(monkeypatch, name, train=1, validation=1, test=1)
    write_voc(tmp_path, VOC_IMAGES)
    (tmp_path / "VOCdevkit/VOC2007/ImageSets/Main/trainval.txt").write_text("000000\n000001\n")
    return tmp_path


def named(row):
    return {name: value for name, value in zip(VOC_CLASSES, row.tolist(), strict=True) if value}


@pytest.mark.parametrize(
    "split, expected",
    [
        ("train", {"dog": -1.0, "person": 1.0}),
        ("validation", {"sofa": 1.0, "dog": 1.0}),
        ("test", {"cat": -1.0, "train": 1.0}),
    ],
)
def test_voc_counts_a_class_of_difficult_objects_only_neither_way(voc, split, expected):
    found = load("voc2007", split, voc)
    assert found.labels.shape == (1, 20) and found.labels.dtype == torch.float32
    assert named(found.labels[0]) == expected


@pytest.mark.parametrize(
    "split, expected", [("train", "dog"), ("validation", "sofa"), ("test", "cat")]
)
def test_vocs_other_reading_is_the_first_object_listed(voc, split, expected):
    found = load("voc2007-top1", split, voc)
    assert [found.classes[label] for label in found.labels.tolist()] == [expected]


def test_voc_agrees_with_torchvision_about_the_files(voc):
    theirs = datasets.VOCDetection(voc, year="2007", image_set="test")
    assert list(load("voc2007", "test", voc).paths) == theirs.images


@pytest.mark.parametrize(
    "text, message",
    [
        ("<annotation><object>", "not a VOC annotation"),
        ("<annotation/>", "lists no object"),
        ("<annotation><object><name>yeti</name></object></annotation>", "not a VOC annotation"),
    ],
)
def test_a_damaged_annotation_is_named(voc, text, message):
    (voc / "VOCdevkit/VOC2007/Annotations/000002.xml").write_text(text)
    with pytest.raises(DamagedData, match=rf"000002.xml.*{message}"):
        load("voc2007", "test", voc)


def test_a_missing_photograph_is_named(voc):
    (voc / "VOCdevkit/VOC2007/JPEGImages/000002.jpg").unlink()
    with pytest.raises(MissingData, match=r"000002.jpg is missing"):
        load("voc2007", "test", voc)


def test_a_missing_package_says_what_to_install(monkeypatch):
    from flatnce import extras

    def absent(module):
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(extras, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'flatnce\[train\]'"):
        load("digits")
