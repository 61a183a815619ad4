"""Make small changes in the core's source, one at a time, and count those that tests detect.

    python benchmarks/trust/mutants.py --sample 60 --processes 2 --out mutants.json

A mutant is a copy of the package with one change in one module: an operator, a condition, a
number, a default, a returned value, or a statement that is left out. Annotations, docstrings and
messages are not changed, and changes that compile to the same bytecode are left out. The tests of
the module are run on the mutant. It is killed if a test fails, does not end, or cannot be
imported. Mutants are numbered in the order of the sources, so ``--only NUMBER`` repeats one and
shows the tests' output. ``--sample`` mutants of each module are drawn at random. A module whose
tests do not pass without a change is refused. ``mutants.toml`` lists mutants that cannot change
behaviour; they are not counted, and the program fails if a test kills one. No GPU is used.
"""

import argparse
import ast
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which torch may do

from options import Series

ROOT = Path(__file__).parents[2]
PACKAGE = "src/flatnce"

# The tests of each module, those that detect a change fastest first.
TESTS = {
    "core/selection.py": "core/test_pairs.py core/test_contrast.py",
    "core/pairs.py": "core/test_pairs.py core/test_contrast.py core/test_bad_input.py",
    "core/contrast.py": (
        "core/test_contrast.py core/test_bad_input.py core/test_objectives.py "
        "core/test_registry.py"
    ),
    "core/faults.py": "core/test_bad_input.py",
    "core/direct.py": "core/test_direct.py core/test_objectives.py core/test_bad_input.py",
    "core/kernels/__init__.py": "core/test_chunked.py core/test_contrast.py",
    "core/kernels/statistics.py": "core/test_chunked.py core/test_contrast.py",
    "core/kernels/chunked.py": "core/test_chunked.py core/test_contrast.py",
    "core/objectives/base.py": (
        "core/test_objectives.py core/test_direct.py core/test_bad_input.py core/test_hooks.py"
    ),
    "core/objectives/losses.py": (
        "core/test_objectives.py core/test_bad_input.py core/test_registry.py core/test_hooks.py"
    ),
    "core/objectives/registry.py": "core/test_registry.py",
    "core/objectives/temperature.py": (
        "core/test_objectives.py core/test_direct.py core/test_control.py core/test_bad_input.py"
    ),
    "core/diagnostics/measures.py": (
        "core/test_diagnostics.py core/test_control.py core/test_bad_input.py"
    ),
    "core/control.py": "core/test_control.py",
    "pretrain/runs/checkpoint.py": (
        "pretrain/runs/test_checkpoint.py pretrain/runs/test_checkpoint_background.py"
    ),
    "mi/bounds.py": "mi/test_bounds.py",
    "mi/readouts.py": "mi/test_estimator_evaluation.py mi/test_floor.py",
}
MEMORY = 8 << 30  # memory limit of the tests of a mutant, in bytes
# Imported once, before the processes that run the tests are forked.
READY = ("torch", "torch._dynamo", "numpy", "pytest", "jaxtyping", "beartype", "msgspec")
READY += ("scipy.special", "scipy.stats", "hypothesis.strategies")

# Mutants that behave as the original, with the reason; a line is given without its indentation.
_ENTRIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["equivalent"]
EQUIVALENT = {(one["module"], one["text"], one["change"]): one["reason"] for one in _ENTRIES}

PAIRS = ("Add Sub", "Mult Div", "BitAnd BitOr", "And Or", "Lt LtE", "Gt GtE", "Eq NotEq")
PAIRS += ("In NotIn", "Is IsNot")
OPERATORS = {a: b for pair in map(str.split, PAIRS) for a, b in (pair, pair[::-1])}
OPERATORS |= {"FloorDiv": "Mult", "Mod": "Mult", "Pow": "Mult"}
SWAPPED = ("min max", "any all", "amin amax", "minimum maximum", "argmin argmax", "sum mean")
SWAPPED += ("clamp_min clamp_max", "clamp_min_ clamp_max_")
ATTRIBUTES = {a: b for pair in map(str.split, SWAPPED) for a, b in (pair, pair[::-1])}
NAMES = {name: ATTRIBUTES[name] for name in ("min", "max", "any", "all")}
NOT_MUTATED = ("annotation", "returns", "decorator_list", "type_comment", "type_params")


