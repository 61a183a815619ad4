"""Pieces 1 and 2 of the protocol: screen temperatures, then rates, at the tuning seed.

    python benchmarks/image_study/screen.py --piece 2 --data ROOT --out FOLDER --commit HASH

Step 1 trains both objectives at five temperatures. Step 2 trains each at two further rates, at the
temperature that step 1 chose for it. If a chosen rate is the largest or the smallest, step 3
trains each objective at one more rate beyond that end (rule 4 of the protocol). The choice is the
linear accuracy on held-out training images. The test images are never read: an empty file in
their place is enough.

`--preset digits --epochs 1` runs the same on a CPU in about a minute, to check the script.
"""

import argparse
import json
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
TEMPERATURES = (0.05, 0.1, 0.2, 0.3, 0.5)
HELD_OUT, SPLIT_SEED, NEIGHBOURS = 0.1, 0, (20, 200)
EMBEDDED, UNSEEN_VIEWS = 2_048, 2**34


@dataclass(frozen=True)
class Piece:
    """What one screen fixes: the batch, the rates of its two steps, how often it logs."""

    number: int
    batch: int
    first_rate: float
    other_rates: tuple[float, ...]
    log_every: int


# Piece 1 chose the rate 0.03 for both objectives; piece 2 takes 8, 4 and 16 times that.
PIECES = {
    1: Piece(1, 32, 0.03, (0.015, 0.06), log_every=390),
    2: Piece(2, 512, 0.24, (0.12, 0.48), log_every=97),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--piece", type=int, choices=PIECES, default=1)
    parser.add_argument("--at-once", type=int, help="runs side by side; all of a step by default")
    parser.add_argument("--data", help="where data sets lie")
    parser.add_argument("--out", required=True, type=Path, help="records go there")
    parser.add_argument("--work", required=True, type=Path, help="runs with weights go there")
    parser.add_argument("--commit", required=True, help="of the code")
    parser.add_argument("--preset", default="cifar10")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--until", type=float, default=1e9, help="start step 2 only if it ends in these seconds"
    )
    return parser.parse_args()


def config_of(asked, objective, temperature, rate):
    """The config of a run of the screen."""
    piece = PIECES[asked.piece]
    return preset(asked.preset).override(
        root=asked.data,
        objective=objective,
        temperature=temperature,
        rate=rate,
        base_batch=piece.batch,
        batch_size=piece.batch,
        seed=SEED,
        epochs=asked.epochs,
        precision="bfloat16" if asked.preset == "cifar10" else "auto",
        warmup_epochs=1.0,
        log_every=piece.log_every if asked.preset == "cifar10" else 20,
        watch_every=asked.epochs / 2,
        checkpoint_every=float(asked.epochs),
        keep=1,
        tensorboard=False,
    )


def name_of(asked, objective, temperature, rate):
    batch = PIECES[asked.piece].batch
    return f"{objective}-b{batch}-t{temperature:g}-r{rate:g}-s{SEED}"


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


def trained_and_evaluated(asked, step, wanted):
    """Train the runs side by side and evaluate each; their records by what was asked."""
    configs = {name_of(asked, *run): config_of(asked, *run) for run in wanted}
    at_once = min(asked.at_once or len(configs), len(configs))
    for run in sweep(configs, asked.work / f"step-{step}", at_once=at_once, report=report):
        print(run.name, run.state, run.failure, flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = load(asked.preset, "train", asked.data).to(device)
    where = environment(asked, device)
    records, embeddings = {}, {}
    for run in wanted:
        name = name_of(asked, *run)
        directory = asked.work / f"step-{step}" / name
        found = read_run(directory)
        if found.results is None:  # a run that failed has no record; the log says why
            continue
        evaluation, embeddings[name] = evaluated(directory, images, device)
        records[run] = record_of(name, asked.piece, step, found, evaluation, where)
        write(records[run], asked.out / "records")
        shown = {key: evaluation[key] for key in ("linear", "knn_20", "knn_200", "seconds")}
        print(name, shown, flush=True)
    np.savez(asked.out / f"embeddings-{step}.npz", **embeddings)
    return records


def chosen(records, objective):
    """The run of an objective with the best linear accuracy; kNN, then the order, decide ties."""
    runs = [run for run in records if run[0] == objective]

    def score(run):
        found = records[run]["evaluation"]
        return found["linear"], found["knn_20"]

    return max(runs, key=score)


def beyond(rates, chosen_rates):
    """The rates to add: one beyond each end of the grid that was chosen, by a factor of 2."""
    least, most = min(rates), max(rates)
    return [least / 2] * (least in chosen_rates) + [most * 2] * (most in chosen_rates)


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


def main():
    os.environ.setdefault(QUEUES, ENOUGH)  # before CUDA starts
    asked, began = arguments(), time.perf_counter()
    asked.out.mkdir(parents=True, exist_ok=True)
    piece = PIECES[asked.piece]
    first = [(o, t, piece.first_rate) for t in TEMPERATURES for o in OBJECTIVES]
    records = trained_and_evaluated(asked, 1, first)
    took = time.perf_counter() - began
    best = {objective: chosen(records, objective) for objective in OBJECTIVES}
    second = [(o, best[o][1], rate) for rate in piece.other_rates for o in OBJECTIVES]
    print("step 1 took", round(took), "s; chosen:", best, flush=True)
    if took + 1.05 * took * len(second) / len(first) > asked.until:
        print("step 2 does not fit and is left out", flush=True)
    else:
        records |= trained_and_evaluated(asked, 2, second)
        found = {objective: chosen(records, objective) for objective in OBJECTIVES}
        added = beyond((piece.first_rate, *piece.other_rates), {run[2] for run in found.values()})
        third = [(o, found[o][1], rate) for rate in added for o in OBJECTIVES]
        records |= trained_and_evaluated(asked, 3, third) if third else {}
    best = {objective: name_of(asked, *chosen(records, objective)) for objective in OBJECTIVES}
    choice = {"piece": asked.piece, "rule": "linear accuracy on held-out training images", **best}
    (asked.out / "choice.json").write_text(json.dumps(choice, indent=1) + "\n")
    print("chosen:", best, f"in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
