import pytest

from flatnce.pretrain import TrainingFailed, preset
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training.tune import tune

CONFIG = preset("digits").override(device="cpu", pool=64, batch_size=64)


def test_the_rate_with_the_best_knn_is_taken_and_a_failure_survived(tmp_path):
    found = tune(CONFIG, [0.05, 0.4, 1e30], tmp_path)
    scores = {}
    for rate in (0.05, 0.4):
        scores[rate] = read_run(tmp_path / f"rate-{rate:g}").results["watch"]["knn"]
    assert {trial.rate: trial.score for trial in found.trials[:2]} == scores
    assert found.rate == max(scores, key=scores.get)
    assert found.at_the_edge == (found.rate == 0.05)
    failed = found.trials[2]
    assert failed.score is None and "training stopped" in failed.failure


def test_trials_are_at_the_base_batch_where_the_rate_is_not_scaled(tmp_path):
    found = tune(CONFIG, [0.4], tmp_path)
    run = read_run(tmp_path / "rate-0.4")
    assert run.config["run"]["batch_size"] == 256
    lines = [line for line in run.metrics if line["kind"] == "train"]
    assert max(line["rate"] for line in lines) <= 0.4
    assert not found.at_the_edge  # of a single one nothing can be said


def test_no_rate_that_works_is_a_failure_in_words(tmp_path):
    with pytest.raises(TrainingFailed, match="none of the rates 1e\\+30"):
        tune(CONFIG, [1e30], tmp_path)


def test_no_rates_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rates is empty"):
        tune(CONFIG, [], tmp_path)
