"""``flatnce evaluate`` on a run of its own."""

import errno
import json
import shutil
from unittest.mock import Mock

import pytest

from flatnce.cli import main
from flatnce.pretrain import load_encoder, preset, train
from flatnce.pretrain.commands.evaluate import results_table, run
from flatnce.pretrain.evaluation import Options, evaluate_run, protocols
from flatnce.pretrain.evaluation.options import USED_BY
from flatnce.pretrain.page.inspection import inspect_encoder
from flatnce.pretrain.runs.checkpoint import steps
from flatnce.pretrain.runs.log import read_run
from made_runs import EVALUATION, quick_config
from tiny_sets import write_folder

QUICK = ["--epochs", "1", "--rates", "0.001"]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    directory = tmp_path_factory.mktemp("evaluate") / "runs" / "first"
    train(quick_config(batch_size=64), directory)
    return directory


@pytest.fixture
def first(trained_once, tmp_path):
    """A fresh copy of the run, by its name."""
    shutil.copytree(trained_once, tmp_path / "runs" / "first")
    return tmp_path / "runs" / "first"


def test_the_table_has_a_row_for_each_result_and_they_are_kept(first, capsys):
    assert run(["first", "--protocol", "knn", "linear"]) == 0
    said = capsys.readouterr().out
    rows = [line.split("  ")[0] for line in said.splitlines()]
    assert {"knn, k = 200", "knn, k = 20", "linear"} <= set(rows)
    assert "On the test set at step 22" in said and " to " in said
    kept = read_run(first).results["evaluations"]
    assert [one["protocol"]["name"] for one in kept] == ["knn, k = 200", "knn, k = 20", "linear"]
    assert all(one["step"] == 22 for one in kept)
    results_table(kept)
    assert capsys.readouterr().out in said


