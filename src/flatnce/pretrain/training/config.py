"""The config of a training run: its sections, whose settings have unique names, and presets.

``settings.toml`` says what each setting means.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from inspect import formatannotation
from typing import Any, Literal

import msgspec

from flatnce.cli.options import ALIASES
from flatnce.core.objectives.registry import OBJECTIVES, ess_target
from flatnce.messages import check_choice, check_fields, check_positive, did_you_mean
from flatnce.own_code import Named, is_own
from flatnce.pretrain.data import CATALOG, find, is_path
from flatnce.pretrain.data.catalog import DECODERS
from flatnce.toml_files import read_toml

__all__ = [
    "BOOKKEEPING",
    "DataConfig",
    "PRESETS",
    "TrainConfig",
    "UNMEASURED",
    "preset",
    "refuse_unused",
    "starting_config",
]

# A shell completes these (cli/choices.toml).
OPTIMIZERS = ("sgd", "adamw", "lars")
SCALING_RULES = ("linear", "sqrt", "none")
PRECISIONS = ("auto", "float32", "bfloat16")
OWN = ("backbone", "data", "test_data", "augment", "batch_augment", "prepare")
"""The settings that may name a user's code."""
UNMEASURED = ("root", "workers", "device", "tensorboard", "wandb")
"""The settings that change neither what is learned nor what is measured."""
BOOKKEEPING = (
    *UNMEASURED,
    *("log_every", "watch_every", "checkpoint_every", "keep", "pool", "knn_neighbours"),
)
"""The settings that do not change what is learned."""


@dataclass(frozen=True)
class DataConfig:
    """The settings of the data."""

    data: str = "digits"
    split: str = "train"
    root: str | None = None
    decode_size: int | None = None
    workers: int | None = None
    skip_unreadable: bool = False
    stream: bool = False
    decode: str = "cpu"
    test_data: str | None = None
    augment: str | None = None
    batch_augment: str | None = None
    prepare: str | None = None
    epoch_samples: int | None = None

    def __post_init__(self) -> None:
        check_choice("decode", self.decode, DECODERS)
        check_fields(self, decode_size=1, workers=0, epoch_samples=1)
        for name in ("augment", "batch_augment", "prepare", "test_data", "epoch_samples"):
            value = getattr(self, name)
            if value is not None and not is_own(self.data):
                raise ValueError(
                    f"{name}={value!r} is for data of your own, not for data={self.data!r}; name "
                    "a data set of your own, package.module:function"
                )
            if isinstance(value, str) and not is_own(value):
                raise ValueError(
                    f"{name}={value!r} does not name code of your own; give package.module:name"
                )


@dataclass(frozen=True)
class ViewConfig:
    """The settings of the augmentations."""

    view_size: int | None = None
    crop_least: float = 0.08
    flip: float = 0.5
    jitter: float = 0.5
    grayscale: float = 0.2
    blur: float | Literal["auto"] = "auto"
    solarize: float = 0.0
    cutout: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, view_size=1)
        if not 0 < self.crop_least <= 1:
            raise ValueError(f"crop_least={self.crop_least} must be more than 0 and at most 1")


@dataclass(frozen=True)
class ModelConfig:
    """The settings of the encoder."""

    backbone: str = "resnet18"
    stem: str = "auto"
    pretrained: bool = False
    head_layers: int = 2
    head_hidden: int | None = None
    head_out: int = 128
    head_norm: bool = True
    queue: int = 0
    momentum_encoder: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, head_layers=0, head_hidden=1, head_out=1, queue=0)
        if self.momentum_encoder is not None:
            if not self.queue:
                raise ValueError(
                    f"momentum_encoder={self.momentum_encoder} makes the keys of a queue, and "
                    "queue=0; give both (MoCo: queue=4096, momentum_encoder=0.99) or neither"
                )
            if not 0 <= self.momentum_encoder <= 1:
                raise ValueError(f"momentum_encoder={self.momentum_encoder} must lie in [0, 1]")


_SETTINGS = [setting for entry in OBJECTIVES.values() for setting in entry.settings]
_Objective = make_dataclass(
    "_Objective",
    [("objective", str, "flatnce"), *((one.name, float, one.default) for one in _SETTINGS)],
    frozen=True,
)


