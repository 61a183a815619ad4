"""Every option of every command with a bad value: one line that names the option, nothing done."""

import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from PIL import Image
from tyro.conf import Positional

from flatnce import cli
from flatnce.cli import HOMES, main
from flatnce.cli.options import as_typed, forget_options, leaves, own_arguments
from flatnce.messages import check_at_least
from flatnce.pretrain import TrainConfig
from flatnce.pretrain.training.images import views_of

BASE = {
    "demo": [],
    "data": ["digits"],
    "train": ["digits", "--dry-run"],
    "resume": ["first"],
    "runs": [],
    "embed": ["first", "photos"],
    "sweep": ["digits", "--noise", "0.1", "0.2", "--dry-run"],
    "evaluate": ["first"],
    "report": ["first"],
    "compare": ["first", "second"],
    "export": ["first", "--to", "torch"],
    "mi": ["table.csv", "--x", "a", "--y", "b"],
    "reproduce": ["fig-mi"],
    "doctor": ["pairs.npz"],
    "completion": [],
}
# Any text is a name or a path; any number is a power of Hölder's loss.
FREE = {"name", "root", "out", "figures", "report", "wandb", "push_to_hub"}
FREE |= {"gamma", "store"}


def bad_value(name, hint):
    """What an option of this type must refuse."""
    kinds = {hint, *get_args(hint)}
    kinds |= {inner for kind in kinds for inner in get_args(kind)}
    if bool in kinds:
        return "3"
    if kinds & {int, float}:
        return "nan" if float in kinds else "-1"
    return None if name in FREE else "no-such-name"


def options_of(command):
    """The options of a command, without the settings of a run, which are tried below."""
    found = leaves(getattr(import_module(HOMES[command]), f"{command.capitalize()}Options"))
    found = {name: hint for name, hint in found.items() if Positional not in get_args(hint)}
    shared = leaves(TrainConfig) if command in ("train", "sweep") else {}
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
        Path("photos").mkdir()
        Image.new("L", (8, 8)).save("photos/one.png")
        np.savez("pairs.npz", z1=np.eye(8), z2=np.eye(8))
    return folder


def test_every_command_is_tried():
    assert set(BASE) == set(HOMES)


@pytest.mark.parametrize("command", BASE)
def test_a_bad_value_is_one_line_that_names_the_option(command, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    wrong, before = [], sorted(place.rglob("*"))
    for name, hint in options_of(command).items():
        if (value := bad_value(name, hint)) is None:
            continue
        flag = "--" + name.replace("_", "-")
        code = main([command, *BASE[command], f"{flag}={value}"])
        said = capsys.readouterr().err
        named = flag in said or f"'{value}'" in said  # which may follow a switch as a name
        if code != 2 or said.count("\n") != 1 or not named:
            wrong.append((flag, value, code, said))
    assert not wrong and sorted(place.rglob("*")) == before


@pytest.mark.parametrize("kind", [int, float])
def test_a_setting_below_zero_is_refused_and_named_as_its_option(kind):
    own_arguments(TrainConfig, [])
    for name, hint in leaves(TrainConfig).items():
        if kind in (hint, *get_args(hint)) and name != "gamma":
            with pytest.raises(ValueError) as refused:
                views_of(TrainConfig().override(**{name: kind(-1)}), 32)
            assert as_typed(str(refused.value)).startswith(f"--{name.replace('_', '-')} -1")


@pytest.mark.parametrize(
    "typed, said",
    [
        ("train digits --temperature abc", "--temperature abc: expected a number"),
        ("train digits --tau=abc", "--tau abc: expected a number"),
        ("train digits --temperature", "--temperature: expected a number"),
        ("train digits --blur x", "--blur x: expected a number or auto"),
        ("train digits --seed 1 2", "unexpected '2': --seed takes one value"),
        ("train digits --batch-siz 2", "unknown option --batch-siz; did you mean '--batch-size'?"),
        ("train digits --size 16", "unknown option --size; did you mean '--view-size' or '--"),
        ("train digits --epoch 2", "unknown option --epoch; did you mean '--epochs' or '--"),
        ("train digits -s 2", "unknown option -s; `flatnce train --help-all` lists the options"),
        ("train digits --bs 1", "--bs 1 leaves no negatives; use at least 2"),
        ("train digits --head-out 0", "--head-out 0 must be at least 1"),
        ("train digits --evaluate knnn", "--evaluate knnn is unknown"),
        ("train digits --devices 0", "--devices 0 must be at least 1"),
        ("train digits --device meta", "--device meta is unknown; use cpu, cuda, cuda:0 or auto"),
        ("train digits --checkpoint-every inf", "--checkpoint-every inf must be a positive"),
        ("train digits --watch-every nan", "--watch-every nan must be a positive finite"),
        ("train digits --gamma nan", "--gamma nan is not a number"),
        ("train digits --workers -1", "--workers -1 must be at least 0"),
        ("train digits --view-size 0", "--view-size 0 must be at least 1"),
        (f"train digits --head-out {10**12} --dry-run", f"--head-out {10**12:,}: the head needs"),
        ("train digit", "'digit' is not a data set; did you mean 'digits'?"),
        ("train --data digit", "--data digit is not a data set"),
        ("data digit", "'digit' is not a data set"),
        ("train photos", "'photos' is not a data set; did you mean ./photos?"),
        ("completion tcsh", "'tcsh' is unknown; choose one of bash, zsh, fish"),
        ("resume", "RUN is missing; `flatnce resume --help` lists the options"),
        ("doctor nothing", "'nothing' is not a run directory or the name of one"),
        ("embed nothing photos", "'nothing' is not a run directory or the name of one"),
        ("evaluate nothing", "'nothing' is not a run directory or the name of one"),
        ("doctor pairs.npz --objective infonc", "--objective infonc is unknown; did you mean"),
        ("mi table.csv --cv 500 --x a", "--cv 500"),
        ("export first", "--to is missing; `flatnce export --help` lists"),
        ("report first --portrait", "unknown option --portrait; did you mean '--no-portrait'?"),
    ],
)
def test_a_mistake_is_named_as_it_was_typed(place, monkeypatch, capsys, typed, said):
    monkeypatch.chdir(place)
    assert main(typed.split()) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"flatnce {typed.split()[0]}: {said}") and line.count("\n") == 1


