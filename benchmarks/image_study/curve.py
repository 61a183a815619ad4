r"""The picture of piece 6: linear accuracy by temperature at batch 32, from the records.

    python benchmarks/image_study/curve.py

A small point is a run, a large one the mean over the seeds that have been run; the seeds of the
best mean are named. A line joins means at neighbouring temperatures, so it is missing where one of
them has not been run. The two losses are drawn a little beside each temperature, so that neither
hides the other. The runs of the tuning seed are not drawn.
"""

import math
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from choices import CURVE, NAMES, SMALL
from hypotheses import of_curve
from records import read_all

HERE = Path(__file__).parent
COLOURS = {"infonce": "#d55e00", "flatnce": "#0072b2"}
MARKERS = {"infonce": "o", "flatnce": "s"}
PLACES = {"infonce": ((-8, -4), "right"), "flatnce": ((0, 9), "center")}
"""Where the best mean is named, in points right of it and above it, and how it is aligned."""
BESIDE = {"infonce": 0.975, "flatnce": 1.025}
"""The factor of each temperature at which a loss is drawn."""


def draw(axes, records):
    """Both objectives by temperature, each with its best mean marked."""
    for name, label in NAMES.items():
        look = {"color": COLOURS[name], "marker": MARKERS[name]}
        curve = of_curve(records, name)
        runs = {at: list(seeds.values()) for at, seeds in curve.items()}
        means = [statistics.fmean(found) if found else math.nan for found in runs.values()]
        places = [temperature * BESIDE[name] for temperature in runs]
        for place, found in zip(places, runs.values(), strict=True):
            axes.plot([place] * len(found), found, markersize=3, alpha=0.5, ls="", **look)
        axes.plot(places, means, markersize=5, label=label, **look)
        best, at = max((mean, at) for mean, at in zip(means, runs, strict=True) if mean > 0)
        so_far = "" if all(runs.values()) else " so far"
        axes.annotate(
            f"best{so_far} {best:.2f} ({named(curve[at])})",
            (at * BESIDE[name], best),
            PLACES[name][0],
            textcoords="offset points",
            ha=PLACES[name][1],
            color=COLOURS[name],
        )
    axes.set_xscale("log")
    axes.set_xticks(CURVE, [f"{value:g}" for value in CURVE])
    axes.minorticks_off()
    axes.margins(y=0.12)
    axes.set(xlabel="temperature", ylabel="linear accuracy on the test images (%)")
    axes.set_title(f"CIFAR-10, batch {SMALL}, 100 epochs")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="lower center", frameon=False)


def named(seeds):
    """Consecutive seeds in words."""
    return f"seeds {min(seeds)} to {max(seeds)}"


def main():
    plt.rcParams.update({"font.size": 9, "axes.titlesize": 10})
    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    draw(axes, read_all(HERE / "records").values())
    figure.savefig(HERE / "curve.png", dpi=150)


if __name__ == "__main__":
    main()
