"""How a backbone came to be, in words: what a card says of data, objective and settings."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch

from flatnce import __version__
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.exporting.folder import Check
from flatnce.pretrain.exporting.source import Source
from flatnce.pretrain.runs.log import score_cells

__all__ = []


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


HEADER = ("Protocol", "Data", "Measure", "Value", "95 % interval", "Top-5", "Test images")


def evaluations_of(source: Source) -> tuple[list[dict[str, Any]], int]:
    """The evaluations of the exported step, and how many there are of other steps."""
    results = (source.run.results if source.run else None) or {}
    every = [found for found in results.get("evaluations", ()) if isinstance(found, dict)]
    # One that does not say its step is of the run's last.
    mine = [e for e in every if e.get("step", results.get("step", source.step)) == source.step]
    return mine, len(every) - len(mine)


def evaluation_row(result: Mapping[str, Any]) -> list[str]:
    """The cells of one result, in the order of :data:`HEADER`; empty where it does not say.

    Arguments:
        result: As in the run's ``results.json``.

    Examples:
        >>> evaluation_row({"protocol": "knn", "data": "digits", "top1": 0.95})
        ['knn', 'digits', 'top-1', '95.00 %', '', '', '']
    """
    cells = score_cells(result)
    return [
        cells.name,
        data_named(cells.data) if cells.data else "",
        cells.measure,
        cells.score,
        cells.interval,
        cells.top5,
        cells.test_images,
    ]


def how_to_load(source: Source, form: str, folder: str, normalised_inside: bool) -> str:
    """Markdown with the code for a form, and with what else the weights fit into."""
    if form == "timm":
        return _timm(source, folder)
    if form == "onnx":
        return _onnx(source, folder, normalised_inside)
    return _torch(source, folder)


def _timm(source: Source, folder: str) -> str:
    code = f"""\
import timm

backbone = timm.create_model({_quoted("local-dir:" + folder)}, pretrained=True).eval()
features = backbone(images)  # {_taken(source)}"""
    transform = """\
settings = timm.data.resolve_model_data_config(backbone)
transform = timm.data.create_transform(**settings, is_training=False)  # of a PIL image"""
    return (
        f"{_block(code)}\n\nThe images, as it wants them:\n\n{_block(transform)}\n\n"
        "`num_classes=10` adds a new classifier to train. From the hub say "
        '`"hf-hub:NAME/REPOSITORY"` instead of `"local-dir:..."`.'
    )


def _torch(source: Source, folder: str) -> str:
    code = f"""\
from flatnce.pretrain.exporting import load_exported, preprocessing

backbone, prepare = load_exported({_quoted(folder)}), preprocessing({_quoted(folder)})
features = backbone(prepare(images))  # images: uint8, (batch, {source.channels}, height, width)"""
    if not source.from_torchvision:
        return _block(code)
    return (
        f"{_block(code)}\n\nWithout flatnce, into torchvision's own network: the names of the "
        f"parameters are torchvision's, and timm's {source.architecture} has the same.\n\n"
        f"{_block(_into_torchvision(source, folder))}"
    )


def _into_torchvision(source: Source, folder: str) -> str:
    lines = [
        "import torch, torchvision",
        "from safetensors.torch import load_file",
        "",
        f"net = torchvision.models.{source.architecture}()",
        "net.fc = torch.nn.Identity()",
    ]
    if source.stem == "small":
        lines += [
            f"net.conv1 = torch.nn.Conv2d({source.channels}, 64, 3, 1, padding=1, bias=False)",
            "net.maxpool = torch.nn.Identity()",
        ]
    elif source.channels != 3:
        lines.append(
            f"net.conv1 = torch.nn.Conv2d({source.channels}, 64, 7, 2, padding=3, bias=False)"
        )
    lines += [
        f"net.load_state_dict(load_file({_quoted(folder + '/model.safetensors')}))",
        f"features = net.eval()(images)  # {_taken(source)}",
    ]
    return "\n".join(lines)


def _onnx(source: Source, folder: str, normalised_inside: bool) -> str:
    taken = _taken(source) if not normalised_inside else f"values from 0 to 1, {_shape(source)}"
    code = f"""\
import onnxruntime

session = onnxruntime.InferenceSession({_quoted(folder + "/model.onnx")})
features = session.run(["features"], {{"images": images}})[0]  # float32 array, {taken}"""
    return f"{_block(code)}\n\nThe number of images is free; their size is fixed."


def _taken(source: Source) -> str:
    return f"normalised as below, {_shape(source)}"


def _shape(source: Source) -> str:
    return f"(batch, {source.channels}, {source.size}, {source.size})"


