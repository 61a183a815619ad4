"""Runs in brief: what is read of them, how they are chosen and sorted, and how one is deleted."""

import json
import os
from unittest.mock import Mock

import pytest

from flatnce.cli import main
from flatnce.files import lock
from flatnce.pretrain.runs import folder, listing, log
from flatnce.pretrain.runs.folder import delete, find_run, lock_beside, named_runs, run_names
from flatnce.pretrain.runs.listing import chosen, last_lines, ordered, over_seeds, summary_of
from flatnce.pretrain.runs.log import RunLog, read_run
from made_runs import write_pairs, write_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of its own, named by FLATNCE_RUNS: two runs, and a sweep of four."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(folder.VARIABLE, str(tmp_path / "mine"))
    write_run(tmp_path / "mine" / "first", "flatnce", shift=0.1, batch_size=64)
    write_run(tmp_path / "mine" / "going", "dcl", finished=False)
    write_pairs(tmp_path / "mine" / "study", [0.02, 0.03])
    (tmp_path / "mine" / "study" / "sweep.json").write_text(
        '{"format_version": 1, "kind": "sweep"}'
    )
    return tmp_path / "mine"


def summaries(place):
    return [summary_of(place / name, name) for name in run_names(place)]


def names_of(found):
    return [run["name"] for run in found]


def last_by_kind(metrics):
    """The definition: the last line of each kind."""
    return {line["kind"]: line for line in metrics}


@pytest.mark.parametrize("block", [7, 100, 32_768])
def test_the_end_of_the_metrics_gives_the_last_line_of_each_kind(tmp_path, monkeypatch, block):
    monkeypatch.setattr(listing, "BLOCK", block)
    run = write_run(tmp_path / "run", finished=False)
    log = RunLog.reopen(run, kind="train", step=400)
    log.log({"kind": "verdict", "step": 400, "verdict": "healthy"})
    log.log({"kind": "failure", "message": 'it said {"kind": "train"}'})
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 401, "lo')  # cut short by a kill
    assert last_lines(run / "metrics.jsonl") == last_by_kind(read_run(run).metrics)
    assert last_lines(tmp_path / "none.jsonl") == {}


