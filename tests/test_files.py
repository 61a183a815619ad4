"""Files that are written as a whole."""

import errno
import os
import secrets
from pathlib import Path
from threading import Timer
from unittest.mock import Mock

import pytest

from flatnce import environment
from flatnce.environment import memory_of_machine
from flatnce.files import (
    is_locked,
    lock,
    naming_file,
    put_back,
    put_in_place,
    read_json,
    replace_text,
    shapes_of,
    subfolders_of,
)
from flatnce.pretrain.runs.folder import run_names


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


def test_subfolders_are_those_shown_and_none_of_a_folder_that_is_gone(tmp_path, monkeypatch):
    for name in ("b", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("missing")
    assert subfolders_of(tmp_path) == [tmp_path / "b"]
    (tmp_path / "link").symlink_to("b")
    assert sorted(subfolders_of(tmp_path)) == [tmp_path / "b", tmp_path / "link"]
    assert subfolders_of(tmp_path / "missing") == subfolders_of(tmp_path / "file") == []
    # It may be removed between a look and the next.
    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    assert run_names(tmp_path / "missing") == []


def test_files_beside_subfolders_are_not_looked_at_one_by_one(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    (tmp_path / "file").touch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", Mock(side_effect=AssertionError("a call for each file")))
        found = subfolders_of(tmp_path)
    assert found == [tmp_path / "b"]


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        run_names(tmp_path)


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    replace_text(path, "whole")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "half \ud800")
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_names_the_file_that_was_asked_for(tmp_path, monkeypatch):
    path, opened = tmp_path / "results.json", Path.open

    def forbidden(self, mode="r", **options):
        if "x" in mode:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, mode, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(PermissionError) as raised:
        replace_text(path, "text")
    assert raised.value.filename == str(path) and not list(tmp_path.iterdir())


def test_the_memory_is_that_of_the_machine_or_of_its_container(tmp_path, monkeypatch):
    newer, older = tmp_path / "memory.max", tmp_path / "memory" / "memory.limit_in_bytes"
    older.parent.mkdir()
    monkeypatch.setattr(environment, "CONTAINER", str(tmp_path))
    machine = memory_of_machine()  # neither file is there
    assert machine == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (newer, older):
        path.write_text("1048576\n")
        assert memory_of_machine() == 1 << 20
        path.write_text(f"{2**63 - 4096}\n")  # what version 1 says without a limit
        assert memory_of_machine() == machine
    newer.write_text("max\n")
    assert memory_of_machine() == machine


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_names_the_file():
    full = Path("/dev/full")
    with (
        pytest.raises(OSError, match="No space left on device: '/dev/full'"),
        naming_file(full),
        full.open("w") as file,
    ):
        file.write("text")


def test_a_folder_whose_replacement_was_killed_gets_its_name_again(tmp_path, monkeypatch):
    new, place = tmp_path / "new", tmp_path / "export"
    for folder in (new, place):
        folder.mkdir()
        (folder / "text").write_text(folder.name)

    def killed(source, target, rename=os.rename):
        if source == new:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(new, place)
    monkeypatch.undo()
    assert not place.exists()
    for _ in range(2):
        put_back(place)
        assert (place / "text").read_text() == "export"
    put_in_place(new, place)
    assert (place / "text").read_text() == "new" and os.listdir(tmp_path) == ["export"]


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


@pytest.fixture
def kind():
    return shapes_of({"x": {"step": "int", "rows?": "[number]"}})["x"]


@pytest.mark.parametrize(
    "content, said",
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected object, got array"),
        ('{"step": "3"}', "Expected int, got str - at step"),
        ('{"step": 3, "rows": [1, null]}', r"Expected float, got null - at rows\[1\]"),
        ("{}", "Object missing required field step"),
        ('{"step": 3, "x": ' + "[" * 100_000, "maximum recursion depth"),
        ('{"step": 3, "x": "\ud800"}', "'utf-8' codec"),
    ],
)
def test_json_of_other_types_is_refused_by_file_and_key(content, said, kind, tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=rf"results\.json is damaged, .* \({said}.*\); remove it"):
        read_json(path, kind, "remove it")


def test_json_keeps_further_keys_and_its_numbers(kind, tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"step": 3, "rows": [1, 2.5], "other": {"a": [true]}}')
    found = read_json(path, kind, "remove it")
    assert found == {"step": 3, "rows": [1, 2.5], "other": {"a": [True]}}
    assert isinstance(found["rows"][0], int)  # keys of records depend on it


@pytest.mark.parametrize("what", ["pipe", "device", "loop", "folder", "huge"])
def test_only_plain_files_of_a_bounded_size_are_read(what, kind, tmp_path):
    path = tmp_path / "results.json"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # takes no place on the disk
    else:
        path.symlink_to("/dev/zero" if what == "device" else path)
    with pytest.raises((OSError, ValueError), match=r"results\.json"):
        read_json(path, kind, "remove it")
