import errno
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from email.message import Message
from importlib import import_module
from unittest.mock import Mock
from urllib.error import HTTPError

import pytest

from flatnce import __version__, cli
from flatnce.cli import COMMANDS, main
from flatnce.cli.completion import CHOICES, _hints
from flatnce.cli.console import live_line, print_verdict
from flatnce.cli.options import ALIASES
from flatnce.cli.progress import progress_line
from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.extras import require_extra
from flatnce.pretrain.commands.runs import SORTS
from flatnce.pretrain.evaluation.options import PURPOSES
from forked import Forked, wait_for_lines
from made_runs import write_run

HELPS = ("--help", "--help-all")
# Two seconds, torch's import included.
TINY = "--steps 4 --every 2 --seeds 2 --candidates 4 8 --temperatures 0.2 0.05".split()
TINY += "--width 8 --pool 64".split()


def python(*arguments, cwd=None):
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_help_lists_every_command_and_no_command_is_misuse(capsys):
    for typed, code in ((["-h"], 0), (["--help"], 0), ([], 2)):
        assert main(typed) == code
        shown = capsys.readouterr()
        assert all(name in (shown.err if code else shown.out) for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"flatnce {__version__}"


@pytest.mark.parametrize(
    "typed, words", [("dmo", "did you mean 'demo'"), ("zzz", "--help"), ("--zzz", "option")]
)
def test_an_unknown_command_is_named_with_a_hint(capsys, typed, words):
    assert main([typed]) == 2
    shown = capsys.readouterr().err
    assert typed in shown and words in shown and shown.count("\n") == 1


def test_the_demo_prints_a_table_and_writes_a_page(tmp_path, monkeypatch, capfd, plain_charts):
    monkeypatch.chdir(tmp_path)
    done = Forked("demo", *TINY).wait()
    assert done.returncode == 0, done.stderr
    assert "Large-pool" in done.stdout and "runs/demo/report.html" in done.stdout
    assert done.stderr == ""
    folder = tmp_path / "runs" / "demo"
    wanted = {"config.json", "environment.json", "metrics.jsonl", "results.json", "report.html"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert str(tmp_path) not in (folder / "environment.json").read_text()
    # A later demo takes the earlier one's place.
    assert main(["demo", *TINY, "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["cases"]) == 4
    assert {path.name for path in folder.iterdir()} == wanted


@pytest.mark.parametrize(
    "command, missing, extras",
    [
        (["demo"], "tyro", "cli,report"),
        (["demo"], "jinja2", "cli,report"),
        (["mi", "data.csv", "--x", "mass"], "pandas", "cli,report,mi"),
        (["train", "digits"], "tyro", "cli,report,train"),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extras(tmp_path, command, missing, extras):
    code = (
        f"import sys, os; os.chdir({str(tmp_path)!r}); sys.modules[{missing!r}] = None\n"
        f"from flatnce.cli import main; sys.exit(main({command}))"
    )
    done = python("-c", code)
    assert done.returncode == 1
    *_, said = done.stderr.splitlines()
    assert missing in said and f"pip install 'flatnce[{extras}]'" in said


def test_a_package_of_one_option_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main(["train", "digits", "--backbone", "convnext_tiny"]) == 1
    needed = "needs timm, which is not installed: pip install 'flatnce[train]'\n"
    said = f"flatnce train: the backbone 'convnext_tiny' {needed}"
    assert capsys.readouterr().err == said


def test_a_package_that_fails_when_it_is_imported_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text("raise RuntimeError('no operator;\\n\\n  see above')")
    monkeypatch.syspath_prepend(tmp_path)
    command = Mock()
    command.run.side_effect = lambda _: require_extra("broken", "reading images")
    monkeypatch.setattr(cli, "import_module", lambda _: command)
    assert main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("flatnce demo: reading images needs broken, which cannot be imported ")
    assert "(RuntimeError: no operator; see above); install it again (" in said
    assert said.count("\n") == 1


def test_a_package_that_is_missed_late_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["train", "digits", "--epochs", "1"]) == 1
    *_, said = capsys.readouterr().err.splitlines()
    assert "safetensors is not installed: pip install 'flatnce[cli,report,train]'" in said
    assert not list(tmp_path.glob("runs/*"))  # no folder without a checkpoint is left


@pytest.mark.parametrize(
    "raised, code, words",
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError("no space left on device"), 1, "no space"),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs/.a.lock"),
            1,
            "runs: Permission denied; check the permissions of runs and of its folder, or use",
        ),
        (
            OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a", None, "runs/.a.deleted"),
            1,
            "runs/a: Read-only file system; check the permissions of runs/a and of its folder",
        ),
        (
            OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a/.earlier.moving/config.json"),
            1,
            "runs/a: Read-only file system; check the permissions of runs/a and of its folder",
        ),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), ".data.csv"),
            1,
            ".data.csv: Permission denied; check the permissions of .data.csv and of its folder",
        ),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), 3), 1, "[Errno 13] Permission"),
        (
            PermissionError(errno.EACCES, "remove it", "a.lock"),
            1,
            "[Errno 13] remove it: 'a.lock'",
        ),
        (ValueError("steps=0 is too small"), 2, "steps=0"),
        (RuntimeError("a bug"), None, "a bug"),
        (ImportError("no such name", name="flatnce.core"), None, "no such name"),
        (HTTPError("", 404, "Not Found", Message(), io.BytesIO()), 1, "HTTP Error 404"),
    ],
    ids=[
        "interrupt",
        "failure",
        "forbidden",
        "read-only",
        "set aside",
        "a file that begins with a dot",
        "a number of a file",
        "with a remedy",
        "misuse",
        "a fault of our own",
        "an import of our own that fails",
        "a failed download",
    ],
)
def test_what_goes_wrong_is_one_line_with_its_exit_code(monkeypatch, capsys, raised, code, words):
    command = Mock()
    command.run.side_effect = raised
    monkeypatch.setattr(cli, "import_module", lambda _: command)
    if code is None:  # keeps its traceback
        with pytest.raises(type(raised), match=words):
            main(["demo"])
    else:
        assert main(["demo"]) == code
        shown = capsys.readouterr().err
        assert shown.startswith(f"flatnce demo: {words}") and shown.count("\n") == 1


