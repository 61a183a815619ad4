"""One function from a run to a folder that others can load."""

import difflib
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from flatnce import __version__
from flatnce.pretrain.exporting import onnx_form, timm_form, torch_form
from flatnce.pretrain.exporting.card import card
from flatnce.pretrain.exporting.folder import (
    CARD,
    FORMAT_VERSION,
    MARK,
    Check,
    ExportError,
    check_room,
    new_folder,
    write_config,
)
from flatnce.pretrain.exporting.source import Source, source_of
from flatnce.pretrain.training.saved import LoadedEncoder

__all__ = ["check_form"]

FORMS: dict[str, ModuleType] = {"timm": timm_form, "torch": torch_form, "onnx": onnx_form}
"""Every form by its name."""

TOLERANCE = 1e-5
"""How far a feature computed by onnxruntime may lie from torch's, relative to the largest feature
(to one, if that is less): rounding grows with the numbers. Other forms are equal to the bit."""

_PACKAGES = {
    "timm": ("timm", "safetensors"),
    "torch": ("safetensors",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}


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

    It is loaded back before the folder gets its name, and must give the same features: to the bit
    as ``torch`` and ``timm``, within :data:`TOLERANCE` as ``onnx`` (where onnxruntime is there to
    ask). Otherwise nothing is written.

    Limits:
        timm has no small-image stem and no ``small``: these are refused with the form to take.

    Relations:
        :func:`~flatnce.pretrain.exporting.load_exported` reads ``torch`` and ``timm`` back.

    Arguments:
        run: A run's name or folder, or what :func:`flatnce.pretrain.load_encoder` returns.
        to: ``torch`` (safetensors and a plain config), ``timm`` (what ``timm.create_model`` and
            the hub read) or ``onnx``.
        out: The folder to write; by default ``exports/RUN-FORM`` in the run's own.
        step: Which checkpoint; the newest by default.
        normalise: For ``onnx``: put the normalisation into the graph, which then takes values
            from 0 to 1. The other forms, and by default this one, take normalised images.
        replace: An earlier export in that folder may go. Anything else there is never removed.
    """
    form = check_form(to)
    if normalise and to != "onnx":
        raise ValueError(
            f"normalise=True is for to='onnx', whose graph can hold the normalisation; to={to!r} "
            "takes normalised images, as its card says"
        )
    if out is not None:
        check_room(Path(out), replace)  # before a checkpoint is read
    source = source_of(run, step, None if out is None else _name_in(Path(out), to))
    form.check(source)
    place = _default_folder(source, to, step) if out is None else Path(out)
    with new_folder(place, replace) as folder:
        _write(source, to, folder, place.resolve().name, normalise)
    return place


def check_form(to: str) -> ModuleType:
    """The module of a form; a ValueError with the nearest name if there is none so called."""
    if to in FORMS:
        return FORMS[to]
    near = difflib.get_close_matches(to, [*FORMS, "pytorch", "safetensors"], n=1, cutoff=0.5)
    meant = {"pytorch": "torch", "safetensors": "torch"}.get(near[0], near[0]) if near else None
    hint = f"did you mean {meant!r}? " if meant else ""
    raise ValueError(f"to={to!r} is no form of export; {hint}Take one of {', '.join(FORMS)}")


def _write(source: Source, to: str, folder: Path, name: str, normalise: bool) -> None:
    """Fill a folder: weights or graph, config, the check, the card."""
    form = FORMS[to]
    written = form.write(source, folder, normalise) if to == "onnx" else form.write(source, folder)
    config = _config(source, to, normalise, written)
    write_config(folder, config)  # before the check: timm and load_exported read it
    check = _check(source, to, folder, normalise)
    config[MARK]["check"] = None if check is None else asdict(check)
    write_config(folder, config)
    text = card(
        source,
        to,
        name,
        normalised_inside=normalise,
        check=check,
        versions=_versions(to),
    )
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
def _check(source: Source, to: str, folder: Path, normalise: bool) -> Check | None:
    """Compare features when loaded back; an error if they differ by too much."""
    if to == "onnx" and not onnx_form.can_check():
        return None
    images = source.sample()
    expected = source.features(images)
    if normalise:  # what the graph is given, so that it makes these images of it
        mean, std = (torch.tensor(n).view(1, -1, 1, 1) for n in (source.mean, source.std))
        images = images * std + mean
        expected = source.features((images - mean) / std)
    if not expected.isfinite().all():
        raise ExportError(
            f"the {source.architecture} of step {source.step} gives features that are not finite: "
            "its training diverged; export an earlier step"
        )
    found = FORMS[to].features(folder, images)
    same = found.shape == expected.shape
    difference = float((found - expected).abs().max()) if same else float("inf")
    check = Check(difference, float(expected.abs().max()))
    # Written so that a NaN, of which nothing is true, fails.
    if not check.relative <= (TOLERANCE if to == "onnx" else 0.0):
        raise ExportError(
            f"to={to!r}: loaded back, the features of {source.architecture} differ by "
            f"{difference:.2g} where the largest is {check.largest_feature:.2g}, so nothing was "
            f"written; export with to={'torch' if to != 'torch' else 'onnx'!r} and report this"
        )
    return check


def _default_folder(source: Source, to: str, step: int | None) -> Path:
    if source.run is None:
        raise ValueError("out is needed to export a network that is not given by its run")
    at = "" if step is None else f"-step-{step}"
    return source.run.directory / "exports" / f"{source.name}{at}-{to}"


def _name_in(out: Path, to: str) -> str:
    """What a network is called that comes without a run: its folder's name."""
    return out.resolve().name.removesuffix(f"-{to}") or "backbone"


def _versions(to: str) -> dict[str, str]:
    found = {}
    for package in _PACKAGES[to]:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
