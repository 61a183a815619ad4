"""The model card: README.md with the front matter that the Hugging Face hub reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flatnce import __version__
from flatnce.pretrain.exporting.evaluations import HEADER, evaluation_row, evaluations_of
from flatnce.pretrain.exporting.layout import Check
from flatnce.pretrain.exporting.snippets import how_to_load
from flatnce.pretrain.exporting.source import Source
from flatnce.pretrain.exporting.training_facts import data_of, seen_by_augmentation, training_of

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
