"""`ropewalk health`: prints the health of a running server, for probes on machines and in containers without curl."""

import argparse
import http.client
import os
import ssl
import urllib.error
import urllib.request

import msgspec

from ropewalk.app.settings import load
from ropewalk.cli.reaching import NOT_THERE, NOT_TRUSTED, add_flags, url_of
from ropewalk.client.addresses import require_http
from ropewalk.client.tls import NO_TLS, tls_context
from ropewalk.model.errors import Unavailable, UserMistake

SUMMARY = "check the health of a running server"

TIMEOUT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 65536


class Health(msgspec.Struct, frozen=True):
    status: str
    reasons: tuple[str, ...] = ()


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    path = load([], os.environ).server.health_path.rstrip("/")
    url = url_of(wanted.url)
    require_http(url)
    health = _request(f"{url.rstrip('/')}{path}{'/live' if wanted.live else '/ready'}", wanted.ca_file)
    print(health.status, *health.reasons, sep="\n")
    return 0 if health.status == "ok" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk health", description=SUMMARY, allow_abbrev=False)
    add_flags(parser)
    parser.add_argument("--live", action="store_true", help="liveness only: ignore problems of its dependencies")
    return parser


def _request(url: str, ca_file: str) -> Health:
    # Without a proxy: the check is for the server itself, which is usually on this machine.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls_context(ca_file))
    )
    try:
        try:
            with opener.open(url, timeout=TIMEOUT_SECONDS) as response:
                body = response.read(MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as refused:
            with refused:
                body = refused.read(MAX_RESPONSE_BYTES)
        return msgspec.json.decode(body, type=Health)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise UserMistake(f"the certificate of {url} is not trusted: {reason.verify_message}; {NOT_TRUSTED}") from error
        if isinstance(reason, ssl.SSLError):
            raise UserMistake(f"{url} does not speak TLS as it should: {reason.reason or reason}; {NO_TLS}") from error
        raise Unavailable(f"{url} does not respond: {reason}; {NOT_THERE}") from error
    except (ValueError, msgspec.MsgspecError) as error:  # urllib raises ValueError for an invalid address
        raise Unavailable(f"{url} is not the health page of a server: {error}") from error
