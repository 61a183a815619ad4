"""Which columns of which file are x, y and the group."""

from collections.abc import Sequence
from dataclasses import dataclass

from flatnce.mi.reading.columns import listed, select
from flatnce.mi.reading.source import Source

NUMERIC = ("number", "boolean", "durations")


@dataclass(frozen=True)
class Choice:
    """Columns by file and place.

    Arguments:
        x: Number of the file, and the columns in order.
        y: The same for y.
        group: Number of the file and the column; None if there is none.
        read: Of each file, the columns to be read, ascending.
        notes: What was chosen without being asked for, in sentences.
    """

    x: tuple[int, tuple[int, ...]]
    y: tuple[int, tuple[int, ...]]
    group: tuple[int, int] | None
    read: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def choose(
    sources: Sequence[Source], x: str | None, y: str | None, group: str | None = None
) -> Choice:
    """The columns that are asked for, and what is meant where nothing is said."""
    notes: list[str] = []
    grouped = None if group is None else _group(sources, group)
    if len(sources) == 2:
        pair = []
        for which, (option, typed) in enumerate((("--x", x), ("--y", y))):
            out = {grouped[1]} if grouped and grouped[0] == which else set()
            pair.append(_of_own_file(sources[which], typed, option, out, notes))
        found = (0, tuple(pair[0])), (1, tuple(pair[1]))
    else:
        out = {grouped[1]} if grouped else set()
        one, other = _of_one_file(sources[0], x, y, out, notes)
        found = (0, tuple(one)), (0, tuple(other))
    _check_apart(sources, found, grouped)
    wanted: list[set[int]] = [set() for _ in sources]
    for which, columns in found:
        wanted[which] |= set(columns)
    if grouped is not None:
        wanted[grouped[0]].add(grouped[1])
    read = tuple(tuple(sorted(columns)) for columns in wanted)
    return Choice(*found, grouped, read, tuple(notes))


def choose_all(source: Source, typed: str | None) -> Choice:
    """Columns of one table, as x: those that are asked for, or all that hold numbers."""
    notes: list[str] = []
    if typed is None:
        columns = _all_numeric(source, set(), "The table", notes)
    else:
        columns = _selected(source, typed, "--x")
    return Choice((0, tuple(columns)), (0, ()), None, (tuple(sorted(columns)),), tuple(notes))


def _selected(source: Source, typed: str, option: str) -> list[int]:
    return select(typed, source.names, option, str(source.path), source.arrays)


def _of_own_file(
    source: Source, typed: str | None, option: str, out: set[int], notes: list[str]
) -> list[int]:
    """Columns of a file that holds only x or only y: by default all that hold numbers."""
    if typed is not None:
        return _selected(source, typed, option)
    name = option.removeprefix("--")
    keys = {key.casefold(): key for key in source.arrays}
    if len(source.arrays) > 1:
        if name not in keys:
            raise ValueError(
                f"{source.path} holds several arrays ({listed(list(source.arrays))}); choose by "
                f"name: {option} {next(iter(source.arrays))}"
            )
        notes.append(f"{name} is the array {keys[name]!r} of {source.path.name}.")
        return list(source.arrays[keys[name]])
    return _all_numeric(source, out, name, notes)


def _of_one_file(
    source: Source, x: str | None, y: str | None, out: set[int], notes: list[str]
) -> tuple[list[int], list[int]]:
    """Columns of a file that holds both."""
    keys = {key.casefold(): key for key in source.arrays}
    if x is None and y is None and {"x", "y"} <= set(keys):
        notes.append(f"x and y are the arrays of these names in {source.path.name}.")
        return list(source.arrays[keys["x"]]), list(source.arrays[keys["y"]])
    if x is None and y is None:
        raise ValueError(_nothing_said(source))
    if x is not None and y is not None:
        return _selected(source, x, "--x"), _selected(source, y, "--y")
    typed, given, other = (x, "--x", "y") if x is not None else (y, "--y", "x")
    chosen = _selected(source, str(typed), given)
    rest = _all_numeric(source, out | set(chosen), other, notes, "all other columns")
    return (chosen, rest) if x is not None else (rest, chosen)


def _all_numeric(
    source: Source, out: set[int], name: str, notes: list[str], what: str = "all columns"
) -> list[int]:
    kinds = source.kinds()
    rest = [i for i in range(len(source.names)) if i not in out]
    # What has no name, counts 0, 1, 2 ... where a table was written with its index.
    numeric = [i for i in rest if kinds[i] in NUMERIC and source.names[i] != "Unnamed: 0"]
    if not numeric:
        raise ValueError(
            f"{source.path} has no columns with numbers for {name}; it has "
            f"{listed(source.names)}; choose columns, with --encode if they are words or dates"
        )
    left = [f"{source.names[i]!r} ({_said(kinds[i])})" for i in rest if i not in numeric]
    names = [source.names[i] for i in numeric]
    note = f"{name} is {what} that hold numbers: {listed(names)}."
    notes.append(note + (f" Left out: {', '.join(left)}." if left else ""))
    return numeric


def _said(kind: str) -> str:
    return {
        "mixed": "numbers and words",
        "units": "numbers with units",
        "thousands": "numbers with signs between thousands",
        "number": "no name",
    }.get(kind, kind)


def _nothing_said(source: Source) -> str:
    kinds = source.kinds()
    numeric = [n for n, kind in zip(source.names, kinds, strict=True) if kind in NUMERIC]
    first, second = (*numeric, *source.names, "A", "B")[:2]
    if len(source.names) == 1:
        return f"{source.path} has one column; name a second file for y, or one with more columns"
    return (
        f"say which columns of {source.path} are x and which are y: --x {_quoted(first)} "
        f"--y {_quoted(second)}; it has {listed(source.names)}"
    )


def _quoted(name: str) -> str:
    return name if name.isidentifier() or name.isdecimal() else f"'{name}'"


def _group(sources: Sequence[Source], typed: str) -> tuple[int, int]:
    holding = (which for which, source in enumerate(sources) if typed in source.names)
    which = next(holding, 0)
    source = sources[which]
    columns = _selected(source, typed, "--group")
    if len(columns) > 1:
        names = listed([source.names[i] for i in columns])
        raise ValueError(f"--group {typed} names {len(columns)} columns ({names}); name one")
    return which, columns[0]


def _check_apart(
    sources: Sequence[Source],
    found: tuple[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]],
    grouped: tuple[int, int] | None,
) -> None:
    (first, left), (second, right) = found
    both = sorted(set(left) & set(right)) if first == second else []
    if both:
        names = listed([sources[first].names[i] for i in both])
        raise ValueError(
            f"--x and --y both hold {names}; a column tells everything about itself, so let each "
            "be in one of them"
        )
    for (which, columns), option in zip(found, ("--x", "--y"), strict=True):
        if grouped is not None and grouped[0] == which and grouped[1] in columns:
            name = sources[which].names[grouped[1]]
            raise ValueError(f"--group {name!r} is also in {option}; leave it out of that")
