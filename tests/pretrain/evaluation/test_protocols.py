"""The protocols on digits and on tiny sets: what they measure, and what their results say."""

import dataclasses
import json
from functools import partial
from unittest.mock import MagicMock, Mock

import pytest
import torch

from export_subjects import MEAN, STD, make_trained
from flatnce.own_code import Named
from flatnce.pretrain.data import MissingData, label_fraction, load
from flatnce.pretrain.evaluation import (
    PROTOCOLS,
    DescentConfig,
    FinetuneConfig,
    Options,
    protocols,
)
from flatnce.pretrain.evaluation.probe import drawn
from flatnce.pretrain.evaluation.protocols import (
    TRANSFER_SETS,
    Bench,
    _usual_fractions,
    evaluate,
    plan,
)
from flatnce.pretrain.runs import log
from pictures import pictures
from tiny_sets import install_tiny, write_folder

QUICK = Options(epochs=1, rates=(1e-3,), pool=100)


trained = partial(make_trained, step=0, crop_least=0.5, flip=0.0, jitter=0.0)


@pytest.fixture(scope="module")
def results():
    """Every protocol on digits."""
    bench = Bench(trained(), QUICK)
    return list(evaluate(bench, [*plan(["all"], "digits"), ("transfer-linear", "digits")]))


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    install_tiny(monkeypatch, "cifar10", tmp_path)
    return str(tmp_path)


def run(protocol, data="digits", encoder=None, **options):
    """The results of one protocol, quickly."""
    bench = Bench(encoder or trained(), dataclasses.replace(QUICK, **options))
    return list(evaluate(bench, [(protocol, data)]))


def named(results, name):
    return next(result for result in results if result["protocol"]["name"] == name)


def test_every_protocol_has_results(results):
    # To transfer to the own set by fine-tuning would be the same again.
    assert {result["name"] for result in results} == set(PROTOCOLS) - {"transfer-finetune"}
    assert all(result["data"] == "digits" and result["seconds"] > 0 for result in results)
    # Both votes are of one computation and have its time.
    both = [named(results, f"knn, k = {k}")["seconds"] for k in (200, 20)]
    assert both[0] <= both[1]
    assert named(results, "knn, k = 200")["top1"] > 0.7
    assert named(results, "knn, k = 20")["top1"] > 0.9
    assert named(results, "linear")["top1"] > 0.95


def test_results_are_plain_data_and_say_what_they_were_read_from(results):
    assert json.loads(json.dumps(results))
    for result in results:
        if result["name"] == "mi":
            continue
        low, high = result["interval"]
        assert 0 <= low < result["top1"] < high <= 1 and result["top1"] <= result["top5"]
        assert result["test_images"] == 359
        protocol = result["protocol"]
        assert protocol["train"] == {"split": "train", "images": 1438}
        assert protocol["test"] == {"split": "test", "images": 359}
        assert protocol["images"] == {
            "size": 8,
            "resize": 8,
            "mean": (MEAN,),
            "std": (STD,),
            "channels": "none",
        }


def test_few_labels_are_the_same_images_for_both_starts(results):
    labels = load("digits").labels
    for fraction, title in ((0.01, "1 %"), (0.1, "10 %")):
        semi = named(results, f"semi, {title} of labels, 1 epoch")["protocol"]
        baseline = named(results, f"supervised, {title} of labels, 1 epoch")["protocol"]
        assert semi["start"] == "pretrained" and baseline["start"] == "scratch"
        assert semi["labels"] == baseline["labels"]
        assert semi["labels"]["drawn"] == drawn(label_fraction(labels, fraction, 0))
        assert semi["fitted_on"] == semi["labels"]["drawn"]["count"]


def test_mutual_information_is_of_test_images_and_calibrated_on_others(results):
    found = named(results, "mi")
    assert found["pool"] == 100 and 0 < found["pool_mi"] < found["pool_ceiling"]
    protocol = found["protocol"]
    assert protocol["pool"]["split"] == "test" and protocol["chosen_on"]["split"] == "train"
    assert protocol["views"]["seed"] != 0  # none that training drew


def test_a_neighbourhood_larger_than_the_set_is_all_of_it_and_says_so(cifar10):
    (found,) = run("knn", "cifar10", trained(channels=3, size=32), root=cifar10)
    assert found["protocol"]["name"] == "knn, k = 15 (all training samples)"
    assert found["protocol"]["neighbours_asked"] == 20