WARNING_COMMAND = """
import sys, types, warnings
from flatnce import cli
from flatnce.messages import FlatnceWarning

def run(arguments):
    for _ in range(2):  # as two workers say it
        warnings.warn_explicit("one file is left out", FlatnceWarning, "anywhere.py", 1)
    warnings.warn_explicit("divide by zero", RuntimeWarning, cli.__file__, 3)
    return 0

sys.modules["stub"], before = types.SimpleNamespace(run=run), warnings.formatwarning
cli.HOMES["runs"] = "stub"
cli.main(["runs"])
assert warnings.formatwarning is before
"""


def test_only_warnings_of_ours_are_one_plain_line_once():
    command = [sys.executable, "-c", WARNING_COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    first, second, *_ = done.stderr.splitlines()
    assert done.returncode == 0 and first == "flatnce: one file is left out"
    assert second == f"{cli.__file__}:3: RuntimeWarning: divide by zero"
    assert "left out" not in done.stderr[len(first) :]
    said = cli._warning_text(UserWarning("plain"), UserWarning, "flatnce_a/b.py", 8, line="x = 1")
    assert said == "flatnce_a/b.py:8: UserWarning: plain\n  x = 1\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals work differently there")
def test_interrupting_the_demo_is_one_line_and_exit_130(tmp_path):
    typed = ["demo", "--steps", "100000", "--every", "5", "--width", "8", "--pool", "64"]
    process = Forked(*typed, "--out", tmp_path / "demo")
    wait_for_lines(tmp_path / "demo" / "metrics.jsonl")
    process.send_signal(signal.SIGINT)
    done = process.wait(timeout=60)
    assert done.returncode == 130
    assert done.stderr == "flatnce demo: interrupted\n"