def _quoted(text: str) -> str:
    """The text as Python code, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def _block(code: str) -> str:
    return f"```python\n{code}\n```"


LIBRARIES = {"timm": "timm", "torch": "flatnce", "onnx": "onnx"}
PAPER = "https://arxiv.org/abs/2107.01152"


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
    parts = [
        _front_matter(source, form),
        f"# {_plain(source.name)}",
        _what_it_is(source),
        "## Load it",
        how_to_load(source, form, folder, normalised_inside),
        "## What it takes and gives",
        _table(("", ""), _input(source, normalised_inside).items()),
        "## How it was trained",
        _table(("", ""), training_of(source).items()),
        "## Evaluation",
        _evaluation(source),
        "## Limitations",
        _limitations(source),
        "## Versions",
        _table(("", ""), _origin(source, versions, check).items()),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(source: Source, form: str) -> str:
    architecture = source.architecture.partition(".")[0]
    tags = ["self-supervised-learning", "contrastive-learning", "flatnce", architecture]
    tags += {"torch": ["pytorch", "safetensors"], "timm": ["timm", "safetensors"]}.get(form, [])
    return "\n".join(
        [
            "---",
            "# license: yours to choose; the hub shows it (https://huggingface.co/docs/hub/"
            "repositories-licenses)",
            f"library_name: {LIBRARIES[form]}",
            "pipeline_tag: image-feature-extraction",
            "tags:",
            # A JSON string is a YAML string, whatever is in it.
            *(f"- {json.dumps(tag)}" for tag in tags),
            "---",
        ]
    )


def _what_it_is(source: Source) -> str:
    how = training_of(source)
    stem = {"small": " with the small-image stem (3x3, stride 1, no max-pool)"}.get(
        source.stem, ""
    )
    return (
        f"A {source.architecture} backbone{stem}: images to features of width {source.width:,}, "
        f"without a classifier. {_pretraining(source)} with {how['Objective']}, by flatnce "
        f"([the paper]({PAPER}))."
    )


def _pretraining(source: Source) -> str:
    data = _plain(data_of(source.settings))
    if source.settings.get("pretrained"):
        whose = "torchvision" if source.from_torchvision else "timm"
        return (
            f"It began from the published {source.architecture} weights of {whose}, and was "
            f"pretrained further without labels on {data}"
        )
    return f"It was pretrained without labels on {data}"


def _input(source: Source, normalised_inside: bool) -> dict[str, str]:
    colour = {1: "grey", 3: "RGB"}.get(source.channels, f"{source.channels} channels")
    shape = f"(batch, {source.channels}, {source.size}, {source.size})"
    values = "values from 0 to 1; the normalisation is inside the network"
    if not normalised_inside:
        values = "values from 0 to 1, minus the mean, divided by the standard deviation"
    return {
        "Input": f"float32, {shape}, {colour}, {values}",
        "Mean": _numbers(source.mean),
        "Standard deviation": _numbers(source.std),
        "Resizing": f"shorter side to {source.size} pixels (bicubic), then the middle square",
        "Output": f"float32, (batch, {source.width}): the features before the projection head",
    }


def _evaluation(source: Source) -> str:
    found, others = evaluations_of(source)
    left_out = ""
    if others:
        noun = "evaluation" if others == 1 else "evaluations"
        left_out = f"\n\n{others} {noun} of other steps of the run left out."
    if not found:
        return f"None was recorded for this step; `flatnce evaluate` makes some.{left_out}"
    return _table(HEADER, [evaluation_row(result) for result in found]) + left_out


def _limitations(source: Source) -> str:
    points = [
        f"{_pretraining(source)}: the features describe what such images show, and carry over "
        "what is one-sided in them.",
    ]
    ignored = seen_by_augmentation(source.settings)
    if ignored:
        points.append(
            f"The views differed in {'; '.join(ignored)}: the features tend to ignore these, "
            "also where your task needs them."
        )
    points += [
        f"Trained at {source.size} pixels a side; other sizes are untested.",
        "It gives features, not classes: fit a classifier on them, or fine-tune.",
        "The numbers above, if any, are of one run and one seed.",
    ]
    if source.settings.get("pretrained"):
        points.append("The licence of the weights it began from applies too.")
    return "\n".join(f"- {point}" for point in points)


def _origin(source: Source, versions: Mapping[str, str], check: Check | None) -> dict[str, str]:
    was = source.run.environment if source.run else {}
    known = [name for name in ("flatnce", "torch", "python") if was.get(name)]
    trained_by = [f"{name} {was[name]}" for name in known]
    written_by = {"flatnce": __version__, "torch": str(torch.__version__), **versions}
    checked = "not loaded back: onnxruntime was not installed"
    if check is not None:
        checked = f"loaded back: {check}"
    # Trained with an installed package there is no commit: the version says which it is.
    commit = {"Commit": str(was["commit"])} if was.get("commit") else {}
    return {
        "Trained with": ", ".join(trained_by) or "unknown",
        "Trained on": str(was.get("device") or "unknown"),
        **commit,
        "Exported with": ", ".join(f"{name} {what}" for name, what in written_by.items()),
        "Checked": checked,
    }


def _table(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text that cannot end a table's cell, nor begin a heading or code."""
    return " ".join(text.replace("|", "/").replace("`", "'").split())


def _numbers(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers)
