"""``flatnce resume``: continue a run exactly where it stopped."""

from dataclasses import dataclass
from shlex import quote
from typing import Annotated

import tyro

from flatnce.cli.launch import launch
from flatnce.cli.options import parse_options
from flatnce.messages import check_fields, say
from flatnce.pretrain.commands import RunName, Switch
from flatnce.pretrain.commands.train import RENAMED, evaluate_and_report
from flatnce.pretrain.evaluation import expand
from flatnce.pretrain.runs.folder import find_run, run_lock


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run exactly from its newest checkpoint."""

    run: RunName  # A run's name in runs/, or its path.
    # Continue from this checkpoint and remove later ones; by default the newest.
    step: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    # Protocols to evaluate with on the test set at the end; may be empty. By default what train
    # was given, unless the last step is evaluated already.
    evaluate: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[NAME ...]")] = None
    devices: int = 1  # Number of GPUs (or CPU processes) that share the batch; starts torchrun.
    quiet: Switch = False  # Print only the results at the end.
    json: Switch = False  # Print the results as JSON and nothing else.

    def __post_init__(self) -> None:
        check_fields(self, devices=1, step=0)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if any(argument.partition("=")[0] == "--device" for argument in arguments):
        raise ValueError("a run continues on the device of its config; leave --device out")
    options = parse_options(ResumeOptions, "resume", arguments, renamed=RENAMED)
    if options.evaluate:
        expand(options.evaluate)  # refuses an unknown name before training
    directory = find_run(options.run)
    from flatnce.cli.progress import show_progress
    from flatnce.pretrain.training.loop import Outcome, resume
    from flatnce.pretrain.training.named import finished_text
    from flatnce.pretrain.training.processes import is_launched
    from flatnce.pretrain.training.saved import CHECKPOINTS, read_config, run_status

    with run_lock(directory):  # another process may be about to finish it
        config, status = read_config(directory), run_status(directory)
    quiet = options.json or options.quiet
    if status.finished and options.step is None:
        if not quiet:
            say(finished_text(directory, status.step))
        outcome = Outcome(directory, True, status.step)
        return evaluate_and_report(outcome, options.evaluate, options.json)
    if not any((directory / CHECKPOINTS).glob("*")):
        raise ValueError(
            f"{directory} was stopped before its first checkpoint; start it again: "
            f"`flatnce train {quote(config.data.data)} --name {quote(directory.name)} --replace`"
        )
    if options.devices > 1 and not is_launched():
        return launch(options.devices, "resume", arguments, config.run.device)
    with show_progress(config.run.epochs, quiet=quiet) as report:
        outcome = resume(directory, step=options.step, report=report)
    return evaluate_and_report(outcome, options.evaluate, options.json)
