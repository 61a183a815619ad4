"""Whatever is shown is run: the Python blocks of every page, and every block of the README."""

import re
import shlex
import tomllib

import pytest

from flatnce.cli import main
from forked import run_forked
from make_sample import TRUTH
from paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")
README = (ROOT / "README.md").read_text(encoding="utf-8")
# As the fixture plain_charts, in another process.
WITHOUT_DRAWINGS = "from flatnce.report.charts import Chart; Chart.svg = lambda self: '<svg/>'"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
SHOWN = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, text in SHOWN.findall(README)
    if kind == "sh"
    for line in text.splitlines()
    if line.strip()
]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name
)
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    code = "\n".join(BLOCK.findall(text))
    printed = run_forked(f"{WITHOUT_DRAWINGS}\n{code}" if "_page(" in code else code)
    blocks = SHOWN.findall(text)
    shown = "".join(content for kind, content in blocks if kind == "text")
    # On these pages, a text is an output.
    if shown and (page.parent.name in ("explain", "howto") or page.name == "temperature.md"):
        assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
        numbers = [[float(one) for one in NUMBER.findall(words)] for words in (shown, printed)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=1e-4)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if LINK.search(p.read_text())], ids=lambda p: p.name
)
def test_links_on_the_page_lead_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken


