"""Trained backbones for other programs: timm, plain torch, ONNX, each with a model card.

An exported folder is loaded back, and its features are compared, before it gets its name. The text
of the card, with the front matter of the Hugging Face hub, is ``templates/card.md``.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined
from torch import Tensor, nn

from flatnce import __version__
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.extras import require_extra
from flatnce.files import check_replaceable, lock, put_back, put_in_place, read_json
from flatnce.messages import check_choice
from flatnce.own_code import OBJECT, is_own
from flatnce.pretrain.data import Views, is_path
from flatnce.pretrain.data.augmentation.pixels import Normalisation
from flatnce.pretrain.data.views import CentreCrop
from flatnce.pretrain.models import RESNETS, backbone
from flatnce.pretrain.runs.folder import find_run
from flatnce.pretrain.runs.log import SHAPES, read_run, score_cells, tested_on
from flatnce.pretrain.training.saved import load_encoder

__all__ = [
    "FORMS",
    "MARK",
    "TOLERANCE",
    "ExportError",
    "check_repository",
    "describe_check",
    "export",
    "is_described",
    "load_exported",
    "open_graph",
    "preprocessing",
    "push_to_hub",
    "read_config",
]

FORMAT_VERSION = 1  # increased when an older reader would misread the layout
CARD, CONFIG, WEIGHTS, ONNX_MODEL = "README.md", "config.json", "model.safetensors", "model.onnx"
MARK = "flatnce"  # the entry of config.json that flatnce reads
DAMAGED = (
    "{} is missing, was cut short or changed after the export; export again, or copy it whole"
)

TOLERANCE = 1e-5
"""Largest difference between features of onnxruntime and of torch, relative to the largest feature
(to one, if that is less). The other forms are equal to the bit."""


class ExportError(OSError):
    """An export could not be written or read; the message says what to do."""


def describe_check(check: Mapping[str, float] | None) -> str:
    """How the features of an export, loaded back, compare with those of the network."""
    if check is None:
        return "not checked, as onnxruntime is not installed (pip install 'flatnce[onnx]')"
    if check["largest_difference"] == 0:
        return "the same features to the bit"
    relative = check["largest_difference"] / max(1.0, check["largest_feature"])
    return f"features differ by at most {relative:.2g} of the largest"


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write ``config.json``."""
    text = json.dumps(config, indent=2, allow_nan=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the ``config.json`` of an exported folder; refuse one that flatnce did not write."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(
            f"folder={str(folder)!r} is not an exported backbone (it has no {CONFIG}); pass what "
            "`flatnce export` wrote"
        )
    return read_json(path, SHAPES["export"], "export the run again", FORMAT_VERSION, ExportError)


def is_described(folder: Path) -> bool:
    """Whether a folder has the ``config.json`` of an export."""
    try:
        return bool(read_json(folder / CONFIG, SHAPES["export"], ""))
    except (OSError, ValueError):
        return False


def file_record(path: Path) -> dict[str, Any]:
    """Name, size and checksum of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}


def check_room(out: Path, replace: bool) -> None:
    """Refuse a place that is not empty, before any work is done."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"out={str(out)!r} is a file; name a folder for the export")
    if names := {entry.name for entry in out.iterdir()}:
        files = {CARD, CONFIG, WEIGHTS, ONNX_MODEL, f"{ONNX_MODEL}.data"}
        ours = names <= files and is_described(out)
        check_replaceable(f"out={str(out)!r}", "an export", ours, replace)


@contextmanager
def new_folder(out: Path, replace: bool) -> Iterator[Path]:
    """A temporary folder, renamed when the block succeeds and removed otherwise."""
    place = out.resolve()  # a link to a folder stays a link
    temporary = place.with_name(f".{place.name}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock(place.with_name(f".{place.name}.lock")):
            put_back(place)  # both are of an export that was killed
            shutil.rmtree(temporary, ignore_errors=True)
            check_room(out, replace)
            temporary.mkdir()
            try:
                yield temporary
                check_room(out, replace)  # another process may have written there
                put_in_place(temporary, place)
            finally:  # under the lock: before it is held, the folder may be another process's
                shutil.rmtree(temporary, ignore_errors=True)
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"{out} was not written ({error}); export again") from error


