"""Look at the built documentation: links with anchors, pictures, notebooks, requests.

Every link to a file of the documentation must find that file and, after a #, an element with that
id. Every picture must be there and have a text for those who do not see it. Every tutorial must
show the output of its cells. No page may fetch a script, a style or a picture from elsewhere, so
that it reads the same without a network. Links to other sites are not followed.

    python tests/check_docs.py docs/_build/html [--tutorials-not-executed]
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
# What a browser fetches by itself, in contrast to what a reader may follow.
FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
OUTPUT = "cell_output"


class Page(HTMLParser):
    """What one page holds: its ids, links, fetched files, pictures without words, outputs."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self.wordless, self.outputs, self.pictures = [], 0, 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.update(given[key] for key in ("id", "name") if given.get(key))
        self.outputs += OUTPUT in (given.get("class") or "").split()
        if tag in FETCHED and given.get(FETCHED[tag]):
            self.fetched.append(given[FETCHED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img":
            self.pictures += 1
            if not (given.get("alt") or "").strip():
                self.wordless.append(given.get("src"))


def faults(folder):
    """What is wrong with the pages under a folder, one sentence each."""
    pages = {
        path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))
    }
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name}: {one}" for link in page.links for one in _followed(link, path, pages)]
        for link in page.fetched:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                found.append(f"{name}: {link} is fetched from elsewhere")
            elif not _target(parts.path, path).exists():
                found.append(f"{name}: {link} is not there")
        found += [f"{name}: the picture {source} has no alt text" for source in page.wordless]
    return found


def tutorial_faults(folder, sources):
    """Tutorials without a picture, or of which no output is shown."""
    found = []
    for source in sources:
        path = folder / "tutorials" / f"{source.stem}.html"
        if not path.is_file():
            found.append(f"tutorials/{source.name}: has no page")
            continue
        page = Page(path.read_text(encoding="utf-8"))
        if not page.outputs:
            found.append(f"tutorials/{source.name}: no output of a cell is shown")
        if not page.pictures:
            found.append(f"tutorials/{source.name}: shows no picture")
    return found


def _target(link, page):
    return (page.parent / unquote(link)).resolve() if link else page.resolve()


def _followed(link, page, pages):
    """What is wrong with a link that a reader may follow: nothing, or one sentence."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return
    target = _target(parts.path, page)
    if not target.exists():
        yield f"{link} is not there"
    elif parts.fragment and target.suffix == ".html":
        ids = next(other.ids for path, other in pages.items() if path.resolve() == target)
        if unquote(parts.fragment) not in ids:
            yield f"{link} leads to no element of {target.name}"


def main(folder, executed=True):
    sources = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    found = faults(folder)
    if executed:
        found += tutorial_faults(folder, sources)
    if not (folder / "index.html").is_file():
        found.append(f"{folder} holds no index.html; build the documentation first (make docs)")
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    count = len(list(folder.rglob("*.html")))
    print(f"docs: {count} pages, {len(sources)} notebooks, {len(found)} faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), executed="--tutorials-not-executed" not in sys.argv))
