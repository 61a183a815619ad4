"""Two gloo processes equal one process on the whole batch, in value and gradient.

Everything is run once, by two processes, the first of which also runs alone; see processes.py.
"""

import math
import re

import pytest
import torch
from torch import Tensor

import processes
import reference

EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[dict, dict, dict]:
    """Results of the first and the second of two processes, and of one process alone."""
    return processes.results_of(processes.__file__, tmp_path_factory)


def numbers(found: dict) -> dict[str, Tensor]:
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


# --- One loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(processes.LAYOUTS))
@pytest.mark.parametrize("reader", list(processes.READERS))
@pytest.mark.parametrize("kernel", processes.KERNELS)
def test_two_processes_have_the_loss_and_the_gradient_of_one(layout, reader, kernel, results):
    first, second, alone = (found[f"{layout}; {reader}; {kernel}"] for found in results)
    torch.testing.assert_close(first, alone, **EXACT)
    torch.testing.assert_close(second, alone, **EXACT)


# --- Training under DistributedDataParallel ------------------------------------------------------

GATHERED = [name for name in processes.OBJECTIVES if name != "controlled apart"]


@pytest.mark.parametrize("objective", GATHERED)
def test_two_processes_train_like_one(objective, results):
    first, second, alone = (numbers(found[objective]) for found in results)
    torch.testing.assert_close(first, alone, **EXACT)
    torch.testing.assert_close(second, alone, **EXACT)


@pytest.mark.parametrize("objective", ["controlled", "controlled apart"])
def test_the_controllers_beta_is_the_same_everywhere(objective, results):
    first, second, _ = (found[objective]["temperatures"] for found in results)
    assert torch.equal(first, second)
    assert len(set(first.tolist())) == processes.STEPS


# --- One temperature for all processes -----------------------------------------------------------


def test_a_temperature_learned_without_gathering_is_the_same_everywhere(results):
    slopes = []
    for rank in (0, 1):
        loss_fn = processes.TEMPERATURES["learned"]()
        loss_fn(*processes.noisy(rank, 0)).backward()
        slopes.append(next(loss_fn.parameters()).grad)
    assert float((slopes[0] - slopes[1]).abs()) > 0.01  # alone they would differ
    first, second, _ = (found.get("temperature learned") for found in results)
    assert torch.equal(first, second)
    torch.testing.assert_close(first[0], torch.stack(slopes).mean())


@pytest.mark.parametrize("kind", ["learned", "controlled"])
def test_a_process_whose_batch_has_no_negatives_keeps_the_temperature_of_the_others(kind, results):
    first, second = (found[f"temperature {kind}, single row"] for found in results[:2])
    assert torch.equal(first, second)
    assert float(first[-1]) != float(first[0])


def test_without_gradient_a_learned_temperature_waits_for_no_other_process(results):
    assert float(results[0]["by itself"]) > 0


def test_an_undefined_gradient_counts_as_zero_in_the_mean_over_processes(results):
    assert [float(found["undefined gradient"]) for found in results[:2]] == [0.5, 0.5]


# --- Monitor -------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", GATHERED)
def test_the_monitor_reduces_to_the_numbers_of_one_process(objective, results):
    first, second, alone = (dict(found[objective]["monitor"]) for found in results)
    assert first == second
    # Uniformity looks at pairs of one process's samples; see the next test.
    assert alone.pop("uniformity") != first.pop("uniformity")
    # The unit of the ESS's moments is that of one process's rows, too.
    assert 0 < alone.pop("ess") < 1 and 0 < first.pop("ess") < 1
    assert first == pytest.approx(alone, rel=1e-9, abs=1e-12)


def test_the_ess_of_two_processes_is_the_ratio_of_their_sums(results):
    z = [reference.unit(processes.encoder()(processes.view(number)).detach()) for number in (1, 2)]
    scores = torch.cat(z) @ torch.cat(z).T / 0.1
    rows = [[row[j] for j in range(12) if (j - i) % 6] for i, row in enumerate(scores)]
    shares = ([0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11])
    moments = [reference.ess_moments([rows[i] for i in share]) for share in shares]
    first, second = (math.fsum(each) for each in zip(*moments, strict=True))
    assert results[0]["ess apart"] == pytest.approx(first / second, rel=1e-10)
    assert results[2]["ess apart"] == pytest.approx(reference.population_ess(rows), rel=1e-10)


def test_uniformity_is_that_of_each_process_pooled(results):
    z = processes.encoder()(processes.view(1)).detach()
    potentials = [math.exp(reference.uniformity(half)) for half in (z[:3], z[3:])]
    expected = math.log(reference.mean(potentials))
    assert results[0]["potentials apart"] == pytest.approx(expected, rel=1e-10)
    assert results[2]["potentials apart"] == pytest.approx(
        float(reference.uniformity(z)), rel=1e-10
    )


def test_processes_that_took_different_numbers_of_steps_are_weighed_by_them(results):
    first, second, alone = (found["steps"] for found in results)
    assert first == second == pytest.approx(alone, rel=1e-12)


def test_a_process_without_a_step_reads_those_of_the_others(results):
    first, second, alone = (found["steps elsewhere"] for found in results)
    assert {"loss", "uniformity", "effective_rank"} <= set(alone[0])
    assert alone[1]["flatnce/loss"] == alone[0]["loss"] and alone[2] == {}
    for one, two, whole in zip(first, second, alone, strict=True):
        assert one == two == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_fault_of_one_process_is_raised_on_all(place, results):
    assert results[place]["fault elsewhere"].startswith("the embeddings")


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(processes.UNEVEN))
@pytest.mark.parametrize("rank", [0, 1])
def test_unequal_batches_are_refused_on_every_process(layout, rank, results):
    said = results[rank][f"uneven {layout}"]
    assert "has different shapes on different ranks (rank 0: (4" in said
    assert re.search(r"rank 1: \(3,( \d+)?\)", said)  # the shape that was given
    assert "use drop_last=True in the loader, or pad the last batch" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_second_derivatives_over_several_processes_are_refused(rank, results):
    said = results[rank]["second derivative"].split("; ")
    assert len(said) == 2
    assert all(one.startswith("trying to differentiate twice") for one in said)


def test_after_a_refusal_the_processes_are_still_in_step(results):
    first, _, alone = results
    torch.testing.assert_close(first["after"], alone["two views; flatnce; dense"], **EXACT)
