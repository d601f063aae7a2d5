"""Checks of settings that depend on each other, before the server starts to listen.

Each check is a row: a condition, and the message for the operator if it holds. A message names the flags to change.
"""

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ropewalk.app.nats_addresses import is_loopback, require_guarded
from ropewalk.app.settings.sections import Settings
from ropewalk.core.ring import parse_member
from ropewalk.javascript import PATH as CLIENT_PATH
from ropewalk.model.errors import UserMistake
from ropewalk.model.limits import IDENTIFIER_OVERHEAD_BYTES, NAME_TEXT_GROWTH
from ropewalk.model.ring import RingMember
from ropewalk.protocol.proxies import TrustedProxies

CheckRows = Iterator[tuple[bool, str]]
"""Pairs of condition and message. A row is only evaluated if the conditions before it do not hold."""

NO_SECRET = ("", "none")
LIVE_ONLY = frozenset(("redis", "nats"))  # broadcast adapters whose messages have no position and no history
MAX_SHARDS = 256  # each has a file open for writing
MAX_RPC_MESSAGE_BYTES = 2**31 - 1  # limit of gRPC
MAX_REDISX_KEY_BYTES = 200  # part of the uid of every publication, with the id of its entry
MIN_RING_KEY_CHARACTERS = 16
MIN_DEDUP_SECONDS = 60.0  # entries of a dead node are taken over after about 45
REPLICAS = (1, 3, 5)  # JetStream allows at most 5

