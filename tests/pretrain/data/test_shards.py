"""Tar shards: the samples that webdataset reads, and the example that trains on them."""

import gzip
import io
import runpy
import tarfile

import pytest
import torch
from PIL import Image

from flatnce.pretrain import resume, train
from flatnce.pretrain.data import (
    DamagedData,
    FolderSet,
    MissingData,
    Streaming,
    UnreadableImage,
    Views,
    load,
)
from flatnce.pretrain.data.image_set import read_bytes
from flatnce.pretrain.data.readers import has_part, image_folder
from flatnce.pretrain.runs import checkpoint
from forked import Forked
from made_runs import assert_same_run, quick_config
from paths import ROOT
from pictures import pictures
from tiny_sets import write_folder


def write_shards(folder, count=4, each=10, name="train", labels=True):
    """Shards of samples, each a PNG and its class."""
    folder.mkdir(exist_ok=True)
    for shard in range(count):
        with tarfile.open(folder / f"{name}-{shard:03}.tar", "w") as tar:
            for number, picture in enumerate(pictures(each, 3, 30 + shard, 24)):
                image = io.BytesIO()
                Image.fromarray(picture.permute(1, 2, 0).numpy()).save(image, "PNG")
                members = {"png": image.getvalue(), "json": b"{}"}
                if labels:
                    members["cls"] = str(number % 3).encode()
                for kind, content in members.items():
                    member = tarfile.TarInfo(f"some/{shard * each + number:06}.{kind}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def test_the_samples_are_those_that_webdataset_reads(tmp_path):
    library = pytest.importorskip("webdataset.tariterators", reason="pip install webdataset")
    pattern = f"{write_shards(tmp_path)}/train-{{000..003}}.tar"
    found = load(pattern)
    theirs = []
    for shard in sorted(tmp_path.glob("*.tar")):
        with open(shard, "rb") as file:
            opened = [{"url": str(shard), "stream": file}]
            theirs += library.group_by_keys(library.tar_file_expander(opened))
    assert isinstance(found, FolderSet)
    assert [read_bytes(path) for path in found.paths] == [sample["png"] for sample in theirs]
    assert found.labels.tolist() == [int(sample["cls"]) for sample in theirs]
    assert found.classes == ("0", "1", "2")


def test_shards_are_named_by_braces_by_a_glob_or_by_their_folder(tmp_path):
    folder = write_shards(write_shards(tmp_path / "set", 12, 2), 1, 3, name="val")
    paths = load(f"{folder}/train-{{002..010}}.tar").paths
    assert len(paths) == 18 and "train-002.tar@" in paths[0] and "train-010.tar@" in paths[-1]
    assert len(load(f"{folder}/train-0*.tar")) == len(load(f"{folder}/")) == 24
    assert has_part(folder, "test") and len(image_folder(folder, "test")) == 3
    assert not has_part(f"{folder}/val-000.tar", "test")
    with pytest.raises(MissingData, match=r"val-001.tar is missing"):
        load(f"{folder}/val-{{000..001}}.tar")
    with pytest.raises(ValueError, match=r"split='test': .* has shards of train"):
        load(f"{folder}/val-000.tar", "test")


def test_an_archive_beside_folders_of_images_is_not_a_shard(tmp_path):
    photos = tmp_path / "photos"
    for part in ("train", "val"):
        write_folder(photos / part, {"cat": 2, "dog": 1})
    tarfile.open(photos / "photos_train.tar", "w").close()
    assert len(load(str(photos))) == 3 and has_part(photos, "test")
    (write_shards(tmp_path / "shards") / "pages").mkdir()
    write_folder(tmp_path / "shards" / "pages", {"a": 1})
    assert len(load(str(tmp_path / "shards"))) == 40


def test_shards_without_classes_are_unlabelled_and_damaged_ones_are_named(tmp_path):
    found = load(f"{write_shards(tmp_path, 1, labels=False)}/train-000.tar")
    assert set(found.labels.tolist()) == {-1} and found.classes == ("unlabelled",)
    (tmp_path / "bad.tar").write_bytes(gzip.compress((tmp_path / "train-000.tar").read_bytes()))
    with pytest.raises(DamagedData, match=r"bad.tar cannot be read as a tar shard .*compressed"):
        load(f"{tmp_path}/bad.tar")


def test_a_damaged_image_is_named_with_its_shard(tmp_path):
    path = write_shards(tmp_path, 1) / "train-000.tar"
    found = load(str(path))
    offset = int(found.paths[3].partition("@")[2].partition("+")[0])
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(UnreadableImage, match=r"train-000.tar@\d+\+\d+/some/000003.png cannot"):
        list(Streaming(found, 10, 0, workers=0, views=Views(8, seed=0)).epoch(0))
    with pytest.warns(UserWarning, match=r"1 of \d+ files cannot be read"):
        assert len(load(str(path), skip_unreadable=True)) == 9


EXAMPLE = ROOT / "examples" / "tar_shards.py"
QUICK = {"workers": 0, "tensorboard": False, "pool": 16}
TWO = """
import runpy, sys, warnings
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
warnings.resetwarnings()  # torchrun's processes bear the warnings of torch
main = runpy.run_path(sys.argv[1])["main"]

def quick(*arguments):
    main(*arguments, workers=0, tensorboard=False, pool=16)

meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "start_method": "fork"}
elastic_launch(LaunchConfig(1, 1, 2, run_id="shards", **meeting), quick)(*sys.argv[2:])
"""


def test_the_example_trains_over_two_processes_as_over_one(tmp_path):
    shards = f"{write_shards(tmp_path / 'set')}/train-{{000..003}}.tar"
    runpy.run_path(str(EXAMPLE))["main"](shards, str(tmp_path / "one"), **QUICK)
    done = Forked(EXAMPLE, shards, tmp_path / "two", code=TWO).wait()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("the run is in") == 1
    one, two = (checkpoint.load(tmp_path / name / "checkpoints") for name in ("one", "two"))
    assert one.step == two.step == 4
    for name, tensor in one.weights.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(two.weights[name], tensor, rtol=1e-3, atol=1e-3)
    text = EXAMPLE.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert len(text.splitlines()) < 40


def test_a_run_on_shards_is_resumed_exactly(tmp_path):
    shards = f"{write_shards(tmp_path / 'set')}/train-{{000..003}}.tar"
    settings = {"data": shards, "view_size": 16, "batch_size": 8, "workers": 0}
    config = quick_config(**settings)
    train(config, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    train(config, stopped)
    resume(stopped, step=5)
    assert_same_run(stopped, tmp_path / "whole")
