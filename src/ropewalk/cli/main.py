"""The entry point of the command line: finds the command, runs it, and prints user mistakes without a traceback.

A command is a module with `SUMMARY` and `run(argv) -> exit code`; it is imported only when it is used.
"""

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module

from ropewalk import __version__
from ropewalk.cli import output
from ropewalk.model.errors import RopewalkError, UserMistake

COMMANDS = {
    "serve": "ropewalk.cli.serve:run",
    "publish": "ropewalk.cli.publish:run",
    "push": "ropewalk.cli.push:run",
    "tail": "ropewalk.cli.tail:run",
    "health": "ropewalk.cli.health:run",
    "config": "ropewalk.cli.config:run",
    "token": "ropewalk.cli.token:run",
    "bench": "ropewalk.cli.bench:run",
    "pipeline": "ropewalk.cli.pipeline:run",
    "journal": "ropewalk.cli.journal:run",
    "ring": "ropewalk.cli.ring:run",
    "prove": "ropewalk.cli.prove:run",
}

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130
UNWRITTEN = 74  # EX_IOERR of sysexits.h: for some commands 1 is a result
READER_LEFT = 141  # a shell's exit code for SIGPIPE, by which other programs end here


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    output.watch()
    try:
        try:
            _require_text(words)
            return _dispatch(words)
        finally:  # also after the help of argparse, which exits
            output.finish()
    except UserMistake as mistake:
        return _print_error(mistake, MISTAKEN)
    except RopewalkError as error:
        return _print_error(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except output.OutputFailed as error:
        output.abandon()
        return READER_LEFT if isinstance(error, output.ReaderLeft) else _print_error(error, UNWRITTEN)


def _require_text(words: list[str]) -> None:
    """Python decodes bytes that are not UTF-8 to surrogates, which no command can send, sign or print."""
    for number, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserMistake(f"argument {number} is not UTF-8 text") from None


def _dispatch(words: list[str]) -> int:
    match words:
        case [] | ["-h" | "--help" | "help"]:
            print(_overview())
            return 0
        case ["--version" | "version"]:
            print(f"ropewalk {__version__}")
            return 0
        case [name, *rest]:
            return _command(name)(rest)
    raise AssertionError("unreachable: a list is empty or has a first word")


def _command(name: str) -> Callable[[list[str]], int]:
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        raise UserMistake(f"unknown command {name!r}; {hint}")
    module, _, function = COMMANDS[name].partition(":")
    run: Callable[[list[str]], int] = getattr(import_module(module), function)
    return run


def _overview() -> str:
    lines = ["usage: ropewalk COMMAND …", "", "A real-time message server with reliable streams.", "", "Commands:"]
    lines += [f"  {name:<9}{_summary(target)}" for name, target in COMMANDS.items()]
    return "\n".join([*lines, "", "See `ropewalk COMMAND --help` for details, and `ropewalk --version` for the version."])


def _summary(target: str) -> str:
    summary: str = import_module(target.partition(":")[0]).SUMMARY
    return summary


def _print_error(error: Exception, code: int) -> int:
    print(f"ropewalk: {error}", file=sys.stderr)
    return code
