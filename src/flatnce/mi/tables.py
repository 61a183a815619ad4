"""Tables of numbers from files: CSV, TSV, parquet, npy and npz."""

import codecs
import csv
import gzip
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.environment import available_memory
from flatnce.extras import require_extra
from flatnce.files import open_plain
from flatnce.messages import check_at_least, check_choice, counted, did_you_mean, format_bytes
from flatnce.mi import encoding
from flatnce.mi.encoding import ENCODED, KINDS, MISSING, NUMERIC, encode_each, kind_of, unfit
from flatnce.toml_files import read_toml

require_extra("pandas", "reading a table", "mi")

import pandas as pd  # noqa: E402

__all__ = ["FORMATS", "Tables", "describe_columns", "read_tables", "select"]

MESSAGES: Mapping[str, str] = read_toml(__file__, "messages.toml")["tables"]
TEXT = (".csv", ".tsv", ".txt")
FORMATS = (*TEXT, *(f"{suffix}.gz" for suffix in TEXT), ".parquet", ".npy", ".npz")
"""Suffixes of the files that can be read."""

HEAD_BYTES, HEAD_ROWS, HEAD_LINES = 1 << 20, 1_000, 50
CHUNK_CELLS, MOST_CHARACTERS = 2_000_000, 1 << 30
MOST_NAMED = 12  # in a message
UNNAMED_INDEX = ("Unnamed: 0", "__index_level_0__")  # of a table that pandas wrote
WHITESPACE = r"\s+"
NUMBER = re.compile(r"[-+.,]*\d")  # the beginning of one


@dataclass(frozen=True)
class Tables:
    """Two tables of numbers."""

    #: each column of x and of y by its name: float64, NaN where missing; a category has one column
    #: per value, a circular one a cosine and a sine
    parts: tuple[Mapping[str, pd.DataFrame], Mapping[str, pd.DataFrame]]
    kinds: str  #: what the columns hold, in a sentence
    notes: tuple[str, ...]  #: what was done to read them, in sentences
    group: NDArray[np.int64] | None = None  #: rows with the same number belong together

    @cached_property
    def x(self) -> pd.DataFrame:
        """All columns of x side by side."""
        return encoding.side_by_side(self.parts[0])

    @cached_property
    def y(self) -> pd.DataFrame:
        """The partners of x, row by row."""
        return encoding.side_by_side(self.parts[1])


