"""Flags and defaults of commands that connect to a server, and the hints in their errors."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk.app.keys import Keys, derive_keys
from ropewalk.app.settings import Settings, load
from ropewalk.client import CertificateUntrusted, PublishUnavailable, TlsFailed, Unreachable
from ropewalk.client.errors import PublishUnanswered
from ropewalk.client.publish_request import ATTEMPTS
from ropewalk.model.errors import Unavailable, UserMistake

NOT_THERE = "is the server running there? pass its address with --url, or start one with `ropewalk serve`"
NOT_TRUSTED = "pass the certificates to trust with --ca_file, and a host name of the server's certificate with --url"
NO_TOKEN = "pass a valid token with --token"
DEFAULT_KEY = "the default is ROPEWALK_API_SECRET, or a key derived from ROPEWALK_SECRET"
ALL_INTERFACES = ("0.0.0.0", "::")

ATTEMPTS_FOR_ONE = 5
"""Attempts to send a single message."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the server (default: its address in the settings)")
    parser.add_argument("--ca_file", "--ca-file", default="", help="certificates to trust, if the server has a private one")


def add_attempts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--attempts",
        type=count,
        metavar="N",
        help=f"attempts if there is no response; {ATTEMPTS_FOR_ONE} by default, with --lines {ATTEMPTS} (21 to 43 s)",
    )


def add_misnamed_key(parser: argparse.ArgumentParser, wrong: str, right: str) -> None:
    """Reject the flag that the key for publishing has in another command, with a hint at the right one."""
    parser.add_argument(wrong, action=_MisnamedKey, nargs="?", const=right, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


class _MisnamedKey(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        parser.error(f"unknown flag {option_string}: pass the key for publishing with {self.const}")


def attempts_of(wanted: argparse.Namespace) -> int:
    """The default is low for a single message, and for lines high enough for a restart of the server."""
    given: int | None = wanted.attempts
    return given or (ATTEMPTS if wanted.lines else ATTEMPTS_FOR_ONE)


def count(text: str) -> int:
    """A positive integer, for argparse."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def url_of(given: str | None) -> str:
    """The given address, or that of the server in the settings."""
    return listening_at(load([], os.environ)) if given is None else given


def listening_at(settings: Settings) -> str:
    """The address of a server with these settings, on its own machine. Raises UserMistake if the settings have none."""
    host, port = settings.server.host, settings.server.port
    if host.startswith("unix:") or port == 0:
        place = f"on {host}" if port else "on a free port"
        raise UserMistake(f"the server's settings have no address (it listens {place}): pass it with --url")
    if host in ALL_INTERFACES:
        host = "127.0.0.1"
    scheme = "https" if settings.server.ssl_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def token_help(given: str) -> str:
    """The hint for a client that is refused with this JWT, or without one."""
    keys = _keys_set_here()
    if keys is None or not keys.jwt:
        return NO_TOKEN
    command = """`ropewalk token jwt --ids '{"user":1}'` makes one with the secret that is set here"""
    return f"{NO_TOKEN}; {command}" + (", which must be the secret of the server" if given else "")


def key_help(flag: str, given: str | None) -> str:
    """The hint for a refused key. `given`: the value of `flag`; None if the key is from the settings."""
    keys = _keys_set_here()
    needed = f"pass the key for publishing with {flag}; {DEFAULT_KEY}"
    if keys is None or not keys.api:
        return needed
    if given is None:
        return f"{needed}. The one that is set here is not the key of the server"
    return f"{needed}. One is set here: try without {flag}"


def _keys_set_here() -> Keys | None:
    try:
        return derive_keys(load([], os.environ))
    except UserMistake:  # not the error to report
        return None


@contextmanager
def explained() -> Iterator[None]:
    """Adds hints to errors of the connection."""
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
