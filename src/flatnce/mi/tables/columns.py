"""Which columns of a file are meant: names, globs, ranges, and defaults where nothing is said."""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from flatnce.mi.tables.cells import NUMERIC
from flatnce.mi.tables.files import TableFile

# More names than this make a message hard to read.
MOST_NAMED = 12


def select(
    expression: str,
    names: Sequence[str],
    option: str,
    where: str,
    arrays: Mapping[str, Sequence[int]] | None = None,
) -> list[int]:
    """Return the positions of the columns an expression names, in its order, each once.

    Parts are separated by commas. A part is a name as it stands in the file (which may contain
    spaces and commas, and takes precedence), a glob (``emb_*``), a range of names that includes
    both ends (``a:d``, in the file's order), a number from 0 on, or a range of numbers without
    its end (``0:5``, ``-3:``), as in Python.

    Arguments:
        expression: What the user typed.
        names: The names of all columns, in the file's order.
        option: The option it was given to, for messages.
        where: The file, for messages.
        arrays: Names of several columns together, such as the arrays of an ``.npz`` file.

    Examples:
        >>> names = ["age", "height, cm", "emb_0", "emb_1", "mass"]
        >>> select("height, cm,emb_*", names, "--x", "people.csv")
        [1, 2, 3]
        >>> select("emb_0:mass", names, "--x", "p.csv"), select("-2:", names, "--x", "p.csv")
        ([2, 3, 4], [3, 4])
    """
    arrays = arrays or {}
    found: list[int] = []
    for part in _parts(expression, [*names, *arrays]):
        positions = _positions(part, names, arrays, option, where)
        if not positions:
            hint = _nearest(part, [*names, *arrays])
            raise ValueError(f"{option} {part!r}: {where} has no such column; {hint}")
        found += positions
    if not found:
        hint = _nearest("", names)
        raise ValueError(f"{option} {expression!r} names no column of {where}; {hint}")
    return list(dict.fromkeys(found))


def _parts(expression: str, names: Sequence[str]) -> list[str]:
    """Split the expression at its commas, except inside a name that exists."""
    pieces, known = expression.split(","), set(names)
    parts, start = [], 0
    while start < len(pieces):
        for end in range(len(pieces), start, -1):
            joined = ",".join(pieces[start:end])
            exact = joined if joined in known else joined.strip()
            if exact in known or _by_name_range(exact, names) or end == start + 1:
                parts.append(exact)
                start = end
                break
    return [part for part in parts if part]


def _positions(
    part: str, names: Sequence[str], arrays: Mapping[str, Sequence[int]], option: str, where: str
) -> list[int]:
    exact = [place for place, name in enumerate(names) if name == part]
    if len(exact) > 1:
        places = " and ".join(map(str, exact))
        raise ValueError(
            f"{option} {part!r}: {where} has several columns of that name; choose by number, "
            f"{option} {exact[0]} (they are columns {places}, counted from 0), or rename them"
        )
    if exact or part in arrays:
        return exact or list(arrays[part])
    return _by_name_range(part, names) or _by_number(part, names) or _by_glob(part, names)


def _by_name_range(part: str, names: Sequence[str]) -> list[int]:
    for colon in (match.start() for match in re.finditer(":", part)):
        first, last = part[:colon].strip(), part[colon + 1 :].strip()
        if first in names and last in names:
            start, end = names.index(first), names.index(last)
            if first == str(start) and last == str(end):
                return []  # columns named by their numbers are counted as in Python
            step = 1 if end >= start else -1
            return list(range(start, end + step, step))
    return []


def _by_number(part: str, names: Sequence[str]) -> list[int]:
    every = list(range(len(names)))
    if re.fullmatch(r"-?\d+", part):
        return every[int(part) :][:1] if -len(names) <= int(part) else []
    ends = re.fullmatch(r"(-?\d*):(-?\d*)", part)
    if ends is None:
        return []
    start, end = (int(one) if one else None for one in ends.groups())
    return every[start:end]


def _by_glob(part: str, names: Sequence[str]) -> list[int]:
    if not re.search(r"[*?\[]", part):
        return []
    return [place for place, name in enumerate(names) if fnmatchcase(name, part)]


def _nearest(part: str, names: Sequence[str]) -> str:
    folded = {name.casefold(): name for name in reversed(names)}
    close = difflib.get_close_matches(part.casefold(), folded, n=3, cutoff=0.5)
    if close:
        return f"the nearest: {listed([folded[one] for one in close])}"
    return f"it has {len(names)} ({listed(names)})"


