"""A result as words: the terminal, the page and the card say the same."""

import pytest

from flatnce.pretrain.commands.evaluate import result_row
from flatnce.pretrain.exporting import evaluation_row
from flatnce.pretrain.page.run import evaluation_row as page_row
from flatnce.pretrain.runs.log import score_cells
from made_runs import EVALUATION

USUAL = {**EVALUATION, "step": 1234, "protocol": {"name": "linear, long"}}


@pytest.mark.parametrize(
    "result, said",
    [
        (USUAL, "95.12 %"),
        ({"pool_mi": 5.0, "pool_ceiling": 9.21}, "5.00 of 9.21 nats"),
        ({"pool_mi": 5.0}, "5.00 nats"),
        ({"top1": None}, ""),
        ({}, ""),
    ],
)
def test_the_score_where_no_column_names_it(result, said):
    assert score_cells(result).score == said


def test_terminal_page_and_card_say_the_same():
    name, numbers = "linear, long", ["99.90 %", "1,359"]
    score, interval = "95.12 %", "93.00 % to 97.00 %"
    assert page_row(USUAL) == (name, "digits", "1,234", score, interval, *numbers)
    assert evaluation_row(USUAL) == [name, "digits", "top-1", score, interval, *numbers]
    shorter = ["95.1", "93.0 to 97.0", "99.9", "1,359", "2.0"]
    assert result_row(USUAL) == [name, "digits", *shorter]
