"""Checks of the settings about Redis and NATS: what can be used with what. Every refusal says what to set instead."""

import re
from urllib.parse import urlsplit

from ropewalk.app.nats_addresses import require_guarded
from ropewalk.app.settings.sections import Settings
from ropewalk.model.errors import UserMistake
from ropewalk.model.limits import AROUND_NAMES, NAME_TEXT_GROWTH

FAN_OUT = frozenset(("redis", "nats"))
LONGEST_KEY = 200
"""Bytes of --redisx_stream: it is part of the uid of every publication, with the id of its entry."""

SAFE_DEDUP = 60.0
"""Seconds: an entry of a dead node is taken over after some 45."""

_DATABASE = re.compile(r"/?|/[0-9]+/?", re.ASCII)
_SUBJECT = re.compile(r"[^\s.]+(?:\.[^\s.]+)*")


def uses_redis(settings: Settings) -> bool:
    return bool(_chosen(settings) & {"redis", "redisx"})


def uses_nats(settings: Settings) -> bool:
    return "nats" in _chosen(settings)


def _chosen(settings: Settings) -> set[str]:
    return {settings.broker.broker, settings.broker.pubsub, *settings.broadcast.broadcast_adapter}


def require_reachable(settings: Settings) -> None:
    """Raises UserMistake."""
    _require_one_feed(settings)
    _require_names(settings)
    if uses_redis(settings):
        _require_redis_url(settings)
    if uses_nats(settings):
        _require_nats_servers(settings)
    _require_guarded_nats(settings)


def _require_one_feed(settings: Settings) -> None:
    broker, pubsub = settings.broker.broker, settings.broker.pubsub
    if pubsub in ("none", broker):
        return
    if broker == "memory":
        raise UserMistake(
            f"--pubsub={pubsub} joins several nodes, and --broker=memory gives each of them positions of its own: clients that "
            f"come to another node would miss messages or get them twice. Set --broker={pubsub} too, or leave --pubsub away"
        )
    raise UserMistake(f"--pubsub={pubsub} does not go with --broker={broker}, which carries messages by itself; leave it away")


def _require_names(settings: Settings) -> None:
    broadcast, chosen = settings.broadcast, settings.broadcast.broadcast_adapter
    if "redisx" in chosen:
        if not 1 <= len(broadcast.redisx_stream.encode()) <= LONGEST_KEY:
            raise UserMistake(f"--redisx_stream wants a key of 1 to {LONGEST_KEY} bytes")
        if not broadcast.redisx_group:
            raise UserMistake("--redisx_group wants the name of a consumer group, such as bx")
    if "redis" in chosen and not broadcast.redis_channel:
        raise UserMistake("--redis_channel wants the name of a channel, such as __anycable__")
    if "nats" in chosen and not _SUBJECT.fullmatch(broadcast.nats_channel):
        raise UserMistake("--nats_channel wants a subject: words without spaces, separated by dots, such as __anycable__")


def _require_redis_url(settings: Settings) -> None:
    """What was written is not shown: it may hold a password."""
    redis = settings.redis
    for url in redis.redis_url.split(","):
        if not _is_url(url.strip(), ("redis", "rediss", "unix")):
            raise UserMistake("--redis_url wants redis://host:port, rediss://host:port (TLS) or unix:///path")
        _require_database(url.strip())
    for place in redis.redis_sentinels:
        if not _is_url(place if "://" in place else f"redis://{place}", ("redis", "rediss")):
            raise UserMistake("--redis_sentinels wants host:port of each, separated by commas")


def _require_database(url: str) -> None:
    """The client of Redis takes database 0 where it cannot read the number."""
    place = urlsplit(url)
    if place.scheme != "unix" and not _DATABASE.fullmatch(place.path):
        raise UserMistake("--redis_url wants the number of a database after the host, as in redis://host/1, or nothing there")


