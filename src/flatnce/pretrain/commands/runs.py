"""``flatnce runs``: list the runs, show one of them, or delete some."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from flatnce.cli.console import column_lines, print_json, word_lines
from flatnce.cli.options import parse_options
from flatnce.files import subfolders_of
from flatnce.messages import duration_text, format_bytes, say
from flatnce.pretrain.commands import Switch, pairs_text
from flatnce.pretrain.runs import listing
from flatnce.pretrain.runs.folder import (
    delete,
    find_run,
    is_several,
    named_runs,
    restored,
    run_name,
    run_names,
    runs_folder,
    sweep_named,
)
from flatnce.pretrain.runs.listing import Summary
from flatnce.pretrain.runs.log import AGAIN, FAILURE, read_run, score_cells

Words = tuple[str, ...]
# Heading, key and format of the numbers in the table.
NUMBERS = {"kNN": ("knn", ".1%"), "linear": ("linear", ".1%"), "pool MI": ("pool_mi", ".2f")}
SORTS = ("knn", "linear", "pool_mi", "loss", "ess", "batch_size", "age")  # that a shell completes
# Left out first where a terminal is narrow.
DISPENSABLE = ("age", "pool MI", "epochs", "objective", "verdict", "batch", "data")


@dataclass(frozen=True)
class RunsOptions:
    """List the runs in runs/ or $FLATNCE_RUNS, the newest first; or show one, or delete some."""

    # A run to show; or sweeps and patterns such as 'flat*', whose runs are listed.
    names: Annotated[Words, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = ()
    # List only runs that meet all these conditions on settings and numbers: objective=flatnce
    # 'epochs>=10'.
    where: Annotated[Words, tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    # Sort by a number (knn, linear, loss, batch_size, ...), the largest first, or by a text.
    sort: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    reverse: Switch = False  # Sort in the opposite order.
    # Delete these runs or sweeps, after a confirmation.
    delete: Annotated[Words, tyro.conf.arg(metavar="NAME ...")] = ()
    yes: Switch = False  # Delete without asking.
    json: Switch = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(RunsOptions, "runs", arguments)
    if options.delete:
        return _delete(options)
    folder = runs_folder()
    if len(options.names) == 1 and not options.where and not is_several(options.names[0]):
        return _show(find_run(options.names[0]), options.json)
    if options.names:
        places = {run_name(place): place for place in named_runs(options.names)}
    else:
        places = {name: restored(folder / name) for name in run_names(folder)}
    every = [listing.summary_of(place, name) for name, place in places.items()]
    rows = listing.ordered(listing.chosen(every, options.where), options.sort, options.reverse)
    if options.json:
        print_json({"folder": folder, "runs": rows})
    elif not every:
        say(f"there is no run in {folder}/; start one: flatnce train digits --name first")
    elif not rows:
        there = "; ".join(listing.known_values(every, one) for one in options.where)
        say(f"no run in {folder}/ meets {' '.join(options.where)}; there, {there}")
    else:
        show_runs(rows, asked=[*options.where, *filter(None, [options.sort])])
    return 0


def show_runs(
    rows: Sequence[Summary], means: Sequence[Summary] = (), asked: Sequence[str] = ()
) -> None:
    """Print a table of runs and one of means, with the numbers that were asked for."""
    cells = [_cells(row) for row in rows]
    columns = {heading: [row[heading] for row in cells] for heading in cells[0]}
    # A column that is the same in every row goes first.
    same = [one for one in DISPENSABLE[:1:-1] if len(set(columns[one])) == 1]
    keys = {listing.key_of(one): one for one in (re.split("[<>=!]", one)[0] for one in asked)}
    known = [{**row["last"], **row["settings"], **row["scores"], **row} for row in rows]
    for key, name in keys.items():
        if key not in {"name", *map(listing.key_of, columns)}:
            values = [one.get(key, one.get(name)) for one in known]
            columns[name] = [_text(one, ".4g" if type(one) is float else "") for one in values]
    dispensable = [one for one in (*same, *DISPENSABLE) if listing.key_of(one) not in keys]
    print("\n".join(column_lines(columns, dispensable, names=["run", "data"])))
    if means:
        columns = {"runs": [one["runs"] for one in means]}
        columns["seeds"] = [str(len(one["seeds"])) for one in means]
        for heading, (key, form) in NUMBERS.items():
            spreads = [[one[part].get(key) for part in ("mean", "sd")] for one in means]
            columns[heading] = [
                " ± ".join(_text(one, form) for one in both if one is not None) for both in spreads
            ]
        say("\nmean over seeds ± standard deviation")
        print("\n".join(column_lines(columns, [*NUMBERS][::-1], names=["runs"])))


def _text(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _cells(row: Summary) -> dict[str, str]:
    epochs, known = row.get("epochs"), {**row["last"], **row["scores"]}
    return {
        "run": row["name"],
        "data": str(row.get("data") or row["kind"]),
        "objective": str(row.get("objective") or ""),
        "batch": str(row.get("batch_size") or ""),
        "epochs": f"{round(row['epoch'], 2):g}/{epochs}" if epochs else "",
        "state": row["state"],
        **{heading: _text(known.get(key), form) for heading, (key, form) in NUMBERS.items()},
        "verdict": row.get("verdict") or "",
        # In its largest unit.
        "age": " ".join(duration_text(row["age"]).split()[:2]) if "age" in row else "",
    }


def _show(directory: Path, as_json: bool) -> int:
    """Print one run."""
    name = run_name(directory)
    row, found = listing.summary_of(directory, name), read_run(directory)
    if row["state"] == "damaged":
        raise ValueError(f"{directory}: its config.json or results.json is damaged; run it again")
    size = _size_of(directory)
    exports = sorted(map(str, subfolders_of(directory / "exports")))
    results = found.results or {}
    if as_json:
        more = {"bytes": size, "exports": exports, "environment": found.environment}
        print_json({**row, **more, "results": results})
        return 0
    # The settings of built-in views do not apply to a user's own.
    unused = found.config.get("views", ()) if results.get("own_views") else ()
    scores = results.get("evaluations", ())
    several = len({one.get("step") for one in scores}) > 1
    lines = [
        ("run", f"{name} ({directory}, {format_bytes(size)})"),
        ("state", "{state}, {epochs} epochs, {age} ago".format(**_cells(row))),
        ("failure", row["failure"]),
        ("verdict", results.get("verdict") or row["verdict"]),
    ]
    for score in scores:
        cells = score_cells(score)
        interval = f" ({cells.interval})" if cells.interval else ""
        at = f", step {score['step']:,}" if several and "step" in score else ""
        lines.append((cells.name, f"{cells.score}{interval} on {cells.data}{at}"))
    settings = {k: v for k, v in row["settings"].items() if k not in unused}
    lines += [
        ("last", pairs_text(row["last"])),
        ("settings", pairs_text(settings)),
        ("command", shlex.join(found.environment.get("command", ()))),
        ("device", found.environment.get("device")),
        ("exports", ", ".join(exports)),
    ]
    print("\n".join(word_lines([line for line in lines if line[1]])))
    diverged = row["state"] == "failed" and found.last(FAILURE).get("diverged")
    if diverged:
        say(AGAIN)
    then = "resume" if row["state"] in ("stopped", "failed") and not diverged else "report"
    if found.kind == "train":
        say("next: flatnce {0} {1}    flatnce doctor {1}".format(then, shlex.quote(name)))
    return 0


def _size_of(directory: Path) -> int:
    """Bytes of a folder's files; links are not followed, and a file may be removed meanwhile."""
    found = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                found += os.lstat(os.path.join(place, name)).st_size
    return found


def _delete(options: RunsOptions) -> int:
    """Delete runs and sweeps, after a question on a terminal or with --yes."""
    if options.names or options.where:
        raise ValueError("--delete takes the names of the runs; leave out other names and --where")
    places: list[Path] = []
    for name in options.delete:
        sweep = sweep_named(name)
        places += named_runs([name]) if sweep is None else [sweep]
    size = format_bytes(sum(map(_size_of, places)))
    what = f"{', '.join(map(str, places))} ({size})"
    if not options.yes:
        if not sys.stdin.isatty():
            raise ValueError(f"--delete {' '.join(options.delete)} must be confirmed; add --yes")
        print(f"delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
        if input().strip().lower() not in ("y", "yes"):
            print("nothing was deleted", file=sys.stderr)
            return 1
    delete(*places)
    if options.json:
        print_json({"deleted": places})
    else:
        say(f"deleted {what}")
    return 0
