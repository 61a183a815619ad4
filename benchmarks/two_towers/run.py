"""FlatNCE against open_clip's ``ClipLoss``: two small towers, batch 32, three kinds of scale.

    python benchmarks/two_towers/run.py --root CIFAR
    python benchmarks/two_towers/run.py --cpu --tiny
    python benchmarks/two_towers/run.py --show benchmarks/two_towers/results.json

CIFAR holds CIFAR-10's binary files: data_batch_*.bin and test_batch.bin. One tower sees the left
of an image, the other tower, of another architecture, the right. Neither sees the eight columns
in between. The scale is learned, or fixed and tuned, or follows an ESS target. The script writes
the results file after every run, and the same command continues it.
"""

import argparse
import importlib.util
import json
import math
import multiprocessing
import statistics
import time
from pathlib import Path

import torch
from scipy.stats import t as student
from torch import nn

from flatnce import EssController, FlatNCE, InfoNCE, Monitor
from flatnce.integrations.open_clip import FlatClipLoss
from flatnce.pretrain.runs.log import environment

BATCH, POOL, SIDE, SEEN, WIDTH = 32, 1000, 32, 12, 128
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
SCALE_AT_START, SCALE_BOUND = 1 / 0.07, 100.0  # CLIP's
TUNING_SEED, LAST_STEPS, SHOWN = 100, 100, ("ess", "gain", "top1")
SCALES, TARGETS = (5.0, 10.0, 20.0, 40.0, 80.0), (0.075, 0.15, 0.3, 0.45, 0.6)
FAMILIES = {
    "ClipLoss, learned": (None,),
    "FlatClipLoss, learned": (None,),
    "ClipLoss, fixed": SCALES,
    "FlatClipLoss, fixed": SCALES,
    "InfoNCE-ESS": TARGETS,
    "FlatNCE-ESS": TARGETS,
}
FIRST = {
    "ClipLoss, learned": None,
    "FlatClipLoss, learned": None,
    "ClipLoss, fixed": 20.0,
    "FlatClipLoss, fixed": 20.0,
    "InfoNCE-ESS": 0.3,
    "FlatNCE-ESS": 0.075,
}
"""The value at which the rate is chosen. For an ESS target, the image study chose it."""
IDENTITY = ("family", "value", "rate", "seed", "final")
WORKER = {}
HERE = Path(__file__).parent
SMOKE = HERE.parents[1] / "build" / "two-towers-smoke.json"


def clip_loss():
    """open_clip's loss from its own file, because the package also needs image libraries."""
    found = importlib.util.find_spec("open_clip")
    if found is None:
        raise SystemExit("open_clip is not to be found: pip install open_clip_torch")
    path = Path(found.submodule_search_locations[0]) / "loss.py"
    spec = importlib.util.spec_from_file_location("open_clip_loss", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ClipLoss()


class Held(nn.Module):
    """A loss called as ``ClipLoss``, whose scale is fixed or held by an ESS target."""

    def __init__(self, loss_fn, scale=None):
        super().__init__()
        self.loss_fn, self.fixed = loss_fn, scale

    def forward(self, left, right, learned):
        """The loss; the learned scale is not used."""
        if self.fixed is None:
            return self.loss_fn(left, right)
        return self.loss_fn(left, right, torch.tensor(self.fixed, device=left.device))

    @property
    def scale(self):
        """The scale of the next step."""
        return self.fixed or 1 / float(self.loss_fn.temperature)


def loss_of(family, value):
    """The loss of a family, called with the rows of both towers and the learned scale."""
    kind = family.split(",")[0]
    if kind.endswith("-ESS"):
        controller = EssController(value, temperature_at_start=1 / SCALE_AT_START)
        objective = {"FlatNCE-ESS": FlatNCE, "InfoNCE-ESS": InfoNCE}[kind]
        return Held(objective(controller, layout="two_tower", normalize=False))
    loss_fn = clip_loss() if kind == "ClipLoss" else FlatClipLoss()
    return loss_fn if value is None else Held(loss_fn, value)


def read_images(root, tiny):
    """Training, validation and test images, bytes; noise of the same shape with ``--tiny``."""
    if tiny:
        generator = torch.Generator().manual_seed(0)
        made = torch.randint(0, 256, (384, 3, SIDE, SIDE), generator=generator).byte()
        return {"train": made[:128], "validation": made[128:256], "test": made[256:]}

    def read(path):
        rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        return rows.reshape(-1, 1 + 3 * SIDE * SIDE)[:, 1:].reshape(-1, 3, SIDE, SIDE)

    paths = sorted(root.glob("data_batch_*.bin"))
    if not paths:
        raise FileNotFoundError(f"no data_batch_*.bin in {root}; unpack CIFAR-10's binary version")
    images = torch.cat([read(path) for path in paths])
    return {
        "train": images[:-POOL],
        "validation": images[-POOL:],
        "test": read(root / "test_batch.bin"),
        "files": [path.name for path in paths],
    }


def halves(images):
    """Left and right of images, standardised roughly."""
    images = images.float() / 127.5 - 1
    return images[..., :SEEN], images[..., -SEEN:]


def augment(images, generator):
    """The whole image mirrored or not and moved by up to four pixels, then cut."""
    n, padded = len(images), nn.functional.pad(images, (4, 4, 4, 4))
    moved = torch.randint(0, 9, (2, n, 1), generator=generator).to(images.device)
    mirrored = (torch.rand(n, 1, generator=generator) < 0.5).to(images.device)
    along = torch.arange(SIDE, device=images.device)
    columns = torch.where(mirrored, along.flip(0), along) + moved[0]
    rows = along + moved[1]
    each = torch.arange(n, device=images.device)[:, None, None]
    cut = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    return halves(cut.permute(0, 3, 1, 2))


class Plain(nn.Sequential):
    """Six convolutions with batch normalisation."""

    def __init__(self):
        layers, before = [], 3
        for width, stride in ((48, 1), (48, 2), (96, 1), (96, 2), (192, 1), (192, 2)):
            layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(768, WIDTH))


