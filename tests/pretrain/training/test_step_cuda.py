"""Captured steps and optimizers on a GPU."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from flatnce.core import distributed
from flatnce.pretrain import preset
from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.training.loop import train_steps
from flatnce.pretrain.training.optim import build_optimizer, load_optimizer
from flatnce.pretrain.training.state import CudaGraphStep, Step, Training
from gpu import host_reads_forbidden
from made_runs import MOCO

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

CASES = {
    "simclr": {},
    "infonce, lars": {"objective": "infonce", "optimizer": "lars"},
    "moco, ess, adamw": MOCO,
    "learned temperature": {"learn_temperature": True, "precision": "bfloat16"},
    "scheduled temperature": {"temperature_end": 0.5},
    "resnet18, bfloat16": {"backbone": "resnet18", "precision": "bfloat16", "batch_size": 32},
}
every_case = pytest.mark.parametrize("case", CASES)


def training_of(case, tmp_path, **more):
    settings = {"precision": "float32", **CASES[case], **more}
    config = preset("digits").override(device="cuda", **settings)
    return Training(config, tmp_path, torch.device("cuda", 0))


def take(training, steps):
    per_epoch = training.steps_per_epoch
    while training.step < steps:
        epoch, done = divmod(training.step, per_epoch)
        for batch in training.images.loader.epoch(epoch, start=done):
            training.take_step(batch, epoch)
            if training.step == steps:
                break


@every_case
def test_recorded_steps_train_as_unrecorded_ones(case, tmp_path, monkeypatch):
    recorded, plain = training_of(case, tmp_path), training_of(case, tmp_path)
    assert isinstance(recorded._take_step, CudaGraphStep)
    plain._take_step = plain._take_step.step
    assert isinstance(plain._take_step, Step)
    take(recorded, 30)  # into the second epoch
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # as recorded steps have it
    take(plain, 30)
    assert recorded._take_step.graph is not None, recorded.notes
    one, two = recorded.monitor.compute(30), plain.monitor.compute(30)
    assert one["steps"] == two["steps"] == 30
    for name in ("loss", "ess", "gain", "temperature", "effective_rank"):
        assert one[name] == pytest.approx(two[name], rel=1e-2), name
    assert int(recorded.guard.taken) == 30
    # Work beside the step may add in another order; over 30 steps that grows to a few per cent.
    pairs = zip(recorded.learner.parameters(), plain.learner.parameters(), strict=True)
    distance = sum((a - b).detach().square().sum() for a, b in pairs).sqrt()
    start = training_of(case, tmp_path)
    moved = zip(recorded.learner.parameters(), start.learner.parameters(), strict=True)
    travelled = sum((a - b).detach().square().sum() for a, b in moved).sqrt()
    assert float(distance) < 0.2 * float(travelled)
    rates = [t.optimizer.param_groups[0]["lr"].item() for t in (recorded, plain)]
    assert rates[0] == pytest.approx(rates[1]) == pytest.approx(recorded.rate.at(29))


@pytest.fixture
def process_group(monkeypatch):
    """A group of one process that takes the code path of several, as NCCL needs a GPU for each."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(distributed, "is_active", lambda: True)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of weights for one channel
@pytest.mark.parametrize("case", ["simclr", "moco, ess, adamw", "resnet18, bfloat16"])
def test_steps_of_processes_are_recorded_and_read_nothing(
    case, tmp_path, process_group, monkeypatch
):
    recorded = training_of(case, tmp_path)
    assert isinstance(recorded.learner.called, DistributedDataParallel)
    plain = training_of(case, tmp_path)
    plain._take_step = plain._take_step.step
    take(recorded, 12)
    assert recorded._take_step.graph is not None, recorded.notes
    with host_reads_forbidden():
        take(recorded, 30)
    torch.cuda.synchronize()
    # As recorded steps have it, and on the stream on which DistributedDataParallel was made.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    with torch.cuda.stream(plain.stream):
        take(plain, 30)
    torch.cuda.synchronize()
    one, two = recorded.monitor.compute(30), plain.monitor.compute(30)
    for name in ("loss", "ess", "gain", "temperature", "effective_rank"):
        assert one[name] == pytest.approx(two[name], rel=1e-2), name
    for training in (recorded, plain):
        training.unwrap()


@every_case
def test_an_epoch_reads_nothing_from_the_device(case, tmp_path):
    training = training_of(case, tmp_path)
    take(training, 5)
    with host_reads_forbidden():
        for batch in training.images.loader.epoch(1):
            training.take_step(batch, 1)