@dataclass(frozen=True)
class LossConfig(_Objective):  # type: ignore[misc, valid-type]
    """The settings of the objective and its temperature."""

    temperature: float = 0.1
    temperature_end: float | None = None
    learn_temperature: bool = False
    ess: float | None = None
    ess_end: float | None = None
    ess_rate: float = 0.01

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        for name in ("temperature", "temperature_end"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_positive("ess_rate", self.ess_rate)
        chosen = self.rules
        if chosen and OBJECTIVES[self.objective].learns_scale:
            raise ValueError(
                f"{chosen[0]}={getattr(self, chosen[0])}: {self.objective} learns a scale of its "
                "own, which starts at one over temperature; leave this out"
            )
        if len(chosen) > 1:
            both = " and ".join(f"{name}={getattr(self, name)}" for name in chosen)
            raise ValueError(f"{both} both change the temperature; give one of them")
        for name in ("ess", "ess_end"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name}={value:g} is not an ESS; give a number in (0, 1]")
        if self.ess_end is not None and self.ess is None:
            raise ValueError(
                f"ess_end={self.ess_end} ends a schedule that starts at another target; give that "
                f"too, for example ess={ess_target(self.objective)}"
            )

    @property
    def rules(self) -> list[str]:
        """The settings that change the temperature in training, of which one may be given."""
        names = ("temperature_end", "learn_temperature", "ess")
        return [name for name in names if getattr(self, name) not in (None, False)]


@dataclass(frozen=True)
class OptimizerConfig:
    """The settings of the optimizer."""

    optimizer: str = "sgd"
    rate: float = 0.06
    base_batch: int = 256
    scaling: str = "linear"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("scaling", self.scaling, SCALING_RULES)
        check_positive("rate", self.rate)
        check_fields(self, base_batch=1)
        for name in ("warmup_epochs", "weight_decay"):
            if getattr(self, name):
                check_positive(name, getattr(self, name), ", or 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must be at least 0 and below 1")


@dataclass(frozen=True)
class RunConfig:
    """Length, batch size, seed and device."""

    epochs: int = 100
    batch_size: int = 256
    micro_batch: int | None = None
    seed: int = 0
    precision: str = "auto"
    device: str = "auto"
    fast: bool = True

    def __post_init__(self) -> None:
        check_fields(self, epochs=1, seed=0)
        if self.batch_size < 2:
            raise ValueError(f"batch_size={self.batch_size} leaves no negatives; use at least 2")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch_size:
            raise ValueError(
                f"micro_batch={self.micro_batch} must lie between 1 and batch_size="
                f"{self.batch_size}"
            )
        check_choice("precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class WatchConfig:
    """Logging, measurements during training, checkpoints."""

    log_every: int | None = None
    watch_every: float = 1.0
    knn_neighbours: int = 20
    pool: int = 10_000
    checkpoint_every: float = 1.0
    keep: int | None = 3
    tensorboard: bool = True
    wandb: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, log_every=1, knn_neighbours=1, pool=2, keep=1)
        if self.watch_every:
            check_positive("watch_every", self.watch_every, ", or 0 (never)")
        check_positive("checkpoint_every", self.checkpoint_every)


@dataclass(frozen=True)
class TrainConfig:
    """The config of a run; its sections have the settings.

    Examples:
        >>> config = TrainConfig().override(objective="infonce", batch_size=32)
        >>> config.loss.objective, config.run.batch_size
        ('infonce', 32)
    """

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)

    def __post_init__(self) -> None:
        for name, value in self.flat().items():
            if value != value:
                raise ValueError(f"{name}={value} is not a number; leave it out, or give one")

    def override(self, **changes: Any) -> "TrainConfig":
        """Copy the config with other settings, for example ``override(objective="infonce")``.

        ``backbone``, ``data``, ``test_data``, ``augment``, ``batch_augment`` and ``prepare`` may
        be objects of your own.
        """
        sections: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name not in _SECTION_OF:
                meant = ALIASES.get(name.replace("_", "-"), name).replace("-", "_")
                hint = did_you_mean(meant, _SECTION_OF, "TrainConfig().flat() lists them")
                raise ValueError(f"{name!r} is not a setting of a run; {hint}")
            value = _as_text(value) if name == "data" else value
            if name in OWN and not isinstance(value, str | None):
                value = Named(value)
            value = _checked(getattr(self, _SECTION_OF[name]), name, value)
            sections.setdefault(_SECTION_OF[name], {})[name] = value
        changed = {name: replace(getattr(self, name), **new) for name, new in sections.items()}
        return replace(self, **changed)

    @property
    def usual_name(self) -> str:
        """The name of a run that is given none."""
        data = re.sub(r"[^A-Za-z0-9]+", "-", self.data.data).strip("-") or "images"
        return f"{data}-{self.loss.objective}-b{self.run.batch_size}-s{self.run.seed}"

    def plain(self) -> dict[str, dict[str, Any]]:
        """The sections as plain data, as in ``config.json``."""
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """Every setting by its name."""
        return {name: value for part in self.plain().values() for name, value in part.items()}

    @classmethod
    def from_plain(cls, sections: Mapping[str, Any], where: object = "config") -> "TrainConfig":
        """The config of what :meth:`plain` gives; missing settings have their defaults.

        ``where`` begins the message about a setting that is unknown or of another type.
        """
        settings: dict[str, Any] = {}
        try:
            for part in msgspec.convert(sections, dict[str, dict[str, Any]]).values():
                settings |= part
            return cls().override(**settings)
        except ValueError as error:
            said = str(error).replace("`", "").replace("$.", "")
            raise ValueError(f"{where}: {said}") from error


def _as_text(value: Any) -> Any:
    """A path as text that is read as a path, with a slash; any other value as it is."""
    if not isinstance(value, os.PathLike):
        return value
    text = os.fsdecode(value)
    return text if is_path(text) else os.path.join(".", text)


