"""The model card: README.md with the front matter that the Hugging Face hub reads.

The text is in ``templates/card.md``. The front matter is part of it: with
``huggingface_hub.ModelCard`` the torch and ONNX forms would need another package.
"""

import json
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import PurePath
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined

from flatnce import __version__
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.exporting.forms import FORMS, Source
from flatnce.pretrain.runs.log import score_cells


def card(source: Source, form: str, folder: str, *, normalised_inside: bool, check: str) -> str:
    """The text of the card."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": _plain, "quoted": _quoted}
    template = resources.files("flatnce.pretrain.exporting").joinpath("templates", "card.md")
    results = (source.run.results if source.run else None) or {}
    every = [one for one in results.get("evaluations", ()) if isinstance(one, dict)]
    # An evaluation without a step is of the run's last step.
    mine = [e for e in every if e.get("step", results.get("step", source.step)) == source.step]
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
        epochs=_epochs(source),
        evaluations=[evaluation_row(result) for result in mine],
        other_evaluations=len(every) - len(mine),
        trained=source.run.environment if source.run else {},
        check=check,
        versions={"flatnce": __version__, "torch": torch.__version__, **_versions(form)},
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


def _epochs(source: Source) -> str:
    asked = source.settings["epochs"]
    lines = source.run.metrics if source.run else []
    past = [line.get("epoch") for line in lines if line.get("step", -1) <= source.step]
    done = max((epoch for epoch in past if epoch is not None), default=asked)
    reached = f"step {source.step:,}"
    return (
        f"{done:.3g} of {asked} asked for ({reached})" if done < asked else f"{asked} ({reached})"
    )


def _versions(form: str) -> dict[str, str]:
    versions = {}
    for package in FORMS[form].packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _plain(text: str) -> str:
    """Text without the marks of a table cell, a heading or code."""
    return " ".join(str(text).replace("|", "/").replace("`", "'").split())


def _quoted(text: str) -> str:
    """The text as a string of Python, JSON and YAML."""
    return json.dumps(text, ensure_ascii=False)
