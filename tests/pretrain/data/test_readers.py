"""Tiny files of every official layout, read back; and what is said of files that are not whole."""

import os
import pickle
import subprocess

import numpy as np
import pytest
import torch

from flatnce.pretrain.data import CATALOG, DamagedData, MissingData, load, readers
from flatnce.pretrain.data.readers import read_pickle
from tiny_sets import (
    CIFAR10_NAMES,
    CIFAR100_NAMES,
    STL10_NAMES,
    shrink,
    write_cifar10,
    write_cifar100,
    write_fashion,
    write_stl10,
)


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    shrink(monkeypatch, "cifar10", train=15, test=3)
    return tmp_path, *write_cifar10(tmp_path)


@pytest.fixture
def cifar100(tmp_path, monkeypatch):
    shrink(monkeypatch, "cifar100", train=4, test=4)
    return tmp_path, *write_cifar100(tmp_path)


def assert_holds(found, images, labels):
    np.testing.assert_array_equal(found.images.numpy(), images)
    np.testing.assert_array_equal(found.labels.numpy(), labels)


def test_cifar10_is_read_from_the_binary_layout(cifar10):
    root, images, labels = cifar10
    found = load("cifar10", root=root)
    assert_holds(found, images, labels)
    assert found.classes == tuple(CIFAR10_NAMES)
    assert (found.name, found.split) == ("cifar10", "train")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("number", ["10", "100"])
def test_both_cifar_layouts_give_equal_sets(number, split, tmp_path):
    write_cifar10(tmp_path)
    write_cifar100(tmp_path)
    binary, python = [layout.folder for layout in CATALOG[f"cifar{number}"].layouts]
    read = getattr(readers, f"cifar{number}")
    one, other = (read(tmp_path / folder, split) for folder in (binary, python))
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert one.classes == other.classes


def test_cifar100_has_the_fine_labels(cifar100):
    root, images, labels = cifar100
    found = load("cifar100", root=root)
    assert_holds(found, images, labels)
    assert found.classes == tuple(CIFAR100_NAMES)


def test_stl10_is_turned_upright_and_counts_from_zero(tmp_path, monkeypatch):
    shrink(monkeypatch, "stl10", train=2, test=2, unlabeled=2)
    images, labels = write_stl10(tmp_path)
    found = load("stl10", root=tmp_path)
    assert_holds(found, images, labels)
    assert found.classes == tuple(STL10_NAMES)


def test_stl10_without_labels_says_so_by_minus_one(tmp_path, monkeypatch):
    shrink(monkeypatch, "stl10", train=2, test=2, unlabeled=2)
    write_stl10(tmp_path)
    assert load("stl10", "unlabeled", tmp_path).labels.tolist() == [-1, -1]


@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "unpacked"])
def test_fashion_mnist_is_read(packed, tmp_path, monkeypatch):
    shrink(monkeypatch, "fashion-mnist", train=5, test=5)
    images, labels = write_fashion(tmp_path, packed=packed)
    found = load("fashion-mnist", root=tmp_path)
    assert_holds(found, images[:, None], labels)
    assert found.classes[9] == "Ankle boot"


def test_digits_need_no_file_and_are_split_by_class(tmp_path):
    train, test = load("digits", root=tmp_path), load("digits", "test", root=tmp_path)
    assert (len(train), len(test)) == (1438, 359)
    assert train.images.dtype == torch.uint8 and int(train.images.max()) == 255
    share = test.counts() / (train.counts() + test.counts())
    assert torch.allclose(share, torch.tensor(0.2), atol=0.005)
    assert not list(tmp_path.iterdir())


def test_digits_are_normalised_by_their_own_statistics():
    mean, std = load("digits").statistics()
    assert CATALOG["digits"].mean == pytest.approx(mean.tolist(), abs=5e-5)
    assert CATALOG["digits"].std == pytest.approx(std.tolist(), abs=5e-5)


def test_a_missing_file_is_named(cifar10):
    root, *_ = cifar10
    file = root / "cifar-10-batches-bin" / "data_batch_3.bin"
    file.unlink()
    for python in (root / "cifar-10-batches-py").iterdir():
        python.unlink()
    with pytest.raises(MissingData, match=r"lacks data_batch_3.bin.*flatnce data cifar10"):
        load("cifar10", root=root)


def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(MissingData, match=r"flatnce data stl10.*--adopt.*FLATNCE_DATA"):
        load("stl10", root=tmp_path)


