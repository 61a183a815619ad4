"""Whatever is shown is run: every Python block of the README and the docs, page by page."""

import re
from pathlib import Path

import pytest

from forked import run_forked

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name
)
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_forked("\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if LINK.search(p.read_text())], ids=lambda p: p.name
)
def test_links_on_the_page_lead_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
