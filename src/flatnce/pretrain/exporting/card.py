"""The model card: README.md with the front matter that the Hugging Face hub reads.

The text is in ``templates/card.md``. The front matter is part of it: with
``huggingface_hub.ModelCard`` the torch and ONNX forms would need another package.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import PurePath
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined

from flatnce import __version__
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.exporting.folder import Check
from flatnce.pretrain.exporting.forms import FORMS
from flatnce.pretrain.exporting.source import Source
from flatnce.pretrain.runs.log import score_cells


def card(
    source: Source,
    form: str,
    folder: str,
    *,
    normalised_inside: bool,
    check: Check | None,
    versions: Mapping[str, str],
) -> str:
    """The text of the card."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": _plain, "quoted": _quoted, "numbers": _numbers}
    template = resources.files("flatnce.pretrain.exporting").joinpath("templates", "card.md")
    architecture = source.architecture.partition(".")[0]
    tags = ["self-supervised-learning", "contrastive-learning", "flatnce", architecture]
    mine, others = _evaluations(source)
    text = environment.from_string(template.read_text("utf-8")).render(
        source=source,
        form=form,
        folder=folder,
        library=FORMS[form].library,
        tags=[*tags, *FORMS[form].tags],
        normalised_inside=normalised_inside,
        data=data_of(source.settings),
        training=_training(source),
        evaluations=[evaluation_row(result) for result in mine],
        other_evaluations=others,
        ignored=_varied_in_views(source.settings),
        origin=_origin(source, versions, check),
    )
    return text.strip() + "\n"


def data_of(settings: Mapping[str, Any]) -> str:
    """The training images, without paths of this machine.

    Examples:
        >>> data_of({"data": "cifar10", "split": "train"})
        'cifar10 (train)'
        >>> data_of({"data": "/home/me/photos/", "split": "train"})
        'a folder of images, photos (train)'
    """
    data, split = str(settings.get("data", "unknown")), settings.get("split", "train")
    if data == "folder":
        data = str(settings.get("root") or ".") + "/"
    return f"{_data_name(data)} ({split})"


def _data_name(data: str) -> str:
    """The name of a data set; only the last part of a folder's path."""
    if not is_path(data):
        return data
    last = PurePath(data.replace("\\", "/")).name
    return f"a folder of images, {last}" if last not in ("", "..") else "a folder of images"


def _evaluations(source: Source) -> tuple[list[dict[str, Any]], int]:
    """The evaluations of the exported step, and the number of those of other steps."""
    results = (source.run.results if source.run else None) or {}
    every = [one for one in results.get("evaluations", ()) if isinstance(one, dict)]
    # An evaluation without a step is of the run's last step.
    mine = [e for e in every if e.get("step", results.get("step", source.step)) == source.step]
    return mine, len(every) - len(mine)


def evaluation_row(result: Mapping[str, Any]) -> list[str]:
    """The cells of one result: protocol, data, measure, value, interval, top-5, test images.

    Examples:
        >>> evaluation_row({"protocol": "knn", "data": "digits", "top1": 0.95})
        ['knn', 'digits', 'top-1', '95.00 %', '', '', '']
    """
    cells = score_cells(result)
    data = _data_name(cells.data) if cells.data else ""
    numbers = [cells.score, cells.interval, cells.top5, cells.test_images]
    return [cells.name, data, cells.measure, *numbers]


def _varied_in_views(settings: Mapping[str, Any]) -> list[str]:
    """What differed between views, which the features tend to ignore."""
    names = {
        "flip": "left and right",
        "jitter": "brightness, contrast and colour",
        "grayscale": "colour against grey",
        "solarize": "inverted brightness",
        "noise": "noise",
    }
    found = ["place and scale"] if settings.get("crop_least", 1.0) < 1.0 else []
    return found + [words for name, words in names.items() if settings.get(name)]


def _training(source: Source) -> dict[str, str]:
    """The table of the training."""
    settings = source.settings
    facts = {
        "Objective": _objective(settings),
        "Data": data_of(settings),
        "Batch size": _number(settings.get("batch_size")),
        "Epochs": _epochs(source),
        "Temperature": _temperature(settings),
        "Optimizer": _optimizer(settings),
        "Projection head": _head(settings),
        "Augmentation": _augmentation(settings),
        "Seed": str(settings.get("seed", "unknown")),
        "Precision": _precision(settings),
    }
    if settings.get("micro_batch"):
        facts["Batch size"] += f", {_number(settings['micro_batch'])} in memory at once"
    if settings.get("queue"):
        facts["Queue"] = f"{_number(settings['queue'])} past keys"
        if settings.get("momentum_encoder") is not None:
            facts["Queue"] += f", momentum encoder {settings['momentum_encoder']:g}"
    return facts


