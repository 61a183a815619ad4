"""The reference pages say what the program says: options, settings, keys of a log."""

import contextlib
import io
import re
import runpy
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from flatnce import FlatNCE, Monitor
from flatnce.cli import COMMANDS, HOMES
from flatnce.core.diagnostics import verdict
from flatnce.pretrain import preset, train
from flatnce.pretrain.runs.log import read_run
from paths import ROOT

REFERENCE = ROOT / "docs" / "reference"
KEYS_PAGE = (REFERENCE / "log-keys.md").read_text(encoding="utf-8")
# Ways to type one option, where `--help` lists them: in a frame, or without one indented by two.
LISTED = re.compile(r"^(?:│ | {2})(--?\w[\w-]*(?:, -[\w-]+)*)", re.MULTILINE)


# The script that writes the pages.
GENERATE = SimpleNamespace(**runpy.run_path(str(REFERENCE / "generate.py")))


def keys_under(heading):
    """The keys in the first column of the table below a heading."""
    section = KEYS_PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {key for cell in first for key in re.findall(r"`(\w+)`", cell)}


def printed_help(command, flag="--help"):
    """What a command prints when asked for help; where that is a part, for all of it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        import_module(HOMES[command]).run([flag])
    partial = flag == "--help" and "--help-all" in out.getvalue()
    return printed_help(command, "--help-all") if partial else out.getvalue()


@pytest.mark.parametrize(
    "page, made",
    [
        ("cli.md", "cli_page"),
        ("config.md", "config_page"),
        ("../objectives.md", "objectives_page"),
    ],
)
def test_a_generated_page_is_as_the_program_is_now(page, made):
    text = (REFERENCE / page).read_text(encoding="utf-8")
    assert text == getattr(GENERATE, made)().rstrip() + "\n", "run docs/reference/generate.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_on_the_page_are_those_that_help_prints(command):
    printed = {
        flag for typed in LISTED.findall(printed_help(command)) for flag in typed.split(", ")
    }
    one_form = command in GENERATE.ONE_FORM
    leaves = GENERATE.leaves_of(GENERATE.options_of(command))
    named = {flag for leaf in leaves for flag in GENERATE.flags_of(leaf, one_form=one_form)}
    assert named == printed - {"-h", "--help"}


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run that writes a line of every kind but a note and a failure."""
    config = preset("digits").override(epochs=1, batch_size=256, device="cpu")
    return read_run(train(config, tmp_path_factory.mktemp("runs") / "small").directory)


@pytest.mark.parametrize("kind", ["train", "watch", "verdict"])
def test_the_page_names_exactly_the_keys_of_a_line(small_run, kind):
    written = {key for line in small_run.metrics if line["kind"] == kind for key in line}
    named = keys_under("Every line") | keys_under(f"Lines of kind {kind}")
    if kind == "train":
        named |= keys_under("Monitor")
    assert written == named


def test_the_page_names_exactly_the_keys_of_a_monitor():
    loss_fn, monitor = FlatNCE(), Monitor()
    loss_fn(torch.randn(16, 8), torch.randn(16, 8))
    monitor.update(loss_fn.last)
    # `step` is on every line of a run, and so not in the table again.
    assert set(monitor.compute()) == keys_under("Monitor") | {"step"}


def test_the_page_names_every_verdict_that_a_line_may_hold():
    (row,) = [line for line in KEYS_PAGE.splitlines() if line.startswith("| `verdict` | `")]
    every = [rule.kind for rule in (*verdict.RULES, verdict.HEALTHY, verdict.UNDECIDED)]
    assert re.findall(r"`([a-z ]+)`", row)[1:] == every


def test_the_page_names_the_keys_of_results(small_run):
    assert set(small_run.results) == keys_under("Results")


def test_scalars_for_tensorboard_are_the_keys_with_their_kind_before_them(small_run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(small_run.directory / "tensorboard")).Reload()
    expected = {
        f"{line['kind']}/{key}"
        for line in small_run.metrics
        for key, value in line.items()
        if isinstance(value, int | float) and key not in ("step", "steps")
    }
    found = set(board.Tags()["scalars"])
    assert {tag for tag in found | expected if not tag.startswith("verdict/")} <= found & expected
