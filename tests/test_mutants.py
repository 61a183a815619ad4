"""``benchmarks/trust/mutants.py`` finds the changes that a module's tests do not notice."""

import json
import tomllib

from paths import ROOT

TINY = '''"""Numbers."""


def larger(a: int, b: int) -> int:
    """The larger one."""
    if a < 0:
        raise ValueError(f"a={a + 1}")
    return a if a > b else b
'''
TESTS = """
from tiny.numbers import larger


def test_larger():
    assert (larger(3, 2), larger(0, 3)) == (3, 3)


def test_that_needs_another_machine():
    assert False
"""
# The program on another package, without imports ahead and without plugins of pytest.
MAIN = """
import os, sys
from pathlib import Path

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
sys.path.insert(0, sys.argv.pop(1))
import mutants

mutants.ROOT, mutants.PACKAGE, mutants.READY = Path(sys.argv.pop(1)), "src/tiny", ("pytest",)
mutants.TESTS = {"numbers.py": "test_numbers.py"}
change = "comparison: a > b -> a >= b"
mutants.EQUIVALENT = {("numbers.py", "return a if a > b else b", change): "Equal numbers."}
sys.exit(mutants.main())
"""


def test_survivors_are_named_and_equivalent_mutants_are_not_counted(tmp_path, run_python):
    root = tmp_path / "repository"
    for name, text in (("src/tiny/numbers.py", TINY), ("tests/test_numbers.py", TESTS)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    out = tmp_path / "record.json"
    given = ("--sample", "100", "--processes", "2", "--commit", "abc", "--out", str(out))
    given += ("--without-failing",)
    run_python(MAIN, str(ROOT / "benchmarks" / "trust"), str(root), *given)
    record = json.loads(out.read_text())
    # No test gives a negative number; what the message says is not changed.
    (survivor,) = record["survivors"]
    assert survivor["change"].startswith("left out: raise ValueError")
    assert (survivor["module"], survivor["line"]) == ("numbers.py", 7)
    assert record["by_module"] == {"numbers.py": {"killed": 5, "survived": 1, "equivalent": 1}}
    assert (record["share_killed"], record["commit"]) == (0.8333, "abc")
    left_out = ["tests/test_numbers.py::test_that_needs_another_machine"]
    assert record["failed_unchanged"] == {"numbers.py": left_out}
    assert (root / "src/tiny/numbers.py").read_text() == TINY


def test_every_listed_mutant_is_of_a_line_that_exists():
    listed = tomllib.loads((ROOT / "benchmarks/trust/mutants.toml").read_text(encoding="utf-8"))
    assert listed["equivalent"]
    for mutant in listed["equivalent"]:
        module = ROOT / "src/flatnce" / mutant["module"]
        lines = [line.strip() for line in module.read_text(encoding="utf-8").splitlines()]
        assert mutant["text"] in lines, mutant
