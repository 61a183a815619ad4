"""Tiny files of every official layout, read back; and the errors about damaged files."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from flatnce.messages import FlatnceWarning
from flatnce.pretrain.data import (
    CATALOG,
    DamagedData,
    FolderSet,
    ImageSet,
    MissingData,
    data_root,
    load,
    readers,
)
from flatnce.pretrain.data.catalog import UnreadableImage
from flatnce.pretrain.data.image_set import open_image
from flatnce.pretrain.training.config import PRESETS
from tiny_sets import (
    CIFAR10_NAMES,
    CIFAR100_NAMES,
    STL10_NAMES,
    TINY,
    install_tiny,
    shrink,
    write_cifar10,
    write_fashion,
    write_folder,
    write_image,
)

CATALOG_FILE = "src/flatnce/pretrain/data/catalog.toml"
DOCS = Path(__file__).parents[3] / "docs" / "data.md"
CLASSES = {
    "cifar10": tuple(CIFAR10_NAMES),
    "cifar100": tuple(CIFAR100_NAMES),
    "stl10": tuple(STL10_NAMES),
    "fashion-mnist": tuple(datasets.FashionMNIST.classes),
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs the tiny files of a set and returns the root."""
    return lambda name: (install_tiny(monkeypatch, name, tmp_path), tmp_path)[1]


# ---- sets in memory


@pytest.mark.parametrize("name", CLASSES)
def test_images_labels_and_classes_are_those_of_the_files(name, tmp_path, monkeypatch):
    images, labels = install_tiny(monkeypatch, name, tmp_path)
    found = load(name, root=tmp_path)
    np.testing.assert_array_equal(found.images.numpy(), images.reshape(found.images.shape))
    np.testing.assert_array_equal(found.labels.numpy(), labels)
    assert found.classes == CLASSES[name]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("number", ["10", "100"])
def test_both_cifar_layouts_give_equal_sets(number, split, tmp_path, monkeypatch):
    install_tiny(monkeypatch, f"cifar{number}", tmp_path)
    folders = [tmp_path / layout.folder for layout in CATALOG[f"cifar{number}"].layouts]
    one, other = (getattr(readers, f"cifar{number}")(folder, split) for folder in folders)
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert one.classes == other.classes


def test_unlabelled_images_of_stl10_have_the_label_minus_one(installed):
    assert load("stl10", "unlabeled", installed("stl10")).labels.tolist() == [-1, -1]


def test_unpacked_fashion_mnist_is_read(tmp_path, monkeypatch):
    shrink(monkeypatch, "fashion-mnist", train=5, test=5)
    images, labels = write_fashion(tmp_path, packed=False)
    found = load("fashion-mnist", root=tmp_path)
    np.testing.assert_array_equal(found.images.numpy(), images[:, None])
    np.testing.assert_array_equal(found.labels.numpy(), labels)


def test_digits_need_no_file_and_are_split_by_class(tmp_path):
    train, test = load("digits", root=tmp_path), load("digits", "test", root=tmp_path)
    assert (len(train), len(test)) == (1438, 359)
    assert train.images.dtype == torch.uint8 and int(train.images.max()) == 255
    images, held = train.labels.bincount(), test.labels.bincount()
    share = held / (images + held)
    assert torch.allclose(share, torch.tensor(0.2), atol=0.005)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="size=32: the images of digits are 8 x 8"):
        load("digits", size=32)
    values = train.images.double() / 255
    assert CATALOG["digits"].mean == pytest.approx([values.mean().item()], abs=5e-5)
    assert CATALOG["digits"].std == pytest.approx([values.std().item()], abs=5e-5)


# ---- damaged files

VOC_FILE = "VOCdevkit/VOC2007/Annotations/000002.xml"