def test_a_command_in_a_message_can_be_pasted_into_a_shell(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(place / "runs" / "first", tmp_path / "runs" / "$(touch x)")
    (run / "results.json").unlink()  # a finished run cannot be continued
    assert main(["train", "digits", "--name", run.name]) == 2
    assert "continue it (`flatnce resume '$(touch x)'`)" in capsys.readouterr().err
    # As it is when it was killed before its first checkpoint.
    shutil.rmtree(run / "checkpoints")
    assert main(["resume", run.name]) == 2
    remedy = "start it again: `flatnce train digits --name '$(touch x)' --replace`"
    assert remedy in capsys.readouterr().err


def test_numbers_of_messages_are_written_as_they_were_typed():
    forget_options()
    own_arguments(TrainConfig, ["--rate", "2.0", "--temperature=-1.0"])
    assert as_typed("rate=(2.0, 3.0) is odd") == "--rate 2.0 3 is odd"
    assert as_typed("temperature=-1.0 is odd") == "--temperature -1.0 is odd"


@pytest.mark.parametrize(
    "message, said",
    [
        ("seed=-1 must be at least 0", "--seed -1 must be at least 0"),
        ("there (seed=3, batch_size=2)", "there (--seed 3, --batch-size 2)"),
        ("rate=2.0 or rate=0.25 or rate=10.02", "--rate 2 or --rate 0.25 or --rate 10.02"),
        ("rate=(2.0, -1.0, 1.05) is odd", "--rate 2 -1 1.05 is odd"),
        ("wandb='a/b' is taken", "--wandb a/b is taken"),
        ("wandb='a 1.0 b' is taken", "--wandb 'a 1.0 b' is taken"),
        ("./seed=1 is not a run", None),
        ("/data/seed=224/a.jpg: seed=3", "/data/seed=224/a.jpg: --seed 3"),
        ("cannot read 'my seed=1.jpg'", None),
        ("the run's name 'x seed=1' isn't free", None),
        (r"C:\runs\seed=1 is damaged", None),
    ],
)
def test_arguments_are_rewritten_and_paths_and_quoted_text_are_not(message, said):
    forget_options()
    own_arguments(TrainConfig, [])
    assert as_typed(message) == (message if said is None else said)


@pytest.mark.parametrize("ours", [True, False])
def test_the_message_of_other_code_stays_as_it_is(monkeypatch, capsys, ours):
    def run(arguments):
        own_arguments(TrainConfig, [])
        if ours:
            check_at_least("seed", -1, 0)
        raise ValueError("seed=-1 is odd")

    monkeypatch.setattr(cli, "import_module", lambda name: SimpleNamespace(run=run))
    assert main(["demo"]) == 2
    said = "--seed -1 must be at least 0" if ours else "seed=-1 is odd"
    assert capsys.readouterr().err == f"flatnce demo: {said}\n"
