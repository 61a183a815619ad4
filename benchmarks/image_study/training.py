"""Train runs of the image study side by side, evaluate each, and write its record."""

import os
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from records import record_of, write

from flatnce.pretrain import load, load_encoder, preset, sweep
from flatnce.pretrain.data import permutation
from flatnce.pretrain.evaluation import embed_views, extract, knn_scores, linear_probe
from flatnce.pretrain.evaluation.probe import drawn, validation_split
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.sweep import ENOUGH, QUEUES
from flatnce.pretrain.training.images import views_of

SEED = 0
OBJECTIVES = ("infonce", "flatnce")
HELD_OUT, SPLIT_SEED, NEIGHBOURS = 0.1, 0, (20, 200)
EMBEDDED, UNSEEN_VIEWS = 2_048, 2**34


@dataclass(frozen=True)
class Run:
    """What distinguishes one run of the study from another."""

    objective: str
    batch: int
    temperature: float
    rate: float
    epochs: int

    @property
    def name(self):
        """The name of the run and of its record."""
        long = "" if self.epochs <= 20 else f"-e{self.epochs}"
        setting = f"t{self.temperature:g}-r{self.rate:.4g}"
        return f"{self.objective}-b{self.batch}-{setting}{long}-s{SEED}"


def add_arguments(parser):
    """Add the options that the scripts of the study share."""
    parser.add_argument("--at-once", type=int, help="runs side by side; all of a step by default")
    parser.add_argument("--data", help="where data sets lie")
    parser.add_argument("--out", required=True, type=Path, help="records go there")
    parser.add_argument("--work", required=True, type=Path, help="runs with weights go there")
    parser.add_argument("--commit", required=True, help="of the code")
    parser.add_argument("--preset", default="cifar10")


def prepare(asked):
    """Set up the process before CUDA starts."""
    os.environ.setdefault(QUEUES, ENOUGH)
    asked.out.mkdir(parents=True, exist_ok=True)


def steps_between_lines(batch):
    """Steps of a quarter of an epoch of CIFAR-10 at batch 32, of an epoch at larger batches."""
    return 50_000 // batch // (4 if batch <= 32 else 1)


def config_of(asked, run):
    """The config of a run."""
    full = asked.preset == "cifar10"
    return preset(asked.preset).override(
        root=asked.data,
        objective=run.objective,
        temperature=run.temperature,
        rate=run.rate,
        base_batch=run.batch,
        batch_size=run.batch,
        seed=SEED,
        epochs=run.epochs,
        precision="bfloat16" if full else "auto",
        warmup_epochs=1.0,
        log_every=steps_between_lines(run.batch) if full else 20,
        watch_every=run.epochs / 2,
        checkpoint_every=float(run.epochs),
        keep=1,
        tensorboard=False,
    )


def evaluated(directory, images, device):
    """Accuracies on held-out training images, and embeddings of two views of some of them."""
    began = time.perf_counter()
    run = load_encoder(directory, None, device)
    mean, std = run.normalisation
    features = extract(run.encoder.backbone, images, size=run.size, mean=mean, std=std)
    rest, held = validation_split(images.labels, HELD_OUT, SPLIT_SEED)
    fitted, asked = features.subset(rest), features.subset(held)
    probe = linear_probe(fitted, asked, validation=HELD_OUT, seed=SPLIT_SEED)
    votes = knn_scores(fitted, asked.features, NEIGHBOURS)
    found = {
        "on": "held-out training images",
        "linear": accuracy(probe.scores, asked.labels),
        **{f"knn_{k}": accuracy(votes[k], asked.labels) for k in NEIGHBOURS},
        "fitted_on": len(fitted),
        "held_out": drawn(held),
        "split_seed": SPLIT_SEED,
        "regularisation": probe.protocol["regularisation"],
        "regularisation_at_end": probe.protocol["regularisation_at_end"],
        "converged": probe.protocol["converged"],
    }
    some = held[permutation(len(held), SPLIT_SEED)[:EMBEDDED]].sort().values
    views = replace(views_of(run.config, run.size), seed=UNSEEN_VIEWS)
    z = torch.stack(embed_views(run.encoder, images.subset(some), views, run.channels))
    z = torch.nn.functional.normalize(z.float(), dim=2).to(torch.float16).cpu().numpy()
    found["seconds"] = round(time.perf_counter() - began, 2)
    return found, z


def accuracy(scores, labels):
    return round(float((scores.argmax(dim=1) == labels).double().mean()), 6)


def trained_and_evaluated(asked, piece, step, wanted):
    """Train the runs side by side and evaluate each; their records by run."""
    configs = {run.name: config_of(asked, run) for run in wanted}
    at_once = min(asked.at_once or len(configs), len(configs))
    for state in sweep(configs, asked.work / f"step-{step}", at_once=at_once, report=report):
        print(state.name, state.state, state.failure, flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = load(asked.preset, "train", asked.data).to(device)
    where = environment(asked, device)
    records, embeddings = {}, {}
    for run in wanted:
        directory = asked.work / f"step-{step}" / run.name
        found = read_run(directory)
        if found.results is None:  # a run that failed has no record; the log says why
            continue
        evaluation, embeddings[run.name] = evaluated(directory, images, device)
        records[run] = record_of(run.name, piece, step, found, evaluation, where)
        write(records[run], asked.out / "records")
        shown = {key: evaluation[key] for key in ("linear", "knn_20", "knn_200", "seconds")}
        print(run.name, shown, flush=True)
    np.savez(asked.out / f"embeddings-{step}.npz", **embeddings)
    return records


def score(record):
    """What a choice maximises: linear accuracy, then kNN with k = 20."""
    found = record["evaluation"]
    return found["linear"], found["knn_20"]


def chosen(records, objective):
    """The run of an objective with the best score; the order decides ties."""
    runs = [run for run in records if run.objective == objective]
    return max(runs, key=lambda run: score(records[run]))


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
