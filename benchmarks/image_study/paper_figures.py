r"""Draw the paper's Figures 1, 2, 4, 5 and 6 from the records of the study.

    python benchmarks/image_study/paper_figures.py

`PAPER.md` shows the pictures, and `table.py` fills its tables with :func:`tables`. Nothing is
trained. A record has up to 100 lines of the training of its run. kNN and the mutual information
(MI) in the large pool are in two of them, at half of the epochs and at the end.
"""

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from choices import (
    BATCHES,
    EVALUATION_SEEDS,
    NAMES,
    SMALL,
    batch_of,
    best,
    best_batch_of_infonce,
    fixed_temperatures,
    objective_of,
    target_of,
    targets,
    temperature_of,
)
from hypotheses import ARMS, accuracies, difference, of_table, signed
from records import read_all

HERE = Path(__file__).parent
PAGE = HERE / "PAPER.md"
COLOURS = {"infonce": "#d55e00", "flatnce": "#0072b2"}
LOOKS = {
    "InfoNCE": {"color": "#d55e00", "marker": "o"},
    "FlatNCE": {"color": "#0072b2", "marker": "s"},
    "FlatNCE-ESS": {"color": "#0072b2", "marker": "D", "ls": "--"},
    "InfoNCE-ESS": {"color": "#d55e00", "marker": "^", "ls": "--"},
}
LEGEND = {"frameon": False, "loc": "upper left", "bbox_to_anchor": (1, 1)}
HELD_OUT = 5000
"""How many training images the runs of the tuning seed are judged on."""
PRINTED = {
    (("FlatNCE", 32), ("FlatNCE", 128)): "−2",
    (("FlatNCE", 32), ("InfoNCE", 128)): "+2",
}
"""What a comment in the paper's source says about two batch sizes that the study has."""
COLD = 0.05
"""The lowest temperature of the study, at which the loss in a batch saturates."""


def last_of(run, key):
    """A number of the last line of a run."""
    return run["metrics"][-1][key]


def watched(run):
    """The lines of a run at half of its epochs and at the end, which have the pool's MI."""
    middle, end = (line for line in run["metrics"] if "pool_mi" in line)
    return middle, end


def runs_of(records, arm, batch):
    """The evaluation runs of an arm of piece 5 at a batch size."""
    own = [one for one in records if one["piece"] == 5 and one["seed"] in EVALUATION_SEEDS]
    fits = (*ARMS[arm], batch)
    return [r for r in own if (objective_of(r), target_of(r) is not None, batch_of(r)) == fits]


def cold_runs(records, objective):
    """The runs of piece 6 at the lowest temperature."""
    own = [one for one in records if one["piece"] == 6 and temperature_of(one) == COLD]
    return [one for one in own if objective_of(one) == objective]


def groups_of_figure_1(records):
    """Groups of runs at batch 32, by name: the four arms, and both losses at the lowest τ."""
    groups = {}
    for arm in LOOKS:
        runs = runs_of(records, arm, SMALL)
        held = target_of(runs[0])
        shown = f"τ = {temperature_of(runs[0])}" if held is None else f"target {held}"
        groups[f"{arm}, {shown}"] = runs
    cold = {f"{name}, τ = {COLD}": cold_runs(records, key) for key, name in NAMES.items()}
    return groups | cold


def spread(values, digits=2):
    """Mean ± one standard deviation."""
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def information(records):
    """Figure 1: MI in a batch and in the large pool, at half of the epochs and at the end."""
    rows = []
    for name, runs in groups_of_figure_1(records).items():
        ends = [watched(run) for run in runs]
        share = [last_of(run, "mi") / last_of(run, "mi_ceiling") for run in runs]
        cells = [name, len(runs), spread([last_of(run, "mi") for run in runs])]
        cells += [f"{100 * statistics.fmean(share):.0f} %"]
        cells += [spread([line["pool_mi"] for line in lines]) for lines in zip(*ends, strict=True)]
        cells += [spread([end["pool_mi"] - middle["pool_mi"] for middle, end in ends])]
        rows.append([*cells, spread([100 * run["evaluation"]["linear"] for run in runs])])
    heads = (
        "loss",
        "n",
        "MI in the batch",
        "of log 63",
        "pool MI, epoch 50",
        "pool MI, epoch 100",
    )
    return of_table((*heads, "gained after epoch 50", "linear"), rows)