def _objective(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("objective", "unknown"))
    if name not in OBJECTIVES:
        return name
    entry = OBJECTIVES[name]
    own = (f"{setting.name} {settings[setting.name]:g}" for setting in entry.settings)
    return ", ".join([entry.card or entry.label, *own])


def _epochs(source: Source) -> str:
    asked = source.settings.get("epochs", "unknown")
    done = None
    if source.run is not None:
        lines = [m for m in source.run.metrics if m.get("step", -1) <= source.step]
        done = max((m["epoch"] for m in lines if m.get("epoch") is not None), default=None)
    reached = f"step {source.step:,}"
    if done is not None and isinstance(asked, int) and done < asked:
        return f"{done:.3g} of {asked} asked for ({reached})"
    return f"{asked} ({reached})"


def _temperature(settings: Mapping[str, Any]) -> str:
    start = settings.get("temperature")
    entry = OBJECTIVES.get(str(settings.get("objective")))
    if start is not None and entry is not None and entry.learns_scale:
        return f"a learned scale, from {1 / start:g}"
    if settings.get("ess") is not None:
        end = settings.get("ess_end")
        target = f"{settings['ess']:g}" + ("" if end is None else f" to {end:g} along a cosine")
        return f"moved to hold an effective sample size of {target}, from {start:g}"
    if settings.get("learn_temperature"):
        return f"learned, from {start:g}"
    if settings.get("temperature_end") is not None:
        return f"{start:g} to {settings['temperature_end']:g} along a cosine"
    return "unknown" if start is None else f"{start:g}"


def _optimizer(settings: Mapping[str, Any]) -> str:
    if "optimizer" not in settings:
        return "unknown"
    return (
        f"{settings['optimizer']}, learning rate {settings['rate']:g} at batch "
        f"{settings['base_batch']} ({settings['scaling']} scaling), weight decay "
        f"{settings['weight_decay']:g}, warm-up of {settings['warmup_epochs']:g} epochs, cosine"
    )


def _head(settings: Mapping[str, Any]) -> str:
    layers = settings.get("head_layers", 0)
    if not layers:
        return "none"
    return f"{layers} layers, {settings['head_out']} out; not part of this export"


def _augmentation(settings: Mapping[str, Any]) -> str:
    parts = [f"crops of at least {settings['crop_least']:g} of the area"]
    names = ("flip", "jitter", "grayscale", "blur", "solarize", "cutout", "noise")
    parts += [f"{name} {settings[name]}" for name in names if settings.get(name)]
    return ", ".join(parts)


def _precision(settings: Mapping[str, Any]) -> str:
    chosen = str(settings.get("precision", "unknown"))
    return "bfloat16 on a GPU, float32 elsewhere" if chosen == "auto" else chosen


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown"


def _origin(source: Source, versions: Mapping[str, str], check: Check | None) -> dict[str, str]:
    was = source.run.environment if source.run else {}
    known = [name for name in ("flatnce", "torch", "python") if was.get(name)]
    trained_by = [f"{name} {was[name]}" for name in known]
    written_by = {"flatnce": __version__, "torch": str(torch.__version__), **versions}
    checked = "not loaded back: onnxruntime was not installed"
    if check is not None:
        checked = f"loaded back: {check}"
    # An installed package has no commit.
    commit = {"Commit": str(was["commit"])} if was.get("commit") else {}
    return {
        "Trained with": ", ".join(trained_by) or "unknown",
        "Trained on": str(was.get("device") or "unknown"),
        **commit,
        "Exported with": ", ".join(f"{name} {what}" for name, what in written_by.items()),
        "Checked": checked,
    }


def _plain(text: str) -> str:
    """Text without the marks of a table cell, a heading or code."""
    return " ".join(text.replace("|", "/").replace("`", "'").split())


def _quoted(text: str) -> str:
    """The text as a string of Python, JSON and YAML."""
    return json.dumps(text, ensure_ascii=False)


def _numbers(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers)
