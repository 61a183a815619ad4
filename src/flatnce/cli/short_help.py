"""A command's main options on one screen, from the dataclasses that define them."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from flatnce.messages import wrapped

__all__ = ["print_short_help"]

INDENT = 28


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
    usage: str,
    options: Any,
    names: Sequence[str],
    sections: Mapping[str, Iterable[tuple[str, str]]],
    more: str = "",
) -> int:
    """Print usage, the main options with their defaults, then lists by heading; return 0."""
    command, what = usage.split()[1:3]
    if not arguments:
        raise ValueError(f"{what} is missing; see `flatnce {command} --help`")
    every = descriptions(options)
    summary = (inspect.getdoc(type(options)) or "").splitlines()[0]
    lines = [f"usage: {usage}", "", wrapped(summary), ""]
    lines.append("main options (with their defaults):")
    for name in names:
        value, text = every[name]
        lines.append(_entry("--" + name.replace("_", "-") + _shown(value), text))
    for heading, rows in sections.items():
        lines += ["", f"{heading}:"]
        lines += [_entry(name, text, 20) for name, text in rows]
    lines += ["", f"flatnce {command} --help-all    all {len(every)} options"]
    print("\n".join(lines) + more)
    return 0


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
