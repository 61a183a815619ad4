"""Fetching from a server on this machine, broken and wrong in several ways."""

import hashlib
import io
import shutil
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flatnce.pretrain.data import CATALOG, DamagedData, MissingData, fetch, install, load
from flatnce.pretrain.data.catalog import Download
from flatnce.pretrain.data.install import unpack
from tiny_sets import (
    relay,
    shrink,
    write_caltech,
    write_cifar10,
    write_fashion,
    write_tiny_imagenet,
)


class Server:
    """Serves one folder; may cut a transfer short, forget about ranges, or refuse."""

    def __init__(self, folder: Path):
        self.folder, self.cut_after, self.ranges = folder, [], True
        self.refuse, self.asked = [], []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.asked.append(asked)
        file = self.folder / handler.path.lstrip("/").partition("?")[0]
        code = self.refuse.pop(0) if self.refuse else 200 if file.is_file() else 404
        if code != 200:
            handler.send_error(code)
            return
        content = file.read_bytes()
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start:
            handler.send_response(206)
            last = len(content) - 1
            handler.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        end = start + self.cut_after.pop(0) if self.cut_after else None
        handler.wfile.write(content[start:end])


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(install, "PAUSE_SECONDS", 0.0)
    folder = tmp_path / "published"
    folder.mkdir()
    server = Server(folder)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def sha256(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def download_of(server: Server, file: str, **more) -> Download:
    path = server.folder / file
    return Download((f"{server.url}/{file}",), path.stat().st_size, sha256(path), **more)


@pytest.fixture
def cifar10(server, tmp_path, monkeypatch):
    """A tiny CIFAR-10 that the server has as an archive; returns its images."""
    images, _ = write_cifar10(tmp_path / "made")
    shrink(monkeypatch, "cifar10", train=15, test=3)
    folder = tmp_path / "made" / "cifar-10-batches-bin"
    with tarfile.open(server.folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    item = download_of(server, "cifar-10-binary.tar.gz")
    files = {file: sha256(folder / file) for file in CATALOG["cifar10"].layouts[0].files}
    relay(monkeypatch, "cifar10", lambda old: replace(old, downloads=(item,), files=files))
    return images


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def left_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_set_is_fetched_unpacked_and_loaded(server, cifar10, root):
    seen = []
    found = fetch("cifar10", root, report=lambda *now: seen.append(now))
    assert (found.how, found.folder) == ("fetched", root / "cifar-10-batches-bin")
    (item,) = CATALOG["cifar10"].layouts[0].downloads
    assert seen[-1] == (item.file, item.bytes, item.bytes)
    assert load("cifar10", root=root).images.numpy().tobytes() == cifar10.tobytes()
    assert sorted(path.name for path in root.iterdir()) == ["cifar-10-batches-bin"]


def test_a_set_that_is_there_is_checked_and_not_fetched_again(server, cifar10, root):
    fetch("cifar10", root)
    server.asked.clear()
    found = fetch("cifar10", root)
    assert (found.how, found.checked) == ("there", "the checksum of 7 files")
    assert not server.asked
    file = root / "cifar-10-batches-bin" / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedData, match=r"data_batch_2.bin has sha256"):
        fetch("cifar10", root)


@pytest.mark.parametrize(
    "trouble, asked",
    [
        ({"cut_after": [1000, 5000]}, [None, "bytes=1000-", "bytes=6000-"]),
        ({"cut_after": [1000], "ranges": False}, [None, "bytes=1000-"]),
        ({"refuse": [503, 429]}, [None, None, None]),
        ({"cut_after": [1000], "refuse": [200, 416]}, [None, "bytes=1000-", None]),
    ],
    ids=["cut short", "without ranges", "busy", "refused range"],
)
def test_a_transfer_that_breaks_is_continued(server, cifar10, root, trouble, asked):
    vars(server).update(trouble)
    fetch("cifar10", root)
    assert server.asked == asked
    assert len(load("cifar10", root=root)) == 15


@pytest.mark.parametrize("change", ["corrupted", "larger"])
def test_another_file_than_published_is_refused_and_removed(server, cifar10, root, change):
    file = server.folder / "cifar-10-binary.tar.gz"
    content = file.read_bytes()
    file.write_bytes(content + b"more" if change == "larger" else bytes(500) + content[500:])
    with pytest.raises(
        DamagedData, match=r"sends more than|partial has sha256 .*, not .*; download it again"
    ):
        fetch("cifar10", root)
    assert left_in(root) == set()


def test_a_set_that_cannot_be_fetched_leaves_no_empty_folder(server, cifar10, root):
    server.cut_after = [0] * 40
    with pytest.raises(MissingData, match="could not be fetched"):
        fetch("cifar10", root / "deep" / "er")
    assert not root.exists()
    root.mkdir()
    with pytest.raises(MissingData, match="could not be fetched"):
        fetch("cifar10", root / "deep")
    assert list(root.parent.glob("root/*")) == [] and root.is_dir()


def test_a_transfer_that_was_given_up_is_resumed_later(server, cifar10, root):
    server.cut_after = [2000] + [0] * 20
    with pytest.raises(MissingData, match=r"2,000 of .* bytes are kept, so run it again"):
        fetch("cifar10", root)
    assert left_in(root) == {"downloads/cifar-10-binary.tar.gz.partial"}
    server.cut_after, server.asked = [], []
    fetch("cifar10", root)
    assert server.asked == ["bytes=2000-"]


def test_a_file_that_is_gone_is_looked_for_at_the_next_address(server, cifar10, root, monkeypatch):
    item = CATALOG["cifar10"].layouts[0].downloads[0]
    nowhere = ("http://127.0.0.1:9/cifar-10-binary.tar.gz", f"{server.url}/moved/cifar.tar.gz")
    items = [replace(item, urls=nowhere), replace(item, urls=(*nowhere, *item.urls))]
    relay(monkeypatch, "cifar10", lambda old: replace(old, downloads=(items[0],)))
    with pytest.raises(
        MissingData,
        match=r"could not be fetched .*copy it to .*downloads/cifar-10-binary.tar.gz and run",
    ):
        fetch("cifar10", root)
    relay(monkeypatch, "cifar10", lambda old: replace(old, downloads=(items[1],)))
    fetch("cifar10", root)
    assert len(server.asked) == 3


def test_too_little_room_is_said_before_the_transfer(server, cifar10, root, monkeypatch):
    room = type(install.shutil.disk_usage("."))(total=1, used=1, free=7)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: room)
    with pytest.raises(OSError, match="7 bytes free"):
        fetch("cifar10", root)
    assert not server.asked


