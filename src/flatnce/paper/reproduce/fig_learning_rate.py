"""How large a learning rate each number of negatives bears (Section 4)."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.reproduce.bases import cifar
from flatnce.paper.reproduce.pictures import accuracy, axis, lines
from flatnce.paper.reproduce.readings import Values, curve, groups, measure, points, row, where
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.paper.spread import spread
from flatnce.pretrain.training.config import TrainConfig

TOLERANCE = 0.02
"""A rate is borne if its kNN is no more than this below the best of its number of negatives."""

QUEUED_BATCH = 64
"""Batch size of the runs with a queue."""

WAYS = (
    ("batch_size", "by batch", "Negatives are the other images of the batch."),
    (
        "queue",
        "by queue",
        f"Every batch has {QUEUED_BATCH} images; negatives are the past keys of a queue.",
    ),
)
"""What is varied, in short, and what that means."""


def plan(setting: Setting) -> list[Planned]:
    """FlatNCE at every rate: by batch size, and by the keys of a queue at one batch size."""
    fine = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    rates = setting.pick(smoke=(0.1, 3.0), small=(0.03, 0.1, 0.3, 1.0, 3.0), paper=fine)
    sizes = setting.pick(smoke=(64, 128), small=(32, 256), paper=(16, 32, 64, 128, 256, 512))
    queues = setting.pick(smoke=(128, 512), small=(256, 4096), paper=(64, 256, 1024, 4096))
    config = cifar(setting).override(scaling="none")
    if setting.scale == "small":
        config = config.override(epochs=5)
    queued = config.override(batch_size=QUEUED_BATCH, momentum_encoder=0.99, queue=queues[0])
    return [
        *grid(config, setting, batch_size=sizes, rate=rates),
        *grid(queued, setting, queue=queues, rate=rates),
    ]


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy by rate, a line a number of negatives; the largest rate that each bears."""
    rows, pictures, words, borne = [], [], {}, []
    for variable, title, caption in WAYS:
        found = [group for group in groups(runs) if variable in group.variables]
        drawn, largest = [], []
        for series, value in enumerate(dict.fromkeys(g.variables[variable] for g in found)):
            members = where(found, **{variable: value})
            config = members[0].runs[0].planned.config
            negatives = negatives_of(config)
            ends = {}
            for group in members:
                ends[group.variables["rate"]] = end = curve(group, "knn", "watch").last()
                cells = {"kNN at the end": measure(end, "share")}
                beside = {"batch_size": config.run.batch_size, "negatives": negatives}
                rows.append(row(group, cells, **beside))
            drawn.append(points(f"{negatives} neg.", list(ends), list(ends.values()), series))
            if (rate := _largest_borne(ends)) is not None:
                largest.append((negatives, rate))
        pictures += lines(
            f"by-rate-{variable.replace('_', '-')}",
            f"Accuracy by learning rate, {title}",
            f"{caption} kNN on held-out training images at the end; a line a number of "
            "negatives. Rates at which training diverged have no point.",
            axis("learning rate", logarithmic=True),
            accuracy("kNN"),
            drawn,
        )
        borne.append((title, largest))
        said = "; ".join(f"{rate:g} with {negatives} negatives" for negatives, rate in largest)
        words[f"Largest rate borne, {title}"] = f"{said or 'none'}."
    return Findings(rows, pictures + _largest(borne), words)


def negatives_of(config: TrainConfig) -> int:
    """Of an image: the other views of its batch; with a queue, its other keys and the queue's."""
    batch, queue = config.run.batch_size, config.model.queue
    return batch - 1 + queue if queue else 2 * batch - 2


def _largest(
    borne: Sequence[tuple[str, Sequence[tuple[int, float]]]],
) -> list[dict[str, Any]]:
    ticks = sorted({negatives for _, pairs in borne for negatives, _ in pairs})
    return lines(
        "borne",
        "The largest rate that is borne",
        f"The largest rate whose kNN is within {100 * TOLERANCE:g} points of the best.",
        axis("negatives", ticks=ticks, logarithmic=True),
        axis("learning rate", logarithmic=True),
        [
            points(title, [n for n, _ in pairs], [[rate] for _, rate in pairs], series)
            for series, (title, pairs) in enumerate(borne)
        ],
    )


def _largest_borne(ends: Mapping[float, Values]) -> float | None:
    """A rate at which some seed diverged is not borne."""
    found = {rate: spread(values) for rate, values in ends.items()}
    whole = {rate: one["mean"] for rate, one in found.items() if None not in one["values"]}
    if not whole:
        return None
    least = max(whole.values()) - TOLERANCE
    return max(rate for rate, mean in whole.items() if mean >= least)


RECIPE = Recipe(
    claim="More negatives confine the search, and so allow larger learning rates.",
    plan=plan,
    read=read,
    notes=(
        "By batch, the noise of a step and the number of steps vary along with the negatives. By "
        f"queue they do not: every run has batches of {QUEUED_BATCH}, a momentum encoder (0.99) "
        "and as many steps, and only the number of past keys differs. The two ways are not "
        "comparable with one another: with a queue only the first view is contrasted, and keys "
        "are older the longer it is.",
        "The rate is not scaled with the batch here. The paper prints no numbers for this.",
    ),
)
