"""The program `cbml`: one thin file per verb, errors in one line, documented exit codes.

Exit codes: 0 fine, 1 failed, 2 usage, 3 bad data or a file that cannot be read or written (no
permission, a full disk), 4 damaged file, 129/130/143 interrupted.

A verb's file imports nothing heavy at its top, so that help answers at once; it defines `verb`, a
function or a `typer.Typer` group, and is listed in VERBS.
"""

import codecs
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

import cbml
from cbml.errors import BadData, DamagedFile, stop, stop_signals, stopped_by
from cbml.program import command
from cbml.progress import say

if TYPE_CHECKING:
    from cbml.training import Distributed

__all__ = ["VERBS", "exit_code", "joined", "main", "resumable"]

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)  # a write names no file
VERBS: tuple[str, ...] = (
    "analyze",
    "compare",
    "data",
    "demo",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "index",
    "methods",
    "reproduce",
    "search",
    "serve",
    "table",
    "train",
)


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit with its code.

    Args:
        arguments: The words after the program's name; those of the command line by default.
    """
    words = sys.argv[1:] if arguments is None else arguments
    # --debug may stand anywhere, as a word added to the end of a failed command.
    debug = "--debug" in words
    _prepare_streams()
    for number in stop_signals():
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGINT:
            signal.signal(number, stop)  # a shell lets its background jobs ignore Ctrl-C
    # One line, as for errors: where in the code a warning comes from tells a user nothing.
    warnings.formatwarning = lambda message, *_: f"cbml: warning: {message}\n"
    try:
        _program()([word for word in words if word != "--debug"])
    except Exception as error:
        if received := stopped_by():
            sys.exit(128 + received)
        if debug:
            traceback.print_exc()
        else:
            say(f"cbml: {_one_line(error)}")
        sys.exit(exit_code(error))


def _prepare_streams() -> None:
    """Let standard streams that are closed lead nowhere, and take names of files as they are.

    The next file to be opened would get the number of a closed one, and what libraries print. A
    name may hold any bytes, or letters that the encoding lacks, and must not end a list of results.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the program
    if isinstance(sys.stdout, io.TextIOWrapper):
        whole = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if whole else "backslashreplace")


def _program() -> typer.Typer:
    program = typer.Typer(
        name="cbml", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    program.callback(help=cbml.__doc__.splitlines()[0] if cbml.__doc__ else None)(_options)
    for name in VERBS:
        verb = importlib.import_module(f"cbml.cli.{name}").verb
        if isinstance(verb, typer.Typer):
            program.add_typer(verb, name=name)
        else:
            program.command(name=name)(verb)
    return program


def _print_version(asked: bool) -> None:
    if asked:
        print(cbml.__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    del version, debug  # `main` takes --debug out of the words; here it is for the help page.


@contextlib.contextmanager
def joined(processes: int) -> Iterator["Distributed"]:
    """This process, or several: those that it starts with its own words, or torchrun's.

    Args:
        processes: How many on this machine.
    """
    from cbml.training import join_processes, last_word, run_processes

    if processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        words = sys.argv[1:]
        raise typer.Exit(run_processes(processes, words, command(*words)))
    with join_processes() as distributed, last_word(exit_code):
        yield distributed


@contextlib.contextmanager
def resumable(hint: str) -> Iterator[None]:
    """Where the work of the block is interrupted, the last line says how to resume it.

    Args:
        hint: Said behind what stopped it.
    """
    from cbml.training import Interrupted

    try:
        yield
    except Interrupted as stop:
        print(f"{stop}; {hint}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    except KeyboardInterrupt:
        print(f"\nstopped; {hint}", file=sys.stderr)
        raise typer.Exit(130) from None
    except SystemExit as stop:  # how `main` leaves at the other signals
        if stop.code in [128 + number for number in stop_signals()]:
            print(f"\nstopped; {hint}", file=sys.stderr)
        raise


def exit_code(error: Exception) -> int:
    """What the program ends with after an error."""
    if isinstance(error, BadData) or (isinstance(error, OSError) and _about_a_file(error)):
        return 3
    return 4 if isinstance(error, DamagedFile) else 1


def _about_a_file(error: OSError) -> bool:
    return error.filename is not None or error.errno in _NO_ROOM


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, (ValueError, OSError, ImportError)) and text
        else (f"{type(error).__name__}: {text} (add --debug to see where)")
    )
