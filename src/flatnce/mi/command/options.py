"""What can be asked of ``flatnce mi``, and what does not go together."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from flatnce.cli.short_help import short_help

MAIN_OPTIONS = (
    "x",
    "y",
    "method",
    "cv",
    "transform",
    "encode",
    "group",
    "block",
    "rows",
    "seed",
    "device",
    "bits",
    "report",
    "compare",
    "list_columns",
    "json",
)
COLUMNS_SAID = (
    ("height,weight", "by name; a name may hold spaces and commas"),
    ("'emb_*'", "all that match"),
    ("a:d", "from a to d, both included, in the file's order"),
    ("0:5, 3, -2:", "by number from 0 on, as in Python"),
)
FILES_SAID = (
    ("text", ".csv .tsv .txt, also .gz; the separator is found"),
    ("parquet", "only the chosen columns are read"),
    ("numpy", ".npy by column number; .npz by the names of its arrays, or x and y"),
)
PAGE = "mi.html"


@dataclass(frozen=True)
class MiOptions:
    """How much x says about y: a lower limit, an estimate, a ceiling and plain warnings.

    Arguments:
        files: One table, or two whose rows are partners by position (x, then y).
        x: Columns of x.
        y: Columns of y. By default all others that hold numbers.
        method: auto, flatnce, infonce, flo, dv, nwj, smile, ksg, cca ...
        critic: auto, gaussian, dot, cosine, bilinear or joint.
        cv: Folds of cross-fitting, each read in turn; 1 is one split.
        transform: What is done to columns first, fitted on the training part.
        encode: Turn words and dates into numbers: one-hot or ordinal.
        group: A column whose equal values keep rows together in a split.
        block: Rows in time order are kept together in blocks of so many.
        rows: A random subset of so many rows.
        no_header: The first line of text holds numbers, not names.
        seed: Of everything random.
        device: auto, cpu, cuda or cuda:1.
        permutations: Shuffles behind the p-value.
        batch_size: Rows a step of training. By default chosen.
        steps: Most steps of training. By default chosen.
        rate: Step size of training. By default chosen.
        bits: Say it in bits instead of nats.
        report: Write an offline page, mi.html or the name that follows.
        compare: Methods, separated by commas: one table of what each finds.
        pairwise: Every column of the table against every other.
        curve: Estimates from parts of the rows, and where they lead.
        list_columns: Say which columns a file has, and stop.
        benchmark: Tasks of known truth, separated by commas, instead of files.
        methods: Of the benchmark, separated by commas. By default --method.
        n: Rows of a task of the benchmark.
        seeds: Repetitions of the benchmark, from --seed on.
        json: Print JSON and nothing else.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...")] = ()
    x: Annotated[str | None, tyro.conf.arg(metavar="COLUMNS")] = None
    y: Annotated[str | None, tyro.conf.arg(metavar="COLUMNS")] = None
    method: str = "auto"
    critic: str = "auto"
    cv: Annotated[int, tyro.conf.arg(metavar="FOLDS")] = 1
    transform: Literal["copula", "standard", "none"] = "copula"
    encode: Literal["one-hot", "ordinal"] | None = None
    group: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    block: Annotated[int | None, tyro.conf.arg(metavar="ROWS")] = None
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
    compare: Annotated[str | None, tyro.conf.arg(metavar="METHODS")] = None
    pairwise: bool = False
    curve: bool = False
    list_columns: bool = False
    benchmark: Annotated[str | None, tyro.conf.arg(metavar="TASKS")] = None
    methods: Annotated[str | None, tyro.conf.arg(metavar="METHODS")] = None
    n: Annotated[int, tyro.conf.arg(metavar="ROWS")] = 10_000
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    json: bool = False

    @property
    def unit(self) -> str:
        """Of every number that is printed."""
        return "bits" if self.bits else "nats"


def help_text() -> str:
    """The main options on one screen."""
    usage = (
        "flatnce mi FILE [FILE] [OPTIONS]    as in: flatnce mi data.csv --x age,mass --y 'emb_*'"
    )
    sections = {"columns": COLUMNS_SAID, "files": FILES_SAID}
    return short_help(usage, MiOptions(), MAIN_OPTIONS, sections)


def with_page(arguments: list[str]) -> list[str]:
    """``--report`` alone gets a name: what follows is its value only if it is that of a page.

    Arguments:
        arguments: As typed.

    Examples:
        >>> with_page(["--report", "data.csv"]), with_page(["--report", "a.html"])
        (['--report', 'mi.html', 'data.csv'], ['--report', 'a.html'])
    """
    given = list(arguments)
    for place in (i for i in reversed(range(len(given))) if given[i] == "--report"):
        if not "".join(given[place + 1 : place + 2]).lower().endswith((".html", ".htm")):
            given.insert(place + 1, PAGE)
    return given


def check(options: MiOptions) -> None:
    """Refuse what does not go together, before anything is read."""
    modes = {
        "--benchmark": options.benchmark is not None,
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
    if options.benchmark is not None and options.files:
        raise ValueError("--benchmark makes its own data; leave the files out")
    if options.benchmark is None and not options.files:
        raise ValueError("name a file: `flatnce mi data.csv --x height --y weight`")
    if options.cv < 1 or options.cv == 2:
        raise ValueError(f"--cv {options.cv}: give 1 (one split) or at least 3 folds")
    if options.pairwise and (len(options.files) != 1 or options.y is not None):
        raise ValueError("--pairwise takes one file, and its columns from --x alone")
    if options.benchmark is not None and options.rows is not None:
        raise ValueError("--rows is for files; a benchmark draws --n rows")
    if options.seed < 0:
        raise ValueError(f"--seed {options.seed}: give a whole number, at least 0")
    if options.benchmark is not None and options.bits:
        raise ValueError("--benchmark compares with truths in nats; leave out --bits")
    if options.pairwise and not options.group is options.block is None:
        raise ValueError(
            "--pairwise keeps no rows together; leave out --group and --block, or call "
            "mi.pairwise with groups="
        )
