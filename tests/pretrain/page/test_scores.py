"""A result as words: the terminal, the page and the card say the same."""

import pytest

from flatnce.pretrain.commands.evaluate import result_row
from flatnce.pretrain.exporting.export import evaluation_row
from flatnce.pretrain.page.run import evaluation_row as page_row
from flatnce.pretrain.runs.log import score_cells

SEVERAL = {
    "protocol": {"name": "linear"},
    "data": "voc2007",
    "measure": "mAP, 11-point",
    "map": 0.6,
}
INFORMATION = {"name": "mi", "protocol": {"name": "mi"}, "pool_mi": 5.0, "pool_ceiling": 9.21}
USUAL = {
    "name": "knn",
    "protocol": {"name": "knn, k = 20"},
    "data": "digits",
    "step": 1234,
    "top1": 0.9512,
    "top5": 0.999,
    "interval": (0.93, 0.97),
    "test_images": 1359,
    "seconds": 2.04,
}


@pytest.mark.parametrize(
    "result, said",
    [
        (USUAL, "95.12 %"),
        (SEVERAL, "mAP 60.00 %"),
        (INFORMATION, "5.00 of 9.21 nats"),
        ({"pool_mi": 5.0}, "5.00 nats"),
        ({"top1": None}, ""),
        ({}, ""),
    ],
)
def test_the_score_where_no_column_names_it(result, said):
    assert score_cells(result).said == said


@pytest.mark.parametrize("result", [USUAL, SEVERAL, INFORMATION])
def test_terminal_page_and_card_name_the_same_result(result):
    expected = ["knn, k = 20", "digits", "95.1", "93.0 to 97.0", "99.9", "1,359", "2.0"]
    assert result_row(USUAL) == expected
    cells = score_cells(result)
    assert result_row(result)[0] == page_row(result)[0] == evaluation_row(result)[0] == cells.name
    assert page_row(result)[3] == cells.said and evaluation_row(result)[3] == cells.score
    assert result_row(result)[2] == cells.said.replace("95.12 %", "95.1").replace(
        "60.00 %", "60.0"
    )
