"""Train runs of the image study at the same time, evaluate each, and write its record."""

import os
import platform
import sys
import time
import traceback
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from anchors import add_anchor_objectives
from averages import load_average
from choices import ANCHOR
from long_tail import LONG_TAIL, add_long_tail, counts
from records import read_all, record_of, write

from flatnce.pretrain import load, load_encoder, preset, sweep
from flatnce.pretrain.data import permutation
from flatnce.pretrain.evaluation import embed_views, extract, knn_scores, linear_probe
from flatnce.pretrain.evaluation.probe import drawn, validation_split
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.sweep import ENOUGH, QUEUES
from flatnce.pretrain.training.images import views_of

HERE = Path(__file__).parent
SCREEN_EPOCHS = 20
TUNING_SEED = 0
STARTING_TEMPERATURE = 0.1
"""The first temperature of runs with an ESS target."""
HELD_OUT, SPLIT_SEED, NEIGHBOURS = 0.1, 0, (20, 200)
EMBEDDED, UNSEEN_VIEWS = 2_048, 2**34
SPEEDS = {512: 46_500, 256: 42_700, 128: 37_500, 32: 25_000, 16: 22_300}
"""Images per second by batch: those of the protocol, and a conservative number for four runs at
batch 32."""
CIFAR, TINY = "cifar10", "tiny-imagenet"
TINY_SPEED = 10_000
"""Images per second on Tiny-ImageNet: an estimate, a quarter of the speed of 32 × 32 pixels."""
IMAGES = {CIFAR: 50_000, CIFAR + LONG_TAIL: sum(counts(CIFAR)), TINY: 100_000}
"""Training images by data set."""
KEPT_EPOCHS = 10
"""Epochs between checkpoints, so that an interrupted run can be continued."""


CHANGES = {
    "views": {"crop_least": 0.2, "grayscale": 0.1},
    "wide": {"head_hidden": 1024},
    "deep": {"head_layers": 3},
    "queue": {"queue": 4096, "momentum_encoder": 0.99},
    "target": {},
    "average": {},
    "anchor": {},
}
"""Settings that a run of piece 13 changes; those that depend on the run are in `Run.settings`."""
LARGEST_START = 0.6
WRITTEN, AVERAGED = 20, 5
"""Checkpoints that a run with `average` writes, and how many of the last are averaged."""


@dataclass(frozen=True)
class Run:
    """What distinguishes one run of the study from another.

    With an ESS target the temperature is that of the first step.
    """

    objective: str
    batch: int
    temperature: float
    rate: float
    epochs: int
    ess: float | None = None
    seed: int = TUNING_SEED
    data: str = CIFAR
    changes: tuple[str, ...] = ()

    @property
    def tunes(self):
        """Whether a choice uses this run; it is then evaluated without the test images."""
        return self.seed == TUNING_SEED

    @property
    def seconds(self):
        """The approximate time of its training when it shares the GPU."""
        speed = TINY_SPEED if self.data == TINY else SPEEDS[self.batch]
        return IMAGES[self.data] * self.epochs / speed

    @property
    def name(self):
        """The name of the run and of its record."""
        data = "" if self.data == CIFAR else f"{self.data}-"
        held = f"t{self.temperature:g}" if self.ess is None else f"ess{self.ess:g}"
        length = "" if self.epochs == SCREEN_EPOCHS else f"-e{self.epochs}"
        what = f"{data}{self.objective}-b{self.batch}"
        changes = "".join(f"-{change}" for change in self.changes)
        return f"{what}-{held}-r{self.rate:.4g}{length}{changes}-s{self.seed}"

    @property
    def settings(self):
        """What its changes set; `target` starts at four times the ESS target."""
        found = {}
        for change in self.changes:
            found |= CHANGES[change]
        if "target" in self.changes:
            found |= {"ess": min(4 * self.ess, LARGEST_START), "ess_end": self.ess}
        if "average" in self.changes:
            found |= {"checkpoint_every": self.epochs / WRITTEN, "keep": AVERAGED}
        if "anchor" in self.changes:
            found["objective"] = self.objective + ANCHOR
        return found


def add_arguments(parser):
    """Add the options that the scripts of the study share."""
    parser.add_argument("--at-once", type=int, help="runs side by side; all of a step by default")
    parser.add_argument("--data", help="where data sets lie")
    parser.add_argument("--out", required=True, type=Path, help="records go there")
    parser.add_argument("--work", required=True, type=Path, help="runs with weights go there")
    parser.add_argument("--commit", required=True, help="of the code")
    parser.add_argument("--preset", default=CIFAR)


