"""``flatnce.train`` and ``resume``: a run by its name; and what follows a training."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from flatnce.cli.progress import show_progress
from flatnce.extras import require_extra
from flatnce.messages import FlatnceWarning, counted, say
from flatnce.own_code import ARGUMENTS, is_own
from flatnce.pretrain.evaluation import evaluate_run, expand
from flatnce.pretrain.page.run import run_page
from flatnce.pretrain.runs.folder import find_run, new_folder, run_name
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.pretrain.training import loop
from flatnce.pretrain.training.config import refuse_unused, starting_config
from flatnce.pretrain.training.saved import own_settings, read_config, run_status

__all__ = ["finish_run", "finished_text", "print_results", "resume", "train"]

USUAL = ("knn", "linear")  # protocols
NEEDED = ("rich", "jinja2", "safetensors")  # the page, for one, comes after the training


def train(
    data: Any,
    *,
    name: str | None = None,
    preset: str | None = None,
    evaluate: Sequence[str] = USUAL,
    quiet: bool = False,
    **options: Any,
) -> loop.Outcome:
    """Pretrain an encoder, evaluate it and write its page, as ``flatnce train`` does.

    ``flatnce.load(name)`` then loads the encoder, and ``flatnce runs`` lists the run. If the
    evaluation of a trained run does not finish, a warning and ``not_evaluated`` of the outcome
    say why; a file that cannot be read or written raises an OSError.

    Arguments:
        data: A data set's name, the path of a folder of images, the import path of your own, or
            what ``data`` of :func:`flatnce.pretrain.train` takes.
        name: Name of the run in the folder of runs; by default from its settings.
        preset: Settings to start from; by default those made for the data set.
        evaluate: Protocols to evaluate with on the test set at the end; may be empty.
        quiet: Show neither progress nor results.
        options: Settings of the run, for example ``objective="infonce"`` or ``batch_size=32``;
            and arguments of :func:`flatnce.pretrain.train`, for example ``replace=True`` or
            ``encoder=network``.

    Examples:
        >>> import flatnce
        >>> flatnce.train("digits", objective="flatnce", name="first").finished  # doctest: +SKIP
        True
    """
    for package in NEEDED:
        require_extra(package, "flatnce.train", "cli,report,train")
    rest = {key: options.pop(key) for key in ("report", "replace") if key in options}
    objects: Any = {key: options.pop(key) for key in ARGUMENTS.values() if key in options}
    usual = starting_config(data, preset)
    asked = usual.override(**options, **own_settings(objects))
    refuse_unused([asked], [key for key in options if asked.flat()[key] != usual.flat()[key]])
    with show_progress(asked.run.epochs, quiet=quiet) as report:
        directory = new_folder(name, asked.usual_name)
        outcome = loop.train(asked, directory, evaluate=evaluate, **{"report": report, **rest})
    return _finish(outcome, evaluate, quiet)


def resume(
    run: str | Path,
    *,
    step: int | None = None,
    evaluate: Sequence[str] | None = None,
    quiet: bool = False,
    **objects: Any,
) -> loop.Outcome:
    """Continue a run, evaluate it and write its page, as ``flatnce resume`` does.

    Of a run that is finished and evaluated only the results are shown. An evaluation that does
    not finish is reported as by :func:`train`.

    Arguments:
        run: A run's name in the folder of runs, or its path.
        step: Continue from this checkpoint and remove later ones; by default the newest.
        evaluate: Protocols to evaluate with on the test set at the end; may be empty. By default
            what :func:`train` was given, unless the last step is evaluated already.
        quiet: Show neither progress nor results.
        objects: Those that :func:`train` was given, such as ``encoder`` and ``data``.
    """
    for package in NEEDED:
        require_extra(package, "flatnce.resume", "cli,report,train")
    if evaluate:
        expand(evaluate)  # refuses an unknown name before training
    directory = find_run(run)
    config, status = read_config(directory), run_status(directory)
    if status.finished and step is None and not quiet:
        say(finished_text(directory, status.step))
    with show_progress(config.run.epochs, quiet=quiet) as report:
        outcome = loop.resume(directory, step=step, **{"report": report, **objects})
    return _finish(outcome, evaluate, quiet)


def finished_text(directory: Path, step: int) -> str:
    """That a run is finished, and where its results are."""
    return (
        f"{directory} is finished, at step {step:,}: nothing is left to train. Its results are in "
        f"{directory / 'results.json'}. For more epochs, train a new run; `flatnce evaluate` "
        "measures this one."
    )


def _finish(outcome: loop.Outcome, evaluate: Sequence[str] | None, quiet: bool) -> loop.Outcome:
    """Evaluate a finished run, print the results, and write its page."""
    if not outcome.finished or int(os.environ.get("RANK", "0")) > 0:
        return outcome  # the first process of torchrun does the rest
    failure = finish_run(outcome, evaluate)
    if not quiet:
        print_results(outcome, failure)
    run_page(outcome.directory)
    if isinstance(failure, OSError):
        raise failure
    if failure is not None:
        said = f"is trained and saved, but its evaluation did not finish: {failure}"
        warnings.warn(f"{outcome.directory} {said}", FlatnceWarning, stacklevel=3)
        return replace(outcome, not_evaluated=str(failure))
    return outcome


def finish_run(outcome: loop.Outcome, protocols: Sequence[str] | None) -> Exception | None:
    """Evaluate a finished run; return why that did not finish, if so.

    Without ``protocols`` a run whose last step is evaluated already is not evaluated again.
    Without labels only ``mi`` is measured.
    """
    failure, run = None, read_run(outcome.directory)
    results = run.results or {}
    if protocols is None:
        done = _of_step(results, outcome.step)
        protocols = () if done else run.environment.get("evaluate", USUAL)
    if protocols and not results.get("labelled", True):
        protocols = [name for name in expand(protocols) if name == "mi"]
    if protocols:
        try:
            device = read_config(outcome.directory).run.device
            evaluate_run(outcome.directory, protocols, device=device)
        except (ValueError, OSError) as error:  # the training itself is done and saved
            failure = error
    return failure


def _of_step(results: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """The evaluations of a step."""
    return [one for one in results.get("evaluations", ()) if one.get("step", step) == step]


def print_results(outcome: loop.Outcome, failure: Exception | None = None) -> None:
    """Print the verdict and the evaluations of a finished run, and what to do next."""
    from flatnce.cli.console import print_verdict  # these need rich
    from flatnce.pretrain.commands.evaluate import results_table

    name, run = quote(run_name(outcome.directory)), read_run(outcome.directory)
    results = run.results or {}
    took = f"{counted(results['step'], 'step')} in {results['seconds']:.0f} s; "
    print_verdict(took, results["verdict"], "\n")
    if found := getattr(failure, "results", []) or _of_step(results, outcome.step):
        results_table(found)
    if not results.get("labelled", True):
        say("There are no labels, so no accuracy is measured.")
    say(f"\nthe page: {outcome.directory / 'report.html'}\nnext: {_next_calls(run, name)}")


def _next_calls(run: Run, name: str) -> str:
    """What can follow: commands; for objects of a program, which no command has, Python calls."""
    settings, labelled = run.settings, (run.results or {}).get("labelled", True)
    if run.objects:
        given = ", ".join(f"{ARGUMENTS.get(one, one)}=..." for one in run.objects)
        called = repr(run_name(run.directory))
        before = f"flatnce.pretrain.use_objects({called}, {given})"
        return f"flatnce.load({called}).embed(inputs)\n(in another program, first {before})"
    trust = " --trust-code" * any(is_own(value) for value in map(str, settings.values()))
    export = f"flatnce export {name} --to torch{trust}"
    # Ready views of a user's own cannot be fine-tuned.
    what = "semi" if labelled and not is_own(settings["data"]) else "mi"
    return f"flatnce evaluate {name} --protocol {what}{trust}\n      {export}"