@dataclass(frozen=True)
class Result:
    """The result of the tests of a mutant, or of an unchanged module, whose number is -1."""

    number: int
    outcome: str
    seconds: float = 0.0
    said: str = ""
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutant:
    """One change of one module, which ``source`` makes."""

    number: int
    module: str
    line: int
    text: str  # of the line
    change: str
    source: Callable[[], str]

    @property
    def key(self) -> tuple[str, str, str]:
        """An identity that does not change when lines are added elsewhere."""
        return self.module, self.text, self.change


def replacements(node: ast.AST, is_default: bool) -> Iterator[tuple[str, Any]]:
    """The replacements of a node of the syntax tree, each in words and as a node."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        if other := OPERATORS.get(type(node.op).__name__):
            yield "operator", type(node)(**{**vars(node), "op": getattr(ast, other)()})
    elif isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            other = getattr(ast, OPERATORS[type(op).__name__])()
            ops = [*node.ops[:place], other, *node.ops[place + 1 :]]
            yield "comparison", ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield "sign or not", node.operand
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        opposite = ast.UnaryOp(ast.Not(), node.test)
        yield "opposite condition", type(node)(**{**vars(node), "test": opposite})
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "truth value", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        values = dict.fromkeys((node.value + 1, node.value * 2, 0))
        yield from (("number", ast.Constant(v)) for v in values if v != node.value)
    elif is_default and isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield "default", ast.Constant("another")
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "returned value", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield "name", ast.Name(NAMES[node.id], node.ctx)
    elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
        yield "name", ast.Attribute(node.value, ATTRIBUTES[node.attr], node.ctx)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "detach":
            yield "left out", node.func.value
    if _can_go(node):
        yield "left out", ast.Pass()


def _can_go(node: ast.AST) -> bool:
    """Whether the rest is still a valid program without a statement."""
    if isinstance(node, ast.Assign):
        read = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        return all(not isinstance(one, ast.Name) or one.id in read for one in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node that may be replaced: its parent, the field, and the place in its list."""
    for field, value in ast.iter_fields(node):
        if field in NOT_MUTATED:
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_left_alone(node, field, child):
                yield node, field, place, child
                if not isinstance(child, ast.Raise):  # change an error only as a whole statement
                    yield from places(child)


def _is_left_alone(parent: ast.AST, field: str, child: ast.AST) -> bool:
    """Whether a node is a message, a list of public names, or only for type checkers."""
    if isinstance(child, ast.If):
        return ast.unparse(child.test) == "TYPE_CHECKING"
    if isinstance(child, ast.Assign | ast.AnnAssign):
        target = child.targets[0] if isinstance(child, ast.Assign) else child.target
        return ast.unparse(target) == "__all__" or "TypeAlias" in ast.unparse(child)
    if isinstance(parent, ast.Call) and field == "args":
        called = ast.unparse(parent.func)
        return called == "warnings.warn" or (called == "isinstance" and child is parent.args[1])
    return isinstance(child, ast.JoinedStr)


