"""The config of a training run: its sections, whose settings have unique names, and presets."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.messages import check_at_least, check_choice, check_positive, did_you_mean
from flatnce.pretrain.data import CATALOG, is_path
from flatnce.pretrain.training.optim import OPTIMIZERS, SCALING_RULES

__all__ = ["PRESETS", "TrainConfig", "preset"]


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
    """The augmentations.

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
        check_at_least("queue", self.queue, 0, " (no queue)")
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
        check_choice("objective", self.objective, OBJECTIVES)
        for name in ("temperature", "temperature_end"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        rules = ("temperature_end", "learn_temperature", "ess")
        chosen = [name for name in rules if getattr(self, name) not in (None, False)]
        if chosen and OBJECTIVES[self.objective].learns_scale:
            raise ValueError(
                f"{chosen[0]}={getattr(self, chosen[0])}: {self.objective} learns a scale of its "
                f"own, which starts at one over temperature; leave {chosen[0]} out"
            )
        if len(chosen) > 1:
            both = " and ".join(chosen)
            raise ValueError(f"{both} both change the temperature; give one of them")
        for name in ("ess", "ess_end"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name}={value}: an effective sample size lies in (0, 1]")
        if self.ess_end is not None and self.ess is None:
            raise ValueError(f"ess_end={self.ess_end} ends a schedule that ess begins; give ess")


# The help of the options comes from the docstring, and the objectives from their registry.
_HELP = [f"One of {', '.join(OBJECTIVES)}.", *(f"{one.name}: {one.help}" for one in _SETTINGS)]
LossConfig.__doc__ = str(LossConfig.__doc__).replace(
    "One of OBJECTIVES.", "\n        ".join(_HELP)
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
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("scaling", self.scaling, SCALING_RULES)
        check_positive("rate", self.rate)
        check_at_least("warmup_epochs", self.warmup_epochs, 0)


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
        check_at_least("epochs", self.epochs, 1)
        check_at_least("seed", self.seed, 0)
        if self.batch_size < 2:
            raise ValueError(f"batch_size={self.batch_size} leaves no negatives; use at least 2")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.batch_size:
            raise ValueError(
                f"micro_batch={self.micro_batch} must lie between 1 and batch_size="
                f"{self.batch_size}"
            )
        check_choice("precision", self.precision, ("auto", "float32", "bfloat16"))


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
        for name, least in (("log_every", 1), ("knn_neighbours", 1), ("pool", 2), ("keep", 1)):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), least)
        check_at_least("watch_every", self.watch_every, 0, " (never)")
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
        """The config of what :meth:`plain` gives; missing settings have their defaults."""
        return cls().override(**{k: v for part in sections.values() for k, v in part.items()})


_SECTION_OF: dict[str, str] = {
    leaf.name: section.name
    for section in fields(TrainConfig)
    for leaf in fields(section.default_factory)  # type: ignore[arg-type,misc]  # a dataclass
}


def _read_presets() -> dict[str, tuple[str, TrainConfig]]:
    tables = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
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
            the preset ``folder`` with that data.
    """
    if name not in PRESETS and (is_path(name) or name in CATALOG):
        return PRESETS["folder"][1].override(data=name)
    check_choice("preset", name, PRESETS)
    return PRESETS[name][1]
