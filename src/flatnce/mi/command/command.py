"""``flatnce mi``: how much two tables of numbers say about each other.

What reads files and estimates brings torch, and is imported once the options make sense.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from flatnce.environment import environment, plain
from flatnce.mi.command.options import MiOptions, check, help_text, with_page
from flatnce.mi.command.progress import counting, showing

AS_TYPED = {
    r"\bfolds=(\d+)": r"--cv \1",
    r"\bmethod='([\w-]+)'": r"--method \1",
    r"\bsteps=(?!\w)": "--steps",
}


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(help_text(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    options = tyro.cli(
        MiOptions,
        prog="flatnce mi",
        args=with_page(["--help" if one == "--help-all" else one for one in arguments]),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    check(options)
    if options.list_columns:
        return _list(options)
    if options.benchmark is not None:
        return _benchmark(options)
    if options.pairwise:
        return _pairwise(options)
    return _two_tables(options)


def _two_tables(options: MiOptions) -> int:
    """Read x and y and answer."""
    from flatnce import mi
    from flatnce.mi.reading import read_tables

    tables = read_tables(
        options.files,
        x=options.x,
        y=options.y,
        group=options.group,
        block=options.block,
        encode=options.encode,
        rows=options.rows,
        seed=options.seed,
        header=not options.no_header,
    )
    x, y = _named(tables.x, tables.x_names), _named(tables.y, tables.y_names)
    with showing() as progress:
        together = {"groups": tables.group, "blocks": tables.block}
        given = {**_settings(options), **together, "progress": progress}
        if options.curve:
            found: Any = mi.subsampling_curve(x, y, **given)
        elif options.compare is not None:
            del given["method"]
            found = mi.compare(x, y, _split(options.compare), **given)
        else:
            found = mi.estimate(x, y, **given)
    data = {"x": tables.x_names, "y": tables.y_names, "notes": tables.notes}
    if options.compare is not None or options.curve:
        return _show_table(found, options, data)
    return _show_estimate(found, options, data)


def _named(values: Any, names: Sequence[str]) -> Any:
    """The table with its names, so that what is said of a column calls it by its own."""
    pandas = sys.modules.get("pandas")  # without it nothing with names was read
    return values if pandas is None else pandas.DataFrame(values, columns=list(names), copy=False)


def _settings(options: MiOptions) -> dict[str, Any]:
    names = ("method", "critic", "transform", "seed", "device", "permutations")
    found = {name: getattr(options, name) for name in names}
    given = {name: getattr(options, name) for name in ("batch_size", "steps", "rate")}
    found |= {name: value for name, value in given.items() if value is not None}
    return {**found, "folds": options.cv}


def _show_estimate(found: Any, options: MiOptions, data: dict[str, Any]) -> int:
    where = environment([options.seed], found.settings.get("device"))
    page = None
    if options.report is not None:
        from flatnce.mi.page.page import mi_page

        page = mi_page(
            found,
            options.report,
            unit=options.unit,
            x_names=data["x"],
            y_names=data["y"],
            notes=data["notes"],
            environment=where,
        )
    if options.json:
        whole = {**found.plain(options.unit), "data": data, "environment": where}
        print(json.dumps(plain({**whole, "page": page}), allow_nan=False))
        return 0
    print(_as_typed(found.summary(options.unit)))
    _say_notes(data)
    if page is not None:
        print(f"\nthe page: {page}")
    return 0


def _as_typed(text: str) -> str:
    """Remedies as options of this command, where they are written as arguments in Python."""
    for pattern, option in AS_TYPED.items():
        text = re.sub(pattern, option, text)
    return text


def _show_table(found: Any, options: MiOptions, data: dict[str, Any]) -> int:
    """Of anything that has ``table(unit)`` and ``plain(unit)``."""
    if options.json:
        whole = {"result": found.plain(options.unit), "data": data}
        print(json.dumps(plain({**whole, "environment": environment([options.seed])})))
        return 0
    print(found.table(options.unit))
    _say_notes(data)
    return 0


def _say_notes(data: dict[str, Any]) -> None:
    if data.get("notes"):
        print("\nReading the data:")
        for note in data["notes"]:
            print(f"  {note}")


def _pairwise(options: MiOptions) -> int:
    from flatnce import mi
    from flatnce.mi.reading import read_table

    table = read_table(
        options.files[0],
        options.x,
        encode=options.encode,
        rows=options.rows,
        seed=options.seed,
        header=not options.no_header,
    )
    with showing() as progress:
        frame = _named(table.values, table.names)
        found = mi.pairwise(frame, columns=table.names, **_settings(options), progress=progress)
    return _show_table(found, options, {"columns": table.names, "notes": table.notes})


def _benchmark(options: MiOptions) -> int:
    from flatnce import mi

    given = _settings(options)
    methods, first = options.methods or given.pop("method"), given.pop("seed")
    given.pop("method", None)
    seeds = tuple(range(first, first + options.seeds))
    with counting() as progress:
        found = mi.benchmark(
            _split(methods),
            _split(str(options.benchmark)),
            options.n,
            seeds,
            progress=progress,
            **given,
        )
    if options.json:
        print(json.dumps(plain({**found.plain(), "environment": environment(seeds)})))
    else:
        print(found.table())
    return 0


def _split(typed: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in typed.split(",") if part.strip())


def _list(options: MiOptions) -> int:
    from flatnce.mi.reading import describe_columns

    columns = {
        file: describe_columns(file, header=not options.no_header) for file in options.files
    }
    if options.json:
        print(json.dumps(plain(columns)))
        return 0
    for file, found in columns.items():
        print(f"{Path(file).name}: {len(found)} columns")
        _print_columns(found)
    return 0


def _print_columns(found: Sequence[Any]) -> None:
    width = max(len(column.name) for column in found)
    for column in found:
        print(f"  {column.number:>4}  {column.name:<{width}}  {column.kind}")
