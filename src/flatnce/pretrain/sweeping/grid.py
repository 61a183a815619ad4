"""The grid of ``flatnce sweep``: every combination of the values given to its options."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.pretrain.sweeping.sweep import varied
from flatnce.pretrain.training.config import TrainConfig

__all__ = ["extended", "grid_configs", "split_options"]

MOST_RUNS = 1_000  # a larger grid is more likely a mistake than a study
# Abbreviations of settings in the names of runs; others use the name of the option.
SHORT = {"objective": "", "batch_size": "b", "temperature": "t", "seed": "s"}


def split_options(
    arguments: list[str], settings: Mapping[str, Any]
) -> tuple[list[str], dict[str, list[str]]]:
    """Split a command line into other options and the training options with their values."""
    rest: list[str] = []
    spans: dict[str, list[str]] = {}
    place = 0
    while place < len(arguments):
        flag, equals, value = arguments[place].partition("=")
        place += 1
        values = [value] if equals else []
        while not equals and place < len(arguments) and not arguments[place].startswith("--"):
            values.append(arguments[place])
            place += 1
        leaf = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or leaf not in settings or not values:
            rest += [flag + equals + value] if equals else [flag, *values]
            continue
        if isinstance(settings[leaf], bool):
            raise ValueError(
                f"{flag} {' '.join(values)}: {flag} is a switch and takes no values; make two "
                f"sweeps, one with {flag} and one with --no-{flag.removeprefix('--')}"
            )
        spans.setdefault(leaf, []).extend(values)
    return rest, spans


def grid_configs(
    rest: list[str],
    spans: Mapping[str, list[str]],
    parse: Callable[[list[str]], TrainConfig],
) -> dict[str, TrainConfig]:
    """The runs of a grid by name; the last option changes fastest."""
    count = math.prod(len(values) for values in spans.values())
    if count > MOST_RUNS:
        sizes = " x ".join(f"{len(values)} {leaf}" for leaf, values in spans.items())
        raise ValueError(f"{sizes} = {count:,} runs, more than {MOST_RUNS:,}; give fewer values")

    def parsed(values: Mapping[str, str]) -> TrainConfig:
        line = (part for leaf, value in values.items() for part in (_flag(leaf), value))
        return parse([*rest, *line])

    firsts = {leaf: values[0] for leaf, values in spans.items()}
    base = parsed(firsts)
    if count == 1:
        raise ValueError(
            "a grid of one run; give an option several values, for example --seed 0 1 2, or use "
            "`flatnce train`"
        )
    # Each value is parsed once, not once per run.
    typed = {
        leaf: [parsed({**firsts, leaf: value}).flat()[leaf] for value in values]
        for leaf, values in spans.items()
        if len(values) > 1
    }
    found: dict[str, TrainConfig] = {}
    for config in _combined(base, typed):
        name = name_of(config, list(typed))
        if name in found:
            raise ValueError(f"two runs would be called {name}; give values that differ")
        found[name] = config
    _refuse_unused(found, spans)
    return found


def extended(
    configs: Mapping[str, TrainConfig],
    spans: Mapping[str, list[str]],
    parse: Callable[[list[str]], TrainConfig],
) -> dict[str, TrainConfig]:
    """The runs of a sweep and each of them with the values given; old names stay."""
    typed = {
        leaf: [parse([_flag(leaf), value]).flat()[leaf] for value in values]
        for leaf, values in spans.items()
    }
    axes = list(dict.fromkeys([*varied(configs), *typed]))
    found = dict(configs)
    for old in configs.values():
        for config in _combined(old, typed):
            name = name_of(config, axes)
            if config in found.values():
                continue
            if name in found:
                raise ValueError(f"two runs would be called {name}; start another sweep")
            found[name] = config
    if len(found) > MOST_RUNS:
        raise ValueError(f"{len(found):,} runs, more than {MOST_RUNS:,}; give fewer values")
    _refuse_unused(found, typed.keys() - set(varied(configs)))
    return found


def _combined(base: TrainConfig, typed: Mapping[str, list[Any]]) -> Iterator[TrainConfig]:
    """The config with every combination of the values."""
    for combination in itertools.product(*typed.values()):
        changes = dict(zip(typed, combination, strict=True))
        try:
            yield base.override(**changes)
        except ValueError as error:
            said = " ".join(f"{_flag(leaf)} {value}" for leaf, value in changes.items())
            raise ValueError(f"{said}: {error}") from error


def _refuse_unused(configs: Mapping[str, TrainConfig], axes: Iterable[str]) -> None:
    """Refuse settings that no run uses: the runs would differ only in their names."""
    used = {config.loss.objective for config in configs.values()}
    needs: dict[str, str] = {}
    for name, entry in OBJECTIVES.items():
        if name not in used:
            needs |= {setting.name: f"--objective {name}" for setting in entry.settings}
    if all(config.loss.ess is None for config in configs.values()):
        needs["ess_rate"] = "--ess"
    for leaf in axes:
        if leaf in needs:
            raise ValueError(
                f"{_flag(leaf)} has no effect here, it is for {needs[leaf]}; give that too, or "
                f"leave {_flag(leaf)} out"
            )


def name_of(config: TrainConfig, varied: list[str]) -> str:
    """The name of a run, such as ``flatnce-b32-t0.1-rate0.06-s0``."""
    values = config.flat()
    others = [leaf for leaf in varied if leaf not in ("objective", "batch_size", "seed")]
    parts = []
    for leaf in ("objective", "batch_size", *others, "seed"):
        plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", str(values[leaf])).strip("-.") or "none"
        word = SHORT.get(leaf, leaf.replace("_", "-"))
        parts.append(word + ("-" if leaf not in SHORT and plain[0].isalpha() else "") + plain)
    return "-".join(parts)


def _flag(leaf: str) -> str:
    return "--" + leaf.replace("_", "-")