class Source:
    """A run's backbone, on the CPU, and everything its card says."""

    def __init__(self, run: str | Path, step: int | None = None) -> None:
        directory = find_run(str(run))
        loaded = load_encoder(directory, step=step)
        self.run, self.name = read_run(directory), directory.resolve().name
        network = loaded.encoder.backbone.float()
        self.backbone = network.to(memory_format=torch.contiguous_format)
        self.width, self.ready = loaded.encoder.width, loaded.ready
        self.settings, self.step = loaded.config.flat(), loaded.step
        self.architecture = str(self.settings["backbone"])
        self.from_torchvision = self.architecture in RESNETS
        # The stem of the network itself; the rule of ``auto`` may change later.
        self.stem = "auto"
        if self.from_torchvision:
            self.stem = "small" if isinstance(network.maxpool, nn.Identity) else "standard"
        self.channels, self.size, self.shape = loaded.channels, loaded.size, loaded.shape
        if self.settings["blur"] == "auto" and not self.ready:
            self.settings["blur"] = Views(self.size, seed=0).blur_probability
        numbers = Normalisation(*loaded.normalisation).channels(loaded.channels)
        self.mean, self.std = (tuple(column) for column in zip(*numbers, strict=True))

    def sample(self, count: int = 3) -> Tensor:
        """A few inputs of noise to compare features on, the same every time."""
        return torch.randn(count, *self.shape, generator=torch.Generator().manual_seed(0))


class TorchForm:
    """Weights in safetensors and a plain config."""

    packages: tuple[str, ...] = ("safetensors",)  # whose versions the card names
    library = "flatnce"  # that loads it
    tags: tuple[str, ...] = ("pytorch", "safetensors")  # for the hub

    def check(self, source: Source) -> None:
        """Refuse without safetensors, and a network that cannot be imported."""
        if source.architecture.startswith(f"{OBJECT}:"):
            raise ValueError(
                "to='torch' is not possible for an object of which only the name is known; export "
                "it with to='onnx', or train it by its import path, backbone='package.module:Name'"
            )
        require_extra("safetensors.torch", "exporting weights")

    def write(self, source: Source, folder: Path) -> dict[str, Any]:
        """Write the state dict; return its checksum."""
        library = require_extra("safetensors.torch", "exporting weights")
        state = source.backbone.state_dict()
        weights = {name: tensor.clone().contiguous() for name, tensor in state.items()}
        (folder / WEIGHTS).write_bytes(library.save(weights, metadata={"format": "pt"}))
        return {MARK: {"weights": file_record(folder / WEIGHTS)}}

    def features(self, folder: Path, images: Tensor) -> Tensor | None:
        """Features of the exported network; None if it cannot be loaded here."""
        return load_exported(folder)(images)