def test_a_missing_file_is_named(installed):
    root = installed("cifar10")
    (root / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    for python in (root / "cifar-10-batches-py").iterdir():
        python.unlink()
    with pytest.raises(
        MissingData, match=r"cifar10.*-bin or .*-py.*FLATNCE_DATA.*is not complete"
    ):
        load("cifar10", root=root)


@pytest.mark.parametrize(
    "name, file, damage",
    [
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", lambda content: content[:-1]),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", lambda old: bytes([200]) + old[1:]),
        ("fashion-mnist", "FashionMNIST/raw/t10k-images-idx3-ubyte.gz", lambda old: old[:-4]),
        ("fashion-mnist", "FashionMNIST/raw/t10k-images-idx3-ubyte.gz", lambda old: old[:-200]),
        ("fashion-mnist", "FashionMNIST/raw/t10k-labels-idx1-ubyte", lambda _: b"<html></html>"),
        ("fashion-mnist", "FashionMNIST/raw/t10k-labels-idx1-ubyte", lambda _: bytes(10)),
        ("stl10", "stl10_binary/test_y.bin", lambda _: b"\x01"),
        ("tiny-imagenet", "tiny-imagenet-200/val/val_annotations.txt", lambda _: b"a.JPEG\tn77\n"),
        ("voc2007-top1", VOC_FILE, lambda _: b"<annotation><object>"),
        ("voc2007-top1", VOC_FILE, lambda _: b"<annotation/>"),
        ("flowers102", "flowers-102/setid.mat", lambda _: b"changed"),
    ],
)
def test_a_damaged_file_is_named(installed, name, file, damage):
    path = installed(name) / file
    path.write_bytes(damage(path.read_bytes() if path.exists() else b""))
    # What only the whole set shows is said of its folder.
    with pytest.raises(
        DamagedData, match=rf"({path.name}|{path.parent.name}) cannot be read .*fetch"
    ):
        load(name, "test", path.parents[len(Path(file).parts) - 1])


