"""Losses, gradients and diagnostics equal those of the version before the rebuild."""

from pathlib import Path

import numpy as np
import pytest

import same_numbers
from layouts import NAMES

SAVED = same_numbers.load(Path(same_numbers.__file__).with_suffix(".npz"))


def compare(found: dict[str, np.ndarray]) -> None:
    for key in sorted(found.keys() & SAVED.keys()):
        saved = SAVED[key].reshape(found[key].shape)
        np.testing.assert_allclose(found[key], saved, rtol=1e-12, atol=1e-12, err_msg=key)


def test_the_drop_in_cross_entropy_is_the_same():
    compare(same_numbers.of_logits())


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_has_the_same_losses_gradients_and_diagnostics(name):
    compare(same_numbers.layout(name))


@pytest.mark.parametrize("call", same_numbers.module_calls())
@pytest.mark.parametrize("name", same_numbers.OBJECTIVES)
def test_an_objective_has_the_same_losses_gradients_and_diagnostics(name, call):
    compare(same_numbers.modules(name, call))


def test_every_case_was_saved():
    names = {key.partition("; ")[0] for key in SAVED}
    calls = {
        f"{name}, {call}"
        for name in same_numbers.OBJECTIVES
        for call in same_numbers.module_calls()
    }
    assert {*NAMES, *calls} <= names