@dataclass(eq=False)
class _File:
    path: Path
    names: list[str]
    row_count: int  # an estimate for text
    # Yields columns, labelled by their numbers, in pieces of so many rows.
    chunks: Callable[[list[int], int], Iterator[pd.DataFrame]]
    arrays: Mapping[str, list[int]] = field(default_factory=dict)  # columns of each array
    notes: list[str] = field(default_factory=list)
    said: Mapping[str, str] = field(default_factory=dict)  # kinds that the user gave, by name
    unused: Mapping[str, str] = field(default_factory=dict)  # why arrays are, by name

    @cached_property
    def kinds(self) -> list[str]:
        parts = [*self.arrays.values()] or [list(range(len(self.names)))]
        heads = [head for part in parts for head in islice(self.chunks(part, HEAD_ROWS), 1)]
        if not heads:
            raise ValueError(f"{self.path} has no rows; write it again")
        return [kind_of(head[column]) for head in heads for column in head]

    def select(self, expression: str, option: str) -> list[int]:
        for name in filter(self.unused.get, expression.split(",")):
            raise ValueError(self.unused[name])
        return select(expression, self.names, option, str(self.path), self.arrays)

    def choose(
        self, expression: str | None, option: str, taken: Sequence[int], each: bool = False
    ) -> list[int]:
        """Columns that an expression names; without one all others, if not each only numbers."""
        if expression is not None:
            return self.select(expression, option)
        held = ENCODED if each else NUMERIC
        rest = [i for i in range(len(self.names)) if i not in taken]
        fit = [i for i in rest if self.kinds[i] in held or self.names[i] in self.said]
        fit = [i for i in fit if self.names[i] not in UNNAMED_INDEX]
        if not fit:
            seen = {"path": self.path, "option": option, "names": _listed(self.names)}
            raise ValueError(MESSAGES["no_numbers"].format(**seen))
        what = f"all {'other ' if taken else ''}columns{'' if each else ' that hold numbers'}"
        left = [f"{self.names[i]!r} ({self.kinds[i]})" for i in rest if i not in fit]
        self.notes.append(f"{option[2:]} is {what}: {_listed([self.names[i] for i in fit])}.")
        self.notes[-1] += f" Left out: {', '.join(left)}." if left else ""
        return fit

    def leave_out_unfit(self, frame: pd.DataFrame, series: bool) -> list[int]:
        """Return the columns that can be studied one by one, with a note of the others."""
        why = {i: unfit(frame[i], self.said.get(self.names[i]), series) for i in frame}
        fit = [i for i in frame if not why[i]] or list(frame)
        left = [f"{self.names[i]!r} ({why[i]})" for i in frame if i not in fit]
        if left:
            self.notes.append(f"Of these, left out: {', '.join(left)}.")
        return fit

    def read(
        self, columns: list[int], rows: int | None = None, seed: int = 0
    ) -> tuple[pd.DataFrame, int]:
        """Return these columns, indexed by the numbers of their rows, and the number of rows.

        With ``rows`` it is a random sample in the file's order, the same rows for every format:
        each row gets a random number and the smallest ones stay.
        """
        size = max(1_000, CHUNK_CELLS // len(self.names))
        generator = np.random.default_rng(seed)
        kept: list[pd.DataFrame] = []
        keys, total = np.empty(0), 0
        for chunk in self.chunks(columns, size):
            kept.append(chunk.set_axis(range(total, total + len(chunk))))
            total += len(chunk)
            if rows is not None:
                keys = np.concatenate([keys, generator.random(len(chunk))])
                if len(keys) > rows:
                    stay = np.sort(np.argpartition(keys, rows)[:rows])
                    keys, kept = keys[stay], [pd.concat(kept).iloc[stay]]
        return pd.concat(kept), total


def describe_columns(path: str | Path, *, header: bool = True) -> list[dict[str, Any]]:
    """Return name, kind and (if usable) number of every column, judged by types and first rows.

    Arguments:
        path: A file of a format in :data:`flatnce.mi.tables.FORMATS`.
        header: Whether the first line of text holds names.
    """
    file = _open(path, header)
    every = zip(range(len(file.names)), file.names, file.kinds, strict=True)
    usable = [dict(zip(("number", "name", "kind"), one, strict=True)) for one in every]
    return usable + [{"name": name, "kind": "not a table of numbers"} for name in file.unused]


def read_tables(
    paths: Sequence[str | Path],
    *,
    x: str | None = None,
    y: str | None = None,
    alone: bool = False,
    each: bool = False,
    group: str | None = None,
    series: bool = False,
    kinds: str | Mapping[str, str] | None = None,
    rows: int | None = None,
    seed: int = 0,
    header: bool = True,
) -> Tables:
    """Read chosen columns of one file, or of two whose rows are partners by position.

    Arguments:
        paths: One file or two; of two, x is in the first and y in the second.
        x: Columns of x, as :func:`flatnce.mi.tables.select` reads them.
        y: Columns of y; by default, in one file, all others that hold numbers.
        alone: Read x alone; y stays empty.
        each: Whether every column of x is studied by itself. Then x is by default all columns
            that have enough values, words and dates among them.
        group: A column whose equal values keep rows together.
        series: Whether rows are in time order; with ``each``, a column of times is left out.
        kinds: What columns hold, where it is not what they look like: by name one of
            :data:`flatnce.mi.encoding.KINDS`, ``{"wind": "circular:360"}`` or
            ``"wind=circular:360,site=category"``.
        rows: Read a random sample of this many rows, in the file's order; all if None.
        seed: The seed of that sample.
        header: Whether the first line of text holds names.
    """
    if len(paths) not in (1, 2):
        raise ValueError(f"{len(paths)} files were named; name one, or one for x and one for y")
    files = [_open(path, header) for path in paths]
    grouped = [] if group is None else files[0].select(group, "--group")
    if len(grouped) > 1:
        raise ValueError(f"--group {group} names {len(grouped)} columns; name one")
    said = _kinds_by_name(kinds, files)
    for file in files:
        file.said = {name: kind for kinds in said.values() for name, kind in kinds.items()}
    if alone:
        left, right = files[0].choose(x, "--x", grouped, each), list[int]()
    else:
        left, right = _choose_pair(files, x, y, each, grouped)
    if {*grouped} & {*left, *(right if len(files) == 1 else [])}:
        raise ValueError(f"--group {group} is also a column of --x or --y; leave it out there")
    wanted = [[*left, *grouped], right] if len(files) == 2 else [[*left, *grouped, *right]]
    chosen = {file.names[i] for file, part in zip(files, wanted, strict=True) for i in part}
    frames = _load(files, wanted, rows, seed)
    if each and x is None:
        left = files[0].leave_out_unfit(frames[0][left], series)
    found: dict[str, list[str]] = {}
    sides = (files[0], frames[0][left]), (files[-1], frames[-1][right])
    x_part, y_part = (encode_each(frame, file.names, file.said, found) for file, frame in sides)
    groups = _groups(frames[0][grouped[0]], group) if grouped else None
    listed = "; ".join(f"{kind} ({_listed(names, 3)})" for kind, names in found.items())
    notes = [note for file in files for note in file.notes]
    notes += [MESSAGES["kind"].format(name=n) for n, own in said.items() if chosen.isdisjoint(own)]
    return Tables((x_part, y_part), f"Kinds: {listed}.", tuple(notes), groups)


def _groups(cells: pd.Series, group: str | None) -> NDArray[np.int64]:
    """Number the values of a column."""
    if cells.isna().any():
        row = int(cells.index[cells.isna()][0]) + 1
        raise ValueError(f"--group {group} has no value in row {row:,} of the data; fill it in")
    return pd.factorize(cells.astype(str), sort=True)[0].astype(np.int64)


# Which columns are meant.


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
    """
    known = {**{name: [names.index(name)] for name in names}, **(arrays or {})}
    found: list[int] = []
    for part in _parts(expression, known, names) or [""]:
        if names.count(part) > 1:
            places = [str(place) for place, name in enumerate(names) if name == part]
            seen = {"option": option, "part": part, "where": where, "first": places[0]}
            raise ValueError(MESSAGES["same_name"].format(**seen, places=" and ".join(places)))
        positions = known.get(part) or _name_range(part, names) or _number_range(part, len(names))
        positions = positions or [k for k, name in enumerate(names) if fnmatchcase(name, part)]
        if not positions:
            near = next((name for name in known if name.lower() == part.lower()), part)
            hint = did_you_mean(near, known, f"it has {len(names)} ({_listed(names)})", cutoff=0.5)
            raise ValueError(f"{option} {part!r}: {where} has no such column; {hint}")
        found += positions
    return list(dict.fromkeys(found))


def _parts(expression: str, known: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """Split the expression at its commas, except inside a name that exists."""
    pieces = expression.split(",")
    parts, start = [], 0
    while start < len(pieces):
        for end in range(len(pieces), start, -1):
            joined = ",".join(pieces[start:end])
            part = joined if joined in known else joined.strip()
            if part in known or _name_range(part, names) or end == start + 1:
                parts.append(part)
                start = end
                break
    return [part for part in parts if part]


def _name_range(part: str, names: Sequence[str]) -> list[int]:
    for colon in (match.start() for match in re.finditer(":", part)):
        first, last = part[:colon].strip(), part[colon + 1 :].strip()
        if first in names and last in names:
            start, end = names.index(first), names.index(last)
            if first == str(start) and last == str(end):
                return []  # columns named by their numbers are counted as in Python
            step = 1 if end >= start else -1
            return list(range(start, end + step, step))
    return []


def _number_range(part: str, count: int) -> list[int]:
    if re.fullmatch(r"-?\d+", part):
        return [range(count)[int(part)]] if -count <= int(part) < count else []
    ends = re.fullmatch(r"(-?\d*):(-?\d*)", part)
    if ends is None:
        return []
    start, end = (int(one) if one else None for one in ends.groups())
    return list(range(count)[start:end])


def _listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    shown = ", ".join(repr(str(name)) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def _kinds_by_name(
    given: str | Mapping[str, str] | None, files: Sequence[_File]
) -> dict[str, dict[str, str]]:
    if isinstance(given, str):
        # A name may hold commas: only one after an equals sign ends a part.
        parts = re.findall(r"[^=]+(?:=[^,]*)?", given)
        typed = [part.strip(", ").rpartition("=") for part in parts]
        for part in (kind for name, _, kind in typed if kind and not name):
            raise ValueError(f"--kind {part} has no kind; give COLUMN=KIND, as in {part}=category")
        given = {name.strip(): kind.strip() for name, _, kind in typed}
    kinds: dict[str, dict[str, str]] = {}
    for name, kind in (given or {}).items():
        check_choice("kind", kind.partition(":")[0], KINDS)
        file = next((file for file in files if name in file.names), files[0])
        kinds[name] = {file.names[column]: kind for column in file.select(name, "--kind")}
    return kinds


def _choose_pair(
    files: Sequence[_File], x: str | None, y: str | None, each: bool, grouped: list[int]
) -> tuple[list[int], list[int]]:
    first, last = files[0], files[-1]
    arrays = {name.casefold(): name for name in first.arrays}
    if first is last and len(first.names) == 1:
        alone = MESSAGES["alone"].format(path=first.path, name=first.names[0])
        raise ValueError(next(iter(first.unused.values() if x is None else ()), alone))
    if first is last and x is None and y is None:
        if not {"x", "y"} <= set(arrays):
            kinds = zip(first.names, first.kinds, strict=True)
            numeric = [name for name, kind in kinds if kind in NUMERIC]
            one, other = map(shlex.quote, list(dict.fromkeys([*numeric, *first.names]))[:2])
            seen = {"path": first.path, "x": one, "y": other, "names": _listed(first.names)}
            raise ValueError(MESSAGES["which"].format(**seen))
        x, y = arrays["x"], arrays["y"]
    if first is not last:
        return first.choose(x, "--x", grouped, each), last.choose(y, "--y", [])
    right = [] if y is None else last.select(y, "--y")
    left = first.choose(x, "--x", [*grouped, *right], each)
    right = right or last.choose(None, "--y", [*grouped, *left])
    shared = _listed([first.names[i] for i in left if i in right])
    if shared:
        raise ValueError(f"--x and --y both hold {shared}; leave each column out of one of them")
    return left, right


# Files: names first, then the rows in chunks.


def _open(path: str | Path, header: bool = True) -> _File:
    path, readable = Path(path), ", ".join(FORMATS)
    if str(path) == "sample" and not path.exists():  # a small table that describes itself
        file = _open_text(Path(__file__).with_name("sample.csv"), header)
        file.path = path  # as it was named
        return file
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file ({readable})")
    if not path.exists():
        others = (one for one in path.parent.glob("*") if one.name != path.name)
        beside = [one.name for one in others if did_you_mean(path.stem, [one.stem])]
        hint = did_you_mean(path.name, beside, f"name a file ({readable})")
        raise FileNotFoundError(f"{path} does not exist; {hint}")
    open_plain(path).close()  # refuses a pipe, which may never end
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + ".gz"
    if suffix not in FORMATS:
        found = f"{path}: a file {suffix or 'without suffix'}"
        raise ValueError(f"{found} cannot be read; save the numbers as one of {readable}")
    if suffix.removesuffix(".gz") in TEXT:
        return _open_text(path, header)
    if not header:
        raise ValueError(f"--no-header is for text; {path} is {suffix}")
    return _open_parquet(path) if suffix == ".parquet" else _open_arrays(path)


def _open_parquet(path: Path) -> _File:
    arrow = require_extra("pyarrow", "reading parquet", "mi")
    parquet = require_extra("pyarrow.parquet", "reading parquet", "mi")
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a parquet file ({reason}); write it again") from error
    names = list(file.schema_arrow.names)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{path} has several columns named {_listed(twice)}; rename them")

    def chunks(columns: list[int], size: int) -> Iterator[pd.DataFrame]:
        chosen = [names[i] for i in columns]
        try:
            for batch in file.iter_batches(size, columns=chosen):
                # An index that pandas stored is a column like the others.
                frame = batch.select(chosen).to_pandas(date_as_object=False, ignore_metadata=True)
                yield frame.set_axis(columns, axis=1)
        except Exception as error:  # damaged files can raise anything
            raise OSError(f"{path} is cut short or damaged ({error}); write it again") from error

    return _File(path, names, file.metadata.num_rows, chunks)


def _open_arrays(path: Path) -> _File:
    """Open the array of an ``.npy`` file, or the arrays of an ``.npz`` file side by side.

    Columns are named by their numbers, in an archive of several arrays by array and number.
    """
    needed, free = 0, available_memory()
    names, arrays, unused = list[str](), dict[str, list[int]](), dict[str, str]()
    tables: dict[str, Any] = {}
    try:
        if path.suffix.lower() == ".npy":
            tables[""] = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                needed = sum(member.file_size for member in archive.zip.infolist())
                for name in archive if free is None or needed <= free else ():
                    try:
                        tables[name] = np.asarray(archive[name])  # bytes if not an array
                    except ValueError as error:  # an array of Python objects, for example
                        reason = str(error).partition(". ")[0]
                        seen = {"name": name, "path": path, "error": reason}
                        unused[name] = MESSAGES["objects"].format(**seen)
    except Exception as error:  # damaged or encrypted files can raise anything
        reason = str(error).partition(". ")[0]  # numpy goes on to suggest opening pickles
        raise ValueError(MESSAGES["arrays"].format(path=path, error=reason)) from error
    _check_memory([path], needed, free, "save fewer rows or columns, or each array as .npy")
    for name, array in tables.items():
        if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or not array.size:
            where = f"array {name!r} of {path}" if name else path
            unused[name] = MESSAGES["array"].format(where=where, array=array)
            continue
        own = [f"{name}_{i}" for i in range(array.shape[1])] if array.ndim == 2 else [name]
        arrays[name] = list(range(len(names), len(names) + len(own)))
        names += own
    if not arrays:
        raise ValueError(next(iter(unused.values()), MESSAGES["no_arrays"].format(path=path)))
    if len(tables) == 1 and not unused:  # of one array in all
        names = [str(i) for i in range(len(names))]

    def chunks(columns: list[int], size: int) -> Iterator[pd.DataFrame]:
        wanted = [name for name in arrays if set(arrays[name]) & set(columns)]
        held = [place for name in wanted for place in arrays[name]]
        if len({len(tables[name]) for name in wanted}) > 1:
            listing = ", ".join(f"{name!r} {len(tables[name]):,}" for name in wanted)
            raise ValueError(MESSAGES["lengths"].format(path=path, listing=listing))
        for start in range(0, len(tables[wanted[0]]), size):
            parts = [tables[name][start : start + size] for name in wanted]
            yield pd.DataFrame(np.column_stack(parts).astype(np.float64), columns=held)[columns]

    most = max(len(tables[name]) for name in arrays)
    return _File(path, names, most, chunks, {} if "" in arrays else arrays, unused=unused)


def _open_text(path: Path, header: bool) -> _File:
    raw, size = _head(path)
    encoding = _encoding(raw, path)
    lines = raw.decode(encoding, errors="replace").splitlines(keepends=True)
    if len(raw) < size:
        lines = lines[:-1] or lines  # the last line may be cut off
    filled = (i for i, line in enumerate(lines) if line.strip() and line[0] != "#")
    skipped = next(filled, len(lines))
    candidates = "\t,;|" if ".tsv" in path.suffixes else ",;\t|"
    separator = _separator(lines[skipped:], candidates)
    rows = list(islice(_cells(lines[skipped:], separator), HEAD_LINES + 1))
    if not rows:
        raise ValueError(f"{path} is empty; a table needs a line of names and rows of numbers")
    names = [str(i) for i in range(len(rows[0]))]
    if header:
        names, rows, skipped = _names(rows[0], path), rows[1:], skipped + 1
    elif not any(cell in MISSING or NUMBER.match(cell) for cell in rows[0]):
        if any(all(map(NUMBER.match, column)) for column in zip(*rows[1:], strict=False)):
            raise ValueError(MESSAGES["header"].format(path=path, cells=_listed(rows[0], 4)))
    if not rows:
        raise ValueError(f"{path} holds names and no rows of numbers")
    usual = Counter(len(row) - (row[-1:] == [""]) for row in rows).most_common(1)[0][0]
    if usual > len(names):
        seen = {"path": path, "names": counted(len(names), "name"), "cells": usual}
        raise ValueError(MESSAGES["more_cells"].format(**seen))
    least = len(names) - names[-1].startswith("Unnamed: ")  # a separator ends the line
    decimal = _decimal_sign(rows, separator)
    notes = []
    if encoding == "cp1252":
        notes.append(f"{path.name} is not UTF-8; it was read as cp1252.")
    if decimal == ",":
        notes.append(f"{path.name} has decimal commas and was read accordingly.")

    def chunks(columns: list[int], size: int) -> Iterator[pd.DataFrame]:
        # All columns are parsed: with usecols pandas would silently cut rows with too many cells.
        try:
            with pd.read_csv(
                path,
                sep=separator,
                engine="c",
                header=None,
                names=range(len(names)),
                skiprows=skipped,
                index_col=False,
                na_values=MISSING,
                decimal=decimal,
                encoding=encoding,
                encoding_errors="replace" if encoding == "cp1252" else "strict",
                skipinitialspace=True,
                low_memory=False,
                chunksize=size,
            ) as reader:
                gaps = False
                for chunk in reader:
                    gaps = gaps or bool(chunk.iloc[:, -1].isna().any())
                    yield chunk[columns]
        except (pd.errors.ParserError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a table: {_reason(error)}") from error
        except EOFError as error:
            raise OSError(f"{path} is cut short ({error}); copy it again") from error
        if gaps:  # pandas fills a line with too few cells silently
            opened, number = gzip.open if path.suffix.lower() == ".gz" else open, count(1)
            with opened(path, "rt", encoding=encoding, errors="replace", newline="") as file:
                whole = (line for line, _ in zip(file, number, strict=False))
                for cells in _cells(islice(whole, skipped, None), separator):
                    if len(cells) < least:
                        seen = {"line": next(number) - 1, "cells": counted(len(cells), "cell")}
                        raise ValueError(MESSAGES["short"].format(path=path, least=least, **seen))

    return _File(path, names, round(size * len(lines) / len(raw)), chunks, notes=notes)


def _reason(error: Exception) -> str:
    """What pandas' parser found, in words."""
    said = str(error).splitlines()[0].strip().removeprefix("Error tokenizing data. C error: ")
    cells = re.match(r"Expected (\d+) fields in line (\d+), saw (\d+)", said)
    if cells:
        return f"line {cells[2]} has {cells[3]} cells instead of {cells[1]}; correct it"
    quote = re.match(r"EOF inside string starting at row (\d+)", said)
    if quote:
        return f"a quotation mark in line {int(quote[1]) + 1} is never closed; close it"
    return f"{said}; correct that line"


def _head(path: Path) -> tuple[bytes, int]:
    """Return the first bytes of the text, and about how many there are."""
    size, zipped = path.stat().st_size, path.suffix.lower() == ".gz"
    try:
        with (gzip.open if zipped else open)(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise OSError(f"{path} is not a whole gzip file ({error}); copy it again") from error
    if len(head) < HEAD_BYTES:
        return head, len(head)
    return head, 5 * size if zipped else size  # numbers as text shrink to a fifth or more


def _encoding(raw: bytes, path: Path) -> str:
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if raw[:2] == b"PK" or b"\0" in raw:
        raise ValueError(f"{path} is not text; save the table as CSV (from a spreadsheet: export)")
    try:  # an incremental decoder accepts a character that is cut off at the end
        codecs.getincrementaldecoder("utf-8-sig")().decode(raw)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def _cells(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    every: Iterator[list[str]] = (line.split() for line in lines)
    if separator != WHITESPACE:
        csv.field_size_limit(MOST_CHARACTERS)  # a line of another separator is one long cell
        every = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return (cells for cells in every if any(cell.strip() for cell in cells) or len(cells) > 1)


def _separator(lines: Sequence[str], candidates: str) -> str:
    """Return the separator that splits the most lines into the same number of cells."""
    best, most_regular = "", (0.0, 1)
    for candidate in candidates:
        rows = list(islice(_cells(lines, candidate), HEAD_LINES + 1)) or [[]]
        width, count = Counter(map(len, rows)).most_common(1)[0]
        regular = (count / len(rows), width)
        if width > 1 and regular > most_regular:
            best, most_regular = candidate, regular
    widths = {len(cells) for cells in islice(_cells(lines, WHITESPACE), HEAD_LINES + 1)}
    return best or (WHITESPACE if len(widths) == 1 and widths != {1} else ",")


def _decimal_sign(rows: Sequence[list[str]], separator: str) -> str:
    cells = [cell.strip() for row in rows for cell in row]
    commas = sum(bool(re.fullmatch(r"[-+]?\d+,\d+", cell)) for cell in cells)
    points = sum(bool(re.fullmatch(r"[-+]?\d+\.\d+", cell)) for cell in cells)
    return "," if separator != "," and commas > points else "."


def _names(first: list[str], path: Path) -> list[str]:
    cells = [" ".join(cell.split()) for cell in first]
    numbers = pd.to_numeric(pd.Series(cells), errors="coerce").notna().sum()
    # Whole numbers that increase by one, such as 0, 1, 2 or years, are names.
    start = int(cells[0]) if cells[0].isdecimal() and len(cells) > 1 else 0
    counting = cells == [str(start + i) for i in range(len(cells))]
    if numbers and 2 * numbers >= len(cells) and not counting:
        raise ValueError(MESSAGES["no_header"].format(path=path, cells=", ".join(cells[:4])))
    return [cell or f"Unnamed: {place}" for place, cell in enumerate(cells)]


def _check_memory(paths: Sequence[Path], needed: int, free: int | None, remedy: str) -> None:
    if free is not None and needed > free:
        sizes = f"{format_bytes(needed)} of memory and {format_bytes(free)} are free"
        raise ValueError(f"{' and '.join(map(str, paths))} would take about {sizes}; {remedy}")


def _load(
    files: Sequence[_File], wanted: Sequence[list[int]], rows: int | None, seed: int
) -> list[pd.DataFrame]:
    check_at_least("seed", seed, 0)
    if rows is not None:
        check_at_least("rows", rows, 1)
    pairs = [(file, sorted(set(columns))) for file, columns in zip(files, wanted, strict=True)]
    needed = 0
    for file, columns in pairs:
        count = file.row_count if rows is None else min(rows, file.row_count)
        cells = [8 if file.kinds[i] in (*NUMERIC, "empty") else 72 for i in columns]
        needed += 5 * count * sum(cells)  # up to 5 copies at the peak
    remedy = "choose fewer columns (--x, --y), or take a random subset of the rows (--rows 100000)"
    _check_memory([file.path for file in files], needed, available_memory(), remedy)
    read = [file.read(columns, rows, seed) for file, columns in pairs]
    totals = [total for _, total in read]
    if len(set(totals)) > 1:
        each = zip(files, totals, strict=True)
        counts = [f"{file.path} has {counted(total, 'row')}" for file, total in each]
        raise ValueError(MESSAGES["partners"].format(counts=" and ".join(counts)))
    if rows is not None and rows < totals[0]:
        taken = f"{rows:,} of {totals[0]:,} rows"
        files[0].notes.append(f"{taken} were taken at random (seed {seed}).")
    return [frame for frame, _ in read]
