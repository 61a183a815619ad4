"""A result of an evaluation as words: what tables on a terminal, a page and a card share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["score_cells"]


@dataclass(frozen=True)
class ScoreCells:
    """What a table says of one result; empty where the result does not say.

    Arguments:
        name: Of the protocol, with what tells its rows apart.
        data: Of the set, as it was typed.
        measure: What is measured.
        score: The number.
        interval: Its 95 % interval; of information, its one-sided lower limit.
        top5: Top-5 accuracy.
        test_images: How many.
    """

    name: str
    data: str
    measure: str
    score: str
    interval: str
    top5: str
    test_images: str

    @property
    def said(self) -> str:
        """The score where no column says what it is: top-1 unless it says another thing."""
        return f"mAP {self.score}" if self.measure.startswith("mAP") else self.score


def score_cells(result: Mapping[str, Any], percent: str = "{:.2f} %") -> ScoreCells:
    """The cells of a result.

    Arguments:
        result: As in the run's ``results.json``.
        percent: How accuracies are written, from 0 to 100.

    Examples:
        >>> found = score_cells({"protocol": {"name": "knn, k = 20"}, "top1": 0.95})
        >>> found.name, found.measure, found.said
        ('knn, k = 20', 'top-1', '95.00 %')
    """

    def share(value: Any) -> str:
        return percent.format(100 * value) if isinstance(value, int | float) else ""

    protocol, interval = result.get("protocol"), result.get("interval")
    described: Mapping[str, Any] = protocol if isinstance(protocol, Mapping) else {}
    # The protocol's own name tells the rows of one protocol apart: "knn, k = 20".
    name = described.get("name", result.get("name")) if described else protocol
    kind = next((key for key in ("map", "top1", "pool_mi") if result.get(key) is not None), "")
    usual = {"map": "mAP", "pool_mi": "mutual information, nats"}.get(
        kind, "top-1" if "top1" in result else ""
    )
    count = result.get("test_images")
    return ScoreCells(
        name=str(name or result.get("name") or "unnamed"),
        data=str(result.get("data", described.get("data")) or ""),
        measure=str(result.get("measure", usual)),
        score=_nats(result) if kind == "pool_mi" else share(result.get(kind)),
        interval=_limits(result.get("lower"), interval, share),
        top5=share(result.get("top5")),
        test_images=f"{count:,}" if isinstance(count, int) else "",
    )


def _limits(lower: Any, interval: Any, share: Callable[[Any], str]) -> str:
    if isinstance(lower, int | float):  # of information only a lower limit can be had
        return f"≥ {lower:.2f}"
    return " to ".join(map(share, interval)) if isinstance(interval, Sequence) else ""


def _nats(result: Mapping[str, Any]) -> str:
    ceiling = result.get("pool_ceiling")
    most = "" if ceiling is None else f" of {ceiling:.2f}"
    return f"{result['pool_mi']:.2f}{most} nats"
