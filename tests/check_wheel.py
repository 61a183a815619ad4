"""Build the wheel, install it bare, and run the core's tests against it.

Bare means: flatnce, what its metadata requires, and nothing of the extras. By default the new
environment gets the requirements by linking them, distribution by distribution, out of the
environment that runs this script: the same files pip would download, in a tenth of the time.
With --fresh everything is installed anew.

    python tests/check_wheel.py [--fresh]
"""

import argparse
import ast
import email
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "flatnce"

# What works without any extra: these may import what the bare wheel requires, and must.
CORE = (
    "__init__",
    "buffers",
    "faults",
    "selection",
    "distributed",
    "control",
    "kernels",
    "pairs",
    "contrast",
    "objectives",
    "diagnostics",
    "functional",
)
# Required though the core does not import it: torch warns at import without it, and does not
# require it itself.
SILENT = {"numpy"}
# Imported where it is there: torch brings it on Linux, and without it another kernel is taken.
IF_THERE = {"triton"}
# Every tests/test_*.py is the core's, but these: they read the source tree or need an extra.
NOT_CORE_TESTS = (
    "test_architecture.py",
    "test_checkpoint.py",
    "test_cli.py",
    "test_demo.py",
    "test_pages.py",
    "test_report.py",
)
# Long, and about numbers, which do not depend on what is installed: only with --fresh. Of the
# others every test function runs, with its first parameters; all parameters, too, only then.
LONG_TESTS = ("test_compile.py", "test_properties.py")
LONG_TEST = (
    "tests/test_control.py::test_a_learned_temperature_stays_bounded_where_the_naive_one_runs_away"
)
TOOLS = ("pytest", "pytest-xdist", "hypothesis")


def fail(message: str) -> None:
    sys.exit(f"check_wheel: {message}")


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([str(part) for part in command], text=True, **options)
    if done.returncode:
        fail(f"exit {done.returncode} from {' '.join(map(str, command))}\n{done.stderr or ''}")
    return done.stdout


def build(folder: Path) -> Path:
    """The wheel, by way of the source distribution, as it would be published."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, capture_output=True)
    return next(folder.glob("*.whl"))


def required_by(requirements: Iterable[str], extra: str = "") -> set[str]:
    """The distributions named by requirements that apply here, with or without an extra."""
    parsed = map(Requirement, requirements)
    return {
        canonicalize_name(requirement.name)
        for requirement in parsed
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    }


def closure_of(names: Iterable[str]) -> set[str]:
    """Distributions, and what they require, and what that requires."""
    waiting = [Requirement(name) for name in names]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                for text in importlib.metadata.requires(name) or ():
                    more = Requirement(text)
                    if more.marker is None or more.marker.evaluate({"extra": extra}):
                        waiting.append(more)
    return {name for name, _ in seen}


def imported_by_core() -> set[str]:
    """Distributions that the core's source imports, anywhere in a file."""
    providers = importlib.metadata.packages_distributions()
    roots = set()
    for file in PACKAGE.rglob("*.py"):
        if file.relative_to(PACKAGE).with_suffix("").parts[0] not in CORE:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                roots.add(node.module.split(".")[0])
    roots -= {"flatnce", *sys.stdlib_module_names}
    return {canonicalize_name(name) for root in roots for name in providers.get(root, [root])[:1]}


def check_contents(wheel: Path) -> list[str]:
    """Everything in the package is in the wheel; returns the wheel's Requires-Dist."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        name = next(entry for entry in inside if entry.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    there = {
        str(file.relative_to(PACKAGE.parent))
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    if missing := sorted(there - inside):
        fail(f"the wheel lacks {missing}")
    if strange := sorted(e for e in inside - there if ".dist-info/" not in e):
        fail(f"the wheel holds {strange}, which is not in src/flatnce")
    return metadata.get_all("Requires-Dist", [])


def link(distributions: set[str], site: Path) -> None:
    """Put installed distributions into another environment, as links to their files.

    A folder whose owners are all wanted is linked whole; one that others share is merged.
    """
    owners: dict[str, set[str]] = {}
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.name)
        for file in distribution.files or ():
            owners.setdefault(file.parts[0], set()).add(name)
    links: dict[Path, Path] = {}
    for distribution in map(importlib.metadata.distribution, distributions):
        home = Path(str(distribution.locate_file("")))
        for file in distribution.files or ():
            part = file.parts[0] if owners[file.parts[0]] <= distributions else file
            if file.parts[0] not in ("..", "__pycache__"):
                links[site / part] = home / part
    for target, source in links.items():
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)


def environment(folder: Path, wheel: Path, requires: list[str], fresh: bool) -> Path:
    """A new environment with the wheel, its requirements and the test tools; its python."""
    options = [] if fresh else ["--without-pip"]
    run(sys.executable, "-m", "venv", *options, folder)
    python = folder / "bin" / "python"
    if fresh:
        run(python, "-m", "pip", "install", "--quiet", wheel, *TOOLS)
        return python
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", code, capture_output=True).strip())
    link(closure_of([*required_by(requires), *TOOLS]), site)
    # pip itself judges whether the requirements are met: it may not download anything.
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    run(*pip, wheel)
    return python


def check_environment(python: Path, requires: list[str], extras: set[str]) -> None:
    """The installed package is the wheel's, and nothing of the extras is in sight."""
    code = (
        "import importlib.metadata as m, flatnce; "
        "print(flatnce.__file__, *{d.name for d in m.distributions()}, sep='\\n')"
    )
    place, *names = run(python, "-c", code, capture_output=True, cwd=python.parent).splitlines()
    if not Path(place).is_relative_to(python.parent.parent):
        fail(f"flatnce was imported from {place}, not from the new environment")
    present = set(map(canonicalize_name, names))
    uninvited = (extras & present) - closure_of([*required_by(requires), *TOOLS])
    if uninvited:
        fail(f"the bare environment holds {sorted(uninvited)}, which only extras ask for")


def check_command(python: Path) -> None:
    """Without the cli extra the command must say what to install, not show a traceback."""
    done = subprocess.run([python.parent / "flatnce", "--help"], capture_output=True, text=True)
    said = done.stdout + done.stderr
    if "Traceback" in said or (done.returncode and "flatnce[cli]" not in said):
        fail(f"the bare `flatnce --help` should work or name flatnce[cli]; it said:\n{said}")


def check_core_tests(python: Path, fresh: bool) -> None:
    tests = sorted((ROOT / "tests").glob("test_*.py"))
    left_out = NOT_CORE_TESTS if fresh else NOT_CORE_TESTS + LONG_TESTS
    tests = [test for test in tests if test.name not in left_out]
    # The options of pyproject.toml, less those that need tools of the dev extra.
    options = ("-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-m", "not slow")
    if not fresh:
        options += ("--one-of-each", "--deselect", LONG_TEST)
    workers = ("-n", "auto", "--maxprocesses=8")
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    run(python, "-m", "pytest", "-q", *options, *workers, *tests, cwd=ROOT, env=quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="install everything anew (minutes)")
    fresh = parser.parse_args().fresh
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flatnce-wheel-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        requires = check_contents(wheel)
        core = required_by(requires)
        if core != (imported := (imported_by_core() - IF_THERE) | SILENT):
            fail(f"the wheel requires {sorted(core)} and the core needs {sorted(imported)}")
        extras = {canonicalize_name(Requirement(text).name) for text in requires} - core
        python = environment(folder / "environment", wheel, requires, fresh)
        check_environment(python, requires, extras)
        check_command(python)
        check_core_tests(python, fresh)
    print(f"check_wheel: {wheel.name} stands on its own ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
