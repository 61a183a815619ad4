"""``flatnce completion``: a script with which a shell completes commands, options and names.

The script asks ``flatnce completion words``, so that new runs and data sets are known at once.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from flatnce.cli import ENTRIES, HOMES
from flatnce.cli.options import ALIASES, bare, leaves, parse_options
from flatnce.messages import check_choice
from flatnce.toml_files import read_toml

CHOICES = read_toml(__file__, "choices.toml")
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
    shell: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="|".join(SCRIPTS))]


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if arguments[:1] == ["words"]:  # asked by the script
        print("\n".join(words_for(os.environ.get("COMP_LINE", ""))))
    else:
        shell = parse_options(CompletionOptions, "completion", arguments).shell
        check_choice("shell", shell, SCRIPTS)
        print(SCRIPTS[shell])
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
        found = ["--" + name.replace("_", "-") for name in _hints(given[1])]
    else:
        found = _values(given[1], given[2:])
    return [word for word in found if word.startswith(typed)]


def _values(command: str, given: list[str]) -> list[str]:
    """The values of the option that is being given, or the names that the command takes."""
    place = ENTRIES[command].get("takes", "builtins:list")
    options = [at for at, word in enumerate(given) if word.startswith("--")]
    if options:
        typed = given[options[-1]][2:]
        name = ALIASES.get(typed, typed).replace("-", "_")
        hint = bare(_hints(command).get(name, bool))
        several = hint is not bool and (command == "sweep" or get_origin(hint) is tuple)
        if several or ((hint is not bool or name in CHOICES) and options[-1] == len(given) - 1):
            if get_origin(hint) is Literal:
                return list(get_args(hint))
            place = CHOICES.get(name, "builtins:list")
    module, _, attribute = place.partition(":")
    names = getattr(import_module(module), attribute)
    return list(names() if callable(names) else names)


def _hints(command: str) -> dict[str, Any]:
    """The annotation of every option of a command."""
    return leaves(getattr(import_module(HOMES[command]), f"{command.capitalize()}Options"))
