"""Records of runs: keys that survive renames, thinned metrics, files that read back."""

import pytest

from flatnce.pretrain.runs import records
from flatnce.pretrain.runs.log import Run, RunLog, read_run
from flatnce.pretrain.runs.records import (
    key_of,
    read_records,
    record_of,
    settings_of,
    thinned,
    write_record,
)
from flatnce.pretrain.training.config import TrainConfig


def plain(**settings):
    return TrainConfig().override(**settings).plain()


@pytest.mark.parametrize(
    ("settings", "learns", "measures"),
    [
        ({"seed": 1}, False, False),
        ({"temperature": 0.2}, False, False),
        ({"watch_every": 3.0}, True, False),
        ({"keep": 1}, True, False),
        ({"pool": 64, "knn_neighbours": 5}, True, False),
        ({"wandb": "study", "workers": 2}, True, True),
        ({"stream": True}, False, False),
        ({"decode": "gpu"}, False, False),
        ({"skip_unreadable": True}, False, False),
        ({"device": "cuda:1", "root": "/elsewhere", "tensorboard": False}, True, True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_key_is_that_of_what_is_learned_and_if_asked_of_what_is_measured(
    settings, learns, measures
):
    assert (key_of(plain(**settings)) == key_of(plain())) == learns
    assert (key_of(plain(**settings), measured=True) == key_of(plain(), measured=True)) == measures


def test_a_key_does_not_depend_on_the_order_or_on_the_sections():
    flat = TrainConfig().flat()
    turned = dict(reversed(flat.items()))
    assert key_of({"": flat}) == key_of({"all": turned}) == key_of(plain())


def test_an_older_config_without_a_setting_of_reading_has_the_key_of_its_default():
    older = plain()
    for name in ("stream", "decode", "skip_unreadable"):
        del older["data"][name]
    assert key_of(older) == key_of(plain())


def test_a_target_of_the_ess_has_another_key_than_under_the_older_rule(monkeypatch):
    config = plain(ess=0.3)
    record = {"key": key_of(config), "config": config}
    assert settings_of(record)["ess"] == 0.3
    monkeypatch.setattr(records, "ESS_RULE", "another")
    other, without = key_of(config), key_of(plain())
    assert other[-8:] != record["key"][-8:]  # folders of runs are named by these
    assert settings_of({"key": "v1-0123", "config": config})["ess_paper"] == 0.3
    monkeypatch.undo()
    assert key_of(plain()) == without and "population" not in without


def test_a_record_has_the_settings_of_its_config():
    record = {"key": key_of(plain()), "config": plain()}
    assert record["key"].startswith("v1-") and settings_of(record) == TrainConfig().flat()


def line(step, kind="train", **more):
    return {"kind": kind, "step": step, "epoch": step / 10, **more}


def test_thinning_keeps_checks_the_first_the_last_and_lines_at_a_distance():
    metrics = [line(step, mi=float(step), images_per_second=100.0) for step in range(1, 31)]
    metrics.insert(
        12, line(15, "watch", knn=0.5, seconds=1.0)
    )  # logged before its own step's line
    metrics.append({"kind": "verdict", "step": 30})
    found = thinned(metrics, every=1.0)
    assert [one["step"] for one in found] == [1, 11, 15, 25, 30]
    assert found[2] == {"step": 15, "epoch": 1.5, "mi": 15.0, "knn": 0.5}
    assert "knn" not in found[1] and found[-1]["mi"] == 30.0


def test_a_check_between_two_lines_has_the_numbers_before_it():
    metrics = [line(2, mi=1.0), line(4, mi=2.0), line(5, "watch", knn=0.5), line(6, mi=3.0)]
    assert thinned(metrics, every=0.3) == [
        {"step": 2, "epoch": 0.2, "mi": 1.0},
        {"step": 5, "epoch": 0.5, "mi": 2.0, "knn": 0.5},
        {"step": 6, "epoch": 0.6, "mi": 3.0},
    ]


def test_a_record_reads_back_and_names_no_path(tmp_path):
    config = plain(root="/home/somebody/data", seed=3)
    metrics = [line(1, mi=1 / 3), line(2, "watch", knn=0.25)]
    results = {"step": 2, "epochs": 1, "images": 20, "seconds": 1.23456789, "last": {"mi": 1.0}}
    run = Run(tmp_path, "train", config, {"device": "cpu"}, metrics, results)
    record = record_of("first", run, every=1.0)
    assert record["seed"] == 3 and record["config"]["data"]["root"] is None
    assert record["results"] == {"step": 2, "epochs": 1, "images": 20, "seconds": 1.2346}
    path = write_record(record, tmp_path / "records")
    assert read_records(tmp_path / "records") == {"first": record}
    text = path.read_text(encoding="utf-8")
    assert "somebody" not in text and '{"step": 1, "epoch": 0.1, "mi": 0.33333}' in text


def test_a_record_of_a_long_log_is_of_every_line(tmp_path, monkeypatch):
    log = RunLog(tmp_path / "run", kind="train", config=plain())
    for step in range(1, 60):
        log.log(line(step, mi=step / 7, images_per_second=100.0 + step % 9))
        log.log(line(step, "watch", knn=step / 60))
    whole = record_of("run", read_run(log.directory), every=0.5)
    monkeypatch.setattr("flatnce.pretrain.runs.log.MOST", 5)
    run = read_run(log.directory)
    assert len(run.metrics) < 20 and record_of("run", run, every=0.5) == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"is damaged, .* \(Input data was truncated\); remove it"),
        ("[]", r"is damaged, .* \(Expected object, got array\); remove it"),
        ('{"format_version": 99}', "reads up to 2; upgrade"),
    ],
)
def test_another_file_among_the_records_is_named(tmp_path, text, words):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=rf"other\.json.*{words}"):
        read_records(tmp_path)


def test_the_ess_of_older_runs_and_records_is_the_papers_form(tmp_path):
    log = RunLog(tmp_path / "run", kind="train", config=plain())
    log.log({"kind": "train", "step": 1, "epoch": 0.5, "ess": 0.4})
    log.log({"kind": "train", "step": 2, "epoch": 1.0, "ess": 0.3, "ess_paper": 0.35})
    run = read_run(log.directory)
    assert [line["ess_paper"] for line in run.metrics] == [0.4, 0.35]
    record = record_of("old", run, every=0.1)
    for line in record["metrics"]:
        del line["ess_paper"]
    write_record(record, tmp_path / "records")
    read = read_records(tmp_path / "records")["old"]["metrics"]
    assert [line["ess_paper"] for line in read] == [line["ess"] for line in read] == [0.4, 0.3]
