"""``flatnce doctor``: diagnose a run, embeddings or this installation."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro

from flatnce.cli.console import print_json, print_verdict
from flatnce.cli.options import option_of, parse_options
from flatnce.core.objectives.registry import all_names
from flatnce.environment import environment, plain
from flatnce.messages import check_choice


@dataclass(frozen=True)
class DoctorOptions:
    """List what is wrong, with evidence and remedies; causes come before consequences.

    It finds saturation, collapse, too few negatives, false negatives, duplicates and temperatures
    out of range. Without a name it checks this installation.
    """

    # A run's name in runs/ or its folder, or an .npz file with z1 and z2 (and labels, ids,
    # temperature, batch_size, where known).
    target: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN|FILE.npz]")
    ] = None
    # The temperature of the loss, for embeddings.
    temperature: Annotated[float | None, tyro.conf.arg(metavar="T")] = None
    # Samples of a training batch, for embeddings; by default all rows are one batch.
    batch_size: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    # two_view (SimCLR) or two_tower (CLIP, retrieval).
    layout: Literal["two_view", "two_tower"] = "two_view"
    # The loss's name, for example InfoNCE; the remedies depend on it.
    objective: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    no_embeddings: bool = False  # For a run, read only the log, not the data or checkpoints.
    # For a run, the device to embed some of its images on.
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    json: bool = False  # Print JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code: 0 whatever is found."""
    renamed = {"name": "", "embeddings": "no_embeddings"}
    options = parse_options(DoctorOptions, "doctor", arguments, renamed=renamed)
    given = asdict(options)
    target, as_json = given.pop("target"), given.pop("json")
    if target is None:
        changed = (option_of(k) for k, v in given.items() if v != getattr(DoctorOptions, k))
        if typed := next(changed, ""):
            raise ValueError(f"{typed} is for a run or embeddings: `flatnce doctor RUN {typed}`")
        # Imported from its own module: a defect that it reports may prevent other imports.
        from flatnce.diagnose.installation import examine_installation

        found = examine_installation()
    else:
        if options.objective.casefold() not in ("", *map(str.casefold, all_names())):
            then = "; give infonce for another loss with the gradient of a cross-entropy"
            check_choice("objective", options.objective, all_names(), then)
        from flatnce.diagnose import examine

        found = examine(target, embeddings=not given.pop("no_embeddings"), **given)
    if as_json:
        print_json(plain({**found.plain(), "environment": environment()}))
    else:
        first, line, rest = str(found).partition("\n")
        print_verdict(first.removesuffix(found.verdict), found.verdict, line + rest)
    return 0
