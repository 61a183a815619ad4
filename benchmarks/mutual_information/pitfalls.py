"""Wrong ways to compute mutual information from a critic, and the size of their errors.

    python benchmarks/mutual_information/pitfalls.py              writes pitfalls.json, two cores
    python benchmarks/mutual_information/pitfalls.py --tables     prints the page's tables

Every figure of docs/mutual-information-pitfalls.md comes from pitfalls.json.
"""

import argparse
import copy
import json
import math
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from flatnce import mi
from flatnce.core.diagnostics import best_scale
from flatnce.pretrain.runs.log import environment

HERE = Path(__file__).parent
INFONCE, DV, NWJ, SMILE, FLATNCE, FLO, CROSS_FITTED = (
    mi.BOUNDS[name].value
    for name in ("infonce", "dv", "nwj", "smile", "flatnce", "flo", "flo-cross-fitted")
)


def drawn(task, n, seed):
    """Pairs of a task as float32 tensors."""
    return tuple(torch.from_numpy(side).float() for side in task.sample(n, seed))


def true_scores(nats, x, y):
    """The optimal critic of a staircase, log p(y|x)/p(y), for all pairs, in float64."""
    x, y = x.double(), y.double()
    square = -math.expm1(-2 * nats / x.shape[1])
    own = [square * side.square().sum(dim=1) / 2 for side in (x, y)]
    return nats + (square**0.5 * x @ y.T - own[0][:, None] - own[1]) / (1 - square)


def optimal(nats, n, seed):
    return true_scores(nats, *drawn(mi.tasks.staircase(nats), n, seed))


def summary(values):
    values = np.array([float(value) for value in values])
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)),
        "least": float(values.min()),
        "most": float(values.max()),
        "count": len(values),
    }


def collected(records):
    """Summarise each number over the repetitions, which are one dictionary each."""
    return {name: summary([record[name] for record in records]) for name in records[0]}


def trained(critic, objective, x, y, steps, batch=128, watch=None, every=25):
    """Train a critic; call ``watch`` at intervals, and return its results."""
    optimizer = torch.optim.Adam(critic.parameters(), lr=5e-4)
    seen = []
    for step in range(1, steps + 1):
        rows = torch.randperm(len(x))[:batch]
        if objective == "flo":
            loss = mi.BOUNDS["flo"].loss(critic(x[rows], y[rows]), critic.dual(x[rows], y[rows]))
        else:
            loss = mi.BOUNDS[objective].loss(critic(x[rows], y[rows]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), 5.0)
        optimizer.step()
        if watch is not None and step % every == 0:
            with torch.no_grad():
                seen.append(watch(critic))
    return seen


def stopped(critic, objective, train, validation, steps):
    """Train; keep the weights whose calibrated value on validation rows was best."""
    best = [-math.inf, copy.deepcopy(critic.state_dict())]

    x, y = (side[:500] for side in validation)

    def look(critic):
        if objective == "flo":
            value = float(FLO(critic(x, y), critic.dual(x, y)))
        else:
            scores = critic(x, y)
            value = float(INFONCE(best_scale(scores, 1.0, limits=(1e-4, 1e4)) * scores))
        if value > best[0]:
            best[:] = [value, copy.deepcopy(critic.state_dict())]

    trained(critic, objective, *train, steps, watch=look, every=50)
    critic.load_state_dict(best[1])
    return critic.eval()


