"""Metadata that depends on where the repository is: the links of the README, and the URLs.

GitHub's runners name the repository in GITHUB_REPOSITORY; set it to publish from elsewhere:

    GITHUB_REPOSITORY=OWNER/NAME python -m build

Links to files of the repository then lead there. If it is not set, as on a laptop, they become
plain text and pictures are left out, because relative links lead nowhere on PyPI.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2107.01152"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)\n?")


def repository() -> str | None:
    """The address of the repository, if the environment names it."""
    name = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}" if name else None


def with_absolute_links(text: str, address: str | None) -> str:
    """The text with links to files of the repository, or without links where there is none."""

    def replaced(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        end = "\n" if match[0].endswith("\n") else ""
        if address is None:
            return "" if picture else words + end
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/HEAD/{path}){end}"

    return LINK.sub(replaced, text)


def urls(address: str | None) -> dict[str, str]:
    """The addresses that the package index lists."""
    if address is None:
        return {"Paper": PAPER}
    return {
        "Repository": address,
        "Documentation": f"{address}/blob/HEAD/docs/index.md",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Paper": PAPER,
    }


class Metadata(MetadataHookInterface):
    """Sets ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill the dynamic fields."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        readme = with_absolute_links(text, repository())
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = urls(repository())
