"""Small trained networks, and runs of them on disk, for what exports them."""

import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from flatnce.pretrain import LoadedEncoder, TrainConfig, exporting
from flatnce.pretrain.models import Encoder, backbone, head
from flatnce.pretrain.runs.log import RunLog
from made_runs import save_checkpoint

MEAN, STD = 0.3, 0.2


def make_trained(name="small", *, stem="auto", size=8, channels=1, step=30, **settings):
    """A network with running statistics of its own, as training leaves it."""
    torch.manual_seed(1)
    network = backbone(name, stem=stem, size=size, channels=channels)
    network.train()(torch.randn(4, channels, size, size))
    encoder = Encoder(network, head(network.width, out=16)).eval()
    asked = {"data": "digits", "epochs": 5, "batch_size": 64, "head_out": 16, **settings}
    config = TrainConfig().override(**asked, backbone=name, stem=stem)
    numbers = ((MEAN,) * channels, (STD,) * channels)
    return LoadedEncoder(encoder, config, step, numbers, channels, size, (channels, size, size))


@contextmanager
def as_run(subject):
    """The folder of a run whose encoder is the subject, during the block."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "first"
        RunLog(run, kind="train", config=subject.config, seeds=[0]).finish({"step": subject.step})
        with patch.object(exporting, "load_encoder", lambda directory, step: subject):
            yield run


def export_of(subject, *given, **options):
    """Export the network as that of a run."""
    with as_run(subject) as run:
        return exporting.export(run, *given, **options)


def write_run(directory, *, steps=(0, 30), evaluations=(), finished=True, **settings):
    """The folder that a run of the small network leaves; each step has its own weights."""
    subject = make_trained(**settings)
    log = RunLog(directory, kind="train", config=subject.config, seeds=[0])
    for step in steps:
        with torch.no_grad():
            next(subject.encoder.parameters()).add_(0.1)
        weights = {f"encoder.{k}": v for k, v in subject.encoder.state_dict().items()}
        state = {"channels": subject.channels, "size": subject.size}
        state["config"] = subject.config.plain()
        save_checkpoint(directory / "checkpoints", step, weights, state, keep=None)
        log.log({"kind": "train", "step": step, "epoch": step / 6, "seconds": 0.5 * step})
    if finished:
        log.finish({"step": steps[-1], "seconds": 1800.0, "evaluations": list(evaluations)})
    return directory
