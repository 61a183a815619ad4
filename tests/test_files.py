"""Files that are written as a whole."""

import secrets
from pathlib import Path
from threading import Timer

import pytest

from flatnce.files import is_locked, lock, naming_file, replace_text


def test_replacing_a_file_follows_no_link(tmp_path, monkeypatch):
    mine, folder = tmp_path / "mine.txt", tmp_path / "folder"
    mine.write_text("mine")
    folder.mkdir()
    path = folder / "results.json"
    path.symlink_to(mine)
    replace_text(path, "first")
    assert (path.read_text(), path.is_symlink(), mine.read_text()) == ("first", False, "mine")
    assert list(folder.iterdir()) == [path]
    # Even a link with the name of the temporary file is refused, and the file stays as it was.
    monkeypatch.setattr(secrets, "token_hex", lambda count: "guessed")
    (folder / ".results.json.guessed.partial").symlink_to(mine)
    with pytest.raises(FileExistsError):
        replace_text(path, "second")
    assert (path.read_text(), mine.read_text()) == ("first", "mine")


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    replace_text(path, "whole")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "half \ud800")
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_names_the_file():
    full = Path("/dev/full")
    with (
        pytest.raises(OSError, match="No space left on device: '/dev/full'"),
        naming_file(full),
        full.open("w") as file,
    ):
        file.write("text")


def test_a_lock_follows_no_link_and_leaves_no_file(tmp_path):
    path, mine = tmp_path / ".lock", tmp_path / "mine.txt"
    with lock(path) as alone:
        assert alone and path.is_file()
    assert not path.exists()
    path.symlink_to(mine)
    with pytest.raises(OSError, match="symbolic"), lock(path):
        pass
    assert not mine.exists()


def test_looking_at_a_lock_leaves_its_file_and_disturbs_nobody(tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such locks")
    path = tmp_path / ".lock"
    assert not is_locked(path) and not path.exists()
    with lock(path):
        assert is_locked(path)
    path.touch()  # left by a process that was killed
    assert not is_locked(path) and path.is_file()
    with path.open() as file:  # another process looks while this one takes the lock
        fcntl.flock(file, fcntl.LOCK_SH)
        Timer(0.03, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with lock(path, "busy") as alone:
            assert alone and is_locked(path)