def add_part_arguments(parser, parts, epochs=100):
    """Add the options of a script whose parts are run one after the other."""
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    add_arguments(parser)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--until", type=float, default=1e9, help="seconds in which parts end")
    parser.add_argument("--together", action="store_true", help="all parts side by side")


def prepare(asked):
    """Set up the process before CUDA starts."""
    os.environ.setdefault(QUEUES, ENOUGH)
    asked.out.mkdir(parents=True, exist_ok=True)


def run_parts(asked, piece, runs_of):
    """Run the asked parts that end in time, without the runs that have a record.

    The process exits with 1 if a run has none at the end.

    Arguments:
        asked: The options of the command line.
        piece: The number of the piece in the protocol.
        runs_of: Returns the runs of a part from its name, the epochs and the known records (the
            committed ones and those of earlier parts).
    """
    began = time.perf_counter()
    prepare(asked)
    taken, failed, committed = {}, [], read_all(HERE / "records")
    for part in asked.parts:
        own = read_all(asked.out / "records")
        known = committed | own
        done = known if asked.preset == CIFAR else own
        wanted = runs_of(part, asked.epochs, list(known.values()))
        runs = [run for run in wanted if run.name not in done]
        if not runs:
            print(f"part {part} has nothing to run", flush=True)
            continue
        beside = taken if asked.together else ()
        needed = 1.1 * sum(run.seconds for run in (*beside, *runs))
        if time.perf_counter() - began + needed > asked.until:
            print(f"part {part} needs {needed:.0f} s and is left out", flush=True)
            continue
        taken |= dict.fromkeys(runs, part)
        if not asked.together:
            found = trained_and_evaluated(asked, piece, part, dict.fromkeys(runs, part))
            failed += [run.name for run in runs if run not in found]
            print(f"part {part} ended at {time.perf_counter() - began:.0f} s", flush=True)
    if asked.together and taken:
        found = trained_and_evaluated(asked, piece, "-".join(asked.parts), taken)
        failed += [run.name for run in taken if run not in found]
        print(f"the parts ended at {time.perf_counter() - began:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed, without a record: {', '.join(failed)}")


def steps_between_lines(run):
    """Steps of a quarter of an epoch up to batch 32, of an epoch at larger batches."""
    return IMAGES[run.data] // run.batch // (4 if run.batch <= 32 else 1)


def data_of(asked, run):
    """The data set of a run; with another preset, the set that stands for it in a check."""
    if asked.preset == CIFAR:
        return run.data
    return asked.preset + (LONG_TAIL if run.data.endswith(LONG_TAIL) else "")


def config_of(asked, run):
    """The config of a run."""
    full = asked.preset == CIFAR
    settings = dict(
        data=data_of(asked, run),
        root=asked.data,
        objective=run.objective,
        temperature=run.temperature,
        ess=run.ess,
        rate=run.rate,
        base_batch=run.batch,
        batch_size=run.batch,
        seed=run.seed,
        epochs=run.epochs,
        precision="bfloat16" if full else "auto",
        warmup_epochs=1.0,
        log_every=steps_between_lines(run) if full else 20,
        watch_every=run.epochs / 2,
        checkpoint_every=float(min(run.epochs, KEPT_EPOCHS)),
        keep=1,
        tensorboard=False,
    )
    return preset(asked.preset).override(**(settings | run.settings))


def features_of(run, images):
    """The features of images under the backbone of a loaded run."""
    mean, std = run.normalisation
    return extract(run.encoder.backbone, images, size=run.size, mean=mean, std=std)


def accuracies(fitted, asked):
    """Linear and kNN accuracy of features, and how the probe was fitted."""
    probe = linear_probe(fitted, asked, validation=HELD_OUT, seed=SPLIT_SEED)
    votes = knn_scores(fitted, asked.features, NEIGHBOURS)
    return {
        "linear": accuracy(probe.scores, asked.labels),
        **{f"knn_{k}": accuracy(votes[k], asked.labels) for k in NEIGHBOURS},
        "fitted_on": len(fitted),
        "regularisation": probe.protocol["regularisation"],
        "regularisation_at_end": probe.protocol["regularisation_at_end"],
        "converged": probe.protocol["converged"],
    }


def accuracy(scores, labels):
    return round(float((scores.argmax(dim=1) == labels).double().mean()), 6)


