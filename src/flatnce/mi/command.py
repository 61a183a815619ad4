"""``flatnce mi``: estimate the mutual information of two tables in files.

Modules that load torch are imported after the options have been checked.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flatnce.cli.console import live_line, print_json
from flatnce.cli.options import as_typed, option_of, parse_options, print_short_help
from flatnce.environment import environment, plain
from flatnce.messages import check_at_least, counted, duration_text, say
from flatnce.toml_files import read_toml

# Arguments of the Python functions in messages whose options have other names.
OPTION_OF_ARGUMENT = {"folds": "cv", "blocks": "block", "groups": "group", "out": "report"}


@dataclass(frozen=True)
class MiOptions:
    """Estimate the mutual information of x and y, with a lower limit, a ceiling and warnings."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...")] = ()
    x: Annotated[str | None, tyro.conf.arg(metavar="COLUMNS")] = None
    y: Annotated[str | None, tyro.conf.arg(metavar="COLUMNS")] = None
    method: str = "auto"
    critic: str = "auto"
    cv: Annotated[int, tyro.conf.arg(metavar="FOLDS")] = 1
    kind: tyro.conf.UseAppendAction[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN=KIND")]
    ] = ()
    group: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    block: Annotated[int | Literal["auto"] | None, tyro.conf.arg(metavar="ROWS")] = None
    independent: bool = False
    rows: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    no_header: bool = False
    seed: int = 0
    device: str = "auto"
    permutations: int = 1999
    batch_size: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    rate: Annotated[float | None, tyro.conf.arg(metavar="STEP")] = None
    bits: bool = False
    report: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    replace: bool = False
    compare: Annotated[str | None, tyro.conf.arg(metavar="METHODS")] = None
    rank: bool = False
    pairwise: bool = False
    lags: Annotated[str | None, tyro.conf.arg(metavar="ROWS")] = None
    list_columns: bool = False
    json: bool = False

    def reading(self) -> dict[str, Any]:
        """How files are read."""
        names = ("x", "y", "group", "rows", "seed")
        given = {name: getattr(self, name) for name in names}
        given |= {"alone": self.pairwise, "each": self.pairwise or self.rank}
        given["series"] = self.block is not None
        return given | {"kinds": ",".join(self.kind), "header": not self.no_header}

    def settings(self) -> dict[str, Any]:
        """The arguments of the estimator."""
        names = ("method", "critic", "independent", "seed", "device", "permutations")
        given = {name: getattr(self, name) for name in (*names, "batch_size", "steps", "rate")}
        given["folds"] = self.cv
        return {name: value for name, value in given.items() if value is not None}


_HELP = "\n".join(f"    {k}: {text}" for k, text in read_toml(__file__, "options.toml").items())
MiOptions.__doc__ = f"{MiOptions.__doc__}\n\nArguments:\n{_HELP}"


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        return print_short_help(arguments, "mi", MiOptions())
    typed = {argument.partition("=")[0] for argument in arguments}
    renamed = OPTION_OF_ARGUMENT | {"method": "compare" if "--compare" in typed else "method"}
    options = parse_options(MiOptions, "mi", _with_page(arguments), renamed=renamed)
    _check(options)
    if options.list_columns:
        _list_columns(options)
    else:
        _estimate(options)
    return 0


def _with_page(arguments: list[str]) -> list[str]:
    """Add the default name after ``--report`` unless the name of a page follows it."""
    given: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if given and given[-1] == "--lags":  # negative lags are not options
            given[-1] += f"={argument}"
            continue
        given.append(argument)
        if argument == "--report" and not following.lower().endswith((".html", ".htm")):
            given.append("mi.html")
    return given


def _check(options: MiOptions) -> None:
    modes = ("list_columns", "pairwise", "rank", "lags", "compare")
    asked = [option_of(name) for name in modes if getattr(options, name) not in (None, False)]
    if len(asked) > 1:
        raise ValueError(f"{' and '.join(asked)} are different questions; ask one at a time")
    if options.report is not None and asked in (["--compare"], ["--list-columns"]):
        raise ValueError(f"--report writes no page of {asked[0]}; leave one of them out")
    if not options.files:
        raise ValueError("name a file: `flatnce mi sample --x height,weight --y income`")
    if options.pairwise and (len(options.files) != 1 or options.y is not None):
        raise ValueError("--pairwise takes one file and --x; leave out --y")
    if options.group is not None and options.block is not None:
        both = f"--group {options.group} and --block {options.block}"
        raise ValueError(f"{both}: give only one of them")
    counting = "--lags" if options.lags is not None else "--block, unlike --block auto,"
    if options.rows is not None and (options.lags is not None or isinstance(options.block, int)):
        raise ValueError(f"{counting} counts rows of the whole file; leave out --rows")
    if options.rows is not None:
        from flatnce.mi.cleaning import FEWEST_ROWS  # loads torch

        check_at_least("rows", options.rows, FEWEST_ROWS)
    if options.report is not None:
        from flatnce.report.page import check_place

        check_place(Path(options.report))
        if Path(options.report).is_file() and not options.replace:
            exists = f"--report {options.report} already exists"
            raise ValueError(f"{exists}; name another, or --replace it")


