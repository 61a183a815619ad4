"""Words that error messages and tables share."""

import difflib
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from html import escape
from numbers import Real

__all__ = [
    "FlatnceWarning",
    "check_at_least",
    "check_choice",
    "check_fields",
    "check_positive",
    "counted",
    "did_you_mean",
    "duration_text",
    "fitted",
    "format_bytes",
    "html_card",
    "say",
    "wrapped",
]


class FlatnceWarning(UserWarning):
    """A warning of this package, which the command line prints in one line."""


def check_at_least(name: str, value: float | int, least: float | int, note: str = "") -> None:
    """Raise a ValueError for a number below ``least``, or NaN; ``note`` ends the message."""
    if not value >= least:
        raise ValueError(f"{name}={value} must be at least {least}{note}")


def check_fields(owner: object, **least: float | int) -> None:
    """Raise a ValueError for a field of a dataclass that is below its least value; None is not."""
    for name, number in least.items():
        if getattr(owner, name) is not None:
            check_at_least(name, getattr(owner, name), number)


def check_positive(name: str, value: float | int, note: str = "") -> None:
    """Raise a ValueError for a number that is not positive and finite."""
    if not (isinstance(value, Real) and value > 0 and math.isfinite(value)):
        shown = value if isinstance(value, Real) else repr(value)
        raise ValueError(f"{name}={shown} must be a positive finite number{note}")


def check_choice(name: str, value: object, choices: Iterable[object], note: str = "") -> None:
    """Raise a ValueError for a value that is not one of ``choices``."""
    known = list(choices)
    if value not in known:
        listed = [str(choice) for choice in known]
        hint = did_you_mean(str(value), listed, then=f"choose one of {', '.join(listed)}")
        raise ValueError(f"{name}={value!r} is unknown; {hint}{note}")


def counted(count: int, noun: str) -> str:
    """A number with a noun: 1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    then: str = "",
    cutoff: float = 0.6,
    most: int = 1,
) -> str:
    """Suggest the known names closest to a mistyped one, or say something else; add ``then``."""
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
    return " ".join(filter(None, (hint, then)))


def wrapped(text: str, start: str = "", then: str = "") -> str:
    """The text in lines that fit the terminal, of at most 80 characters; `commands` stay whole."""
    width = min(80, max(40, shutil.get_terminal_size().columns))
    look = textwrap.TextWrapper(width, start, then, break_on_hyphens=False, break_long_words=False)
    whole = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\xa0"), text)
    return look.fill(whole).replace("\xa0", " ")


def fitted(text: str) -> str:
    """The lines of a text wrapped for the terminal, or COLUMNS; without one they stay whole."""
    if not shutil.get_terminal_size((0, 0)).columns:
        return text
    indented = re.compile(r"^( *)(.+)$", re.M)
    return indented.sub(lambda line: wrapped(line[2], line[1], line[1] + "  "), text)


def say(text: str) -> None:
    """Print a text in lines that fit the terminal."""
    print(fitted(text), flush=True)


def html_card(title: str, facts: Mapping[str, object], items: Iterable[str] = ()) -> str:
    """A result as HTML for a notebook, in its own colours: title, table of facts, list."""
    left = 'style="text-align:left; vertical-align:top"'
    rows = "".join(
        f'<tr><th scope="row" {left}>{escape(name)}</th><td {left}>{escape(str(fact))}</td></tr>'
        for name, fact in facts.items()
    )
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return (
        '<div style="border-left:3px solid currentColor; padding-left:0.8em">'
        f"<strong>{escape(title)}</strong>"
        f'<table style="font:inherit; color:inherit">{rows}</table>'
        f"{f'<ul>{listed}</ul>' if listed else ''}</div>"
    )


def format_bytes(count: int) -> str:
    """A number of bytes in MiB or GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def duration_text(seconds: int | float) -> str:
    """A time in its two largest units: 42 s, 2 min 1 s, 2 h 1 min, 3 d 2 h."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
