"""The runs that Figures 1 and 5 look at: one small batch, both objectives, watched closely."""

from flatnce.paper.reproduce.bases import OBJECTIVES, cifar
from flatnce.paper.reproduce.recipe import Planned, Setting, grid


def dynamics(setting: Setting) -> list[Planned]:
    """InfoNCE and FlatNCE at a batch small enough to saturate."""
    batch = setting.pick(smoke=64, small=32, paper=32)
    config = cifar(setting).override(batch_size=batch)
    return grid(config, setting, objective=OBJECTIVES)
