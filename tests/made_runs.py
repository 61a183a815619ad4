"""Training runs written by hand, for what reads run directories; and quick real ones."""

import math
import re
from dataclasses import replace

import torch
from torch import nn

from flatnce.pretrain import preset
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog, add_evaluation, read_run
from flatnce.pretrain.training import learner
from flatnce.pretrain.training.state import Training
from flatnce.report.page import Page, render_page

CEILING, POOL_CEILING = math.log(63), math.log(10_000)
STEPS = 400
EVALUATION = {
    "name": "linear",
    "data": "digits",
    "protocol": {"name": "linear", "data": "digits"},
    "step": STEPS,
    "top1": 0.9512,
    "top5": 0.999,
    "interval": [0.93, 0.97],
    "test_images": 1359,
    "seconds": 2.04,
}
# A queue, a momentum encoder, and a controlled temperature.
MOCO = {"queue": 256, "momentum_encoder": 0.9, "ess": 0.4, "optimizer": "adamw", "rate": 1e-3}


def config_of(objective="infonce", seed=0, batch_size=32):
    return {
        "data": {"data": "digits", "root": None},
        "model": {"backbone": "small"},
        "loss": {"objective": objective, "temperature": 0.1},
        "run": {"epochs": 4, "batch_size": batch_size, "seed": seed},
    }


def lines_of(shift=0.0, steps=range(20, STEPS + 1, 20)):
    """What training logs; the shift moves accuracy and information up."""
    for step in steps:
        epoch = step / 100
        loss = CEILING * math.exp(-epoch) - 0.1 * shift
        place = {"step": step, "epoch": epoch, "seconds": 30 * epoch}
        yield {
            "kind": "train",
            **place,
            "loss": loss,
            "mi": CEILING - loss,
            "mi_ceiling": CEILING,
            "ess": 0.2 + 0.05 * epoch,
            "ess_paper": 0.25 + 0.05 * epoch,
            "ess_with_positive": 0.05,
            "gain": math.exp(-epoch),
            "negatives": 62.0,
            "temperature": 0.1,
            "images_per_second": 1000.0,
        }
        if step % 100 == 0:
            watched = {"knn": 0.5 + 0.1 * epoch + shift, "pool_mi": 2 + epoch + shift}
            yield {"kind": "watch", **place, **watched, "pool": 10_000} | {
                "pool_mi_at_temperature": 1 + epoch,
                "pool_ceiling": POOL_CEILING,
            }


def write_run(folder, objective="infonce", seed=0, shift=0.0, finished=True, batch_size=32):
    """A run whose accuracy is moved by the shift; with a linear probe where it is finished."""
    log = RunLog(folder, kind="train", config=config_of(objective, seed, batch_size), seeds=[seed])
    for line in lines_of(shift):
        log.log(line)
    if finished:
        log.finish({"step": STEPS, "seconds": 120.0, "verdict": "healthy since step 20: fine"})
        add_evaluation(folder, {**EVALUATION, "top1": 0.7 + shift})
    return folder


def write_pairs(folder, differences, spread=0.01):
    """InfoNCE and FlatNCE at a seed each; FlatNCE is ahead by so much."""
    runs = []
    for seed, difference in enumerate(differences):
        base = spread * seed
        runs.append(write_run(folder / f"infonce-{seed}", "infonce", seed, base))
        runs.append(write_run(folder / f"flatnce-{seed}", "flatnce", seed, base + difference))
    return runs


def html_without_charts(page: Page) -> str:
    """The page as HTML, without the charts, which take most of the time, and without links."""
    sections = [replace(section, figures=()) for section in page.sections]
    return re.sub(r"</?a\b[^>]*>", "", render_page(replace(page, sections=sections)))


def charts_of(page: Page) -> list:
    """Every chart of a page."""
    return [figure.chart for section in page.sections for figure in section.figures]


def quick_config(**settings):
    """A run of 14 steps on the CPU."""
    quick = {"epochs": 1, "batch_size": 96, "log_every": 2, "checkpoint_every": 0.25, "pool": 64}
    quick |= {"watch_every": 0.0, "tensorboard": False, "device": "cpu"}
    return preset("digits").override(**{**quick, **settings})


def with_dropout(monkeypatch):
    """Build encoders with dropout, which draws random numbers at every step."""
    build = learner.build_encoder

    def forgetful(*arguments, **options):
        encoder = build(*arguments, **options)
        encoder.head = nn.Sequential(nn.Dropout(0.3), encoder.head)
        return encoder

    monkeypatch.setattr(learner, "build_encoder", forgetful)


def before_step(monkeypatch, step, act, seed=0):
    """Call a function with the state of a run, or raise an exception, before it takes a step."""
    take = Training.take_step

    def disturbed(self, batch, epoch):
        if (self.step, self.config.run.seed) == (step, seed):
            if isinstance(act, Exception):
                raise act
            act(self)
        take(self, batch, epoch)

    monkeypatch.setattr(Training, "take_step", disturbed)


def spoil_weights(training):
    """Set the first weights of a run to NaN."""
    with torch.no_grad():
        next(training.learner.encoder.parameters()).fill_(torch.nan)


def lasting_lines(directory):
    """The lines of a run without what differs from run to run: times."""
    times = ("seconds", "images_per_second")
    lines = read_run(directory).metrics
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


def assert_same_run(one, two):
    """The newest checkpoints and the lines of two runs are equal, bit for bit."""
    first, second = (checkpoint.load(place / "checkpoints") for place in (one, two))
    assert first.step == second.step and first.weights.keys() == second.weights.keys()
    for name, tensor in first.weights.items():
        assert torch.equal(tensor, second.weights[name]), name
    assert torch.equal(first.state["random"], second.state["random"])
    assert lasting_lines(one) == lasting_lines(two)


def save_checkpoint(directory, step, weights, state, keep=3):
    """Write a checkpoint, wait for it, and return its folder."""
    writer = checkpoint.Writer()
    writer.save(directory, step, weights, state, keep=keep)
    writer.wait()
    return directory / f"step-{step:09d}"
