"""Write the tables of pages from the committed records.

python benchmarks/image_study/table.py
"""

import json
import re
import statistics
from pathlib import Path

import paper_figures
import small_batches
from choices import (
    BATCHES,
    CURVE,
    EVALUATION_SEEDS,
    NAMES,
    batch_of,
    best,
    fixed_temperatures,
    objective_of,
    rate_of,
    screening,
    target_of,
    targets,
    temperature_of,
)
from hypotheses import ARMS, difference, of_table, runs_of_curve, signed, table
from records import read_all

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE.parents[1] / "docs" / "results.md"
ESS = HERE.parents[1] / "docs" / "explain" / "effective-sample-size.md"
PAIRS = [
    (("FlatNCE", 32), ("InfoNCE", 32)),
    (("FlatNCE-ESS", 32), ("InfoNCE-ESS", 32)),
    (("FlatNCE", 128), ("InfoNCE", 128)),
    (("FlatNCE-ESS", 128), ("InfoNCE", 128)),
    (("FlatNCE-ESS", 128), ("InfoNCE-ESS", 128)),
    (("FlatNCE-ESS", 32), ("InfoNCE", 128)),
    (("FlatNCE", 32), ("InfoNCE", 128)),
    (("FlatNCE", 32), ("FlatNCE", 128)),
    (("FlatNCE-ESS", 32), ("FlatNCE", 32)),
    (("FlatNCE-ESS", 128), ("FlatNCE", 128)),
    (("InfoNCE-ESS", 32), ("InfoNCE", 32)),
    (("InfoNCE-ESS", 128), ("InfoNCE", 128)),
]
"""The arms of piece 5, each with its batch, whose difference is shown."""
ESTIMATORS = ("raw", "row", "pooled", "running", "images", "closed", "closed-running")


def rows_of(records, first_head, first):
    """A table with a row per run: the first column, what was set, what was measured.

    Arguments:
        records: Pairs of a record and whether its run was chosen, for bold type.
        first_head: Head of the first column.
        first: Gives the cell of the first column from a record.
    """
    names = ("objective", "τ", "rate", "linear", "kNN, k = 20", "kNN, k = 200", "ESS", "gain")
    rows = []
    for record, is_best in records:
        found, last = record["evaluation"], record["metrics"][-1]
        name = NAMES[objective_of(record)]
        numbers = [f"{100 * found[key]:.2f}" for key in ("linear", "knn_20", "knn_200")]
        if is_best:
            name, numbers[0] = f"**{name}**", f"**{numbers[0]}**"
        cells = [first(record), name, temperature_of(record), rate_of(record), *numbers]
        rows.append([*cells, f"{last['ess_paper']:.2f}", f"{last['gain']:.2f}"])
    return of_table((first_head, *names), rows)


def marked(groups):
    """Each run of groups of runs with whether it is the best of its objective in its group."""
    for runs in groups:
        chosen = [best(_of(runs, objective))["name"] for objective in NAMES]
        yield from ((one, one["name"] in chosen) for one in runs)


def screen(records, piece):
    """A row per run of a screen, in the order of its steps."""
    runs = sorted((one for one in records if one["piece"] == piece), key=_order)
    return rows_of(marked([runs]), "step", lambda one: one["piece_step"])


def rates(records):
    """A row per rate at batch 512, at the temperature of the choice."""
    runs = [one for o in NAMES for one in screening(records, o, 512) if temperature_of(one) == 0.2]
    runs = sorted(runs, key=lambda one: (rate_of(one), objective_of(one) != "infonce"))
    return rows_of(marked([runs]), "piece", lambda one: one["piece"])


def fixed(records):
    """A row per run of 100 epochs of piece 3, by batch."""
    groups = [
        [one for o in NAMES for one in fixed_temperatures(records, o, batch)] for batch in BATCHES
    ]
    return rows_of(marked(sorted(g, key=_order) for g in groups if g), "batch", batch_of)


