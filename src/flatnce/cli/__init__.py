"""The ``flatnce`` command: the table of commands and their dispatch.

Each command has its own module with ``run(arguments) -> exit code``. It is imported when the
command is called, so that ``flatnce --help`` loads neither torch nor the argument parser.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
"""

import codecs
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from flatnce import __version__
from flatnce.cli.launch import has_failed, report_failure
from flatnce.cli.options import ENTRIES, as_typed, forget_options
from flatnce.messages import FlatnceWarning, did_you_mean, fitted
from flatnce.own_code import is_ours, is_own, trust_code

__all__ = ["main"]

COMMANDS = {name: entry["what"] for name, entry in ENTRIES.items()}
HOMES = {name: entry["module"] for name, entry in ENTRIES.items()}
LISTED = "\n".join(f"  {name:<10}  {what}" for name, what in COMMANDS.items())
OVERVIEW = f"""usage: flatnce COMMAND [OPTIONS]

Contrastive learning that works with small batches.

commands:
{LISTED}

flatnce COMMAND --help    a command's options
flatnce --version         the version"""

# Packages that the commands need and the core does not.
EXTRAS = ("tyro", "rich", "jinja2", "markupsafe", "matplotlib")
TRAINING_EXTRAS = ("torchvision", "PIL", "sklearn", "scipy", "tensorboard", "safetensors")
TABLE_EXTRAS = ("pandas", "pyarrow")


# How a terminal that is not UTF-8 shows the signs of our output; others become question marks.
SPELT = {"≥": ">=", "≤": "<=", "±": "+/-", "−": "-", "–": "-", "×": "x", "β": "beta", "τ": "tau"}


def _spell(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(SPELT.get(sign, "?") for sign in lost), error.end


codecs.register_error("spell", _spell)


_format_warning = warnings.formatwarning
_warned: set[str] = set()


def _warning_text(
    message: Warning | str, category: type[Warning], *place: Any, **line: Any
) -> str:
    """A warning of ours as one line, which is printed once; another one as Python prints it."""
    text = str(message)
    if not issubclass(category, FlatnceWarning):
        return _format_warning(message, category, *place, **line)
    if text in _warned or os.environ.get("RANK", "0") != "0":
        return ""
    _warned.add(text)
    return fitted(f"flatnce: {text}") + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    # Spinning threads take cores from others: a small network on two busy cores then trains ten
    # times slower. torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # its file was replaced
                stream.reconfigure(errors="spell")
    given = list(sys.argv[1:] if arguments is None else arguments)
    usual, warnings.formatwarning = warnings.formatwarning, _warning_text
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        warnings.formatwarning = usual
    return code


def _run(given: list[str]) -> int:
    if not given:
        print(OVERVIEW, file=sys.stderr)
        return 2
    name, rest = given[0], given[1:]
    if name in ("-h", "--help"):
        print(OVERVIEW)
        return 0
    if name in ("-V", "--version"):
        print(f"flatnce {__version__}")
        return 0
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        hint = did_you_mean(name, COMMANDS, "`flatnce --help` lists all commands")
        return _complain(f"flatnce: unknown {what} {name!r}; {hint}", 2)
    return _dispatch(name, rest)


def _dispatch(name: str, arguments: list[str]) -> int:
    called = f"flatnce {name}"
    if has_failed():
        return 0  # restarted after an error that would only repeat
    forget_options()
    if "--trust-code" in arguments:
        arguments = [each for each in arguments if each != "--trust-code"]
        trust_code()
    typed = [each.rpartition("=")[2] for each in arguments]
    for own in filter(is_own, typed):
        trust_code(own)
    try:
        return int(import_module(HOMES[name]).run(arguments))
    except SystemExit as stop:  # tyro ends the program after a help
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _complain(f"{called}: interrupted", 130)
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS + TRAINING_EXTRAS + TABLE_EXTRAS:
            if error.__cause__ is None:
                raise
            return _complain(f"{called}: {_said(error)}", 1)  # of require_extra
        light = name in ("demo", "doctor") and missing in EXTRAS
        needed = "" if light else ",mi" if name == "mi" else ",train"
        remedy = f"pip install 'flatnce[cli,report{needed}]'"
        return _complain(f"{called}: {missing} is not installed: {remedy}", 1)
    except ValueError as error:  # input that the package cannot use
        return _complain(f"{called}: {_said(error)}", 2)
    except (OSError, RuntimeError, ImportError) as error:
        # Only our own RuntimeErrors are meant for users, and ImportErrors that name no module
        # (those of require_extra): others are bugs and keep their trace.
        ours = type(error).__module__.startswith("flatnce.")
        named = isinstance(error, ImportError) and error.name
        if named or (isinstance(error, RuntimeError) and not ours):
            raise
        return _complain(f"{called}: {_said(error)}", 1)


def _said(error: Exception) -> str:
    """The message; of an error that our code raised, with the arguments as they are typed."""
    forbidden = (errno.EACCES, errno.EPERM, errno.EROFS)
    if isinstance(error, OSError) and error.errno in forbidden:
        known = error.strerror == os.strerror(error.errno)  # without a remedy
        if known and isinstance(error.filename, str | bytes):
            path = Path(os.fsdecode(error.filename))
            hidden = {".lock", ".partial", ".moving", ".earlier"}  # of our own files and folders
            own = [one for one in (path, path.parent) if {one.suffix, one.name} & hidden]
            named = own[-1].parent if own else path
            remedy = f"check the permissions of {named} and of its folder, or use another"
            return f"{named}: {error.strerror}; {remedy}"
    return as_typed(str(error)) if is_ours(error) else str(error)


def _complain(line: str, code: int) -> int:
    if not report_failure(line, code):  # one of several processes leaves it to the launcher
        print(fitted(line), file=sys.stderr)
    return code