class Separable(nn.Sequential):
    """A patch stem and four residual blocks of depthwise convolutions, group normalisation."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 128, 2, 2), *(Block(128) for _ in range(4)),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(512), nn.Linear(512, WIDTH),
        )  # fmt: skip


class Block(nn.Module):
    """Depthwise, then two pointwise convolutions, with a residual connection."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width), nn.GroupNorm(1, width),
            nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1),
        )  # fmt: skip

    def forward(self, x):
        """Return the input plus the output of the convolutions."""
        return x + self.inner(x)


class Towers(nn.Module):
    """Both towers and the logarithm of the learned scale, as CLIP has it."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Plain(), Separable()
        self.log_scale = nn.Parameter(torch.tensor(math.log(SCALE_AT_START)))

    def forward(self, left, right):
        """Unit rows of both."""
        rows = (self.left(left), self.right(right))
        return tuple(nn.functional.normalize(row, dim=1) for row in rows)


def start_worker(options):
    """Set the options only: a pool silently restarts a worker that fails in its initializer."""
    WORKER["options"] = options


def load(options):
    """Load the images, once per process, at its first run."""
    torch.set_num_threads(1)
    data = read_images(options.root, options.tiny)
    data.pop("files", None)
    WORKER["data"] = {name: images.to(options.device) for name, images in data.items()}


def train(job):
    """One run: recall on validation (and, if final, on the test pools), and the last steps."""
    options = WORKER["options"]
    if "data" not in WORKER:
        load(options)
    images = WORKER["data"]["train"]
    torch.manual_seed(job["seed"])
    model = Towers().to(options.device)
    loss_fn = loss_of(job["family"], job["value"]).to(options.device)
    generator = torch.Generator().manual_seed(job["seed"])
    started = time.perf_counter()
    last = fit(model, loss_fn, images, options.epochs, job["rate"], generator)
    record = {**job, **last, "seconds": round(time.perf_counter() - started, 1)}
    model.eval()
    for split in ("validation", "test") if job["final"] else ("validation",):
        record[split] = recall(model, WORKER["data"][split])
    return record


def fit(model, loss_fn, images, epochs, rate, generator):
    """AdamW with a tenth of warm-up and a cosine; the diagnostics over the last steps."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]  # CLIP decays neither gains nor scale
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=rate,
    )
    steps = len(images) // BATCH
    total = epochs * steps
    warm = max(1, total // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / total))),
    )
    reader, monitor = FlatClipLoss(), Monitor(rows=0)
    for step in range(total):
        if step % steps == 0:
            order = torch.randperm(len(images), generator=generator).to(images.device)
        start = step % steps * BATCH
        batch = images[order[start : start + BATCH]]
        left, right = model(*augment(batch, generator))
        scale = model.log_scale.exp()
        optimizer.zero_grad()
        loss_fn(left, right, scale).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.log_scale.clamp_(0, math.log(SCALE_BOUND))
            if total - step <= LAST_STEPS:  # computed by the same function for both losses
                held = torch.tensor(loss_fn.scale) if isinstance(loss_fn, Held) else scale.detach()
                reader(left.detach(), right.detach(), held)
                monitor.update(reader.last)
    means = monitor.compute()
    found = {"loss": means["objective_loss"], **{name: means[name] for name in SHOWN}}
    ended = loss_fn.scale if isinstance(loss_fn, Held) else model.log_scale.exp().item()
    return {"steps": total, **found, "scale_at_end": ended}


