"""The paper's tables as experiments: linear evaluation, transfer, few labels and cost.

References:
    Chen et al., 2021, "Simpler, Faster, Stronger: Breaking the log-K Curse on Contrastive
    Learners with FlatNCE", Tables 2, 3, S1 to S4, https://arxiv.org/abs/2107.01152
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.aggregation import Values, comparison, difference
from flatnce.paper.charts import (
    Charts,
    accuracy_axis,
    axis,
    bar,
    bar_figure,
    line,
    line_figure,
)
from flatnce.paper.cost import PAPER, PRICE_NOTE
from flatnce.paper.reproduce.experiment import (
    OBJECTIVES,
    Experiment,
    Findings,
    Setting,
    by_scale,
)
from flatnce.paper.reproduce.runs import (
    Runs,
    cell,
    checkpoints,
    epoch_of,
    evaluations,
    row,
    scores,
    step_at,
)

CENTRE_SQUARES = (
    "Image files are decoded to their centre square (on ImageNet 256 pixels a side), and random "
    "crops are drawn from it, in pretraining and in fine-tuning alike; the paper's and SimCLR's "
    "come from the whole photograph."
)
PAPER_NAMES = {"infonce": "SimCLR", "flatnce": "FlatCLR", "supervised": "Supervised"}


def _printed_table(
    header: Sequence[str], numbers: Mapping[str, Sequence[float | None]]
) -> list[dict[str, Any]]:
    """A table of the paper, in per cent."""
    rows = [
        [label, *("" if number is None else f"{number:.2f}" for number in of_row)]
        for label, of_row in numbers.items()
    ]
    return [{"caption": "The paper's numbers", "header": list(header), "rows": rows}]


# Tables 2 and S3: linear accuracy by epoch.

EPOCHS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)

TABLE_2 = {
    "infonce": (38.57, 43.71, 47.03, 49.45, 49.93, 52.18, 53.31, 53.47, 53.98, 54.62),
    "flatnce": (39.7, 45.30, 47.74, 49.72, 50.39, 53.30, 54.48, 54.43, 56.25, 56.74),
}
"""ImageNet, top-1 by epoch, per cent: the short linear evaluation."""

TABLE_S3 = {
    "top1": {
        "infonce": (40.93, 46.22, 48.64, 50.14, 52.14, 53.62, 55.20, 56.36, 56.99, 57.13),
        "flatnce": (42.40, 47.69, 49.96, 52.27, 54.11, 55.48, 56.98, 58.21, 58.80, 59.74),
    },
    "top5": {
        "infonce": (65.34, 70.92, 73.63, 75.38, 76.90, 78.24, 79.59, 80.58, 80.85, 81.00),
        "flatnce": (67.17, 72.61, 74.59, 76.77, 78.29, 79.67, 81.06, 82.19, 82.71, 83.18),
    },
}
"""The same runs, per cent: the long linear evaluation (erratum 21)."""

PROBES = ("linear-short", "linear-long")

COLUMNS = {
    "top-1, short probe (Table 2)": ("linear-short", "top1", TABLE_2),
    "top-1, long probe (Table S3)": ("linear-long", "top1", TABLE_S3["top1"]),
    "top-5, long probe (Table S3)": ("linear-long", "top5", TABLE_S3["top5"]),
}
"""Protocol and measure of each table, and what the paper prints for it."""


def printed_at(epoch: float, numbers: Sequence[float]) -> float | None:
    """The printed share at an epoch of :data:`EPOCHS`, or None at another epoch.

    Examples:
        >>> printed_at(100.0, TABLE_2["flatnce"]), printed_at(15.0, TABLE_2["flatnce"])
        (0.5674, None)
    """
    known = dict(zip(EPOCHS, numbers, strict=True))
    percent = known.get(round(epoch)) if abs(epoch - round(epoch)) < 0.01 else None
    return None if percent is None else round(percent / 100, 6)


def linear_by_epoch(runs: Runs) -> Findings:
    """Top-1 and top-5 of every checkpoint, by both probes."""
    first, at_paper_scale = runs.first_trained, runs.setting.scale == "paper"
    epochs = [epoch_of(first, step) for step in checkpoints(first)] if first else []
    smoke: dict[str, Any] = {"epochs": 2, "rates": (1.0,)}
    options = runs.setting.pick(by_scale(smoke, {}, {}))
    for run in runs.finished:
        for epoch in () if run.failure else epochs:
            evaluations(run, PROBES, step_at(run, epoch), **options)  # both share their features
    results = {
        (group.label, protocol, epoch): scores(group, protocol, epoch, **options)
        for group in runs.groups
        for protocol in PROBES
        for epoch in epochs
    }
    cells: dict[tuple[str, float], dict[str, Any]] = {}
    charts, words = [], {}
    for name, (protocol, key, numbers) in COLUMNS.items():
        lines: Charts = []
        printed_lines: Charts = []
        ends = {}
        for group in runs.groups:
            label, theirs = group.label, numbers[group.objective]
            values = [[one.get(key) for one in results[label, protocol, at]] for at in epochs]
            lines.append(line(label, epochs, values, group.series))
            series = len(runs.groups) + len(printed_lines)
            percents: list[Values] = [[percent / 100] for percent in theirs]
            printed_lines.append(line(f"paper, {label}", EPOCHS, percents, series))
            ends[label] = values[-1] if values else []
            for epoch, at_epoch in zip(epochs, values, strict=True):
                printed = printed_at(epoch, theirs) if at_paper_scale else None
                cells.setdefault((label, epoch), {})[name] = cell(at_epoch, "share", printed)
        charts += _epoch_chart(name, lines + (printed_lines if at_paper_scale else []))
        gap = comparison(
            difference(ends["FlatNCE"], ends["InfoNCE"]), factor=100.0, unit=" points"
        )
        words[name] = f"{gap} at the end." if epochs else "every run diverged."
    rows = [
        row(group, cells[group.label, epoch], epoch=epoch)
        for group in runs.groups
        for epoch in epochs
    ]
    header = ["ImageNet, per cent", *(f"epoch {epoch}" for epoch in EPOCHS)]
    printed_rows = {
        f"{PAPER_NAMES[objective]}, {name}": numbers[objective]
        for name, (_, _, numbers) in COLUMNS.items()
        for objective in OBJECTIVES
    }
    return Findings(rows, charts, words, _printed_table(header, printed_rows))


def _epoch_chart(name: str, lines: Charts) -> Charts:
    short = "".join(letter if letter.isalnum() else "-" for letter in name.partition(" (")[0])
    caption = "Linear probe by gradient descent on the test set, by epoch of pretraining."
    title, y = name[0].upper() + name[1:], accuracy_axis(name.partition(",")[0])
    return line_figure(short, title, caption, axis("epoch"), y, lines)


TABLE_LINEAR = Experiment(
    "table-linear",
    "Tables 2 and S3",
    "Linear accuracy by epoch, short and long probes",
    claim="On ImageNet with a ResNet-50 FlatCLR is ahead of SimCLR at every epoch, by 2.1 points "
    "top-1 at epoch 100 in Table 2 and by 2.6 in Table S3.",
    notes=(
        "Tables 2 and S3 are two linear evaluations of the same runs: the longer one trains the "
        "probe for longer with larger batches. The paper does not say how long either is; here "
        "the short probe takes 10 epochs at batch 256, the long one 90 at batch 4,096.",
        CENTRE_SQUARES,
    ),
    options=("rate", "imagenet"),
    base="imagenet",
    settings={"checkpoint_every": by_scale(0.5, 5.0, 10.0), "keep": None},
    grids=[{"objective": OBJECTIVES}],
    analyse=linear_by_epoch,
)


# Tables 3 and S2: transfer.

TRANSFER_COLUMNS = ("cifar10", "cifar100", "voc2007-top1", "flowers102", "caltech101", "sun397")
"""The sets of Tables 3 and S2; the paper's VOC2007 is a top-1 accuracy."""

