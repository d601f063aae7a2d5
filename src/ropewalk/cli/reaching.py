"""How commands that talk to a server reach it: the flags for that, where it is by default, and what is said when it fails."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk.app.settings import Settings, load
from ropewalk.client import CertificateUntrusted, PublishUnavailable, TlsFailed, Unreachable
from ropewalk.client.attempts import ATTEMPTS
from ropewalk.client.errors import PublishUnanswered
from ropewalk.model.errors import Unavailable, UserMistake

NOT_THERE = "is the server running there? --url says where, `ropewalk serve` starts one"
NOT_TRUSTED = "--ca_file names a file with the certificates to trust, --url the server by a name that its certificate has"
EVERY_INTERFACE = ("0.0.0.0", "::")


OF_ONE = 5
"""Attempts to send a single message."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the server (default: where its settings say it listens)")
    parser.add_argument("--ca_file", "--ca-file", default="", help="certificates to trust, where the server has a private one")


def add_attempts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attempts",
        type=count,
        metavar="N",
        help=f"how often it is sent where no answer comes; {OF_ONE} by default, with --lines {ATTEMPTS} (21 to 43 s)",
    )


def attempts_of(wanted: argparse.Namespace) -> int:
    """Whoever sends one message waits for the command; whoever pipes lines into it wants none of them lost by a restart."""
    given: int | None = wanted.attempts
    return given or (ATTEMPTS if wanted.lines else OF_ONE)


def count(text: str) -> int:
    """A number of things as argparse reads it."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"wants a whole number from 1 on, not {text!r}")
    return int(text)


def url_of(given: str | None) -> str:
    """The address that was given, or else the one of the server whose settings are found here."""
    return listening_at(load([], os.environ)) if given is None else given


def listening_at(settings: Settings) -> str:
    """Where a server with these settings is reached from its own machine. Raises UserMistake where they do not tell."""
    host, port = settings.server.host, settings.server.port
    if host.startswith("unix:") or port == 0:
        place = f"on {host}" if port else "on a free port"
        raise UserMistake(f"by its settings the server listens {place}, which is no address: say with --url where it is")
    if host in EVERY_INTERFACE:
        host = "127.0.0.1"
    scheme = "https" if settings.server.ssl_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def explained() -> Iterator[None]:
    """Adds to a failure to reach the server what can be done about it."""
    try:
        yield
    except CertificateUntrusted as error:
        raise UserMistake(f"{error}; {NOT_TRUSTED}") from error
    except TlsFailed as error:
        raise UserMistake(str(error)) from error
    except (Unreachable, PublishUnanswered) as error:
        raise Unavailable(f"{error}; {NOT_THERE}") from error
    except PublishUnavailable as error:
        raise Unavailable(str(error)) from error
