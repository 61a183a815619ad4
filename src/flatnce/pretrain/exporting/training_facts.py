"""How a backbone came to be, in words: what a card says of data, objective and settings."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.exporting.source import Source


def data_of(settings: Mapping[str, Any]) -> str:
    """The images it was trained on, without the paths of this machine.

    Arguments:
        settings: The run's config, flat.

    Examples:
        >>> data_of({"data": "cifar10", "split": "train"})
        'cifar10 (train)'
        >>> data_of({"data": "/home/me/photos/", "split": "train"})
        'a folder of images, photos (train)'
    """
    data, split = str(settings.get("data", "unknown")), settings.get("split", "train")
    if data == "folder":
        data = str(settings.get("root") or ".") + "/"
    return f"{data_named(data)} ({split})"


def data_named(data: str) -> str:
    """A data set's name; of a folder's path only the last part.

    Arguments:
        data: As typed.

    Examples:
        >>> data_named("cifar10"), data_named("../photos/")
        ('cifar10', 'a folder of images, photos')
    """
    if not is_path(data):
        return data
    last = PurePath(data.replace("\\", "/")).name
    return f"a folder of images, {last}" if last not in ("", "..") else "a folder of images"


def training_of(source: Source) -> dict[str, str]:
    """Names and values for the table of the training."""
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


def seen_by_augmentation(settings: Mapping[str, Any]) -> list[str]:
    """What the views differed in, and the features therefore tend to ignore."""
    names = {
        "flip": "left and right",
        "jitter": "brightness, contrast and colour",
        "grayscale": "colour against grey",
        "solarize": "inverted brightness",
        "noise": "noise",
    }
    found = ["place and scale"] if settings.get("crop_least", 1.0) < 1.0 else []
    return found + [words for name, words in names.items() if settings.get(name)]


def _objective(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("objective", "unknown"))
    if name not in OBJECTIVES:
        return name
    entry = OBJECTIVES[name]
    own = (f"{setting.name} {settings[setting.name]:g}" for setting in entry.settings)
    return ", ".join([entry.card, *own])


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
