"""What a package index shows, and the files that a public repository has."""

import re
import runpy
import sys
import tomllib
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDRESS = "https://github.com/someone/flatnce"


@pytest.fixture
def hook(monkeypatch):
    """The build hook, without hatchling, which only a build installs."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))


def links_of(text):
    return re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", text)


@pytest.mark.parametrize("published", [True, False])
def test_the_readme_of_the_package_has_no_relative_link(hook, published, monkeypatch):
    if published:
        monkeypatch.setenv("GITHUB_REPOSITORY", "someone/flatnce")
    made, metadata = hook.Metadata(), {}
    made.root = str(ROOT)
    made.update(metadata)
    assert set(metadata) <= set(PROJECT["dynamic"])
    text = metadata["readme"]["text"]
    assert links_of(text) and all(to.startswith("https://") for _, to in links_of(text))
    here = [(mark, to) for mark, to in links_of(README) if not to.startswith("https://")]
    kinds = {"!": "raw", "": "blob"}
    expected = [(mark, f"{ADDRESS}/{kinds[mark]}/HEAD/{to}") for mark, to in here]
    assert [link for link in links_of(text) if ADDRESS in link[1]] == expected * published
    assert len(links_of(text)) == len(links_of(README)) - len(here) * (not published)
    assert metadata["urls"]["Paper"] == "https://arxiv.org/abs/2107.01152"
    assert (metadata["urls"].get("Repository") == ADDRESS) is published


def test_the_classifiers_name_the_versions_of_python_that_the_readme_promises():
    found = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    low, high = re.search(r"Python 3\.(\d+) to 3\.(\d+)", README).groups()
    assert found == [f"3.{minor}" for minor in range(int(low), int(high) + 1)]
    assert PROJECT["requires-python"] == f">=3.{low}"


def yaml_of(path):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with transformers")
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_workflow_runs_what_a_contributor_runs():
    (job,) = yaml_of(".github/workflows/ci.yml")["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run", "make check"] and (ROOT / ".ci" / "run").is_file()
    minors = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert job["strategy"]["matrix"]["python"] == [minors[0], minors[-1]]


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_the_issue_forms_have_what_github_asks_for(form):
    found = yaml_of(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert found["name"] and found["description"]
    ids = [part["id"] for part in found["body"]]
    assert len(ids) == len(set(ids)) and all(p["attributes"]["label"] for p in found["body"])
    assert {part["type"] for part in found["body"]} <= {"textarea", "input", "dropdown"}


def test_read_the_docs_builds_with_the_extras_of_make_docs():
    found = yaml_of(".readthedocs.yaml")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = re.search(r"installed-docs: EXTRAS := (\S+)", makefile)[1].split(",")
    assert found["python"]["install"][0]["extra_requirements"] == extras
    assert (ROOT / found["sphinx"]["configuration"]).is_file()


def test_pre_commit_runs_the_tools_of_make_check():
    hooks = yaml_of(".pre-commit-config.yaml")["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = re.findall(r"\$\(BIN\)/(ruff check|ruff format|mypy)", makefile)
    assert [hook["name"] for hook in hooks] == asked
    assert all(hook["entry"].startswith(f".venv/bin/{hook['name']}") for hook in hooks)


def test_the_constraints_pin_every_package_that_the_extras_install():
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    asked = [
        Requirement(one)
        for extra in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
        for one in extra
    ]
    asked = [one for one in asked if one.name != "flatnce"]
    assert len(asked) > 20
    for one in asked:
        assert one.specifier.contains(pinned[canonicalize_name(one.name)]), one
