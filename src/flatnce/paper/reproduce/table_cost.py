"""Table S1: what training contrastive learners costs. ``flatnce cost RUN`` adds a run of yours."""

from collections.abc import Sequence

from flatnce.paper.cost import PAPER, PRICE_NOTE
from flatnce.paper.reproduce.pictures import axis, bars
from flatnce.paper.reproduce.readings import measure
from flatnce.paper.reproduce.recipe import Findings, Finished, Recipe, Setting, no_runs


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Devices × hours × price, beside what the paper prints."""
    rows = [
        {
            "variables": {"model": one.model, "devices": f"{one.devices} × {one.device}"},
            "measures": {
                "hours": measure([one.hours], "hours"),
                "cost": measure([one.cost], "dollars", float(one.printed)),
            },
        }
        for one in PAPER
    ]
    drawn = {
        "label": "computed",
        "values": [one.cost for one in PAPER],
        "marks": [float(one.printed) for one in PAPER],
        "series": 1,
    }
    picture = bars(
        "cost",
        "Cost of training a contrastive learner",
        "Devices × hours × price, on a scale of powers of ten; tuning and evaluation not counted.",
        "model",
        axis("US dollars", logarithmic=True, low=100.0),
        [one.model for one in PAPER],
        [drawn],
        "the paper’s",
    )
    return Findings(rows, picture, {"A run of yours": "`flatnce cost RUN --price DOLLARS`."})


RECIPE = Recipe(
    claim="Training MoCo, SimCLR and CLIP cost about 23,000, 1,720 and 634,000 US dollars.",
    plan=no_runs,
    read=read,
    notes=(PRICE_NOTE,),
)
