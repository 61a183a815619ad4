"""FlatNCE against sentence-transformers' own ranking loss: MiniLM on STS pairs, batch 16.

    python benchmarks/sentence_pairs/run.py --model MODEL --data STS
    python benchmarks/sentence_pairs/run.py --model MODEL --data STS --cpu --tiny
    python benchmarks/sentence_pairs/run.py --model MODEL --data STS --check-fit
    python benchmarks/sentence_pairs/run.py --show benchmarks/sentence_pairs/results.json

MODEL holds all-MiniLM-L6-v2, STS a folder per year (2012 to 2016) of SemEval's files. The batches,
the first weights and the dropout of a seed are the same for every objective. The script writes the
results file after every run, and the same command continues it.
"""

import argparse
import json
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from flatnce.pretrain.runs.log import environment

BATCH, DEFAULT_SCALE, HIGH_SCORE = 16, 20.0, 4.0
YEARS = {"train": ("2012", "2013"), "validation": ("2014",), "test": ("2015", "2016")}
RATES = {
    "as it is": (3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4),
    "re-initialised": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
}
SCALES = (5.0, 10.0, 20.0, 40.0, 80.0)
TARGETS = (0.075, 0.15, 0.3, 0.45, 0.6)
WARM_UP = 0.1
EPOCHS = {"as it is": 2, "re-initialised": 3}
TUNING_SEED = 100
FAMILIES = {
    "library": SCALES,
    "flatnce": SCALES,
    "infonce-ess": TARGETS,
    "flatnce-ess": TARGETS,
}
FIRST = {
    "library": DEFAULT_SCALE,
    "flatnce": DEFAULT_SCALE,
    "infonce-ess": 0.3,
    "flatnce-ess": 0.075,
}
"""The value at which the rate is chosen. For an ESS target, the image study chose it."""
IDENTITY = ("start", "family", "value", "rate", "seed", "final")
WORKER = {}


def read_pairs(folder, years):
    """Scored pairs by file: {"2015/images": [(score, first, second), ...]}, without unscored."""
    found = {}
    for path in sorted(path for year in years for path in (folder / year).glob("*.tsv")):
        rows = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
        scored = [(float(score), a.strip(), b.strip()) for score, a, b in rows if score]
        found[f"{path.parent.name}/{path.name.removesuffix('.tsv')}"] = scored
    if not found:
        raise FileNotFoundError(f"no .tsv file under {folder} for {', '.join(years)}")
    return found


def read_data(folder, tiny):
    """Training pairs that share no sentence with what is evaluated, and the evaluated sets."""
    splits = {name: read_pairs(folder, years) for name, years in YEARS.items()}
    evaluated = {
        text.lower()
        for name in ("validation", "test")
        for rows in splits[name].values()
        for _, *texts in rows
        for text in texts
    }
    pairs = {
        (a, b)
        for rows in splits["train"].values()
        for score, a, b in rows
        if score >= HIGH_SCORE and a.lower() != b.lower()
        if not {a.lower(), b.lower()} & evaluated
    }
    if tiny:
        splits = {n: {k: v[:4] for k, v in of.items()} for n, of in splits.items()}
    return {**splits, "train": sorted(pairs)}


def batches(pairs, seed, epochs):
    """Shuffled full batches in which no sentence occurs twice, as the library's NO_DUPLICATES."""
    generator = random.Random(seed)
    for _ in range(epochs):
        waiting = generator.sample(pairs, len(pairs))
        while len(waiting) >= BATCH:
            batch, seen, later = [], set(), []
            for place, pair in enumerate(waiting):
                if len(batch) == BATCH:
                    later += waiting[place:]
                    break
                texts = {text.lower() for text in pair}
                if texts & seen:
                    later.append(pair)
                else:
                    batch.append(pair)
                    seen |= texts
            if len(batch) < BATCH:
                break
            yield batch
            waiting = later


def spearman(x, y):
    """Correlation of the ranks, ties at their mean."""

    def ranks(values):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        return (count.cumsum() - (count - 1) / 2)[place]

    return float(np.corrcoef(ranks(np.asarray(x)), ranks(np.asarray(y)))[0, 1])


def evaluate(model, sets):
    """Spearman's correlation of cosine and gold score, in per cent, by file."""
    texts = sorted({text for rows in sets.values() for _, *pair in rows for text in pair})
    found = model.encode(texts, batch_size=256, show_progress_bar=False, convert_to_tensor=True)
    place = {text: number for number, text in enumerate(texts)}
    z = torch.nn.functional.normalize(found.double(), dim=1).cpu()
    scores = {}
    for name, rows in sets.items():
        gold, first, second = zip(*rows, strict=True)
        cosine = (z[[place[a] for a in first]] * z[[place[b] for b in second]]).sum(dim=1)
        scores[name] = 100 * spearman(cosine.numpy().round(9), gold)
    return scores


