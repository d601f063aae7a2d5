"""Checks of settings that depend on each other, made before the server starts to listen.

Every refusal says what to set instead.
"""

import re
from pathlib import Path

from ropewalk.app.nats_addresses import is_loopback
from ropewalk.app.settings.engines import require_reachable
from ropewalk.app.settings.ring import require_ring
from ropewalk.app.settings.sections import Settings
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.proxies import TrustedProxies

MOST_SHARDS = 256  # each has a file open for writing
USEFUL_REPLICAS = (1, 3, 5)  # more than five JetStream does not take
MOST_OF_A_CALL = 2**31 - 1  # what gRPC can count to

_ORIGIN = re.compile(r"\*|(?:(?:\*\.)?(?:[\w-]+\.)*[\w-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def require_startable(settings: Settings) -> None:
    """Raises UserMistake for the first thing that forbids starting."""
    _require_known_clients(settings)
    _require_token_parameter(settings)
    _require_stream_secrets(settings)
    _require_one_application(settings)
    _require_whole_tls(settings)
    _require_host(settings)
    _require_proxies(settings)
    _require_takeover(settings)
    _require_origins(settings)
    require_distinct_paths(settings)
    _require_shards(settings)
    _require_journal_for_archive(settings)
    _require_archive_within_reach(settings)
    require_reachable(settings)
    require_ring(settings)
    _require_replicas(settings)


def _require_known_clients(settings: Settings) -> None:
    auth = settings.auth
    jwt = (auth.jwt_secret or auth.secret) not in ("", "none")
    if not jwt and auth.enforce_jwt:
        raise UserMistake("--enforce_jwt needs a secret: set --jwt_secret or --secret")
    if not jwt and not auth.noauth and not has_application(settings):
        raise UserMistake(
            "nobody could connect, and the server does not open itself to everybody unasked. Set one of:\n"
            "  ROPEWALK_SECRET=SECRET  clients connect with JWT tokens (ropewalk token makes them)\n"
            "  --app MODULE:APP        your Python channels decide\n"
            "  --rpc_host HOST         your application decides, asked by RPC\n"
            "  --noauth                everybody may connect, and may subscribe to signed streams\n"
            "  --public                everybody may connect, subscribe and publish; for development"
        )


def _require_token_parameter(settings: Settings) -> None:
    if not _PARAMETER.fullmatch(settings.auth.jwt_param):
        raise UserMistake("--jwt_param wants a name of letters, digits, - and _: it is part of a URL and of a header")


def _require_stream_secrets(settings: Settings) -> None:
    auth = settings.auth
    for name, on, own in (
        ("turbo_streams", auth.turbo_streams, auth.turbo_streams_secret),
        ("cable_ready", auth.cable_ready, auth.cable_ready_secret),
    ):
        if on and (own or auth.streams_secret or auth.secret) in ("", "none"):
            raise UserMistake(f"--{name} needs the secret that its names are signed with: set --{name}_secret")


def has_application(settings: Settings) -> bool:
    return bool(settings.app.app or (settings.app.rpc_host and not settings.app.norpc))


def _require_one_application(settings: Settings) -> None:
    app = settings.app
    if app.app and app.rpc_host and not app.norpc:
        raise UserMistake("--app and --rpc_host are two answers to one question: who decides about channels? Set one of them")
    for name in ("rpc_max_call_recv_size", "rpc_max_call_send_size"):
        if getattr(app, name) > MOST_OF_A_CALL:
            raise UserMistake(f"--{name} may be {MOST_OF_A_CALL} bytes")


def _require_whole_tls(settings: Settings) -> None:
    if bool(settings.server.ssl_cert) != bool(settings.server.ssl_key):
        missing = "ssl_key" if settings.server.ssl_cert else "ssl_cert"
        raise UserMistake(f"TLS needs both --ssl_cert and --ssl_key; --{missing} is missing")


def _require_host(settings: Settings) -> None:
    if not settings.server.host:
        raise UserMistake("--host wants an address to listen on; 0.0.0.0 is every interface")
    if settings.server.tcp_port and settings.server.host.startswith("unix:"):
        raise UserMistake("--tcp_port needs an address as --host, and not a Unix socket")
    if settings.server.tcp_port and settings.server.tcp_port == settings.server.port:
        raise UserMistake("--tcp_port is a second port, and --port has the same: leave it away, TCP is served on --port too")
    if settings.server.demo and not (settings.server.host.startswith("unix:") or is_loopback(settings.server.host)):
        raise UserMistake(f"--demo lets everybody in and listens on loopback only, not on {settings.server.host}; drop --host")


def _require_proxies(settings: Settings) -> None:
    server = settings.server
    TrustedProxies(server.trusted_proxies)
    if server.proxy_protocol and not server.trusted_proxies:
        raise UserMistake("--proxy_protocol needs --trusted_proxies: whose PROXY headers are believed?")
    if server.proxy_protocol and server.ssl_cert:
        raise UserMistake("--proxy_protocol does not go with --ssl_cert; let the proxy do TLS, or do without its header")


def _require_takeover(settings: Settings) -> None:
    if settings.server.takeover and not settings.journal.data_dir:
        raise UserMistake("--takeover needs --data_dir: without it there is nothing that the next process could go on with")


def _require_origins(settings: Settings) -> None:
    for origin in settings.server.allowed_origins:
        if not _ORIGIN.fullmatch(origin):
            raise UserMistake(
                f"--allowed_origins wants hosts, such as www.example.com, *.example.com or localhost:3000, not {origin!r}"
                + (": leave the scheme away" if "://" in origin else "")
            )


def _require_shards(settings: Settings) -> None:
    if not 1 <= settings.journal.journal_shards <= MOST_SHARDS:
        raise UserMistake(f"--journal_shards wants a number from 1 to {MOST_SHARDS}")


def _require_journal_for_archive(settings: Settings) -> None:
    if settings.archive.archive_dir and not settings.journal.data_dir:
        raise UserMistake("--archive_dir needs a journal, for the archive is written from it: set --data_dir")
    archive = Path(settings.archive.archive_dir)
    if "://" in settings.archive.archive_dir:
        raise UserMistake(f"--archive_dir wants a directory of this machine, not {settings.archive.archive_dir}")
    if archive.exists() and not archive.is_dir():
        raise UserMistake(f"--archive_dir wants a directory, and {archive} is none")


def _require_archive_within_reach(settings: Settings) -> None:
    """With an engine each worker reads hot history from there, and only the store process could join it with the archive."""
    if settings.server.workers > 1 and settings.archive.archive_dir and settings.broker.broker != "memory":
        raise UserMistake(
            f"--archive_dir with --broker={settings.broker.broker} is served by one worker only: leave --workers away, or "
            "serve the archive from a node of its own"
        )


# --- the paths of the one port: each is a path, and no two endpoints want the same -----------------------------------

# What a browser and a proxy pass on as it is written. Anything else would arrive in another form than the one set here.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*", re.ASCII)


def require_distinct_paths(settings: Settings) -> None:
    """Raises UserMistake."""
    if not settings.server.path:
        raise UserMistake("--path wants at least one path, such as /cable")
    chosen = chosen_paths(settings)
    for name, path in chosen:
        if not _PATH.fullmatch(path):
            raise UserMistake(f"--{name} wants a path that begins with / and has nothing of a query in it, not {path!r}")
    for number, (name, path) in enumerate(chosen):
        for other, taken in chosen[:number]:
            if path == taken:
                raise UserMistake(f"--{other} and --{name} are the same path, {path}")
        for owner, root in taken_roots(settings):
            if path == root or path.startswith(f"{root}/"):
                raise UserMistake(f"--{name} is {path}, where {owner} is already")


def chosen_paths(settings: Settings) -> list[tuple[str, str]]:
    """Settings that are paths, with the name of each."""
    metrics = [("metrics_http", settings.operations.metrics_http)] if settings.operations.metrics_http else []
    sse = [("sse_path", settings.sse.sse_path)] if settings.sse.sse else []
    return [
        *(("path", path) for path in settings.server.path),
        ("health_path", settings.server.health_path),
        *(("health_path", f"{settings.server.health_path.rstrip('/')}/{probe}") for probe in ("live", "ready")),
        ("http_broadcast_path", settings.broadcast.http_broadcast_path),
        ("api_path", settings.api.api_path),
        *metrics,
        *sse,
    ]


def taken_roots(settings: Settings) -> list[tuple[str, str]]:
    """Paths that endpoints have without being asked, they and all below them, with the owner of each."""
    api = settings.api.api_path.rstrip("/")
    roots = [("the REST API", f"{api}/{name}") for name in ("publish", "streams", "presence")]
    roots += [("the ring", f"{api}/ring")] if settings.ring.ring else []
    roots += [("the journal", "/journal")] if settings.journal.data_dir else []
    return [*roots, ("the demo page", "/demo")] if settings.server.demo else roots


def _require_replicas(settings: Settings) -> None:
    """A majority of them has to be there."""
    if settings.nats.nats_replicas not in USEFUL_REPLICAS:
        raise UserMistake(
            "--nats_replicas wants 1, 3 or 5: 3 outlive the loss of one server and 5 that of two, "
            "while 2 outlive none, and 4 no more than 3 do"
        )
