"""What the doctor says: findings, each with evidence and remedies, and the diagnosis of them.

This module imports no torch: ``flatnce doctor`` also reports a torch that cannot be imported.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flatnce.messages import html_card, wrapped
from flatnce.toml_files import read_toml

_CATALOGUE = read_toml(__file__, "findings.toml")

KINDS = tuple(_CATALOGUE["found"])
"""Every kind of finding on a run or embeddings, in the order in which they are reported.

A cause comes before its consequences; what invalidates every other number comes first.
"""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    kind: str  #: one of :data:`KINDS`; for an installation, what is broken
    evidence: str  #: the numbers that show it
    remedies: tuple[str, ...] = ()  #: what to do, most promising first
    since: int | None = None  #: first step from which on it has held, if there are any

    def without(self, words: str) -> "Finding":
        """The finding without the remedies that contain these words."""
        return replace(self, remedies=tuple(one for one in self.remedies if words not in one))


@dataclass(frozen=True)
class Diagnosis:
    """What was found, the numbers behind it, and what could not be known."""

    subject: str  #: what was examined, in words
    findings: tuple[Finding, ...] = ()  #: the most important first
    numbers: Mapping[str, Any] = field(default_factory=dict)  #: everything that was measured
    unknown: tuple[str, ...] = ()  #: what could not be judged, and what would make it possible
    judged: bool = True  #: whether there was enough evidence to call no finding healthy

    @property
    def verdict(self) -> str:
        """The kind of the first finding; ``healthy`` or ``undecided`` if there is none."""
        if self.findings:
            return self.findings[0].kind
        return "healthy" if self.judged else "undecided"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of all findings, in order."""
        return tuple(finding.kind for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        found = {"verdict": self.verdict, **asdict(self)}
        del found["judged"]  # the verdict says so
        return found

    def __str__(self) -> str:
        """The diagnosis on a few lines, for a terminal."""
        lines = [f"{self.subject}: {self.verdict}"]
        if shown := _shown(self.numbers):
            lines.append(wrapped(shown, "  ", "  "))
        for finding in self.findings:
            since = "" if finding.since is None else f" (since step {finding.since:,})"
            lines += ["", wrapped(f"{finding.kind}{since}: {finding.evidence}", then="  ")]
            for number, remedy in enumerate(finding.remedies, start=1):
                lines.append(wrapped(remedy, f"  {number}. ", "     "))
        if self.unknown:
            lines += ["", "not known:"]
            for reason in self.unknown:
                lines.append(wrapped(reason, "  - ", "    "))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The diagnosis in a notebook."""
        facts = {"numbers": _shown(self.numbers)} if _shown(self.numbers) else {}
        facts |= {finding.kind: finding.evidence for finding in self.findings}
        items = [remedy for finding in self.findings for remedy in finding.remedies]
        items += [f"not known: {reason}" for reason in self.unknown]
        return html_card(f"{self.subject}: {self.verdict}", facts, items)


def finding(kind: str, *, within: str = "found", **values: Any) -> Finding:
    """The finding of that kind, in the words of ``findings.toml``."""
    words = _CATALOGUE[within][kind]
    remedies = tuple(remedy.format(**values) for remedy in words.get("remedies", ()))
    return Finding(kind.format(**values), words["evidence"].format(**values), remedies)


def not_known(kind: str, **values: Any) -> str:
    """What could not be known, in the words of ``findings.toml``."""
    return str(_CATALOGUE["unknown"][kind].format(**values))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, causes before consequences; those of one kind become one finding."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        if before := merged.get(finding.kind):
            steps = [one.since for one in (before, finding) if one.since is not None]
            evidence = f"{before.evidence}; {finding.evidence}"
            finding = replace(before, evidence=evidence, since=min(steps, default=None))
        merged[finding.kind] = finding
    found = sorted(merged.values(), key=lambda finding: KINDS.index(finding.kind))
    if "temperature too high" in merged:
        found = [finding.without("raise the temperature") for finding in found]
    return tuple(found)


def _shown(numbers: Mapping[str, Any]) -> str:
    """The numbers that a verdict rests on, as far as they are present."""
    said = []
    if all(math.isfinite(numbers.get(key, math.nan)) for key in ("mi", "mi_ceiling")):
        said.append(f"MI {numbers['mi']:.2f} of {numbers['mi_ceiling']:.2f} nats")
    for key, words in _CATALOGUE["shown"].items():
        if isinstance(value := numbers.get(key), int | float) and math.isfinite(value):
            said.append(words.format(value))
    return ", ".join(said)
