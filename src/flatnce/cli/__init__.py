"""The ``flatnce`` command: a table of commands and the way to them.

Each command lives in its own module, imported when it is called, so that ``flatnce --help`` loads
neither torch nor the argument parser. A command module has ``run(arguments) -> exit code``.

Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted.
"""

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from flatnce import __version__

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "InfoNCE against FlatNCE where the truth is known: no data, no GPU, about a minute",
    "data": "fetch a data set, or adopt one that is already on disk",
    "train": "pretrain an encoder on unlabelled images, watch it, evaluate it",
    "resume": "go on with a run exactly where it was left",
    "sweep": "train many runs side by side on one device: objectives, batch sizes, seeds, ...",
    "evaluate": "kNN, linear probe, fine-tuning, few labels, transfer",
    "report": "one offline page about a run: verdict, curves, similarities, neighbours",
    "compare": "runs side by side: seeds pooled, differences paired by seed",
    "export": "take the backbone away, for timm, torch or onnx",
    "mi": "how much two tables of numbers say about each other: a limit one can stand behind",
    "reproduce": "the paper's figures and tables, at three scales",
    "doctor": "what is wrong with a run, embeddings or this installation, and what to do about it",
    "cost": "devices x hours x price: the paper's table and your own run",
}

# The module of each command.
HOMES = {
    "demo": "flatnce.paper.commands.demo",
    "data": "flatnce.pretrain.commands.data",
    "train": "flatnce.pretrain.commands.train",
    "resume": "flatnce.pretrain.commands.resume",
    "sweep": "flatnce.pretrain.commands.sweep",
    "evaluate": "flatnce.pretrain.commands.evaluate",
    "report": "flatnce.pretrain.commands.report",
    "compare": "flatnce.pretrain.commands.compare",
    "export": "flatnce.pretrain.commands.export",
    "mi": "flatnce.mi.command",
    "reproduce": "flatnce.paper.commands.reproduce",
    "doctor": "flatnce.diagnose.command",
    "cost": "flatnce.paper.commands.cost",
}

# Set where `--devices` started this process; see flatnce.cli.launch.
LAUNCHED = "FLATNCE_LAUNCH"

# Packages that the command line needs and the core does not.
EXTRAS = ("tyro", "rich", "jinja2", "markupsafe", "matplotlib")
TRAINING_EXTRAS = ("torchvision", "PIL", "sklearn", "scipy", "tensorboard", "safetensors")
TABLE_EXTRAS = ("pandas", "pyarrow")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    # Threads that wait by spinning take a shared machine's cores from whoever works: a small net
    # on two busy cores then trains ten times slower. Read when torch is imported, so set before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        print(_overview(), file=sys.stderr)
        return 2
    name, rest = given[0], given[1:]
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name in ("-V", "--version"):
        print(f"flatnce {__version__}")
        return 0
    if name not in COMMANDS:
        return _complain(f"flatnce: {_unknown(name)}", 2)
    return _dispatch(name, rest)


def _dispatch(name: str, arguments: list[str]) -> int:
    called = f"flatnce {name}"
    if LAUNCHED in os.environ and import_module("flatnce.cli.launch").has_given_up():
        return 0  # started anew after an error that would only come again
    try:
        _before_loading(called, name, arguments)
        return int(import_module(HOMES[name]).run(arguments))
    except KeyboardInterrupt:
        return _complain(f"{called}: interrupted", 130)
    except BrokenPipeError:  # whoever reads has read enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS + TRAINING_EXTRAS + TABLE_EXTRAS:
            raise
        needed = "cli,report" if missing in EXTRAS else "cli,mi" if name == "mi" else "cli,train"
        remedy = f"pip install 'flatnce[{needed}]'"
        return _complain(f"{called}: {missing} is not installed: {remedy}", 1)
    except ValueError as error:  # what the package raises on input it cannot use
        return _complain(f"{called}: {error}", 2)
    except (OSError, RuntimeError) as error:
        # Of RuntimeErrors only our own are for users: others are faults, and keep their trace.
        if isinstance(error, RuntimeError) and not type(error).__module__.startswith("flatnce."):
            raise
        return _complain(f"{called}: {error}", 1)


def _before_loading(called: str, name: str, arguments: Sequence[str]) -> None:
    """What should not wait for torch, which takes seconds to load."""
    if name in ("train", "sweep"):
        import_module("flatnce.cli.aliases").refuse_other_names(arguments)
    serves = name in ("report", "compare") and "--watch" in arguments
    if serves and not {"--json", "-h", "--help"} & set(arguments):
        print(f"{called}: reads what there is; the page's address comes in a moment", flush=True)


def _complain(line: str, code: int) -> int:
    if LAUNCHED in os.environ:  # one of several processes: who launched them says it, once
        import_module("flatnce.cli.launch").give_up(line, code)
    else:
        print(line, file=sys.stderr)
    return code


def _overview() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: flatnce COMMAND [OPTIONS]",
            "",
            "Contrastive learning that keeps learning.",
            "",
            "commands:",
            *lines,
            "",
            "flatnce COMMAND --help    a command's options",
            "flatnce --version         the version",
        ]
    )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    what = "option" if name.startswith("-") else "command"
    hint = f"did you mean {close[0]!r}?" if close else "`flatnce --help` lists what there is"
    return f"unknown {what} {name!r}; {hint}"
