"""The README's picture, from a run of the demo.

From the project's root:

    flatnce demo
    python benchmarks/demo/figure.py runs/demo    # record the run in results.json, and draw
    python benchmarks/demo/figure.py              # draw again from results.json
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from flatnce.paper.demo import NAMES, by_step
from flatnce.pretrain.runs.log import read_run

HERE = Path(__file__).parent
RECORD = HERE / "results.json"
COLOURS = {"infonce": "#d55e00", "flatnce": "#0072b2"}
MARKERS = {"infonce": "o", "flatnce": "s"}
FOCUS = 8


def record(directory: Path) -> None:
    """Keep of a run what the picture and the README's numbers need."""
    run = read_run(directory)
    if run.results is None:
        raise SystemExit(f"{directory} is unfinished; run `flatnce demo` to the end first")
    cases = [dict(case) for case in run.results["cases"]]
    for case in cases:
        case["pool_mi_by_step"] = {
            name: {
                f"{step:g}": values for step, values in by_step(run, case, name, "pool_mi").items()
            }
            for name in NAMES
        }
    kept = {"environment": run.environment, "config": run.config}
    RECORD.write_text(json.dumps(kept | run.results | {"cases": cases}, indent=1) + "\n", "utf-8")


def draw_steps(axes, case: dict) -> None:
    for name, label in NAMES.items():
        curve = case["pool_mi_by_step"][name]
        steps = [float(step) for step in curve]
        band(axes, steps, [statistics.fmean(v) for v in curve.values()],
             [statistics.stdev(v) for v in curve.values()], name, label)  # fmt: skip
    axes.axhline(case["log_k"], color="black", linestyle=":", linewidth=1.2)
    axes.annotate(f"log {FOCUS}: all a batch of {FOCUS} can show", (1500, case["log_k"]),
                  (0, -4), textcoords="offset points", ha="right", va="top")  # fmt: skip
    axes.set(xlabel="training step", xlim=(0, 1500), title=f"Trained with K = {FOCUS} candidates")
    axes.set_ylabel("mutual information among 2,048 (nats)")


def draw_sizes(axes, cases: list[dict]) -> None:
    sizes = [case["candidates"] for case in cases]
    for name, label in NAMES.items():
        spreads = [case["objectives"][name]["pool_mi"] for case in cases]
        band(axes, sizes, [s["mean"] for s in spreads], [s["sd"] for s in spreads], name, label)
    axes.plot(sizes, [case["log_k"] for case in cases], ":", color="black", linewidth=1.2)
    axes.annotate("log K", (sizes[-1], cases[-1]["log_k"]), (0, 5), textcoords="offset points",
                  ha="right", va="bottom")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="candidates K in training", title="At the end, by K")


def band(axes, x, means, sds, name: str, label: str) -> None:
    low, high = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=COLOURS[name], alpha=0.2, linewidth=0)
    axes.plot(x, means, color=COLOURS[name], marker=MARKERS[name], markersize=4, label=label)


def main() -> None:
    if len(sys.argv) > 1:
        record(Path(sys.argv[1]))
    results = json.loads(RECORD.read_text(encoding="utf-8"))
    main_cases = [case for case in results["cases"] if not case["contrary"]]
    focus = next(case for case in main_cases if case["candidates"] == FOCUS)
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "flatnce", "axes.titlesize": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    draw_steps(left, focus)
    draw_sizes(right, main_cases)
    for axes in (left, right):
        axes.set_ylim(0, 8)
        axes.axhline(results["pool_ceiling"], color="grey", linestyle="--", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    left.annotate("log 2,048: all the pool can show", (1500, results["pool_ceiling"]), (0, -3),
                  textcoords="offset points", ha="right", va="top", color="dimgrey")  # fmt: skip
    right.legend(loc="lower right", bbox_to_anchor=(1, 0.05), frameon=False)
    figure.savefig(HERE / "demo.png", dpi=150)
    figure.savefig(HERE / "demo.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