@pytest.mark.parametrize("typed", [["--lr", "0.1"], ["--learning_rate=0.1"], ["--rate", "0.1"]])
def test_another_programs_name_of_an_option_works(capfd, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", *typed, "--tau", "0.2", "--dry-run", "--json"]) == 0
    config = json.loads(capfd.readouterr().out)["config"]
    assert config["optimizer"]["rate"] == 0.1 and config["loss"]["temperature"] == 0.2
    assert main(["sweep", "digits", *typed, "--tau", "0.1", "0.2", "--dry-run", "--json"]) == 0
    runs = json.loads(capfd.readouterr().out)["runs"].values()
    assert [run["loss"]["temperature"] for run in runs] == [0.1, 0.2]
    assert {run["optimizer"]["rate"] for run in runs} == {0.1}


def test_aliases_are_of_options_that_exist_and_are_not_options_themselves():
    from flatnce.cli.options import descriptions
    from flatnce.pretrain.commands.train import TrainOptions

    ours = {name.replace("_", "-") for name in descriptions(TrainOptions())}
    assert set(ALIASES.values()) <= ours and not set(ALIASES) & ours


def test_the_short_help_lists_the_options_where_there_are_no_source_files(monkeypatch, capsys):
    absent = OSError("could not get source code")
    monkeypatch.setattr(inspect, "getsource", Mock(side_effect=absent))
    assert main(["evaluate", "--help"]) == 0
    assert "--protocol linear" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_help_fits_a_terminal_of_80_columns(monkeypatch, encoding):
    monkeypatch.setenv("COLUMNS", "80")
    for typed in (["--help"], *([name, one] for name in COMMANDS for one in HELPS)):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert main(typed) == 0
        sys.stdout.seek(0)
        lines = sys.stdout.read().splitlines()
        assert len(lines) > 5 and [line for line in lines if len(line) > 80] == []
        boxed = {len(line) for line in lines if line[:1] in ("╭", "│", "╰")}
        assert len(boxed) <= (encoding == "utf-8"), "a box is out of shape"


@pytest.mark.parametrize(
    "command, typed",
    [("runs", "[NAME ...]"), ("data", "[NAME]"), ("doctor", "[RUN|FILE.npz]"), ("resume", "RUN")],
)
def test_the_usage_has_brackets_around_names_that_may_be_left_out(command, typed, capsys):
    assert main([command, "--help"]) == 0
    assert f"] {typed}" in capsys.readouterr().out.splitlines()[0]


def test_the_help_has_no_defaults_that_say_nothing(capsys):
    for name in ("report", "export", "compare", "doctor", "reproduce"):
        assert main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        said = " ".join(shown.replace("│", "").split())
        assert not re.search(r"\(default: ?(None|False|True|'')?\)|\{None\}", said)
        assert "--json" in said
    assert main(["report", "--help"]) == 0 and "(default: auto)" in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["train DATA", "sweep DATA", "evaluate RUN", "mi FILE"])
def test_a_command_without_arguments_says_in_one_line_what_is_missing(capsys, typed):
    command, what = typed.split()
    assert main([command]) == 2
    shown = capsys.readouterr()
    said = f"flatnce {command}: {what} is missing; see `flatnce {command} --help`\n"
    assert (shown.out, shown.err) == ("", said)


def test_a_verdict_is_wrapped_at_80_columns_and_a_path_is_not(capsys):
    path = "/".join(["folder"] * 20)
    print_verdict(f"{path}: ", "saturated since step 2", ": " + "MI 3.03 of 4.84 nats " * 5)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(path) and rest and max(map(len, rest)) <= 80


