"""What the pages of the checkout say."""

from functools import cache

from paths import ROOT

README, RESULTS, WHICH = "README.md", "docs/results.md", "docs/which-loss.md"
TEMPERATURE, CHANGES = "docs/temperature.md", "CHANGELOG.md"


@cache
def words_of(path):
    """The words of a page, wherever its lines break."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def missing(said):
    """Of words, each with the pages that have them, those that a page lacks.

    Words may be in bold type on a page.
    """
    pairs = [(path, words) for words, *paths in said for path in paths]
    return [
        (path, words)
        for path, words in pairs
        if words not in words_of(path) and words not in words_of(path).replace("**", "")
    ]