def listed(names: Sequence[str]) -> str:
    """Return names in quotes; only the first ones if there are many.

    Examples:
        >>> listed(["age", "mass"])
        "'age', 'mass'"
    """
    shown = ", ".join(repr(str(name)) for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def choose_pair(
    files: Sequence[TableFile], x: str | None, y: str | None, group: str | None, notes: list[str]
) -> tuple[list[int], list[int], tuple[TableFile, int] | None]:
    """Return the columns of x (in the first file), of y (in the last file) and of the group."""
    first, last = files[0], files[-1]
    one_file = first is last
    grouped = None if group is None else _group(files, group)
    if one_file and x is None and y is None:
        x, y = _arrays_x_and_y(first, notes)
    left = [] if x is None else _select(first, x, "--x")
    right = [] if y is None else _select(last, y, "--y")
    left = left or _default(first, "x", right if one_file else None, grouped, notes)
    right = right or _default(last, "y", left if one_file else None, grouped, notes)
    shared = sorted(set(left) & set(right)) if one_file else []
    if shared:
        names = listed([first.names[i] for i in shared])
        raise ValueError(f"--x and --y both hold {names}; leave each column out of one of them")
    for file, columns, option in ((first, left, "--x"), (last, right, "--y")):
        if grouped is not None and grouped[0] is file and grouped[1] in columns:
            name = file.names[grouped[1]]
            raise ValueError(f"--group {name!r} is also in {option}; leave it out of {option}")
    return left, right, grouped


def choose_columns(file: TableFile, columns: str | None, notes: list[str]) -> list[int]:
    """Return the columns of one table: those that are named, or all that hold numbers."""
    if columns is None:
        return _all_numeric(file, [], "The table", "all columns", notes)
    return _select(file, columns, "--x")


def _select(file: TableFile, expression: str, option: str) -> list[int]:
    return select(expression, file.names, option, str(file.path), file.arrays)


def _group(files: Sequence[TableFile], name: str) -> tuple[TableFile, int]:
    file = next((file for file in files if name in file.names), files[0])
    columns = _select(file, name, "--group")
    if len(columns) > 1:
        names = listed([file.names[i] for i in columns])
        raise ValueError(f"--group {name} names {len(columns)} columns ({names}); name one")
    return file, columns[0]


def _default(
    file: TableFile,
    side: str,
    others: list[int] | None,
    grouped: tuple[TableFile, int] | None,
    notes: list[str],
) -> list[int]:
    """Return the columns of x or y if none are named; in a joint file ``others`` are taken."""
    taken = [grouped[1]] if grouped is not None and grouped[0] is file else []
    if others is not None:
        return _all_numeric(file, [*taken, *others], side, "all other columns", notes)
    if len(file.arrays) < 2:
        return _all_numeric(file, taken, side, "all columns", notes)
    name = next((name for name in file.arrays if name.casefold() == side), None)
    if name is None:
        raise ValueError(
            f"{file.path} holds several arrays ({listed(list(file.arrays))}); choose by "
            f"name: --{side} {next(iter(file.arrays))}"
        )
    notes.append(f"{side} is the array {name!r} of {file.path.name}.")
    return list(file.arrays[name])


def _all_numeric(
    file: TableFile, taken: Sequence[int], name: str, what: str, notes: list[str]
) -> list[int]:
    rest = [i for i in range(len(file.names)) if i not in taken]
    # A first column without a name is the index of a table that pandas wrote.
    numeric = [i for i in rest if file.kinds[i] in NUMERIC and file.names[i] != "Unnamed: 0"]
    if not numeric:
        raise ValueError(
            f"{file.path} has no columns with numbers for {name}; it has "
            f"{listed(file.names)}; choose columns, with --encode if they are words or dates"
        )
    note = f"{name} is {what} that hold numbers: {listed([file.names[i] for i in numeric])}."
    kinds = ["no name" if kind in NUMERIC else kind for kind in file.kinds]
    left = [f"{file.names[i]!r} ({kinds[i]})" for i in rest if i not in numeric]
    notes.append(note + (f" Left out: {', '.join(left)}." if left else ""))
    return numeric


def _arrays_x_and_y(file: TableFile, notes: list[str]) -> tuple[str, str]:
    """Return the names of the arrays x and y, or say that columns must be named."""
    arrays = {key.casefold(): key for key in file.arrays}
    if {"x", "y"} <= set(arrays):
        notes.append(f"x and y are the arrays of these names in {file.path.name}.")
        return arrays["x"], arrays["y"]
    if len(file.names) == 1:
        raise ValueError(
            f"{file.path} has one column; name a second file for y, or one with more columns"
        )
    numeric = [name for name, kind in zip(file.names, file.kinds, strict=True) if kind in NUMERIC]
    first, second = [*dict.fromkeys([*numeric, *file.names]), "B"][:2]
    example = f"--x {shlex.quote(first)} --y {shlex.quote(second)}"
    raise ValueError(
        f"say which columns of {file.path} are x and which are y: {example}; "
        f"it has {listed(file.names)}"
    )