def test_json_is_json_and_nothing_else(first, capsys):
    assert run(["first", "--protocol", "knn", "--json", "--neighbours", "5"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == 22 and said["run"] == "runs/first"
    assert said["finished"] is True and said["steps"] == 22
    (result,) = said["results"]
    assert result["protocol"]["neighbours"] == 5


@pytest.mark.parametrize(
    "typed, asked, users",
    [
        (["--fraction", "0.5"], "knn", "semi"),
        (["--rates", "0.1"], "knn linear", "linear-short, linear-long, transfer-linear, semi"),
        (["--epochs", "3"], "linear", "linear-short"),
        (["--neighbours", "5"], "linear", "knn"),
        (["--validation", "0.2"], "knn mi", "linear"),
        (["--pool", "99"], "transfer", "mi"),
    ],
)
def test_a_setting_that_no_protocol_uses_is_refused(first, typed, asked, users):
    with pytest.raises(ValueError, match=f"has no effect here; leave it out, or add .*: {users}"):
        run(["first", "--protocol", *asked.split(), *typed])
    assert read_run(first).results["evaluations"] == []


@pytest.mark.parametrize("name", list(protocols.PROTOCOLS))
def test_a_setting_is_said_to_be_used_by_the_protocols_that_read_it(first, name):
    read: set[str] = set()

    class Seen(Options):
        def __getattribute__(self, key):
            read.add(key)
            return super().__getattribute__(key)

    options = Seen(epochs=1, rates=(1e-3,), fraction=(0.05,), pool=50)
    bench = protocols.Bench(load_encoder(first), options)
    read.clear()
    assert list(protocols.PROTOCOLS[name](bench, "digits"))
    assert read & USED_BY.keys() == {one for one, users in USED_BY.items() if name in users}


@pytest.mark.parametrize("as_json", [False, True])
def test_results_that_cannot_be_saved_are_printed(first, capsys, monkeypatch, as_json):
    refused = PermissionError(errno.EACCES, "Permission denied", str(first / "results.json"))
    monkeypatch.setattr(protocols, "add_evaluation", Mock(side_effect=refused))
    typed = ["evaluate", "first", "--protocol", "knn", "--neighbours", "5", "20"]
    assert main([*typed, *["--json"] * as_json]) == 1
    found = capsys.readouterr()
    if as_json:
        names = [one["protocol"]["name"] for one in json.loads(found.out)["results"]]
    else:
        names = [line.partition("  ")[0] for line in found.out.splitlines()]
    assert {"knn, k = 5", "knn, k = 20"} <= set(names)
    said = " ".join(found.err.split())
    assert ": knn: not saved in runs/first/results.json (Permission denied); make runs" in said
    assert "runs/first writable, and evaluate again" in said and "room" not in said
    assert not (first / "report.html").exists()


def test_a_full_disk_is_answered_with_room_not_with_permissions(first, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(protocols, "add_evaluation", Mock(side_effect=full))
    with pytest.raises(protocols.NotSaved) as caught:
        evaluate_run(first, ["knn", "linear"])
    said = str(caught.value)
    assert said.startswith("knn, linear: not saved in ") and "writable" not in said
    assert said.endswith(
        f"(No space left on device); free space on the disk of {first}, and evaluate again"
    )


def test_a_result_that_could_not_be_saved_is_saved_with_the_next(first, capsys, monkeypatch):
    full, told = OSError(errno.ENOSPC, "No space left on device"), []
    save = Mock(side_effect=[full, None, None])
    monkeypatch.setattr(protocols, "add_evaluation", save)
    how = {"options": protocols.Options(neighbours=(5, 20)), "report": told.append}
    found = protocols.evaluate_run(first, "knn", **how)
    assert [call.args[1] for call in save.call_args_list] == [found[0], *found]
    assert any("not saved (No space left on device): {" in line for line in told)


def test_another_number_of_epochs_is_in_the_name_of_the_protocol(first, capsys):
    typed = ["first", "--protocol", "linear-short", "finetune", "--rates", "0.001", "--epochs"]
    assert run([*typed, "1"]) == 0
    assert run([*typed[:3], *typed[4:], "10", "--quiet"]) == 0  # the usual number
    names = ["linear-short, 1 epoch", "finetune, 1 epoch", "linear-short"]
    assert [row["protocol"]["name"] for row in read_run(first).results["evaluations"]] == names
    said = capsys.readouterr().out.splitlines()
    assert set(names) <= {line.partition("  ")[0] for line in said}
    assert "linear-short, 1 epoch" in (first / "report.html").read_text()


def test_the_table_says_once_which_share_of_the_labels_was_left_out(capsys):
    said = "1 % of the labels, because the smallest class has 9 samples"
    protocol = {**EVALUATION["protocol"], "labels": {"fraction": 0.1, "left_out": said}}
    results_table([{**EVALUATION, "name": "semi", "protocol": protocol}] * 2)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(f"semi on digits leaves out {said}.") == 1


@pytest.mark.parametrize("columns", [60, 45])
def test_a_narrow_table_of_results_names_what_it_leaves_out(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    results_table([EVALUATION])
    said = capsys.readouterr().out
    table, _, note = said.partition("protocol")[2].partition("\n\nnot shown: ")
    assert max(map(len, said.splitlines())) <= columns
    for heading in ("data", "samples", "seconds", "top-5"):
        assert (heading in table) != (heading in note)
    assert note.rstrip().endswith("--json has them" if "," in note else "--json has it")


def test_the_labels_of_protocols_stay_whole_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    label, folder = "knn, k = 1437 (all training samples)", "./photos/of/a/long/path/somewhere"
    results_table([{**EVALUATION, "data": folder, "protocol": {"name": label, "data": folder}}])
    said = capsys.readouterr().out
    assert label in said and max(map(len, said.splitlines())) <= 80
    assert "not shown: seconds, data; --json has them" in said and "samples" in said
    results_table([EVALUATION | {"data": one, "protocol": {"name": label}} for one in "ab"])
    head = capsys.readouterr().out.split("protocol", 1)[1].splitlines()[0]
    assert head.split()[0] == "data" and "samples" in head


def test_samples_held_out_of_a_folder_are_not_called_a_test_set(capsys):
    held = {"name": "linear", "data": "photos", "test": {"split": "held out of train"}}
    results_table([{**EVALUATION, "data": "photos", "protocol": held}])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("On held-out training samples at step 400")
    assert said.endswith("photos has no test part. These samples were held out of it.")


def test_quiet_prints_the_table_only(first, capsys):
    assert run(["first", "--protocol", "knn", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("knn, k = 200  digits") and lines[-1].startswith("knn, k = 20")
    assert len(lines) == 5


def test_the_small_knobs_reach_the_protocol(first, capsys):
    command = ["first", "--protocol", "semi", "--fraction", "0.05", "--batch-size", "16", *QUICK]
    assert run([*command, "--size", "12", "--seed", "4", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert len(results) == 2
    protocol = results[0]["protocol"]
    assert protocol["labels"]["fraction"] == 0.05 and protocol["labels"]["seed"] == 4
    assert protocol["batch_size"] == 16 and protocol["images"]["size"] == 12
    assert [one["protocol"]["start"] for one in results] == ["pretrained", "scratch"]
    views = preset("digits").views
    assert (protocol["flip"], protocol["crop_least"]) == (views.flip, views.crop_least)


def test_the_temperature_is_what_training_had_come_to(first):
    with (first / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "train", "step": 22, "temperature": 0.25}) + "\n")
        file.write(json.dumps({"kind": "train", "step": 23, "temperature": 0.5}) + "\n")
    (found,) = evaluate_run(first, "mi")
    assert found["protocol"]["temperature"] == 0.25


def test_the_temperature_of_an_earlier_step_is_read_from_every_line(first, monkeypatch):
    path = first / "metrics.jsonl"
    lines = [{"kind": "train", "step": step, "temperature": step / 50} for step in range(1, 23)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr("flatnce.pretrain.runs.log.MOST", 3)
    earlier = steps(first / "checkpoints")[1]
    assert earlier not in [line["step"] for line in read_run(first).metrics]
    (found,) = evaluate_run(first, "mi", step=earlier)
    assert found["protocol"]["temperature"] == earlier / 50


# A folder of images.


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of classes, without a test part, and with a file that is no image."""
    folder = tmp_path_factory.mktemp("folder") / "photos"
    write_folder(folder, {"cat": 10, "dog": 15})
    (folder / "cat" / "spoilt.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def run_on_photos(photos):
    directory = photos.parent / "run"
    config = quick_config(
        data=str(photos), decode_size=12, workers=0, skip_unreadable=True, batch_size=8
    )
    with pytest.warns(UserWarning, match="spoilt"):
        train(config, directory)
    return directory


@pytest.mark.filterwarnings("ignore:.*spoilt")
def test_a_run_is_evaluated_on_its_own_folder_though_it_has_no_test_part(run_on_photos, photos):
    options = Options(workers=0, epochs=1, rates=(1e-3,), validation=0.2)
    found = evaluate_run(run_on_photos, ["knn", "finetune", "mi"], options=options)
    test = found[0]["protocol"]["test"]
    assert found[0]["test_images"] == 5 and test["images"] == 5
    assert (test["split"], test["fraction"], test["seed"]) == ("held out of train", 0.2, 0)
    assert "pretrained on these samples" in test["note"] and test["drawn"]["count"] == 5
    assert found[0]["protocol"]["train"]["images"] == 20
    assert found[-1]["protocol"]["pool"]["split"] == "held out of train"
    tuned = next(one["protocol"] for one in found if one["name"] == "finetune")
    assert tuned["precision"] == "float32"


@pytest.mark.filterwarnings("ignore:.*spoilt")
def test_held_out_images_of_the_training_folder_are_not_called_test_images(
    run_on_photos, photos, tmp_path, monkeypatch, capsys
):
    shutil.copytree(run_on_photos, tmp_path / "runs" / "photos")
    for folder in (tmp_path, photos.parent):  # a result replaces that of another folder
        monkeypatch.chdir(folder)
        assert run([str(tmp_path / "runs" / "photos"), "--protocol", "knn", "mi"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "On held-out training samples at step" in said and "On the test set" not in said
    assert "has no test part" in said and "pretrained on them too" in said
    assert "200" not in said and "10,000" not in said  # k and the pool were smaller
    page = (tmp_path / "runs" / "photos" / "report.html").read_text(encoding="utf-8")
    assert "pretrained on them too" in page and "results to quote" not in page
    inspected = json.loads(inspect_encoder(tmp_path / "runs" / "photos").read_text())
    assert inspected["part"] == "held-out training"
    kept = read_run(tmp_path / "runs" / "photos").results["evaluations"]
    assert [one["protocol"]["name"] for one in kept].count("mi") == 1
    assert len({one["data"] for one in kept}) == 1


def test_a_folder_with_too_few_images_is_one_error_with_a_remedy(first, tmp_path):
    write_folder(tmp_path / "few", {"cat": 3, "dog": 9})
    with pytest.raises(ValueError, match=r"no test part.*cat has 3.*val/CLASS.*--data NAME"):
        run(["first", "--data", f"{tmp_path}/few"])
    write_folder(tmp_path / "one", {"cat": 9})
    with pytest.raises(ValueError, match=r"linear.* needs labels.*one have none; use mi"):
        run(["first", "--data", f"{tmp_path}/one"])
