"""Applies changed settings to a running server (SIGHUP), and logs which ones need a restart.

Everything is validated before anything is changed: invalid settings leave the old ones in effect.
"""

import logging
from dataclasses import replace

from ropewalk.adapters.endpoints.admission import ConnectionAdmission
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.app import composition, logs
from ropewalk.app.composition import Parts
from ropewalk.app.keys import Keys, derive_keys, tls_context
from ropewalk.app.settings import Settings, require_startable
from ropewalk.app.settings.sections import SETTINGS
from ropewalk.model.errors import UserMistake

logger = logging.getLogger("ropewalk.server")

KEYS = ("secret", "jwt_secret", "streams_secret", "turbo_streams_secret", "cable_ready_secret")
ENDPOINT_KEYS = ("broadcast_key", "api_secret", "journal_token")
RULES = ("history_limit", "history_ttl")
QUOTAS = ("max_conn_per_user", "max_conn_per_address", "conn_rate_per_address")
CONNECTIONS = ("max_conn", "max_http_conn", *QUOTAS, "http_keepalive_timeout")
LOGGING = ("log_level", "log_format")
SHUTDOWN = ("shutdown_delay", "shutdown_spread", "shutdown_timeout", "reconnect_rate")
TLS = ("ssl_cert", "ssl_key")
RELOADABLE = frozenset((*KEYS, "enforce_jwt", *ENDPOINT_KEYS, *RULES, *CONNECTIONS, *LOGGING, *SHUTDOWN, *TLS))


OF_THE_STORE = ("broadcast", "broker", "redis", "nats", "enats", "ring", "journal", "archive")
"""Sections that a store process and its workers must agree on."""

OF_THE_SUPERVISOR = ("host", "port", "tcp_port", "takeover", "node_id")


def needs_full_restart(old: Settings, new: Settings) -> list[str]:
    """Names of changed settings that replacing the workers one by one cannot apply."""
    return [
        name
        for name in changed(old, new)
        if _is_of_all_nodes(name, new)
        or (
            name != "streams"
            and name not in RELOADABLE
            and (SETTINGS[name].section in OF_THE_STORE or name in OF_THE_SUPERVISOR)
        )
    ]


def _is_of_all_nodes(name: str, settings: Settings) -> bool:
    """Whether all nodes must change it together: nodes of a ring, or embedded NATS servers, would reject each other."""
    enats = settings.enats
    derives_ring_key = bool(settings.ring.ring) and not settings.ring.ring_key
    derives_routes_key = enats.embed_nats and bool(enats.enats_cluster) and "@" not in enats.enats_cluster
    return name == "secret" and (derives_ring_key or derives_routes_key)


def changed(old: Settings, new: Settings) -> list[str]:
    """Names of the settings that differ; `streams` for the rules."""
    names = [name for name in SETTINGS if _value(old, name) != _value(new, name)]
    return [*names, "streams"] if old.streams != new.streams else names


def merged(old: Settings, new: Settings) -> Settings:
    """The old settings with the reloadable ones replaced."""
    sections = {}
    for section in {SETTINGS[name].section for name in RELOADABLE}:
        fields = {name: _value(new, name) for name in RELOADABLE if SETTINGS[name].section == section}
        sections[section] = replace(getattr(old, section), **fields)
    return replace(old, streams=new.streams, **sections)


def require_reloadable(old: Settings, new: Settings, whole: bool = True) -> None:
    """Raises UserMistake for invalid settings, and for features that only a restart can switch. `whole`: as for `apply`;
    settings of a part are of a server that could start."""
    if whole:
        require_startable(new)
    if bool(old.server.ssl_cert) != bool(new.server.ssl_cert):
        raise UserMistake("switching TLS on or off needs a restart")
    before, after = derive_keys(old), derive_keys(merged(old, new))
    if bool(before.jwt) != bool(after.jwt):
        raise UserMistake("switching JWT on or off needs a restart")
    for name in ("broadcast", "api", "journal"):
        if (getattr(before, name) is None) != (getattr(after, name) is None):
            raise UserMistake(f"switching the endpoints of the {name} key on or off needs a restart")
    tls_context(new)
    composition.authenticators(merged(old, new), after)


def apply(old: Settings, new: Settings, parts: Parts, admission: ConnectionAdmission, whole: bool = True) -> Settings:
    """Apply the reloadable settings and log the changes. On UserMistake nothing has changed.

    `whole`: the server has only this process. Otherwise new processes apply the other settings.
    """
    require_reloadable(old, new, whole)
    settings = merged(old, new)
    keys = derive_keys(settings)
    parts.authenticators[:] = composition.authenticators(settings, keys)
    parts.channels[:] = composition.channels(settings, keys)
    _rekey(parts, keys)
    if changed_rules := old.streams != new.streams or any(_value(old, name) != _value(new, name) for name in RULES):
        parts.rules.replace(composition.default_rules(settings), settings.streams)
        parts.backend.reload_rules()
    limits = settings.limits
    admission.limits = replace(
        admission.limits, clients=limits.max_conn, http=limits.max_http_conn, idle_timeout=limits.http_keepalive_timeout
    )
    parts.node.quotas.limit(limits.max_conn_per_user, limits.max_conn_per_address, limits.conn_rate_per_address)
    logs.configure(settings.logging.log_level, settings.logging.log_format, payloads=settings.logging.debug)
    _log_changes(old, new, changed_rules, whole)
    return settings


def _rekey(parts: Parts, keys: Keys) -> None:
    guards = parts.guards
    for guard, key in ((guards.broadcast, keys.broadcast), (guards.api, keys.api), (guards.journal, keys.journal)):
        if isinstance(guard, KeyGuard) and key is not None:
            guard.key = key


def _log_changes(old: Settings, new: Settings, rules: bool, whole: bool) -> None:
    names = changed(old, new)
    taken = [name for name in names if name in RELOADABLE or name == "streams"]
    left = [name for name in names if name not in taken]
    certificate = "read again" if new.server.ssl_cert else "none"
    logger.info(
        "settings reloaded", extra={"changed": " ".join(taken) or "nothing", "certificate": certificate, "rules_changed": rules}
    )
    if left and whole:
        logger.warning("these settings changed too, and need a restart", extra={"settings": " ".join(left)})
    if "secret" in taken or "http_rpc_secret" in left:
        logger.warning("the key for RPC over HTTP stays as it is until a restart")


def _value(settings: Settings, name: str) -> object:
    return getattr(getattr(settings, SETTINGS[name].section), name)
