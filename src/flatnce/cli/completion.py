"""``flatnce completion``: a script with which a shell completes commands and options."""

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

import tyro

from flatnce.cli import HOMES
from flatnce.cli.options import form_of, parse_options


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that completes the commands and options of flatnce in a shell.

    bash: ``source <(flatnce completion bash)`` in ~/.bashrc.
    zsh: ``flatnce completion zsh > DIR/_flatnce``, where DIR is a folder of $fpath.
    fish: ``flatnce completion fish > ~/.config/fish/completions/flatnce.fish``.
    """

    # Which shell.
    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    shell = parse_options(CompletionOptions, "completion", arguments).shell
    kinds: dict[str, Any] = {}
    for name, home in HOMES.items():
        kind = getattr(import_module(home), f"{name.capitalize()}Options")
        kinds[name] = Annotated[kind, *form_of(kind)]
    line = ["--tyro-print-completion", shell]
    try:
        tyro.extras.subcommand_cli_from_dict(kinds, prog="flatnce", args=line)
    except SystemExit as stop:  # how tyro ends
        return int(stop.code or 0)
    return 1
