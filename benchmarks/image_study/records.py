"""Records of the image study: those of ``flatnce.pretrain.runs.records``, with its own fields."""

from flatnce.pretrain.runs import records
from flatnce.pretrain.runs.records import read_records as read_all
from flatnce.pretrain.runs.records import write_record as write

MOST_LINES = 100
"""The largest number of lines of metrics in a record."""

__all__ = ["key_of", "read_all", "record_of", "write"]


def is_averaged(config):
    """Whether the average of checkpoints is evaluated, as of every run that keeps several."""
    return config["watch"]["keep"] > 1


def key_of(config):
    """The key of a config; where checkpoints are averaged, it says which.

    The training of such a run is that of the run that keeps one checkpoint.
    """
    return records.key_of(config, measured=is_averaged(config))


def record_of(name, piece, step, run, evaluation, where):
    """The record of one run, in plain data.

    Arguments:
        name: The name of the run.
        piece: The number of the piece in the protocol.
        step: The step of the piece.
        run: The result of :func:`flatnce.pretrain.runs.log.read_run`.
        evaluation: The accuracies, and the images on which they were measured.
        where: Commit and versions.
    """
    tuning = evaluation["on"] == "held-out training images"
    own = {"purpose": "tuning" if tuning else "evaluation", "evaluation": evaluation}
    own |= {"piece": piece, "piece_step": step, "environment": where}
    every = max(1.0, run.config["run"]["epochs"] / MOST_LINES)
    measured = is_averaged(run.config)
    return records.record_of(name, run, every=every, measured=measured) | own
