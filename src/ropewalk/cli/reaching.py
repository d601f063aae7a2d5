"""How commands that talk to a server reach it: the flags for that, where it is by default, and what is said when it fails."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk.app.keys import Keys, keys_of
from ropewalk.app.settings import Settings, load
from ropewalk.client import CertificateUntrusted, PublishUnavailable, TlsFailed, Unreachable
from ropewalk.client.errors import PublishUnanswered
from ropewalk.client.publish_request import ATTEMPTS
from ropewalk.model.errors import Unavailable, UserMistake

NOT_THERE = "is the server running there? --url says where, `ropewalk serve` starts one"
NOT_TRUSTED = "--ca_file names a file with the certificates to trust, --url the server by a name that its certificate has"
NO_TOKEN = "--token brings a token that the server knows"
BY_DEFAULT = "by default it is ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET"
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


def add_misnamed_key(parser: argparse.ArgumentParser, wrong: str, right: str) -> None:
    """`wrong` is what other commands call the key for publishing, and here it is refused with the name that it has."""
    parser.add_argument(wrong, action=_MisnamedKey, nargs="?", const=right, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


class _MisnamedKey(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        parser.error(f"there is no {option_string} here; the key for publishing is {self.const}")


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


def token_help(given: str) -> str:
    """What helps who is not let in with this JWT, or with none."""
    keys = _keys_set_here()
    if keys is None or not keys.jwt:
        return NO_TOKEN
    makes = """`ropewalk token jwt --ids '{"user":1}'` makes one with the secret that is set here"""
    return f"{NO_TOKEN}; {makes}" + (", if that is the secret of the server" if given else "")


def key_help(flag: str, given: str | None) -> str:
    """What helps whose key of the API is refused, which `flag` brings; None: it was made from the settings."""
    keys = _keys_set_here()
    needed = f"{flag} brings the key for publishing; {BY_DEFAULT}"
    if keys is None or not keys.api:
        return needed
    if given is None:
        return f"{needed}. One of them is set here, and is not that of the server, or the server has another key of its own"
    return f"{needed}. One of them is set here: try it without {flag}"


def _keys_set_here() -> Keys | None:
    try:
        return keys_of(load([], os.environ))
    except UserMistake:  # which is not what went wrong
        return None


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
