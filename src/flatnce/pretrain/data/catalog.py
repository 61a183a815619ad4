"""The data sets that flatnce knows by name: the entries of ``catalog.toml``; and their errors.

Errors about files are OSErrors, for which the command line exits with 1; a wrong name, split or
size is a ValueError, for which it exits with 2.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatnce.messages import did_you_mean
from flatnce.toml_files import read_entries

__all__ = ["DECODERS", "IMAGENET_MEAN", "IMAGENET_STD"]

DECODERS = ("cpu", "gpu")
ROOT_VARIABLE = "FLATNCE_DATA"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class MissingData(OSError):
    """Files of a data set are not where they were looked for."""


class DamagedData(OSError):
    """Files of a data set exist, but are cut short, altered or not what they should be."""


class UnreadableImage(OSError):
    """One image file cannot be decoded."""


@dataclass(frozen=True)
class Download:
    """A file to download and put, or unpack, into a folder; ``inner`` is an archive inside."""

    urls: Sequence[str]
    bytes: int
    checksum: str
    into: str = "."
    unpack: bool = True
    inner: str = ""

    @property
    def file(self) -> str:
        """The name of the file; all addresses end with it."""
        return self.urls[0].rpartition("/")[2].partition("?")[0]


@dataclass(frozen=True)
class Layout:
    """The files of a set's official folder; one without downloads is only read."""

    folder: str
    files: Mapping[str, str] = field(repr=False)
    downloads: tuple[Download, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Entry:
    """One data set; ``catalog.toml`` explains the fields.

    ``splits`` has the number of images per split. Sets that are ``resident`` are held in memory.
    """

    name: str
    title: str
    classes: int
    splits: Mapping[str, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    layouts: tuple[Layout, ...] = ()
    channels: int = 3
    size: int = 224
    resident: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    preset: Mapping[str, Any] = field(default_factory=dict)

    def check_split(self, split: str) -> None:
        """Raise a ValueError if the set does not have this split."""
        if split in self.splits:
            return
        otherwise = "a part of train can be held out with flatnce.pretrain.data.holdout"
        note = self.notes.get(split, otherwise)
        raise ValueError(f"split={split!r}: {self.name} has {', '.join(self.splits)}; {note}")

    def installed_layout(self, root: Path) -> Layout | None:
        """The first layout whose files are all under a root."""
        for layout in self.layouts:
            if all((root / layout.folder / file).exists() for file in layout.files):
                return layout
        return None

    def present_layout(self, root: Path) -> Layout:
        """The layout under a root; a MissingData that says how to get it if there is none."""
        layout = self.installed_layout(root)
        if layout is None:
            found = [root / lay.folder for lay in self.layouts if (root / lay.folder).is_dir()]
            raise MissingData(
                f"{self.name} is not in {root}; download it with `flatnce data {self.name}`, or "
                f"name the folder of {' or '.join(lay.folder for lay in self.layouts)} in "
                f"${ROOT_VARIABLE}"
                + "".join(f"; {folder} is not complete: move it away" for folder in found)
            )
        return layout


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data sets: as given, or ``$FLATNCE_DATA``, or ``~/.cache/flatnce``."""
    chosen = root or os.environ.get(ROOT_VARIABLE) or Path.home() / ".cache" / "flatnce"
    return Path(chosen).expanduser()


def is_path(name: str) -> bool:
    """Whether a name means a path: ``./photos``, ``photos/`` or ``train-{000..009}.tar``."""
    found = "/" in name or "\\" in name or name in (".", "..") or name.startswith("~")
    return found or name.endswith(".tar")


def find(name: str, argument: str = "name") -> Entry:
    """The entry of a data set; if there is none, a ValueError names ``argument`` and similar ones.

    Examples:
        >>> find("cifar10").splits["test"]
        10000
    """
    if name in CATALOG:
        return CATALOG[name]
    hint = did_you_mean(name.lower(), CATALOG, "choose another.", cutoff=0.5)
    hint = f"did you mean ./{name}?" if Path(name).is_dir() else hint
    raise ValueError(
        f"{argument}={name!r} is not a data set; {hint} There are {', '.join(CATALOG)}; a folder "
        "of images is named by its path, with a slash: ./photos"
    )


def _entry(name: str, layouts: Sequence[Any] = (), **table: Any) -> Entry:
    for key in {"mean", "std"} & table.keys():
        table[key] = tuple(table[key])
    for one in layouts:
        one["downloads"] = tuple(Download(**item) for item in one.get("downloads", ()))
    return Entry(name, layouts=tuple(Layout(**one) for one in layouts), **table)


CATALOG: dict[str, Entry] = read_entries(__file__, "catalog.toml", _entry)
"""Every data set by its name."""
