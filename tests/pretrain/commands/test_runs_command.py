"""``flatnce runs`` as a user meets it."""

import io
import json
import os
import shutil
import sys

import pytest

from flatnce.cli import main
from flatnce.pretrain.commands.runs import show_runs
from flatnce.pretrain.runs.listing import known_values, summary_of
from flatnce.pretrain.runs.log import RunLog, add_evaluation
from made_runs import EVALUATION, write_pairs, write_run


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "runs" / "first", "flatnce", shift=0.1)
    write_pairs(tmp_path / "runs" / "study", [0.02])
    (tmp_path / "runs" / "study" / "sweep.json").write_text(
        '{"format_version": 1, "kind": "sweep"}'
    )
    return tmp_path / "runs"


def printed(capsys, *typed):
    assert main(["runs", *typed]) == 0
    return capsys.readouterr().out


def test_runs_are_listed_filtered_and_sorted(runs, capsys):
    head, *lines = printed(capsys, "--sort", "linear").splitlines()
    columns = "run data objective batch epochs state kNN linear pool MI verdict age"
    assert head.split() == columns.split()
    assert [line.split()[0] for line in lines] == ["first", "study/flatnce-0", "study/infonce-0"]
    cells = "first digits flatnce 32 4/4 done 100.0% 80.0% 6.10 healthy"
    assert lines[0].split()[:10] == cells.split()
    (line,) = printed(capsys, "study", "--where", "objective=infonce").splitlines()[1:]
    assert line.startswith("study/infonce-0")
    assert "no run in runs/ meets seed=5" in printed(capsys, "first", "--where", "seed=5")
    assert len(printed(capsys, "runs/study", "runs/first").splitlines()) == 4
    assert main(["runs", "first", "studdy"]) == 2 and "did you mean" in capsys.readouterr().err


def test_conditions_that_no_run_meets_are_answered_by_the_values_there(runs, capsys):
    assert printed(capsys, "--where", "objective=siglip").endswith(
        "no run in runs/ meets objective=siglip; there, objective is flatnce, infonce\n"
    )
    said = " ".join(printed(capsys, "--where", "knn>96", "batch<9").split())
    assert "knn is between 0.9 and 1 (0.96 means 96 %); batch is 32" in said
    assert "start one" not in said


def test_values_are_called_shares_only_where_they_are_and_few_are_listed():
    def said(*values):
        rows = [{"last": {"gain": one}, "settings": {}, "scores": {}} for one in values]
        return known_values(rows, "gain>5")

    assert said(0.1, 1 / 3) == "gain is between 0.1 and 0.333333"
    assert said(1 / 3, None) == "gain is 0.333333" and said(True, False) == "gain is False, True"
    assert said(*"ihgfedcba") == "gain is a, b, c, d, e, f, g, h and 1 more"
    assert said([1], [2]) == "gain is [1], [2]" and said(None) == "gain is not known"


