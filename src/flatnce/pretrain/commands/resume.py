"""``flatnce resume``: continue a run exactly where it stopped."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from flatnce.cli.launch import launch
from flatnce.cli.options import parse_options
from flatnce.messages import check_fields
from flatnce.pretrain.commands import RunName, Switch
from flatnce.pretrain.commands.train import RENAMED, evaluate_and_report
from flatnce.pretrain.evaluation import expand
from flatnce.pretrain.runs.folder import find_run


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run exactly from its newest checkpoint."""

    run: RunName  # A run's name in runs/, or its path.
    # Continue from this checkpoint and remove later ones; by default the newest.
    step: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    # Protocols to evaluate with on the test set at the end; may be empty.
    evaluate: tuple[str, ...] = ("knn", "linear")
    devices: int = 1  # Number of GPUs (or CPU processes) that share the batch; starts torchrun.
    json: Switch = False  # Print the results as JSON and nothing else.

    def __post_init__(self) -> None:
        check_fields(self, devices=1, step=0)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(ResumeOptions, "resume", arguments, renamed=RENAMED)
    from flatnce.cli.progress import show_progress
    from flatnce.pretrain.training.loop import resume
    from flatnce.pretrain.training.processes import is_launched
    from flatnce.pretrain.training.saved import read_config

    directory = find_run(options.run)
    config = read_config(directory)
    if options.evaluate:
        expand(options.evaluate)  # refuses an unknown name before training
    if options.devices > 1 and not is_launched():
        return launch(options.devices, "resume", arguments, config.run.device)
    with show_progress(config.run.epochs, quiet=options.json) as report:
        outcome = resume(directory, step=options.step, report=report)
    return evaluate_and_report(outcome, options.evaluate, options.json)