def start_worker(options):
    """Set the options only: a pool silently restarts a worker that fails in its initializer."""
    WORKER["options"] = options


def load(options):
    """Load the library, the model and the data, once per process, at its first run."""
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

    torch.set_num_threads(1)
    model = SentenceTransformer(str(options.model), device=options.device).float()
    if options.tiny:
        inner = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
        inner.encoder.layer, inner.config.num_hidden_layers = inner.encoder.layer[:1], 1
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    WORKER.update(model=model, weights=weights)
    WORKER["data"] = read_data(options.data, options.tiny)


def prepare(start, seed):
    """The model with its initial weights: the published ones, or re-initialised."""
    from transformers import AutoModel, PreTrainedModel

    model = WORKER["model"]
    model.load_state_dict(WORKER["weights"])
    torch.manual_seed(seed)
    if start == "re-initialised":
        inner = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
        inner.load_state_dict(AutoModel.from_config(inner.config).state_dict())
    torch.manual_seed(seed)  # so that dropout does not depend on the initialisation
    return model


def loss_of(model, family, value):
    from sentence_transformers.sentence_transformer import losses

    from flatnce import EssController
    from flatnce.integrations.sentence_transformers import FlatNCERankingLoss

    if family == "library":
        return losses.MultipleNegativesRankingLoss(model, scale=value)
    if family == "flatnce":
        return FlatNCERankingLoss(model, scale=value)
    controller = EssController(target=value, temperature_at_start=1 / DEFAULT_SCALE)
    objective = family.removesuffix("-ess")
    return FlatNCERankingLoss(model, temperature=controller, objective=objective)


def train(job):
    """One run; what it was, and the scores on validation (and, if final, on the test sets)."""
    options = WORKER["options"]
    if "model" not in WORKER:
        load(options)
    data, device = WORKER["data"], options.device
    model = prepare(job["start"], job["seed"])
    epochs = epochs_of(job["start"], options)
    record = {**job, "device": device, "epochs": epochs}
    if job["family"] != "untrained":
        started = time.perf_counter()
        order = list(batches(data["train"], job["seed"], epochs))[: 2 if options.tiny else None]
        columns = [
            [as_features(model, texts, device) for texts in zip(*batch, strict=True)]
            for batch in order
        ]
        loss_fn = loss_of(model, job["family"], job["value"]).to(device)
        fit(model, loss_fn, columns, job["rate"])
        record |= {"steps": len(columns), **diagnose(model, loss_fn, columns[-20:])}
        record["seconds"] = round(time.perf_counter() - started, 1)
    model.eval()
    for split in ("validation", "test") if job["final"] else ("validation",):
        by_file = evaluate(model, data[split])
        record[split] = statistics.fmean(by_file.values())
        record[f"{split}_by_file"] = by_file
    return record


def epochs_of(start, options):
    return 1 if options.tiny else options.epochs or EPOCHS[start]


def as_features(model, texts, device):
    found = model.preprocess(list(texts))
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in found.items()}


