"""The shape of the code: who imports whom, what is public, how light the import is.

The source is read, not imported: an import inside a function, or under TYPE_CHECKING, counts too.
"""

import ast
import graphlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from jaxtyping import TypeCheckError

from flatnce.core.objectives.registry import OBJECTIVES

PACKAGE = Path(__file__).parent.parent / "src" / "flatnce"

# From the top down. A module imports from the blocks above its own and from its own folder.
BLOCKS: tuple[tuple[str, ...], ...] = (
    ("lazy", "extras", "environment", "files", "messages", "own_code", "toml_files"),
    ("core",),
    ("functional", "integrations"),
    ("report", "cli"),
    ("mi",),
    ("pretrain",),
    ("diagnose", "paper"),
    ("__main__",),
)
LEVEL = {name: level for level, block in enumerate(BLOCKS) for name in block}

# The package root is lazy and knows every part, so no module imports a name from it. The version
# is a constant, and `from flatnce import messages` is the module, not a name of the root.
ALLOWED_FROM_ROOT = {"__version__"}

PUBLIC = [
    *(entry.class_name for entry in OBJECTIVES.values()),
    "CrossEntropyLoss",
    "Monitor",
    "EssController",
    "KeyQueue",
    "LearnedTemperature",
    "doctor",
    "functional",
    "integrations",
    "load",
    "resume",
    "train",
    "mi",
    "pretrain",
    "__version__",
]

DRAWERS = re.compile(r"_?(utils?|utilities|helpers?|common|misc)")
HEAVY = ("torch", "torchvision", "matplotlib", "triton", "numpy", "jaxtyping")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
# The package root names everyone, lazily: it is above the rules it serves.
BELOW_ROOT = [module for module in SOURCES if module != "flatnce"]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> set[tuple[str, str]]:
    """What a module imports, as (module, name); the name is empty for ``import a.b``."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports by a relative name"
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            target = node.args[0] if node.args else None
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                found.add((target.value, ""))
    return found


def own_imports_of(module: str) -> set[str]:
    """The modules of this package that a module imports, each by its full name."""
    found = set()
    for origin, name in imports_of(module):
        if origin.split(".")[0] == "flatnce":
            whole = f"{origin}.{name}"
            found.add(whole if whole in SOURCES else origin)
    return found


def place_of(module: str) -> str:
    """The name by which the blocks know a module: its file or folder under the package."""
    return module.split(".")[1]


# Each test looks at every module and names all that break its rule.


def test_every_module_has_a_place_in_the_blocks():
    homeless = [module for module in BELOW_ROOT if place_of(module) not in LEVEL]
    assert not homeless, "in no block: add them to BLOCKS here and to ARCHITECTURE.md"


def test_imports_point_up_the_blocks():
    wrong = {}
    for module in BELOW_ROOT:
        here = place_of(module)
        others = {place_of(other) for other in own_imports_of(module) - {"flatnce"}} - {here}
        if below := sorted(other for other in others if LEVEL[other] >= LEVEL[here]):
            wrong[module] = below
    assert not wrong, "each imports what is not in a block above its own"


def test_nobody_imports_from_the_package_root():
    leaning = {}
    for module in BELOW_ROOT:
        names = {name for origin, name in imports_of(module) if origin == "flatnce"}
        names = {name for name in names - ALLOWED_FROM_ROOT if f"flatnce.{name}" not in SOURCES}
        if names:
            leaning[module] = names
    assert not leaning, "say `from flatnce.x import ...` instead"


def test_imports_have_no_cycle():
    graph = {module: own_imports_of(module) - {"flatnce"} for module in SOURCES}
    del graph["flatnce"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def test_every_module_has_a_docstring_and_none_is_a_drawer():
    silent = [module for module in SOURCES if not ast.get_docstring(tree_of(module))]
    assert not silent, "no docstring"
    drawers = [module for module in SOURCES if any(map(DRAWERS.fullmatch, module.split(".")))]
    assert not drawers, "a helper lives beside its only user, or becomes a module with a name"


@cache
def exports_of(module: str) -> set[str]:
    """What a module lists in ``__all__``; of a lazy package, the names it hands out."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node.targets[0]):
            if isinstance(node.value, ast.List):
                return {element.value for element in node.value.elts}
            return set(import_module(module).__all__)
    return set()


def folder_of(module: str) -> str:
    return module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]