class TimmForm(TorchForm):
    """A folder that ``timm.create_model("local-dir:...")`` reads, as from the hub."""

    packages: tuple[str, ...] = ("timm", "safetensors")
    library = "timm"
    tags: tuple[str, ...] = ("timm", "safetensors")

    def check(self, source: Source) -> None:
        """Refuse a backbone that timm does not have."""
        if is_own(source.architecture):
            raise ValueError(
                f"to='timm' is not possible: timm has no {source.architecture}; export it with "
                "to='torch' or to='onnx'"
            )
        if "small" in (source.architecture, source.stem):
            raise ValueError(
                "to='timm' is not possible: timm has neither backbone 'small' nor the small-image "
                "stem of this run's ResNet; export it with to='torch' (README.md shows how to put "
                "a ResNet's weights into torchvision's network) or to='onnx'"
            )
        require_extra("timm", "exporting to timm")
        super().check(source)

    def write(self, source: Source, folder: Path) -> dict[str, Any]:
        """Write the weights; return what timm reads from ``config.json``."""
        if source.from_torchvision:
            known: dict[str, Any] = {"first_conv": "conv1", "classifier": "fc"}
        else:
            given = getattr(source.backbone, "pretrained_cfg", None) or {}
            # What describes the network, not its published weights.
            kept = ("fixed_input_size", "pool_size", "first_conv", "classifier")
            known = {name: given[name] for name in kept if name in given}
        if source.channels != 3:
            # Otherwise timm would adapt the first convolution from three channels.
            known["first_conv"] = None
        return {
            # Without the tag that names timm's published weights.
            "architecture": source.architecture.partition(".")[0],
            "pretrained_cfg": {
                **known,
                "num_classes": 0,
                "input_size": [source.channels, source.size, source.size],
                "interpolation": "bicubic",
                "crop_pct": 1.0,
                "crop_mode": "center",
                "mean": list(source.mean),
                "std": list(source.std),
            },
            **super().write(source, folder),
        }

    def features(self, folder: Path, images: Tensor) -> Tensor | None:
        """Features of the network that timm loads."""
        timm = require_extra("timm", "loading from timm")
        try:
            network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        except Exception as error:
            # Some networks rename their weights by rules that need a classifier.
            name = read_config(folder)["architecture"]
            raise ExportError(
                f"timm {timm.__version__} cannot read {name} back without its classifier "
                f"({type(error).__name__}); export it with to='torch' or to='onnx'"
            ) from error
        return network(images)


class OnnxForm:
    """A graph for onnxruntime and other readers of ONNX."""

    packages: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")
    library = "onnx"
    tags: tuple[str, ...] = ()

    def check(self, source: Source) -> None:
        """Refuse if a package that torch's exporter needs is missing."""
        for module in ("onnx", "onnxscript"):
            require_extra(module, "to='onnx'", "onnx")

    def write(self, source: Source, folder: Path) -> dict[str, Any]:
        """Write ``model.onnx``: any number of images of a fixed size to features."""
        try:
            with warnings.catch_warnings():
                # Warnings about the insides of torch and onnxscript.
                warnings.simplefilter("ignore")
                program = torch.onnx.export(
                    source.backbone,
                    # Two images: a batch of one would be taken for a constant.
                    (source.sample(2),),
                    input_names=["images"],
                    output_names=["features"],
                    dynamic_shapes=({0: torch.export.Dim("batch")},),
                    dynamo=True,
                    verbose=False,
                )
        except Exception as error:  # the exporter has many kinds, which change between versions
            raise ExportError(
                f"torch {torch.__version__} cannot write {source.architecture} as ONNX "
                f"({type(error).__name__}); export it with to='torch' or to='timm'"
            ) from error
        assert program is not None  # as always with dynamo
        size = sum(tensor.nbytes for tensor in source.backbone.state_dict().values())
        # A graph holds at most two gigabytes.
        program.save(str(folder / ONNX_MODEL), external_data=size > 1_500_000_000)
        return {MARK: {"graph": file_record(folder / ONNX_MODEL)}}

    def features(self, folder: Path, images: Tensor) -> Tensor | None:
        """Features computed by onnxruntime on the CPU; None if it is not installed."""
        return None if find_spec("onnxruntime") is None else open_graph(folder)(images)


FORMS: dict[str, TorchForm | OnnxForm] = {
    "timm": TimmForm(),
    "torch": TorchForm(),
    "onnx": OnnxForm(),
}
"""Every form by its name."""


def load_exported(folder: str | Path) -> nn.Module:
    """Rebuild a backbone that ``flatnce export`` wrote: images to features, in evaluation mode.

    Reads the forms ``torch`` and ``timm``. The features are those of the trained network, bit for
    bit, on the same device and with the same number of threads. No code of the folder is run, and
    the weights are compared with their checksum. A network of your own is imported by its path.
    """
    place = Path(folder)
    described = read_config(place)[MARK]
    if "weights" not in described:
        raise ValueError(
            f"folder={str(folder)!r} holds the form {described.get('form')!r}, which onnxruntime "
            "opens (its README.md shows how); to load it here export with to='torch'"
        )
    weights = _read_weights(place, described["weights"])
    shape = described["input"].get("shape")
    try:
        example = None if shape is None else torch.zeros(2, *shape)
        network = backbone(**described["backbone"], example=example)
        network.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        raise ExportError(
            f"{place} describes another backbone than its weights are of: its files are not of "
            "one export; export the run again"
        ) from error
    return network.eval()