def test_a_run_that_logs_reads_nothing_from_the_device(tmp_path):
    """The numbers of a line travel while the next steps run."""
    asked = {"log_every": 5, "watch_every": 0.0, "checkpoint_every": 100.0, "tensorboard": False}
    config = preset("digits").override(device="cuda", epochs=3, **asked)
    told = []
    steps = train_steps(config, tmp_path / "run", report=lambda line: told.append(line["kind"]))
    for _ in range(20):
        next(steps)
    torch.cuda.synchronize()
    before = told.count("train")
    with host_reads_forbidden():
        for _ in range(20):
            assert next(steps) is False
    assert told.count("train") >= before + 3
    steps.close()


@every_case
def test_the_same_seed_gives_the_same_bits_twice(case, tmp_path):
    runs = [training_of(case, tmp_path) for _ in range(2)]
    for run in runs:
        take(run, 30)
    assert all(run._take_step.graph is not None for run in runs)
    one, two = (run.learner.state_dict() for run in runs)
    assert all(torch.equal(one[name], two[name]) for name in one)
    losses = [run.monitor.compute(30)["loss"] for run in runs]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("case", ["simclr", "resnet18, bfloat16"])
def test_memory_does_not_grow_over_a_thousand_steps(case, tmp_path):
    training = training_of(case, tmp_path, epochs=200)
    take(training, 100)
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    take(training, 1100)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_reserved() == reserved


def test_a_resnet_takes_the_fused_layers_and_its_loss_the_fused_kernel(tmp_path):
    from flatnce.pretrain.fused_resnet import FusedResNet

    training = training_of("resnet18, bfloat16", tmp_path)
    assert isinstance(training.learner.called, FusedResNet)
    take(training, 30)  # recorded by then; the first steps take the direct function
    assert training.learner.objective.last.embeddings.dtype == torch.float16
    plain = training_of("resnet18, bfloat16", tmp_path, fast=False)
    assert plain.learner.called is plain.learner.encoder
    assert isinstance(plain._take_step, Step)
    cached = training_of("resnet18, bfloat16", tmp_path, micro_batch=8)
    captured = [run.learner.objective.captured for run in (training, plain, cached)]
    assert captured == [True, False, False]


def test_a_step_that_cannot_be_recorded_goes_on_and_says_why(tmp_path):
    training = training_of("simclr", tmp_path)
    training.learner.encoder.backbone.register_forward_hook(lambda m, i, o: print(o.sum().item()))
    training.learner.call_through(training.learner.encoder)  # the fused network has no such hook
    take(training, 6)
    assert len(training.notes) == 1 and "runs eagerly" in training.notes[0]
    assert training.monitor.compute(6)["steps"] >= 6


@every_case
def test_a_recorded_run_goes_on_from_a_checkpoint(case, tmp_path):
    from flatnce.pretrain.runs import checkpoint

    training = training_of(case, tmp_path)
    take(training, 12)
    training.save()
    again = training_of(case, tmp_path)
    again.restore(checkpoint.load(tmp_path / "checkpoints"))
    for one, two in zip(again.learner.parameters(), training.learner.parameters(), strict=True):
        assert torch.equal(one, two)
    take(again, 20)
    take(training, 20)
    assert again._take_step.graph is not None
    first, second = again.monitor.compute(20), training.monitor.compute(20)
    assert first["steps"] == second["steps"] == 20
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-2)


def test_a_nan_is_found_at_the_next_look(tmp_path):
    from flatnce.pretrain import TrainingFailed

    training = training_of("simclr", tmp_path)
    take(training, 6)
    training.check()
    with torch.no_grad():
        training.learner.encoder.head[0].weight.fill_(torch.nan)
    take(training, 8)
    with pytest.raises(TrainingFailed, match="since step 6"):
        training.check()


every_optimizer = pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])


@every_optimizer
def test_a_state_saved_on_the_cpu_goes_on_on_the_gpu(name):
    model = Encoder(backbone("small", channels=1), head(128, out=8))
    saved = build_optimizer(model, name, lr=0.1)
    model(torch.randn(4, 1, 8, 8))[1].square().mean().backward()
    saved.step()
    twin = Encoder(backbone("small", channels=1), head(128, out=8)).cuda()
    optimizer = build_optimizer(twin, name, lr=torch.tensor(0.0, device="cuda"))
    load_optimizer(optimizer, saved.state_dict())
    assert all(group["lr"].is_cuda for group in optimizer.param_groups)
    twin(torch.randn(4, 1, 8, 8, device="cuda"))[1].square().mean().backward()
    optimizer.step()
