"""Tar shards as the webdataset library writes them: ``000017.jpg`` and its class, ``000017.cls``.

The headers of the shards are read once. From then on an image is some bytes at a place in a shard,
and is read there like a file: order, resuming and the share of each process are those of files. A
set of shards is a :class:`FolderSet` whose paths name shard, place, length and member.
"""

import re
import tarfile
from collections.abc import Sequence
from glob import glob
from pathlib import Path

import torch

from flatnce.pretrain.data.catalog import DamagedData, MissingData
from flatnce.pretrain.data.image_set import FolderSet, member_path

__all__ = ["is_shards", "read_shards", "shards_of"]

BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
KEY = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")  # of a sample, and what a member holds of it


def is_shards(path: str | Path) -> bool:
    """Whether a path means tar shards: ``train-{000..009}.tar``, ``train-*.tar``, ``one.tar``."""
    return str(path).endswith(".tar")


def shards_of(path: str | Path) -> list[str]:
    """The shards that a path means, sorted."""
    pattern = str(Path(path).expanduser())
    found = BRACES.search(pattern)
    if found:
        first, last = found.groups()
        before, after = pattern[: found.start()], pattern[found.end() :]
        numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        return [shard for number in numbers for shard in shards_of(before + number + after)]
    shards = sorted(glob(pattern))
    if not shards:
        raise MissingData(f"{pattern} is missing; name tar files, such as train-{{000..009}}.tar")
    return shards


def read_shards(
    shards: Sequence[str], name: str, split: str, endings: tuple[str, ...]
) -> FolderSet:
    """The samples of some shards, in the order of the shards; images have one of these endings.

    The class of a sample is the number in its member ``cls``; without one it has no label (-1).
    """
    paths: list[str] = []
    labels: list[int] = []
    for shard in shards:
        try:
            samples, of_class = _samples(shard, endings)
        except (tarfile.TarError, ValueError, OSError) as error:
            raise DamagedData(
                f"{shard} cannot be read as a tar shard ({error}); shards are not compressed, "
                "and a member .cls holds the number of a class"
            ) from error
        paths += samples.values()
        labels += [of_class.get(sample, -1) for sample in samples]
    if not paths:
        raise MissingData(f"{shards[0]} holds no image ({', '.join(endings[:4])}, ...)")
    classes = tuple(map(str, range(max(labels) + 1))) or ("unlabelled",)
    return FolderSet(tuple(paths), torch.tensor(labels), classes, name, split)


def _samples(shard: str, endings: tuple[str, ...]) -> tuple[dict[str, str], dict[str, int]]:
    """The path of the image of each sample of a shard, and the classes."""
    paths: dict[str, str] = {}
    classes: dict[str, int] = {}
    with tarfile.open(shard, "r:") as tar:
        for member in tar:
            parts = KEY.fullmatch(member.name)
            if not member.isfile() or parts is None:
                continue
            sample, kind = parts.groups()
            if f".{kind.lower()}".endswith(endings):
                place = (member.offset_data, member.size, member.name)
                paths.setdefault(sample, member_path(shard, *place))
            elif kind == "cls" and (content := tar.extractfile(member)) is not None:
                classes[sample] = int(content.read())
    return paths, classes