def _lags(typed: str) -> list[int]:
    """The lags of ``-10..10`` (both ends included) or of ``0,1,7``."""
    first, between, last = typed.partition("..")
    try:
        found = [*range(int(first), int(last) + 1)] if between else [*map(int, typed.split(","))]
    except ValueError as error:
        raise ValueError(f"--lags {typed}: give -10..10, or numbers such as 0,1,7") from error
    if not found:
        raise ValueError(f"--lags {typed} is an empty range; write --lags {last}..{first}")
    return found


def _estimate(options: MiOptions) -> None:
    from flatnce import mi
    from flatnce.mi.tables import read_tables

    shifts = [] if options.lags is None else _lags(options.lags)
    tables = read_tables(options.files, **options.reading())
    x, y = map(list, tables.parts)
    data: dict[str, Any] = {"x": x, "y": y, "kinds": tables.kinds, "notes": tables.notes}
    each = options.pairwise or options.rank
    sides = (tables.parts[0] if each else tables.x), (None if options.pairwise else tables.y)
    with live_line(log=False) as (update, _):
        given = {
            **options.settings(),
            "groups": tables.group,
            "blocks": options.block,
            "progress": _shown_by(update, log=not sys.stderr.isatty()),
        }
        del tables  # a large table is not held twice
        found: Any
        if options.pairwise:
            found = mi.pairwise(sides[0], **given)
        elif options.rank:
            found = mi.rank(*sides, **given)
        elif options.lags is not None:
            found = mi.lags(*sides, shifts, **given)
        elif options.compare is not None:
            del given["method"]
            methods = [name.strip() for name in options.compare.split(",")]
            found = mi.compare(*sides, methods, **given)
        else:
            found = mi.estimate(*sides, **given)
    _print(_in_options(found), options, data)


def _in_options(found: Any) -> Any:
    """A study or an estimate whose flags name options instead of Python arguments."""
    if hasattr(found, "estimates"):
        each = {name: _in_options(one) for name, one in found.estimates.items()}
        return replace(found, estimates=each)
    flags = []
    for flag in found.flags:
        said, in_bits = as_typed(flag.message), as_typed(flag.message_in_bits)
        flags.append(replace(flag, message=said, message_in_bits=in_bits))
    return replace(found, flags=tuple(flags))


def _print(found: Any, options: MiOptions, data: dict[str, Any]) -> None:
    """Print an estimate, or a study that has ``table(unit)`` and ``plain(unit)``."""
    estimate, unit = hasattr(found, "summary"), "bits" if options.bits else "nats"
    where = environment([options.seed], found.settings.get("device") if estimate else None)
    if options.json:
        about = {"page": options.report, "data": data, "environment": where}
        print_json(plain({**found.plain(unit), **about}))
    else:
        text = found.summary(unit) if estimate else found.table(unit)
        say("\n".join([as_typed(text), "", data["kinds"], *data["notes"]]))
    if options.report is not None:  # last: the answer stays if the page cannot be written
        from flatnce.mi.page import mi_page, study_page

        write = mi_page if estimate else study_page
        if estimate:  # its settings by the options that set them, as typed
            pairs = [(as_typed(f"{k}=").rstrip(" ="), v) for k, v in found.settings.items()]
            data = {**data, "settings": {k: None if v is False else v for k, v in pairs}}
        page = write(found, options.report, unit=unit, data=data, environment=where)
        if not options.json:
            print(f"\nthe page: {page}")


def _list_columns(options: MiOptions) -> None:
    from flatnce.mi.encoding import KINDS
    from flatnce.mi.tables import describe_columns

    header = not options.no_header
    listing = {file: describe_columns(file, header=header) for file in options.files}
    if options.json:
        print_json(plain(listing))
        return
    for file, columns in listing.items():
        print(f"{Path(file).name}: {counted(sum('number' in one for one in columns), 'column')}")
        width = max(len(column["name"]) for column in columns)
        for column in columns:
            print(f"  {column.get('number', '–'):>4}  {column['name']:<{width}}  {column['kind']}")
    say(f"To read a column as another kind, add --kind COLUMN=KIND, one of {', '.join(KINDS)}.")


def _shown_by(update: Callable[[str], None], log: bool) -> Callable[[Any], None]:
    """A function that shows the state of training; with ``log``, a line per tenth of many fits."""
    began, logged = time.monotonic(), -1

    def show(now: Any) -> None:
        nonlocal logged
        fit = f"fit {now.fold + 1} of {now.folds}  " if now.folds > 1 else ""
        values = f"train {now.train:.2f}  validation {now.validation:.2f}"
        update(f"{fit}step {now.step:,} of at most {now.steps:,}  {values}")
        tenth = 10 * now.fold // now.folds
        if log and now.folds > 16 and tenth > logged:  # so many take minutes
            spent, logged = duration_text(time.monotonic() - began), tenth
            print(f"fit {now.fold + 1} of {now.folds} after {spent}", file=sys.stderr, flush=True)

    return show