TRANSFER: dict[str, dict[str, tuple[float | None, ...]]] = {
    "transfer-linear": {
        "infonce": (87.74, 65.40, 69.38, 90.03, 79.54, 49.62),
        "flatnce": (87.92, 65.76, 69.66, 90.23, 81.23, 51.31),
    },
    "transfer-finetune": {
        "infonce": (94.61, 76.67, 69.57, 93.58, None, 56.97),
        "flatnce": (95.50, 78.92, 70.73, 95.02, None, 58.37),
    },
}
"""Tables 3 and S2, top-1 in per cent, by set; Caltech-101 is not fine-tuned on."""

PROTOCOLS = {"transfer-linear": "Linear", "transfer-finetune": "Fine-tuned"}


def _missing(setting: Setting, config: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The sets to transfer to, and those of them that are not on disk."""
    from flatnce.pretrain.evaluation import TRANSFER_SETS, missing_sets

    small = ("cifar100", "stl10", "fashion-mnist")
    wanted = setting.pick(by_scale(("digits",), small, TRANSFER_SETS))
    return wanted, missing_sets(wanted, config.data.root)


def _check_transfer(setting: Setting, config: Any) -> None:
    from flatnce.pretrain.data import MissingData

    wanted, missing = _missing(setting, config)
    if len(missing) == len(wanted):
        raise MissingData(
            f"none of the sets to transfer to is on disk: {', '.join(wanted)}; fetch one with "
            f"`flatnce data {wanted[0]}`"
        )


def printed_transfer(protocol: str, objective: str, data: str) -> float | None:
    """The share that the paper prints for a set, or None."""
    if data not in TRANSFER_COLUMNS:
        return None
    percent = TRANSFER[protocol][objective][TRANSFER_COLUMNS.index(data)]
    return None if percent is None else percent / 100


def transfer(runs: Runs) -> Findings:
    """Accuracy on every set that is on disk, by both protocols."""
    wanted, missing = _missing(runs.setting, runs.finished[0].planned.config)
    here = [name for name in wanted if name not in missing]
    at_paper_scale = runs.setting.scale == "paper"
    rows, charts = [], []
    for protocol, title in PROTOCOLS.items():
        finetuned = {"epochs": 10} if protocol == "transfer-finetune" else {}
        smoke = {"epochs": 1, "rates": (1e-3,)}
        options = runs.setting.pick(by_scale(smoke, finetuned, {"size": 224}))
        values: dict[tuple[str, str], Values] = {}
        printed: dict[tuple[str, str], float | None] = {}
        for data in here:
            for group in runs.groups:
                key = (group.label, data)
                # Mean average precision where an image shows several classes.
                values[key] = [
                    one.get("top1", one.get("map"))
                    for one in scores(group, protocol, data=(data,), **options)
                ]
                printed[key] = None
                if at_paper_scale:
                    printed[key] = printed_transfer(protocol, group.objective, data)
                cells = {"top-1": cell(values[key], "share", printed[key])}
                rows.append(row(group, cells, data=data, protocol=title.lower()))
        bars = [
            bar(
                group.label,
                [values[group.label, data] for data in here],
                group.series,
                [printed[group.label, data] for data in here],
            )
            for group in runs.groups
        ]
        caption = "Accuracy on the test sets (mAP on voc2007); intervals are ± one sd over seeds."
        marks, y = "the paper’s" if at_paper_scale else "", accuracy_axis("test", low=0.0)
        heading = f"{title} transfer"
        charts += bar_figure(protocol, heading, caption, "data set", y, here, bars, marks)
    words = {}
    if missing:
        words["Not on disk"] = f"{', '.join(missing)}; fetch with `flatnce data NAME`."
    printed_rows = {
        f"{PAPER_NAMES[objective]}, {title.lower()}": TRANSFER[protocol][objective]
        for protocol, title in PROTOCOLS.items()
        for objective in OBJECTIVES
    }
    header = ["From ImageNet, per cent", *TRANSFER_COLUMNS]
    return Findings(rows, charts, words, _printed_table(header, printed_rows))


TABLE_TRANSFER = Experiment(
    "table-transfer",
    "Tables 3 and S2",
    "Transfer to other sets, linear and fine-tuned",
    claim="Features pretrained on ImageNet transfer better with FlatCLR than with SimCLR to every "
    "set, by a linear classifier (Table 3) and fine-tuned (Table S2).",
    notes=(
        "VOC2007 has several classes per image: voc2007 is the mean average precision at 11 "
        "points, voc2007-top1 the top-1 accuracy that the paper's table prints.",
        "From the paper: Adam without regularisation or augmentation for the linear classifier; "
        "NAdam, rate 5e-5, no weight decay, batch 512, 100 epochs, crops and flips for "
        "fine-tuning. This project's own: 100 epochs, batch 512 and a rate from 1e-4 to 1e-1, "
        "chosen on a held-out tenth of the training images, for the linear classifier. Scale "
        "small fine-tunes for 10 epochs.",
        CENTRE_SQUARES,
        "At smoke scale the digits transfer to themselves: there is nothing else on disk.",
    ),
    options=("rate", "imagenet"),
    base="imagenet",
    grids=[{"objective": OBJECTIVES}],
    check=_check_transfer,
    analyse=transfer,
)


# Table S4: few labels.

FRACTIONS = (0.01, 0.1)

SEMI = {
    "supervised": {0.01: (5.25, 14.40), 0.1: (41.98, 67.05)},
    "infonce": {0.01: (33.44, 61.29), 0.1: (54.62, 79.89)},
    "flatnce": {0.01: (36.35, 64.59), 0.1: (56.51, 81.32)},
}
"""Table S4, top-1 and top-5 in per cent. SimCLR's 54.62 is possibly a slip (erratum 24)."""

STARTS = {"supervised": ("Supervised", 3), "infonce": ("InfoNCE", 0), "flatnce": ("FlatNCE", 1)}
"""Label and colour of each start."""

Results = dict[tuple[str, float], list[dict[str, Any]]]


def few_labels(runs: Runs) -> Findings:
    """Top-1 and top-5 by share of labels, beside the same architecture from random weights."""
    at_paper_scale = runs.setting.scale == "paper"
    fractions = runs.setting.pick(by_scale((0.05, 0.2), FRACTIONS, FRACTIONS))
    results = _semi_results(runs, fractions)
    rows, words = [], {}
    top1: dict[str, list[Values]] = {name: [] for name in STARTS}
    for fraction in fractions:
        for name, (label, _) in STARTS.items():
            cells = {}
            for i, key in enumerate(("top1", "top5")):
                printed = SEMI[name][fraction][i] / 100 if at_paper_scale else None
                values = [one.get(key) for one in results[name, fraction]]
                cells[f"top-{key[3:]}"] = cell(values, "share", printed)
            top1[name].append(cells["top-1"]["values"])
            variables = {"start": label, "labels": f"{fraction:.0%}"}
            rows.append({"variables": variables, "measures": cells})
        gap = difference(top1["flatnce"][-1], top1["infonce"][-1])
        text = comparison(gap, factor=100.0, unit=" points")
        words[f"{fraction:.0%} of the labels"] = f"{text}."
    bars = []
    for name, (label, series) in STARTS.items():
        marks = [SEMI[name][f][0] / 100 for f in fractions] if at_paper_scale else None
        bars.append(bar(label, top1[name], series, marks))
    charts = bar_figure(
        "semi",
        "Accuracy with few labels",
        "The whole network fine-tuned on a share of the labels; intervals: ± one sd over seeds.",
        "share of the labels",
        accuracy_axis("top-1", low=0.0),
        [f"{fraction:.0%}" for fraction in fractions],
        bars,
        "the paper’s" if at_paper_scale else "",
    )
    printed_rows = {
        PAPER_NAMES[name]: [number for fraction in FRACTIONS for number in SEMI[name][fraction]]
        for name in STARTS
    }
    header = ["ImageNet, per cent", "1 %, top-1", "1 %, top-5", "10 %, top-1", "10 %, top-5"]
    return Findings(rows, charts, words, _printed_table(header, printed_rows))


def _semi_results(runs: Runs, fractions: Sequence[float]) -> Results:
    """The result of each start and fraction, one per seed; empty where a run diverged."""
    smoke = {"epochs": 1, "rates": (5e-4,), "batch_size": 64}
    options = runs.setting.pick(by_scale(smoke, {"epochs": 30}, {}))
    members = {group.objective: group.runs for group in runs.groups}
    # From random weights the objective plays no part: any run of the seed that did not diverge.
    members["supervised"] = tuple(
        next((run for run in pair if not run.failure), pair[0])
        for pair in zip(*members.values(), strict=True)
    )
    results: Results = {}
    for name, of_start in members.items():
        protocol = "supervised" if name == "supervised" else "semi"
        for run in of_start:
            asked = {"fraction": tuple(fractions), "seed": run.planned.seed, **options}
            done = [] if run.failure else evaluations(run, "semi", **asked)
            for fraction in fractions:
                kept = [
                    one
                    for one in done
                    if one["protocol"]["labels"]["fraction"] == fraction
                    and one["protocol"]["name"].startswith(protocol)
                ]
                results.setdefault((name, fraction), []).append(kept[0] if kept else {})
    return results


TABLE_SEMI = Experiment(
    "table-semi",
    "Table S4",
    "Semi-supervised accuracy with few labels",
    claim="With 1 % and 10 % of ImageNet's labels FlatCLR is ahead of SimCLR, and both far ahead "
    "of the same network trained on these labels alone.",
    notes=(
        "SimCLR's 54.62 at 10 % is also the last number of Table 2: possibly a slip of the paper.",
        "The baseline has the same architecture, labels, crops, flips and epochs, and starts from "
        "random weights.",
        "From the paper: the fractions, 100 epochs, random crops and flips. This project's own: "
        "NAdam without weight decay, batch 512, and the rate, the best of 5e-4, 5e-5 and 5e-3 on "
        "a held-out tenth of the labelled images, chosen separately for each start. Scale small "
        "fine-tunes for 30 epochs.",
        CENTRE_SQUARES,
    ),
    options=("rate", "imagenet"),
    base="imagenet",
    grids=[{"objective": OBJECTIVES}],
    analyse=few_labels,
)


# Table S1: cost.


def costs(runs: Runs) -> Findings:
    """Devices × hours × price, beside what the paper prints."""
    rows = [
        {
            "variables": {"model": one.model, "devices": f"{one.devices} × {one.device}"},
            "measures": {
                "hours": cell([one.hours], "hours"),
                "cost": cell([one.cost], "dollars", float(one.printed)),
            },
        }
        for one in PAPER
    ]
    printed: list[float | None] = [float(one.printed) for one in PAPER]
    charts = bar_figure(
        "cost",
        "Cost of training a contrastive learner",
        "Devices × hours × price, on a logarithmic scale; tuning and evaluation not counted.",
        "model",
        axis("US dollars", logarithmic=True, low=100.0),
        [one.model for one in PAPER],
        [bar("computed", [[one.cost] for one in PAPER], 1, printed)],
        "the paper’s",
    )
    return Findings(rows, charts, {"Your own run": "`flatnce cost RUN --price DOLLARS`."})


TABLE_COST = Experiment(
    "table-cost",
    "Table S1",
    "What training costs (your own run: flatnce cost RUN)",
    claim="Training MoCo, SimCLR and CLIP cost about 23,000, 1,720 and 634,000 US dollars.",
    notes=(PRICE_NOTE,),
    options=(),
    analyse=costs,
)
