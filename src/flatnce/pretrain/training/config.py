"""The config of a training run: its sections, the presets, and flat access to the settings.

Setting names are unique over all sections, so command line options, overrides and tables are flat,
while ``config.json`` keeps the sections.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import Any, Literal

from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.messages import did_you_mean
from flatnce.pretrain.data.catalog import CATALOG, Entry, is_path
from flatnce.pretrain.training.optim import OPTIMIZERS, SCALING_RULES

__all__ = ["LossConfig", "PRESETS", "TrainConfig", "preset"]

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class DataConfig:
    """The images.

    Arguments:
        data: A data set's name (`flatnce data --list`), or the path of a folder of images.
        split: The split to train on.
        root: Folder of the data sets; $FLATNCE_DATA, else ~/.cache/flatnce.
        decode_size: Side to which image files are decoded; by default that of the set.
        workers: Processes that decode image files; by default one per core.
        skip_unreadable: Skip files that cannot be decoded, with a warning.
    """

    data: str = "digits"
    split: str = "train"
    root: str | None = None
    decode_size: int | None = None
    workers: int | None = None
    skip_unreadable: bool = False


@dataclass(frozen=True)
class ViewConfig:
    """The augmentations; see :class:`flatnce.pretrain.data.Views`.

    Arguments:
        view_size: Side of a view in pixels; by default that of the images.
        crop_least: Smallest share of the area that a crop covers.
        flip: Probability of a horizontal flip.
        jitter: Strength of colour jitter; 0 for none.
        grayscale: Probability of conversion to grayscale.
        blur: Probability of blur; auto: 0.5 from 64 pixels up.
        solarize: Probability of solarization.
        cutout: Probability of cutout.
        noise: Standard deviation of added noise.
    """

    view_size: int | None = None
    crop_least: float = 0.08
    flip: float = 0.5
    jitter: float = 0.5
    grayscale: float = 0.2
    blur: float | Literal["auto"] = "auto"
    solarize: float = 0.0
    cutout: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """The encoder.

    Arguments:
        backbone: resnet18, resnet50, ..., small, or any timm name.
        stem: Stem of a ResNet: small, standard, or auto (small up to 64 pixels).
        pretrained: Start from published weights.
        head_layers: Linear layers of the projection head.
        head_hidden: Width of its hidden layers; by default that of the features.
        head_out: Dimension of the embeddings.
        head_norm: Use batch norm in the head.
        queue: Number of past keys used as negatives (MoCo); 0 for none.
        momentum_encoder: Momentum of the encoder that computes the keys of a queue.
    """

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
        """Check the queue; the models check the rest."""
        if self.queue < 0:
            raise ValueError(f"queue={self.queue} must be at least 0 (no queue)")
        if self.momentum_encoder is not None:
            if not self.queue:
                raise ValueError(
                    f"momentum_encoder={self.momentum_encoder} makes the keys of a queue, and "
                    "queue=0; give both (MoCo: queue=4096, momentum_encoder=0.99) or neither"
                )
            if not 0 <= self.momentum_encoder <= 1:
                raise ValueError(f"momentum_encoder={self.momentum_encoder} must lie in [0, 1]")


_SETTINGS = [setting for entry in OBJECTIVES.values() for setting in entry.settings]
_OwnSettings = make_dataclass(
    "_OwnSettings",
    [("objective", str, "flatnce"), *((one.name, float, one.default) for one in _SETTINGS)],
    frozen=True,
)


@dataclass(frozen=True)
class LossConfig(_OwnSettings):  # type: ignore[misc, valid-type]
    """The objective and its temperature.

    Arguments:
        objective: One of OBJECTIVES.
        temperature: Temperature; the start value where a rule changes it.
        temperature_end: Change the temperature to this value along a cosine.
        learn_temperature: Learn the temperature, by InfoNCE's gradient.
        ess: Keep this effective sample size by changing the temperature.
        ess_end: Change that target to this value along a cosine.
        ess_rate: Relative step size of that control.
    """

    objective: str = "flatnce"
    temperature: float = 0.1
    temperature_end: float | None = None
    learn_temperature: bool = False
    ess: float | None = None
    ess_end: float | None = None
    ess_rate: float = 0.01

    def __post_init__(self) -> None:
        """Check the objective, and that at most one rule changes the temperature."""
        if self.objective not in OBJECTIVES:
            raise ValueError(_unknown("objective", self.objective, tuple(OBJECTIVES)))
        for name in ("temperature", "temperature_end"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be a positive finite number")
        rules = {
            "temperature_end": self.temperature_end is not None,
            "learn_temperature": self.learn_temperature,
            "ess": self.ess is not None,
        }
        chosen = [name for name, on in rules.items() if on]
        if chosen and OBJECTIVES[self.objective].learns_scale:
            raise ValueError(
                f"{chosen[0]}={getattr(self, chosen[0])}: {self.objective} learns a scale of its "
                f"own, which starts at one over temperature; leave {chosen[0]} out"
            )
        if len(chosen) > 1:
            raise ValueError(
                f"{' and '.join(chosen)} both change the temperature; give one of them"
            )
        for name in ("ess", "ess_end"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name}={value}: an effective sample size lies in (0, 1]")
        if self.ess_end is not None and self.ess is None:
            raise ValueError(f"ess_end={self.ess_end} ends a schedule that ess begins; give ess")


# The help of the options comes from the docstring, and the objectives from their registry.
LossConfig.__doc__ = (LossConfig.__doc__ or "").replace(
    "One of OBJECTIVES.",
    "\n        ".join(
        [f"One of {', '.join(OBJECTIVES)}.", *(f"{one.name}: {one.help}" for one in _SETTINGS)]
    ),
)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer.

    Arguments:
        optimizer: sgd, adamw or lars.
        rate: Learning rate at base_batch.
        base_batch: The batch size at which rate was tuned.
        scaling: How the rate grows with the batch size: linear, sqrt or none.
        momentum: Momentum of SGD and LARS; AdamW's first beta.
        weight_decay: Weight decay; biases and norm layers have none.
        warmup_epochs: Epochs of linear warm-up before the cosine; at most half of the run.
    """

    optimizer: str = "sgd"
    rate: float = 0.06
    base_batch: int = 256
    scaling: str = "linear"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        """Check names; the optimizer checks its numbers."""
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(_unknown("optimizer", self.optimizer, OPTIMIZERS))
        if self.scaling not in SCALING_RULES:
            raise ValueError(_unknown("scaling", self.scaling, SCALING_RULES))
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate={self.rate} must be a positive finite learning rate")
        if not 0 <= self.warmup_epochs < math.inf:
            raise ValueError(f"warmup_epochs={self.warmup_epochs} must be at least 0")