_ORIGIN = re.compile(r"\*|(?:(?:\*\.)?(?:[\w-]+\.)*[\w-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_REDIS_DATABASE = re.compile(r"/?|/[0-9]+/?", re.ASCII)
_NATS_SUBJECT = re.compile(r"[^\s.]+(?:\.[^\s.]+)*")
# Characters that browsers and proxies forward unchanged.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*", re.ASCII)


def require_startable(settings: Settings) -> None:
    """Raises UserMistake with the message of the first failed check."""
    for table in TABLES:
        for failed, message in table(settings):
            if failed:
                raise UserMistake(message)


def startup_warnings(settings: Settings) -> list[str]:
    """Messages about settings that work but are probably unintended."""
    return [message for applies, message in _warnings(settings) if applies]


def has_application(settings: Settings) -> bool:
    return bool(settings.app.app or (settings.app.rpc_host and not settings.app.norpc))


# --- clients and application -----------------------------------------------------------------------------------------


def _authentication(settings: Settings) -> CheckRows:
    auth = settings.auth
    jwt = (auth.jwt_secret or auth.secret) not in NO_SECRET or bool(auth.jwks_url)
    yield not jwt and auth.enforce_jwt, "--enforce_jwt needs a secret: set --jwt_secret or --secret, or --jwks_url"
    provider = urlsplit(auth.jwks_url)
    yield (
        bool(auth.jwks_url) and not (provider.scheme in ("https", "http") and provider.hostname),
        "--jwks_url wants an address such as https://login.example.com/.well-known/jwks.json",
    )
    yield (
        bool(auth.jwks_url) and not auth.jwt_audience,
        "--jwks_url needs --jwt_audience: an identity provider signs tokens for other applications too",
    )
    yield (
        not jwt and not auth.noauth and not has_application(settings),
        "no authentication is configured, so no client could connect. Set one of:\n"
        "  ROPEWALK_SECRET=SECRET  clients connect with JWT tokens (`ropewalk token` creates them)\n"
        "  --jwks_url URL          clients connect with tokens of your identity provider\n"
        "  --app MODULE:APP        your Python channels authenticate clients\n"
        "  --rpc_host HOST         your application authenticates clients over RPC\n"
        "  --noauth                all clients may connect and subscribe to signed streams\n"
        "  --public                all clients may connect, subscribe and publish (development only)",
    )
    yield (
        not _PARAMETER.fullmatch(auth.jwt_param),
        "--jwt_param must consist of letters, digits, - and _, because it is part of a URL and of a header",
    )
    for name, on, own in (
        ("turbo_streams", auth.turbo_streams, auth.turbo_streams_secret),
        ("cable_ready", auth.cable_ready, auth.cable_ready_secret),
    ):
        missing = on and (own or auth.streams_secret or auth.secret) in NO_SECRET
        yield missing, f"--{name} needs the secret that signs its stream names: set --{name}_secret"


def _application(settings: Settings) -> CheckRows:
    app = settings.app
    yield bool(app.app and app.rpc_host and not app.norpc), "--app and --rpc_host exclude each other: set only one of them"
    for name in ("rpc_max_call_recv_size", "rpc_max_call_send_size"):
        yield getattr(app, name) > MAX_RPC_MESSAGE_BYTES, f"--{name} must be at most {MAX_RPC_MESSAGE_BYTES} bytes"


# --- the port and its paths ------------------------------------------------------------------------------------------


def _listener(settings: Settings) -> CheckRows:
    server = settings.server
    unix = server.host.startswith("unix:")
    yield bool(server.ssl_cert) and not server.ssl_key, "TLS needs --ssl_cert and --ssl_key: set --ssl_key too"
    yield bool(server.ssl_key) and not server.ssl_cert, "TLS needs --ssl_cert and --ssl_key: set --ssl_cert too"
    yield not server.host, "--host must be an address to listen on; 0.0.0.0 listens on every interface"
    yield bool(server.tcp_port) and unix, "--tcp_port needs an IP address or host name as --host, not a Unix socket"
    yield (
        bool(server.tcp_port) and server.tcp_port == server.port,
        "--tcp_port must differ from --port: remove it, since --port serves TCP too",
    )
    yield (
        server.demo and not (unix or is_loopback(server.host)),
        f"--demo has no authentication and listens on loopback only, not on {server.host}: remove --host",
    )
    TrustedProxies(server.trusted_proxies)  # raises UserMistake for an invalid address
    yield (
        server.proxy_protocol and not server.trusted_proxies,
        "--proxy_protocol needs --trusted_proxies, the proxies whose PROXY headers are accepted",
    )
    yield (
        bool(server.proxy_protocol and server.ssl_cert),
        "--proxy_protocol cannot be combined with --ssl_cert: terminate TLS at the proxy, or remove --proxy_protocol",
    )
    yield (
        server.takeover and not settings.journal.data_dir,
        "--takeover needs --data_dir, the state that the next process continues from",
    )
    for origin in server.allowed_origins:
        hint = ": remove the scheme" if "://" in origin else ""
        yield (
            not _ORIGIN.fullmatch(origin),
            f"--allowed_origins must list hosts, such as www.example.com, *.example.com or localhost:80, not {origin!r}{hint}",
        )


def _paths(settings: Settings) -> CheckRows:
    yield not settings.server.path, "--path must list at least one path, such as /cable"
    paths = endpoint_paths(settings)
    for name, path in paths:
        yield not _PATH.fullmatch(path), f"--{name} must be a path that starts with / and has no query, not {path!r}"
    for number, (name, path) in enumerate(paths):
        for other, earlier in paths[:number]:
            yield path == earlier, f"--{other} and --{name} must differ, both are {path}"
        for owner, root in reserved_roots(settings):
            yield path == root or path.startswith(f"{root}/"), f"--{name} must not be {path}, which {owner} uses"


def endpoint_paths(settings: Settings) -> list[tuple[str, str]]:
    """Name and path of each setting that is a path in use."""
    health = settings.server.health_path
    metrics = [("metrics_http", settings.operations.metrics_http)] if settings.operations.metrics_http else []
    sse = [("sse_path", settings.sse.sse_path)] if settings.sse.sse else []
    return [
        *(("path", path) for path in settings.server.path),
        ("health_path", health),
        *(("health_path", f"{health.rstrip('/')}/{probe}") for probe in ("live", "ready")),
        ("http_broadcast_path", settings.broadcast.http_broadcast_path),
        ("api_path", settings.api.api_path),
        *metrics,
        *sse,
    ]


def reserved_roots(settings: Settings) -> list[tuple[str, str]]:
    """Owner and root of each path that, with all paths below it, no setting may name."""
    api = settings.api.api_path.rstrip("/")
    roots = [("the REST API", f"{api}/{name}") for name in ("publish", "streams", "presence")]
    roots += [("the JavaScript client", CLIENT_PATH)]
    roots += [("the ring", f"{api}/ring")] if settings.ring.ring else []
    roots += [("the journal", "/journal")] if settings.journal.data_dir else []
    return [*roots, ("the demo page", "/demo")] if settings.server.demo else roots


# --- journal and archive ---------------------------------------------------------------------------------------------


def _journal(settings: Settings) -> CheckRows:
    archive_dir, broker = settings.archive.archive_dir, settings.broker.broker
    yield not 1 <= settings.journal.journal_shards <= MAX_SHARDS, f"--journal_shards must be a number from 1 to {MAX_SHARDS}"
    if not archive_dir:
        return
    yield not settings.journal.data_dir, "--archive_dir needs --data_dir, because the archive is written from the journal"
    yield "://" in archive_dir, f"--archive_dir must be a directory of this machine, not {archive_dir}"
    path = Path(archive_dir)
    yield path.exists() and not path.is_dir(), f"--archive_dir must be a directory, and {path} is not"
    yield (
        # Workers read hot history from Redis or NATS directly, without the archive of the store process.
        settings.server.workers > 1 and broker != "memory",
        f"--archive_dir with --broker={broker} needs a single worker: remove --workers, or serve the archive from another node",
    )


# --- Redis and NATS --------------------------------------------------------------------------------------------------


def _uses(settings: Settings, *names: str) -> bool:
    """Whether the broker, pubsub or a broadcast adapter is one of `names`."""
    return not {settings.broker.broker, settings.broker.pubsub, *settings.broadcast.broadcast_adapter}.isdisjoint(names)


def _broker(settings: Settings) -> CheckRows:
    broker, pubsub = settings.broker.broker, settings.broker.pubsub
    differs = pubsub not in ("none", broker)
    yield (
        differs and broker == "memory",
        f"--pubsub={pubsub} connects nodes, but --broker=memory numbers messages on each node separately: clients that change "
        f"nodes would miss messages or receive duplicates. Set --broker={pubsub} too, or remove --pubsub",
    )
    yield (
        differs,
        f"--pubsub={pubsub} cannot be combined with --broker={broker}, which carries messages itself: remove --pubsub",
    )
    yield (
        settings.nats.nats_replicas not in REPLICAS,
        "--nats_replicas must be 1, 3 or 5: 3 tolerate the failure of one server and 5 of two, while 2 tolerate none and 4 no "
        "more than 3 do",
    )


def _adapters(settings: Settings) -> CheckRows:
    broadcast, adapters = settings.broadcast, settings.broadcast.broadcast_adapter
    yield (
        "redisx" in adapters and not 1 <= len(broadcast.redisx_stream.encode()) <= MAX_REDISX_KEY_BYTES,
        f"--redisx_stream must be a key of 1 to {MAX_REDISX_KEY_BYTES} bytes",
    )
    yield "redisx" in adapters and not broadcast.redisx_group, "--redisx_group must name a consumer group, such as bx"
    yield "redis" in adapters and not broadcast.redis_channel, "--redis_channel must name a channel, such as __anycable__"
    yield (
        "nats" in adapters and not _NATS_SUBJECT.fullmatch(broadcast.nats_channel),
        "--nats_channel must be a subject: words without spaces, separated by dots, such as __anycable__",
    )


def _redis(settings: Settings) -> CheckRows:
    """Messages do not show the URL, because it may contain a password."""
    if not _uses(settings, "redis", "redisx"):
        return
    for url in map(str.strip, settings.redis.redis_url.split(",")):
        yield (
            not _is_url(url, ("redis", "rediss", "unix")),
            "--redis_url must be redis://host:port, rediss://host:port (TLS) or unix:///path",
        )
        yield (
            # The Redis client uses database 0 if it cannot parse the number.
            urlsplit(url).scheme != "unix" and not _REDIS_DATABASE.fullmatch(urlsplit(url).path),
            "--redis_url may have a database number after the host, as in redis://host/1, and no other path",
        )
    for place in settings.redis.redis_sentinels:
        url = place if "://" in place else f"redis://{place}"
        yield not _is_url(url, ("redis", "rediss")), "--redis_sentinels must list host:port, separated by commas"


def _nats(settings: Settings) -> CheckRows:
    enats, servers = settings.enats, settings.nats.nats_servers
    if _uses(settings, "nats"):
        given = settings.origins.get("nats_servers", "default") != "default"
        yield (
            enats.embed_nats and given and servers != (enats.enats_addr,),
            "--embed_nats and --nats_servers name different NATS servers: set only one of them. For a cluster of embedded "
            "servers use --enats_cluster_routes",
        )
        yield (
            not servers or not all(_is_url(url, ("nats", "tls")) for url in servers),
            "--nats_servers must list nats://host:port or tls://host:port, separated by commas",
        )
    if enats.embed_nats:
        has_secret = settings.auth.secret not in NO_SECRET
        require_guarded(enats.enats_addr, enats.enats_cluster, enats.enats_cluster_routes, has_secret)


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        url = urlsplit(text)
        _ = url.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    return url.scheme in schemes and bool(url.path if url.scheme == "unix" else url.hostname)


# --- rings -----------------------------------------------------------------------------------------------------------


def ring_members(settings: Settings) -> tuple[RingMember, ...]:
    """The nodes listed in --ring; empty without a ring. Raises UserMistake."""
    try:
        members = tuple(map(parse_member, settings.ring.ring))
    except ValueError as error:
        withdrawn = settings.ring.ring in (("redis",), ("nats",))
        hint = f" (to share state in {settings.ring.ring[0]}, use --broker={settings.ring.ring[0]})" if withdrawn else ""
        raise UserMistake(f"--ring must list nodes as name=host:port, separated by commas{hint}; {error}") from None
    for kind, values in (("name", [each.name for each in members]), ("address", [each.address for each in members])):
        duplicates = {value for value in values if values.count(value) > 1}
        if duplicates:
            raise UserMistake(f"--ring has two nodes with the same {kind}, {min(duplicates)}")
    return members


def ring_node(settings: Settings) -> str:
    """The name of this node in the ring. Raises UserMistake."""
    names = [member.name for member in ring_members(settings)]
    given = settings.ring.ring_node or settings.server.node_id
    if given in names:
        return given
    known = ", ".join(names)
    if given:
        flag = "--ring_node" if settings.ring.ring_node else "--node_id"
        raise UserMistake(f"{flag} is {given}, which --ring does not list: set it to one of {known}")
    host = socket.gethostname()
    if found := {host, host.partition(".")[0]}.intersection(names):
        return max(found, key=len)
    raise UserMistake(f"--ring lists no node named {host}, the host name: set --ring_node to one of {known}")


def ring_port(settings: Settings) -> int:
    """The port of this node for the other nodes. Raises UserMistake."""
    addresses = {member.name: member.address for member in ring_members(settings)}
    return settings.ring.ring_port or int(addresses[ring_node(settings)].rpartition(":")[2])


def _ring(settings: Settings) -> CheckRows:
    ring, broker, nodes = settings.ring, settings.broker.broker, len(settings.ring.ring)
    if not ring.ring:
        for name in ("ring_node", "ring_key", "ring_port"):
            yield bool(getattr(ring, name)), f"--{name} needs --ring: list the nodes of the ring, such as a=10.0.0.1:9080"
        return
    yield (
        broker != "memory",
        f"--ring cannot be combined with --broker={broker}, which all nodes share already: remove one of them",
    )
    yield settings.auth.secret in NO_SECRET, "--ring needs --secret, the same at all nodes, from which shared keys are derived"
    yield (
        bool(ring.ring_key) and len(ring.ring_key) < MIN_RING_KEY_CHARACTERS,
        f"--ring_key must have at least {MIN_RING_KEY_CHARACTERS} characters, because anyone who reaches the ring's port can "
        "test guesses of it; `openssl rand -hex 32` generates one",
    )
    yield (
        settings.server.host.startswith("unix:"),
        "--ring needs an IP address or host name as --host, not a Unix socket, because nodes connect over TCP",
    )
    yield (
        settings.server.takeover,
        "--takeover cannot be combined with --ring: stop the node and start it again, and its clients resume",
    )
    yield (
        bool(settings.archive.archive_dir),
        "--archive_dir cannot be combined with --ring, whose nodes each have a journal of their own shards only: remove it",
    )
    port = ring_port(settings)
    for name in ("port", "tcp_port"):
        yield (
            getattr(settings.server, name) == port,
            f"--{name} and the ring's port are both {port}, but the ring needs a port of its own: set another "
            f"one in {'--ring_port' if ring.ring_port else '--ring at all nodes'}, such as {9081 if port == 9080 else 9080}",
        )
    shards = settings.journal.journal_shards
    yield nodes > shards, f"--journal_shards is {shards}, and a ring of {nodes} nodes needs at least {nodes}"


TABLES: tuple[Callable[[Settings], CheckRows], ...]
TABLES = _authentication, _application, _listener, _paths, _journal, _broker, _adapters, _redis, _nats, _ring


# --- warnings --------------------------------------------------------------------------------------------------------


def _warnings(settings: Settings) -> CheckRows:
    adapters, broker, limits = frozenset(settings.broadcast.broadcast_adapter), settings.broker, settings.limits
    provider = urlsplit(settings.auth.jwks_url)
    yield (
        provider.scheme == "http" and not is_loopback(provider.hostname or ""),
        "--jwks_url is not https: who can change its answers can connect as anyone",
    )
    yield (
        bool(adapters) and adapters <= LIVE_ONLY and bool(broker.history_limit and broker.history_ttl),
        f"publications by {' and '.join(sorted(adapters))} have no position and no history, so clients cannot recover missed "
        "messages; publish by http or redisx",
    )
    yield (
        "redisx" in adapters and broker.dedup_ttl < MIN_DEDUP_SECONDS,
        f"--dedup_ttl is below {MIN_DEDUP_SECONDS:g} s: redisx entries taken over from a dead node may be published twice",
    )
    yield (
        "redisx" in adapters and broker.broker == "memory",
        "with --broker=memory, several nodes divide the redisx entries, and each delivers its part to its own clients only; "
        "set --broker=redis for more than one node",
    )
    yield (
        broker.broker == "nats" and bool(settings.enats.enats_cluster) and settings.nats.nats_replicas == 1,
        "each embedded NATS server of the cluster keeps the only copy of its streams, which are unavailable while it is down; "
        "set --nats_replicas=3 to keep three copies",
    )
    yield (
        # A preset enables the NATS adapter wherever NATS is configured, so that is not a choice of the operator.
        {"nats"} <= adapters
        and settings.enats.embed_nats
        and "@" not in settings.enats.enats_addr
        and not settings.origins.get("broadcast_adapter", "default").startswith("preset "),
        "--broadcast_adapter=nats: applications cannot publish to the embedded NATS, whose credentials are random at each "
        "start; put user:password@ or a token and @ before the host of --enats_addr",
    )
    yield (
        limits.max_identifier < limits.max_stream_name * NAME_TEXT_GROWTH + IDENTIFIER_OVERHEAD_BYTES,
        "--max_stream_name allows names too long for --max_identifier: they could be published to but not subscribed to",
    )
    for engine, prefixes, used in (
        ("redis", ("redis_",), _uses(settings, "redis", "redisx")),
        ("nats", ("nats_", "enats_", "embed_nats"), _uses(settings, "nats")),
    ):
        flags = _given_flags(settings, prefixes)
        yield (
            bool(flags) and not used,
            f"{', '.join(flags)}: unused settings; set --broker={engine} to share state between nodes",
        )


def _given_flags(settings: Settings, prefixes: tuple[str, ...]) -> list[str]:
    """Flags with these prefixes that the operator set. A channel alone does not count."""
    return [
        f"--{name}"
        for name, origin in sorted(settings.origins.items())
        if origin != "default" and name.startswith(prefixes) and name not in ("redis_channel", "nats_channel")
    ]
