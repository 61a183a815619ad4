"""Does the lower limit have its nominal coverage, and is the p-value uniform?

    python benchmarks/mutual_information/coverage.py --out FOLDER       writes coverage.json
    python benchmarks/mutual_information/coverage.py --table FILE       counts

All fits are full fits of the default: on twenty laws with ten seeds each, on the laws where the
critic is nearly the true one (a limit has the least room there) with a hundred seeds each, and on
independent tables.
"""

import json

from pieces import options_of, run_pieces, task_rows

LAWS = (
    "1v1-normal-0.75", "1v1-additive-0.1", "1v1-additive-0.75", "1v1-bimodal-0.75",
    "wiggly-1v1-normal-0.75", "student-identity-1-1-1", "swissroll_x-normal_cdf-1v1-normal-0.75",
    "multinormal-dense-3-3-0.5", "multinormal-dense-25-25-0.5", "multinormal-sparse-5-5-2-2.0",
    "student-identity-3-3-2", "asinh-student-identity-5-5-2",
    "spiral-multinormal-sparse-3-3-2-2.0", "half_cube-multinormal-sparse-25-25-2-2.0",
    "staircase-2", "staircase-6", "cubic-4",
    "mixture-cross-0.9", "mixture-concentric-5v1-5", "mixture-inliers-5v5-0.2",
)  # fmt: skip
TIGHT = ("1v1-normal-0.75", "multinormal-dense-2-2-0.5", "multinormal-sparse-5-5-2-2.0")
NULLS = ("null-1v1", "null-5v5", "null-20v20")


def one(part, task, n, seeds):
    return [{"part": part, **row} for row in task_rows(["auto"], task, n, seeds)]


def run(out, n, processes, null_from):
    pieces = []
    if null_from is None:
        # Separate seeds for every law; otherwise laws that differ only by maps share draws.
        pieces += [
            ("laws", task, n, range(1000 * k, 1000 * k + 10)) for k, task in enumerate(LAWS)
        ]
        pieces += _in_fifties("tight", TIGHT, n, 100)
    pieces += _in_fifties("null", NULLS, n, 200 if null_from is None else null_from)
    run_pieces(one, pieces, out / "coverage.json", processes, n=n)


def _in_fifties(part, tasks, n, first):
    """A hundred seeds of each task, in parts of fifty that fit into memory together."""
    starts = (first, first + 50)
    return [(part, task, n, range(start, start + 50)) for start in starts for task in tasks]


def table(path):
    rows = json.loads(path.read_text())["rows"]
    for part in ("laws", "tight"):
        below = [low <= row["true"] for row in rows if row["part"] == part for low in row["lower"]]
        if below:
            print(f"{part}: {sum(below)} of {len(below)} limits lie below the truth")
        for task in dict.fromkeys(row["task"] for row in rows if row["part"] == part):
            own = [row for row in rows if (row["part"], row["task"]) == (part, task)]
            limits = [low <= row["true"] for row in own for low in row["lower"]]
            print(f"    {task}: {sum(limits)} of {len(limits)}")
    p_values = [p for row in rows if row["part"] == "null" for p in row["p_values"]]
    for level in (0.05, 0.1, 0.5):
        share = sum(p <= level for p in p_values) / len(p_values)
        print(f"independent: p <= {level} in {share:.3f} of {len(p_values)}")


if __name__ == "__main__":
    parser = options_of(__doc__, n=2000)
    parser.add_argument(
        "--null-from", type=int, help="independent tables alone, from this seed on"
    )
    options = parser.parse_args()
    if options.table:
        table(options.table)
    else:
        run(options.out, options.n, options.processes, options.null_from)
