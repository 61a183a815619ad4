"""Write the tables of the README from the committed records.

python benchmarks/image_study/table.py
"""

import json
import re
from pathlib import Path

from records import read_all

HERE = Path(__file__).parent
README = HERE / "README.md"
NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}
ESTIMATORS = ("raw", "row", "pooled", "running", "images", "closed", "closed-running")


def screen(records, piece):
    """A row per run of a screen, in the order of its steps."""
    runs = [record for record in records.values() if record["piece"] == piece]
    best = {max(_of(runs, objective), key=_score)["name"] for objective in NAMES}
    lines = [
        "| step | objective | τ | rate | linear | kNN, k = 20 | kNN, k = 200 | ESS | gain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in sorted(runs, key=_order):
        loss, found = record["config"]["loss"], record["evaluation"]
        last, name = record["metrics"][-1], NAMES[loss["objective"]]
        numbers = [f"{100 * found[key]:.2f}" for key in ("linear", "knn_20", "knn_200")]
        if record["name"] in best:
            name, numbers[0] = f"**{name}**", f"**{numbers[0]}**"
        cells = [record["piece_step"], name, loss["temperature"]]
        cells += [record["config"]["optimizer"]["rate"], *numbers]
        cells += [f"{last['ess']:.2f}", f"{last['gain']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def invariance(studies, target):
    """Settled temperatures of one target by study and estimator."""
    sizes = list(next(iter(studies.values()))[0]["temperature"])
    lines = [
        f"| scores | estimator | {' | '.join(f'm = {m}' for m in sizes)} "
        "| max / min, m ≥ 30 | within 10 % |",
        "|---" * (len(sizes) + 4) + "|",
    ]
    for name, rows in studies.items():
        for row in rows:
            if row["target"] != target:
                continue
            shown = [f"{value:.3f}" for value in row["temperature"].values()]
            ratio = row["ratio_30_to_1022"]
            cells = [name, row["estimator"], *shown, f"{ratio:.3f}"]
            cells.append("yes" if row["invariant_from_30"] else "no")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def all_runs(studies):
    """The largest ratio over all runs and in how many it is within 10 %, by estimator, target."""
    real = {name: rows for name, rows in studies.items() if not name.startswith("Gaussian")}
    targets = sorted({row["target"] for rows in real.values() for row in rows})
    heads = " | ".join(f"target {target}" for target in targets)
    lines = [f"| estimator | {heads} |", "|---" * (len(targets) + 1) + "|"]
    for estimator in ESTIMATORS:
        cells = []
        for target in targets:
            found = [
                row
                for rows in real.values()
                for row in rows
                if (row["estimator"], row["target"]) == (estimator, target)
            ]
            ratios = [row["ratio_30_to_1022"] for row in found]
            worst = "not reached" if None in ratios else f"{max(ratios):.3f}"
            cells.append(
                f"{worst} ({sum(row['invariant_from_30'] for row in found)} of {len(found)})"
            )
        lines.append(f"| {estimator} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables():
    """Every table of the README by its name."""
    records = read_all(HERE / "records")
    return {
        "screen": screen(records, piece=1),
        "screen-512": screen(records, piece=2),
        "invariance": invariance(_studies("ess_invariance.json"), 0.3),
        "all-runs": all_runs(_studies("ess_invariance_all_runs.json")),
        "all-runs-512": all_runs(_studies("ess_invariance_512.json")),
    }


def filled(text):
    """The README with its tables put in."""
    for name, table in tables().items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text, count = re.subn(
            pattern, lambda _, t=table, b=begin, e=end: f"{b}{t}\n{e}", text, flags=re.S
        )
        if count != 1:
            raise ValueError(f"the README has {count} places for the table {name}")
    return text


def _studies(file):
    return json.loads((HERE / file).read_text(encoding="utf-8"))["studies"]


def _of(runs, objective):
    return [record for record in runs if record["config"]["loss"]["objective"] == objective]


def _score(record):
    return record["evaluation"]["linear"], record["evaluation"]["knn_20"]


def _order(record):
    loss, rate = record["config"]["loss"], record["config"]["optimizer"]["rate"]
    return record["piece_step"], loss["temperature"], rate, loss["objective"] != "infonce"


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
