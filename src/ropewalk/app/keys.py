"""The secrets of a server: the keys of all endpoints, derived from one secret or set one by one, and its certificate.

The value `none` disables a key.
"""

import ssl
from collections import Counter
from dataclasses import dataclass

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.app.settings import Settings
from ropewalk.core.signatures import (
    API_PHRASE,
    BROADCAST_PHRASE,
    JOURNAL_PHRASE,
    RING_CHANGES_PHRASE,
    RING_PHRASE,
    RPC_PHRASE,
    SESSIONS_PHRASE,
    derive,
)
from ropewalk.model.errors import UserMistake

NONE = "none"


@dataclass(frozen=True)
class Keys:
    """An empty secret verifies nothing. `None` means that no key is configured, so the endpoint refuses all requests; an empty
    key means that authentication was disabled explicitly (`none`).

    Attributes:
        sessions: the key of fingerprints in kept sessions; empty without a secret.
        ring: nodes of a ring prove to each other that they have it, and never send it; empty without a secret.
        ring_changes: the bearer key for changing the ring, derived from `ring`. No setting disables it.
    """

    jwt: str
    streams: str
    turbo_streams: str
    cable_ready: str
    rpc: str
    broadcast: str | None
    api: str | None
    journal: str | None
    sessions: bytes
    ring: str
    ring_changes: str


@dataclass(frozen=True)
class Guards:
    """The guards of the endpoints with a key; None for endpoints that are not served."""

    broadcast: KeyGuard | None
    api: KeyGuard | None
    journal: KeyGuard | None
    ring_changes: KeyGuard | None


def build_guards(keys: Keys, refusals: Counter[str]) -> Guards:
    def guard(key: str | None) -> KeyGuard | None:
        return None if key is None else KeyGuard(key, refusals)

    return Guards(guard(keys.broadcast), guard(keys.api), guard(keys.journal), guard(keys.ring_changes or None))


def derive_keys(settings: Settings) -> Keys:
    auth = settings.auth
    secret = _blank(auth.secret)
    streams = _blank(auth.streams_secret or secret)
    ring = _blank(settings.ring.ring_key) or (derive(secret, RING_PHRASE) if secret else "")
    return Keys(
        jwt=_blank(auth.jwt_secret or secret),
        streams=streams,
        turbo_streams=_blank(auth.turbo_streams_secret or streams),
        cable_ready=_blank(auth.cable_ready_secret or streams),
        rpc=_blank(settings.app.http_rpc_secret or (derive(secret, RPC_PHRASE) if secret else "")),
        broadcast=_endpoint_key(settings.broadcast.broadcast_key, secret, BROADCAST_PHRASE, auth.public),
        api=_endpoint_key(settings.api.api_secret, secret, API_PHRASE, auth.public),
        journal=_endpoint_key(settings.journal.journal_token, secret, JOURNAL_PHRASE, auth.public),
        sessions=derive(secret, SESSIONS_PHRASE).encode() if secret else b"",
        ring=ring,
        ring_changes=derive(ring, RING_CHANGES_PHRASE) if ring else "",
    )


def _blank(value: str) -> str:
    return "" if value == NONE else value


def _endpoint_key(own: str, secret: str, phrase: str, public: bool) -> str | None:
    if public or own == NONE:
        return ""
    return own or (derive(secret, phrase) if secret else None)


# --- the certificate -------------------------------------------------------------------------------------------------


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None without a certificate. Raises UserMistake for one that cannot be used."""
    certificate, key = settings.server.ssl_cert, settings.server.ssl_key
    if not certificate:
        return None
    # The errors of `ssl` do not name the file.
    _require_readable("ssl_cert", certificate)
    _require_readable("ssl_key", key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserMistake(
            f"--ssl_cert {certificate} and --ssl_key {key} must be a certificate chain and its key, both in PEM: {error}"
        ) from None
    return context


def _require_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UserMistake(f"--{name} {path} cannot be read: {error.strerror or error}") from None
