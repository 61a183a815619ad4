"""``flatnce data``, as far as it can be called without the other commands."""

import json

import pytest

from flatnce.pretrain.commands.data import run
from flatnce.pretrain.data import CATALOG, Installed
from tiny_sets import install_tiny


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    install_tiny(monkeypatch, "cifar10", tmp_path / "made")
    return tmp_path


def test_files_that_are_there_are_checked_and_described_in_json(cifar10, capsys):
    assert run(["cifar10", "--root", str(cifar10 / "made"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["how"] == "there" and said["splits"] == {"train": 15, "test": 3}
    assert said["folder"] == str(cifar10 / "made" / "cifar-10-batches-bin")


def test_a_download_shows_its_progress(tmp_path, monkeypatch, capsys):
    def fetch(name, root, report):
        for done in (2**20, 2**21, 2**22):
            report("made.tar", done, 2**22)
        return Installed(name, tmp_path, "fetched", "a checksum")

    monkeypatch.setattr("flatnce.pretrain.data.install.fetch", fetch)
    run(["cifar10"])
    assert "made.tar: 4.0 MiB of 4.0 MiB, 100%" in capsys.readouterr().out
    run(["cifar10", "--json"])
    assert json.loads(capsys.readouterr().out)["how"] == "fetched"


def test_a_set_that_is_there_is_said_to_be(cifar10, capsys):
    assert run(["cifar10", "--root", str(cifar10 / "made")]) == 0
    said = capsys.readouterr().out
    assert "10 classes; train 15, test 3." in said
    assert "there in" in said and "checked: the number of images" in said


def test_the_list_names_every_set_and_what_is_here(cifar10, capsys):
    assert run(["--list", "--json", "--root", str(cifar10 / "made")]) == 0
    said = json.loads(capsys.readouterr().out)
    here = {row["name"]: row["here"] for row in said["sets"]}
    assert list(here) == list(CATALOG)
    assert [name for name in here if here[name]] == ["digits", "cifar10"]


def test_the_list_is_a_table(tmp_path, capsys):
    assert run(["--list", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in CATALOG)
    assert "36.4 GiB" in said


def test_a_folder_of_images_needs_no_fetching():
    with pytest.raises(ValueError, match=r"NAME='./photos' is a path.*train ./photos --dry-run"):
        run(["./photos"])
