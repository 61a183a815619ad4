"""The options of a command: parsed by tyro, listed in a help, named in messages as typed.

Functions of the package write an argument in a message as ``name=value``. :func:`as_typed` turns
that into the option of the command that is running.
"""

import inspect
import io
import re
import shlex
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from flatnce.messages import did_you_mean, wrapped
from flatnce.toml_files import read_toml

__all__ = [
    "ALIASES",
    "as_typed",
    "option_of",
    "own_arguments",
    "parse_options",
    "print_short_help",
]

Options = TypeVar("Options")

ENTRIES = read_toml(__file__, "commands.toml")
ALIASES: dict[str, str] = read_toml(__file__, "aliases.toml")
"""The option that each name in other programs stands for."""

# The value of an argument in a message: quoted, in brackets, or up to a space or a stop.
VALUE = r"'[^']*'|\"[^\"]*\"|\([^()]*\)|\[[^\[\]]*\]|(?:[^\s,;:.()]|[:.](?=[^\s)]))*"
# What is not an argument, whatever it looks like: quoted text, code, and a word with a slash.
OTHER = r"(?<!\w)'[^']*'|(?<!\w)\"[^\"]*\"|`[^`]*`|[^\s('\"=]*[/\\]\S*"
WORDS = {float: "a number", int: "a whole number", str: "a name"}

# How each argument is called on the command line: an option, or nothing for a positional one.
_typed: dict[str, str] = {}
_switches: set[str] = set()
_words: set[str] = set()  # of the command line


