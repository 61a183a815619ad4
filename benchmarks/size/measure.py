"""Measure the size of the source tree, and what one eager call of the loss executes.

    python benchmarks/size/measure.py                    # this checkout
    python benchmarks/size/measure.py --tree OTHER       # another checkout of flatnce
    python benchmarks/size/measure.py --before OTHER     # both, as a table

Lines are counted after `ruff format --line-length 99`. Each tree's code runs in its own process
with its `src` first on the path.
"""

import argparse
import ast
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]

# Run in its own process, in the tree that is measured.
CALL = """
import json, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from flatnce import FlatNCE
loss_fn = FlatNCE()
z1, z2 = (torch.randn(32, 128, requires_grad=True) for _ in range(2))
loss_fn(z1, z2).backward()
files = set()
def look(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and "flatnce" in name:
        files.add(name.rpartition("flatnce/")[2])
sys.setprofile(look)
loss = loss_fn(z1, z2)
sys.setprofile(None)
class Count(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        Count.calls += 1
        return function(*args, **(kwargs or {}))
with Count():
    loss_fn(z1, z2).backward()
print(json.dumps({"files": sorted(files), "operations": Count.calls}))
"""

# The pretraining package was `flatnce.train` before the tree was rebuilt.
IMPORT = """
import importlib.util, json, sys
if importlib.util.find_spec("flatnce.pretrain"):
    import flatnce.pretrain
    flatnce.pretrain.train
else:
    import flatnce.train
mine = sorted(name for name in sys.modules if name.split(".")[0] == "flatnce")
print(json.dumps({"modules": len(mine), "of_mi": sum(n.startswith("flatnce.mi") for n in mine)}))
"""


def listed(tree: Path, pattern: str) -> list[Path]:
    """Return the files git tracks that match a pattern."""
    shown = subprocess.run(
        ["git", "ls-files", pattern], cwd=tree, capture_output=True, text=True, check=True
    )
    return [tree / name for name in shown.stdout.splitlines() if (tree / name).exists()]


def formatted(paths: list[Path]) -> dict[Path, str]:
    """Return each file's text after ruff has formatted it at 99 columns."""
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        copies = {path: Path(folder, f"{place}.py") for place, path in enumerate(paths)}
        for path, copy in copies.items():
            copy.write_bytes(path.read_bytes())
        format = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet"]
        subprocess.run([*format, "--line-length", "99", folder], check=True)
        for path, copy in copies.items():
            texts[path] = copy.read_text(encoding="utf-8")
    return texts


def exported(trees: dict[str, ast.Module], tree: Path) -> int:
    """Count the entries of every ``__all__``; those of a lazy package by importing it."""
    total, lazy = 0, []
    for module, parsed in trees.items():
        for node in parsed.body:
            if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node.targets[0]):
                if isinstance(node.value, ast.List | ast.Tuple):
                    total += len(node.value.elts)
                else:
                    lazy.append(module)
    count = (
        f"import importlib; names = {lazy!r}; "
        "print(sum(len(importlib.import_module(name).__all__) for name in names))"
    )
    return total + int(ran(tree, count))


def importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return, for each module, the modules of the package that import it."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in trees:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found[whole if whole in trees else node.module].add(module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in trees:
                        found[alias.name].add(module)
    return found


def longest_function(trees: dict[str, ast.Module]) -> tuple[int, str]:
    """Return the length and name of the longest function without a Triton decorator."""
    best = (0, "")
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            if any("triton" in mark or mark.startswith("kernel") for mark in marks):
                continue
            best = max(best, (node.end_lineno - node.lineno + 1, f"{module}.{node.name}"))
    return best


def ran(tree: Path, code: str) -> Any:
    """Run code in its own process with the tree's package first on the path."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tree / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(tree: Path) -> dict[str, object]:
    """Return the figures of one checkout."""
    sources = formatted(listed(tree, "src/*.py"))
    trees = {}
    for path, text in sources.items():
        parts = path.relative_to(tree / "src").with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(text)
    by_module = importers(trees)
    packages = {name for name in trees if any(other.startswith(f"{name}.") for other in trees)}
    single = [name for name in trees if name not in packages and len(by_module[name]) == 1]
    length, function = longest_function(trees)
    call, loaded = ran(tree, CALL), ran(tree, IMPORT)
    return {
        "lines of src": sum(text.count("\n") for text in sources.values()),
        "files of src": len(sources),
        "entries of __all__": exported(trees, tree),
        "modules with one importer": len(single),
        "longest function outside Triton, lines": length,
        "longest function": function,
        "lines of tests": sum(
            text.count("\n") for text in formatted(listed(tree, "tests/*.py")).values()
        ),
        "files entered by one eager forward": len(call["files"]),
        "operations of forward and backward, batch 32": call["operations"],
        "modules loaded with the pretraining package": loaded["modules"],
        "of these, modules of mi": loaded["of_mi"],
        "files entered": call["files"],
        "single importers": sorted(single),
    }


def main() -> None:
    """Print the figures of one tree as JSON, or of two as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=HERE)
    parser.add_argument("--before", type=Path, help="an older checkout to compare with")
    options = parser.parse_args()
    after = measure(options.tree.resolve())
    if options.before is None:
        print(json.dumps(after, indent=1))
        return
    before = measure(options.before.resolve())
    print("| | before | after |\n|---|--:|--:|")
    for name, value in after.items():
        if isinstance(value, int):
            print(f"| {name} | {before[name]:,} | {value:,} |")


if __name__ == "__main__":
    main()
