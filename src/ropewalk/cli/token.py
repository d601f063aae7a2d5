"""`ropewalk token`: makes JWTs, signed stream names and bearer keys.

The default secret is that of the server: from the environment or the settings file.
"""

import argparse
import os
import time

from ropewalk.adapters.apps.authenticators import MAX_EXPIRY, issue_token
from ropewalk.app.settings import Settings, load
from ropewalk.app.settings.declare import DURATION
from ropewalk.core.signatures import API_PHRASE, BROADCAST_PHRASE, JOURNAL_PHRASE, derive, sign_stream
from ropewalk.model.errors import UserMistake
from ropewalk.ports import Clock

SUMMARY = "make JWTs, signed stream names and derived keys"


def run(argv: list[str], clock: Clock = time.time) -> int:
    wanted = _parser().parse_args(argv)
    settings = load([], os.environ)
    match wanted.kind:
        case "jwt":
            lines = [_jwt(wanted, settings, clock())]
        case "stream":
            lines = [_stream(wanted, settings)]
        case _:
            lines = _keys(wanted, settings)
    print(*lines, sep="\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk token", description=SUMMARY, allow_abbrev=False)
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    jwt = kinds.add_parser("jwt", help="a token that a client connects with")
    jwt.add_argument("--ids", required=True, help="""who the client is, usually JSON such as '{"user":1}'""")
    expiry = jwt.add_mutually_exclusive_group()
    expiry.add_argument("--ttl", help="lifetime of the token, such as 1h; unlimited by default")
    expiry.add_argument("--exp", type=int, help="when the token expires, in UNIX seconds")
    stream = kinds.add_parser("stream", help="a signed stream name that a client subscribes with")
    stream.add_argument("name", metavar="NAME", help="the stream's name")
    keys = kinds.add_parser("keys", help="the bearer keys that derive from the secret")
    for kind in (jwt, stream, keys):
        kind.add_argument("--secret", default="", help="the server's secret; ROPEWALK_SECRET by default")
    return parser


def _jwt(wanted: argparse.Namespace, settings: Settings, now: float) -> str:
    secret = _secret("jwt_secret", wanted.secret, settings.auth.jwt_secret, settings.auth.secret)
    return issue_token(secret, _text("--ids", wanted.ids), _expiry(wanted, now))


def _stream(wanted: argparse.Namespace, settings: Settings) -> str:
    secret = _secret("streams_secret", wanted.secret, settings.auth.streams_secret, settings.auth.secret)
    name, limit = _text("NAME", wanted.name), settings.limits.max_stream_name
    if len(name.encode()) > limit:
        raise UserMistake(f"NAME is longer than the {limit} bytes that the server allows (max_stream_name)")
    return sign_stream(name, secret)


def _keys(wanted: argparse.Namespace, settings: Settings) -> list[str]:
    secret = _secret("secret", wanted.secret, settings.auth.secret)
    # As variables, so that the lines can be used in a shell or an env file.
    return [
        f"ROPEWALK_BROADCAST_KEY={derive(secret, BROADCAST_PHRASE)}",
        f"ROPEWALK_API_SECRET={derive(secret, API_PHRASE)}",
        f"ROPEWALK_JOURNAL_TOKEN={derive(secret, JOURNAL_PHRASE)}",
    ]


def _secret(name: str, *candidates: str) -> str:
    """Returns the first one that is set. The value `none` of a setting stands for no secret."""
    secret = next(filter(None, candidates), "none")
    if secret == "none":
        variables = " or ".join(dict.fromkeys(("ROPEWALK_SECRET", f"ROPEWALK_{name.upper()}")))
        raise UserMistake(f"a secret is needed: give --secret, or set {variables}")
    return secret


def _text(place: str, value: str) -> str:
    if not value:
        raise UserMistake(f"{place} must not be empty")
    return value


def _expiry(wanted: argparse.Namespace, now: float) -> int | None:
    if wanted.ttl is None and wanted.exp is None:
        return None
    expires_at = wanted.exp if wanted.ttl is None else now + _seconds(wanted.ttl)
    if not 0 <= expires_at <= MAX_EXPIRY:
        raise UserMistake("the token would expire outside of the years 1970 to 9999: --exp is in seconds, not milliseconds")
    return int(expires_at)


def _seconds(ttl: str) -> float:
    try:
        seconds = DURATION.read(ttl)
    except ValueError as error:
        raise UserMistake(f"--ttl {error}") from None
    assert isinstance(seconds, float)
    return seconds
