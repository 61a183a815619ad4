"""``flatnce completion``: a script with which a shell completes commands, options and names.

The script asks ``flatnce completion words``, so that new runs and data sets are known at once.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Literal

import tyro

from flatnce.cli import ENTRIES, HOMES
from flatnce.cli.options import leaves, parse_options

ASK = "flatnce completion words"
SCRIPTS = {
    "bash": f"complete -o default -C '{ASK}' flatnce",
    "zsh": f"autoload -U +X bashcompinit && bashcompinit\ncomplete -o default -C '{ASK}' flatnce",
    "fish": f"complete -c flatnce -a '(COMP_LINE=(commandline -cp) {ASK})'",
}


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that completes commands, options, data sets and runs in a shell.

    bash: put `source <(flatnce completion bash)` into ~/.bashrc.

    zsh: put `source <(flatnce completion zsh)` into ~/.zshrc, after compinit.

    fish: `flatnce completion fish > ~/.config/fish/completions/flatnce.fish`.
    """

    # Which shell.
    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if arguments[:1] == ["words"]:  # asked by the script
        print("\n".join(words_for(os.environ.get("COMP_LINE", ""))))
    else:
        print(SCRIPTS[parse_options(CompletionOptions, "completion", arguments).shell])
    return 0


def words_for(line: str) -> list[str]:
    """What may stand for the last word of a command line: a command, an option, or a name."""
    *before, typed = line.split(" ")
    given = [word for word in before if word]
    if len(given) < 2:
        found = list(HOMES)
    elif given[1] not in HOMES:
        found = []
    elif typed.startswith("-"):
        kind = getattr(import_module(HOMES[given[1]]), f"{given[1].capitalize()}Options")
        found = ["--" + name.replace("_", "-") for name in leaves(kind)]
    else:
        module, _, name = ENTRIES[given[1]].get("takes", "builtins:list").partition(":")
        names = getattr(import_module(module), name)
        found = list(names() if callable(names) else names)
    return [word for word in found if word.startswith(typed)]
