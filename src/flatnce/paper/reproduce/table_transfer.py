"""Tables 3 and S2: transfer to other data sets, by a linear classifier and by fine-tuning."""

from collections.abc import Sequence
from typing import Any

from flatnce.paper.reproduce.accuracy import score
from flatnce.paper.reproduce.bases import CENTRE_SQUARES, OBJECTIVES, imagenet
from flatnce.paper.reproduce.pictures import accuracy, bars
from flatnce.paper.reproduce.printed import TRANSFER, TRANSFER_COLUMNS
from flatnce.paper.reproduce.readings import Group, Values, bar, groups, measure, row
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.pretrain.data import MissingData
from flatnce.pretrain.evaluation import TRANSFER_SETS, missing_sets

PROTOCOLS = {"transfer-linear": "Linear", "transfer-finetune": "Fine-tuned"}


def plan(setting: Setting) -> list[Planned]:
    """Both objectives."""
    config, wanted = imagenet(setting), _sets(setting)
    missing = missing_sets(wanted, config.data.root)
    if len(missing) == len(wanted):
        raise MissingData(
            f"none of the sets to transfer to is on disk: {', '.join(wanted)}; fetch one with "
            f"`flatnce data {wanted[0]}`"
        )
    return grid(config, setting, objective=OBJECTIVES)


def _sets(setting: Setting) -> tuple[str, ...]:
    return setting.pick(
        smoke=("digits",), small=("cifar100", "stl10", "fashion-mnist"), paper=TRANSFER_SETS
    )


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy on every set that is on disk, by both protocols."""
    wanted = _sets(setting)
    missing = missing_sets(wanted, runs[0].planned.config.data.root)
    here = [name for name in wanted if name not in missing]
    found = groups(runs)
    rows, pictures = [], []
    for protocol, title in PROTOCOLS.items():
        ends = {
            (group.label, data): _accuracy(group, protocol, data, setting)
            for group in found
            for data in here
        }
        for data in here:
            for group in found:
                theirs = _printed(protocol, group.variables["objective"], data, setting)
                cells = {"top-1": measure(ends[group.label, data], "share", theirs)}
                rows.append(row(group, cells, data=data, protocol=title.lower()))
        pictures += _picture(protocol, title, here, found, ends, setting)
    words = {}
    if missing:
        words["Not on disk"] = f"{', '.join(missing)}; fetch with `flatnce data NAME`."
    return Findings(rows, pictures, words, _paper_tables())


def _accuracy(group: Group, protocol: str, data: str, setting: Setting) -> Values:
    """Top-1, or mean average precision where an image shows several classes."""
    options: dict[str, Any] = setting.pick(
        smoke={"epochs": 1, "rates": (1e-3,)},
        small={"epochs": 10} if protocol == "transfer-finetune" else {},
        paper={"size": 224},
    )
    found = [
        {} if run.failure else score(run, protocol, data=(data,), **options) for run in group.runs
    ]
    return [one.get("top1", one.get("map")) for one in found]


def _printed(protocol: str, objective: str, data: str, setting: Setting) -> float | None:
    if setting.scale != "paper" or data not in TRANSFER_COLUMNS:
        return None
    percent = TRANSFER[protocol][objective][TRANSFER_COLUMNS.index(data)]
    return None if percent is None else percent / 100


def _picture(
    protocol: str,
    title: str,
    here: Sequence[str],
    found: Sequence[Group],
    ends: dict[tuple[str, str], Values],
    setting: Setting,
) -> list[dict[str, Any]]:
    drawn = []
    for group in found:
        numbers = [ends[group.label, data] for data in here]
        theirs = [_printed(protocol, group.variables["objective"], data, setting) for data in here]
        drawn.append(bar(group.label, numbers, group.series, theirs))
    marks = "the paper’s" if setting.scale == "paper" else ""
    caption = "Accuracy on the test sets (mAP on voc2007); intervals are ± one sd over seeds."
    up = accuracy("test", low=0.0)
    return bars(protocol, f"{title} transfer", caption, "data set", up, here, drawn, marks)


def _paper_tables() -> list[dict[str, Any]]:
    rows = [
        [
            f"{label}, {title.lower()}",
            *("" if value is None else f"{value:.2f}" for value in TRANSFER[protocol][objective]),
        ]
        for protocol, title in PROTOCOLS.items()
        for objective, label in (("infonce", "SimCLR"), ("flatnce", "FlatCLR"))
    ]
    header = ["From ImageNet, per cent", *TRANSFER_COLUMNS]
    return [{"caption": "The paper's numbers", "header": header, "rows": rows}]


RECIPE = Recipe(
    claim="Features pretrained on ImageNet transfer better with FlatCLR than with SimCLR to every "
    "set, by a linear classifier (Table 3) and fine-tuned (Table S2).",
    plan=plan,
    read=read,
    notes=(
        "VOC2007 has several classes an image: voc2007 is the mean average precision at 11 "
        "points, voc2007-top1 the paper's reading, which its table prints.",
        "From the paper: Adam without regularisation or augmentation for the linear classifier; "
        "NAdam, rate 5e-5, no weight decay, batch 512, 100 epochs, crops and flips for "
        "fine-tuning. This project's own: 100 epochs, batch 512 and a rate from 1e-4 to 1e-1, "
        "chosen on a held-out tenth of the training images, for the linear classifier. Scale "
        "small fine-tunes for 10 epochs.",
        *CENTRE_SQUARES,
        "At smoke scale the digits transfer to themselves: there is nothing else on disk.",
    ),
)