def on_held_out(run, images):
    """Accuracies on held-out training images, and embeddings of two views of some of them."""
    features = features_of(run, images)
    rest, held = validation_split(images.labels, HELD_OUT, SPLIT_SEED)
    found = {"on": "held-out training images"}
    found |= accuracies(features.subset(rest), features.subset(held))
    found |= {"held_out": drawn(held), "split_seed": SPLIT_SEED}
    some = held[permutation(len(held), SPLIT_SEED)[:EMBEDDED]].sort().values
    views = replace(views_of(run.config, run.size), seed=UNSEEN_VIEWS)
    z = torch.stack(embed_views(run.encoder, images.subset(some), views, run.channels))
    z = torch.nn.functional.normalize(z.float(), dim=2).to(torch.float16).cpu().numpy()
    return found, z


def on_test(run, images, test):
    """Accuracies on the test images, fitted on all training images."""
    found = {"on": "test images"}
    return found | accuracies(features_of(run, images), features_of(run, test))


def trained_and_evaluated(asked, piece, folder, wanted):
    """Train the runs at the same time, evaluate each, and return their records by run.

    A run is evaluated when its training ends: one of the tuning seed on held-out images, one of
    another seed on the test images. The other runs pause meanwhile. An evaluation that fails is
    repeated after all trainings. The process exits with 1 if runs were stopped.

    Arguments:
        asked: The options of the command line.
        piece: The number of the piece in the protocol.
        folder: The runs go to the folder of this name in `asked.work`.
        wanted: The runs, with the step of the piece to which each belongs.
    """
    if any(run.data.endswith(LONG_TAIL) for run in wanted):
        add_long_tail(asked.preset)
    if any("anchor" in run.changes for run in wanted):
        add_anchor_objectives()
    place, by_name = asked.work / f"step-{folder}", {run.name: run for run in wanted}
    configs = {run.name: config_of(asked, run) for run in wanted}
    at_once = min(asked.at_once or len(configs), len(configs))
    device = torch.device("cuda" if torch.cuda.device_count() else "cpu")
    records = {}

    @cache
    def images(data, split):
        return load(data, split, asked.data).to(device)

    def evaluate(run):
        data = data_of(asked, run).removesuffix(LONG_TAIL)  # features are judged by all labels
        splits = [images(data, split) for split in ("train", "test")[: 1 if run.tunes else 2]]
        began, found = time.perf_counter(), read_run(place / run.name)
        averaged = []
        if "average" in run.changes:
            loaded, averaged = load_average(place / run.name, device)
        else:
            loaded = load_encoder(place / run.name, None, device)
        if run.tunes:
            evaluation, z = on_held_out(loaded, *splits)
            add_embeddings(asked.out / f"embeddings-{wanted[run]}.npz", run.name, z)
        else:
            evaluation = on_test(loaded, *splits)
        if averaged:
            evaluation["averaged_steps"] = averaged
        evaluation["seconds"] = round(time.perf_counter() - began, 2)
        where = environment(asked, device)
        records[run] = record_of(run.name, piece, wanted[run], found, evaluation, where)
        write(records[run], asked.out / "records")
        shown = {key: evaluation[key] for key in ("linear", "knn_20", "knn_200", "seconds")}
        print(run.name, shown, flush=True)

    def follow(name, line):
        report(name, line)
        if line["kind"] == "state" and line["state"] == "done":
            try:
                evaluate(by_name[name])
            except Exception:  # the other runs continue
                traceback.print_exc()

    states = sweep(configs, place, at_once=at_once, report=follow, shared=True)
    for state in states:
        print(state.name, state.state, state.failure, flush=True)
    ended = {state.name for state in states if state.state == "done"}
    for run in wanted:  # a run that failed has no record; the log says why
        if run not in records and run.name in ended:
            evaluate(run)
    if any(state.state in ("stopped", "waiting") for state in states):
        names = ", ".join(run.name for run in wanted if run not in records)
        sys.exit(f"stopped: {names}; the same command with the same --work continues them")
    return {run: records[run] for run in wanted if run in records}


def add_embeddings(path, name, z):
    """Add an array to a file, which stays as it is if the process is killed meanwhile."""
    arrays = dict(np.load(path)) if path.exists() else {}
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays | {name: z})
    partial.replace(path)


def report(name, line):
    if line["kind"] not in ("train", "verdict"):
        kept = ("kind", "state", "step", "epoch", "seconds", "knn", "note", "failure")
        print(name, {k: line[k] for k in kept if k in line}, flush=True)


def environment(asked, device):
    on_cuda = device.type == "cuda"
    return {
        "commit": asked.commit,
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "runs_at_once": asked.at_once or "all runs of a step",
    }