def targeted(records):
    """A row per run of piece 4, with the temperature of its last epoch; no choice is marked."""
    runs = [one for objective in NAMES for one in targets(records, objective)]
    names = ("objective", "target", "last τ", "linear", "kNN, k = 20", "kNN, k = 200", "ESS, raw")
    rows = []
    for one in sorted(runs, key=lambda one: (objective_of(one) != "infonce", target_of(one))):
        found, last = one["evaluation"], one["metrics"][-1]
        cells = [NAMES[objective_of(one)], target_of(one), f"{last['temperature']:.3f}"]
        cells += [f"{100 * found[key]:.2f}" for key in ("linear", "knn_20", "knn_200")]
        rows.append([*cells, f"{last['ess_paper']:.2f}", f"{last['gain']:.2f}"])
    return of_table((*names, "gain"), rows)


def arms(records, piece=5):
    """A row per evaluation run of a piece, by batch, seed and arm."""
    runs = [one for one in records if one["piece"] == piece and one["seed"] in EVALUATION_SEEDS]
    names = ("batch", "seed", "arm", "τ or target", "last τ", "linear", "kNN, k = 20")
    order, rows = {arm: name for name, arm in ARMS.items()}, []

    def arm_of(one):
        return objective_of(one), target_of(one) is not None

    for one in sorted(runs, key=lambda r: (batch_of(r), r["seed"], [*order].index(arm_of(r)))):
        held = target_of(one)
        cells = [batch_of(one), one["seed"], order[arm_of(one)]]
        cells.append(f"τ = {temperature_of(one)}" if held is None else f"ESS = {held}")
        cells.append(f"{one['metrics'][-1]['temperature']:.3f}")
        found = one["evaluation"]
        rows.append(cells + [f"{100 * found[k]:.2f}" for k in ("linear", "knn_20", "knn_200")])
    return of_table((*names, "kNN, k = 200"), rows)


def comparison(records):
    """A row per batch and arm of piece 5: means over seeds ± one standard deviation."""
    runs = [one for one in records if one["piece"] == 5 and one["seed"] in EVALUATION_SEEDS]
    names = ("batch", "arm", "τ or target", "last τ", "n", "linear", "kNN, k = 20")
    rows = []
    for batch in sorted({batch_of(one) for one in runs}):
        for name, arm in ARMS.items():
            group = [r for r in runs if (objective_of(r), target_of(r) is not None) == arm]
            group = [one for one in group if batch_of(one) == batch]
            if not group:
                continue
            held, ends = target_of(group[0]), [r["metrics"][-1]["temperature"] for r in group]
            shown = f"τ = {temperature_of(group[0])}" if held is None else f"ESS = {held}"
            span = sorted({f"{min(ends):.3f}", f"{max(ends):.3f}"})
            cells = [batch, name, shown, " to ".join(span), len(group)]
            rows.append(cells + [spread_of(group, key) for key in ("linear", "knn_20")])
    return of_table(names, rows)


def differences(records):
    """A row per pair of arms of piece 5: the mean difference and its interval by two measures."""
    rows = []
    for pair in PAIRS:
        found = [difference(records, *pair, measure) for measure in ("linear", "knn_20")]
        cells = [f"{one.mean:+.2f} ({one.low:.2f} to {one.high:.2f})" for one in found]
        rows.append([found[0].of, *map(signed, cells)])
    return of_table(("difference, with the batch sizes", "linear", "kNN, k = 20"), rows)


def curve(records):
    """A row per temperature of piece 6 and objective: means over the seeds that have been run."""
    names = ("τ", "objective", "n", "linear", "kNN, k = 20", "kNN, k = 200", "ESS, raw", "gain")
    rows = []
    for temperature in CURVE:
        for objective, name in NAMES.items():
            runs = runs_of_curve(records, objective)
            group = [one for one in runs if temperature_of(one) == temperature]
            if not group:
                continue
            cells = [temperature, name, len(group)]
            cells += [spread_of(group, key) for key in ("linear", "knn_20", "knn_200")]
            for key in ("ess_paper", "gain"):
                cells.append(f"{statistics.fmean(r['metrics'][-1][key] for r in group):.2f}")
            rows.append(cells)
    return of_table(names, rows)