@torch.no_grad()
def recall(model, images):
    """Per cent of rows whose partner is first among 1,000: both ways, mean over the pools."""
    ways = []
    for pool in images.split(POOL):
        left, right = model(*halves(pool))
        scores, own = left @ right.T, torch.arange(len(pool), device=left.device)
        ways.append([100 * float((s.argmax(dim=1) == own).double().mean())
                     for s in (scores, scores.T)])  # fmt: skip
    to_right, to_left = (statistics.fmean(way) for way in zip(*ways, strict=True))
    return {"to_right": to_right, "to_left": to_left, "mean": (to_right + to_left) / 2}


def best(records, **wanted):
    """The tuning record with the best validation score."""
    fitting = [r for r in records if all(r[k] == v for k, v in wanted.items())]
    return max(fitting, key=lambda record: record["validation"]["mean"])


def compare(options, run_all):
    """Each family's rate on validation, at that rate its value, then the seeds on the test pools.

    An ESS family is also reported at its first value, which was not chosen here.
    """
    rates = RATES[2:3] if options.tiny else RATES
    same = {"seed": TUNING_SEED, "final": False}
    tuning = run_all(
        {"family": family, "value": FIRST[family], "rate": rate, **same}
        for family in FAMILIES
        for rate in rates
    )
    tuning += run_all(
        {"family": family, "value": value, "rate": best(tuning, family=family)["rate"], **same}
        for family, values in FAMILIES.items()
        for value in values[: 2 if options.tiny else None]
        if value != FIRST[family]
    )
    chosen = {}
    for family in FAMILIES:
        of = best(tuning, family=family)
        chosen[family, of["value"], of["rate"]] = "best"
        if family.endswith("ESS"):
            rate = best(tuning, family=family, value=FIRST[family])["rate"]
            key = (family, FIRST[family], rate)
            chosen[key] = "best, of images" if key in chosen else "of images"
    run_all(
        {"family": family, "value": value, "rate": rate, "seed": seed, "final": True,
         "choice": choice}
        for seed in range(options.seeds)  # outermost, so that a partial file has whole seeds
        for (family, value, rate), choice in chosen.items()
    )  # fmt: skip


def name_of(run):
    """The family with its value."""
    if run["value"] is None:
        return run["family"]
    kind = "target" if run["family"].endswith("ESS") else "scale"
    return f"{run['family']}, {kind} {run['value']:g} ({run['choice']})"


def table(results):
    """Markdown: what was tuned, the scores, and the differences within a seed."""
    rates = sorted({record["rate"] for record in results["tuning"]})
    lines = ["| validation R@1 at rate | value | " + " | ".join(f"{r:g}" for r in rates) + " |"]
    lines.append("|---" * (2 + len(rates)) + "|")
    for family, values in FAMILIES.items():
        for value in values:
            own = [r for r in results["tuning"] if (r["family"], r["value"]) == (family, value)]
            if not own:
                continue
            by = {record["rate"]: f"{record['validation']['mean']:.1f}" for record in own}
            shown = "" if value is None else f"{value:g}"
            cells = [by.get(rate, "") for rate in rates]
            lines.append("| " + " | ".join([family, shown, *cells]) + " |")
    lines += ["", "| objective | rate | left to right | right to left | mean | seeds | ESS | gain "
              "| scale |", "|---" * 9 + "|"]  # fmt: skip
    groups = {}
    for run in results["runs"]:
        groups.setdefault(name_of(run), []).append(run)
    for name, group in groups.items():
        scores = [run["test"]["mean"] for run in group]
        spread = f"{statistics.stdev(scores):.2f}" if len(scores) > 1 else "-"
        ways = [f"{statistics.fmean(r['test'][w] for r in group):.2f}"
                for w in ("to_right", "to_left")]  # fmt: skip
        ends = [statistics.fmean(r[k] for r in group) for k in ("ess", "gain", "scale_at_end")]
        cells = [name, f"{group[0]['rate']:g}", *ways]
        cells += [f"{statistics.fmean(scores):.2f} ± {spread}"]
        cells += [", ".join(f"{score:.2f}" for score in scores)]
        lines.append("| " + " | ".join([*cells, *(f"{end:.3g}" for end in ends)]) + " |")
    lines += ["", "| difference within a seed | mean | 95 % interval | seeds |", "|---" * 4 + "|"]
    tuned = {settings(record): record["validation"]["mean"] for record in results["tuning"]}
    theirs = max(
        (name for name in groups if name.startswith("ClipLoss")),
        key=lambda name: tuned[settings(groups[name][0])],
    )
    for name in groups:
        if name != theirs:
            lines.append(difference(groups, name, theirs))
    return "\n".join(lines)


