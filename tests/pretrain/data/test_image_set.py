"""Sets in memory and sets of files."""

import subprocess
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

from flatnce.messages import FlatnceWarning
from flatnce.pretrain.data import FolderSet, ImageSet, UnreadableImage, load
from flatnce.pretrain.data.image_set import naming, read_image
from flatnce.pretrain.data.readers import image_folder
from tiny_sets import write_folder, write_image

CLASSES = ("cat", "dog", "owl")


def some_set(n=6):
    images = torch.arange(n * 3 * 4 * 5).remainder(256).to(torch.uint8).reshape(n, 3, 4, 5)
    return ImageSet(images, torch.arange(n) % 3, CLASSES, "some", "test")


def test_a_subset_has_the_images_asked_for_in_order():
    whole = some_set()
    part = whole.subset([4, 1])
    assert torch.equal(part.images, whole.images[[4, 1]])
    assert part.labels.tolist() == [1, 1]
    assert (part.classes, part.name, part.split) == (CLASSES, "some", "test")


@pytest.mark.parametrize(
    "indices",
    [[0, 6], [-1], [], torch.tensor([0.5]), torch.tensor([True, False]), torch.tensor([[1]])],
)
def test_bad_indices_are_refused(indices):
    with pytest.raises(ValueError, match=r"indices=.* whole numbers from 0 to 5, not empty"):
        some_set().subset(indices)


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), "images has .*float"),
        (torch.zeros(3, 4, 4).byte(), torch.zeros(3).long(), "images has shape"),
        (torch.zeros(0, 3, 4, 4).byte(), torch.zeros(0).long(), "not empty"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(3).long(), r"labels has shape \(3,\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2).int(), "labels has .*int32"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2, 2), r"labels has shape \(2, 2\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.tensor([0, 3]), "from 0 to 3; with 3 classes"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.tensor([0, -2]), "from -2"),
    ],
)
def test_bad_tensors_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ImageSet(images, labels, CLASSES)


@pytest.mark.parametrize("width, height", [(40, 30), (30, 41), (16, 16), (7, 9)])
def test_decoding_is_torchvisions_resize_and_centre_crop(tmp_path, width, height):
    file = write_image(tmp_path / "a.png", width=width, height=height)
    found = FolderSet((str(file),), torch.tensor([0]), ("one",), size=16).decode(0)
    with Image.open(file) as image:
        same = CenterCrop(16)(Resize(16, InterpolationMode.BICUBIC)(image.convert("RGB")))
    np.testing.assert_array_equal(found.permute(1, 2, 0), np.array(same))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "1", "CMYK", "P", "transparent"])
def test_images_of_every_mode_come_out_in_colour(tmp_path, mode):
    file = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    if mode == "transparent":  # of which Pillow would warn
        Image.new("P", (8, 8), 1).save(file, transparency=b"\x00\x80")
    else:
        Image.new("RGB", (8, 8), (200, 30, 30)).convert(mode).save(file)
    found = FolderSet((str(file),), torch.tensor([0]), ("one",), size=8).decode(0)
    assert found.shape == (3, 8, 8) and found.dtype == torch.uint8


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_levels_of_sixteen_bits_are_scaled_to_eight(tmp_path, name):
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1_000
    Image.fromarray(levels).save(tmp_path / name)
    found = read_image(str(tmp_path / name), 8)
    np.testing.assert_array_equal(found, np.broadcast_to((levels / 257).round(), (3, 8, 8)))


@pytest.mark.parametrize("scale, kind", [(1 / 64, np.float32), (2_000, np.int32)])
def test_levels_of_thirty_two_bits_are_refused(tmp_path, scale, kind):
    Image.fromarray((np.arange(64).reshape(8, 8) * scale).astype(kind)).save(tmp_path / "a.tif")
    with pytest.raises(UnreadableImage, match=r"a\.tif .*levels, from 0 to .*, have 32 bits"):
        read_image(str(tmp_path / "a.tif"), 8)


@pytest.fixture
def spoilt(tmp_path):
    """A folder with three ways of being unreadable, among five good images."""
    write_folder(tmp_path, {"cat": 3, "dog": 2})
    (tmp_path / "cat" / "empty.jpg").write_bytes(b"")
    (tmp_path / "dog" / "words.png").write_text("this is not an image")
    whole = write_image(tmp_path / "dog" / "cut.jpg", width=64, height=64)
    whole.write_bytes(whole.read_bytes()[:-900])
    return tmp_path


@pytest.mark.parametrize("file", ["empty.jpg", "words.png", "cut.jpg"])
def test_an_unreadable_image_is_named(spoilt, file):
    found = image_folder(spoilt, "train")
    place = next(i for i, path in enumerate(found.paths) if path.endswith(file))
    remedy = r"skip it with --skip-unreadable \(in Python `skip_unreadable=True`\)"
    with pytest.raises(UnreadableImage, match=rf"{file} cannot be read.*{remedy}"):
        found.decode(place)
    with pytest.raises(UnreadableImage, match=r"empty.jpg"):
        replace(found, size=8).decoded()


@pytest.mark.parametrize("path", ["x.jpg", "x.tar@512+1099511627776/x.jpg"])
def test_an_image_of_terabytes_is_refused_unread(tmp_path, path):
    with (tmp_path / path.partition("@")[0]).open("wb") as file:
        file.truncate(3 << 40)  # takes no place on the disk
    with pytest.raises(UnreadableImage, match=r"x.jpg cannot be read .*larger than 1 GB"):
        read_image(str(tmp_path / path), 8)


def test_a_postscript_file_with_the_name_of_an_image_starts_no_program(tmp_path, monkeypatch):
    marker, gs, image = (tmp_path / name for name in ("started", "gs", "x.jpg"))
    gs.write_text(f"#!/bin/sh\necho 10.0; touch {marker}\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    image.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with pytest.raises(UnreadableImage, match=r"x.jpg cannot be read"):
        read_image(str(image), 8)
    assert not marker.exists()


def test_unreadable_images_are_skipped_only_if_asked(spoilt):
    assert len(load(str(spoilt))) == 8
    with pytest.warns(FlatnceWarning, match=r"3 of \d+ files cannot be read .*empty.jpg.*cut.jpg"):
        found = load(str(spoilt), skip_unreadable=True)
    assert len(found) == len(found.labels) == 5
    assert found.labels.tolist() == [0, 0, 0, 1, 1]
    assert not any(path.rpartition("/")[2][:3] in ("cut", "emp", "wor") for path in found.paths)
    assert replace(found, size=8).decoded().images.shape == (5, 3, 8, 8)


def test_bad_folder_sets_are_refused():
    with pytest.raises(ValueError, match="paths is empty"):
        FolderSet((), torch.zeros(0).long(), ("one",))
    with pytest.raises(ValueError, match="size=0"):
        FolderSet(("a.png",), torch.zeros(1).long(), ("one",), size=0)


def test_postscript_with_the_name_of_an_image_starts_no_interpreter(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=AssertionError("started")))
    path = tmp_path / "x.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with pytest.raises(UnreadableImage, match="cannot identify"):
        read_image(str(path), 8)


def test_only_what_a_file_holds_makes_it_unreadable():
    for error in (SyntaxError("cut"), KeyError(3), RuntimeError("bad")):
        with pytest.raises(UnreadableImage, match=r"a\.png cannot be read"), naming("a.png"):
            raise error
    for error in (ImportError("libwebp is missing"), MemoryError("full")):
        with pytest.raises(type(error), match=str(error)), naming("a.png"):
            raise error
