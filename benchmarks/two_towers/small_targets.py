"""ESS targets below 0.075 for two towers, which ``run.py`` does not try, on a CPU.

    python benchmarks/two_towers/small_targets.py --root CIFAR
    python benchmarks/two_towers/small_targets.py --tiny
    python benchmarks/two_towers/small_targets.py --show

Stated before the runs: data, towers, training and scores are those of ``run.py``. With one seed,
validation chooses target and rate for each loss; if one chooses the smallest target, half of it is
added for both. Then five other seeds are scored on the test images, beside both losses at their
best settings without a target. The script writes
``small_targets.json`` after every run, and the same command continues it.
"""

import argparse
import json
import multiprocessing
from pathlib import Path

import run as towers

from flatnce.pretrain.runs.log import environment

TARGETS, BEYOND, RATES = (0.0375, 0.01875, 0.009375), 0.0046875, (1e-3, 3e-3)
FAMILIES = ("FlatNCE-ESS", "InfoNCE-ESS")
COMPARED = (("FlatClipLoss, learned", None, 1e-3), ("ClipLoss, fixed", 10.0, 1e-3))
"""The best setting of each loss without a target, which ``run.py`` chose."""
RESULTS = Path(__file__).with_name("small_targets.json")


def compare(run_all, seeds):
    """Target and rate of each loss on validation, then the seeds on the test pools."""
    same = {"seed": towers.TUNING_SEED, "final": False}
    jobs = [(target, rate) for target in TARGETS for rate in RATES]
    tuning = run_all(
        {"family": family, "value": target, "rate": rate, **same}
        for target, rate in jobs
        for family in FAMILIES
    )
    if any(towers.best(tuning, family=f)["value"] == TARGETS[-1] for f in FAMILIES):
        tuning += run_all(
            {"family": family, "value": BEYOND, "rate": rate, **same}
            for rate in RATES
            for family in FAMILIES
        )
    chosen = [towers.settings(towers.best(tuning, family=family)) for family in FAMILIES]
    run_all(
        {"family": family, "value": value, "rate": rate, "seed": seed, "final": True,
         "choice": "best"}
        for seed in range(seeds)  # outermost, so that a partial file has whole seeds
        for family, value, rate in (*chosen, *COMPARED)
    )  # fmt: skip


def table(results):
    """Markdown: validation scores, test scores, and the differences within a seed."""
    lines = ["| loss | target | " + " | ".join(f"rate {rate:g}" for rate in RATES) + " |"]
    lines.append("|---" * (2 + len(RATES)) + "|")
    found = {towers.settings(r): r["validation"]["mean"] for r in results["tuning"]}
    for family in FAMILIES:
        for target in (*TARGETS, BEYOND):
            scores = [found.get((family, target, rate)) for rate in RATES]
            if any(scores):
                cells = [f"{score:.1f}" if score else "" for score in scores]
                lines.append("| " + " | ".join([family, f"{target:g}", *cells]) + " |")
    lines += ["", "| loss | rate | recall at 1 | seeds | ESS | gain | scale |", "|---" * 7 + "|"]
    groups = {}
    for record in results["runs"]:
        groups.setdefault(towers.name_of(record), []).append(record)
    for name, group in groups.items():
        ends = [towers.statistics.fmean(r[k] for r in group)
                for k in ("ess", "gain", "scale_at_end")]  # fmt: skip
        scores = [record["test"]["mean"] for record in group]
        spread = f" ± {towers.statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        cells = [name, f"{group[0]['rate']:g}", f"{towers.statistics.fmean(scores):.2f}{spread}"]
        cells += [", ".join(f"{score:.2f}" for score in scores), *(f"{end:.3g}" for end in ends)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| difference within a seed | mean | 95 % interval | seeds |", "|---" * 4 + "|"]
    ours = [name for name in groups if "-ESS" in name]
    theirs = [name for name in groups if "-ESS" not in name]
    lines += [towers.difference(groups, own, other) for own in ours for other in theirs]
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="with --tiny build")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--tiny", action="store_true", help="noise, four steps: does it work")
    parser.add_argument("--show", action="store_true", help="print the tables of --out and stop")
    return parser.parse_args()


def main():
    options = arguments()
    if options.show:
        print(table(json.loads(options.out.read_text())))
        return
    if not options.root and not options.tiny:
        raise SystemExit("--root is needed: the folder of CIFAR-10's binary files")
    options.device, options.epochs = "cpu", 10
    if options.tiny:
        options.seeds, options.epochs, options.workers = 2, 1, 1
        options.out = towers.SMOKE.with_name("small-targets-smoke.json")
        options.out.parent.mkdir(exist_ok=True)
        options.out.unlink(missing_ok=True)
    files = towers.read_images(options.root, options.tiny).get("files", [])
    results = {
        "environment": environment([towers.TUNING_SEED, *range(options.seeds)], "cpu"),
        "training_files": files,
        "tuning": [],
        "runs": [],
    }
    if options.out.exists():
        before = json.loads(options.out.read_text())
        if before["training_files"] != files:
            raise SystemExit(f"{options.out} holds runs with other images; give another --out")
        results |= {key: before[key] for key in ("tuning", "runs")}
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.workers, towers.start_worker, (options,)) as pool:

        def run_all(jobs):
            known = {towers.identity(r): r for r in results["tuning"] + results["runs"]}
            jobs = list(jobs)
            new = [job for job in jobs if towers.identity(job) not in known]
            for record in pool.imap(towers.train, new, chunksize=1):
                print({key: record[key] for key in (*towers.IDENTITY, "seconds", "ess")},
                      f"validation {record['validation']['mean']:.2f}", flush=True)  # fmt: skip
                known[towers.identity(record)] = record
                results["runs" if record["final"] else "tuning"].append(record)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            return [known[towers.identity(job)] for job in jobs]

        compare(run_all, options.seeds)
    print(table(results), f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
