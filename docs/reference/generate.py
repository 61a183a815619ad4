"""Writes ``cli.md``, ``config.md`` and the first table of ``objectives.md`` from the program.

Run it after an option, a setting or an objective has changed. A test compares its output with the
files, and the options on the page with those that ``--help`` prints::

    python docs/reference/generate.py
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import tyro

from flatnce.cli import COMMANDS, HOMES
from flatnce.cli.options import (
    ALIASES,
    _said,  # how the program itself reads its docstrings
)
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain import PRESETS, TrainConfig

HERE = Path(__file__).parent
MADE = "<!-- Made by generate.py from the program; change it there. -->\n"
WORDS = {str: "text", int: "whole number", float: "number", bool: "switch", Path: "path"}
# These take a data set first, which is read before the options.
USAGE = {"train": "train DATA [OPTIONS]", "sweep": "sweep DATA [OPTIONS]"}
# Commands whose switches have only one form; in others the field says so.
ONE_FORM = [name for name in COMMANDS if name not in USAGE]
PAGES = {
    "demo": "start.md",
    "data": "data.md",
    "train": "training.md",
    "resume": "runs.md#stop-and-resume",
    "runs": "runs.md#list-runs",
    "sweep": "sweep.md",
    "evaluate": "evaluation.md",
    "report": "report.md",
    "compare": "report.md#compare-runs",
    "embed": "export.md#embed-images",
    "export": "export.md",
    "mi": "mutual-information.md#from-a-file",
    "reproduce": "reproduce.md",
    "doctor": "doctor.md",
    "completion": "start.md#in-the-shell",
}

CLI_INTRODUCTION = """\
# Command line

Every command with every option. `flatnce COMMAND --help` prints the same; for `train`, `sweep`,
`evaluate` and `mi` it prints the main options, and `--help-all` prints all of them. `RUN` is a
run's name in `runs/` (or in the folder that FLATNCE_RUNS names), or its path. `--json` prints one
JSON object and nothing else. A dash means
that there is no default. Options also have the names that other programs use, such as `--lr`.

Exit codes: 0 success, 1 failure (files, training), 2 wrong usage (a wrong name or value), 130
interrupted.

| command | what it does |
|---|---|"""
CONFIG_INTRODUCTION = """\
# Config

