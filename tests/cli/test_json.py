"""Every command: its ``--json`` is one document, and its lines fit a terminal of 80 columns."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from export_subjects import write_run
from flatnce.cli import COMMANDS, console, main
from made_runs import write_pairs

slow = pytest.mark.slow
TYPED = {
    "demo": (
        "--steps 4 --every 2 --seeds 2 --candidates 4 --temperatures 0.2 --width 8 --pool 64",
        "cases",
    ),
    "data": ("--list", "sets"),
    "train": ("digits --dry-run --device cpu", "config"),
    "resume": ("first --evaluate", "finished"),
    "runs": ("", "runs"),
    "sweep": ("digits --seed 0 1 --dry-run --device cpu", "runs"),
    "evaluate": ("first --protocol knn --device cpu", "results"),
    "report": ("first --no-portrait", "page"),
    "compare": ("infonce-0 flatnce-0", "differences"),
    "embed": ("first photos --device cpu", "arrays"),
    "export": ("first --to torch", "folder"),
    "mi": ("table.csv --list-columns", "table.csv"),
    "reproduce": ("--list", "name"),
    "doctor": ("first --no-embeddings", "verdict"),
}
SLOW = ("demo", "report", "compare")  # other tests of these commands parse their JSON too


@pytest.fixture
def _subjects(tmp_path, monkeypatch, plain_charts):
    monkeypatch.chdir(tmp_path)
    metrics = write_run(tmp_path / "runs" / "first") / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"seconds"', '"temperature": 0.1, "seconds"'))
    write_pairs(tmp_path / "runs", [0.1])
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("photos/one.png")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n3,4\n")


@pytest.mark.usefixtures("_subjects")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=slow) if one in SLOW else one
        for one in COMMANDS
        if one != "completion"  # prints a script
    ],
)
def test_json_is_one_document_and_nothing_else(command, capfd):
    typed, key = TYPED[command]
    assert main([command, *typed.split(), "--json"]) == 0
    (line,) = capfd.readouterr().out.splitlines()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(line, parse_constant=refuse)
    assert key in (found[0] if isinstance(found, list) else found)


def test_json_needs_no_pass_over_what_it_can_hold(monkeypatch, capsys):
    monkeypatch.setattr(console, "plain", Mock(side_effect=AssertionError))
    console.print_json({"runs": [{"linear": 0.5}], None: True})
    assert capsys.readouterr().out == '{"runs": [{"linear": 0.5}], "null": true}\n'


RUN = "--epochs 1 --batch-size 192 --pool 64 --no-tensorboard --device cpu --view-size 4"
QUICK = [
    *(f"{command} {TYPED[command][0]}" for command in ("data", "runs", "reproduce")),
    "evaluate first --protocol knn --device cpu",
    "runs first",
    "runs --where linear>0.5 --sort batch",
    "runs nosuch",
    "doctor nosuch",
    "data digits",
    "train photo",
    "train ./photos",
    "train digits --batch-size many",
    "compare first --no-such",
    "evaluate first --protocol transfer",
    "embed first nothing",
    "export first --to timm",
    "export first --to torch",
]
WHOLE = [
    *(
        f"{command} {TYPED[command][0]}"
        for command in ("demo", "train", "sweep", "doctor", "mi", "embed")
    ),
    "compare infonce-0 flatnce-0",
    "report first",
    f"train digits --name calm {RUN}",
    "runs calm",
    "resume calm",
    f"sweep digits --name s --seed 0 1 {RUN}",
    "evaluate first --protocol linear mi --device cpu",
]


@pytest.mark.usefixtures("_subjects")
@pytest.mark.parametrize("typed", [QUICK, pytest.param(WHOLE, marks=slow)], ids=["quick", "whole"])
def test_every_line_fits_a_terminal_of_80_columns(typed, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FLATNCE_DATA", "no-data")
    for command in typed:
        main(command.split())
        shown = capfd.readouterr()
        lines = [*shown.out.splitlines(), *shown.err.splitlines()]
        wide = [one for one in lines if len(one) > 80 and len(one.split()) > 1]  # not of a path
        assert lines and wide == [], command