def test_a_narrow_terminal_gets_fewer_columns_and_whole_names(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = printed(capsys)
    shown = text.splitlines()
    assert max(map(len, shown)) <= 60 and "study/infonce-0" in text
    same = "not shown: data (all digits), batch (all 32), verdict (all healthy), epochs (all 4/4)"
    assert same in " ".join(text.split()) and "objective" in shown[0]


def test_long_names_are_shortened_before_a_column_is_left_out(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_run(runs / "digits-with-a-long-name-and-many-settings-and-a-seed-0", "flatnce")
    shown = printed(capsys)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\ndigits-with-…nd-a-seed-0 " in shown and "\nfirst " in shown
    assert shown.splitlines()[0].split()[:2] == ["run", "objective"]
    assert "not shown: data (all digits), batch (all 32), verdict" in shown
    write_run(runs / "larger", "flatnce", batch_size=64)
    head, *_, note = printed(capsys).split("\n\n")
    assert " batch " in head and "not shown: data (all digits), verdict" in note


@pytest.mark.parametrize("typed", ["--where data=digits batch<64", "--sort batch-size"])
def test_columns_that_were_asked_for_stay_on_a_narrow_terminal(typed, runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = printed(capsys, *typed.split())
    head, *_, note = shown.split("\n\n")
    assert max(map(len, shown.splitlines())) <= 60 and " batch " in head.splitlines()[0]
    assert "not shown: " in note and "batch" not in note
    assert ("data" in note) == ("data" not in typed)


@pytest.mark.parametrize("typed", ["--sort=loss", "--where=loss>0", "--where=temperature>0"])
def test_a_number_that_was_asked_for_has_a_column(typed, runs, capsys):
    head, *lines = printed(capsys, *typed.split("=")).splitlines()
    key = typed.partition("=")[2].partition(">")[0]
    row = json.loads(printed(capsys, "first", "--json"))
    value = {**row["settings"], **row["last"]}[key]
    (first,) = (line for line in lines if line.startswith("first"))
    assert head.split()[-1] == key and first.split()[-1] == f"{value:.4g}"
    assert "name" not in printed(capsys, "--sort", "name").splitlines()[0].split()


def test_runs_without_a_number_may_be_asked_for(runs, capsys):
    add_evaluation(runs / "first", {**EVALUATION, "protocol": {"name": "semi"}})
    shown = printed(capsys, "--where", "semi=None")
    assert "study/infonce-0" in shown and "first" not in shown


def test_scores_of_several_steps_say_their_step(runs, capsys):
    assert ", step" not in printed(capsys, "first")
    evaluation = {**EVALUATION, "protocol": {"name": "kNN"}}
    add_evaluation(runs / "first", {**evaluation, "step": 200})
    assert ", step 200" in printed(capsys, "first")


def test_one_run_is_shown_whole(runs, capsys):
    shown = printed(capsys, "first")
    add_evaluation(runs / "first", {**EVALUATION, "protocol": {"name": "semi, 10 % of labels"}})
    lines = printed(capsys, "first").splitlines()
    begins = ("semi, 10 % of labels  95.12 % ", "linear                80.00 % ")
    assert all(any(line.startswith(one) for line in lines) for one in begins)
    assert "done, 4/4 epochs" in shown
    assert "batch_size 32" in shown and "next: flatnce report first" in shown
    (runs / "first").rename(runs / "my first")
    assert "report 'my first'    flatnce doctor 'my first'" in printed(capsys, "my first")
    (runs / "my first").rename(runs / "first")
    found = json.loads(printed(capsys, "first", "--json"))
    assert found["results"]["step"] == 400 and found["settings"]["objective"] == "flatnce"
    assert found["bytes"] > 1000


def test_a_run_is_shown_while_its_files_come_and_go(runs, capsys, monkeypatch):
    going = runs / "first" / "checkpoints" / ".step-000000500.discarded.partial"
    going.mkdir(parents=True)
    for name in ("first-onnx/model.onnx", ".first-torch.partial/model.safetensors"):
        (runs / "first" / "exports" / name).parent.mkdir(parents=True)
        (runs / "first" / "exports" / name).touch()
    (runs / "first" / "exports" / ".first-torch.lock").touch()
    scan = os.scandir

    def scanned(place):
        if str(place).endswith(going.name):
            shutil.rmtree(place)
        return scan(place)

    monkeypatch.setattr(os, "scandir", scanned)
    exports = json.loads(printed(capsys, "first", "--json"))["exports"]
    assert exports == ["runs/first/exports/first-onnx"] and not going.exists()


def test_a_run_of_another_command_is_shown_without_commands_for_training_runs(runs, capsys):
    RunLog(runs / "demo", kind="demo", config={"seeds": 1})
    assert "stopped" in (shown := printed(capsys, "demo")) and "next:" not in shown


def test_a_run_that_failed_says_why(runs, capsys):
    (runs / "first" / "results.json").unlink()
    assert "failure" not in printed(capsys, "first")
    line = {"kind": "failure", "step": 3, "epoch": 0.1, "seconds": 1.0, "message": "no more room"}
    with open(runs / "first" / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    state, failure = printed(capsys, "first").splitlines()[1:3]
    assert "failed, " in state and failure.split() == ["failure", "no", "more", "room"]
    assert json.loads(printed(capsys, "first", "--json"))["failure"] == "no more room"
    assert "next: flatnce resume first" in printed(capsys, "first")
    with open(runs / "first" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**line, "diverged": True}) + "\n")
    shown = printed(capsys, "first")
    assert "would diverge again when resumed: start another run" in shown
    assert "flatnce resume" not in shown and "flatnce doctor first" in shown


def test_results_on_other_sets_are_named_and_not_taken_for_those_of_its_own(runs, capsys):
    other = {**EVALUATION, "data": "./photos", "top1": 1.0}
    add_evaluation(runs / "first", {**other, "protocol": {"name": "linear", "data": "./photos"}})
    first = printed(capsys, "--sort", "linear").splitlines()[1]
    assert " 80.0% " in first and "100.0% 80.0%" in " ".join(first.split())
    row = next(
        run for run in json.loads(printed(capsys, "--json"))["runs"] if "/" not in run["name"]
    )
    assert row["linear"] == row["scores"]["linear"] == 0.7 + 0.1
    assert row["scores"]["linear on ./photos"] == 1.0
    shown = printed(capsys, "first").splitlines()
    said = [line for line in shown if line.startswith("linear ")]
    assert [line.split(" on ")[1] for line in said] == ["digits", "./photos"]
    config = json.loads((runs / "first" / "config.json").read_text())
    config["config"]["data"]["data"] = "photos/"
    (runs / "first" / "config.json").write_text(json.dumps(config))
    assert summary_of(runs / "first", "first")["linear"] == 1.0


def test_settings_of_views_are_left_out_where_a_user_made_the_views(runs, capsys):
    config = json.loads((runs / "first" / "config.json").read_text())
    config["config"]["views"] = {"flip": 0.5}
    (runs / "first" / "config.json").write_text(json.dumps(config))
    assert "flip 0.5" in printed(capsys, "first")
    results = runs / "first" / "results.json"
    results.write_text(json.dumps({**json.loads(results.read_text()), "own_views": True}))
    assert "flip 0.5" not in printed(capsys, "first")


def test_the_epochs_of_a_run_in_progress_have_two_decimals(runs, capsys):
    row = {**summary_of(runs / "first", "first"), "epoch": 7 / 11, "epochs": 2}
    show_runs([row])
    assert " 0.64/2 " in capsys.readouterr().out


def test_json_holds_every_run(runs, capsys):
    found = json.loads(printed(capsys, "--json"))
    assert found["folder"] == "runs" and len(found["runs"]) == 3
    assert {run["scores"]["linear"] for run in found["runs"]} == {0.7 + 0.1, 0.7, 0.7 + 0.02}


@pytest.mark.parametrize("answer, code, left", [("y", 0, False), ("", 1, True), ("no", 1, True)])
def test_a_deletion_is_asked_for_on_a_terminal(runs, capsys, monkeypatch, answer, code, left):
    terminal = io.StringIO(f"{answer}\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["runs", "--delete", "first"]) == code
    assert "delete runs/first (0.0 MiB)? [y/N]" in capsys.readouterr().err
    assert (runs / "first").exists() == left


def test_without_a_terminal_a_deletion_needs_yes(runs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["runs", "--delete", "study", "first"]) == 2
    assert "add --yes" in capsys.readouterr().err and len(list(runs.iterdir())) == 2
    assert main(["runs", "--delete", "frist", "--yes"]) == 2
    assert "did you mean 'first'" in capsys.readouterr().err
    assert json.loads(printed(capsys, "--delete", "study", "f*", "--yes", "--json")) == {
        "deleted": ["runs/study", "runs/first"]
    }
    assert printed(capsys).startswith("there is no run in runs/; start one")
