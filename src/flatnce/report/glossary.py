"""The terms that a page explains: each is a link to its explanation at the end of the page."""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata

from flatnce.core import diagnostics
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.toml_files import read_entries, read_toml

__all__ = ["Marker"]


@dataclass(frozen=True)
class Term:
    """One term; ``glossary.toml`` says what each field is."""

    key: str
    names: list[str]
    page: str
    text: str = ""
    diagnostic: str = ""
    objective: str = ""

    @property
    def explained(self) -> str:
        """What the term means."""
        if self.diagnostic:
            return str(_DIAGNOSTICS[self.diagnostic]["description"])
        return OBJECTIVES[self.objective].summary if self.objective else self.text


_DIAGNOSTICS = read_toml(diagnostics.__file__, "diagnostics.toml")  # without importing torch
TERMS: dict[str, Term] = read_entries(__file__, "glossary.toml", Term)
_BY_NAME = {name.lower(): term for term in TERMS.values() for name in term.names}
# The longest first. Only the first letter may be a capital or not: "MI" is a term, "mi" is not.
_NAMES = "|".join(
    rf"[{name[0].lower()}{name[0].upper()}]{re.escape(name[1:])}"
    for name in sorted((one for term in TERMS.values() for one in term.names), key=len)[::-1]
)
_PATTERN = re.compile(rf"(?<![\w-])(?:{_NAMES})(?![\w⊕-])")


def documentation() -> str:
    """The address of the documentation's folder; empty if the installed package names none."""
    try:
        named = metadata("flatnce").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    found = dict(entry.split(", ", 1) for entry in named)
    return found.get("Documentation", "").removesuffix("index.md")


class Marker:
    """Marks the terms of one page, each at its first occurrence in a section."""

    def __init__(self) -> None:
        self.used: dict[str, Term] = {}
        self.marked: set[str] = set()
        self.documentation = documentation()

    def begin(self) -> str:
        """Begin a section."""
        self.marked.clear()
        return ""

    def __call__(self, text: str) -> str:
        """Escaped text with links."""

        def link(match: re.Match[str]) -> str:
            term = _BY_NAME[match[0].lower()]
            if term.key in self.marked:
                return match[0]
            self.used[term.key] = term
            self.marked.add(term.key)
            return f'<a class="term" href="#term-{term.key}">{match[0]}</a>'

        return _PATTERN.sub(link, text)
