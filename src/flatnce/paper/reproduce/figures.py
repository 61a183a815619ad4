"""The paper's figures as data. What they compute of their own is in ``analyses``."""

import math

from flatnce.paper.charts import axis
from flatnce.paper.reproduce.analyses import (
    BASE_BATCH,
    QUEUED_BATCH,
    SATURATED,
    TARGET_SHARE,
    learning_rates,
    mi_and_accuracy,
    parting_chart,
    parting_words,
    saturation,
    speed_up,
    with_queue,
)
from flatnce.paper.reproduce.experiment import OBJECTIVES, Experiment, by_scale
from flatnce.paper.reproduce.runs import (
    KNN,
    LINEAR,
    Ahead,
    Best,
    ByEpoch,
    ByVariable,
    Measure,
    Runs,
)

SMALL_BATCH = {"batch_size": by_scale(64, 32, 32)}
MIDDLE_BATCH = {"batch_size": by_scale(64, 32, 128)}

NATS = axis("mutual information (nats)", low=0.0)
K_MI = Measure("K-sample MI", "nats", NATS, key="mi")
POOL_MI = Measure("large-pool MI", "nats", NATS, key="pool_mi", kind="watch")
POOL_MI_AS_TRAINED = Measure(
    "large-pool MI as trained", "nats", NATS, key="pool_mi_at_temperature", kind="watch"
)
SATURATION = Measure("K-sample MI / log K", "share", function=lambda group, _: saturation(group))
ESS = Measure("ESS", axis=axis("ESS (share of negatives)"), key="ess")
ESS_WITH_POSITIVE = Measure("ESS with the positive", key="ess_with_positive")
TEMPERATURE = Measure("temperature", axis=axis("temperature"), key="temperature")


def _log_k(runs: Runs) -> dict[str, float]:
    candidates = 2 * runs.finished[0].planned.config.run.batch_size - 1
    return {f"log {candidates}": math.log(candidates)}


def _log_k_and_pool(runs: Runs) -> dict[str, float]:
    sizes = [size for g in runs.groups for size in g.curve("pool", "watch").last() if size]
    return _log_k(runs) | {f"log {pool:,.0f}": math.log(pool) for pool in sizes[:1]}


FIG_MI = Experiment(
    "fig-mi",
    "Figure 1",
    "Large-pool against K-sample mutual information in training",
    claim="FlatNCE goes on optimising the mutual information of the representation, read against "
    "a very large pool, after the finite-sample loss has saturated at log K; InfoNCE stalls.",
    notes=(
        "The paper does not state the batch size of this figure.",
        "The pool is fresh views of training images: the encoders have seen these images, in "
        "other views. `flatnce evaluate RUN --protocol mi` measures the same on test images.",
    ),
    settings=SMALL_BATCH,
    grids=[{"objective": OBJECTIVES}],
    columns=(K_MI, POOL_MI, POOL_MI_AS_TRAINED),
    charts=(
        ByEpoch(
            K_MI,
            "What a batch can show of the mutual information of two views, which is at most "
            "log K; the band is ± one sd over seeds.",
            references=_log_k,
        ),
        ByEpoch(
            POOL_MI,
            "The same encoders measured against a large pool of fresh views of training images, "
            "each at the scale that is best on other such pairs: here the value can exceed log K.",
            references=_log_k_and_pool,
        ),
    ),
    words=(Ahead(POOL_MI, "At the end, among the large pool"),),
)

FIG_BATCH_SIZE = Experiment(
    "fig-batch-size",
    "Figure 2",
    "Sample efficiency by batch size",
    claim="SimCLR degrades with small batches, FlatCLR far less: FlatCLR at 16 matches SimCLR at "
    "128. Before the contrast saturates all models perform alike; after that they part.",
    notes=(
        f"InfoNCE counts as saturated where its K-sample information is {SATURATED:.0%} of log K; "
        "the paper gives no threshold.",
    ),
    settings={"epochs": {"small": 15}},
    grids=[
        {
            "batch_size": by_scale((64, 128), (16, 32, 128), (16, 32, 64, 128, 256)),
            "objective": OBJECTIVES,
        }
    ],
    columns=(LINEAR, KNN, SATURATION),
    charts=(
        ByVariable(
            LINEAR,
            "batch_size",
            "batch size",
            "Accuracy by batch size",
            "Linear probe on the test set at the end of training; the band is ± one sd.",
            logarithmic=True,
        ),
        parting_chart,
        ByEpoch(KNN, "kNN by epoch.", "Batch size {batch_size}", split="batch_size"),
    ),
    words=(Ahead(LINEAR, "Batch {batch_size}", split="batch_size"), parting_words),
)

