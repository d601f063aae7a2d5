"""`ropewalk health`: asks a running server how it is, for probes on machines and in containers that have no curl."""

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

SUMMARY = "ask a running server how it is"

ANSWER_SECONDS = 5.0
LONGEST = 65536


class Health(msgspec.Struct, frozen=True):
    status: str
    reasons: tuple[str, ...] = ()


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    path = load([], os.environ).server.health_path.rstrip("/")
    url = url_of(wanted.url)
    require_http(url)
    health = _asked(f"{url.rstrip('/')}{path}{'/live' if wanted.live else '/ready'}", wanted.ca_file)
    print(health.status, *health.reasons, sep="\n")
    return 0 if health.status == "ok" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk health", description=SUMMARY, allow_abbrev=False)
    add_flags(parser)
    parser.add_argument("--live", action="store_true", help="only whether it answers, whatever is down that it needs")
    return parser


def _asked(url: str, ca_file: str) -> Health:
    # Never by way of a proxy: this is about the server itself, which is usually on this machine.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls_context(ca_file))
    )
    try:
        try:
            with opener.open(url, timeout=ANSWER_SECONDS) as answer:
                body = answer.read(LONGEST)
        except urllib.error.HTTPError as refused:
            with refused:
                body = refused.read(LONGEST)
        return msgspec.json.decode(body, type=Health)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise UserMistake(f"the certificate of {url} is not trusted: {reason.verify_message}; {NOT_TRUSTED}") from error
        if isinstance(reason, ssl.SSLError):
            raise UserMistake(f"{url} does not speak TLS as it should: {reason.reason or reason}; {NO_TLS}") from error
        raise Unavailable(f"{url} does not answer: {reason}; {NOT_THERE}") from error
    except (ValueError, msgspec.MsgspecError) as error:  # the first is what urllib says of an address
        raise Unavailable(f"{url} is not the health page of a server: {error}") from error
