"""What the losses for sentence-transformers share: an objective built from the host's options."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sentence_transformers.util import cos_sim, dot_score
from torch import Tensor, nn

from flatnce.core.diagnostics import Snapshot
from flatnce.core.objectives.temperature import Temperature
from flatnce.integrations import sentence_transformers_ranking as ranking

Similarity: TypeAlias = Callable[[Tensor, Tensor], Tensor]
USUAL_SCALE = 20.0
"""The host's."""

CITATION = """
@misc{chen2021simplerfasterstronger,
    title={Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE},
    author={Junya Chen and Zhe Gan and Xuan Li and Qing Guo and Liqun Chen and Shuyang Gao and Wenlian Lu and Tagyoung Chung and Yi Xu and Belinda Zeng and Fan Li and Lawrence Carin and Chenyang Tao},
    year={2021},
    eprint={2107.01152},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""


class Ranked(nn.Module):
    """What the plain and the cached loss share: an objective built from the host's options."""

    model: nn.Module
    scale: float
    similarity_fct: Similarity
    directions: tuple[str, ...]
    partition_mode: str
    gather_across_devices: bool
    objective: ranking.Ranking

    def _use(self, temperature: Temperature | None, objective: str, hardness: object) -> None:
        """Build the objective from the options that the host's constructor has checked."""
        readers = {"flatnce": ranking.FlatNCE, "infonce": ranking.InfoNCE}
        if objective not in readers:
            raise ValueError(f"objective={objective!r} is unknown; choose 'flatnce' or 'infonce'")
        if hardness is not None:
            raise ValueError(
                f"hardness_mode={hardness!r} has no FlatNCE form here: its gradient weighs hard "
                "negatives by their softmax already; leave it out, or raise scale"
            )
        similarity = self.similarity_fct
        if similarity not in (cos_sim, dot_score):
            raise ValueError(
                f"similarity_fct={getattr(similarity, '__name__', similarity)!r} is not known "
                "here; pass sentence_transformers.util.cos_sim or dot_score"
            )
        if isinstance(temperature, int | float) and temperature > 0:
            self.scale, temperature = 1 / temperature, None  # what the model card then says
        self.objective = readers[objective](
            1 / self.scale if temperature is None else temperature,
            directions=self.directions,
            joint=self.partition_mode == "joint",
            gather=self.gather_across_devices,
            normalize=similarity is cos_sim,
        )
        self._scale, self._reader = self.scale, objective

    def _value(self, columns: Sequence[Tensor]) -> Tensor:
        """The loss of a batch's columns."""
        if len(columns) < 2:
            raise ValueError(
                f"the batch has {len(columns)} column; pass (anchor, positive) pairs, with "
                "columns of negatives if you have them"
            )
        if self.scale != self._scale:  # assigned since, as the host's loss allows
            self.objective.temperature = 1 / self.scale
            self._scale = self.scale
        # The trainer sets the mode of the model alone; evaluation must not move a temperature.
        self.objective.train(self.model.training)
        loss: Tensor = self.objective(*columns)
        return loss

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last batch."""
        return self.objective.last

    @property
    def temperature(self) -> float | Tensor:
        """The temperature now."""
        return self.objective.temperature

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        config = super().get_config_dict()  # type: ignore[misc]
        settings = {k: v for k, v in config.items() if not k.startswith("hardness")}
        source = self.objective.temperature_source.source
        if not isinstance(source, float):
            settings["scale"] = None
            settings["temperature"] = str(source)
        return {**settings, "objective": self._reader}


def scale_of(scale: float | None, temperature: Temperature | None) -> float:
    """The scale to give to the host: one's own, or its usual one.

    Arguments:
        scale: As given, or None.
        temperature: As given, or None; goes without a scale.
    """
    if scale is not None and temperature is not None:
        raise ValueError(
            f"scale={scale} and temperature={temperature} were both given, and scale is one over "
            "the temperature; pass one of them"
        )
    return USUAL_SCALE if scale is None else scale