def leaves(kind: type) -> dict[str, Any]:
    """The annotation of every option of nested dataclasses."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        found |= leaves(bare(hint)) if is_dataclass(bare(hint)) else {name: hint}
    return found


def own_arguments(
    kind: type, arguments: Sequence[str], renamed: Mapping[str, str] | None = None
) -> list[str]:
    """The arguments, with options of the command for aliases, and --option=value in two.

    From here on, messages name the arguments as the options of ``kind``; those of other names as
    ``renamed`` says, where an empty name stands for a positional argument.
    """
    own, found = {option_of(name) for name in leaves(kind)}, list[str]()
    for name, hint in leaves(kind).items():
        _typed.setdefault(name, "" if _is_positional(hint) else option_of(name))
        _switches.update([option_of(name)] if bare(hint) is bool else [])
    _typed.update({name: option and option_of(option) for name, option in (renamed or {}).items()})
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            found.append(argument)
            continue
        alias = "--" + ALIASES.get(flag[2:].replace("_", "-"), "")
        if alias in own and flag not in own:
            _typed[alias[2:].replace("-", "_")] = flag
            flag = alias
        found += [flag, value] if equals else [flag]
    _words.update(found)
    return found


def parse_options(
    kind: type[Options],
    command: str,
    arguments: Sequence[str],
    default: Options | None = None,
    *,
    renamed: Mapping[str, str] | None = None,
) -> Options:
    """Parse a command line; a mistake is a ValueError of one line that names the option.

    The options change ``default``, or else the defaults of ``kind``. ``renamed`` is that of
    :func:`own_arguments`.
    """
    import tyro

    line = own_arguments(kind, arguments, renamed)
    line = ["--help" if one == "--help-all" else one for one in line]
    given: dict[str, Any] = {} if default is None else {"default": default}
    # Without the names of sections; a switch has two forms only where a preset may set it.
    one_form = () if "preset" in leaves(kind) else (tyro.conf.FlagCreatePairsOff,)
    form = (tyro.conf.OmitArgPrefixes, *one_form)
    given |= {"prog": f"flatnce {command}", "args": line, "config": form}
    given["description"] = (inspect.getdoc(kind) or "").partition("Arguments:")[0].strip()
    helps = bool({"-h", "--help"} & set(line))
    # tyro draws lines as the encoding allows.
    said = io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding, "spell", newline="")
    try:
        with redirect_stdout(said) if helps else redirect_stderr(said):
            return tyro.cli(kind, **given)
    except SystemExit as stop:
        said.seek(0)
        if helps:
            print(_tidied(said.read(), "preset" in leaves(kind)).rstrip("\n"))
            raise
        name = command.split()[0]
        whole = "-all" * ("main" in ENTRIES[name])  # where --help is a part
        hint = f"`flatnce {name} --help{whole}` lists the options"
        raise ValueError(_one_line(said.read(), stop, leaves(kind), line, hint)) from stop


def forget_options() -> None:
    """Forget how the options of an earlier command were typed."""
    _typed.clear()
    _switches.clear()
    _words.clear()
    _typed["run"] = ""


def as_typed(message: str) -> str:
    """The message with every ``argument=value`` as it is typed on the command line.

    A path such as ``./seed=1`` and quoted text stay as they are.
    """

    def option(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        flag, value = _typed[match[1]], match[2]
        if flag in _switches and value[:1] != "'":
            return flag if value != "False" or flag.startswith("--no-") else f"--no-{flag[2:]}"
        if value[:1] in ("'", '"'):
            return f"{flag} {shlex.quote(value[1:-1])}" if flag else value
        if value[:1] in ("(", "["):
            value = value[1:-1].replace(",", "")
        # A whole number is written without Python's decimal, unless it was typed with it.
        numbers = re.compile(r"(?<!\S)(-?\d+)\.0(?!\S)")
        value = numbers.sub(lambda got: got[0] if got[0] in _words else got[1], value)
        return f"{flag} {value}".strip()

    names = "|".join(sorted(_typed, key=len, reverse=True))
    pattern = rf"(?<![\w.-])(?<!--kind )({names})=({VALUE})|{OTHER}"
    return re.sub(pattern, option, message) if names else message


def _tidied(text: str, has_preset: bool) -> str:
    """A help in lines of a terminal, its boxes in shape, without defaults that say nothing."""
    if not has_preset:  # which an option may have to unset
        unset = r"\(default:[\s│]*(?:None|False|True|'')?\)"
        text = re.sub(unset, lambda got: re.sub(r"[^\s│]", " ", got[0]), text)
        text = re.sub(r"{None}\|(\S+)", r"\1       ", text)
        text = re.sub(r"^│ +│\n", "", text, flags=re.M)
    free = re.compile(r"^[^╭│╰\n].*", re.M)  # tyro wraps what is said of the options only
    return free.sub(lambda got: wrapped(got[0], then="  " * (got[0][:5] == "usage")), text)


def _one_line(
    box: str, stop: BaseException, hints: Mapping[str, Any], line: Sequence[str], more: str
) -> str:
    """What tyro says in a box of several lines, in one."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)  # a terminal gets it in colours
    rows = "\n".join(row.strip("│ ") for row in plain.splitlines())
    # Lines, of dashes where the terminal is not UTF-8, divide the title, the message and hints.
    text = " ".join(re.split(r"^[╭╰].*$|^[─-]{3,}$", rows, flags=re.M)[1].split())
    options = {option_of(name): hint for name, hint in hints.items() if not _is_positional(hint)}
    if text.startswith("Unrecognized options: "):
        word = text.removeprefix("Unrecognized options: ").split(", ")[0]
        if word.startswith("-"):
            off = {f"--no-{flag[2:]}" for flag, hint in options.items() if bare(hint) is bool}
            longer = [flag for flag in options if len(word) > 4 and word[2:] in flag[2:]]
            near = did_you_mean(word, {*options, *off} - {word}, more, cutoff=0.7)
            near = did_you_mean(word, longer, near, cutoff=0.0, most=3)
            return f"unknown option {word}; {near}"
        before = [one for one in line[: line.index(word)] if one in options]
        takes = "no value" if before and bare(options[before[-1]]) is bool else "one value"
        return f"unexpected {word!r}: " + (f"{before[-1]} takes {takes}" if before else more)
    if text.startswith("Missing from"):
        return f"{text.partition(': ')[2].split()[0]} is missing; {more}"
    named = re.match(r"(?:Error parsing|Missing value for|invalid choice).*?(--[\w-]+)", text)
    if named is None or named[1] not in options:
        cause: BaseException | None = stop
        while cause is not None and not isinstance(cause, ValueError):
            cause = cause.__context__
        return text if cause is None else str(cause)
    place = max(at for at, one in enumerate(line) if one == named[1])
    value = " ".join(line[place + 1 : place + 2])
    flag = _typed.get(named[1][2:].replace("-", "_"), named[1])
    return f"{flag} {value}".rstrip() + f": expected {_expected(options[named[1]])}"


def option_of(name: str) -> str:
    """How an option is typed."""
    return "--" + name.replace("_", "-")


def bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_positional(hint: Any) -> bool:
    import tyro

    return tyro.conf.Positional in get_args(hint)


def _expected(hint: Any) -> str:
    """What a value of the annotation looks like, in words."""
    inner = get_args(bare(hint))
    if get_origin(bare(hint)) is Literal:
        return " or ".join(map(str, inner))
    if get_origin(bare(hint)) in (Union, types.UnionType):
        return " or ".join(_expected(one) for one in inner if one is not type(None))
    if get_origin(bare(hint)) is tuple:
        return f"{_expected(inner[0])}, or several"
    return WORDS.get(bare(hint), "a path")


# The main options on one screen, from the dataclasses that define them.


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
        lines.append(_entry(option_of(name) + _shown(value), text))
    for heading, rows in (sections or entry["sections"]).items():
        lines += ["", f"{heading}:"]
        lines += [_entry(name, text, 20) for name, text in rows.items()]
    lines += ["", f"flatnce {command} --help-all    all {len(every)} options"]
    print("\n".join([*lines, *filter(None, [entry.get("more")])]))
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


def _entry(name: str, text: str, indent: int = 28) -> str:
    """A name and what is said of it, whole, in lines of a narrow terminal."""
    first = f"  {name} ".ljust(indent)
    return wrapped(text, first, " " * indent) or first.rstrip()