def _checked(section: Any, name: str, value: Any) -> Any:
    """A value of a setting; numbers of numpy and torch, subclasses and paths become plain."""
    hint = type(section).__dataclass_fields__[name].type
    if hasattr(value, "__fspath__"):
        value = os.fspath(value)
    elif getattr(value, "ndim", None) == 0:
        value = value.item()
    elif isinstance(value, str) and not isinstance(value, Named):
        value = str.__str__(value)  # of an Enum
    elif isinstance(value, float):
        value = float(value)
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        kind = re.sub(r"Union\[(\w+), Literal\[(.*)\]\]", r"\1 or \2", formatannotation(hint))
        said = f"{name}={value!r} has type {type(value).__name__}"
        raise ValueError(f"{said}; give {kind}") from error
    return value


_HELP = read_toml(__file__, "settings.toml")


def _document_sections(help_of: dict[str, dict[str, str]]) -> dict[str, str]:
    """Describe the settings in the docstrings of their sections; return the section of each."""
    found: dict[str, str] = {}
    help_of["loss"]["objective"] = f"One of {', '.join(OBJECTIVES)}."
    help_of["loss"] |= {setting.name: setting.help for setting in _SETTINGS}
    for section in fields(TrainConfig):
        kind: Any = section.default_factory
        names = [leaf.name for leaf in fields(kind)]
        listed = "\n".join(f"    {name}: {help_of[section.name][name]}" for name in names)
        kind.__doc__ = f"{kind.__doc__}\n\nArguments:\n{listed}\n"
        found |= dict.fromkeys(names, section.name)
    return found


_SECTION_OF = _document_sections(_HELP)


def _read_presets() -> dict[str, tuple[str, TrainConfig]]:
    tables = read_toml(__file__, "presets.toml")
    small = {"small-images": tables.pop("small-images")}
    of_sets = {
        name: {"base": "small-images", "data": name, **entry.preset}
        for name, entry in CATALOG.items()
        if entry.preset
    }
    found = {}
    for name, table in {**of_sets, **tables}.items():
        about, base = table.pop("about"), small.get(table.pop("base", ""), {})
        found[name] = about, TrainConfig().override(**{**base, **table})
    return found


PRESETS = _read_presets()
"""Description and config of each preset."""


def preset(name: str) -> TrainConfig:
    """Return a preset config.

    Arguments:
        name: A name of :data:`PRESETS`; or another data set or the path of a folder, which get
            the preset ``folder`` with that data; or the import path of your own, with ``own``.
    """
    if is_own(name):
        return PRESETS["own"][1].override(data=name)
    if name not in PRESETS and (is_path(name) or name in CATALOG):
        return PRESETS["folder"][1].override(data=name)
    check_choice("preset", name, PRESETS)
    return PRESETS[name][1]


def starting_config(data: Any, name: str | None = None) -> TrainConfig:
    """The preset made for a data set; or the one of a name, with that data."""
    data = _as_text(data)
    if not isinstance(data, str):
        return preset(name or "own").override(data=data)
    known = is_path(data) or is_own(data) or data in PRESETS
    usual = preset(data if known else find(data, "data").name)
    # The split to train on depends on the data set, not on the preset.
    return usual if name is None else preset(name).override(data=data, split=usual.data.split)


def refuse_unused(configs: Sequence[TrainConfig], given: Iterable[str]) -> None:
    """Refuse given settings, by name or as typed, that no run uses: they would be ignored."""
    used, too = {config.loss.objective for config in configs}, "; give that too, or"
    needs: dict[str, str] = {}
    for name, entry in OBJECTIVES.items():
        if name not in used:
            needs |= {setting.name: f"objective={name!r}{too}" for setting in entry.settings}
    losses = [config.loss for config in configs]
    if all(loss.ess is None for loss in losses):
        refused = all(loss.rules or OBJECTIVES[loss.objective].learns_scale for loss in losses)
        remedy = ":" if refused else too
        needs["ess_rate"] = f"a target such as ess={ess_target(min(used))}{remedy}"
    if all(config.data.augment or config.data.batch_augment for config in configs):
        needs |= dict.fromkeys(vars(configs[0].views), "the built-in views:")
    if all(is_own(config.data.data) for config in configs):
        files = ("decode", "decode_size", "skip_unreadable", "stream")
        needs |= dict.fromkeys(files, "files that flatnce decodes:")
    if all(is_own(config.model.backbone) for config in configs):
        needs["stem"] = "a ResNet of torchvision:"
    layers = max(config.model.head_layers for config in configs)
    if layers < 2:
        needs |= dict.fromkeys(("head_hidden", "head_norm"), "a head of at least two layers:")
    if not layers:
        needs["head_out"] = "a head that has layers:"
    for name in given:
        leaf = name.removeprefix("--").removeprefix("no-").replace("-", "_")
        if leaf in needs:
            said = f"{leaf}={configs[0].flat()[leaf]!r} has no effect here"
            raise ValueError(f"{said}, it is for {needs[leaf]} leave it out")