def settings(record):
    """What was chosen on validation."""
    return record["family"], record["value"], record["rate"]


def difference(groups, ours, theirs):
    """A row: the difference of two groups paired by seed, with Student's interval."""
    by_seed = {run["seed"]: run["test"]["mean"] for run in groups[theirs]}
    pairs = [(r["test"]["mean"], by_seed[r["seed"]]) for r in groups[ours] if r["seed"] in by_seed]
    apart = [own - other for own, other in pairs]
    mean, interval = statistics.fmean(apart), "-"
    if len(apart) > 1:
        error = statistics.stdev(apart) / math.sqrt(len(apart))
        half = float(student.ppf(0.975, len(apart) - 1)) * error
        interval = f"{mean - half:+.2f} to {mean + half:+.2f}"
    each = ", ".join(f"{value:+.2f}" for value in apart)
    return f"| {ours} minus {theirs} | {mean:+.2f} | {interval} | {each} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="folder of CIFAR-10's binary files")
    parser.add_argument(
        "--out", type=Path, help="results.json beside this file; with --tiny build"
    )
    parser.add_argument("--show", type=Path, help="print the tables of a results file and stop")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=8, help="processes side by side")
    parser.add_argument("--commit", help="commit of the code, for a copy without git")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="noise, four steps: does it work")
    return parser.parse_args()


def main():
    options = arguments()
    if options.show:
        print(table(json.loads(options.show.read_text())))
        return
    if not options.root and not options.tiny:
        raise SystemExit("--root is needed: the folder of CIFAR-10's binary files")
    options.device = "cpu" if options.cpu else "cuda"
    options.out = options.out or HERE / "results.json"
    if options.tiny:
        options.seeds, options.epochs, options.workers = 2, 1, 1
        options.out = SMOKE if options.out == HERE / "results.json" else options.out
        options.out.parent.mkdir(exist_ok=True)
    data = read_images(options.root, options.tiny)
    results = {
        "environment": environment([TUNING_SEED, *range(options.seeds)], options.device),
        "tiny": options.tiny,
        "seconds": 0.0,
        "epochs": options.epochs,
        "training_files": data.pop("files", []),
        "images": {name: len(images) for name, images in data.items()},
        "tuning": [],
        "runs": [],
    }
    if options.commit:
        results["environment"]["commit"] = options.commit
    if options.out.exists():
        results |= continued(options.out, results)
    before, started = results["seconds"], time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.workers, start_worker, (options,)) as pool:

        def run_all(jobs):
            known = {identity(record): record for record in results["tuning"] + results["runs"]}
            jobs = list(jobs)
            new = [job for job in jobs if identity(job) not in known]
            for record in pool.imap(train, new, chunksize=1):
                said = {key: record[key] for key in (*IDENTITY, "seconds")}
                print(said, f"validation {record['validation']['mean']:.2f}", flush=True)
                known[identity(record)] = record
                results["runs" if record["final"] else "tuning"].append(record)
                results["seconds"] = round(before + time.perf_counter() - started, 1)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            return [known[identity(job)] for job in jobs]

        compare(options, run_all)
    print(table(results), f"\nwrote {options.out}, {results['seconds']} s")


def identity(record):
    """What distinguishes one run from another."""
    return tuple(record[key] for key in IDENTITY)


def continued(path, results):
    """What an earlier call has run, if it was asked for the same."""
    before = json.loads(path.read_text())
    same = ("tiny", "epochs", "training_files", "images")
    different = [key for key in same if before[key] != results[key]]
    if before["environment"]["commit"] != results["environment"]["commit"]:
        different.append("commit")
    if different:
        raise SystemExit(
            f"{path} holds runs with another {', '.join(different)}; give another --out"
        )
    return {key: before[key] for key in ("tuning", "runs", "seconds")}


if __name__ == "__main__":
    main()
