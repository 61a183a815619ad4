"""What a card says of evaluations: a row each, of those that are of the exported step."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.export.source import Source
from flatnce.export.training_facts import data_named

__all__ = ["HEADER", "evaluation_row", "evaluations_of"]

HEADER = ("Protocol", "Data", "Measure", "Value", "95 % interval", "Top-5", "Test images")


def evaluations_of(source: Source) -> tuple[list[dict[str, Any]], int]:
    """The evaluations of the exported step, and how many there are of other steps.

    Arguments:
        source: What is exported.
    """
    results = (source.run.results if source.run else None) or {}
    every = [found for found in results.get("evaluations", ()) if isinstance(found, dict)]
    # One that does not say its step is of the run's last.
    mine = [e for e in every if e.get("step", results.get("step", source.step)) == source.step]
    return mine, len(every) - len(mine)


def evaluation_row(result: Mapping[str, Any]) -> list[str]:
    """The cells of one result, in the order of :data:`HEADER`; empty where it does not say.

    Arguments:
        result: As in the run's ``results.json``.

    Examples:
        >>> evaluation_row({"protocol": "knn", "data": "digits", "top1": 0.95})
        ['knn', 'digits', 'top-1', '95.00 %', '', '', '']
    """
    protocol = result.get("protocol")
    described: Mapping[str, Any] = protocol if isinstance(protocol, Mapping) else {}
    # The protocol's own name tells the rows of one protocol apart: "knn, k = 20".
    name = described.get("name", result.get("name")) if described else protocol
    data, count = result.get("data", described.get("data")), result.get("test_images")
    interval = result.get("interval")
    return [
        str(name or result.get("name") or "unnamed"),
        data_named(str(data)) if data else "",
        str(result.get("measure", "top-1" if "top1" in result else "")),
        _value(result),
        " to ".join(map(_share, interval)) if isinstance(interval, Sequence) else "",
        _share(result.get("top5")),
        f"{count:,}" if isinstance(count, int) else "",
    ]


def _value(result: Mapping[str, Any]) -> str:
    for name in ("top1", "map"):
        if result.get(name) is not None:
            return _share(result[name])
    nats = result.get("pool_mi")
    return f"{nats:.2f} nats" if isinstance(nats, int | float) else ""


def _share(value: Any) -> str:  # noqa: ANN401 (a number, or nothing)
    return f"{100 * value:.2f} %" if isinstance(value, int | float) else ""