def test_only_the_end_of_long_metrics_is_read(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", finished=False)
    file = run / "metrics.jsonl"
    file.write_text(file.read_text() * 200)
    RunLog.log(RunLog.reopen(run, kind="train", step=400), {"kind": "verdict", "verdict": "fine"})
    read = []
    load = log.read_line
    monkeypatch.setattr(log, "read_line", lambda line: read.append(len(line)) or load(line))
    assert set(last_lines(file)) == {"train", "watch", "verdict"}
    assert file.stat().st_size > 20 * listing.BLOCK and sum(read) < 2_000


def test_a_run_that_is_done_takes_two_small_files(tmp_path, monkeypatch):
    """What makes thousands of runs quick: neither metrics nor checkpoints are opened."""
    run = write_run(tmp_path / "run")
    results = json.loads((run / "results.json").read_text())
    results |= {"last": {"loss": 0.5}, "watch": {"knn": 0.9}}
    (run / "results.json").write_text(json.dumps(results))
    opened, read = [], log.read_json

    def noted(path, *given):
        opened.append(path.name)
        return read(path, *given)

    monkeypatch.setattr(log, "read_json", noted)
    monkeypatch.setattr(listing, "last_lines", None)
    found = summary_of(run, "run")
    assert opened == ["config.json", "results.json"]
    assert (found["knn"], found["last"]["loss"], found["linear"]) == (0.9, 0.5, 0.7)


def test_the_epoch_of_a_stopped_run_is_the_later_of_checkpoint_and_log(tmp_path):
    run = write_run(tmp_path / "run", finished=False)  # its last line is of step 400, epoch 4
    for step in (300, 430):
        (run / "checkpoints" / f"step-{step:09d}").mkdir(parents=True)
        assert summary_of(run, "run")["epoch"] == max(step, 400) / 100


def test_a_summary_says_what_the_files_say(runs):
    by_name = {run["name"]: run for run in summaries(runs)}
    first, going = by_name["first"], by_name["going"]
    assert first["state"] == "done" and first["epoch"] == first["epochs"] == 4
    assert (first["data"], first["objective"], first["batch_size"]) == ("digits", "flatnce", 64)
    assert first["linear"] == pytest.approx(0.8) and first["verdict"] == "healthy"
    assert first["knn"] == pytest.approx(0.5 + 0.4 + 0.1) and first["last"]["gain"] < 1
    assert going["state"] == "stopped" and going["linear"] is None and going["age"] >= 0
    zero = write_run(runs / "zero", shift=-0.7)
    assert summary_of(zero, "zero")["linear"] == 0.0
    RunLog.reopen(runs / "going", kind="train", step=400).log({"kind": "failure", "message": "x"})
    assert summary_of(runs / "going", "going")["state"] == "failed"
    with lock(lock_beside(runs / "going")):
        assert summary_of(runs / "going", "going")["state"] == "running"
    lock_beside(runs / "going").touch()  # left by a kill
    assert summary_of(runs / "going", "going")["state"] == "failed"
    (runs / "first" / "results.json").write_text("{")
    assert summary_of(runs / "first", "first")["state"] == "damaged"
    ordered(summaries(runs), None)


def test_the_scores_are_those_of_the_last_checkpoint_in_whatever_order_they_were_measured(runs):
    def measured(name, step, top1, protocol="linear"):
        one = {"step": step, "data": "digits", "protocol": {"name": protocol}, "top1": top1}
        log.add_evaluation(runs / name, one)
        return summary_of(runs / name, name)

    measured("first", 400, 0.986)  # the last step
    measured("first", 66, 0.5, "knn, k = 20")
    found = measured("first", 66, 0.981)
    assert (found["state"], found["linear"]) == ("done", 0.986)
    assert found["scores"] == {"linear": 0.986}  # no result of an earlier checkpoint
    assert measured("going", 300, 0.7)["linear"] == 0.7  # of an unfinished run, the latest
    assert measured("going", 100, 0.6)["linear"] == 0.7
    assert measured("going", 400, 0.5)["linear"] == 0.5


@pytest.mark.parametrize(
    "file, text",
    [
        *(("config.json", text) for text in ("[]", "3", '{"kind": "train", "config": []}')),
        *(("results.json", text) for text in ("[]", '{"evaluations": [1]}', '{"watch": 3}')),
    ],
)
def test_a_run_with_an_odd_file_is_listed_as_damaged(runs, file, text, capsys):
    (runs / "first" / file).write_text(text)
    assert [run["state"] for run in summaries(runs)] == ["damaged", "stopped", *["done"] * 4]
    assert main(["runs"]) == 0 and capsys.readouterr().out.count("damaged") == 1
    assert main(["runs", "first"]) == 2 and str(runs / "first") in capsys.readouterr().err


def test_a_data_set_that_is_not_a_name_does_not_end_the_list(runs):
    place = runs / "first" / "config.json"
    config = json.loads(place.read_text())
    config["config"]["data"]["data"] = 1.5
    place.write_text(json.dumps(config))
    assert len(summaries(runs)) == 6


@pytest.mark.parametrize(
    "conditions, expected",
    [
        ("", "first going study/flatnce-0 study/flatnce-1 study/infonce-0 study/infonce-1"),
        ("seed=1", "study/flatnce-1 study/infonce-1"),
        ("objective=flatnce batch_size=64", "first"),
        ("objective=*nce batch-size<64.0 seed>=1", "study/flatnce-1 study/infonce-1"),
        ("linear>0.72", "first study/flatnce-1"),
        ("state!=done", "going"),
        ("state<z", ""),
        ("root=None batch=64", "first"),
    ],
)
def test_runs_are_chosen_by_what_holds(runs, conditions, expected):
    assert names_of(chosen(summaries(runs), conditions.split())) == expected.split()


@pytest.mark.parametrize(
    "typed, said",
    [
        ("objective", "is not a condition"),
        ("objective==flatnce", "is not a condition, such as objective=flatnce"),
        ("epochs>>10", "is not a condition"),
        ("objectiv=x", "did you mean 'objective'"),
    ],
)
def test_a_condition_that_means_nothing_is_refused(runs, typed, said):
    with pytest.raises(ValueError, match=said):
        chosen(summaries(runs), [typed])
    with pytest.raises(ValueError, match="did you mean 'linear'"):
        ordered(summaries(runs), "liner")
    with pytest.raises(ValueError, match=r"--sort scores: .*; did you mean .*runs --json"):
        ordered(summaries(runs), "scores")
    with pytest.raises(ValueError, match=r"--where foo: .* has all names") as refused:
        chosen(summaries(runs), ["foo=3"])
    assert len(str(refused.value)) < 200, "only the nearest names"


def test_runs_are_sorted_by_any_number_and_those_without_come_last(runs):
    found = summaries(runs)
    assert names_of(ordered(found, "linear"))[::5] == ["first", "going"]
    assert names_of(ordered(found, "linear", reverse=True))[::5] == ["study/infonce-0", "going"]
    assert names_of(ordered(found, "loss"))[-1] == "first"
    assert names_of(ordered(found, "objective"))[0] == "going"
    os.utime(runs / "first" / "results.json", (1, 1))
    assert names_of(ordered(summaries(runs), None))[-1] == "first"


def test_names_are_found_in_the_folder_of_the_variable(runs, tmp_path):
    assert find_run("first") == runs / "first"
    assert find_run("study/infonce-1") == runs / "study" / "infonce-1"
    with pytest.raises(ValueError, match=r"^run='frist' is not .*did you mean 'first'"):
        find_run("frist")
    with pytest.raises(ValueError, match="did you mean 'study/infonce-0'"):
        find_run("study/infonc-0")
    with pytest.raises(ValueError, match="is a sweep of 4 runs"):
        find_run("study")
    assert [path.name for path in named_runs(["study/flat*", "first"])] == [
        *("flatnce-0", "flatnce-1", "first")
    ]
    assert folder.run_name(runs / "study" / "infonce-1") == "study/infonce-1"
    assert folder.run_name(tmp_path / "other") == str(tmp_path / "other")
    for number in range(9):
        write_run(runs / f"n{number}", finished=False)
    with pytest.raises(ValueError, match=r"there are 15 in .*`flatnce runs` lists them"):
        find_run("zzzzzz")


# Deleting.


def test_a_run_and_a_sweep_are_deleted_whole(runs):
    delete(runs / "first")
    delete(runs / "study" / "infonce-0")
    assert run_names(runs) == ["going", "study/flatnce-0", "study/flatnce-1", "study/infonce-1"]
    delete(runs / "study")
    assert sorted(path.name for path in runs.iterdir()) == ["going"]


def test_links_are_not_followed(runs, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data.bin").write_text("kept")
    (runs / "first" / "checkpoints").symlink_to(precious)
    (runs / "alias").symlink_to(runs / "going")
    with pytest.raises(ValueError, match="is a link"):
        delete(runs / "alias")
    delete(runs / "first")
    assert (precious / "data.bin").read_text() == "kept" and (runs / "going").is_dir()


@pytest.mark.parametrize("held, asked", [("first", "first"), ("study", "study/flatnce-0")])
def test_a_run_in_training_is_not_deleted(runs, held, asked):
    with lock(lock_beside(runs / held)), pytest.raises(ValueError, match="is being trained"):
        delete(runs / asked)
    assert (runs / asked / "config.json").is_file()


@pytest.mark.parametrize("place", ["first", "study", "study/flatnce-0"])
def test_other_files_are_never_deleted(runs, place):
    (runs / place / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match=r"notes\.txt, which flatnce did not write"):
        delete(runs / place.partition("/")[0])
    assert len(run_names(runs)) == 6


@pytest.mark.parametrize(
    "file, text", [("config.json", '{"editor": 1}'), ("config.json", "[]"), ("sweep.json", "{}")]
)
def test_a_folder_of_another_program_is_not_deleted(runs, file, text):
    (runs / "cfg").mkdir()
    (runs / "cfg" / file).write_text(text)
    with pytest.raises(ValueError, match=rf"{file} (\(it has no|is damaged)"):
        delete(runs / "first", runs / "study", runs / "cfg")
    assert len(run_names(runs)) == 6 + (file == "config.json") and (runs / "cfg" / file).is_file()


def test_a_damaged_run_is_deleted_where_it_is_seen_to_be_ours(runs):
    for name, text in (("first", '{"format_version": 1, "ki'), ("going", "")):
        (runs / name / "config.json").write_text(text)
        assert summary_of(runs / name, name)["state"] == "damaged"
    (runs / "going" / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        delete(runs / "first", runs / "going")
    delete(runs / "first")
    assert not (runs / "first").exists() and (runs / "going").is_dir()


def test_of_several_names_all_are_deleted_or_none(runs):
    with lock(lock_beside(runs / "going")), pytest.raises(ValueError, match="is being trained"):
        delete(runs / "first", runs / "going")
    assert (runs / "first").is_dir()
    study = runs / "study"
    delete(study / "infonce-0", study / "infonce-1")
    delete(study / "flatnce-0", runs / "first", study, runs / ".." / "mine" / "first")
    assert run_names(runs) == ["going"] and not study.exists()


def test_a_name_means_the_folder_of_runs_before_the_working_directory(runs, tmp_path):
    for name, file in (("first", "sweep.json"), ("study", "config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    assert find_run("first") == runs / "first" and folder.sweep_named("study") == runs / "study"
    assert folder.sweep_named("./first") == find_run("./study").with_name("first")


def test_means_over_seeds_count_finished_runs_that_differ_in_nothing_else(tmp_path):
    runs = [write_run(tmp_path / f"a-s{seed}", seed=seed, shift=0.1 * seed) for seed in (0, 1)]
    runs.append(write_run(tmp_path / "a-s2", seed=2, shift=5.0, finished=False))
    runs.append(write_run(tmp_path / "b-s0", batch_size=64))
    (found,) = over_seeds([summary_of(run, run.name) for run in runs])
    assert found["runs"] == "a" and found["seeds"] == [0, 1]
    assert found["mean"]["linear"] == pytest.approx(0.75)
    assert found["sd"]["linear"] == pytest.approx(0.1 / 2**0.5)
    assert found["mean"]["knn"] == pytest.approx(0.95) and found["sd"]["gain"] == 0


@pytest.mark.parametrize("way", ["list", "name"])
@pytest.mark.parametrize("moved", range(6))
def test_a_run_that_was_being_set_aside_is_listed_and_put_back(
    tmp_path, monkeypatch, capsys, moved, way
):
    monkeypatch.setenv("FLATNCE_RUNS", str(tmp_path))
    place = tmp_path / "run"
    write_run(place)
    whole = {path.name: path.read_bytes() for path in place.iterdir()}
    assert len(whole) == 4  # and a fifth rename gives them the name .earlier
    rename, left = os.rename, [moved]

    def killed(*names):
        left[0] -= 1
        if left[0] < 0:
            raise SystemError("killed")
        rename(*names)

    with monkeypatch.context() as at:
        at.setattr(os, "rename", killed)
        at.setattr(log, "environment", killed)  # after the config of the new run is written
        with pytest.raises(SystemError):
            RunLog(place, kind="train", config={}, replace=True)
    assert run_names() == ["run"]
    if not (place / "config.json").is_file():
        with lock(lock_beside(place)), pytest.raises(ValueError, match="is being replaced by an"):
            find_run("run")
        with monkeypatch.context() as at:
            at.setattr(log.os, "rename", Mock(side_effect=OSError(30, "Read-only file system")))
            words = rf"run='run' cannot be put back \(.*Read-only.*\); make {place} writable"
            with pytest.raises(OSError, match=words):
                find_run("run")
    if way == "list":
        capsys.readouterr()
        assert main(["runs"]) == 0
        (row,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("run  ")][
            1:
        ]
        assert " done " in row and "damaged" not in row
    assert (find_run("run"), named_runs(["r*"])) == (place, [place])
    assert {path.name: path.read_bytes() for path in place.iterdir()} == whole