@dataclass(frozen=True)
class RunConfig:
    """Length, batch size, seed and device.

    Arguments:
        epochs: Number of epochs.
        batch_size: Images per step, over all processes: their other views are the negatives.
        micro_batch: Images in memory at once (gradient caching); batch norm then
            normalises within them.
        seed: Seed of weights, order and views.
        precision: float32, bfloat16 (autocast), or auto: bfloat16 on CUDA.
        device: cpu, cuda, cuda:1, or auto.
        fast: On a GPU, run each step as one CUDA graph with fused layers; switch it
            off to debug.
    """

    epochs: int = 100
    batch_size: int = 256
    micro_batch: int | None = None
    seed: int = 0
    precision: str = "auto"
    device: str = "auto"
    fast: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs} must be at least 1")
        if self.batch_size < 2:
            raise ValueError(f"batch_size={self.batch_size} leaves no negatives; use at least 2")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give a whole number, at least 0")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch_size:
            raise ValueError(
                f"micro_batch={self.micro_batch} must lie between 1 and batch_size="
                f"{self.batch_size}"
            )
        if not isinstance(self.fast, bool):
            raise ValueError(f"fast={self.fast!r} must be True or False")
        if self.precision not in PRECISIONS:
            raise ValueError(_unknown("precision", self.precision, PRECISIONS))


