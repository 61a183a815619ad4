"""The first steps of ``flatnce train digits`` on the CPU, as flatnce 0.1.0 took them."""

import pytest
import torch

from flatnce.pretrain import preset, train

LOSSES = [3.6019392, 3.1133935, 3.0417125, 2.4393725, 2.2825544, 2.298053, 2.4547725, 1.929765]
LOSSES += [2.1844053, 1.8850632, 1.9595432, 1.8727622, 1.832278, 1.9203882, 2.0571637, 2.0171456]
LOSSES += [1.7608037, 1.7680326, 1.8885694, 1.6573079]
"""The losses of the first 20 steps with seed 0."""


def test_the_first_twenty_losses_are_those_of_the_version_before(tmp_path):
    settings = {"log_every": 1, "watch_every": 0.0, "tensorboard": False, "epochs": 1}
    config = preset("digits").override(device="cpu", **settings)
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(config, tmp_path / "run", report=found.append)
    finally:
        torch.set_num_threads(threads)
    losses = [line["loss"] for line in found if line["kind"] == "train"]
    assert losses[:20] == pytest.approx(LOSSES, abs=1e-5)
