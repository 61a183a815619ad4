"""What a card says of evaluations: a row each, of those that are of the exported step."""

from collections.abc import Mapping
from typing import Any

from flatnce.pretrain.exporting.source import Source
from flatnce.pretrain.exporting.training_facts import data_named
from flatnce.pretrain.runs.scores import score_cells

HEADER = ("Protocol", "Data", "Measure", "Value", "95 % interval", "Top-5", "Test images")


def evaluations_of(source: Source) -> tuple[list[dict[str, Any]], int]:
    """The evaluations of the exported step, and how many there are of other steps."""
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
    cells = score_cells(result)
    return [
        cells.name,
        data_named(cells.data) if cells.data else "",
        cells.measure,
        cells.score,
        cells.interval,
        cells.top5,
        cells.test_images,
    ]
