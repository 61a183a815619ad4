"""The runs of a folder in brief: settings, state, last numbers; filtered and sorted.

Of a run that is done only ``config.json`` and ``results.json`` are read; of another also the end
of ``metrics.jsonl``. torch is not imported, so that thousands of runs are listed in seconds.
"""

import itertools
import math
import os
import re
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from flatnce.files import is_locked, open_plain
from flatnce.messages import did_you_mean
from flatnce.pretrain.runs import log
from flatnce.pretrain.runs.folder import MOST_NAMED, lock_beside

__all__ = ["Summary", "chosen", "key_of", "known_values", "ordered", "over_seeds", "summary_of"]

BLOCK = 32_768  # bytes that are read at a time from the end of the metrics
KIND = re.compile(rb'"kind": "(\w+)"')
USUAL = {"train", "watch", "verdict"}  # kinds of lines
SIGNS = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}

Summary = dict[str, Any]


def summary_of(directory: Path, name: str) -> Summary:
    """One run in brief; the state of a run whose files cannot be read is ``damaged``.

    ``scores`` holds the result of each protocol on test samples (of another data set than the
    run's own as "linear on cifar10"): of a finished run that of its last step, of another run that
    of the latest step that was evaluated. ``last`` holds the last numbers of training and of the
    last watch, ``age`` the seconds since something was measured.
    """
    found = {"name": name, "directory": str(directory)}
    try:
        return {**found, **_read_summary(directory)}
    except (OSError, ValueError):
        return {**found, "kind": "", "state": "damaged", "scores": {}, "settings": {}, "last": {}}


def _read_summary(directory: Path) -> Summary:
    header = log.read_header(directory / log.CONFIG, "config")
    results = log.read_results(directory)
    kind, settings = header["kind"], log.flat_settings(header["config"])
    done = "step" in results or (kind != "train" and bool(results))
    lines = {} if done and "last" in results else last_lines(directory / log.METRICS)
    watched = {**lines.get("watch", {}), **results.get("watch", {})}
    trained = {**lines.get("train", {}), **results.get("last", {})}
    # A run that was stopped is saved after its last line.
    saved = [] if done else directory.glob(f"checkpoints/step-{9 * '[0-9]'}")
    newest = max((int(one.name[5:]) for one in saved), default=0)
    step, epoch = trained.get("step") or math.inf, trained.get("epoch") or 0.0
    scores, own, final = {}, str(settings.get("data") or ""), results.get("step")
    for one in sorted(results.get("evaluations", ()), key=lambda one: one.get("step") or 0):
        if None not in (final, at := one.get("step")) and at != final:
            continue  # of an earlier checkpoint of a finished run
        score = one.get("pool_mi") if one.get("top1") is None else one["top1"]
        tested = os.path.normpath(one.get("data") or own)  # photos/ is ./photos
        more = "" if tested == os.path.normpath(own) else f" on {one['data']}"
        scores[log.protocol_name(one) + more] = score
    last = directory / (log.RESULTS if done else log.METRICS)
    written = (last if last.exists() else directory).stat().st_mtime
    state = "done" if done else "failed" if log.FAILURE in lines else "stopped"
    # A sweep holds the lock of each of its runs while it trains them.
    if not done and any(map(is_locked, (lock_beside(directory), directory / log.TRAINING))):
        state = "running"
    verdict = results.get("verdict") or lines.get("verdict", {}).get("verdict") or ""
    return {
        "kind": kind,
        **{key: settings.get(key) for key in ("data", "objective", "batch_size", "seed")},
        "epoch": settings.get("epochs") if done else epoch * max(1.0, newest / step),
        "epochs": settings.get("epochs"),
        "state": state,
        "failure": lines.get(log.FAILURE, {}).get("message"),
        "knn": watched.get("knn"),
        "linear": scores.get("linear"),
        "verdict": str(verdict).partition(" since ")[0],
        "age": max(0.0, time.time() - written),
        "scores": scores,
        "settings": settings,
        "last": {k: v for k, v in {**watched, **trained}.items() if isinstance(v, int | float)},
    }


