"""Evaluate a run: load its encoder, run the protocols, add the results to its folder."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.evaluation.protocols import Bench, Options, Subject, evaluate, plan
from flatnce.pretrain.runs.log import add_evaluation, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import views_of
from flatnce.pretrain.training.learner import build_encoder
from flatnce.pretrain.training.processes import choose_device
from flatnce.pretrain.training.saved import LoadedEncoder, load_encoder

__all__ = ["evaluate_run", "own_data", "subject_of"]


def evaluate_run(
    directory: str | Path,
    protocols: str | Sequence[str],
    data: Sequence[str] = (),
    options: Options | None = None,
    *,
    step: int | None = None,
    device: str = "auto",
    skip_missing: bool = False,
    report: Callable[[str], None] | None = None,
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
    chosen = options or Options()
    if chosen.root is None:
        chosen = replace(chosen, root=run.config.data.root)
    if run.config.data.skip_unreadable:
        chosen = replace(chosen, skip_unreadable=True)
    names = [protocols] if isinstance(protocols, str) else list(protocols)
    own = own_data(run.config)
    tell = report or (lambda line: None)
    pairs = plan(names, own, data, root=chosen.root, skip_missing=skip_missing, report=tell)
    logged = [
        line["temperature"]
        for line in read_run(place).metrics
        if line.get("kind") == "train" and line.get("step", 0) <= run.step
    ]
    temperature = float(logged[-1]) if logged and logged[-1] else None
    bench = Bench(subject_of(run, temperature), chosen, tell)
    found = []
    for result in evaluate(bench, pairs):
        result |= {"step": run.step, **(label(result) if label else {})}
        add_evaluation(place, result)
        found.append(result)
    return found


def subject_of(run: LoadedEncoder, temperature: float | None = None) -> Subject:
    """The subject of the protocols: a run's encoder and its input."""
    config, (mean, std) = run.config, run.normalisation
    model = config.override(pretrained=False).model
    return Subject(
        run.encoder,
        run.size,
        run.channels,
        tuple(mean),
        tuple(std),
        fresh=lambda: build_encoder(model, channels=run.channels, size=run.size).backbone,
        views=views_of(config, run.size),
        temperature=temperature or config.loss.temperature,
        data=own_data(config),
        crop_least=config.views.crop_least,
        flip=config.views.flip,
    )


def own_data(config: TrainConfig) -> str:
    """The name of the set that a run was trained on, or the path of its folder."""
    if config.data.data != "folder" or config.data.root is None:
        return config.data.data
    path = config.data.root
    return path if is_path(path) else f"./{path}"
