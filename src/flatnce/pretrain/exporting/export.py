"""Write a trained backbone and its model card to a folder, load it back, compare the features.

The text of the card, with the hub's front matter, is ``templates/card.md``.
"""

import json
from collections.abc import Mapping
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined

from flatnce import __version__
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.messages import check_choice
from flatnce.pretrain.data import is_path
from flatnce.pretrain.exporting.forms import (
    CARD,
    FORMAT_VERSION,
    FORMS,
    MARK,
    ExportError,
    Source,
    check_room,
    describe_check,
    new_folder,
    write_config,
)
from flatnce.pretrain.runs.log import score_cells
from flatnce.pretrain.training.saved import LoadedEncoder


def card(source: Source, form: str, folder: str, *, normalised_inside: bool, check: str) -> str:
    """The text of the card."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": _plain, "quoted": _quoted}
    template = resources.files("flatnce.pretrain.exporting").joinpath("templates", "card.md")
    results = (source.run.results if source.run else None) or {}
    every = [one for one in results.get("evaluations", ()) if isinstance(one, dict)]
    # An evaluation without a step is of the run's last step.
    mine = [e for e in every if e.get("step", results.get("step", source.step)) == source.step]
    versions = {name: metadata.version(name) for name in FORMS[form].packages if find_spec(name)}
    text = environment.from_string(template.read_text("utf-8")).render(
        source=source,
        settings=source.settings,
        objective=OBJECTIVES[source.settings["objective"]],
        form=form,
        library=FORMS[form].library,
        tags=[source.architecture.partition(".")[0], *FORMS[form].tags],
        folder=folder,
        normalised_inside=normalised_inside,
        data=data_of(source.settings),
        evaluations=[evaluation_row(result) for result in mine],
        other_evaluations=len(every) - len(mine),
        trained=source.run.environment if source.run else {},
        check=check,
        versions={"flatnce": __version__, "torch": torch.__version__, **versions},
    )
    return text.strip() + "\n"


def data_of(settings: Mapping[str, Any]) -> str:
    """The training images, without paths of this machine."""
    data = settings["data"]
    if data == "folder":
        data = f"{settings['root'] or '.'}/"
    return f"{_data_name(data)} ({settings['split']})"


def _data_name(data: str) -> str:
    """The name of a data set; only the last part of a folder's path."""
    if not is_path(data):
        return data
    last = PurePath(data.replace("\\", "/")).name
    return f"a folder of images, {last}" if last not in ("", "..") else "a folder of images"


def evaluation_row(result: Mapping[str, Any]) -> list[str]:
    """The cells of one result: protocol, data, measure, value, interval, top-5, test images."""
    cells = score_cells(result)
    data = _data_name(cells.data) if cells.data else ""
    numbers = [cells.score, cells.interval, cells.top5, cells.test_images]
    return [cells.name, data, cells.measure, *numbers]


def _plain(text: str) -> str:
    """Text without the marks of a table cell, a heading or code."""
    return " ".join(str(text).replace("|", "/").replace("`", "'").split())


def _quoted(text: str) -> str:
    """The text as a string of Python, JSON and YAML."""
    return json.dumps(text, ensure_ascii=False)


TOLERANCE = 1e-5
"""Largest difference between features of onnxruntime and of torch, relative to the largest feature
(to one, if that is less). The other forms are equal to the bit."""


