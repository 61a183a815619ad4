"""On a GPU: runs side by side on streams are the runs alone, dropout included."""

import pytest
import torch
from torch import nn

from flatnce.runlog import read_run
from flatnce.train import learner, preset, sweep, train
from flatnce.train.sweep_lanes import Generators, Lane

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CUDA = torch.device("cuda", 0)
BASE = preset("digits").override(
    epochs=2, batch_size=64, log_every=11, watch_every=1.0, tensorboard=False, device="cuda"
)


def losses(directory):
    return [line["loss"] for line in read_run(directory).metrics if line["kind"] == "train"]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_runs_side_by_side_have_the_losses_of_runs_alone(dropout, monkeypatch, tmp_path):
    build = learner.build_encoder

    def forgetful(*arguments, **options):
        encoder = build(*arguments, **options)
        encoder.head = nn.Sequential(nn.Dropout(dropout), encoder.head)
        return encoder

    monkeypatch.setattr(learner, "build_encoder", forgetful)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    configs = {f"s{seed}": BASE.override(seed=seed) for seed in range(3)}
    configs["info"] = BASE.override(objective="infonce", batch_size=32)
    for name, config in configs.items():
        train(config, tmp_path / "alone" / name)
    notes = []

    def report(name, line):
        if line["kind"] == "note":
            notes.append(line["note"])

    runs = sweep(configs, tmp_path / "sweep", report=report)
    assert [run.state for run in runs] == ["done"] * 4, [run.failure for run in runs]
    assert not notes
    for name in configs:
        found, expected = losses(tmp_path / "sweep" / name), losses(tmp_path / "alone" / name)
        assert found == pytest.approx(expected, rel=2e-2), name
    assert losses(tmp_path / "sweep" / "s0") != losses(tmp_path / "sweep" / "s1")


def test_states_of_generators_do_not_mix_on_the_device():
    torch.manual_seed(1)
    one = Generators(CUDA)
    torch.manual_seed(2)
    two = Generators(CUDA)
    before = torch.cuda.get_rng_state(CUDA)
    expected = {}
    for seed in (1, 2):
        drawn = torch.Generator(CUDA).manual_seed(seed)
        expected[seed] = [torch.rand((), device=CUDA, generator=drawn).item() for _ in range(3)]
    found = {1: [], 2: []}
    for _ in range(3):
        for seed, own in ((1, one), (2, two)):
            with own.in_force():
                found[seed].append(torch.rand((), device=CUDA).item())
    assert found == expected
    assert torch.equal(torch.cuda.get_rng_state(CUDA), before)


def test_lanes_have_streams_of_their_own():
    lanes = [Lane(CUDA) for _ in range(8)]
    assert len({lane.stream.cuda_stream for lane in lanes}) == 8
    assert torch.cuda.default_stream(CUDA) not in [lane.stream for lane in lanes]