FIG_SPEEDUP = Experiment(
    "fig-speedup",
    "Figures 3 and S2",
    "Large-batch speed-up, rate scaled linearly",
    claim="A larger batch, its learning rate scaled linearly, converges faster (ResNet-18; for "
    "ResNet-50 a moderate batch of 256 learns fastest early on).",
    notes=(
        "The paper tunes the rate at the base batch and scales it linearly. Here the base is the "
        "preset's rate; give your own by --rate, for example one found by `flatnce train --tune`.",
        f"The target is {TARGET_SHARE:.0%} of the kNN accuracy at which batch {BASE_BATCH}, the "
        "base, ends (mean over seeds). A speed-up is stated only where every seed of both batch "
        "sizes reached it. Its resolution is the interval between checks.",
        "Seconds are of this machine and of training steps alone: images trained by images per "
        "second, summed over the lines of each run. The paper's figures do not print the batch "
        "sizes.",
    ),
    settings={"scaling": "linear", "base_batch": BASE_BATCH, "epochs": {"small": 10}},
    grids=[
        {
            "backbone": by_scale(("small",), ("resnet18", "resnet50"), ("resnet18", "resnet50")),
            "batch_size": by_scale(
                (64, BASE_BATCH), (64, BASE_BATCH, 1024), (64, 128, BASE_BATCH, 512, 1024)
            ),
        }
    ],
    analyse=speed_up,
)

FIG_MI_ACCURACY = Experiment(
    "fig-mi-accuracy",
    "Figures 4 and S1",
    "Mutual information against accuracy",
    claim="Top-1 accuracy and the large-pool MI are strongly linearly related (ρ = 0.65, "
    "p < 1e-20); with the mini-batch MI the link is not evident.",
    notes=(
        "Checkpoints of one run are not independent, so the p-value is smaller than it should be. "
        "This holds for the paper's as well.",
        "The large pool is fresh views of training images, as in Figure 1; the accuracy is of the "
        "test set.",
    ),
    settings={
        "checkpoint_every": by_scale(0.34, 2.0, 5.0),
        "watch_every": by_scale(0.34, 2.0, 5.0),
        "keep": None,
    },
    grids=[
        {
            "batch_size": by_scale((64,), (32, 256), (16, 32, 64, 128, 256)),
            "objective": OBJECTIVES,
        }
    ],
    analyse=mi_and_accuracy,
)

ESS_DEFINITIONS = {
    "ess": (
        "ESS of the negatives",
        "How evenly the negatives share the gradient, by FlatNCE's weights; the positive is left "
        "out.",
    ),
    "ess_with_positive": (
        "ESS with the positive",
        "How evenly all candidates share the gradient, by InfoNCE's weights. Once the positive "
        "has the largest score, it has nearly all the weight.",
    ),
}
ESS_CHARTS = tuple(
    ByEpoch(Measure(title, axis=axis("ESS (share)", low=0.0), key=key), caption)
    for key, (title, caption) in ESS_DEFINITIONS.items()
)


def _ess_words(runs: Runs) -> dict[str, str]:
    words = {}
    for chart in ESS_CHARTS:
        parts = []
        for one in chart.lines(runs.groups):
            known = [value for value in one["y"] if value is not None]
            if known:
                parts.append(f"{one['label']} goes from {known[0]:.3f} to {known[-1]:.3f}")
            else:
                parts.append(f"every run of {one['label']} diverged")
        words[chart.measure.title] = "; ".join(parts) + "."
    return words


FIG_ESS = Experiment(
    "fig-ess",
    "Figure 5",
    "Effective sample size in training, both definitions",
    claim="SimCLR's ESS falls as InfoNCE saturates (0.06 to 0.05), FlatCLR's climbs (0.17 to "
    "0.35).",
    notes=(
        "The paper's two curves are two different numbers: SimCLR's has the positive in the pool, "
        "FlatCLR's has not. Here each definition is drawn for both objectives.",
    ),
    settings=SMALL_BATCH,
    grids=[{"objective": OBJECTIVES}],
    columns=[
        Measure(f"{title}, {when}", key=key, at_start=when == "first")
        for key, (title, _) in ESS_DEFINITIONS.items()
        for when in ("first", "last")
    ],
    charts=ESS_CHARTS,
    words=(_ess_words,),
)