def test_a_folder_in_the_way_is_left_alone(server, cifar10, root):
    mine = root / "cifar-10-batches-bin" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(FileExistsError, match="move it away"):
        fetch("cifar10", root)
    assert mine.read_text() == "precious" and not server.asked


def test_several_downloads_make_one_set(server, root, tmp_path, monkeypatch):
    write_fashion(tmp_path / "made")
    shrink(monkeypatch, "fashion-mnist", train=5, test=5)
    for file in (tmp_path / "made" / "FashionMNIST" / "raw").iterdir():
        file.rename(server.folder / file.name)
    items = tuple(
        download_of(server, file, into="FashionMNIST/raw", unpack=False)
        for file in CATALOG["fashion-mnist"].layouts[0].files
    )
    relay(monkeypatch, "fashion-mnist", lambda old: replace(old, downloads=items))
    assert fetch("fashion-mnist", root).checked == "the checksum of 4 downloads"
    assert len(load("fashion-mnist", "test", root)) == 5


def test_an_archive_in_an_archive_is_unpacked(server, root, tmp_path, monkeypatch):
    write_caltech(tmp_path / "made", ant=31)
    shrink(monkeypatch, "caltech101", train=30, test=1)
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        archive.add(tmp_path / "made/caltech101/101_ObjectCategories", "101_ObjectCategories")
    with zipfile.ZipFile(server.folder / "caltech-101.zip", "w") as outer:
        outer.writestr("caltech-101/101_ObjectCategories.tar.gz", inner.getvalue())
        outer.writestr("__MACOSX/junk", b"")
    old = CATALOG["caltech101"].layouts[0].downloads[0]
    new = download_of(server, "caltech-101.zip", into=old.into, inner=old.inner)
    relay(monkeypatch, "caltech101", lambda old: replace(old, downloads=(new,)))
    fetch("caltech101", root)
    assert sorted(p.name for p in root.iterdir()) == ["caltech101"]
    assert len(load("caltech101", "test", root)) == 1


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_a_python_without_filters_unpacks_what_its_checksum_allows(
    server, cifar10, root, monkeypatch
):
    unpack_archive = shutil.unpack_archive
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(shutil, "unpack_archive", lambda file, to: unpack_archive(file, to))
    fetch("cifar10", root)
    assert load("cifar10", root=root).images.numpy().tobytes() == cifar10.tobytes()


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="Python 3.11.4 has filters")
def test_an_archive_that_is_broken_or_writes_outside_its_folder_is_refused(tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DamagedData, match=r"bad.zip cannot be unpacked"):
        unpack(tmp_path / "bad.zip", tmp_path / "inside")
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as packed:
        packed.addfile(tarfile.TarInfo("../escaped.txt"))
    with pytest.raises(DamagedData, match=r"bad.tar cannot be unpacked"):
        unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "escaped.txt").exists()


def test_an_archive_that_is_in_the_folder_of_downloads_is_checked_and_not_fetched(
    server, cifar10, root, tmp_path
):
    (root / "downloads").mkdir(parents=True)
    file = root / "downloads" / "cifar-10-binary.tar.gz"
    content = (tmp_path / "published" / file.name).read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(DamagedData, match=r"cifar-10-binary.tar.gz has sha256"):
        fetch("cifar10", root)
    file.write_bytes(content)
    assert fetch("cifar10", root).how == "fetched" and not server.asked
    assert len(load("cifar10", root=root)) == 15


def test_image_files_are_checked_by_their_number(root, monkeypatch):
    shrink(monkeypatch, "tiny-imagenet", train=6, test=3)
    folder = write_tiny_imagenet(root)
    (folder / "train/n01/images/n01_0.JPEG").unlink()
    with pytest.raises(DamagedData, match=rf"^{folder} has 5 train images where .* has 6"):
        fetch("tiny-imagenet", root)
    shrink(monkeypatch, "tiny-imagenet", train=5, test=3)
    assert fetch("tiny-imagenet", root).checked == "the number of images"
