"""The objectives: functions of a contrast, modules around them, and their registry.

Names are imported when first used, so that the registry can be read without torch. The classes of
the registry are in :mod:`flatnce.core.objectives.losses`.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.core.objectives.base import Batch as Batch
    from flatnce.core.objectives.base import Layout as Layout
    from flatnce.core.objectives.base import Objective as Objective
    from flatnce.core.objectives.base import Options as Options
    from flatnce.core.objectives.base import TwoTower as TwoTower
    from flatnce.core.objectives.base import TwoView as TwoView
    from flatnce.core.objectives.temperature import LearnedTemperature as LearnedTemperature

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Batch": "flatnce.core.objectives.base",
        "Layout": "flatnce.core.objectives.base",
        "LearnedTemperature": "flatnce.core.objectives.temperature",
        "Objective": "flatnce.core.objectives.base",
        "Options": "flatnce.core.objectives.base",
        "TwoTower": "flatnce.core.objectives.base",
        "TwoView": "flatnce.core.objectives.base",
    },
)
