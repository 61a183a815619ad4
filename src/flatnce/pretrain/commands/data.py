"""``flatnce data``: fetch a data set, or list the data sets."""

import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from flatnce.cli.console import live_line, print_json, word_lines
from flatnce.cli.options import parse_options
from flatnce.messages import format_bytes, say
from flatnce.pretrain.commands import Switch
from flatnce.pretrain.data import CATALOG, Entry, data_root, find, is_path

if TYPE_CHECKING:
    from flatnce.pretrain.data import Installed


@dataclass(frozen=True)
class DataOptions:
    """Fetch a data set and check it; a download can be resumed, a set on disk is only checked."""

    # Name of the data set, as in --list.
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    # Folder of the data sets; by default $FLATNCE_DATA, or else ~/.cache/flatnce.
    root: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    list: Switch = False  # List the data sets, and which of them are on this machine.
    json: Switch = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(DataOptions, "data", arguments)
    if options.list:
        return _list(options)
    if options.name is None:
        raise ValueError("name a data set: `flatnce data cifar10`; --list prints the names")
    if is_path(options.name):
        raise ValueError(
            f"NAME={options.name!r} is a path; a folder of images is used where it is: describe "
            f"it with `flatnce train {options.name} --dry-run`"
        )
    entry = find(options.name)
    found = {**_describe(entry), **asdict(_fetch(entry.name, options))}
    if options.json:
        print_json(found)
        return 0
    parts = ", ".join(f"{split} {count:,}" for split, count in found["splits"].items())
    say(f"{found['name']}: {found['title']}. {found['classes']} classes; {parts}.")
    place = f" in {found['folder']}" if found["folder"] else ""
    say(f"{found['how']}{place}; checked: {found['checked']}.")
    return 0


def _fetch(name: str, options: DataOptions) -> "Installed":
    """Download a set and show its progress, every five seconds where there is no terminal."""
    from flatnce.pretrain.data import fetch

    began = shown = time.monotonic()
    with live_line(quiet=options.json) as (show, _):

        def report(file: str, done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if sys.stderr.isatty() or now - shown >= 5 or done == total:
                shown = now
                share = f"{format_bytes(done)} of {format_bytes(total)}, {done / total:.0%}"
                show(f"{file}: {share}, {now - began:.0f} s")

        return fetch(name, options.root, report=report)


def _describe(entry: Entry) -> dict[str, Any]:
    layout = entry.layouts[0] if entry.layouts else None
    shown = ("name", "title", "classes", "channels", "size")
    return {
        **{name: getattr(entry, name) for name in shown},
        "splits": dict(entry.splits),
        "download_bytes": sum(item.bytes for item in layout.downloads) if layout else 0,
    }


def _list(options: DataOptions) -> int:
    root = data_root(options.root)
    rows = [
        {**_describe(entry), "here": not entry.layouts or entry.installed_layout(root) is not None}
        for entry in CATALOG.values()
    ]
    if options.json:
        print_json({"root": root, "sets": rows})
        return 0
    cells = [("name", "here", "download", "images", "what")]
    for row in rows:
        count = max(row["splits"].get("trainval", 0), row["splits"]["train"])
        images = f"{count:,} + {row['splits']['test']:,}"
        size = format_bytes(row["download_bytes"]) if row["download_bytes"] else "none"
        cells.append((row["name"], "yes" if row["here"] else "no", size, images, row["title"]))
    print("\n".join([f"In {root}", *word_lines(cells)]))
    say("\nA folder of images, with one folder per class, is given by its path: ./photos")
    return 0