def export(
    run: LoadedEncoder | str | Path,
    to: str = "torch",
    out: str | Path | None = None,
    *,
    step: int | None = None,
    normalise: bool = False,
    replace: bool = False,
) -> Path:
    """Write a trained backbone, without its projection head, with a model card; return the folder.

    The export is loaded back before the folder gets its name. Its features must be equal to the
    bit for ``torch`` and ``timm``, and within :data:`TOLERANCE` for ``onnx`` (if onnxruntime is
    installed). Otherwise nothing is written.

    Arguments:
        run: A run's name or folder, or what :func:`flatnce.pretrain.load_encoder` returns.
        to: ``torch`` (safetensors and a plain config), ``timm`` (what ``timm.create_model`` and
            the hub read) or ``onnx``.
        out: The folder to write; by default ``exports/RUN-FORM`` in the run's own.
        step: Which checkpoint; the newest by default.
        normalise: For ``onnx``: put the normalisation into the graph, which then takes values
            from 0 to 1. The other forms, and by default this one, take normalised images.
        replace: Replace an earlier export in that folder. Other files are never removed.
    """
    check_choice("to", to, FORMS)
    if normalise and to != "onnx":
        raise ValueError(
            f"normalise=True is for to='onnx', whose graph can hold the normalisation; to={to!r} "
            "takes normalised images, as its card says"
        )
    name = None
    if out is not None:
        check_room(Path(out), replace)  # before a checkpoint is read
        name = Path(out).resolve().name.removesuffix(f"-{to}") or "backbone"
    source = Source(run, step, name)
    FORMS[to].check(source)
    if out is None:
        if source.run is None:
            raise ValueError("out is needed to export a network that is not given by its run")
        at = "" if step is None else f"-step-{step}"
        out = source.run.directory / "exports" / f"{source.name}{at}-{to}"
    place = Path(out)
    with new_folder(place, replace) as folder:
        _write(source, to, folder, place.resolve().name, normalise)
    return place


def _write(source: Source, to: str, folder: Path, name: str, normalise: bool) -> None:
    """Fill a folder: weights or graph, config, the check, the card."""
    config = _config(source, to, normalise, FORMS[to].write(source, folder, normalise))
    write_config(folder, config)  # before the check: timm and load_exported read it
    config[MARK]["check"] = check = _check(source, to, folder, normalise)
    write_config(folder, config)
    text = card(source, to, name, normalised_inside=normalise, check=describe_check(check))
    (folder / CARD).write_text(text, encoding="utf-8")


def _config(source: Source, to: str, normalise: bool, written: dict[str, Any]) -> dict[str, Any]:
    ours: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "form": to,
        "flatnce": __version__,
        "backbone": {
            "name": source.architecture,
            "stem": source.stem,
            "size": source.size,
            "channels": source.channels,
        },
        "input": {
            "size": source.size,
            "channels": source.channels,
            "mean": list(source.mean),
            "std": list(source.std),
            "normalised_inside": normalise,
            "interpolation": "bicubic",
        },
        "features": source.width,
        "step": source.step,
        **written[MARK],
    }
    described = {"architecture": source.architecture, "num_classes": 0}
    return {**described, "num_features": source.width, **written, MARK: ours}


@torch.no_grad()
def _check(source: Source, to: str, folder: Path, normalise: bool) -> dict[str, float] | None:
    """Compare features when loaded back; an error if they differ by too much."""
    images = source.sample()
    expected = source.backbone(images)
    if normalise:  # the graph takes images that are not normalised
        mean, std = (torch.tensor(n).view(1, -1, 1, 1) for n in (source.mean, source.std))
        images = images * std + mean
        expected = source.backbone((images - mean) / std)
    if not expected.isfinite().all():
        raise ExportError(
            f"the {source.architecture} of step {source.step} gives features that are not finite: "
            "its training diverged; export an earlier step"
        )
    features = FORMS[to].features(folder, images)
    if features is None:
        return None
    same = features.shape == expected.shape
    difference = float((features - expected).abs().max()) if same else float("inf")
    largest = float(expected.abs().max())
    # Written so that NaN fails.
    if not difference <= (TOLERANCE * max(1.0, largest) if to == "onnx" else 0.0):
        raise ExportError(
            f"to={to!r}: loaded back, the features of {source.architecture} differ by "
            f"{difference:.2g} where the largest is {largest:.2g}, so nothing was "
            "written; export in another form and report this"
        )
    return {"largest_difference": difference, "largest_feature": largest}
