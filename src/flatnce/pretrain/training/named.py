"""``flatnce.train``: a run by its name and settings."""

import os
from collections.abc import Sequence
from typing import Any

from flatnce.pretrain.evaluation import evaluate_run, expand
from flatnce.pretrain.page.run import run_page
from flatnce.pretrain.runs.folder import runs_folder
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training import config, loop

__all__ = ["train"]


def train(
    data: Any,
    *,
    name: str | None = None,
    preset: str | None = None,
    evaluate: Sequence[str] = ("knn", "linear"),
    **options: Any,
) -> loop.Outcome:
    """Pretrain an encoder, evaluate it and write its page, as ``flatnce train`` does.

    ``flatnce.load(name)`` then loads the encoder, and ``flatnce runs`` lists the run.

    Arguments:
        data: A data set's name, the path of a folder of images, the import path of your own, or
            what ``data`` of :func:`flatnce.pretrain.train` takes.
        name: Name of the run in the folder of runs; by default from its settings.
        preset: Settings to start from; by default those made for the data set.
        evaluate: Protocols to evaluate with on the test set at the end; may be empty.
        options: Settings of the run, for example ``objective="infonce"`` or ``batch_size=32``;
            and arguments of :func:`flatnce.pretrain.train`, for example ``replace=True`` or
            ``encoder=network``.

    Examples:
        >>> import flatnce
        >>> flatnce.train("digits", objective="flatnce", name="first").finished  # doctest: +SKIP
        True
    """
    settings = config.TrainConfig().flat()
    start = config.preset(preset or (data if isinstance(data, str) else "own"))
    if not isinstance(data, str):
        start = start.override(data=data)
    elif preset is not None:  # the split to train on depends on the data set
        start = start.override(data=data, split=config.preset(data).data.split)
    changes = {key: value for key, value in options.items() if key in settings}
    rest = {key: value for key, value in options.items() if key not in settings}
    asked = start.override(**changes)
    if evaluate:
        expand(evaluate)  # refuses an unknown name before training
    outcome = loop.train(asked, runs_folder() / (name or asked.usual_name), **rest)
    if int(os.environ.get("RANK", "0")) > 0:
        return outcome  # the first process of torchrun does the rest
    labelled = (read_run(outcome.directory).results or {}).get("labelled", False)
    if outcome.finished and labelled and evaluate:
        evaluate_run(outcome.directory, evaluate, device=asked.run.device)
    if outcome.finished:
        run_page(outcome.directory)
    return outcome