def smaller_batch(records):
    """Figure 2: differences between batch sizes, with their intervals over seeds."""
    large = best_batch_of_infonce(records)
    pairs = [((arm, SMALL), (arm, large)) for arm in LOOKS]
    pairs.append((("FlatNCE", SMALL), ("InfoNCE", large)))
    rows = []
    for pair in pairs:
        found = difference(records, *pair)
        rows.append([found.of, len(found.seeds), *found.shown, PRINTED.get(pair, "")])
    heads = ("difference, linear", "n", "mean", "95 % interval", "the paper, per cent")
    return of_table(heads, rows)


def runs_of_figure_4(records):
    """The runs of pieces 1 to 6: both losses on CIFAR-10, with 20 or 100 epochs."""
    return [one for one in records if one["piece"] <= 6]


def accuracy_against_information(records, key):
    """Three arrays: MI at the end, linear accuracy, and the group of runs that are comparable.

    Runs are comparable if they have the same batch size and number of epochs and were judged on
    the same images.
    """
    ends = [last_of(run, key) for run in records]
    linear = [100 * run["evaluation"]["linear"] for run in records]
    groups = [
        (batch_of(run), run["results"]["epochs"], run["evaluation"]["on"]) for run in records
    ]
    return np.array(ends), np.array(linear), groups


def knn_against_information(records):
    """The same for kNN at the two checks of each run; comparable checks are at the same epoch."""
    lines = [(line, run) for run in records for line in watched(run)]
    groups = [
        (batch_of(run), run["results"]["epochs"], round(line["epoch"])) for line, run in lines
    ]
    pool, knn = ([line[key] for line, _ in lines] for key in ("pool_mi", "knn"))
    return np.array(pool), 100 * np.array(knn), groups


def correlation(x, y):
    return float(np.corrcoef(x, y)[0, 1])


def centred(values, groups):
    """Values less the mean of their group."""
    members = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    values = values.copy()
    for places in members.values():
        values[places] -= values[places].mean()
    return values


def correlations(records):
    """Figure 4: ρ over all runs, as the paper computes it, and between comparable runs."""
    records = runs_of_figure_4(records)
    found = {
        "linear, pool MI": accuracy_against_information(records, "pool_mi"),
        "linear, MI in the batch": accuracy_against_information(records, "mi"),
        "kNN, pool MI": knn_against_information(records),
    }
    for objective, name in NAMES.items():
        own = [run for run in records if objective_of(run) == objective]
        found[f"linear, pool MI, {name} only"] = accuracy_against_information(own, "pool_mi")
    rows = []
    for name, (x, y, groups) in found.items():
        inner = correlation(centred(x, groups), centred(y, groups))
        cells = [f"{value:.2f}" for value in (correlation(x, y), inner)]
        rows.append([name, len(x), *map(signed, cells)])
    return of_table(("accuracy and MI", "points", "ρ, all", "ρ, centred"), rows)


def effective_sizes(records):
    """Figure 5: the ESS by both definitions of the paper, at epoch 5 and at the end."""
    rows = []
    for name, runs in groups_of_figure_1(records).items():
        cells = [name, len(runs)]
        for key in ("ess_paper", "ess_with_positive"):
            early = [min(run["metrics"], key=lambda line: abs(line["epoch"] - 5)) for run in runs]
            cells.append(spread([line[key] for line in early], 3))
            cells.append(spread([last_of(run, key) for run in runs], 3))
        rows.append([*cells, spread([last_of(run, "ess") for run in runs], 3)])
    heads = ["loss", "n", "negatives, epoch 5", "negatives, epoch 100"]
    heads += ["with the positive, epoch 5", "with the positive, epoch 100"]
    return of_table([*heads, "invariant form, epoch 100"], rows)


