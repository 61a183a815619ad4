"""On a GPU: runs side by side on streams are the runs alone, dropout included."""

import pytest
import torch

from flatnce.pretrain import preset, sweep, train
from flatnce.pretrain.fused_resnet import fuse_resnet
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.sweep import Generators, RunSlot
from flatnce.pretrain.training import state as training
from made_runs import with_dropout

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # pytest's own process has asked for the device, above.
    pytest.mark.filterwarnings("ignore:CUDA was in use before this sweep"),
]

CUDA = torch.device("cuda", 0)
BASE = preset("digits").override(
    epochs=2, batch_size=64, log_every=11, watch_every=1.0, tensorboard=False, device="cuda"
)


FORGETFUL = "digits, dropout"
CASES = {
    "digits": {},
    FORGETFUL: {},
    "resnet18, bfloat16": {
        "backbone": "resnet18",
        "precision": "bfloat16",
        "batch_size": 48,
        "epochs": 1,
    },
}


def losses(directory):
    return [line["loss"] for line in read_run(directory).metrics if line["kind"] == "train"]


@pytest.mark.parametrize("case", CASES)
def test_runs_side_by_side_are_bit_for_bit_the_runs_alone(case, monkeypatch, tmp_path):
    quick = []

    def noted(encoder):
        quick.append(fuse_resnet(encoder))
        return quick[-1]

    monkeypatch.setattr(training, "fuse_resnet", noted)
    if case == FORGETFUL:
        with_dropout(monkeypatch)
    base = BASE.override(**CASES[case])
    configs = {f"s{seed}": base.override(seed=seed) for seed in range(3)}
    configs["info"] = base.override(objective="infonce", batch_size=32)
    for name, config in configs.items():
        train(config, tmp_path / "alone" / name)
    notes = []

    def report(name, line):
        if line["kind"] == "note":
            notes.append(line["note"])

    runs = sweep(configs, tmp_path / "sweep", report=report)
    assert [run.state for run in runs] == ["done"] * 4, [run.failure for run in runs]
    assert not notes
    # Dropout is no part of what the fused pass knows; the others have its second stream.
    assert len(quick) == 8 and all((one is None) == (case == FORGETFUL) for one in quick)
    for name in configs:
        places = [tmp_path / kind / name for kind in ("sweep", "alone")]
        found, expected = (checkpoint.load(place / "checkpoints") for place in places)
        assert found.step == expected.step and found.weights.keys() == expected.weights.keys()
        for key, tensor in found.weights.items():
            assert torch.equal(tensor, expected.weights[key]), (name, key)
        seen = [losses(place) for place in places]
        assert seen[0] == seen[1] and len(seen[0]) > 1, name
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
    slots = [RunSlot(CUDA) for _ in range(8)]
    assert len({slot.stream.cuda_stream for slot in slots}) == 8
    assert torch.cuda.default_stream(CUDA) not in [slot.stream for slot in slots]
    # torch hands out its few streams again and again: none of those may be a slot's.
    aside = {torch.cuda.Stream(CUDA).cuda_stream for _ in range(64)}
    assert not aside & {slot.stream.cuda_stream for slot in slots}
