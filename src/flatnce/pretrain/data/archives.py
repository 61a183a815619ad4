"""Checksums, and unpacking archives where they cannot escape to."""

import hashlib
import tarfile
import zipfile
import zlib
from pathlib import Path

from flatnce.pretrain.data.errors import DamagedData


def digest(path: Path, algorithm: str) -> str:
    """The checksum of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def check(path: Path, checksum: str) -> None:
    """Refuse a file whose bytes are not those expected."""
    algorithm, _, expected = checksum.partition(":")
    found = digest(path, algorithm)
    if found != expected:
        raise DamagedData(
            f"{path} has {algorithm} {found}, {expected} is expected: it is damaged or another "
            "file; get it again"
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip file, refusing members that would land outside the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)  # drops leading slashes and ".." by itself
        else:
            with tarfile.open(archive) as packed_tar:
                packed_tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DamagedData(f"{archive} cannot be unpacked ({error}); get it again") from error