def held_targets(records):
    """Figure 6: both losses by ESS target at batch 256, at epoch 50 and at the end."""
    rows = []
    for objective, name in NAMES.items():
        held = sorted(targets(records, objective), key=target_of)
        for run in (*held, best(fixed_temperatures(records, objective, 256))):
            middle, end = watched(run)
            cells = [name, target_of(run) or "none", f"{end['temperature']:.3f}"]
            cells += [f"{middle['ess_paper']:.2f}", f"{100 * middle['knn']:.2f}"]
            rows.append([*cells, f"{100 * run['evaluation']['linear']:.2f}"])
    heads = ("loss", "target", "last τ", "paper's ESS, epoch 50", "kNN, epoch 50")
    return of_table((*heads, "linear, epoch 100"), rows)


def tables(records):
    """The tables of the page by the name of their block."""
    return {
        "paper-1": information(records),
        "paper-2": smaller_batch(records),
        "paper-4": correlations(records),
        "paper-5": effective_sizes(records),
        "paper-6": held_targets(records),
    }


# Pictures.


def half_interval(accuracy):
    """Half the 95 % interval of an accuracy in per cent, for the draw of the held-out images."""
    return 1.96 * (accuracy * (100 - accuracy) / HELD_OUT) ** 0.5


def band(axes, runs, key, **look):
    """The mean of a number over seeds by epoch, with ± one standard deviation."""
    epochs = [line["epoch"] for line in runs[0]["metrics"]]
    values = np.array([[line[key] for line in run["metrics"]] for run in runs])
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    axes.plot(epochs, mean, **look)
    axes.fill_between(epochs, mean - sd, mean + sd, color=look["color"], alpha=0.2, lw=0)


def look_of(name):
    """Colour, marker and line of a group of Figure 1."""
    arm = name.partition(",")[0]
    look = LOOKS[arm] | {"label": name, "markersize": 4}
    return look | {"ls": ":"} if name.endswith(f"= {COLD}") else look


def draw_1(figure, records):
    batch, pool = figure.subplots(1, 2)
    for name, runs in groups_of_figure_1(records).items():
        look = look_of(name)
        band(batch, runs, "mi", **look | {"marker": None})
        ends = [watched(run) for run in runs]
        values = [[line["pool_mi"] for line in lines] for lines in zip(*ends, strict=True)]
        means, sds = ([f(one) for one in values] for f in (statistics.fmean, statistics.stdev))
        pool.errorbar((50, 100), means, sds, capsize=2, **look)
    for axes, key in ((batch, "mi_ceiling"), (pool, "pool_ceiling")):
        top = watched(runs[0])[1][key]
        axes.axhline(top, color="#555555", ls="-.", lw=1)
        words = (
            "log 63, the most in a batch" if axes is batch else "log 10,000, the most in the pool"
        )
        axes.annotate(
            words,
            (1, top),
            (-2, 3),
            textcoords="offset points",
            ha="right",
            xycoords=("axes fraction", "data"),
            color="#555555",
        )
        axes.set(xlabel="epoch", ylabel="mutual information (nats)")
    batch.set(title="In the batch of 32", ylim=(0, 4.7))
    pool.set(title="In a pool of 10,000", xticks=(50, 100), xlim=(45, 105), ylim=(4, 10))
    pool.legend(**LEGEND)


