"""The default and two other methods where the information is known, n = 10,000, three seeds.

    python benchmarks/mutual_information/accuracy.py --out FOLDER       writes accuracy.json
    python benchmarks/mutual_information/accuracy.py --table FILE       prints its tables

``auto`` starts from the best Gaussian critic, which is the true one on the Gaussian rows;
``infonce`` and ``flatnce`` do not. The whole bmi suite is run with ``auto``.
"""

import json
from pathlib import Path

from pieces import options_of, run_pieces, task_rows

from flatnce import mi

HERE = Path(__file__).parent
BMI = json.loads((HERE / "bmi_figures.json").read_text())["rows"]
EXTRA = ("staircase-4", "staircase-8", "cubic-2", "cubic-4", "cubic-10", "null-20v20")
SEEDS = (0, 1, 2)


def one(methods, task, n):
    return task_rows(methods, task, n, SEEDS)


def run(out, n, processes):
    pieces = [(["auto", "infonce", "flatnce"], task, n) for task in (*BMI, *EXTRA)]
    pieces += [(["ksg", "cca", "gaussian-copula"], task, n) for task in BMI]
    rest = [task.id for task in mi.tasks.suite("bmi") if task.id not in BMI]
    pieces += [(["auto"], task, n) for task in rest]
    run_pieces(one, pieces, out / "accuracy.json", processes, unit="nats")


def best_of_bmi(task):
    """Bmi's neural estimator with the smallest error on a task: its name, mean and sd."""
    truth = mi.tasks.find(task).mi
    neural = {name: BMI[task][name] for name in ("infonce", "nwj", "dv")}
    name = min(neural, key=lambda name: abs(neural[name][0] - truth))
    return name, *neural[name]


def table(path):
    rows = json.loads(path.read_text())["rows"]
    found = {(row["task"], row["method"]): row for row in rows}

    def cell(task, method):
        row = found.get((task, method))
        return "–" if row is None else f"{row['mean']:.3f} ± {row['spread']:.3f}"

    print("| task | true | auto | error | bmi's best neural | error | ratio | infonce | flatnce |")
    print("|---|---|---|---|---|---|---|---|---|")
    for task in [*BMI, *EXTRA]:
        row = found[task, "auto"]
        error = abs(row["mean"] - row["true"])
        peer, peer_error, ratio = "–", "–", "–"
        if task in BMI:
            name, mean, sd = best_of_bmi(task)
            peer, peer_error = f"{mean:.3f} ± {sd:.3f} ({name})", f"{abs(mean - row['true']):.3f}"
            ratio = f"{error / abs(mean - row['true']):.2f}"
        cells = [cell(task, "auto"), f"{error:.3f}", peer, peer_error, ratio]
        cells += [cell(task, "infonce"), cell(task, "flatnce")]
        print(f"| {task} | {row['true']:.3f} | {' | '.join(cells)} |")
    print("\n| other bmi distributions | true | auto | error | flags |\n|---|---|---|---|---|")
    for row in rows:
        if row["method"] == "auto" and row["task"] not in (*BMI, *EXTRA):
            flags = ", ".join(row["flags"]) or "–"
            mean = f"{row['mean']:.3f} ± {row['spread']:.3f}"
            print(
                f"| {row['task']} | {row['true']:.3f} | {mean} | "
                f"{row['mean'] - row['true']:+.3f} | {flags} |"
            )


if __name__ == "__main__":
    options = options_of(__doc__, n=10_000).parse_args()
    table(options.table) if options.table else run(options.out, options.n, options.processes)