def test_a_line_on_a_terminal_is_not_read_as_markup(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with live_line() as (_, say):
        say("photos[old] [/b]")
    assert "photos[old] [/b]" in terminal.getvalue()


def test_the_line_of_a_run_shows_the_diagnostics_that_have_one(monkeypatch):
    measured = ("loss", "mi", "mi_ceiling", "ess", "gain", "temperature")
    numbers = dict.fromkeys((*measured, "epoch", "seconds", "images_per_second"), 1.0)
    shown = "epoch 1.0/2  loss 1.000  MI 1.00 of 1.00  ESS 1.00  gain 1.00  T 1  1 samples/s"
    monkeypatch.setitem(DIAGNOSTICS, "new", replace(DIAGNOSTICS["mi"], line="new {new:.1f}"))
    assert progress_line(numbers, {}, 2).startswith(shown)  # an older version's
    assert "T 1  new 2.0  1 samples/s" in progress_line(numbers | {"new": 2.0}, {}, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes work differently there")
def test_a_reader_that_leaves_does_not_end_a_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = "import os, sys; there, here = os.pipe(); os.close(there); os.dup2(here, 1)\n"
    code = left + "from flatnce.cli import main; sys.exit(main(sys.argv[1:]))"
    quick = "--epochs 2 --log-every 1 --batch-size 512 --watch-every 0 --no-tensorboard".split()
    typed = ["train", "digits", "--name", "first", "--evaluate", *quick]
    done = Forked(*typed, code=code).wait(timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "first" / "results.json").is_file()


def test_a_terminal_that_is_not_utf_8_gets_the_answer_in_ascii(tmp_path, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["--version"]) == 0
    print("I ≥ 1 ± 0.1 ☃", flush=True)
    assert written.getvalue().decode("ascii").endswith("I >= 1 +/- 0.1 ?\n")


def test_a_verdict_is_coloured_on_a_terminal_only(monkeypatch, capsys):
    print_verdict("first: ", "healthy since step 1: fine")
    assert capsys.readouterr().out == "first: healthy since step 1: fine\n"
    monkeypatch.setenv("TERM", "xterm-256color")
    for colour, shown in (("", "\x1b[32mhealthy since"), ("1", "first: healthy since")):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("NO_COLOR", colour)
        print_verdict("first: ", "healthy since step 1: fine")
        assert shown in terminal.getvalue()


@pytest.mark.parametrize(
    "typed, wanted",
    {
        "train digits --lr abc": "--lr abc: expected a number",
        "evaluate first --protocl knn": "unknown option --protocl; did you mean '--protocol'?",
        "train digits --batch-size 32 64": "unexpected '64': --batch-size takes one value",
        "embed first": "FOLDER is missing; `flatnce embed --help` lists the options",
    }.items(),
)
def test_a_mistake_on_a_terminal_is_answered_as_elsewhere(typed, wanted, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(typed.split()) == 2
    elsewhere = capsys.readouterr().err
    terminals = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    for name, terminal in zip(("stdout", "stderr"), terminals, strict=True):
        terminal.isatty = lambda: True
        monkeypatch.setattr(sys, name, terminal)
    assert main(typed.split()) == 2
    sys.stderr.flush()
    assert wanted in elsewhere and terminals[1].buffer.getvalue().decode() == elsewhere


def test_a_bar_shows_the_share_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with live_line() as (update, _):
        update("half way", 0.5)
    assert "━" in terminal.getvalue() and "half way" in terminal.getvalue()
    with live_line(quiet=True) as (update, say):
        update("nothing", 0.5)
        say("nothing")
    assert "nothing" not in terminal.getvalue()


@pytest.mark.parametrize("option", CHOICES)
def test_every_option_with_choices_belongs_to_a_command(option):
    module, name = CHOICES[option].split(":")
    values = getattr(import_module(module), name)
    assert callable(values) or len(values) > 1
    assert any(option in _hints(command) for command in COMMANDS)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("flatnce ", COMMANDS),
        ("flatnce re", ["resume", "report", "reproduce"]),
        ("flatnce train --batch", ["--batch-augment", "--batch-size"]),
        ("flatnce train dig", ["digits"]),
        ("flatnce evaluate ", ["first", "study/infonce-0"]),
        ("flatnce compare first stu", ["study/infonce-0"]),
        ("flatnce compare gri", ["grid", "grid/a"]),
        ("flatnce runs --delete gri", ["grid", "grid/a"]),
        ("flatnce report gri", ["grid/a"]),
        ("flatnce reproduce fig-m", ["fig-mi", "fig-mi-accuracy"]),
        ("flatnce runs --sort kn", ["knn"]),
        ("flatnce evaluate first --protocol kn", ["knn"]),
        ("flatnce evaluate first --protocol knn ", PURPOSES),
        ("flatnce evaluate --json ", ["first", "study/infonce-0"]),
        ("flatnce evaluate first --device ", []),
        ("flatnce train --epochs 3 dig", ["digits"]),
        ("flatnce train digits --loss ", OBJECTIVES),
        ("flatnce sweep digits --optimizer sgd ", ["sgd", "adamw", "lars"]),
        ("flatnce doctor first --layout ", ["two_view", "two_tower"]),
        ("flatnce doctor --layout two_view ", ["first", "study/infonce-0"]),
        ("flatnce export first --to ", ["timm", "torch", "onnx"]),
        ("flatnce sweep --resume ", []),
        ("flatnce sweep --resume gri", ["grid"]),
        ("flatnce sweep --resume .gri", []),
        ("flatnce completion ", ["bash", "zsh", "fish"]),
        ("flatnce nothing ", []),
        ("flatnce demo ", []),
    ],
)
def test_commands_options_data_sets_and_runs_are_completed(
    line, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / "study" / "infonce-0")
    if "gri" in line:
        for folder in ("grid", ".grid.deleted.partial"):  # one of a deletion that was killed
            write_run(tmp_path / "runs" / folder / "a")
            (tmp_path / "runs" / folder / "sweep.json").write_text("{}")
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["completion", "words", "flatnce", "", ""]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(expected)


@pytest.mark.parametrize("name", SORTS)
def test_runs_are_sorted_by_every_completed_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first")
    assert main(["runs", "--sort", name]) == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_by_the_script(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = f"{script}complete -p flatnce"
    found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert "flatnce completion words" in found.stdout


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_completes_by_the_script(capsys):
    assert main(["completion", "zsh"]) == 0
    asked = (
        f"autoload -U compinit; compinit -u -D\n{capsys.readouterr().out}print $_comps[flatnce]"
    )
    found = subprocess.run(["zsh", "-fc", asked], capture_output=True, text=True, check=True)
    assert "flatnce completion words" in found.stdout and found.stderr == ""


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completes_by_the_script(tmp_path, capsys):
    assert main(["completion", "fish"]) == 0
    program = tmp_path / "flatnce"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flatnce "$@"\n')
    program.chmod(0o755)
    asked = f"cd {tmp_path}; set -x PATH {tmp_path} $PATH\n{capsys.readouterr().out}"
    found = subprocess.run(
        ["fish", "--no-config", "-c", f"{asked}complete -C 'flatnce re'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["report", "reproduce", "resume"]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes work differently there")
def test_a_reader_that_leaves_the_overview_is_not_told_of_it():
    left = "import os, sys; there, here = os.pipe(); os.close(there); os.dup2(here, 1)\n"
    for typed in (["--help"], ["--version"], ["runs", "--help"]):
        code = f"{left}from flatnce.cli import main; sys.exit(main({typed}))"
        done = python("-c", code)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_help_of_every_command_needs_no_torch():
    code = (
        "import sys; from flatnce.cli import COMMANDS, main\n"
        "assert not any(main([name, '--help-all']) for name in COMMANDS)\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    done = python("-c", code)
    assert done.returncode == 0 and done.stdout.count("usage: ") == len(COMMANDS), done.stderr