def test_a_grey_encoder_is_carried_over_to_colour(cifar10):
    for protocol in ("transfer-linear", "transfer-finetune"):
        (found,) = run(protocol, "cifar10", root=cifar10, validation=0.3)
        images = found["protocol"]["images"]
        assert images["channels"] == "colour to grey by luma (BT.601)" and images["size"] == 8
        assert found["test_images"] == 3
    # On another set than its own the protocol's crops and flips apply.
    assert found["protocol"]["flip"] == 0.5 and found["protocol"]["crop_least"] == 0.08


def test_sizes_are_options():
    bench = Bench(trained(), Options(size=12, resize=16))
    assert bench.features("digits", "test").features.shape == (359, 128)
    assert (bench.images("digits")["size"], bench.images("digits")["resize"]) == (12, 16)


def test_a_result_at_another_size_than_that_of_training_says_so():
    # It would replace the usual result otherwise, and be compared with those of other runs.
    names = {
        (8, None): "knn, k = 20",
        (12, None): "knn, k = 20, size 12",
        (None, 16): "knn, k = 20, resize 16",
        (12, 16): "knn, k = 20, size 12, resize 16",
    }
    for (size, resize), name in names.items():
        (found,) = run("knn", neighbours=(20,), size=size, resize=resize)
        assert found["protocol"]["name"] == name


def test_a_folder_of_images(tmp_path):
    for part, count in (("train", 6), ("val", 2)):
        write_folder(tmp_path / part, {"cat": count, "dog": count})
    bench = Bench(trained(channels=3), Options(workers=0))
    pairs = plan(["linear"], f"{tmp_path}/")
    (found,) = evaluate(bench, pairs)
    assert found["test_images"] == 4 and found["protocol"]["train"]["images"] == 12


def own_items(*labels):
    """Images of an own set with these labels, as the name of a config."""
    return Named(
        [(image, label) for image, label in zip(pictures(len(labels)), labels, strict=True)]
    )


def test_class_numbers_may_have_gaps(monkeypatch):
    encoder = trained(channels=3, data=own_items(*[3, 7] * 5))
    (found,) = run("linear", encoder.config.data.data, encoder, workers=0)
    assert found["test_images"] == 2
    encoder = trained(channels=3, data=own_items(*[7] * 10))
    with pytest.raises(ValueError, match="it has one class, 7"):
        run("linear", encoder.config.data.data, encoder, workers=0)


def test_classes_that_only_the_test_part_has_are_named():
    encoder = trained(channels=3, data=own_items(0, 1), test_data=own_items(0, 5))
    said = r"protocol='knn': .* test .* the class 5, and the training part has 0, 1; number both"
    with pytest.raises(ValueError, match=said):
        run("knn", encoder.config.data.data, encoder, workers=0)


class Items(list):
    """Labelled items whose classes have names, as those of a folder that torchvision reads."""

    def __init__(self, *classes):
        super().__init__(own_items(*range(len(classes))).value)
        self.classes = classes


def test_classes_that_are_numbered_otherwise_in_the_test_part_are_named():
    parts = [Items("ant", "bee", "cat"), Items("ant", "cat"), Items("ant", "bee")]
    train, wrong, right = map(Named, parts)
    said = r"the test part .* the classes ant, cat, and the training part has ant, bee, cat; numb"
    with pytest.raises(ValueError, match=said):
        run("knn", train, trained(channels=3, data=train, test_data=wrong), workers=0)
    for fewer in (right, own_items(0, 1)):
        found = run("knn", train, trained(channels=3, data=train, test_data=fewer), workers=0)
        assert found[0]["test_images"] == 2


def test_a_test_part_that_was_trained_on_is_said_to_be_so():
    found = run("knn", encoder=trained(split="test"))
    part, note = log.tested_on(found)
    assert part == "On the test set" and "the encoder was pretrained on them too" in note
    assert log.tested_on(run("knn")) == ("On the test set", "")


def test_what_is_missing_is_one_error_before_any_work_that_names_it_all(tmp_path):
    with pytest.raises(MissingData, match=r"3 of 4 .*cifar10, flowers102, \./none/\."):
        plan(["knn"], "digits", ["digits", "cifar10", "flowers102", "./none/"], root=str(tmp_path))