def parts(task, n, seed):
    """Split into a half for training, a quarter for stopping and a quarter for evaluation."""
    x, y = drawn(task, n, seed)
    sizes = (n // 2, n // 4, n - n // 2 - n // 4)
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


# --- One repetition of each pitfall --------------------------------------------------------------


def training_rows(seed):
    """Independent tables, 20 + 20 columns, 1,000 rows: the truth is 0."""
    torch.manual_seed(seed)
    train, validation, test = parts(mi.tasks.null(20), 1000, seed)
    found = {}
    for objective in ("infonce", "dv"):
        critic = mi.critic_for("dot", (20, 20))
        trained(critic, objective, *train, 500)
        value = mi.BOUNDS[objective].value
        with torch.no_grad():
            found[f"{objective}, training rows"] = value(critic(*train).double())
            found[f"{objective}, other rows"] = value(critic(*test).double())
    whole = [torch.cat(side) for side in zip(train, validation, test, strict=True)]
    honest = mi.estimate(*whole, seed=seed, baselines=False)
    return found | {"mi.estimate": honest.nats, "its lower limit": honest.lower}


def one_permutation(seed):
    found = {}
    for nats in (6, 8):
        scores = optimal(nats, 2500, seed)
        shuffled = scores[torch.arange(2500), torch.randperm(2500)]
        own = scores.diagonal().mean()
        found[f"{nats}: DV, one permutation"] = own - shuffled.exp().mean().log()
        found[f"{nats}: DV, all pairs"] = DV(scores)
        found[f"{nats}: NWJ, one permutation"] = 1 + own - shuffled.exp().mean()
        found[f"{nats}: NWJ, all pairs"] = NWJ(scores)
    return found


def minus_u(seed):
    """The value of FlatNCE with 127 negatives as the true critic is scaled up."""
    found = {}
    for nats in (4, 6):
        x, y = drawn(mi.tasks.staircase(nats), 40 * 256, seed)
        for scale in (1, 2, 4, 8):
            batches = zip(x.split(256), y.split(256), strict=True)
            values = []
            for left, right in batches:
                scores = scale * true_scores(nats, left[:128], right)
                rows = scores[:, :128]
                values.append((FLATNCE(rows), INFONCE(rows), CROSS_FITTED(rows, scores[:, 128:])))
            for name, column in zip(
                ("minus û", "InfoNCE", "cross-fitted FLO"), zip(*values, strict=True), strict=True
            ):
                found[f"{nats}, scale {scale}: {name}"] = torch.stack(column).mean()
    return found


def smile(seed):
    found = {
        f"true critic, {nats}": SMILE(optimal(nats, 2500, seed), 5.0) for nats in (4, 6, 8, 10)
    }
    torch.manual_seed(seed)
    train, validation, test = parts(mi.tasks.find("multinormal-sparse-5-5-2-2.0"), 5000, seed)
    critic = mi.critic_for("cosine", (5, 5))
    stopped(critic, "infonce", train, validation, 500)
    with torch.no_grad():
        scores = critic(*test).double()
    return found | {
        "trained critic: SMILE": SMILE(scores),
        "trained critic: InfoNCE": INFONCE(scores),
    }


def recentring(seed):
    """DV and NWJ on an InfoNCE critic, whose c(x) is arbitrary; then with c(x) removed."""
    torch.manual_seed(seed)
    found = {}
    for id, critic in (
        ("asinh-student-identity-5-5-2", mi.critic_for("cosine", (5, 5))),
        ("staircase-6", mi.critic_for("dot", (20, 20))),
    ):
        train, validation, test = parts(mi.tasks.find(id), 4000, seed)
        stopped(critic, "infonce", train, validation, 500)
        with torch.no_grad():
            scores = critic(*test).double()
            pool = critic(test[0], validation[1]).double()
        centred = mi.recentre(scores, pool.logsumexp(dim=1) - math.log(pool.shape[1]))
        found |= {
            f"{id}: InfoNCE": INFONCE(scores),
            f"{id}: DV": DV(scores),
            f"{id}: NWJ": NWJ(scores),
            f"{id}: DV recentred": DV(centred),
        }
    return found


def mean_of_u(seed):
    torch.manual_seed(seed)
    found = {}
    for id, width in (("multinormal-sparse-5-5-2-2.0", 5), ("staircase-6", 20)):
        train, validation, test = parts(mi.tasks.find(id), 4000, seed)
        critic = mi.critic_for("dot", (width, width), dual="free")
        stopped(critic, "flo", train, validation, 500)
        with torch.no_grad():
            scores, dual = critic(*test), critic.dual(*test)
        found[f"{id}: minus the mean of u"] = -dual.mean()
        found[f"{id}: FLO"] = FLO(scores.double(), dual.double())
    return found


def unbounded(seed):
    """FlatNCE with a critic of unbounded scale, at the last step and corrected."""
    torch.manual_seed(seed)
    train, validation, test = parts(mi.tasks.staircase(6), 4000, seed)
    critic = mi.critic_for("dot", (20, 20))
    trained(critic, "flatnce", *train, 600)
    with torch.no_grad():
        scale = best_scale(critic(*validation).double(), 1.0, limits=(1e-4, 1e4))
        scores = critic(*test).double()
    whole = [torch.cat(side) for side in zip(train, validation, test, strict=True)]
    found = {
        "InfoNCE as trained": INFONCE(scores),
        "factor from validation rows": scale,
        "InfoNCE calibrated": INFONCE(scale * scores),
    }
    for name, critic in (("unbounded", "dot"), ("bounded", "cosine")):
        answer = mi.estimate(
            *whole, method="flatnce", critic=critic, seed=seed, steps=600, baselines=False
        )
        found[f"mi.estimate, {name}"] = answer.nats
        found[f"flag scale, {name}"] = answer.flagged("scale")
    return found


def test_history(seed):
    """The maximum over checks on the test rows against the same weights on 20,000 new rows."""
    torch.manual_seed(seed)
    found = {}
    for id, width in (("null-5v5", 5), ("multinormal-sparse-5-5-2-2.0", 5)):
        task = mi.tasks.find(id)
        x, y = drawn(task, 200, seed)
        fresh = drawn(task, 20_000, 10_000 + seed)
        pieces = list(zip(fresh[0].split(100), fresh[1].split(100), strict=True))
        best = [-math.inf, 0.0]

        def look(critic, x=x, y=y, pieces=pieces, best=best):
            value = float(INFONCE(critic(x[100:], y[100:]).double()))
            if value > best[0]:
                best[0] = value
                best[1] = float(np.mean([float(INFONCE(critic(*piece))) for piece in pieces[:50]]))

        critic = mi.critic_for("dot", (width, width), hidden=(64, 64))
        trained(critic, "infonce", x[:100], y[:100], 300, batch=50, watch=look, every=5)
        found[f"{id}: maximum over test rows"], found[f"{id}: the same weights, fresh rows"] = best
    return found


def small_batches(seed):
    found = {}
    for nats in (4, 6, 10):
        x, y = drawn(mi.tasks.staircase(nats), 2560, seed)
        for size in (16, 64, 256, 2560):
            values = [
                INFONCE(true_scores(nats, *pair))
                for pair in zip(x.split(size), y.split(size), strict=True)
            ]
            found[f"{nats}: {size}"] = torch.stack(values).mean()
    return found


def bootstrap(seed):
    """InfoNCE of the true critic on 1,500 rows: pairs drawn again, or groups left out."""
    found = {}
    for nats in (4, 6):
        scores, random = optimal(nats, 1500, seed), np.random.default_rng(seed)
        again = []
        for _ in range(30):
            rows = torch.from_numpy(random.integers(0, 1500, 1500))
            again.append(float(INFONCE(scores[rows][:, rows])))
        group = torch.from_numpy(random.permutation(1500) % 20)
        left = np.array([float(INFONCE(scores[group != k][:, group != k])) for k in range(20)])
        error = math.sqrt(19 / 20 * ((left - left.mean()) ** 2).sum())
        found |= {
            f"{nats}: value": INFONCE(scores),
            f"{nats}: bootstrap mean": np.mean(again),
            f"{nats}: bootstrap 97.5 % point": np.quantile(again, 0.975),
            f"{nats}: jackknife mean": left.mean(),
            f"{nats}: jackknife standard error": error,
        }
    return found


STUDIES = {
    training_rows: 3,
    one_permutation: 30,
    minus_u: 3,
    smile: 5,
    recentring: 3,
    mean_of_u: 3,
    unbounded: 3,
    test_history: 20,
    small_batches: 10,
    bootstrap: 12,
}


def repetition(job):
    study, seed = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    began = time.process_time()
    found = {name: float(value) for name, value in study(seed).items()}
    return study.__name__, found, time.process_time() - began


# --- The tables of the page ----------------------------------------------------------------------


def shown(figure, decimals=2):
    """Mean and standard deviation, as the page writes them."""
    if figure["mean"] < -1000:
        return "below −1000"
    mean, sd = (signed(figure[name], decimals) for name in ("mean", "sd"))
    return f"{mean} ± {sd}"


def signed(value, decimals):
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def between(figure):
    return " to ".join(signed(figure[end], 1) for end in ("least", "most"))


def table(header, lines):
    rule = "|".join(["---"] * len(header))
    rows = [f"| {' | '.join(cells)} |" for cells in (header, *lines)]
    return "\n".join([rows[0], f"|{rule}|", *rows[1:]])


def tables(figures):
    """Each study's table in Markdown, by its name."""
    found = {}

    def of(study, name, decimals=2):
        return shown(figures[study][name], decimals)

    found["training_rows"] = table(
        ["estimate, truth 0", "training rows", "other rows"],
        [
            [
                label,
                of("training_rows", f"{name}, training rows"),
                of("training_rows", f"{name}, other rows"),
            ]
            for label, name in (("InfoNCE-trained, InfoNCE", "infonce"), ("DV-trained, DV", "dv"))
        ]
        + [
            ["`mi.estimate`", "", of("training_rows", "mi.estimate")],
            ["its lower limit", "", of("training_rows", "its lower limit")],
        ],
    )
    found["one_permutation"] = table(
        ["truth", "estimate", "one permutation", "smallest to largest", "all pairs"],
        [
            [
                str(nats),
                name,
                of("one_permutation", f"{nats}: {name}, one permutation"),
                between(figures["one_permutation"][f"{nats}: {name}, one permutation"]),
                of("one_permutation", f"{nats}: {name}, all pairs"),
            ]
            for nats in (6, 8)
            for name in ("DV", "NWJ")
        ],
    )
    found["minus_u"] = table(
        ["truth", "critic", "−û", "InfoNCE", "cross-fitted FLO"],
        [
            [str(nats), "the truth" if scale == 1 else f"{scale} × the truth"]
            + [
                of("minus_u", f"{nats}, scale {scale}: {name}")
                for name in ("minus û", "InfoNCE", "cross-fitted FLO")
            ]
            for nats in (4, 6)
            for scale in (1, 2, 4, 8)
        ],
    )
    found["smile"] = table(
        ["critic", "truth", "SMILE, τ = 5"],
        [["the truth", str(nats), of("smile", f"true critic, {nats}")] for nats in (4, 6, 8, 10)]
        + [
            ["InfoNCE-trained cosine", "1.02", of("smile", "trained critic: SMILE")],
            ["the same, read by InfoNCE", "1.02", of("smile", "trained critic: InfoNCE")],
        ],
    )
    found["recentring"] = table(
        ["task", "truth", "DV", "NWJ", "DV recentred", "InfoNCE"],
        [
            [label, truth]
            + [
                of("recentring", f"{id}: {name}")
                for name in ("DV", "NWJ", "DV recentred", "InfoNCE")
            ]
            for label, truth, id in (
                ("asinh-student 5 + 5, cosine", "0.45", "asinh-student-identity-5-5-2"),
                ("staircase-6, dot product", "6", "staircase-6"),
            )
        ],
    )
    found["mean_of_u"] = table(
        ["task", "truth", "−E[u]", "FLO, the bound"],
        [
            [
                id,
                truth,
                of("mean_of_u", f"{id}: minus the mean of u", 3),
                of("mean_of_u", f"{id}: FLO", 3),
            ]
            for id, truth in (("multinormal-sparse-5-5-2-2.0", "1.02"), ("staircase-6", "6"))
        ],
    )
    flags = {}
    for name in ("unbounded", "bounded"):
        raised = figures["unbounded"][f"flag scale, {name}"]
        flags[name] = f"in {raised['mean'] * raised['count']:.0f} of {raised['count']} runs"
    found["unbounded"] = table(
        ["FlatNCE-trained, staircase-6, truth 6", "nats", "flag `scale`"],
        [
            [
                "dot product, last step, InfoNCE as it is",
                of("unbounded", "InfoNCE as trained"),
                "",
            ],
            [
                "the same, times its factor from validation rows "
                f"({of('unbounded', 'factor from validation rows', 3)})",
                of("unbounded", "InfoNCE calibrated"),
                "",
            ],
            [
                '`mi.estimate(method="flatnce", critic="dot")`',
                of("unbounded", "mi.estimate, unbounded"),
                flags["unbounded"],
            ],
            [
                '`mi.estimate(method="flatnce")`, a bounded cosine',
                of("unbounded", "mi.estimate, bounded"),
                flags["bounded"],
            ],
        ],
    )
    found["test_history"] = table(
        ["task", "truth", "maximum over the test history", "the same weights on fresh rows"],
        [
            [id, truth]
            + [
                of("test_history", f"{id}: {name}", 3)
                for name in ("maximum over test rows", "the same weights, fresh rows")
            ]
            for id, truth in (("null-5v5", "0"), ("multinormal-sparse-5-5-2-2.0", "1.02"))
        ],
    )
    found["small_batches"] = table(
        ["candidates K", "log K", *(f"truth {nats}" for nats in (4, 6, 10))],
        [
            [f"{size:,}", f"{math.log(size):.2f}"]
            + [of("small_batches", f"{nats}: {size}") for nats in (4, 6, 10)]
            for size in (16, 64, 256, 2560)
        ],
    )
    found["bootstrap"] = table(
        ["InfoNCE of the true critic, 1,500 rows", "truth 4", "truth 6"],
        [
            [label, *(of("bootstrap", f"{nats}: {name}", 3) for nats in (4, 6))]
            for label, name in (
                ("value (spread over samples)", "value"),
                ("mean of 30 pair bootstraps", "bootstrap mean"),
                ("their 97.5 % point", "bootstrap 97.5 % point"),
                ("mean with a group left out", "jackknife mean"),
                ("jackknife standard error", "jackknife standard error"),
            )
        ],
    )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "pitfalls.json")
    parser.add_argument("--tables", action="store_true", help="print the tables of pitfalls.json")
    parser.add_argument("--only", nargs="*", help="names of studies, for a look")
    options = parser.parse_args()
    if options.tables:
        figures = json.loads(options.out.read_text(encoding="utf-8"))["figures"]
        print("\n\n".join(f"{name}\n\n{text}" for name, text in tables(figures).items()))
        return
    began = time.perf_counter()
    jobs = [
        (study, seed)
        for study, count in STUDIES.items()
        for seed in range(count)
        if not options.only or study.__name__ in options.only
    ]
    records, seconds = {}, {}
    with get_context("spawn").Pool(2) as pool:
        for name, found, took in pool.imap(repetition, jobs):
            records.setdefault(name, []).append(found)
            seconds[name] = seconds.get(name, 0.0) + took
    result = {
        "figures": {name: collected(each) for name, each in records.items()},
        "repetitions": {name: len(each) for name, each in records.items()},
        "core_seconds": {name: round(took, 1) for name, took in seconds.items()},
        "seconds": round(time.perf_counter() - began, 1),
        "environment": environment(range(max(STUDIES.values()))),
    }
    if options.only:
        print(json.dumps(result, indent=1, ensure_ascii=False))
        return
    options.out.write_text(
        json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"{options.out}: {result['seconds']} s")


if __name__ == "__main__":
    main()
