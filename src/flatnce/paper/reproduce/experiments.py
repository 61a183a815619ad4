"""The list of experiments, and the two that train critics while they are analysed."""

from collections.abc import Mapping
from typing import Any

from flatnce.messages import did_you_mean
from flatnce.paper.reproduce.experiment import Experiment, Findings
from flatnce.paper.reproduce.figures import (
    FIG_BATCH_SIZE,
    FIG_ESS,
    FIG_ESS_SCHEDULE,
    FIG_ESS_TARGET,
    FIG_HOLDER,
    FIG_LEARNING_RATE,
    FIG_MI,
    FIG_MI_ACCURACY,
    FIG_SPEEDUP,
)
from flatnce.paper.reproduce.runs import Runs
from flatnce.paper.reproduce.tables import TABLE_COST, TABLE_LINEAR, TABLE_SEMI, TABLE_TRANSFER

__all__ = ["EXPERIMENTS", "check_options", "find_experiment"]


def _table_1(runs: Runs) -> Findings:
    from flatnce.paper.reproduce.table_1 import compare_bounds

    return compare_bounds(runs.setting)


def _primal_dual(runs: Runs) -> Findings:
    from flatnce.paper.reproduce.primal_dual import compare_variants

    return compare_variants(runs.setting)


TABLE_1 = Experiment(
    "table-1",
    "Table 1",
    "Bias, variance, stability and cost of every objective, known MI",
    claim="DV has large bias and poor stability, NWJ and Fenchel–Legendre low bias and okay "
    "stability, InfoNCE large bias and excellent stability, FlatNCE low bias and excellent "
    "stability.",
    notes=(
        "Bias and sd are of one batch's value: at the true critic, and at the critic that the "
        "objective trained, both over held-out batches of the training size. Those of "
        "Jensen–Shannon are about its own divergence, all others about mutual information.",
        "Calibrated InfoNCE is the fair comparison of critics: among all held-out pairs, at the "
        "scale that is best on other pairs. Unstable means scores or gradients that are not "
        "finite, or an end below half of what the run had reached.",
        "The gradient's spread is the standard deviation of its length over its mean in the "
        "second half of training. A step's time is processor time per run, among runs that are "
        "trained together, on the machine named below.",
        "FlatNCE's objective is the constant 1 (erratum 5): its row is about −û, the number "
        "behind it, and about its gradient.",
        "The true critic is the log density ratio. It is the optimum of all but Hölder-FlatNCE, "
        "whose optimum is that ratio over γ.",
        "The paper's formulas of DV and NWJ take K negatives in all; here they pool all pairs of "
        "the batch unless a row says one shuffled copy.",
        "Data are fresh at every step: nothing here is about overfitting. One rate for all, not "
        "tuned for any objective or critic.",
    ),
    options=(),
    analyse=_table_1,
    shows={
        "smoke": "small critics, seconds on a CPU: shows that the code works, and nothing about "
        "the paper",
        "small": "2, 4 and 6 nats, 1,000 steps, minutes on two CPU cores: the table's question, "
        "in small",
        "paper": "2 to 10 nats, 10,000 steps; the paper gives words and no settings",
    },
)

PRIMAL_DUAL = Experiment(
    "primal-dual",
    "Appendix",
    "The failed attempts: primal and dual critics, K = 1 too",
    claim="Joint training of primal and dual critics with one negative works reasonably well and "
    "stays about 2 points top-1 below InfoNCE on MNIST and CIFAR; alternating updates, and u on "
    "the manifold of its optimum, destabilise training: estimators explode after a few epochs.",
    notes=(
        "The paper prints the manifold as u = g + s(x); its optimum is −g + log Z(x) (erratum "
        "18), and −g + s(x) is trained here.",
        "One rate for all, not tuned for any objective or critic, and few steps: this is about "
        "which learns fastest at these settings, not about which ends highest.",
        "Same budget: every variant has as many batches of the same size. In alternating training "
        "every other batch updates u alone. With one negative, a row's only negative is the next "
        "row's partner.",
        "Calibrated InfoNCE is among all held-out pairs, at the scale that is best on others. FLO "
        "as trained is the bound that critic and u give together, on held-out batches with all "
        "negatives.",
        "On images, all critics are cosines at temperature 0.1, trained by Adam at rate 0.001, "
        "which was not tuned for any of them; views are those of the preset. The linear probe has "
        "5 % of the labels (mean of five draws, λ = 0.01), as with all of them an untrained "
        "encoder does nearly as well on digits; kNN has all. Nothing was chosen on test images.",
        "Unstable means scores or gradients that are not finite or, on Gaussians, an end below "
        "half of what the run had reached.",
    ),
    options=(),
    analyse=_primal_dual,
    shows={
        "smoke": "small critics and one epoch of digits, seconds on a CPU: shows that the code "
        "works, and nothing about the paper",
        "small": "2, 4 and 6 nats and 8 epochs of digits, minutes on two CPU cores: the "
        "appendix's question, in small",
        "paper": "2, 4 and 6 nats and 100 epochs of CIFAR-10; the paper gives no settings",
    },
)

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        FIG_MI,
        FIG_BATCH_SIZE,
        FIG_SPEEDUP,
        FIG_MI_ACCURACY,
        FIG_ESS,
        FIG_ESS_TARGET,
        FIG_ESS_SCHEDULE,
        FIG_LEARNING_RATE,
        FIG_HOLDER,
        TABLE_1,
        TABLE_LINEAR,
        TABLE_TRANSFER,
        TABLE_SEMI,
        TABLE_COST,
        PRIMAL_DUAL,
    )
}
"""Every experiment, in the paper's order."""


def find_experiment(name: str) -> Experiment:
    """The experiment of a name, or an error with a suggestion."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    hint = did_you_mean(name, EXPERIMENTS, "--list shows all names", cutoff=0.4)
    raise ValueError(f"name={name!r} is not an experiment; {hint}")


def check_options(experiment: Experiment, given: Mapping[str, Any], scale: str) -> None:
    """Refuse an option that would have no effect."""
    for name in (name for name, value in given.items() if value is not None):
        if name not in experiment.options:
            others = [one.name for one in EXPERIMENTS.values() if name in one.options]
            listed = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise ValueError(
                f"{experiment.name} does not read --{name}; leave it out (it is for {listed})"
            )
        if name == "imagenet" and scale != "paper":
            raise ValueError(f"--imagenet is for scale paper, and this is scale {scale}")