def test_transfer_is_on_the_papers_sets_or_on_those_that_are_named(tmp_path, cifar10):
    pairs = plan(["transfer"], "digits", ["cifar10"], root=cifar10)
    assert pairs == [("transfer-linear", "cifar10"), ("transfer-finetune", "cifar10")]
    with pytest.raises(MissingData, match=", ".join(TRANSFER_SETS)):
        plan(["transfer"], "digits", root=str(tmp_path / "none"))


def test_what_cannot_be_evaluated_is_named(monkeypatch):
    monkeypatch.setattr("flatnce.pretrain.evaluation.protocols.missing_sets", lambda *_: {})
    for names, words in (
        (["lineer"], "did you mean 'linear'"),
        (["knn", "zzz"], "protocol='zzz' is unknown; choose one of knn"),
        ([], "name one or more of knn"),
    ):
        with pytest.raises(ValueError, match=words):
            plan(names, "digits", ["cifar10"])


def test_all_is_every_protocol_on_the_runs_own_set_and_has_no_transfer(cifar10):
    own = [name for name in PROTOCOLS if not name.startswith("transfer-")]
    assert plan(["all"], "digits") == [(name, "digits") for name in own]
    pairs = plan(["all", "transfer"], "digits", ["cifar10"], root=cifar10)
    assert sorted(pairs) == sorted((name, "cifar10") for name in PROTOCOLS)


@pytest.mark.parametrize(
    "settings, words",
    [
        (lambda: Options(fraction=(0.0,)), "fraction="),
        (lambda: Options(fraction=()), r"fraction=\(\) is empty; give"),
        (lambda: Options(neighbours=(0,)), "neighbours="),
        (lambda: Options(neighbours=()), r"neighbours=\(\) is empty; give"),
        (lambda: Options(epochs=0), "epochs=0"),
        (lambda: Options(batch_size=0), "batch_size=0"),
        (lambda: Options(size=0), "size=0"),
        (lambda: Options(rates=(-1.0,)), "rates="),
        (lambda: Options(pool=1), "pool=1"),
        (lambda: DescentConfig(0, 1), "epochs=0"),
        (lambda: DescentConfig(1, 0), "batch_size=0"),
        (lambda: DescentConfig(1, 1, optimizer="lars"), "optimizer='lars'"),
        (lambda: DescentConfig(1, 1, rates=()), r"rates=\(\)"),
        (lambda: FinetuneConfig(8, rates=(0.0,)), "positive"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises((ValueError, MissingData), match=words):
        settings()


def test_the_settings_are_in_the_result():
    (found,) = run("finetune", seed=3, epochs=2, batch_size=50, validation=0.2)
    expected = {"seed": 3, "epochs": 2, "batch_size": 50, "rate": 1e-3, "optimizer": "nadam"}
    assert {name: found["protocol"][name] for name in expected} == expected
    (default,) = run("finetune", rates=None)
    assert default["protocol"]["rate"] == 5e-4  # few images: the paper's 5e-5 is too low


@pytest.mark.parametrize(
    ("sizes", "shares"), [((500, 60), (0.01, 0.1)), ((40, 12), (0.1,)), ((4, 9), (0.125,))]
)
def test_the_usual_shares_of_the_labels_leave_every_class_one(sizes, shares):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    assert _usual_fractions(labels)[0] == shares
    for share in shares:
        chosen = labels[label_fraction(labels, share, 0)]
        assert chosen.unique().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("sizes", "left_out"),
    [
        ((500, 60), None),
        ((40, 12), "1 % of the labels, because the smallest class has 12 samples"),
        ((4, 9), "1 % and 10 % of the labels, because the smallest class has 4 samples"),
    ],
)
def test_a_share_that_is_too_small_for_a_class_is_said_to_be_left_out(
    sizes, left_out, monkeypatch
):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    images = MagicMock(labels=labels)
    monkeypatch.setattr(protocols, "_finetune", lambda *_, **__: {"protocol": {}})
    bench = Mock(Bench, options=Options(), load=lambda *_: images)
    said = {one["protocol"]["labels"].get("left_out") for one in protocols.semi(bench, "x")}
    assert said == {left_out and f"{left_out} and would keep none"}
    bench.options = Options(fraction=(0.5,))
    assert all("left_out" not in one["protocol"]["labels"] for one in protocols.semi(bench, "x"))
