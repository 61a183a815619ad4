"""The losses of every host library over two gloo processes, against one on the whole batch."""

import pytest
import torch

import integration_processes

CASES = ["lightly", "lightly, bank", "metric learning", "metric learning, memory"]
CASES += ["sentences, one", "sentences, all"]
CASES += [f"open_clip {flags}" for flags in integration_processes.FLAGS]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_gradient_of_one(case, rank, results):
    if case not in results[rank]:
        pytest.skip("its host library is not installed")
    found, alone = dict(results[rank][case]), dict(results[2][case])
    assert float(alone["weight"].norm()) > 0.01
    here, whole = found.pop("here", None), alone.pop("here", None)
    if case.startswith("open_clip"):
        local = case.startswith("open_clip (True")
        assert torch.allclose(here, whole, rtol=1e-10, atol=1e-10) is not local
    if case.startswith("metric"):
        # The wrapper multiplies by the number of processes; the mean of gradients divides by it.
        alone["loss"] = 2 * alone["loss"]
    torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-10)
