"""What a pretraining run is asked to do.

Leaf names are unique over all sections, so a command line, an override and a table are flat, while
``config.json`` keeps the sections for a reader.
"""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from flatnce.pretrain.training.sections import (
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ViewConfig,
    WatchConfig,
)

__all__ = ["TrainConfig"]


@dataclass(frozen=True)
class TrainConfig:
    """A whole run.

    Arguments:
        data: Which images.
        views: How an image becomes views.
        model: What encodes them.
        loss: What is minimised.
        optimizer: How it is minimised.
        run: How long, how much at once, from which seed, on what.
        watch: What is measured on the way.

    Examples:
        >>> config = TrainConfig().override(objective="infonce", batch_size=32)
        >>> config.loss.objective, config.run.batch_size
        ('infonce', 32)
        >>> TrainConfig.from_plain(config.plain()) == config
        True
    """

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)

    def override(self, **changes: Any) -> "TrainConfig":
        """The same config but for some leaves, named without their section.

        Arguments:
            **changes: For example ``batch_size=32, objective="infonce"``.
        """
        sections: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name not in _SECTION_OF:
                near = difflib.get_close_matches(name, _SECTION_OF, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "TrainConfig().flat() lists them"
                raise ValueError(f"{name!r} is no setting of a run; {hint}")
            sections.setdefault(_SECTION_OF[name], {})[name] = value
        changed = {name: replace(getattr(self, name), **new) for name, new in sections.items()}
        return replace(self, **changed)

    def plain(self) -> dict[str, dict[str, Any]]:
        """Sections of plain data, as ``config.json`` holds them."""
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """Every leaf by its name."""
        return {name: value for part in self.plain().values() for name, value in part.items()}

    @classmethod
    def from_plain(cls, sections: Mapping[str, Mapping[str, Any]]) -> "TrainConfig":
        """The config that ``config.json`` describes; settings it does not name have defaults.

        Arguments:
            sections: As :meth:`plain` gives them.
        """
        return cls().override(**{k: v for part in sections.values() for k, v in part.items()})


_SECTION_OF: dict[str, str] = {
    leaf.name: section.name
    for section in fields(TrainConfig)
    for leaf in fields(section.default_factory)  # type: ignore[arg-type,misc]  # a dataclass
}