def fit(model, loss_fn, columns, rate):
    """Train as the library's trainer does by default, with 10 % warm-up; see check_fit."""
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    warm_up = math.ceil(WARM_UP * len(columns))
    schedule = get_linear_schedule_with_warmup(optimizer, warm_up, len(columns))
    model.train()
    for features in columns:
        optimizer.zero_grad()
        loss_fn([dict(column) for column in features], None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def check_fit(options):
    """How far :func:`fit` ends from the library's own trainer, after the same steps on the CPU."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from torch.utils.data import SequentialSampler

    def in_order(dataset, batch_size, drop_last, **_):
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    load(options)
    order = list(batches(WORKER["data"]["train"], TUNING_SEED, 1))[:20]
    rate, ends = 1e-4, []
    for by_trainer in (False, True):
        model = prepare("as it is", TUNING_SEED)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0  # each loop draws in its own order
        loss_fn = loss_of(model, "library", DEFAULT_SCALE)
        if by_trainer:
            first, second = zip(*[pair for batch in order for pair in batch], strict=True)
            with tempfile.TemporaryDirectory() as place:
                asked = Arguments(
                    place, num_train_epochs=1, per_device_train_batch_size=BATCH, use_cpu=True,
                    learning_rate=rate, warmup_steps=math.ceil(WARM_UP * len(order)),
                    batch_sampler=in_order, report_to="none", save_strategy="no",
                    disable_tqdm=True,
                )  # fmt: skip
                pairs = Dataset.from_dict({"anchor": list(first), "positive": list(second)})
                SentenceTransformerTrainer(model, asked, pairs, loss=loss_fn).train()
        else:
            columns = [[as_features(model, t, "cpu") for t in zip(*b, strict=True)] for b in order]
            fit(model, loss_fn, columns, rate)
        ends.append({name: value.clone() for name, value in model.state_dict().items()})
    start, (own, library) = WORKER["weights"], ends
    apart = math.sqrt(sum(float((own[n] - library[n]).square().sum()) for n in own))
    moved = math.sqrt(sum(float((own[n] - start[n]).square().sum()) for n in own))
    print(f"after {len(order)} steps {apart:.3g} apart, {moved:.3g} from the start")


@torch.no_grad()
def diagnose(model, loss_fn, columns):
    """ESS and gain of the trained model over the last batches, without dropout."""
    from flatnce import Monitor
    from flatnce.integrations.sentence_transformers import FlatNCERankingLoss

    temperature = float(getattr(loss_fn, "temperature", 0.0)) or 1 / loss_fn.scale
    reader, monitor = FlatNCERankingLoss(model, temperature=temperature), Monitor(rows=0)
    model.eval()
    for features in columns:
        reader([dict(column) for column in features], None)
        monitor.update(reader.last)
    found = monitor.compute()
    return {"ess": found["ess"], "gain": found["gain"], "scale_at_end": 1 / temperature}


def best(records, **wanted):
    """The tuning record with the best validation score."""
    fitting = [r for r in records if all(r[k] == v for k, v in wanted.items())]
    return max(fitting, key=lambda record: record["validation"])


def tune(start, options, run_all):
    """Each family's rate at its first scale or target, then at that rate the others."""
    same = {"start": start, "seed": TUNING_SEED, "final": False}
    rates = RATES[start][1:2] if options.tiny else RATES[start]
    tuning = run_all(
        {"family": family, "value": FIRST[family], "rate": rate, **same}
        for family in FAMILIES
        for rate in rates
    )
    return tuning + run_all(
        {"family": family, "value": value, "rate": best(tuning, family=family)["rate"], **same}
        for family, values in FAMILIES.items()
        for value in values[: 1 if options.tiny else None]
        if value != FIRST[family]
    )


def compare(start, options, run_all):
    """What validation chooses for each family, and the seeds with their test scores."""
    tuning = tune(start, options, run_all)
    jobs = []
    for family in FAMILIES:
        of = best(tuning, family=family)
        chosen = {(of["value"], of["rate"]): "best"}
        of = best(tuning, family=family, value=FIRST[family])
        same, name = (of["value"], of["rate"]), "of images" if is_ess(family) else "default"
        chosen[same] = f"best, {name}" if same in chosen else name
        jobs += [
            {"start": start, "family": family, "value": value, "rate": rate, "choice": choice}
            for (value, rate), choice in chosen.items()
        ]
    last = {"start": start, "family": "untrained", "value": None, "rate": None}
    seeds = range(options.seeds)  # outermost, so that a partial file has whole seeds
    order = [(seed, job) for seed in seeds for job in jobs] + [(seed, last) for seed in seeds]
    run_all({**job, "seed": seed, "final": True} for seed, job in order)


def table(results):
    """Markdown: the scores, and the differences within a seed."""
    runs, lines = results["runs"], []
    lines.append("| start | objective | rate | STS 2015 | 2016 | mean | seeds | ESS | gain |")
    lines.append("|---|---|---|---|---|---|---|---|---|")
    groups = {}
    for run in runs:
        groups.setdefault((run["start"], name_of(run)), []).append(run)
    for (start, name), group in groups.items():
        years = [f"{statistics.fmean(year(r, y) for r in group):.2f}" for y in YEARS["test"]]
        scores = [run["test"] for run in group]
        spread = f"{statistics.stdev(scores):.2f}" if len(scores) > 1 else "-"
        each = ", ".join(f"{score:.2f}" for score in scores)
        ends = [[run[key] for run in group if key in run] for key in ("ess", "gain")]
        trained = [f"{statistics.fmean(end):.3f}" if end else "-" for end in ends]
        rate = "-" if group[0]["rate"] is None else f"{group[0]['rate']:g}"
        mean = f"{statistics.fmean(scores):.2f} ± {spread}"
        lines.append("| " + " | ".join([start, name, rate, *years, mean, each, *trained]) + " |")
    lines += ["", "| start | difference within a seed | mean | seeds |", "|---|---|---|---|"]
    for (start, name), group in groups.items():
        for other, reference in groups.items():
            if other[0] == start and "library" in other[1] and "nce" in name:
                by_seed = {run["seed"]: run["test"] for run in reference}
                apart = [r["test"] - by_seed[r["seed"]] for r in group if r["seed"] in by_seed]
                if not apart:
                    continue
                each = ", ".join(f"{value:+.2f}" for value in apart)
                mean = f"{statistics.fmean(apart):+.2f}"
                lines.append(f"| {start} | {name} minus {other[1]} | {mean} | {each} |")
    return "\n".join(lines)


def name_of(run):
    if run["family"] == "untrained":
        return "no training"
    kind = "target" if is_ess(run["family"]) else "scale"
    return f"{run['family']}, {kind} {run['value']:g} ({run['choice']})"


def is_ess(family):
    return family.endswith("-ess")


def year(run, wanted):
    scores = [v for name, v in run["test_by_file"].items() if name.startswith(wanted)]
    return statistics.fmean(scores) if scores else float("nan")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--data", type=Path, help="folder of SemEval STS, a folder a year")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--commit", help="commit of the code, for a copy without git")
    parser.add_argument("--show", type=Path, help="print the tables of a results file and stop")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="in place of two, and three from new weights")
    parser.add_argument("--workers", type=int, default=12, help="processes side by side")
    parser.add_argument("--starts", nargs="+", default=list(RATES), choices=list(RATES))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--check-fit", action="store_true", help="against the library's trainer")
    parser.add_argument("--tiny", action="store_true", help="one layer, two steps: does it work")
    return parser.parse_args()


