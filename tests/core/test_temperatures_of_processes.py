"""One temperature for several processes: nobody's drifts away, gathered or not, lonely or not."""

import pytest
import torch

from forked import run_forked

# What two processes do in turns of: name, temperature, rows of this process's batch.
TWO_PROCESSES = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from flatnce import EssController, FlatNCE, LearnedTemperature
from flatnce.integrations.lightly import FlatNCELoss
from flatnce.core.objectives import Objective

torch.set_num_threads(1)
folder = sys.argv[1]
STEPS, ROWS = 4, 5

def batches(rank, step, rows):
    chance = torch.Generator().manual_seed(10 * step + rank)
    z = torch.randn(rows, 6, generator=chance, dtype=torch.float64)
    noise = torch.randn(rows, 6, generator=chance, dtype=torch.float64)
    return z.requires_grad_(), z.detach() + (0.2 + rank) * noise

def train(loss_fn, rank, rows):
    found, optimizer = [], None
    parameters = list(loss_fn.parameters())
    if parameters:
        optimizer = torch.optim.SGD(parameters, lr=0.5)
    for step in range(STEPS):
        loss_fn(*batches(rank, step, rows(step))).backward()
        if optimizer is not None:
            found.append(parameters[0].grad.clone())
            optimizer.step()
            optimizer.zero_grad()
        found.append(torch.as_tensor(loss_fn.temperature).detach())
    return torch.stack(found)

def slopes():
    # What each process alone would give the temperature in the first step.
    found = []
    for rank in (0, 1):
        temperature = LearnedTemperature(0.2).double()
        FlatNCE(temperature)(*batches(rank, 0, ROWS)).backward()
        found.append(temperature.log_beta.grad)
    return torch.stack(found)

def run(rank):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=60)
    dist.init_process_group("gloo", meeting, patience, world_size=2, rank=rank)
    learned = lambda: LearnedTemperature(0.2).double()
    controlled = lambda: EssController(0.4, rate=0.2, temperature_at_start=0.2)
    whole = lambda step: ROWS
    last_alone = lambda step: 1 if step == STEPS - 1 and rank == 1 else ROWS
    found = {
        "learned": train(FlatNCE(learned()), rank, whole),
        "learned, lonely": train(FlatNCELoss(learned()), rank, last_alone),
        "controlled, lonely": train(FlatNCELoss(controlled()), rank, last_alone),
    }
    with torch.no_grad():  # not collective: one process may look at a batch by itself
        if rank == 0:
            found["looked at"] = FlatNCE(learned())(*batches(0, 0, ROWS))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()

torch.save(slopes(), f"{folder}/slopes.pt")
processes.start_processes(run, nprocs=2, start_method="fork")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[dict, dict, torch.Tensor]:
    folder = tmp_path_factory.mktemp("temperatures")
    run_forked(TWO_PROCESSES, folder)
    first, second = (torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    return first, second, torch.load(folder / "slopes.pt", weights_only=True)


def test_a_temperature_learned_without_gathering_is_the_same_everywhere(found):
    first, second, slopes = found
    assert float((slopes[0] - slopes[1]).abs()) > 0.01  # alone they would part
    assert torch.equal(first["learned"], second["learned"])
    torch.testing.assert_close(first["learned"][0], slopes.mean())


@pytest.mark.parametrize("temperature", ["learned", "controlled"])
def test_a_process_whose_batch_has_no_negatives_keeps_the_others_temperature(temperature, found):
    first, second, _ = (
        part[f"{temperature}, lonely"] if isinstance(part, dict) else part for part in found
    )
    assert torch.equal(first, second)
    assert float(first[-1]) != float(first[0])


def test_without_gradient_a_learned_temperature_waits_for_nobody(found):
    assert float(found[0]["looked at"]) > 0
