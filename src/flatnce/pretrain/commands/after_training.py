"""The end of a training command: evaluation on the test set, the page, and what to do next."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from flatnce.pretrain.commands.evaluate import evaluate_run, results_table
from flatnce.pretrain.page.run import run_page
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training.loop import Outcome
from flatnce.pretrain.training.processes import is_launched
from flatnce.pretrain.training.saved import read_config, run_name


def evaluate_and_report(outcome: Outcome, protocols: Sequence[str], *, as_json: bool) -> int:
    """Evaluate, write the page, print the results, and return the exit code."""
    if int(os.environ.get("RANK", "0")) > 0:
        return 0
    name = run_name(outcome.directory)
    if not outcome.finished:
        if as_json:
            print(json.dumps({**asdict(outcome), "directory": str(outcome.directory)}))
        else:
            processes = int(os.environ.get("WORLD_SIZE", "1"))
            more = f" --devices {processes}" if processes > 1 else ""
            again = f"continue with: flatnce resume {name}{more}"
            print(f"stopped at step {outcome.step:,} and saved; {again}")
        # torchrun takes any other code for a death and would restart the run.
        return 0 if is_launched() else 130
    failure = _evaluate(outcome, protocols)
    page = run_page(outcome.directory)
    results = read_run(outcome.directory).results or {}
    if as_json:
        stand = {"directory": str(outcome.directory), "finished": True}
        print(json.dumps({**stand, "not_evaluated": failure, **results}))
        return 1 if failure else 0
    print(f"\n{results['step']:,} steps in {results['seconds']:.0f} s; {results['verdict']}\n")
    if results["evaluations"]:
        results_table(results["evaluations"])
    if failure:
        print(f"not evaluated: {failure}")
    print(f"\nthe page: {page}")
    if results.get("labelled", True):
        what = "--protocol semi"
    else:
        what = "--protocol linear --data NAME (a set with labels; these images have none)"
    print(f"next: flatnce evaluate {name} {what}    flatnce export {name} --to torch")
    return 1 if failure else 0


def _evaluate(outcome: Outcome, protocols: Sequence[str]) -> str:
    """Evaluate, and return why not where that fails: the training itself is done and saved."""
    if not protocols or not (read_run(outcome.directory).results or {}).get("labelled", True):
        return ""
    try:
        device = read_config(outcome.directory).run.device
        evaluate_run(outcome.directory, protocols, device=device)
    except (ValueError, OSError) as error:
        return str(error)
    return ""