def test_what_another_folder_imports_is_exported():
    missing = {
        (origin, name)
        for module in BELOW_ROOT
        for origin, name in imports_of(module)
        if origin in SOURCES and name and f"{origin}.{name}" not in SOURCES
        if folder_of(origin) != folder_of(module) and origin != "flatnce"
        if name not in exports_of(origin)
    }
    assert not missing, "add the name to __all__ of the module it is imported from"


LAZY = [name for name, path in SOURCES.items() if "= lazy_exports(" in path.read_text("utf-8")]


@pytest.mark.parametrize("module", LAZY)
def test_type_checkers_see_every_lazy_name_as_exported(module):
    blocks = [b for b in tree_of(module).body if isinstance(b, ast.If)]
    names = [one for block in blocks for line in block.body for one in line.names]
    assert names
    hidden = [one.name for one in names if one.asname != one.name]
    assert not hidden, "write `import X as X`: mypy --strict exports no other import"


def test_public_names_are_these():
    import flatnce

    assert sorted(flatnce.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(flatnce, name) is not None
        assert name in dir(flatnce)
    with pytest.raises(AttributeError, match="FlatNCE"):
        _ = flatnce.FlatNCEE


def test_shapes_are_checked_while_testing():
    from flatnce.core.distributed import gather

    # Alone, gather returns what it is given: only the hook of pyproject.toml can object.
    with pytest.raises(TypeCheckError):
        gather("not a tensor")


def loaded_by(run_python: Callable[..., str], code: str, before: str = "") -> set[str]:
    """The modules that code loads, beyond those of the interpreter and of other code."""
    report = "print('loaded:', *(set(sys.modules) - start))"
    said = run_python(f"{before}\nimport sys; start = set(sys.modules)\n{code}\n{report}")
    return set(said.splitlines()[-1].split()[1:])


def test_import_of_an_objective_loads_few_modules_beyond_torch(run_python):
    loaded = loaded_by(run_python, "import flatnce; flatnce.FlatNCE", before="import torch")
    assert len(loaded) <= 80, sorted(loaded)
    assert not {"torchvision", "matplotlib", "triton", "rich", "tyro", "scipy"} & loaded


MAIN = "from flatnce.cli import main"
VIEWS = """
import torch
from flatnce.pretrain.data import Views
Views(8, seed=0)(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), 0)
"""
# Code, and the modules that it must not load.
UNLOADED = {
    "the report": ("import flatnce.report.charts, flatnce.report.page", "torch"),
    "a run log": ("import flatnce.pretrain.runs.log as log; log.environment()", "torch"),
    "the list of experiments": (f"{MAIN}; main(['reproduce', '--list'])", "torch"),
    "the list of runs": (f"{MAIN}; main(['runs'])", "torch numpy scipy"),
    "help on mi": (f"{MAIN}; main(['mi', '--help'])", "torch pandas"),
    "a check of the installation": (
        "from flatnce.diagnose.command import run; run([])",
        "torchvision lightning flatnce.pretrain.training",
    ),
    "the package of integrations": ("import flatnce.integrations", "torch"),
    "integrations": (
        "import flatnce.integrations.lightly, flatnce.integrations.open_clip",
        "lightly pytorch_lightning open_clip torchvision timm",
    ),
    "the parts of pretraining, and views on the CPU": (
        f"import flatnce.pretrain.fused_resnet, flatnce.pretrain.models\n{VIEWS}",
        "torchvision timm PIL sklearn triton flatnce.mi",
    ),
}


@pytest.mark.parametrize(("code", "unwanted"), UNLOADED.values(), ids=UNLOADED)
def test_what_can_do_without_a_library_does_not_load_it(run_python, code, unwanted):
    assert not loaded_by(run_python, code) & set(unwanted.split())


def test_help_loads_few_modules(run_python):
    code = "import flatnce; from flatnce.cli import main; main(['--help'])"
    loaded = loaded_by(run_python, code)
    assert len(loaded) <= 120 and not {*HEAVY, "tyro", "rich"} & loaded, sorted(loaded)


def test_the_command_is_installed_and_prints_its_help():
    command = shutil.which("flatnce", path=Path(sys.executable).parent)
    assert command, "the flatnce command is not installed beside this python"
    assert subprocess.run([command, "--help"], capture_output=True).returncode == 0


def test_import_of_pretraining_loads_no_estimator_of_mutual_information(run_python):
    assert len(loaded_by(run_python, "import flatnce.pretrain")) <= 60
    loaded = loaded_by(run_python, "import flatnce.pretrain; flatnce.pretrain.train")
    assert not [name for name in loaded if name.startswith("flatnce.mi")]
