"""The scripts under ``benchmarks`` import names that the package still has."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def exists(module, name):
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize(
    "script", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCHMARKS))
)
def test_what_a_benchmark_imports_from_the_package_exists(script):
    wanted = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flatnce")
        for alias in node.names
    ]
    missing = [f"{module}.{name}" for module, name in wanted if not exists(module, name)]
    assert not missing, f"benchmarks/{script.relative_to(BENCHMARKS)} imports {missing}"