class Runs:
    """Unpickled, it runs a command."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return os.system, self.arguments


def test_a_pickle_that_is_not_official_is_not_run(tmp_path):
    mark = tmp_path / "it was run"
    write_cifar10(tmp_path)
    shutil.rmtree(tmp_path / "cifar-10-batches-bin")
    file = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    file.write_bytes(pickle.dumps({"data": Runs(f"touch '{mark}'")}))
    with pytest.raises(DamagedData, match=r"cifar-10-batches-py cannot be read"):
        load("cifar10", root=tmp_path)
    assert not mark.exists()


# ---- Tiny-ImageNet


def test_the_files_of_a_small_set_are_streamed_if_that_is_asked_for(installed):
    root = installed("tiny-imagenet")
    held, files = (load("tiny-imagenet", root=root, stream=stream) for stream in (False, True))
    assert isinstance(files, FolderSet) and torch.equal(files.decoded().images, held.images)
    with pytest.raises(ValueError, match="stream=True is for files, which digits does not have"):
        load("digits", stream=True)


def test_tiny_imagenet_is_read_into_memory_with_its_words_unless_files_lack(installed):
    root = installed("tiny-imagenet")
    found = load("tiny-imagenet", root=root)
    assert isinstance(found, ImageSet) and found.shape == (3, 64, 64)
    assert found.classes == ("word of n01", "word of n02", "word of n03")
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert load("tiny-imagenet", "test", root).labels.tolist() == [1, 0, 2]
    folder = root / "tiny-imagenet-200" / "train" / "n02" / "images"
    (folder / "n02_0.JPEG").unlink()
    with pytest.raises(DamagedData, match="has 5 train images where tiny-imagenet has 6"):
        load("tiny-imagenet", root=root)
    (folder / "n02_1.JPEG").unlink()
    with pytest.raises(DamagedData, match=r"n02 holds no image"):
        load("tiny-imagenet", root=root)


# ---- photographs, compared with torchvision


@pytest.mark.parametrize(
    "split, images, labels",
    [
        ("train", [6, 2], [4, 0]),
        ("validation", [1, 4], [4, 1]),
        ("trainval", [6, 2, 1, 4], [4, 0, 4, 1]),
        ("test", [3, 5], [101, 1]),
    ],
)
def test_flowers_have_their_official_splits(installed, split, images, labels):
    found = load("flowers102", split, installed("flowers102"))
    assert [Path(path).name for path in found.paths] == [f"image_{i:05d}.jpg" for i in images]
    assert found.labels.tolist() == labels
    assert found.classes[0] == "pink primrose" and len(found.classes) == 102
    assert found.decode(0).shape == (3, 224, 224)


def test_caltech_trains_on_thirty_images_per_class_drawn_without_replacement(installed):
    root = installed("caltech101")
    train, test = load("caltech101", root=root), load("caltech101", "test", root)
    assert train.labels.bincount().tolist() == [30, 30] and len(set(train.paths)) == 60
    assert not set(train.paths) & set(test.paths)
    assert train.classes == ("ant", "bass")  # without the background
    assert [int(path[-8:-4]) for path in test.paths] == [5, 19, 21, 24, 35, 2, 10]
    assert test.labels.tolist() == [0] * 5 + [1] * 2


@pytest.mark.parametrize("split, number", [("train", 1), ("test", 2)])
def test_sun_has_its_first_official_partition(installed, split, number):
    found = load("sun397", split, installed("sun397"))
    assert [Path(path).name for path in found.paths] == [f"sun_{i}{number}.jpg" for i in range(3)]
    assert found.labels.tolist() == [0, 1, 2]
    assert found.classes == ("abbey", "bar", "barn/outdoor")


@pytest.mark.parametrize(
    "split, first", [("train", "dog"), ("validation", "sofa"), ("test", "cat")]
)
def test_voc_takes_the_first_object_that_is_listed(installed, split, first):
    root = installed("voc2007-top1")
    found = load("voc2007-top1", split, root)
    assert found.classes[found.labels.item()] == first
    part = "val" if split == "validation" else split
    theirs = datasets.VOCDetection(root, year="2007", image_set=part)
    assert list(found.paths) == theirs.images


@pytest.mark.parametrize(
    "name, split, file, message",
    [
        ("flowers102", "train", "flowers-102/jpg/image_00002.jpg", "image_00002.jpg"),
        ("tiny-imagenet", "test", "tiny-imagenet-200/val/images/val_1.JPEG", "val_1.JPEG"),
        ("sun397", "train", "SUN397/b/bar/sun_11.jpg", "sun_11.jpg is missing"),
        (
            "voc2007-top1",
            "test",
            "VOCdevkit/VOC2007/JPEGImages/000002.jpg",
            "000002.jpg is missing",
        ),
    ],
)
def test_a_missing_photograph_is_named(installed, name, split, file, message):
    root = installed(name)
    (root / file).unlink()
    with pytest.raises(MissingData, match=message):
        load(name, split, root)


# ---- the catalogue is complete: a test names what a set still needs elsewhere


def table_row(entry):
    splits = ", ".join(f"{split} {count:,}" for split, count in entry.splits.items())
    return f"| `{entry.name}` | {entry.title} | {entry.classes} | {splits} |"


@pytest.mark.parametrize("name", CATALOG)
def test_every_set_has_its_reader_tiny_files_preset_and_row_in_the_docs(name):
    entry = CATALOG[name]
    reader = name.replace("-", "_")
    assert hasattr(readers, reader), f"src/flatnce/pretrain/data/readers.py lacks {reader}"
    assert name in TINY, f"tests/tiny_sets.py: TINY has no writer for {name}"
    assert table_row(entry) in DOCS.read_text(), f"docs/data.md lacks {table_row(entry)}"
    if entry.resident:
        assert name in PRESETS, f"{CATALOG_FILE}: [{name}] has no preset"
    for layout in entry.layouts[:1]:
        assert layout.downloads, f"{CATALOG_FILE}: [{name}] has no downloads"


@pytest.mark.parametrize("name", CATALOG)
def test_every_split_of_every_set_is_read(name, tmp_path, monkeypatch):
    install_tiny(monkeypatch, name, tmp_path)
    for split, count in CATALOG[name].splits.items():
        found = load(name, split, tmp_path)
        assert (found.name, found.split, len(found)) == (name, split, count)


@pytest.mark.parametrize("name", CATALOG)
def test_an_entry_agrees_with_itself(name):
    entry = CATALOG[name]
    assert len(entry.mean) == len(entry.std) == entry.channels, f"see {CATALOG_FILE}"
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


@pytest.mark.parametrize(
    "typed, meant",
    [("CIFAR-10", "did you mean 'cifar10'"), ("qqqq", r"There are digits, .*cifar10.*\./photos")],
)
def test_an_unknown_name_gets_a_suggestion(typed, meant):
    with pytest.raises(ValueError, match=f"name='{typed}'.*{meant}"):
        load(typed)


@pytest.mark.parametrize(
    "name, split, message",
    [
        ("cifar10", "training", r"split='training': .* has train"),
        ("cifar10", "validation", "holdout"),
        ("tiny-imagenet", "validation", "official test images have no labels"),
    ],
)
def test_an_unknown_split_is_refused_before_any_file_is_looked_for(name, split, message):
    with pytest.raises(ValueError, match=message):
        load(name, split, root="nowhere")


def test_the_root_is_what_is_given_or_the_variable_or_the_cache(tmp_path, monkeypatch):
    assert data_root(tmp_path) == tmp_path
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("FLATNCE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "flatnce"


# ---- folders of images in ImageNet's layout


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
    assert found.labels.bincount().tolist() == [3, 2]


@pytest.mark.filterwarnings("ignore:left out. 1 image")
def test_val_is_the_test_part_unless_test_has_classes(photos):
    assert len(load(str(photos), "test")) == 2
    with pytest.raises(ValueError, match=r"has train, test; .*holdout"):
        load(str(photos), "validation")
    write_folder(photos / "test", {"owl": 1, "cat": 2})
    assert len(load(str(photos), "validation")) == 2
    assert len(load(str(photos), "test")) == 3


def test_a_folder_of_classes_is_all_train(tmp_path):
    write_folder(tmp_path, {"cat": 1, "dog": 2})
    assert len(load(str(tmp_path))) == 3
    with pytest.raises(ValueError, match="has train; hold a part of train out"):
        load(str(tmp_path), "test")


def test_parts_with_different_classes_are_refused(photos):
    write_folder(photos / "val", {"emu": 1})
    with pytest.raises(DamagedData, match="would not agree: emu"):
        load(str(photos), "test")
    with pytest.warns(FlatnceWarning, match=r"val have diff.*would not agree: emu; .*evaluation"):
        load(str(photos), "train")  # before training
    write_folder(photos / "test", {"owl": 1, "cat": 2})  # the evaluation then reads no val
    assert len(load(str(photos), "train")) == 5
    with pytest.raises(DamagedData, match="would not agree: emu"):
        load(str(photos), "validation")


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(MissingData, match="holds neither images nor folders"):
        load(str(tmp_path))
    with pytest.raises(MissingData, match="nowhere is not a folder"):
        load(str(tmp_path / "nowhere"))


def test_images_without_folders_have_no_labels(tmp_path):
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    found = load(str(tmp_path) + "/", "train")
    assert len(found) == 3 and found.labels.tolist() == [-1, -1, -1]


def test_parts_without_class_folders_have_no_labels(tmp_path):
    for part, number in {"train": 3, "val": 2, "test": 1}.items():
        for place in range(number):
            write_image(tmp_path / part / f"{place}.png")
    for part, number in {"train": 3, "validation": 2, "test": 1}.items():
        found = load(str(tmp_path), part)
        assert len(found) == number and found.labels.tolist() == [-1] * number


def test_a_single_class_folder_is_no_label(tmp_path):
    write_folder(tmp_path, {"all": 3})
    found = load(str(tmp_path))
    assert found.labels.tolist() == [-1, -1, -1] and found.classes == ("unlabelled",)


def test_a_part_beside_the_class_folders_is_not_a_class(tmp_path):
    write_folder(tmp_path, {"cat": 1, "zebra": 2})
    write_folder(tmp_path / "val", {"cat": 1, "zebra": 1})
    assert load(str(tmp_path)).classes == load(str(tmp_path), "test").classes == ("cat", "zebra")
    assert load(str(tmp_path)).labels.tolist() == [0, 1, 1]
    write_folder(tmp_path / "val", {"emu": 1})
    with pytest.raises(DamagedData, match=r"would not agree: emu; .*class folders"):
        load(str(tmp_path), "test")


def test_images_beside_the_class_folders_are_named_as_left_out(tmp_path):
    write_folder(tmp_path, {"cat": 1, "dog": 2})
    write_image(tmp_path / "1.png")
    with pytest.warns(FlatnceWarning, match="left out: 1 image beside the class folders of"):
        assert len(load(str(tmp_path))) == 3


def test_a_pipe_a_device_and_a_very_long_image_are_not_read(tmp_path):
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "1.jpg")
    (tmp_path / "cat" / "2.png").symlink_to("/dev/zero")
    Image.new("RGB", (1, 60_000)).save(tmp_path / "cat" / "3.png")
    (tmp_path / "cat" / "loop").symlink_to(".")
    (tmp_path / "cat" / "again").symlink_to("..")
    found = load(f"{tmp_path}/", size=256)
    assert len(found) == 3
    for number, said in enumerate(("not a plain file", "not a plain file", "1 and 60,000 pixels")):
        with pytest.raises(UnreadableImage, match=said):
            found.decode(number)


@pytest.mark.parametrize(
    ("claimed", "said"), [(1 << 29, "it ends before its"), (1 << 50, "it is larger than 1 GB")]
)
def test_a_member_that_claims_more_than_its_shard_holds_is_named(claimed, said, tmp_path):
    path = f"{tmp_path / 'a.tar'}@512+{claimed}/1.png"
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(UnreadableImage, match=said):
        open_image(path)
