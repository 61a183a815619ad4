"""Folders of images, and sets by their names."""

import pytest
import torch
from PIL import Image

from flatnce.pretrain.data import (
    CATALOG,
    DamagedData,
    FolderSet,
    ImageSet,
    MissingData,
    data_root,
    find,
    load,
)
from tiny_sets import shrink, write_folder, write_image, write_tiny_imagenet


@pytest.fixture
def photos(tmp_path):
    """As ImageNet: train, val, and a test folder without labels."""
    write_folder(tmp_path / "train", {"owl": 2, "cat": 3})
    write_folder(tmp_path / "val", {"owl": 1, "cat": 1})
    write_image(tmp_path / "test" / "a.png")
    return tmp_path


def test_classes_are_numbered_by_the_sorted_names_of_their_folders(photos):
    found = load(str(photos))
    assert isinstance(found, FolderSet)
    assert found.classes == ("cat", "owl")
    assert found.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.paths == tuple(sorted(found.paths))
    assert found.name == photos.name


def test_folder_is_also_a_name_whose_root_is_the_path(photos):
    assert load("folder", root=photos).paths == load(str(photos)).paths


def test_folder_without_a_path_is_refused():
    with pytest.raises(ValueError, match="root"):
        load("folder")


def test_val_is_the_test_part_where_test_has_no_classes(photos):
    assert len(load(str(photos), "test")) == 2
    with pytest.raises(ValueError, match=r"holdout .val is its test part."):
        load(str(photos), "validation")


def test_val_is_the_validation_part_where_test_has_classes(photos):
    write_folder(photos / "test", {"owl": 1, "cat": 2})
    assert len(load(str(photos), "validation")) == 2
    assert len(load(str(photos), "test")) == 3


def test_a_folder_of_classes_is_all_train(tmp_path):
    write_folder(tmp_path, {"cat": 1, "dog": 2})
    assert len(load(str(tmp_path))) == 3
    with pytest.raises(ValueError, match="only classes; hold a part of train out"):
        load(str(tmp_path), "test")


def test_an_unknown_part_of_a_folder_is_refused(photos):
    with pytest.raises(ValueError, match="split='training'"):
        load(str(photos), "training")


def test_an_empty_class_folder_is_named(photos):
    (photos / "train" / "bat").mkdir()
    (photos / "train" / "bat" / "notes.txt").write_text("no image")
    with pytest.raises(DamagedData, match=r"class folder .*bat holds no image"):
        load(str(photos))


def test_parts_with_different_classes_are_refused(photos):
    write_folder(photos / "val", {"emu": 1})
    with pytest.raises(DamagedData, match="only in the first: emu"):
        load(str(photos), "test")


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(MissingData, match="holds neither images nor folders"):
        load(str(tmp_path))


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingData, match="nowhere is not a folder"):
        load(str(tmp_path / "nowhere"))


def test_tiny_imagenet_is_read_into_memory_with_its_words(tmp_path, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=6, test=3)
    write_tiny_imagenet(tmp_path)
    found = load("tiny-imagenet", root=tmp_path)
    assert isinstance(found, ImageSet) and found.shape == (3, 64, 64)
    assert found.classes == ("word of n01", "word of n02", "word of n03")
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_tiny_imagenets_test_part_is_labelled_by_the_validation_annotations(tmp_path, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=6, test=3)
    write_tiny_imagenet(tmp_path)
    assert load("tiny-imagenet", "test", tmp_path).labels.tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="official test images have no labels"):
        load("tiny-imagenet", "validation", tmp_path)


def test_an_image_of_the_annotations_that_is_missing_is_named(tmp_path, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=6, test=3)
    folder = write_tiny_imagenet(tmp_path)
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(MissingData, match=r"val_1.JPEG is missing"):
        load("tiny-imagenet", "test", tmp_path)


def test_an_annotation_of_an_unknown_class_is_named(tmp_path, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=6, test=3)
    folder = write_tiny_imagenet(tmp_path)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\n")
    with pytest.raises(DamagedData, match="line 1 names no known class"):
        load("tiny-imagenet", "test", tmp_path)


def test_a_class_of_tiny_imagenet_without_images_is_named(tmp_path, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=6, test=3)
    folder = write_tiny_imagenet(tmp_path)
    for file in (folder / "train" / "n02" / "images").iterdir():
        file.unlink()
    with pytest.raises(DamagedData, match=r"n02 holds no image"):
        load("tiny-imagenet", root=tmp_path)


def test_fewer_images_than_there_should_be_are_refused(tmp_path, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=7, test=3)
    write_tiny_imagenet(tmp_path)
    with pytest.raises(DamagedData, match="has 6 train images where tiny-imagenet has 7"):
        load("tiny-imagenet", root=tmp_path)


@pytest.mark.parametrize(
    "typed, meant",
    [("cifar", "cifar10"), ("CIFAR-10", "cifar10"), ("tinyimagenet", "tiny-imagenet")],
)
def test_an_unknown_name_gets_a_suggestion(typed, meant):
    with pytest.raises(ValueError, match=f"name='{typed}'.*did you mean .*'{meant}'"):
        load(typed)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ValueError, match=r"There are digits, cifar10.*\./photos"):
        find("qqqq")


@pytest.mark.parametrize("name", CATALOG)
def test_an_unknown_split_is_refused_before_any_file_is_looked_for(name):
    with pytest.raises(ValueError, match=r"split='training': .* has train"):
        load(name, "training", root="nowhere")


def test_a_set_without_a_validation_part_says_how_to_make_one():
    with pytest.raises(ValueError, match="holdout"):
        load("cifar10", "validation")


def test_sets_in_memory_keep_their_size():
    with pytest.raises(ValueError, match="size=32: the images of digits are 8 x 8"):
        load("digits", size=32)


@pytest.mark.parametrize("name", CATALOG)
def test_the_catalogue_agrees_with_itself(name):
    entry = CATALOG[name]
    assert len(entry.mean) == len(entry.std) == entry.channels
    if "trainval" in entry.splits:
        assert entry.splits["trainval"] == entry.splits["train"] + entry.splits["validation"]
    for layout in entry.layouts:
        for checksum in filter(None, layout.files.values()):
            algorithm, digits = checksum.split(":")
            assert len(digits) == {"sha256": 64, "md5": 32}[algorithm]
    assert all(
        item.checksum.startswith("sha256:") and len(item.checksum) == 71
        for layout in entry.layouts
        for item in layout.downloads
    )


def test_the_root_is_what_is_given_or_the_variable_or_the_cache(tmp_path, monkeypatch):
    assert data_root(tmp_path) == tmp_path
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("FLATNCE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "flatnce"


def test_labels_and_classes_agree_for_every_image(photos):
    found = load(str(photos))
    names = [found.classes[label] for label in found.labels.tolist()]
    assert names == [path.split("/")[-2] for path in found.paths]
    assert torch.equal(found.counts(), torch.tensor([3, 2]))


def test_images_without_folders_have_no_labels(tmp_path):
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    found = load(str(tmp_path) + "/", "train")
    assert len(found) == 3 and found.labels.tolist() == [-1, -1, -1]
