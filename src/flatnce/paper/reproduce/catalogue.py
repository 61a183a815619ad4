"""The list of recipes. Plain data, no torch: a name's module is imported when it is asked for."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CATALOGUE", "check_settings", "entry"]


@dataclass(frozen=True)
class Entry:
    """A figure or table.

    Arguments:
        name: What users type; its module has the same name with underscores.
        paper: Which figure or table it is.
        title: A line about it.
        reads: Which of the command's settings change it: ``rate``, ``epoch``, ``imagenet``.
    """

    name: str
    paper: str
    title: str
    reads: tuple[str, ...] = ("rate",)

    @property
    def module(self) -> str:
        """Where its recipe is."""
        return f"flatnce.paper.reproduce.{self.name.replace('-', '_')}"


_ENTRIES = (
    Entry("fig-mi", "Figure 1", "Large-pool against K-sample mutual information in training"),
    Entry("fig-batch-size", "Figure 2", "Sample efficiency by batch size"),
    Entry("fig-speedup", "Figures 3 and S2", "Large-batch speed-up, rate scaled linearly"),
    Entry("fig-mi-accuracy", "Figures 4 and S1", "Mutual information against accuracy"),
    Entry("fig-ess", "Figure 5", "Effective sample size in training, both definitions"),
    Entry(
        "fig-ess-target",
        "Figure 6",
        "Accuracy by ESS target held fixed, at a given epoch",
        ("rate", "epoch"),
    ),
    Entry("fig-ess-schedule", "Algorithm S1", "ESS targets that move against targets that stay"),
    Entry(
        "fig-learning-rate", "Section 4", "The learning rate each number of negatives bears", ()
    ),
    Entry("fig-holder", "Proposition 3.7", "Hölder-FlatNCE by its power γ"),
    Entry(
        "table-1", "Table 1", "Bias, variance, stability and cost of every objective, known MI", ()
    ),
    Entry(
        "table-linear",
        "Tables 2 and S3",
        "Linear accuracy by epoch, short and long probes",
        ("rate", "imagenet"),
    ),
    Entry(
        "table-transfer",
        "Tables 3 and S2",
        "Transfer to other sets, linear and fine-tuned",
        ("rate", "imagenet"),
    ),
    Entry(
        "table-semi", "Table S4", "Semi-supervised accuracy with few labels", ("rate", "imagenet")
    ),
    Entry("table-cost", "Table S1", "What training costs (a run of yours: flatnce cost RUN)", ()),
    Entry(
        "primal-dual", "Appendix", "The failed attempts: primal and dual critics, K = 1 too", ()
    ),
)

CATALOGUE = {one.name: one for one in _ENTRIES}
"""Every recipe, in the paper's order."""


def check_settings(about: Entry, given: Mapping[str, Any], scale: str) -> None:
    """Refuse a setting that would do nothing."""
    for name in (name for name, value in given.items() if value is not None):
        if name not in about.reads:
            others = [one.name for one in CATALOGUE.values() if name in one.reads]
            who = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise ValueError(
                f"{about.name} does not read --{name}; leave it out (it is for {who})"
            )
        if name == "imagenet" and scale != "paper":
            raise ValueError(f"--imagenet is for scale paper, and this is scale {scale}")


def entry(name: str) -> Entry:
    """The entry of a name, or an error with a suggestion.

    Arguments:
        name: As typed.

    Examples:
        >>> entry("fig-mi").paper
        'Figure 1'
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "--list says what there is"
    raise ValueError(f"name={name!r} is no recipe; {hint}")
