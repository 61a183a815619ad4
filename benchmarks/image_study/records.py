"""Records of the image study: those of ``flatnce.pretrain.runs.records``, with its own fields."""

from flatnce.pretrain.runs import records
from flatnce.pretrain.runs.records import key_of
from flatnce.pretrain.runs.records import read_records as read_all
from flatnce.pretrain.runs.records import write_record as write

MOST_LINES = 100
"""Of metrics in a record."""

__all__ = ["key_of", "read_all", "record_of", "write"]


def record_of(name, piece, step, run, evaluation, where):
    """The record of one run, in plain data.

    Arguments:
        name: Of the run.
        piece: Of the programme, as the protocol numbers it.
        step: Of the piece.
        run: As :func:`flatnce.pretrain.runs.log.read_run` gives it.
        evaluation: Its results, with the images they are on.
        where: Commit and versions.
    """
    tuning = evaluation["on"] == "held-out training images"
    own = {"purpose": "tuning" if tuning else "evaluation", "evaluation": evaluation}
    own |= {"piece": piece, "piece_step": step, "environment": where}
    every = max(1.0, run.config["run"]["epochs"] / MOST_LINES)
    return records.record_of(name, run, every=every) | own
