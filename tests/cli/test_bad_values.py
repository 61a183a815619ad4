"""Every option of every command with a bad value: one line that names the option, nothing done."""

import shutil
from importlib import import_module
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tyro.conf import Positional

from flatnce.cli import HOMES, main
from flatnce.cli.options import leaves
from flatnce.pretrain import TrainConfig

BASE = {
    "demo": [],
    "data": ["digits"],
    "train": ["digits", "--dry-run"],
    "resume": ["first"],
    "sweep": ["digits", "--noise", "0.1", "0.2", "--dry-run"],
    "evaluate": ["first"],
    "report": ["first"],
    "compare": ["first", "second"],
    "export": ["first", "--to", "torch"],
    "mi": ["table.csv", "--x", "a", "--y", "b"],
    "reproduce": ["fig-mi"],
    "doctor": ["pairs.npz"],
    "cost": ["first"],
    "completion": [],
}
# Any text is a name or a path; any number is a power of Hölder's loss.
FREE = {"name", "root", "out", "figures", "adopt", "gamma"}


def bad_values(name, hint):
    """Values that an option of this type must refuse."""
    kinds = {hint, *get_args(hint)}
    kinds |= {inner for kind in kinds for inner in get_args(kind)}
    if name in FREE and not kinds & {int, float}:
        return []
    if bool in kinds:
        return ["3"]
    if float in kinds:
        return ["nan"] + ["-1"] * (name not in FREE)
    return ["1.5", "-1"] if int in kinds else ["no-such-name"]


def options_of(command):
    """The options of a command; for a sweep only its own, since train has the others."""
    found = leaves(getattr(import_module(HOMES[command]), f"{command.capitalize()}Options"))
    found = {name: hint for name, hint in found.items() if Positional not in get_args(hint)}
    shared = leaves(TrainConfig) if command == "sweep" else {}
    return {name: hint for name, hint in found.items() if name not in shared}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two runs, a table and embeddings."""
    folder = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quick = "--epochs 1 --batch-size 512 --watch-every 0 --no-tensorboard --evaluate".split()
        assert main(["train", "digits", "--name", "first", *quick]) == 0
        shutil.copytree("runs/first", "runs/second")
        config = Path("runs/second/config.json")
        config.write_text(config.read_text().replace('"seed": 0', '"seed": 1'))
        rows = "\n".join(f"{row},{row * row % 7}" for row in range(60))
        Path("table.csv").write_text(f"a,b\n{rows}\n")
        np.savez("pairs.npz", z1=np.eye(8), z2=np.eye(8))
    return folder


def test_every_command_is_tried():
    assert set(BASE) == set(HOMES)


@pytest.mark.parametrize("command", BASE)
def test_a_bad_value_is_one_line_that_names_the_option(command, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    wrong = []
    for name, hint in options_of(command).items():
        for value in bad_values(name, hint):
            before = sorted(place.rglob("*"))
            flag = "--" + name.replace("_", "-")
            code = main([command, *BASE[command], flag, value])
            said = capsys.readouterr().err
            fine = code == 2 and said.count("\n") == 1 and flag in said
            if not fine or sorted(place.rglob("*")) != before:
                wrong.append((flag, value, code, said))
    assert not wrong


@pytest.mark.parametrize(
    "typed, said",
    [
        ("train digits --temperature abc", "--temperature abc: expected a number"),
        ("train digits --tau=abc", "--tau abc: expected a number"),
        ("train digits --temperature", "--temperature: expected a number"),
        ("train digits --blur x", "--blur x: expected a number or auto"),
        ("train digits --seed 1 2", "unexpected '2': --seed takes one value"),
        ("train digits --batch-siz 2", "unknown option --batch-siz; did you mean '--batch-size'?"),
        ("train digits --bs 1", "--bs 1 leaves no negatives; use at least 2"),
        ("train digits --head-out 0", "--head-out 0 must be at least 1"),
        ("train digits --evaluate knnn", "--evaluate knnn is unknown"),
        ("train digits --devices 0", "--devices 0 must be at least 1"),
        ("train digit", "'digit' is not a data set; did you mean 'digits'?"),
        ("train --data digit", "--data digit is not a data set"),
        ("data digit", "'digit' is not a data set"),
        ("evaluate nothing", "'nothing' is not a run directory or the name of one"),
        ("doctor pairs.npz --objective infonc", "--objective infonc is unknown; did you mean"),
        ("mi table.csv --cv 500 --x a", "--cv 500"),
        ("export first", "--to is missing"),
        ("report first --portrait", "unknown option --portrait; did you mean '--no-portrait'?"),
    ],
)
def test_a_mistake_is_named_as_it_was_typed(place, monkeypatch, capsys, typed, said):
    monkeypatch.chdir(place)
    assert main(typed.split()) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"flatnce {typed.split()[0]}: {said}") and line.count("\n") == 1