def parts(records):
    """A row per part that has been run: its runs, their commits and the seconds of training."""
    groups, rows = {}, []
    for one in records:
        groups.setdefault((one["piece"], str(one["piece_step"])), []).append(one)
    for (piece, step), runs in sorted(groups.items()):
        seconds = [one["results"]["seconds"] for one in runs]
        commits = sorted({one["environment"]["commit"][:7] for one in runs})
        span = f"{min(seconds):.0f} to {max(seconds):.0f}"
        rows.append([piece, step, len(runs), ", ".join(commits), span])
    return of_table(("piece", "part or step", "runs", "commit", "seconds"), rows)


def spread_of(group, key):
    """The mean of an accuracy ± one standard deviation; of one run, its accuracy."""
    found = [100 * one["evaluation"][key] for one in group]
    mean = f"{statistics.fmean(found):.2f}"
    return f"{mean} ± {statistics.stdev(found):.2f}" if len(found) > 1 else mean


def invariance(studies, target):
    """Settled temperatures of one target by study and estimator."""
    sizes = list(next(iter(studies.values()))[0]["temperature"])
    heads = ["scores", "estimator", *(f"m = {m}" for m in sizes)]
    rows = []
    for name, found in studies.items():
        for row in found:
            if row["target"] == target:
                shown = [f"{value:.3f}" for value in row["temperature"].values()]
                cells = [name, row["estimator"], *shown, f"{row['ratio_30_to_1022']:.3f}"]
                rows.append([*cells, "yes" if row["invariant_from_30"] else "no"])
    return of_table([*heads, "max / min, m ≥ 30", "within 10 %"], rows)


def all_runs(studies, estimators=ESTIMATORS):
    """The largest ratio over all runs and in how many it is within 10 %, by estimator, target."""
    real = {name: rows for name, rows in studies.items() if not name.startswith("Gaussian")}
    every = [row for rows in real.values() for row in rows]
    targets = sorted({row["target"] for row in every})
    lines = []
    for estimator in estimators:
        cells = [estimator]
        for target in targets:
            wanted = estimator, target
            found = [row for row in every if (row["estimator"], row["target"]) == wanted]
            ratios = [row["ratio_30_to_1022"] for row in found]
            worst = "not reached" if None in ratios else f"{max(ratios):.3f}"
            within = sum(row["invariant_from_30"] for row in found)
            cells.append(f"{worst} ({within} of {len(found)})")
        lines.append(cells)
    return of_table(["estimator", *(f"target {target}" for target in targets)], lines)


def tables():
    """Every table of the README by its name."""
    records = list(read_all(HERE / "records").values())
    return {
        "screen": screen(records, piece=1),
        "screen-512": screen(records, piece=2),
        "rates": rates(records),
        "fixed": fixed(records),
        "targets": targeted(records),
        "arms": arms(records),
        "curve": curve(records),
        "ends": arms(records, piece=6),
        "parts": parts(records),
        "invariance": invariance(_studies("ess_invariance.json"), 0.3),
        "all-runs": all_runs(_studies("ess_invariance_all_runs.json")),
        "all-runs-512": all_runs(_studies("ess_invariance_512.json")),
        "all-runs-100": all_runs(_studies("ess_invariance_100_epochs.json")),
        "settled": invariance(_studies("settled.json"), 0.3),
        "settled-all": all_runs(_studies("settled.json"), ("controller",)),
    }


def pages():
    """The tables of each page, by the name of their block."""
    records = list(read_all(HERE / "records").values())
    leading = {"comparison": comparison(records), "differences": differences(records)}
    leading["hypotheses"] = table(records)
    small = {"small-batches": small_batches.table(small_batches.recorded())}
    paper = paper_figures.tables(records)
    return {README: tables(), RESULTS: leading, ESS: small, paper_figures.PAGE: paper}


def filled(text, page=README):
    """The text of a page with its tables put in."""
    for name, found in pages()[page].items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text, count = re.subn(
            pattern, lambda _, t=found, b=begin, e=end: f"{b}{t}\n{e}", text, flags=re.S
        )
        if count != 1:
            raise ValueError(f"{page.name} has {count} places for the table {name}")
    return text


def _studies(file):
    return json.loads((HERE / file).read_text(encoding="utf-8"))["studies"]


def _of(runs, objective):
    return [record for record in runs if objective_of(record) == objective]


def _order(record):
    late = objective_of(record) != "infonce"
    return record["piece_step"], temperature_of(record), rate_of(record), late


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8"), page), encoding="utf-8")