def github_anchors(page):
    """The anchors of a page on GitHub: of its headings, in lower case and without punctuation."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def test_anchors_of_links_are_those_of_github():
    """Sphinx has other anchors where a heading has punctuation, such as a dot."""
    anchored = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
    broken = [
        (page.name, target, anchor)
        for page in PAGES
        for target, anchor in anchored.findall(page.read_text(encoding="utf-8"))
        if anchor not in github_anchors(page.parent / target if target else page)
    ]
    assert not broken


def test_no_two_blocks_train_a_run_of_the_same_name():
    """A reader may try all pages in one folder; a run is not overwritten."""
    pages = [page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md")]
    blocks = [block for text in pages for block in SHOWN.findall(text)]
    shell = {
        name
        for kind, text in blocks
        if kind == "sh"
        for name in re.findall(r"flatnce (?:train|sweep) .*--name ([\w-]+)", text)
    }
    python = [
        one or other
        for kind, text in blocks
        if kind == "python"
        for one, other in re.findall(r'train\(.*(?:"runs/([\w-]+)"|name="([\w-]+)")', text)
    ]
    assert len(set(python)) == len(python) >= 5 and not shell & set(python)


# Words of our own and the usual ones; a power law is one, and times may grow by a law.
UNUSUAL = {
    "distribution": re.compile(r"(?<!power )(?<![`/-])\blaws?\b(?!\.py| [nN]²)", re.IGNORECASE),
    "estimate or bound": re.compile(r"\bread-outs?\b", re.IGNORECASE),
}
PER = re.compile(
    r"\b(images|samples|steps|pairs|ms|w) an? (second|row|step|epoch|batch|process)\b"
)
# These are a log, or were fixed before the runs.
READ = [p for p in PAGES if p.name not in ("CHANGELOG.md", "protocol.md")]


@pytest.mark.parametrize(
    "page", [*READ, *sorted(ROOT.glob("benchmarks/*/README.md"))], ids=lambda p: p.name
)
def test_pages_use_the_usual_words(page):
    text = page.read_text(encoding="utf-8")
    found = {usual: own.findall(text) for usual, own in UNUSUAL.items() if own.search(text)}
    assert not found


def test_rates_are_written_with_per():
    kinds = ("src/**/*.md", "src/**/*.toml", "examples/*.py", "benchmarks/**/*.py")
    files = [*PAGES, *ROOT.glob("benchmarks/*/*.svg"), *(f for k in kinds for f in ROOT.glob(k))]
    assert [f.name for f in files if PER.search(f.read_text(encoding="utf-8"))] == []


def test_the_protocol_and_its_results_explain_their_words():
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    said = protocol.partition("## Deviations")[2]
    assert "An **arm** is an objective together with its rule for the temperature" in said
    assert "tuned once, at batch 256" in said
    study = (ROOT / "benchmarks" / "image_study" / "README.md").read_text(encoding="utf-8")
    first = re.search(r"\barms?\b.{40}", study)
    assert first and first[0].startswith("arm (a loss with its rule for the temp")


def test_the_readme_explains_its_terms_where_they_are_used_first():
    prose = re.sub(r"```.*?```|`[^`]*`|!\[.*?\)", "", README, flags=re.DOTALL)
    explained = {"MI": "mutual information (MI: how", "ESS": "(ESS, the share of neg"}
    explained |= {"gain": "gain (the factor,", "critics": "critics (networks that"}
    explained |= {"nats": "nats (1 nat is 1.44 bits", "two towers": "two towers (as in CLIP)"}
    explained |= {"STS": "STS (semantic textual", "NT-Xent": "NT-Xent (InfoNCE of two views"}
    for term, words in explained.items():
        first = re.search(rf"\b{term}\b", prose)
        assert first and 0 <= prose.find(words) <= first.start() < prose.find(words) + len(words)
    assert f"(prints 0.34 nats; the true value is {TRUTH:.2f})" in README


def test_the_page_of_promises_names_tests_that_exist():
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    files = list(ROOT.glob("tests/**/*.py"))  # of which several may have one name
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tests = {*re.findall(r"^def (test_\w+)", code, re.MULTILINE)} | {file.name for file in files}
    named = re.findall(r"`(test_\w+(?:\.py)?)`", page)
    assert named and [name for name in named if name not in tests] == []


def test_the_readme_shows_what_its_code_prints():
    blocks = SHOWN.findall(README)
    shown = [text for kind, text in blocks if kind == "text"]
    printed = run_forked("\n".join(BLOCK.findall(README)))
    wanted = ".*".join(map(re.escape, "".join(shown).split("...")))
    assert re.fullmatch(wanted, printed, re.DOTALL), printed
    verdict = shown[0].splitlines()[1].split()[0]
    assert f"The pairs of this example are easy, so the verdict is *{verdict}*." in README


@pytest.mark.slow
def test_untrained_networks_do_on_digits_what_the_readme_says(tmp_path):
    """Where this fails, so does the advice not to judge by digits."""
    from flatnce.pretrain import preset, train
    from flatnce.pretrain.evaluation import evaluate_run

    train(preset("digits").override(epochs=1, tensorboard=False), tmp_path / "run")
    (linear,) = evaluate_run(tmp_path / "run", "linear", step=0, device="cpu")
    said = re.search(r"untrained networks reach (\d+) %, too", README)
    assert said and linear["top1"] == pytest.approx(int(said[1]) / 100, abs=0.02)


def test_the_readme_installs_extras_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for command in COMMANDS:
        if command.startswith("pip install"):
            named = re.findall(r"\[(.*?)\]", command)
            extras = {extra for group in named for extra in group.split(",")}
            assert extras <= set(project["optional-dependencies"])


@pytest.mark.parametrize(
    "shorter", [pytest.param([], marks=pytest.mark.slow), ["--epochs", "1"]], ids=len
)
def test_the_commands_of_the_readme_run(shorter, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    commands = [command for command in COMMANDS if command.startswith("flatnce ")]
    assert commands
    for command in commands:
        typed = shlex.split(command)[1:]
        typed += shorter if typed[0] == "train" else []
        assert main(typed) == 0, (command, capfd.readouterr())


def test_the_readme_is_short_and_has_no_other_blocks():
    assert len(README.splitlines()) < 120
    assert {kind for kind, _ in SHOWN.findall(README)} <= {"sh", "python", "text"}
    others = [c for c in COMMANDS if not c.startswith(("flatnce ", "pip install "))]
    assert not others
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= set(targets)