FIG_ESS_TARGET = Experiment(
    "fig-ess-target",
    "Figure 6",
    "Accuracy by ESS target held fixed, at a given epoch",
    claim="At epoch 50, holding the ESS in 0.15 to 0.4 works well on CIFAR-10, while SimCLR at a "
    "fixed temperature only covers 0.04 to 0.06.",
    notes=(
        "Algorithm S1 as printed moves the temperature the wrong way; here an ESS above its "
        "target raises the inverse temperature.",
        "The paper's 0.04 to 0.06 is with the positive in the pool, its targets are without: two "
        "different numbers, both in the table.",
        "The best target is chosen by the kNN on held-out training images; the test accuracy is "
        "that of the target so chosen, not the highest.",
        "Measured at the checkpoint that is nearest to the epoch asked for; the table names it.",
        "A target below what the views allow is not reached: compare the column ESS.",
    ),
    options=("rate", "epoch"),
    settings={
        **MIDDLE_BATCH,
        "checkpoint_every": by_scale(0.5, 5.0, 10.0),
        "epochs": {"small": 15},
        "keep": None,
    },
    grids=[
        {
            "objective": ("flatnce",),
            "ess": by_scale(
                (0.1, 0.4),
                (0.05, 0.15, 0.25, 0.4, 0.8),
                (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8),
            ),
        },
        {"objective": OBJECTIVES},
    ],
    epoch=by_scale(0.5, 10.0, 50.0),
    columns=(LINEAR, KNN, ESS, ESS_WITH_POSITIVE, TEMPERATURE),
    charts=(
        ByVariable(
            LINEAR,
            "ess",
            "ESS held (share of negatives)",
            "Accuracy by ESS target, at epoch {epoch:g}",
            "Linear probe on the test set; FlatNCE with its ESS held, and as dotted lines both "
            "objectives at the fixed temperature.",
            label="ESS held",
        ),
    ),
    words=(Best("ess", "Best target", "{:g}"),),
)

SCHEDULES = {
    "0.2 held": {"objective": "flatnce", "ess": 0.2, "ess_end": None},
    "0.4 held": {"objective": "flatnce", "ess": 0.4, "ess_end": None},
    "0.1 to 0.4": {"objective": "flatnce", "ess": 0.1, "ess_end": 0.4},
    "0.4 to 0.1": {"objective": "flatnce", "ess": 0.4, "ess_end": 0.1},
}

FIG_ESS_SCHEDULE = Experiment(
    "fig-ess-schedule",
    "Algorithm S1",
    "ESS targets that move against targets that stay",
    claim="Algorithm S1 takes a schedule of ESS targets; the paper shows fixed ones only and "
    "leaves schedules to future work.",
    settings=MIDDLE_BATCH,
    grids=[{"schedule": by_scale(("0.2 held", "0.1 to 0.4"), tuple(SCHEDULES), tuple(SCHEDULES))}],
    overrides=lambda variables: SCHEDULES[variables["schedule"]],
    columns=(LINEAR, KNN, ESS),
    charts=(
        ByEpoch(
            ESS,
            "The ESS that each schedule reached; its target moves along a cosine.",
            "Effective sample size",
            label="schedule",
        ),
        ByEpoch(TEMPERATURE, "The temperature that the controller set.", label="schedule"),
        ByEpoch(KNN, "kNN on held-out training images.", "Accuracy", label="schedule"),
    ),
    words=(Best("schedule", "Best schedule"),),
)

RATES = by_scale((0.1, 3.0), (0.03, 0.1, 0.3, 1.0, 3.0), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0))

FIG_LEARNING_RATE = Experiment(
    "fig-learning-rate",
    "Section 4",
    "The largest usable learning rate by number of negatives",
    claim="More negatives confine the search, and so allow larger learning rates.",
    notes=(
        "By batch, the noise of a step and the number of steps vary along with the negatives. By "
        f"queue they do not: every run has batches of {QUEUED_BATCH}, a momentum encoder (0.99) "
        "and the same number of steps, and only the number of past keys differs. The two are not "
        "comparable with one another: with a queue only the first view is contrasted, and a "
        "longer queue holds older keys.",
        "The rate is not scaled with the batch here. The paper prints no numbers for this.",
    ),
    options=(),
    settings={"scaling": "none", "epochs": {"small": 5}},
    grids=[
        {
            "batch_size": by_scale((64, 128), (32, 256), (16, 32, 64, 128, 256, 512)),
            "rate": RATES,
        },
        {
            "queue": by_scale((128, 512), (256, 4096), (64, 256, 1024, 4096)),
            "rate": RATES,
        },
    ],
    overrides=with_queue,
    analyse=learning_rates,
)

HOLDER_CAPTION = "At the end of training; FlatNCE is the power 1."

FIG_HOLDER = Experiment(
    "fig-holder",
    "Proposition 3.7",
    "Hölder-FlatNCE by its power γ",
    claim="The Hölder generalisation reweights the negatives: a power γ acts on the gradient as "
    "an inverse temperature does. The paper reports no number for it.",
    notes=("The gradient is FlatNCE's at scores γg, divided by γ.",),
    settings=MIDDLE_BATCH,
    grids=[
        {
            "objective": ("holder",),
            "gamma": by_scale((0.5, 2.0), (0.5, 1.0, 2.0, 4.0), (0.25, 0.5, 1.0, 2.0, 4.0)),
        },
        {"objective": ("flatnce",)},
    ],
    columns=(LINEAR, KNN, ESS),
    charts=[
        ByVariable(measure, "gamma", "power γ", title, HOLDER_CAPTION, logarithmic=True)
        for measure, title in ((LINEAR, "Accuracy by γ"), (ESS, "Effective sample size by γ"))
    ],
    words=(Best("gamma", "Best power", "γ = {:g}"),),
)