def _require_guarded_nats(settings: Settings) -> None:
    enats, secret = settings.enats, settings.auth.secret
    if enats.embed_nats:
        require_guarded(enats.enats_addr, enats.enats_cluster, enats.enats_cluster_routes, secret not in ("", "none"))


def _require_nats_servers(settings: Settings) -> None:
    enats, servers = settings.enats, settings.nats.nats_servers
    written = settings.origins.get("nats_servers", "default") != "default"
    if enats.embed_nats and written and servers != (enats.enats_addr,):
        raise UserMistake(
            "--embed_nats starts a NATS of its own, and --nats_servers names another one: set one of them. For a cluster of "
            "embedded servers use --enats_cluster_routes"
        )
    if not servers or not all(_is_url(url, ("nats", "tls")) for url in servers):
        raise UserMistake("--nats_servers wants nats://host:port or tls://host:port of each, separated by commas")


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        url = urlsplit(text)
        _ = url.port  # raises for one that is no number
    except ValueError:
        return False
    return url.scheme in schemes and bool(url.path if url.scheme == "unix" else url.hostname)


# --- what works, and is probably not meant ---------------------------------------------------------------------------


def doubts(settings: Settings) -> list[str]:
    """Sentences for the log at start."""
    chosen, broker = frozenset(settings.broadcast.broadcast_adapter), settings.broker
    found = []
    if chosen and chosen <= FAN_OUT and broker.history_limit and broker.history_ttl:
        names = " and ".join(sorted(chosen))
        found.append(
            f"publications by {names} have no position and no history, so clients cannot get what they missed; publish by http "
            "or redisx"
        )
    if "redisx" in chosen and broker.dedup_ttl < SAFE_DEDUP:
        found.append(
            f"--dedup_ttl is shorter than {SAFE_DEDUP:g} s: what redisx takes over from a dead node may be registered twice"
        )
    if "redisx" in chosen and broker.broker == "memory":
        found.append(
            "of several nodes with --broker=memory each registers a part of what redisx brings, for its own clients only; "
            "--broker=redis is for more than one node"
        )
    if broker.broker == "nats" and settings.enats.enats_cluster and settings.nats.nats_replicas == 1:
        found.append(
            "of a cluster of embedded servers each keeps a part of the streams alone, which cannot be used while it is down; "
            "--nats_replicas=3 keeps everything three times"
        )
    if "nats" in chosen and settings.enats.embed_nats and "@" not in settings.enats.enats_addr and _was_written(settings):
        found.append(
            "--broadcast_adapter=nats: no application can publish to the embedded NATS, whose credentials are random at each "
            "start; put user:password@ or a token and @ before the host of --enats_addr"
        )
    limits = settings.limits
    if limits.max_identifier < limits.max_stream_name * NAME_TEXT_GROWTH + AROUND_NAMES:
        found.append(
            "--max_stream_name allows names that may not fit into an identifier of --max_identifier bytes: they could be "
            "published to but not subscribed to"
        )
    return found + _unused(settings)


def _was_written(settings: Settings) -> bool:
    """Whether the broadcasters were chosen by hand. A preset starts that of NATS wherever it finds NATS."""
    return not settings.origins.get("broadcast_adapter", "default").startswith("preset ")


def _unused(settings: Settings) -> list[str]:
    """Settings of an engine that nothing uses: whoever gave them most likely forgot to choose it as the broker."""
    found = []
    for engine, prefixes, used in (
        ("redis", ("redis_",), uses_redis(settings)),
        ("nats", ("nats_", "enats_", "embed_nats"), uses_nats(settings)),
    ):
        given = [
            name
            for name, origin in settings.origins.items()
            if origin != "default" and name.startswith(prefixes) and name not in ("redis_channel", "nats_channel")
        ]
        if given and not used:
            flags = ", ".join(f"--{name}" for name in sorted(given))
            found.append(f"{flags}: nothing uses them; --broker={engine} keeps streams and sessions there for all nodes")
    return found
