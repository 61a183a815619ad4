"""Every command runs in a folder of its own, without data sets; charts are not drawn."""

import pytest

from export_subjects import write_run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch, plain_charts):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "no-data"))


@pytest.fixture
def first(tmp_path):
    """A run of the small network, found by its name."""
    return write_run(tmp_path / "runs" / "first")