def draw_2(figure, records):
    test, tuning = figure.subplots(1, 2, sharey=True)
    for (arm, look), beside in zip(LOOKS.items(), (0.91, 0.97, 1.03, 1.1), strict=True):
        found = {b: [*accuracies(records, arm, b).values()] for b in BATCHES}
        found = {batch * beside: values for batch, values in found.items() if values}
        means, sds = ([f(v) for v in found.values()] for f in (statistics.fmean, statistics.stdev))
        test.errorbar([*found], means, sds, capsize=2, label=arm, markersize=4, **look)
    for (objective, name), beside in zip(NAMES.items(), (0.96, 1.04), strict=True):
        runs = {b: best(fixed_temperatures(records, objective, b)) for b in BATCHES}
        linear = [100 * run["evaluation"]["linear"] for run in runs.values()]
        half = [half_interval(value) for value in linear]
        places = [batch * beside for batch in runs]
        tuning.errorbar(places, linear, half, capsize=2, markersize=4, **LOOKS[name])
    test.set(title="Test images: mean ± sd of five seeds", ylabel="linear accuracy (%)")
    tuning.set(title="Held-out images: one seed, 95 % interval")
    for axes in (test, tuning):
        axes.set_xscale("log", base=2)
        axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axes.set(xlabel="batch size", xlim=(26, 640))
    tuning.legend(*test.get_legend_handles_labels(), **LEGEND)


def draw_4(figure, records):
    records = runs_of_figure_4(records)
    pool, batch = figure.subplots(1, 2, sharey=True)
    for axes, key, title in (
        (pool, "pool_mi", "MI in a pool of 10,000"),
        (batch, "mi", "MI in the batch"),
    ):
        for objective, name in NAMES.items():
            for epochs, filled in ((20, "white"), (100, COLOURS[objective])):
                own = [
                    r
                    for r in records
                    if (objective_of(r), r["results"]["epochs"]) == (objective, epochs)
                ]
                x, y, _ = accuracy_against_information(own, key)
                axes.plot(
                    x,
                    y,
                    color=COLOURS[objective],
                    marker=LOOKS[name]["marker"],
                    mfc=filled,
                    ls="",
                    markersize=4,
                    label=f"{name}, {epochs} epochs",
                )
        axes.set(xlabel=f"{title} at the end (nats)")
    pool.set(ylabel="linear accuracy (%)")
    batch.legend(**LEGEND)


def draw_5(figure, records):
    panels = figure.subplots(1, 2)
    for axes, key, title in zip(
        panels,
        ("ess_paper", "ess_with_positive"),
        ("ESS of the negatives", "ESS with the positive"),
        strict=True,
    ):
        for name, runs in groups_of_figure_1(records).items():
            band(axes, runs, key, **look_of(name) | {"marker": None})
        axes.set(xlabel="epoch", ylabel="share", title=title, ylim=(0, None))
    panels[1].legend(**LEGEND)


def draw_6(figure, records):
    panels = figure.subplots(1, 2)
    for (objective, name), beside in zip(NAMES.items(), (-0.004, 0.004), strict=True):
        runs = sorted(targets(records, objective), key=target_of)
        fixed = best(fixed_temperatures(records, objective, 256))
        for axes, value in zip(
            panels,
            (lambda r: 100 * watched(r)[0]["knn"], lambda r: 100 * r["evaluation"]["linear"]),
            strict=True,
        ):
            look = {"color": COLOURS[objective]}
            found = [value(r) for r in runs]
            axes.errorbar(
                [target_of(r) + beside for r in runs],
                found,
                [half_interval(one) for one in found],
                capsize=2,
                markersize=4,
                marker=LOOKS[name]["marker"],
                label=f"{name}, ESS held",
                **look,
            )
            axes.axhline(
                value(fixed), ls=":", label=f"{name}, τ = {temperature_of(fixed)}", **look
            )
            axes.set(xlabel="ESS target")
    panels[0].set(title="Epoch 50", ylabel="kNN accuracy (%)")
    panels[1].set(title="Epoch 100", ylabel="linear accuracy (%)")
    panels[1].legend(**LEGEND)


PICTURES = {1: draw_1, 2: draw_2, 4: draw_4, 5: draw_5, 6: draw_6}
"""What draws each figure of the paper."""


def main():
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 9, "axes.grid": True})
    plt.rcParams.update({"grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    records = list(read_all(HERE / "records").values())
    for number, draw in PICTURES.items():
        figure = plt.figure(figsize=(7.5, 2.8), layout="constrained")
        draw(figure, records)
        figure.savefig(HERE / f"paper_{number}.png", dpi=130)
        plt.close(figure)


if __name__ == "__main__":
    main()
