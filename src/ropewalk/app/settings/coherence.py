"""Settings that only make sense together: what a server must have before it opens its doors.

Every refusal says what to set instead.
"""

from collections import Counter
from ipaddress import ip_address

from ropewalk.app.settings.sections import Settings
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.proxies import TrustedProxies

MOST_SHARDS = 256  # each has a file open for writing


def require_startable(settings: Settings) -> None:
    """Raises UserMistake for the first thing that forbids starting."""
    _require_known_clients(settings)
    _require_one_application(settings)
    _require_whole_tls(settings)
    _require_loopback_demo(settings)
    _require_proxies(settings)
    _require_takeover(settings)
    _require_distinct_paths(settings)
    _require_shards(settings)
    _require_journal_for_archive(settings)


def _require_known_clients(settings: Settings) -> None:
    auth = settings.auth
    jwt = (auth.jwt_secret or auth.secret) not in ("", "none")
    if not jwt and auth.enforce_jwt:
        raise UserMistake("--enforce_jwt needs a secret: set --jwt_secret or --secret")
    if not jwt and not auth.noauth and not has_application(settings):
        raise UserMistake(
            "nobody could connect, and the server does not open itself to everybody unasked. Set one of:\n"
            "  --secret SECRET      clients connect with JWT tokens (ropewalk token makes them)\n"
            "  --jwt_secret SECRET  the same, with a secret of its own\n"
            "  --app MODULE:APP     your Python channels decide\n"
            "  --rpc_host HOST      your application decides, asked by RPC\n"
            "  --noauth             everybody may connect, and may subscribe to signed streams\n"
            "  --public             everybody may connect, subscribe and publish; for development"
        )


def has_application(settings: Settings) -> bool:
    return bool(settings.app.app or (settings.app.rpc_host and not settings.app.norpc))


def _require_one_application(settings: Settings) -> None:
    app = settings.app
    if app.app and app.rpc_host and not app.norpc:
        raise UserMistake("--app and --rpc_host are two answers to one question: who decides about channels? Set one of them")
    for name in ("rpc_concurrency", "app_threads", "disconnect_backlog_size"):
        if getattr(app, name) < 1:
            raise UserMistake(f"--{name} wants a number from 1 on")


def _require_whole_tls(settings: Settings) -> None:
    if bool(settings.server.ssl_cert) != bool(settings.server.ssl_key):
        missing = "ssl_key" if settings.server.ssl_cert else "ssl_cert"
        raise UserMistake(f"TLS needs both --ssl_cert and --ssl_key; --{missing} is missing")


def _require_loopback_demo(settings: Settings) -> None:
    if settings.server.demo and not _is_loopback(settings.server.host):
        raise UserMistake(f"--demo lets everybody in and listens on loopback only, not on {settings.server.host}; drop --host")


def _is_loopback(host: str) -> bool:
    if host.startswith("unix:"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


def _require_shards(settings: Settings) -> None:
    if not 1 <= settings.journal.journal_shards <= MOST_SHARDS:
        raise UserMistake(f"--journal_shards wants a number from 1 to {MOST_SHARDS}")


def _require_journal_for_archive(settings: Settings) -> None:
    if settings.archive.archive_dir and not settings.journal.data_dir:
        raise UserMistake("--archive_dir needs a journal, for the archive is written from it: set --data_dir")
    if settings.archive.archive_dir and settings.archive.archive_replay_limit < 1:
        raise UserMistake("--archive_replay_limit wants a number from 1 on")


def _require_distinct_paths(settings: Settings) -> None:
    paths = _paths(settings)
    for name, path in paths:
        if not path.startswith("/"):
            raise UserMistake(f"--{name} wants a path that begins with /, not {path!r}")
    twice = [path for path, times in Counter(path for _, path in paths).items() if times > 1]
    if twice:
        names = " and ".join(f"--{name}" for name, path in paths if path == twice[0])
        raise UserMistake(f"{names} are the same path, {twice[0]}")


def _paths(settings: Settings) -> list[tuple[str, str]]:
    optional = [("metrics_http", settings.operations.metrics_http)] if settings.operations.metrics_http else []
    sse = [("sse_path", settings.sse.sse_path)] if settings.sse.sse else []
    return [
        *(("path", path) for path in settings.server.path),
        ("health_path", settings.server.health_path),
        *(("health_path", f"{settings.server.health_path.rstrip('/')}/{probe}") for probe in ("live", "ready")),
        ("http_broadcast_path", settings.broadcast.http_broadcast_path),
        ("api_path", settings.api.api_path),
        *optional,
        *sse,
    ]
