"""A command's main options on one screen, from the dataclasses that define them."""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from flatnce.messages import wrapped
from flatnce.toml_files import read_toml

__all__ = ["print_help_text", "print_short_help"]

INDENT = 28
ENTRIES = read_toml(__file__, "commands.toml")


def descriptions(options: Any) -> dict[str, tuple[Any, str]]:
    """Every leaf of nested dataclasses: its value and what is said of it."""
    said = _said(type(options))
    found: dict[str, tuple[Any, str]] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            found |= descriptions(value)
        else:
            found[field.name] = (value, said.get(field.name, ""))
    return found


def print_short_help(
    arguments: Sequence[str],
    command: str,
    options: Any,
    sections: Mapping[str, Mapping[str, str]] | None = None,
) -> int:
    """Print usage, the main options with their defaults, then lists by heading; return 0."""
    entry = ENTRIES[command]
    if not arguments:
        what = entry["usage"].split()[0]
        raise ValueError(f"{what} is missing; see `flatnce {command} --help`")
    every = descriptions(options)
    summary = (inspect.getdoc(type(options)) or "").splitlines()[0]
    lines = [f"usage: flatnce {command} {entry['usage']}"]
    lines += [f"example: flatnce {command} {entry['example']}", "", wrapped(summary), ""]
    lines.append("main options (with their defaults):")
    for name in entry["main"].split():
        value, text = every[name]
        lines.append(_entry("--" + name.replace("_", "-") + _shown(value), text))
    for heading, rows in (sections or entry["sections"]).items():
        lines += ["", f"{heading}:"]
        lines += [_entry(name, text, 20) for name, text in rows.items()]
    lines += ["", f"flatnce {command} --help-all    all {len(every)} options"]
    print_help_text("\n".join([*lines, *filter(None, [entry.get("more")])]))
    return 0


def print_help_text(text: str) -> None:
    """Print a help; on a terminal with headings and options in colour, unless NO_COLOR is set."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.text import Text  # needs the time of its import

    from flatnce.cli.console import console_of

    shown = Text(text)
    shown.highlight_regex(r"(?m)^\w[\w ()]*:|(?<=─ )\w[\w ]*(?= ─)", "bold")
    shown.highlight_regex(r"(?m)^(?:│ |  )(?P<cyan>--?[\w-]+(?:, --[\w-]+)*)")
    console_of().print(shown, soft_wrap=True)


def _said(kind: type) -> dict[str, str]:
    """What is said of each field: in the docstring, or in the comment beside or above it."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("Arguments:\n")
    listed = listed.partition("\n\n")[0]
    said = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, flags=re.M))
    field = r"^((?:    #:? .*\n)*)    (\w+):[^#\n]*(?:  #:? (.*))?$"
    try:
        source = inspect.getsource(kind)
    except OSError:  # installed without source files
        source = ""
    for above, name, beside in re.findall(field, source, flags=re.M):
        said.setdefault(name, beside or re.sub(r"    #:? ", "", above))
    return {name: " ".join(text.split()) for name, text in said.items()}


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if isinstance(value, bool) else " ..."
    if isinstance(value, tuple):
        return " " + (" ".join(map(str, value)) or "...")
    return f" {value}"


def _entry(name: str, text: str, indent: int = INDENT) -> str:
    """A name and what is said of it, whole, in lines of a narrow terminal."""
    first = f"  {name} ".ljust(indent)
    return wrapped(text, first, " " * indent) or first.rstrip()
