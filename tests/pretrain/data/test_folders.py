"""Folders of images in ImageNet's layout."""

import pytest
import torch
from PIL import Image

from flatnce.pretrain.data import DamagedData, FolderSet, MissingData, load
from tiny_sets import write_folder, write_image


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
    assert torch.equal(found.counts(), torch.tensor([3, 2]))
    assert load("folder", root=photos).paths == found.paths


def test_val_is_the_test_part_where_test_has_no_classes(photos):
    assert len(load(str(photos), "test")) == 2
    with pytest.raises(ValueError, match=r"has train, test; .*holdout"):
        load(str(photos), "validation")


def test_val_is_the_validation_part_where_test_has_classes(photos):
    write_folder(photos / "test", {"owl": 1, "cat": 2})
    assert len(load(str(photos), "validation")) == 2
    assert len(load(str(photos), "test")) == 3


def test_a_folder_of_classes_is_all_train(tmp_path):
    write_folder(tmp_path, {"cat": 1, "dog": 2})
    assert len(load(str(tmp_path))) == 3
    with pytest.raises(ValueError, match="has train; hold a part of train out"):
        load(str(tmp_path), "test")


def test_an_empty_class_folder_is_named(photos):
    (photos / "train" / "bat").mkdir()
    (photos / "train" / "bat" / "notes.txt").write_text("no image")
    with pytest.raises(DamagedData, match=r"class folder .*bat holds no image"):
        load(str(photos))


def test_parts_with_different_classes_are_refused(photos):
    write_folder(photos / "val", {"emu": 1})
    with pytest.raises(DamagedData, match="would not agree: emu"):
        load(str(photos), "test")


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(MissingData, match="holds neither images nor folders"):
        load(str(tmp_path))
    with pytest.raises(MissingData, match="nowhere is not a folder"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="root"):
        load("folder")


def test_images_without_folders_have_no_labels(tmp_path):
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    found = load(str(tmp_path) + "/", "train")
    assert len(found) == 3 and found.labels.tolist() == [-1, -1, -1]