def last_lines(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each kind; read from the end, until the usual kinds are found."""
    found: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return found
    with open_plain(path) as file:
        place, after = file.seek(0, os.SEEK_END), b""
        while place and len(after) < log.LONGEST and not USUAL <= found.keys():
            size = min(place, BLOCK)
            place -= size
            file.seek(place)
            first, *lines = (file.read(size) + after).split(b"\n")
            after = first if place else b""
            for line in reversed(lines if place else [first, *lines]):
                kind = KIND.search(line)
                if kind and line.endswith(b"}") and kind[1].decode() not in found:
                    found[kind[1].decode()] = log.read_line(line)
    return found


def chosen(runs: Sequence[Summary], conditions: Sequence[str] = ()) -> list[Summary]:
    """The runs that meet all conditions: NAME=VALUE, with a pattern as value, NAME<VALUE, ..."""
    met = [True] * len(runs)
    for condition in conditions:
        parts = re.fullmatch(r"([^<>=!]+)(!=|<=|>=|=|<|>)([^<>=!].*|)", condition)
        if parts is None:
            raise ValueError(f"--where {condition} is not a condition, such as objective=flatnce")
        values = _column("--where", parts[1], runs)
        met = [
            _holds(value, parts[2], parts[3]) and so for value, so in zip(values, met, strict=True)
        ]
    return list(itertools.compress(runs, met))


def known_values(runs: Sequence[Summary], condition: str) -> str:
    """The values of what a condition names, for the message that no run meets it."""
    name = re.split("[<>=!]", condition)[0]
    values = [one for one in _column("--where", name, runs) if one is not None]
    texts = sorted({f"{one:g}" if type(one) is float else str(one) for one in values})
    if len(texts) < 2 or not all(type(one) in (int, float) for one in values):
        more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
        return f"{name} is {', '.join(texts[:MOST_NAMED]) or 'not known'}{more}"
    shares = {"knn", *(score for run in runs for score in run["scores"])}
    share = " (0.96 means 96 %)" if {name, key_of(name)} & shares and max(values) <= 1 else ""
    return f"{name} is between {min(values):g} and {max(values):g}{share}"


def ordered(runs: Sequence[Summary], by: str | None, reverse: bool = False) -> list[Summary]:
    """The runs by a number, the largest first, or by a text; by default the newest first.

    Runs without the number come last.
    """
    age = [-run.get("age", math.inf) for run in runs]
    values = _column("--sort", by, runs) if by else age
    known = [one for one in zip(values, runs, strict=True) if one[0] is not None]
    as_text = any(isinstance(value, str) for value, _ in known)
    known.sort(key=lambda one: str(one[0]) if as_text else one[0], reverse=as_text == reverse)
    without = [run for value, run in zip(values, runs, strict=True) if value is None]
    return [run for _, run in known] + without


def over_seeds(runs: Sequence[Summary]) -> list[Summary]:
    """Means over finished runs that differ only in their seed, and sample standard deviations."""
    groups: dict[str, list[Summary]] = {}
    for run in runs:
        if run["state"] == "done":
            rest = {key: value for key, value in run["settings"].items() if key != "seed"}
            groups.setdefault(repr(rest), []).append(run)
    found = []
    for members in (several for several in groups.values() if len(several) > 1):
        numbers = [{**one["last"], **one["scores"]} for one in members]
        shared = [key for key in numbers[0] if all(one.get(key) is not None for one in numbers)]
        values = {key: [one[key] for one in numbers] for key in shared}
        summary: Summary = {"runs": members[0]["name"].removesuffix(f"-s{members[0]['seed']}")}
        summary["seeds"] = [one["seed"] for one in members]
        summary["mean"] = {key: fmean(given) for key, given in values.items()}
        summary["sd"] = {key: stdev(given) for key, given in values.items()}
        found.append(summary)
    return found


def key_of(name: str) -> str:
    """The key of a summary that a heading of the table or a typed name stands for."""
    key = re.sub("[- ]", "_", name.strip().lower())
    return "batch_size" if key == "batch" else key


def _column(option: str, name: str, runs: Sequence[Summary]) -> list[Any]:
    """The value of a column, score, setting or last number of each run; None where it has none."""
    key = key_of(name)
    rows = [{**run["last"], **run["settings"], **run["scores"], **run} for run in runs]
    found = dict.fromkeys(one for row in rows for one in row)
    groups = {one for row in rows for one, value in row.items() if isinstance(value, dict | list)}
    known = found if option == "--where" else found.keys() - groups
    if rows and key not in known and name not in known:
        names = sorted(found.keys() - groups - {"directory"})
        every = "`flatnce runs --json` has all names"
        hint = did_you_mean(name, names, then=every, cutoff=0.3, most=4)
        raise ValueError(f"{option} {name}: no run has such a number or text; {hint}")
    return [row.get(key, row.get(name)) for row in rows]


def _holds(value: Any, sign: str, wanted: str) -> bool:
    try:
        return SIGNS[sign](float(value), float(wanted))
    except (TypeError, ValueError):  # not numbers
        return sign in "!=" and fnmatchcase(str(value), wanted) == (sign == "=")