def open_graph(folder: str | Path) -> Callable[[Tensor], Tensor]:
    """The exported form ``onnx`` as a function of images, computed by onnxruntime on the CPU."""
    onnxruntime = require_extra("onnxruntime", "an ONNX graph", "onnx")
    path, expected = Path(folder) / ONNX_MODEL, read_config(folder)[MARK].get("graph")
    if expected is None or not path.is_file() or file_record(path)["sha256"] != expected["sha256"]:
        raise ExportError(DAMAGED.format(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only; it warns about devices it does not find
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(
        session.run(["features"], {"images": images.numpy()})[0]
    )


def preprocessing(folder: str | Path) -> CentreCrop:
    """The preprocessing of an exported backbone, for uint8 images (b, c, h, w) of any size.

    The shorter side is resized (bicubic) to the backbone's input, the centre cut out and
    normalised, as in ``flatnce evaluate``. The exported folder may be of any form.
    """
    taken = read_config(folder)[MARK]["input"]
    if "shape" in taken:
        raise ValueError(
            f"folder={str(folder)!r} takes inputs of shape {tuple(taken['shape'])}, prepared by "
            "the code that it was trained with; call the network without preprocessing"
        )
    if taken["normalised_inside"]:
        return CentreCrop(taken["size"], mean=0.0, std=1.0)
    return CentreCrop(taken["size"], mean=taken["mean"], std=taken["std"])


def _read_weights(folder: Path, expected: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    library = require_extra("safetensors.torch", "loading exported weights")
    content = path.read_bytes() if path.is_file() else b""
    try:
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise ValueError(path)
        weights: dict[str, Tensor] = library.load(content)
    except Exception as error:  # damaged files can raise anything
        raise ExportError(DAMAGED.format(path)) from error
    return weights


def card(source: Source, form: str, folder: str, check: str) -> str:
    """The text of the card."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Quoted as in Python, JSON and YAML.
    environment.tests["own"] = is_own
    environment.filters |= {"plain": _plain, "quoted": partial(json.dumps, ensure_ascii=False)}
    template = resources.files("flatnce.pretrain.exporting").joinpath("templates", "card.md")
    results = source.run.results or {}
    every = results.get("evaluations", [])
    # An evaluation without a step is of the run's last step.
    mine = [e for e in every if e.get("step", results.get("step", source.step)) == source.step]
    versions = {name: metadata.version(name) for name in FORMS[form].packages if find_spec(name)}
    text = environment.from_string(template.read_text("utf-8")).render(
        source=source,
        settings=source.settings,
        finished=results.get("step") == source.step,
        objective=OBJECTIVES[source.settings["objective"]],
        form=form,
        library=FORMS[form].library,
        tags=[source.architecture.partition(".")[0], *FORMS[form].tags],
        folder=folder,
        data=f"{_data_name(source.settings['data'])} ({source.settings['split']})",
        evaluations=[evaluation_row(result) for result in mine],
        tested_on=tested_on(mine),
        other_evaluations=len(every) - len(mine),
        trained=source.run.environment,
        check=check,
        versions={"flatnce": __version__, "torch": torch.__version__, **versions},
    )
    return text.strip() + "\n"


def _data_name(data: str) -> str:
    """The name of a data set; of a path on this machine only the last part."""
    if not is_path(data):
        return data
    last = PurePath(data.replace("\\", "/")).name
    return f"a folder of images, {last}" if last not in ("", "..") else "a folder of images"


def evaluation_row(result: Mapping[str, Any]) -> list[str]:
    """The cells of one result: protocol, data, measure, value, interval, top-5, test images."""
    cells = score_cells(result)
    return [*cells._replace(data=_data_name(cells.data))]


def _plain(text: str) -> str:
    """Text without the marks of a table cell, a heading or code."""
    return " ".join(str(text).replace("|", "/").replace("`", "'").split())


def export(
    run: str | Path,
    to: str = "torch",
    out: str | Path | None = None,
    *,
    step: int | None = None,
    replace: bool = False,
) -> Path:
    """Write a trained backbone, without its projection head, with a model card; return the folder.

    The export is loaded back before the folder gets its name. Its features must be equal to the
    bit for ``torch`` and ``timm``, and within :data:`TOLERANCE` for ``onnx`` (if onnxruntime is
    installed). Otherwise nothing is written.

    Arguments:
        run: A run's name or folder.
        to: ``torch`` (safetensors and a plain config), ``timm`` (what ``timm.create_model`` and
            the hub read) or ``onnx``.
        out: The folder to write; by default ``exports/RUN-FORM`` in the run's own.
        step: Which checkpoint; the newest by default.
        replace: Replace an earlier export in that folder. Other files are never removed.
    """
    check_choice("to", to, FORMS)
    if out is not None:
        check_room(Path(out), replace)  # before a checkpoint is read
    source = Source(run, step)
    FORMS[to].check(source)
    if out is None:
        at = "" if step is None else f"-step-{step}"
        out = source.run.directory / "exports" / f"{source.name}{at}-{to}"
    place = Path(out)
    with new_folder(place, replace) as folder:
        config = _config(source, to, FORMS[to].write(source, folder))
        write_config(folder, config)  # before the check: timm and load_exported read it
        config[MARK]["check"] = check = _check(source, to, folder)
        write_config(folder, config)
        text = card(source, to, place.resolve().name, describe_check(check))
        (folder / CARD).write_text(text, encoding="utf-8")
    return place


def _config(source: Source, to: str, written: dict[str, Any]) -> dict[str, Any]:
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
            "normalised_inside": False,  # which exports of earlier versions may be
            "interpolation": "bicubic",
            **({"shape": list(source.shape)} if source.ready else {}),
        },
        "features": source.width,
        "step": source.step,
        **written[MARK],
    }
    described = {"architecture": source.architecture, "num_classes": 0}
    return {**described, "num_features": source.width, **written, MARK: ours}


@torch.no_grad()
def _check(source: Source, to: str, folder: Path) -> dict[str, float] | None:
    """Compare features when loaded back; an error if they differ by too much."""
    images = source.sample()
    expected = source.backbone(images)
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


def check_repository(repository: str) -> None:
    """Refuse a name that no repository of the hub can have, before any work is done."""
    utils = require_extra("huggingface_hub.utils", "push_to_hub")
    try:
        utils.validate_repo_id(repository)
    except ValueError as error:
        raise ValueError(
            f"push_to_hub={repository!r} is not the name of a repository; pass USER/NAME, or NAME "
            f"for one of your own ({error})"
        ) from error


def push_to_hub(folder: str | Path, repository: str, *, private: bool = False) -> str:
    """Upload an exported folder to a repository of the Hugging Face hub; return its address.

    The repository is created if it does not exist. The token is that of ``hf auth login``, or of
    the environment variable ``HF_TOKEN``.

    Arguments:
        folder: What :func:`~flatnce.pretrain.exporting.export` wrote.
        repository: ``USER/NAME``, or ``NAME`` for one of your own.
        private: Create a private repository; one that exists stays as it is.
    """
    check_repository(repository)
    ours = read_config(folder)[MARK]
    hub = require_extra("huggingface_hub", "push_to_hub")
    api = hub.HfApi(os.environ.get("HF_ENDPOINT"), library_name="flatnce")
    try:
        made = api.create_repo(repository, private=private or None, exist_ok=True)
        said = f"Upload step {ours['step']} as {ours['form']} (flatnce {__version__})"
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=said)
    except Exception as error:  # of the hub, its client or the network, each with kinds of its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(
            f"{folder} is written but not on the hub ({reason}); log in with `hf auth login` if "
            f"that is the reason, then: hf upload {repository} {folder}"
        ) from error
    return str(made)
