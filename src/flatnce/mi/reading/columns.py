"""Which columns an expression names: names, globs, ranges by name and by number."""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

# More names than this in a message hide what it says.
MOST_NAMED = 12


def select(
    expression: str,
    names: Sequence[str],
    option: str,
    where: str,
    arrays: Mapping[str, Sequence[int]] | None = None,
) -> list[int]:
    """Positions of the columns an expression names, in its order, each once.

    Parts are separated by commas. A part is a name as it stands in the file (which may hold
    spaces and commas, and wins over all that follows), a glob (``emb_*``), a range of names with
    both ends (``a:d``, in the file's order), a number from 0 on, or a range of numbers without its
    end (``0:5``, ``-3:``), as in Python.

    Arguments:
        expression: As typed.
        names: Of all columns, in the file's order.
        option: Which option it was given to, for messages.
        where: The file, for messages.
        arrays: Names of several columns together, as the arrays of an ``.npz`` file.

    Examples:
        >>> names = ["age", "height, cm", "emb_0", "emb_1", "mass"]
        >>> select("height, cm,emb_*", names, "--x", "people.csv")
        [1, 2, 3]
        >>> select("emb_0:mass", names, "--x", "p.csv"), select("-2:", names, "--x", "p.csv")
        ([2, 3, 4], [3, 4])
    """
    whole = arrays or {}
    found: list[int] = []
    for part in _parts(expression, [*names, *whole]):
        found += _positions(part, names, whole, option, where)
    if not found:
        raise ValueError(f"{option} {expression!r} names no column of {where}; {_having(names)}")
    return list(dict.fromkeys(found))


def listed(names: Sequence[str]) -> str:
    """Names in quotes; of many the first ones.

    Arguments:
        names: Any number.

    Examples:
        >>> listed(["age", "mass"])
        "'age', 'mass'"
    """
    shown = ", ".join(repr(str(name)) for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _parts(expression: str, names: Sequence[str]) -> list[str]:
    """The expression at its commas, except those inside a name that is there."""
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
        places = " and ".join(str(place) for place in exact)
        raise ValueError(
            f"{option} {part!r}: {where} has several columns of that name; choose by number, "
            f"{option} {exact[0]} (they are columns {places}, counted from 0), or rename them"
        )
    if exact:
        return exact
    if part in arrays:
        return list(arrays[part])
    for way in (_by_name_range, _by_number, _by_glob):
        found = way(part, names)
        if found is not None:
            break
    if found:
        return found
    raise ValueError(f"{option} {part!r}: {_missing(part, [*names, *arrays], where)}")


def _by_name_range(part: str, names: Sequence[str]) -> list[int] | None:
    for colon in (match.start() for match in re.finditer(":", part)):
        first, last = part[:colon].strip(), part[colon + 1 :].strip()
        if first in names and last in names:
            start, end = names.index(first), names.index(last)
            # Where columns are called by their numbers, Python's meaning holds.
            if first == str(start) and last == str(end):
                return None
            step = 1 if end >= start else -1
            return list(range(start, end + step, step))
    return None


def _by_number(part: str, names: Sequence[str]) -> list[int] | None:
    if re.fullmatch(r"-?\d+", part):
        place = int(part)
        within = -len(names) <= place < len(names)
        return [place % len(names)] if within else []
    ends = re.fullmatch(r"(-?\d*):(-?\d*)", part)
    if ends is None:
        return None
    start, end = (int(one) if one else None for one in ends.groups())
    return list(range(len(names)))[start:end]


def _by_glob(part: str, names: Sequence[str]) -> list[int] | None:
    if not re.search(r"[*?\[]", part):
        return None
    return [place for place, name in enumerate(names) if fnmatchcase(name, part)]


def _missing(part: str, names: Sequence[str], where: str) -> str:
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.casefold(), name)
    close = difflib.get_close_matches(part.casefold(), folded, n=3, cutoff=0.5)
    hint = f"the nearest: {listed([folded[one] for one in close])}" if close else _having(names)
    return f"{where} has no such column; {hint}"


def _having(names: Sequence[str]) -> str:
    return f"it has {len(names)} ({listed(names)})"