@dataclass(frozen=True)
class WatchConfig:
    """Logging, measurements during training, checkpoints.

    Arguments:
        log_every: Steps between log lines; by default a twentieth of an epoch, at least 10.
        watch_every: Epochs between measurements of kNN and large-pool information; 0 for never.
        knn_neighbours: k of that kNN.
        pool: Size of the large pool.
        checkpoint_every: Epochs between checkpoints.
        keep: Number of newest checkpoints to keep; None keeps all.
        tensorboard: Also write TensorBoard files, if it is installed.
    """

    log_every: int | None = None
    watch_every: float = 1.0
    knn_neighbours: int = 20
    pool: int = 10_000
    checkpoint_every: float = 1.0
    keep: int | None = 3
    tensorboard: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, least in (("log_every", 1), ("knn_neighbours", 1), ("pool", 2), ("keep", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}")
        if self.watch_every < 0:
            raise ValueError(f"watch_every={self.watch_every} must be at least 0 (never)")
        if not self.checkpoint_every > 0:
            raise ValueError(f"checkpoint_every={self.checkpoint_every} must be more than 0")


def _unknown(name: str, value: str, known: tuple[str, ...]) -> str:
    hint = did_you_mean(value, known, then=f"choose one of {', '.join(known)}", cutoff=0.5)
    return f"{name}={value!r} is unknown; {hint}"


@dataclass(frozen=True)
class TrainConfig:
    """The config of a run.

    Arguments:
        data: The images.
        views: The augmentations.
        model: The encoder.
        loss: The objective and its temperature.
        optimizer: The optimizer.
        run: Length, batch size, seed and device.
        watch: Logging, measurements during training, checkpoints.

    Examples:
        >>> config = TrainConfig().override(objective="infonce", batch_size=32)
        >>> config.loss.objective, config.run.batch_size
        ('infonce', 32)
        >>> TrainConfig.from_plain(config.plain()) == config
        True
    """

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)

    def override(self, **changes: Any) -> "TrainConfig":
        """Copy the config with some settings changed, named without their section.

        Arguments:
            **changes: For example ``batch_size=32, objective="infonce"``.
        """
        sections: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name not in _SECTION_OF:
                hint = did_you_mean(name, _SECTION_OF, "TrainConfig().flat() lists them")
                raise ValueError(f"{name!r} is not a setting of a run; {hint}")
            sections.setdefault(_SECTION_OF[name], {})[name] = value
        changed = {name: replace(getattr(self, name), **new) for name, new in sections.items()}
        return replace(self, **changed)

    def plain(self) -> dict[str, dict[str, Any]]:
        """The sections as plain data, as in ``config.json``."""
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """Every setting by its name."""
        return {name: value for part in self.plain().values() for name, value in part.items()}

    @classmethod
    def from_plain(cls, sections: Mapping[str, Mapping[str, Any]]) -> "TrainConfig":
        """The config of a ``config.json``; missing settings have their defaults.

        Arguments:
            sections: As :meth:`plain` gives them.
        """
        return cls().override(**{k: v for part in sections.values() for k, v in part.items()})


_SECTION_OF: dict[str, str] = {
    leaf.name: section.name
    for section in fields(TrainConfig)
    for leaf in fields(section.default_factory)  # type: ignore[arg-type,misc]  # a dataclass
}


# For sets of small images, which are held in memory; catalog.toml says what each set changes.
_SMALL_IMAGES = TrainConfig().override(
    data="cifar10",
    backbone="resnet18",
    epochs=100,
    batch_size=256,
    rate=0.12,
    warmup_epochs=1.0,
)
# The settings of SimCLR and of the paper, for 224 pixels.
_IMAGENET = TrainConfig().override(
    data="./imagenet",
    backbone="resnet50",
    stem="standard",
    view_size=224,
    decode_size=256,
    epochs=100,
    batch_size=512,
    jitter=1.0,
    head_out=256,
    optimizer="lars",
    rate=0.3,
    weight_decay=1e-6,
    warmup_epochs=10.0,
    crop_least=0.08,
)

# For a folder of photographs: smaller than the ImageNet preset in every respect.
_FOLDER = TrainConfig().override(
    data="./photos",
    backbone="resnet18",
    stem="standard",
    view_size=128,
    decode_size=160,
    epochs=100,
    batch_size=32,
    rate=0.24,
    warmup_epochs=1.0,
)


def _preset_of(entry: Entry) -> tuple[str, TrainConfig]:
    settings = dict(entry.preset)
    return settings.pop("about"), _SMALL_IMAGES.override(data=entry.name, **settings)


PRESETS: dict[str, tuple[str, TrainConfig]] = {
    **{name: _preset_of(entry) for name, entry in CATALOG.items() if entry.preset},
    "folder": ("ResNet-18, batch 32, 128 pixels: for a folder of images, ./photos", _FOLDER),
    "imagenet": ("ResNet-50, LARS, batch 512, 224 pixels: the paper's", _IMAGENET),
    "small-batch": (
        "cifar10 at batch 32 with the temperature controlled by ESS",
        _SMALL_IMAGES.override(batch_size=32, ess=0.3, temperature=0.2, scaling="sqrt"),
    ),
    "moco": (
        "cifar10 with a momentum encoder and a queue of 4,096 keys",
        _SMALL_IMAGES.override(queue=4096, momentum_encoder=0.99),
    ),
}
"""Description and config of each preset."""


def preset(name: str) -> TrainConfig:
    """Return a preset config.

    Arguments:
        name: A name of :data:`PRESETS`; or another data set or the path of a folder, which get
            the preset ``folder`` with that data.

    Examples:
        >>> preset("digits").model.backbone, preset("./photos").model.backbone
        ('small', 'resnet18')
    """
    if name in PRESETS:
        return PRESETS[name][1]
    if is_path(name) or name in CATALOG:
        return _FOLDER.override(data=name)
    raise ValueError(_unknown("preset", name, tuple(PRESETS)))