The settings of a training run. `config.json` holds them by section, `flatnce train` and
`flatnce sweep` take each as an option, and `config.override(batch_size=32)` sets them by name from
Python. Defaults here are those of `TrainConfig()`; a [preset](#presets) changes some. Names are
unique over all sections. The pages [Training](../training.md) and [Data](../data.md) explain their
use; an invalid value is refused with the reason. Options also have the names that other programs
use; they are listed in brackets.
"""
PRESETS_INTRODUCTION = """\
## Presets

`flatnce train DATA` starts from the preset of the data set, `--preset NAME` from another one.

| preset | for | differences from the defaults |
|---|---|---|"""


@dataclass(frozen=True)
class Leaf:
    """One option or setting; its default is MISSING where a value is required."""

    name: str
    kind: Any
    default: Any
    said: str
    marks: tuple[Any, ...]

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return "--" + self.name.replace("_", "-")

    @property
    def placeholder(self) -> str | None:
        """The placeholder of the value, where the program names one."""
        return next(filter(None, (getattr(mark, "metavar", None) for mark in self.marks)), None)

    @property
    def is_positional(self) -> bool:
        """Whether it is typed without a flag."""
        return tyro.conf.Positional in self.marks


def leaves_of(options: type, *, inside: bool = True) -> Iterator[Leaf]:
    """The options of a dataclass, with those of nested ones if ``inside``."""
    hints = typing.get_type_hints(options, include_extras=True)
    for field in fields(options):
        kind, marks = hints[field.name], ()
        if typing.get_origin(kind) is typing.Annotated:
            kind, *rest = typing.get_args(kind)
            marks = tuple(rest)
        if is_dataclass(kind):
            if inside:
                yield from leaves_of(kind)
            continue
        said = _said(options).get(field.name, "")
        yield Leaf(field.name, kind, _default(field), said, marks)


def options_of(command: str) -> type:
    """The dataclass of a command's options."""
    found: type = getattr(import_module(HOMES[command]), f"{command.title()}Options")
    return found


def flags_of(leaf: Leaf, *, one_form: bool = False) -> list[str]:
    """Every way to type an option; none for a positional argument.

    With ``one_form`` a switch can only be changed from its default.
    """
    if leaf.is_positional:
        return []
    if leaf.kind is not bool:
        return [leaf.flag]
    both = [leaf.flag, f"--no-{leaf.flag[2:]}"]
    if one_form or tyro.conf.FlagCreatePairsOff in leaf.marks:
        return both[1:] if leaf.default else both[:1]
    return both


def cli_page() -> str:
    """The page about the command line."""
    listed = "\n".join(
        f"| [`{name}`](#flatnce-{name}) | {text} |" for name, text in COMMANDS.items()
    )
    commands = "\n".join(_command(name) for name in COMMANDS)
    return "\n".join([MADE, CLI_INTRODUCTION, listed, "", commands])


def config_page() -> str:
    """The page about the settings of a training run."""
    sections = "\n".join(_section(field) for field in fields(TrainConfig))
    presets = "\n".join(_preset(name) for name in PRESETS)
    return "\n".join([MADE, CONFIG_INTRODUCTION, sections, PRESETS_INTRODUCTION, presets])


def _command(name: str) -> str:
    options = options_of(name)
    about = (inspect.getdoc(options) or "").partition("Arguments:")[0].strip()
    text = " ".join(about.split())
    nested = name in USAGE
    leaves = list(leaves_of(options, inside=not nested))
    placed = "".join(f" {leaf.placeholder}" for leaf in leaves if leaf.is_positional)
    usage = USAGE.get(name, f"{name}{placed} [OPTIONS]")
    rows = "\n".join(_row(leaf, one_form=name in ONE_FORM) for leaf in leaves)
    lines = [f"## flatnce {name}", "", text, "", f"    flatnce {usage}", ""]
    lines += ["| option | value | default | meaning |", "|---|---|---|---|", rows, ""]
    if nested:
        several = " Several values of a setting make a grid." if name == "sweep" else ""
        lines += [f"And every setting of the page [Config](config.md).{several}", ""]
    if name == "sweep":
        again = "`flatnce sweep --resume NAME` continues a sweep, without DATA; "
        lines += [f"{again}settings given there add runs.", ""]
    return "\n".join([*lines, f"More: [{_title(PAGES[name])}](../{PAGES[name]}).", ""])


def _row(leaf: Leaf, *, one_form: bool) -> str:
    if leaf.is_positional:
        typed = f"`{str(leaf.placeholder).strip('[]')}`"
    else:
        typed = ", ".join(f"`{flag}`" for flag in flags_of(leaf, one_form=one_form))
    return _cells(typed, _value(leaf), _shown(leaf.default, leaf.kind), leaf.said)


def _section(field: "Field[Any]") -> str:
    kind: type = typing.get_type_hints(TrainConfig)[field.name]
    about = (inspect.getdoc(kind) or "").splitlines()[0].partition(";")[0].rstrip(".")
    lines = [f"## {field.name}", "", f"{about}.", ""]
    lines += ["| setting | option | value | default | meaning |", "|---|---|---|---|---|"]
    for leaf in leaves_of(kind):
        typed = ", ".join(f"`{flag}`" for flag in flags_of(leaf))
        others = [f"`--{other}`" for other, own in ALIASES.items() if f"--{own}" == leaf.flag]
        typed += f" ({', '.join(others)})" if others else ""
        default = _shown(leaf.default, leaf.kind)
        lines.append(_cells(f"`{leaf.name}`", typed, _value(leaf), default, leaf.said))
    return "\n".join([*lines, ""])


def _preset(name: str) -> str:
    text, config = PRESETS[name]
    usual = TrainConfig().flat()
    changed = [f"`{key}` {value}" for key, value in config.flat().items() if value != usual[key]]
    return _cells(f"`{name}`", text, ", ".join(changed) or "nothing")


def _value(leaf: Leaf) -> str:
    """The possible values, in words or as choices."""
    if leaf.kind is bool:
        return "switch"
    said, named = _kinds(leaf.kind), leaf.placeholder
    if named is None or leaf.is_positional:
        return said
    return f"`{named}`" if said.startswith("text") else f"`{named}`, {said}"


def _kinds(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{one}`" for one in typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        parts = [one for one in typing.get_args(kind) if one is not type(None)]
        return " or ".join(_kinds(one) for one in parts)
    if typing.get_origin(kind) is tuple:
        return f"{_kinds(typing.get_args(kind)[0])}, several"
    return WORDS[kind]


def _shown(value: Any, kind: Any) -> str:
    if value is MISSING:
        return "required"
    if kind is bool:
        return "on" if value else "off"
    if value is None or value in ("", ()):
        return "–"
    return " ".join(f"`{one}`" for one in (value if isinstance(value, tuple) else (value,)))


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _cells(*texts: str) -> str:
    # Outside code, two dashes would become a long dash, and a dollar sign would start a formula.
    bare = re.compile(r"(`[^`]*`)|((?<![\w-])--[a-z][\w-]*|\$\w+)")
    coded = (bare.sub(lambda found: found[1] or f"`{found[2]}`", text) for text in texts)
    return "| " + " | ".join(text.replace("|", "\\|") for text in coded) + " |"


def _title(page: str) -> str:
    path, _, anchor = page.partition("#")
    text = (HERE.parent / path).read_text(encoding="utf-8")
    title = next(line[2:] for line in text.splitlines() if line.startswith("# "))
    return f"{title}, {anchor.replace('-', ' ')}" if anchor else title


def objectives_page() -> str:
    """The page of the objectives with its first table made from their registry."""
    page = (HERE.parent / "objectives.md").read_text(encoding="utf-8")
    rows = ["| class | typed | what it is |", "|---|---|---|"]
    for name, entry in OBJECTIVES.items():
        rows.append(_cells(f"`{entry.class_name}`", f"`--objective {name}`", entry.summary))
    before, _, rest = page.partition(MADE)
    return before + MADE + "\n" + "\n".join(rows) + "\n\n" + rest.partition("\n\n")[2]


if __name__ == "__main__":
    pages = {
        "cli.md": cli_page(),
        "config.md": config_page(),
        "../objectives.md": objectives_page(),
    }
    for page, text in pages.items():
        (HERE / page).write_text(text.rstrip() + "\n", encoding="utf-8")
        print(page)
