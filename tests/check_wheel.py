"""Build the wheel, install it without extras in a new environment, and run the core's tests.

By default every test function runs with its first parameters only; `--all` runs everything.

    python tests/check_wheel.py [--all]
"""

import argparse
import ast
import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from paths import ROOT

PACKAGE = ROOT / "src" / "flatnce"

# These parts of the package work without any extra.
CORE = ("__init__", "core", "files", "functional", "lazy")
# numpy is required although the core does not import it: torch warns at import without it.
SILENT = {"numpy"}
# torch brings triton on Linux; without it another kernel is chosen.
OPTIONAL = {"triton"}
LONG_TESTS = ("test_compile.py", "test_properties.py", "test_fused.py", "test_fused_compiles.py")
REPOSITORY = "someone/flatnce"  # where the built package believes to be published
TOOLS = ("pytest", "pytest-xdist", "hypothesis")


# The variables of this process without a path to another flatnce.
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def fail(message: str) -> None:
    sys.exit(f"check_wheel: {message}")


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([str(part) for part in command], text=True, **options)
    if done.returncode:
        fail(f"exit {done.returncode} from {' '.join(map(str, command))}\n{done.stderr or ''}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build the wheel from the source distribution, as it would be published."""
    published = os.environ | {"GITHUB_REPOSITORY": REPOSITORY}
    run(
        sys.executable, "-m", "build", "--outdir", folder, ROOT, capture_output=True, env=published
    )
    return next(folder.glob("*.whl"))


def imported_by_core() -> set[str]:
    """Return the distributions that the core's source imports, anywhere in a file."""
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


def check_contents(wheel: Path) -> None:
    """Everything in the package is in the wheel, and it requires what the core imports."""
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
    readme = metadata.get_payload()
    if relative := re.findall(r"\]\((?![a-z]+:|#)[^)]*", readme):
        fail(f"the README of the wheel has relative links: {relative}")
    addresses = metadata.get_all("Project-URL", [])
    wanted = f"Repository, https://github.com/{REPOSITORY}"
    if wanted not in addresses or f"{REPOSITORY}/raw/HEAD/" not in readme:
        fail(f"neither README nor URLs lead to the repository: {addresses}")
    requirements = map(Requirement, metadata.get_all("Requires-Dist", []))
    required = {canonicalize_name(r.name) for r in requirements if r.marker is None}
    if required != (imported := (imported_by_core() - OPTIONAL) | SILENT):
        fail(f"the wheel requires {sorted(required)} and the core needs {sorted(imported)}")


def environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel and the test tools; return its python."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if uv is not None:
        run(uv, "pip", "install", "--quiet", "--python", python, wheel, *TOOLS)
    else:
        run(python, "-m", "pip", "install", "--quiet", wheel, *TOOLS)
    code = "import flatnce; print(flatnce.__file__)"
    place = run(python, "-c", code, capture_output=True, cwd=folder, env=CLEAN).strip()
    if not Path(place).is_relative_to(folder):
        fail(f"flatnce was imported from {place}, not from the new environment")
    return python


def check_command(python: Path) -> None:
    """Without the cli extra the command names what to install and shows no traceback."""
    command = [python.parent / "flatnce", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN)
    said = done.stdout + done.stderr
    if "Traceback" in said or (done.returncode and "flatnce[cli]" not in said):
        fail(f"the bare `flatnce --help` should work or name flatnce[cli]; it said:\n{said}")


def check_core_tests(python: Path, everything: bool) -> None:
    tests = sorted((ROOT / "tests" / "core").glob("test_*.py"))
    # The options of pyproject.toml, less those that need tools of the dev extra.
    options = ["-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-m", "not slow"]
    if not everything:
        tests = [test for test in tests if test.name not in LONG_TESTS]
        options.append("--one-of-each")
    workers = ("-n", "auto", "--maxprocesses=8")
    quiet = CLEAN | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    run(python, "-m", "pytest", "-q", *options, *workers, *tests, cwd=ROOT, env=quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="all parameters and the long tests")
    everything = parser.parse_args().all
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flatnce-wheel-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        check_contents(wheel)
        python = environment(folder / "environment", wheel)
        check_command(python)
        check_core_tests(python, everything)
    print(f"check_wheel: {wheel.name} works alone ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