def essence(code: CodeType) -> tuple[Any, ...]:
    """The content of a code object without its positions in the source."""
    inside = [essence(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_exceptiontable, inside


def mutants_of(module: str, first: int) -> list[Mutant]:
    """Every mutant of a module, also those that compile to the same bytecode."""
    text = (ROOT / PACKAGE / module).read_text()
    tree, lines, found = ast.parse(text), text.splitlines(), list[Mutant]()
    same = Counter[tuple[int, str]]()

    def source(parent: ast.AST, field: str, place: int | None, new: ast.AST) -> str:
        held = getattr(parent, field)
        changed = new if place is None else [*held[:place], new, *held[place + 1 :]]
        setattr(parent, field, changed)
        try:
            return ast.unparse(ast.fix_missing_locations(tree))
        finally:
            setattr(parent, field, held)

    for parent, field, place, node in places(tree):
        for kind, new in replacements(node, isinstance(parent, ast.arguments)):
            old, changed = (ast.unparse(one).splitlines()[0] for one in (node, new))
            line, make = getattr(node, "lineno", 0), partial(source, parent, field, place, new)
            said, text = f"{kind}: {old} -> {changed}", lines[line - 1].strip()
            same[line, said] += 1
            if same[line, said] > 1:
                said = f"{said} (no. {same[line, said]})"
            found.append(Mutant(first + len(found), module, line, text, said, make))
    return found


def original_of(module: str) -> str:
    """The unchanged source without comments, as the source of a mutant is written."""
    return ast.unparse(ast.parse((ROOT / PACKAGE / module).read_text()))


def sample(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A random sample of the mutants of one module that differ from it in bytecode."""
    if not found:
        return []
    module, chosen = found[0].module, []
    original = essence(compile(original_of(module), "", "exec"))
    for mutant in random.Random(f"{seed} {module}").sample(found, len(found)):
        if len(chosen) == count:
            break
        if essence(compile(mutant.source(), "", "exec")) != original:
            chosen.append(mutant)
    return sorted(chosen, key=lambda mutant: mutant.number)


def tree_of(folder: Path) -> Path:
    """A copy of the repository for this process, whose sources may be changed."""
    tree = folder / str(os.getpid())
    if not tree.exists():
        tree.mkdir()
        for entry in ROOT.iterdir():
            if entry.name in ("src", "tests"):
                shutil.copytree(entry, tree / entry.name)
            elif not entry.name.startswith("."):
                (tree / entry.name).symlink_to(entry)
    return tree


class Failed:
    """A pytest plugin that records failed tests and files that could not be collected."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record a test or a file."""
        if report.failed:
            with self.path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    pytest_collectreport = pytest_runtest_logreport


def run_tests(tree: Path, tests: list[str], options: list[str], said: Path) -> int:
    """Run tests in this forked process, which ends afterwards."""
    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(tree)
    sys.path[:0] = paths = [str(tree / "src"), str(tree / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    import pytest

    options += ["-q", "-p", "no:cacheprovider", f"--basetemp={tree / 'temporary'}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what READY has imported
    return int(pytest.main([*options, *tests], plugins=[Failed(tree / "failed")]))


def take(
    folder: Path,
    deadline: float,
    module: str,
    number: int,
    source: str,
    limit: float = 600.0,
    left_out: tuple[str, ...] = (),
) -> Result:
    """Run the tests of a module on a changed source."""
    if time.time() > deadline:
        return Result(number, "not run")
    tree, began = tree_of(folder), time.time()
    path, said, failed = tree / PACKAGE / module, tree / "said", tree / "failed"
    options = ["-x"] if number >= 0 else ["--continue-on-collection-errors"]
    options += [f"--deselect={name}" for name in left_out]
    tests = [f"tests/{name}" for name in TESTS[module].split()]
    path.write_text(source)
    # Compiled modules are found by the time of their source, so each mutant needs its own time.
    os.utime(path, (number + 1e9, number + 1e9))
    for file in (said, failed):
        file.write_text("")
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = run_tests(tree, [t for t in tests if t not in left_out], options, said)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    ended, status = 0, 0
    while not ended and time.time() - began < limit:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and the processes that it started
    if not ended:
        os.waitpid(child, 0)
    shutil.copy2(ROOT / PACKAGE / module, path)
    codes = {0: "survived", 1: "killed", 2: "not importable", 4: "not importable"}
    code = os.waitstatus_to_exitcode(status)
    outcome = codes.get(code, "crashed") if ended else "timed out"
    names = tuple(failed.read_text().splitlines())
    return Result(number, outcome, time.time() - began, said.read_text(), names)


def record_of(chosen: dict[int, Mutant], results: list[Result]) -> dict[str, Any]:
    """Counts of each module, and the survivors by name."""
    counts: dict[str, Counter[str]] = {}
    survivors, wrong = [], []
    for result in sorted(results, key=lambda one: one.number):
        mutant, outcome = chosen[result.number], result.outcome
        if outcome == "survived":
            outcome = "equivalent" if mutant.key in EQUIVALENT else outcome
        elif mutant.key in EQUIVALENT and outcome != "not run":
            wrong.append(mutant.number)
        if outcome == "survived":
            survivors.append({k: v for k, v in vars(mutant).items() if k != "source"})
        counts.setdefault(mutant.module, Counter())[outcome] += 1
    total = sum(counts.values(), Counter[str]())
    killed = sum(total[one] for one in ("killed", "not importable", "timed out", "crashed"))
    return {
        "mutants": sum(total.values()) - total["not run"],
        "killed": killed,
        "share_killed": round(killed / max(killed + total["survived"], 1), 4),
        "outcomes": dict(total),
        "by_module": {name: dict(found) for name, found in counts.items()},
        "survivors": survivors,
        "equivalent_but_killed": wrong,
    }


def all_mutants() -> dict[str, list[Mutant]]:
    """Every mutant by module, numbered from the first module on."""
    found: dict[str, list[Mutant]] = {}
    for module in TESTS:
        found[module] = mutants_of(module, sum(map(len, found.values())))
    return found


def chosen_mutants(given: argparse.Namespace) -> list[Mutant]:
    """The sample that the command line asks for, shuffled, so that all modules progress."""
    chosen: list[Mutant] = []
    if given.again:
        past = json.loads(given.again.read_text())["survivors"]
        keys = {(one["module"], one["text"], one["change"]) for one in past}
        return [one for found in all_mutants().values() for one in found if one.key in keys]
    for module, found in all_mutants().items():
        if module.startswith(tuple(given.modules)):
            later = [one for one in found if one.number >= given.start]
            chosen += sample(later, given.count, given.seed)
    return random.Random(given.seed).sample(chosen, len(chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--modules", nargs="+", default=[""], help="whose names begin so")
    parser.add_argument("--again", type=Path, help="only the survivors of this record")
    parser.add_argument(
        "--without-failing",
        action="store_true",
        help="leave out tests that fail without a change, instead of refusing the module",
    )
    series = Series(parser, "sample", 60)
    given, series.processes = series.given, series.given.processes
    every = [one for found in all_mutants().values() for one in found]
    chosen = [every[given.only]] if given.only is not None else chosen_mutants(given)
    modules = sorted({one.module for one in chosen})
    for name in READY:
        with contextlib.suppress(ImportError):  # a test that needs it says so
            importlib.import_module(name)
    about = {"sample_of_each_module": given.count, "seed": given.seed, "all_mutants": len(every)}
    with (
        tempfile.TemporaryDirectory(prefix="flatnce-mutants-") as folder,
        ProcessPoolExecutor(series.processes, multiprocessing.get_context("fork")) as pool,
    ):
        work = partial(take, Path(folder), series.deadline)
        tried = {name: pool.submit(work, name, -1, original_of(name)) for name in modules}
        first = {name: one.result() for name, one in tried.items()}
        about["failed_unchanged"] = {name: one.failed for name, one in first.items() if one.failed}
        about["refused"] = [
            name
            for name, one in first.items()
            if one.outcome != "survived" and not (given.without_failing and one.failed)
        ]
        for name in about["refused"]:
            print(first[name].said, f"refused: the tests of {name} fail without a change")
        numbers = {one.number: one for one in chosen if one.module not in about["refused"]}
        waiting = []
        for number, one in numbers.items():
            limit, left_out = 20 + 4 * first[one.module].seconds, first[one.module].failed
            waiting.append(pool.submit(work, one.module, number, one.source(), limit, left_out))
        record = series.follow(waiting, lambda found: {**record_of(numbers, found), **about})
    if given.only is not None:
        print(*(one.result().said for one in waiting))
    print(json.dumps(record, indent=1))
    return int(bool(about["refused"] or record.get("equivalent_but_killed")))


if __name__ == "__main__":
    sys.exit(main())
