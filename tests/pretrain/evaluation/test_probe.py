"""The linear probe against scikit-learn's, and what it may and may not look at."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from flatnce.pretrain.data import load
from flatnce.pretrain.evaluation import Features, extract, linear_probe, measure, probe_by_descent
from flatnce.pretrain.evaluation import probe as probe_module
from flatnce.pretrain.evaluation.probe import (
    FORMS,
    DescentConfig,
    Regression,
    choose,
    validation_split,
)
from flatnce.pretrain.models import backbone


@pytest.fixture(scope="module")
def fixed():
    """Fixed features: digits through a small network that was never trained."""
    torch.manual_seed(0)
    network = backbone("small", channels=1)
    return tuple(extract(network, load("digits", part), size=8) for part in ("train", "test"))


@pytest.fixture(scope="module")
def standardised(fixed):
    train, test = (part.features.double().numpy() for part in fixed)
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test)


def blobs(n=120, width=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = 1.5 * torch.randn(classes, width, generator=generator)
    x = centres[labels] + torch.randn(n, width, generator=generator)
    return Features(x, labels, tuple("abcdefghij"[:classes]))


@pytest.mark.parametrize(
    "regularisation", [1.0, 1e-2, *(pytest.param(one, marks=pytest.mark.slow) for one in (1e-4,))]
)
def test_its_minimum_is_scikit_learns(fixed, standardised, regularisation):
    train, _ = fixed
    fit = Regression(train).fit(regularisation, tolerance=1e-8)
    theirs = LogisticRegression(
        C=1 / (regularisation * len(train)), solver="newton-cholesky", tol=1e-10, max_iter=20_000
    )
    theirs.fit(standardised[0], train.labels.numpy())
    shares = theirs.predict_proba(standardised[0])[np.arange(len(train)), train.labels]
    penalty = 0.5 * regularisation * np.square(theirs.coef_).sum()
    assert fit.loss == pytest.approx(penalty - np.log(shares).mean(), rel=1e-8)
    # At the least regularisation the classes are separated, and the iterations may end before it.
    assert fit.converged or regularisation <= 1e-4
    if fit.converged:
        np.testing.assert_allclose(fit.weight.T, theirs.coef_, atol=1e-5)
        centred = fit.bias - fit.bias.mean()  # a constant added to all of them changes nothing
        wanted = theirs.intercept_ - theirs.intercept_.mean()
        np.testing.assert_allclose(centred, wanted, atol=1e-5)


def test_the_choice_and_the_refit_agree_with_scikit_learn(fixed, standardised):
    train, test = fixed
    found = linear_probe(train, test)
    rest, held = (part.numpy() for part in validation_split(train.labels, 0.1, 0))
    labels = train.labels.numpy()
    raw = train.features.double().numpy()
    scaler = StandardScaler().fit(raw[rest])
    for tried in found.protocol["regularisation_tried"][1:6]:
        theirs = LogisticRegression(C=1 / (tried["regularisation"] * len(rest)), max_iter=5_000)
        theirs.fit(scaler.transform(raw[rest]), labels[rest])
        assert theirs.score(scaler.transform(raw[held]), labels[held]) == pytest.approx(
            tried["validation"], abs=0.01
        )
    best = max(tried["validation"] for tried in found.protocol["regularisation_tried"])
    chosen = found.protocol["regularisation"]
    assert {"regularisation": chosen, "validation": best} in found.protocol["regularisation_tried"]
    assert found.protocol["fitted_on"] == len(train)
    assert measure(found.scores, test.labels)["top1"] > 0.95


def test_the_labels_of_the_test_images_are_not_looked_at():
    train, test = blobs(), blobs(seed=1)
    wrong = Features(test.features, 2 - test.labels)
    for probe in (linear_probe, probe_by_descent):
        assert torch.equal(probe(train, test).scores, probe(train, wrong).scores)


def test_convergence_is_checked_and_told(fixed, monkeypatch):
    train, _ = fixed
    with monkeypatch.context() as patched:
        patched.setattr(probe_module, "MOST_ITERATIONS", 3)
        few = Regression(train).fit(1e-3)
    assert not few.converged and few.iterations == 3
    done = Regression(train).fit(1e-3)
    assert done.converged and done.gradient < 1e-5 and done.loss < few.loss


def test_blocks_and_a_warm_start_lead_to_the_same_minimum(monkeypatch):
    train = blobs()
    expected = Regression(train).fit(1e-3, tolerance=1e-9)
    monkeypatch.setattr(probe_module, "BLOCK", 60)  # ten rows at a time
    monkeypatch.setattr(probe_module, "COPIED", 1)
    regression = Regression(train)
    warm = regression.fit(1e-3, start=regression.fit(10.0), tolerance=1e-9)
    torch.testing.assert_close(warm.weight, expected.weight, atol=1e-6, rtol=0)


def test_constant_and_repeated_features_do_no_harm():
    train = blobs()
    odd = torch.cat([train.features, torch.full((120, 1), 7.0), train.features[:, :1]], dim=1)
    fit = Regression(Features(odd, train.labels)).fit(0.0)
    assert fit.converged and bool(fit.weight.isfinite().all())
    assert fit.weight[6].abs().max() < 1e-6


def test_of_equal_accuracy_the_lower_loss_decides():
    sharpness = {3.0: 1.0, 2.0: 9.0, 1.0: torch.nan}  # diverged

    def score(part, aside):
        assert len(part) == 108 and len(aside) == 12
        for value in sharpness.values():
            yield value * torch.nn.functional.one_hot(aside.labels, 3).double()

    best, protocol = choose("rate", list(sharpness), blobs(), 0.1, 7, score)
    assert best == 2.0
    assert protocol["chosen_on"]["held_out"]["count"] == 12 and protocol["chosen_on"]["seed"] == 7
    with pytest.raises(ValueError, match="diverged with each"):
        sharpness = {1.0: torch.nan, 2.0: torch.nan}
        choose("rate", list(sharpness), blobs(), 0.1, 7, score)


def test_the_held_out_part_is_a_tenth_and_apart():
    labels = blobs().labels
    rest, held = validation_split(labels, 0.1, seed=3)
    assert len(held) == 12 and sorted([*rest.tolist(), *held.tolist()]) == list(range(120))
    assert torch.bincount(labels[held]).tolist() == [4, 4, 4]
    assert not torch.equal(held, validation_split(labels, 0.1, seed=4)[1])


def test_a_class_of_one_image_keeps_it_and_one_of_two_gives_one():
    rest, held = validation_split(torch.tensor([0, 1, 1, 2, 2, 2]), 0.01, seed=0)
    assert len(held) == 2 and 0 in rest.tolist()
    with pytest.raises(ValueError, match="no class has two images"):
        validation_split(torch.arange(4), 0.1, seed=0)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_descent_learns(form):
    train, test = blobs(300), blobs(300)
    found = probe_by_descent(train, test, FORMS[form])
    assert measure(found.scores, test.labels)["top1"] > 0.85
    assert found.protocol["epochs"] == FORMS[form].epochs
    assert found.protocol["rate"] in FORMS[form].rates
    assert len(found.protocol["rate_tried"]) == len(FORMS[form].rates)


def test_a_name_in_place_of_the_config_of_descent_is_refused():
    plain = getattr(probe_by_descent, "__wrapped__", probe_by_descent)  # without checks of types
    with pytest.raises(TypeError, match=r"config='long' must be a DescentConfig.*FORMS\['long'\]"):
        plain(blobs(), blobs(), "long")


def test_descent_is_the_same_twice_and_another_with_another_seed():
    train, test = blobs(), blobs()
    first, again, other = (
        probe_by_descent(train, test, DescentConfig(10, 32, rates=(0.1,)), seed=seed)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.scores, again.scores)
    assert not torch.equal(first.scores, other.scores)


def test_a_rate_that_diverges_is_not_chosen():
    train = blobs()
    huge = Features(1e20 * train.features, train.labels)
    found = probe_by_descent(huge, huge, DescentConfig(10, 120, rates=(1e25, 1e-41)))
    assert found.protocol["rate"] == 1e-41


def test_the_last_images_of_an_epoch_are_used(monkeypatch):
    loss = Mock(wraps=probe_module.cross_entropy)
    monkeypatch.setattr(probe_module, "cross_entropy", loss)
    probe_by_descent(blobs(100), blobs(), DescentConfig(2, 40, rates=(0.1,)))
    assert [len(call.args[1]) for call in loss.call_args_list] == [40, 40, 20] * 2


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: linear_probe(blobs(), blobs(), regularisations=[]), "one or more"),
        (lambda: linear_probe(blobs(), blobs(), regularisations=[-1.0]), "at least 0"),
        (lambda: linear_probe(blobs(), blobs(width=5)), "rows of width 6"),
        (lambda: linear_probe(blobs(), blobs(), validation=1.0), "validation=1.0"),
        (lambda: Regression(blobs()).fit(-1.0), "regularisation=-1.0"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