@pytest.mark.parametrize("cut", [1, 3073], ids=["within a record", "between records"])
def test_a_truncated_binary_file_is_refused(cifar10, cut):
    root, *_ = cifar10
    file = root / "cifar-10-batches-bin" / "data_batch_5.bin"
    os.truncate(file, file.stat().st_size - cut)
    with pytest.raises(DamagedData, match="cut short"):
        load("cifar10", root=root)


def test_a_truncated_pickle_is_refused(cifar10):
    root, *_ = cifar10
    file = root / "cifar-10-batches-py" / "test_batch"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(DamagedData, match="test_batch is not a complete data file"):
        readers.cifar10(file.parent, "test")


@pytest.mark.parametrize("cut", [4, 200], ids=["in the checksum", "in the images"])
def test_a_truncated_gzip_is_refused(tmp_path, cut):
    write_fashion(tmp_path)
    file = tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz"
    os.truncate(file, file.stat().st_size - cut)
    with pytest.raises(DamagedData, match=r"train-images-idx3-ubyte.gz is cut short or damaged"):
        readers.fashion_mnist(file.parent, "train")


def test_a_truncated_idx_file_is_refused(tmp_path):
    write_fashion(tmp_path, packed=False)
    file = tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(DamagedData, match=r"cut short: 3,919 bytes where its header says 3,920"):
        readers.fashion_mnist(file.parent, "train")


def test_a_file_of_another_kind_is_refused(tmp_path):
    write_fashion(tmp_path, packed=False)
    folder = tmp_path / "FashionMNIST" / "raw"
    (folder / "train-labels-idx1-ubyte").write_bytes(b"<html>not found</html>")
    with pytest.raises(DamagedData, match="not an idx file"):
        readers.fashion_mnist(folder, "train")


def test_a_label_beyond_the_classes_is_refused(cifar10):
    root, *_ = cifar10
    file = root / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(bytes([200]) + file.read_bytes()[1:])
    with pytest.raises(DamagedData, match=r"labels from . to 200 and 10 class names"):
        load("cifar10", "test", root)


def test_images_and_labels_must_be_as_many(tmp_path):
    write_stl10(tmp_path)
    (tmp_path / "stl10_binary" / "train_y.bin").write_bytes(b"\x01")
    with pytest.raises(DamagedData, match="2 images and 1 labels"):
        readers.stl10(tmp_path / "stl10_binary", "train")


class Runs:
    """Unpickled plainly, it would run a command."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    "call, argument",
    [(os.system, "touch {}"), (subprocess.check_call, ["touch", "{}"]), (eval, "open('{}', 'w')")],
    ids=["os.system", "subprocess", "eval"],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, call, argument, protocol):
    mark = tmp_path / "it was run"
    if isinstance(argument, list):
        argument = [part.format(mark) for part in argument]
    else:
        argument = argument.format(mark)
    file = tmp_path / "data_batch_1"
    file.write_bytes(pickle.dumps({"data": Runs(call, argument)}, protocol=protocol))
    with pytest.raises(DamagedData, match=r"data_batch_1 .*it asks for .*nothing in it was run"):
        read_pickle(file)
    assert not mark.exists()


def test_a_pickle_may_not_choose_its_codec(tmp_path):
    import _codecs

    file = tmp_path / "data_batch_1"
    file.write_bytes(pickle.dumps({"data": Runs(_codecs.encode, "text", "punycode")}, protocol=2))
    with pytest.raises(DamagedData, match="punycode"):
        read_pickle(file)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_rewritten_by_python_3_is_read(tmp_path, protocol):
    file = tmp_path / "data_batch_1"
    content = {"data": np.arange(6, dtype=np.uint8), "labels": [1, 2], b"bytes": b"\xff\x00"}
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_pickle(file)
    np.testing.assert_array_equal(found["data"], content["data"])
    assert found["labels"] == [1, 2] and found["bytes"] == b"\xff\x00"


def test_a_pickle_of_something_else_is_refused(tmp_path):
    file = tmp_path / "data_batch_1"
    file.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DamagedData, match="holds a list"):
        read_pickle(file)


@pytest.mark.parametrize(
    "content",
    [
        {"labels": [0]},
        {"data": np.zeros((1, 10), np.uint8), "labels": [0]},
        {"data": np.zeros((1, 3072), np.float32), "labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]},
        {"data": np.zeros((1, 3072), np.uint8)},
    ],
    ids=["no data", "short rows", "floats", "words", "no labels"],
)
def test_a_pickle_with_the_wrong_content_is_refused(tmp_path, content):
    write_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    (folder / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DamagedData, match="test_batch"):
        readers.cifar10(folder, "test")
