"""The catalogue of data sets is complete: a test names what a set still needs elsewhere."""

from pathlib import Path

import pytest

from flatnce.pretrain.data import CATALOG, data_root, load, readers
from flatnce.pretrain.training.config import PRESETS
from tiny_sets import TINY, install_tiny

DOCS = Path(__file__).parents[3] / "docs" / "data.md"


def table_row(entry):
    splits = ", ".join(f"{split} {count:,}" for split, count in entry.splits.items())
    return f"| `{entry.name}` | {entry.title} | {entry.classes} | {splits} |"


@pytest.mark.parametrize("name", CATALOG)
def test_every_set_has_its_reader_tiny_files_preset_and_row_in_the_docs(name):
    entry = CATALOG[name]
    assert name in readers.READERS, f"readers.py: no @reader {name.replace('-', '_')}"
    assert name in TINY, f"tests/tiny_sets.py: TINY has no writer for {name}"
    assert table_row(entry) in DOCS.read_text(), f"docs/data.md lacks {table_row(entry)}"
    if entry.resident:
        assert name in PRESETS, f"catalog.toml: [{name}] has no preset"


def test_every_reader_has_an_entry():
    missing = (readers.READERS.keys() | TINY.keys()) - CATALOG.keys()
    assert not missing, "src/flatnce/pretrain/data/catalog.toml lacks these"


@pytest.mark.parametrize("name", CATALOG)
def test_every_split_of_every_set_is_read(name, tmp_path, monkeypatch):
    install_tiny(monkeypatch, name, tmp_path)
    for split, count in CATALOG[name].splits.items():
        found = load(name, split, tmp_path)
        assert (found.name, found.split, len(found)) == (name, split, count)


@pytest.mark.parametrize("name", CATALOG)
def test_an_entry_agrees_with_itself(name):
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


def test_sets_in_memory_keep_their_size():
    with pytest.raises(ValueError, match="size=32: the images of digits are 8 x 8"):
        load("digits", size=32)


def test_the_root_is_what_is_given_or_the_variable_or_the_cache(tmp_path, monkeypatch):
    assert data_root(tmp_path) == tmp_path
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("FLATNCE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "flatnce"
