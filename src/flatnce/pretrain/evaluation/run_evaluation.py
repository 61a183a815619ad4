"""Evaluate a run: load its encoder, run the protocols, add the results to its folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flatnce.pretrain.evaluation.protocols import Bench, Options, evaluate, plan
from flatnce.pretrain.runs.log import add_evaluation, read_run
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import load_encoder

__all__ = ["evaluate_run"]


def evaluate_run(
    directory: str | Path,
    protocols: str | Sequence[str],
    data: Sequence[str] = (),
    options: Options | None = None,
    *,
    step: int | None = None,
    device: str = "auto",
    skip_missing: bool = False,
    report: Callable[[str], None] = lambda line: None,
    label: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a run and add every result to its ``results.json`` at once.

    Names, data sets and the checkpoint are checked before any work starts.

    Arguments:
        directory: The run.
        protocols: Names of :data:`flatnce.pretrain.evaluation.PROTOCOLS`, ``transfer`` or ``all``.
        data: Sets to evaluate on; by default the run's own, and for transfer the paper's list.
        options: Settings of the protocols.
        step: Which checkpoint; the newest by default.
        device: Where to compute: ``auto``, or as torch spells it.
        skip_missing: Leave out data sets that are not on disk.
        report: Called with a line about what is being done.
        label: Returns additional entries for a result.
    """
    place = Path(directory)
    run = load_encoder(place, step, choose_device(device))
    logged = [
        line["temperature"]
        for line in read_run(place).metrics
        if line.get("kind") == "train" and line.get("step", 0) <= run.step
    ]
    temperature = float(logged[-1]) if logged and logged[-1] else None
    bench = Bench(run, options, report, temperature)
    names = [protocols] if isinstance(protocols, str) else list(protocols)
    root = bench.options.root
    pairs = plan(names, bench.data, data, root=root, skip_missing=skip_missing, report=report)
    found = []
    for result in evaluate(bench, pairs):
        result |= {"step": run.step, **(label(result) if label else {})}
        add_evaluation(place, result)
        found.append(result)
    return found
