"""``flatnce mi``: estimate the mutual information of two tables in files.

Modules that load torch are imported after the options have been checked.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flatnce.cli.console import live_line, print_json
from flatnce.cli.options import as_typed, parse_options
from flatnce.cli.short_help import print_short_help
from flatnce.environment import environment, plain
from flatnce.messages import say

# Arguments of the Python functions in messages whose options have other names.
OPTION_OF_ARGUMENT = {"folds": "cv", "blocks": "block", "groups": "group", "parts": "curve"}


@dataclass(frozen=True)
class MiOptions:
    """Estimate the mutual information of x and y, with a lower limit, a ceiling and warnings."""

    # One table, or two whose rows are partners by position (x, then y); `sample` is a small
    # table to try.
    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...")] = ()
    x: Annotated[str | None, tyro.conf.arg(metavar="COLUMNS")] = None  # Columns of x.
    # Columns of y. By default all others that hold numbers.
    y: Annotated[str | None, tyro.conf.arg(metavar="COLUMNS")] = None
    method: str = "auto"  # auto, flatnce, infonce, flo, dv, nwj, smile, ksg, cca ...
    critic: str = "auto"  # auto, gaussian, dot, cosine or joint.
    # Folds of cross-fitting, each evaluated in turn; 1 is one split.
    cv: Annotated[int, tyro.conf.arg(metavar="FOLDS")] = 1
    # What is done to columns first, fitted on the training part.
    transform: Literal["copula", "standard", "none"] = "copula"
    # Turn words and dates into numbers: one-hot or ordinal.
    encode: Literal["one-hot", "ordinal"] | None = None
    # A column whose equal values keep rows together in a split.
    group: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    # Keep rows in time order together in blocks of this many rows; auto: by their memory.
    block: Annotated[int | Literal["auto"] | None, tyro.conf.arg(metavar="ROWS")] = None
    # Rows are independent, though successive ones are alike: certify a limit all the same.
    independent: bool = False
    # Use a random subset of this many rows.
    rows: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    no_header: bool = False  # The first line of text holds numbers, not names.
    seed: int = 0  # Seed of all random choices.
    device: str = "auto"  # auto, cpu, cuda or cuda:1.
    permutations: int = 1999  # Shuffles behind the p-value.
    # Rows per training step. Chosen by default.
    batch_size: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    # Maximum number of training steps. Chosen by default.
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    # Learning rate. Chosen by default.
    rate: Annotated[float | None, tyro.conf.arg(metavar="STEP")] = None
    bits: bool = False  # Show results in bits instead of nats.
    # Write an offline page, mi.html or the name that follows.
    report: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    # Compare methods, separated by commas, in one table.
    compare: Annotated[str | None, tyro.conf.arg(metavar="METHODS")] = None
    pairwise: bool = False  # Every column of the table against every other.
    curve: bool = False  # Estimates from parts of the rows, extrapolated to more rows.
    list_columns: bool = False  # List the columns of a file, and stop.
    json: bool = False  # Print JSON and nothing else.

    @property
    def unit(self) -> str:
        """The unit of every number that is printed."""
        return "bits" if self.bits else "nats"

    def reading(self) -> dict[str, Any]:
        """How files are read."""
        names = ("encode", "rows", "seed")
        return {name: getattr(self, name) for name in names} | {"header": not self.no_header}

    def settings(self) -> dict[str, Any]:
        """The arguments of the estimator."""
        names = ("method", "critic", "transform", "independent", "seed", "device", "permutations")
        optional = {"batch_size": self.batch_size, "steps": self.steps, "rate": self.rate}
        return {
            **{name: getattr(self, name) for name in names},
            **{name: value for name, value in optional.items() if value is not None},
            "folds": self.cv,
        }


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
    elif options.pairwise:
        _pairwise(options)
    else:
        _two_tables(options)
    return 0


def _with_page(arguments: list[str]) -> list[str]:
    """Add the default name after ``--report`` unless the name of a page follows it."""
    given: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        given.append(argument)
        if argument == "--report" and not following.lower().endswith((".html", ".htm")):
            given.append("mi.html")
    return given


def _check(options: MiOptions) -> None:
    modes = {
        "--list-columns": options.list_columns,
        "--pairwise": options.pairwise,
        "--compare": options.compare is not None,
        "--curve": options.curve,
    }
    asked = [name for name, on in modes.items() if on]
    if len(asked) > 1:
        raise ValueError(f"{' and '.join(asked)} are different questions; ask one at a time")
    if options.report is not None and asked:
        raise ValueError(f"--report is the page of one estimate; leave it out with {asked[0]}")
    if not options.files:
        raise ValueError("name a file: `flatnce mi sample --x height,weight --y income`")
    others = (options.y, options.group, options.block)
    if options.pairwise and (len(options.files) != 1 or others != (None, None, None)):
        raise ValueError("--pairwise takes one file and --x; leave out --y, --group and --block")


def _two_tables(options: MiOptions) -> None:
    from flatnce import mi
    from flatnce.mi.tables import read_tables

    tables = read_tables(
        options.files,
        x=options.x,
        y=options.y,
        group=options.group,
        block=options.block,
        **options.reading(),
    )
    x, y = tables.x, tables.y
    data = {"x": list(x), "y": list(y), "notes": tables.notes}
    with live_line(log=False) as (update, _):
        given = {
            **options.settings(),
            "groups": tables.group,
            "blocks": tables.block,
            "progress": lambda now: update(_training_progress(now)),
        }
        if options.curve:
            _print(mi.subsampling_curve(x, y, **given), options, data)
        elif options.compare is not None:
            del given["method"]
            _print(mi.compare(x, y, _split(options.compare), **given), options, data)
        else:
            _print(mi.estimate(x, y, **given), options, data)


def _page(found: Any, options: MiOptions, data: dict[str, Any]) -> Path | None:
    if options.report is None:
        return None
    from flatnce.mi.page import mi_page

    return mi_page(
        found,
        options.report,
        unit=options.unit,
        x_names=data["x"],
        y_names=data["y"],
        notes=data["notes"],
        environment=environment([options.seed], found.settings.get("device")),
    )


def _print(found: Any, options: MiOptions, data: dict[str, Any]) -> None:
    """Print an estimate, or a study that has ``table(unit)`` and ``plain(unit)``."""
    estimate = hasattr(found, "summary")
    page = _page(found, options, data) if estimate else None
    if options.json:
        numbers = found.plain(options.unit)
        device = found.settings.get("device") if estimate else None
        whole = {**numbers, "page": page} if estimate else {"result": numbers}
        where = environment([options.seed], device)
        print_json(plain({**whole, "data": data, "environment": where}))
        return
    say(as_typed((found.summary if estimate else found.table)(options.unit)))
    if data["notes"]:
        say("\n  ".join(["\nReading the data:", *data["notes"]]))
    if page is not None:
        print(f"\nthe page: {page}")


def _pairwise(options: MiOptions) -> None:
    from flatnce import mi
    from flatnce.mi.tables import read_table

    table, notes = read_table(options.files[0], options.x, **options.reading())
    with live_line(log=False) as (update, _):
        given = {**options.settings(), "progress": lambda now: update(_training_progress(now))}
        found = mi.pairwise(table, columns=list(table), **given)
    _print(found, options, {"columns": list(table), "notes": notes})


def _split(typed: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in typed.split(",") if part.strip())


def _list_columns(options: MiOptions) -> None:
    from flatnce.mi.tables import describe_columns

    listing = {
        file: describe_columns(file, header=not options.no_header) for file in options.files
    }
    if options.json:
        print_json(plain(listing))
        return
    for file, columns in listing.items():
        print(f"{Path(file).name}: {len(columns)} columns")
        width = max(len(column.name) for column in columns)
        for column in columns:
            print(f"  {column.number:>4}  {column.name:<{width}}  {column.kind}")


def _training_progress(now: Any) -> str:
    fold = f"fold {now.fold + 1}/{now.folds}  " if now.folds > 1 else ""
    return (
        f"{fold}step {now.step:,} of at most {now.steps:,}  train {now.train:.2f}  "
        f"validation {now.validation:.2f}"
    )
