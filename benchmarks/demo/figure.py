"""The README's picture, from a run of the demo.

From the project's root:

    flatnce demo --seeds 5
    python benchmarks/demo/figure.py runs/demo    # record the run in results.json, and draw
    python benchmarks/demo/figure.py              # draw again from results.json

A second argument names another record, which is written and not drawn.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from flatnce.paper.demo import NAMES
from flatnce.pretrain.runs.log import read_run

HERE = Path(__file__).parent
RECORD = HERE / "results.json"
COLOURS = {"infonce": "#d55e00", "flatnce": "#0072b2"}
MARKERS = {"infonce": "o", "flatnce": "s"}


def record(directory: Path, path: Path) -> None:
    """Keep the results of a run."""
    run = read_run(directory)
    if run.results is None:
        raise SystemExit(f"{directory} is unfinished; run `flatnce demo` to the end first")
    kept = {"environment": run.environment, "config": run.config}
    path.write_text(json.dumps(kept | run.results, indent=1) + "\n", "utf-8")


def draw_temperatures(axes, size: int, cases: list[dict]) -> None:
    """Both objectives by temperature, each with its best one marked."""
    temperatures = [case["temperature"] for case in cases]
    for name, label in NAMES.items():
        spreads = [case["objectives"][name]["pool_mi"] for case in cases]
        means = [s["mean"] for s in spreads]
        low, high = ([s["mean"] + sign * s["sd"] for s in spreads] for sign in (-1, 1))
        axes.fill_between(temperatures, low, high, color=COLOURS[name], alpha=0.2, linewidth=0)
        axes.plot(
            temperatures,
            means,
            color=COLOURS[name],
            marker=MARKERS[name],
            markersize=4,
            label=label,
        )
        best = max(range(len(means)), key=means.__getitem__)
        above = name == "flatnce"
        axes.annotate(
            f"best {means[best]:.2f}",
            (temperatures[best], means[best]),
            (0, 9 if above else -18),
            textcoords="offset points",
            ha="center",
            color=COLOURS[name],
        )
    axes.set_xscale("log")
    axes.set_xticks(temperatures, [f"{value:g}" for value in temperatures])
    axes.minorticks_off()
    axes.set(xlabel="temperature in training", title=f"Trained with K = {size} candidates")
    log_k = cases[0]["log_k"]
    axes.axhline(log_k, color="black", linestyle=":", linewidth=1.2)
    axes.annotate(f"log {size}: upper bound for a batch of {size}", (temperatures[0], log_k),
                  (0, 4), textcoords="offset points", ha="right", va="bottom")  # fmt: skip


def main() -> None:
    if len(sys.argv) > 2:
        return record(Path(sys.argv[1]), HERE / sys.argv[2])
    if len(sys.argv) > 1:
        record(Path(sys.argv[1]), RECORD)
    results = json.loads(RECORD.read_text(encoding="utf-8"))
    sizes = sorted({case["candidates"] for case in results["cases"]})
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "flatnce", "axes.titlesize": 10})
    figure, panels = plt.subplots(
        1, len(sizes), figsize=(8, 3.4), sharey=True, layout="constrained", squeeze=False
    )
    for axes, size in zip(panels[0], sizes, strict=True):
        cases = [case for case in results["cases"] if case["candidates"] == size]
        draw_temperatures(axes, size, cases)
        axes.set_ylim(0, 8)
        axes.axhline(results["pool_ceiling"], color="grey", linestyle="--", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    left, right = panels[0][0], panels[0][-1]
    highest, pool = max(case["temperature"] for case in results["cases"]), f"{results['pool']:,}"
    left.set_ylabel(f"mutual information among {pool} (nats)")
    at = (highest, results["pool_ceiling"])
    left.annotate(f"log {pool}: upper bound for the pool", at, (0, -3),
                  textcoords="offset points", ha="right", va="top", color="dimgrey")  # fmt: skip
    right.legend(loc="lower right", bbox_to_anchor=(1, 0.02), frameon=False)
    figure.savefig(HERE / "demo.png", dpi=150)
    figure.savefig(HERE / "demo.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