def main():
    options = arguments()
    if options.show:
        print(table(json.loads(options.show.read_text())))
        return
    if not options.model or not options.data:
        raise SystemExit("--model and --data are needed; README.md says where they come from")
    options.device = "cpu" if options.cpu or options.check_fit else "cuda"
    if options.check_fit:
        check_fit(options)
        return
    if options.tiny:
        options.seeds, options.workers = 1, 1
    data = read_data(options.data, options.tiny)
    results = {
        "environment": environment([TUNING_SEED, *range(options.seeds)], options.device),
        "tiny": options.tiny,
        "form of ESS": "ratio of means over all batches",
        "training_pairs": len(data["train"]),
        "pairs": {n: {k: len(v) for k, v in data[n].items()} for n in ("validation", "test")},
        "tuning": [],
        "runs": [],
        "seconds": 0.0,
    }
    if options.commit:
        results["environment"]["commit"] = options.commit
    if options.out.exists():
        results |= continued(options, results)
    before, started = results["seconds"], time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.workers, start_worker, (options,)) as pool:

        def run_all(jobs):
            known = {identity(record): record for record in results["tuning"] + results["runs"]}
            jobs = list(jobs)
            new = [job for job in jobs if identity(job) not in known]
            for record in pool.imap(train, new, chunksize=1):
                shown = {key: record[key] for key in IDENTITY}
                print(shown, f"validation {record['validation']:.2f}", flush=True)
                record["commit"] = results["environment"]["commit"]
                known[identity(record)] = record
                results["runs" if record["final"] else "tuning"].append(record)
                results["seconds"] = round(before + time.perf_counter() - started, 1)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            return [known[identity(job)] for job in jobs]

        for start in options.starts:
            compare(start, options, run_all)
    print(table(results), f"\nwrote {options.out}, {results['seconds']} s")


def identity(record):
    """What distinguishes one run from another."""
    return tuple(record[key] for key in IDENTITY)


def continued(options, results):
    """What an earlier call has run, if it was asked for the same; each run names its commit."""
    before = json.loads(options.out.read_text())
    same = ("tiny", "form of ESS", "training_pairs", "pairs")
    different = {key for key in same if before.get(key) != results[key]}
    for run in before["tuning"] + before["runs"]:
        if run["epochs"] != epochs_of(run["start"], options):
            different.add("number of epochs")
        if run["device"] != options.device:
            different.add("device")
    if different:
        said = ", ".join(sorted(different))
        raise SystemExit(f"{options.out} holds runs with another {said}; give another --out")
    kept = {key: before[key] for key in ("tuning", "runs", "seconds")}
    return {**kept, "earlier": [*before.get("earlier", []), before["environment"]]}


if __name__ == "__main__":
    main()
