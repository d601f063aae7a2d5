"""The composition root: builds a server from its settings. The only place that imports both engine and adapters."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropewalk import __version__
from ropewalk.adapters.apps.authenticators import JwtAuthenticator, NoAuth, SharedSecret, TokenRules, TokenVerifier
from ropewalk.adapters.apps.jwks import IssuerKeys, fetch
from ropewalk.adapters.apps.streams import PubSubChannel, cable_ready, turbo_streams
from ropewalk.adapters.endpoints.admission import ConnectionLimits
from ropewalk.adapters.endpoints.broky import BrokyEndpoint
from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.broky_shared import BrokyClients, BrokyOptions
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, encode_fields
from ropewalk.adapters.endpoints.operations import OperationsEndpoint, RestEndpoint, RingEndpoint
from ropewalk.adapters.endpoints.publish import PublishEndpoint
from ropewalk.adapters.endpoints.routes import ANY, HttpAnswer, HttpRoute
from ropewalk.adapters.endpoints.shared_port import SharedPort
from ropewalk.adapters.endpoints.sse import SseEndpoint
from ropewalk.adapters.endpoints.store_proxy import StoreProxy
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint, WebSocketOptions
from ropewalk.adapters.metrics import MetricsPage
from ropewalk.app.backends import ChosenBackend, build_backend
from ropewalk.app.broadcasters import Broadcasters, build_broadcasters
from ropewalk.app.embedded_nats import EmbeddedNats, build_embedded_nats
from ropewalk.app.journal import (
    JOURNAL_PATH,
    JournalKeeper,
    StoredJournal,
    build_journal,
    build_transactions,
    journal_routes,
    sessions_key,
)
from ropewalk.app.keys import Guards, Keys, build_guards, derive_keys, tls_context
from ropewalk.app.process_role import ALONE, ProcessKind, Role
from ropewalk.app.registry import APPLICATIONS, ARCHIVES, resolve
from ropewalk.app.settings import Settings, has_application
from ropewalk.core.credentials import Forwarding
from ropewalk.core.rules import Rulebook
from ropewalk.core.signatures import unverified_name
from ropewalk.core.stats import Stats
from ropewalk.dashboard import DemoPage, StaticPage
from ropewalk.engine.context import Access, EngineContext
from ropewalk.engine.inspection import NodeInspector, ReportSources
from ropewalk.engine.node import Node
from ropewalk.engine.tiered import TieredBackend
from ropewalk.engine.transactions import Transactions
from ropewalk.javascript import PATH, client_script
from ropewalk.model.limits import AppLimits, Limits
from ropewalk.model.rules import StreamRules
from ropewalk.ports import Application, Archive, Authenticator, Backend, Channels, Inspector, JournalReader
from ropewalk.protocol.handshake import PING_UNITS, AllowedOrigins
from ropewalk.protocol.proxies import TrustedProxies
from ropewalk.protocol.publications import PublicationLimits
from ropewalk.protocol.stream_keys import shown_key

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Parts:
    """A node and the parts of its endpoints, before anything listens.

    `rules`, `authenticators`, `channels` and the keys of `guards` can be replaced while the node runs.

    Attributes:
        chosen: the backend without the archive, and the parts that belong to it.
        backend: the same with the archive behind it.
        store_proxy: of a worker.
        journal_elsewhere: the store process of this worker has the journal.
    """

    node: Node
    inspector: NodeInspector
    chosen: ChosenBackend
    backend: Backend
    journal: StoredJournal
    keeper: JournalKeeper
    embedded_nats: EmbeddedNats | None
    transactions: Transactions | None
    broadcasters: Broadcasters
    store_proxy: StoreProxy | None
    journal_elsewhere: bool
    stats: Stats
    keys: Keys
    guards: Guards
    rules: Rulebook
    authenticators: list[Authenticator]
    channels: list[Channels]


def build(settings: Settings, role: Role = ALONE) -> Parts:
    """`settings`: adapted to the role of the process."""
    keys = derive_keys(settings)
    stats = Stats()
    settings, embedded_nats = build_embedded_nats(settings)
    rules = Rulebook(default_rules(settings), settings.streams)
    journal = build_journal(settings)
    chosen = build_backend(settings, rules, journal, stats, role)
    archive = build_archive(settings, journal)
    backend = tiered(settings, chosen.backend, archive)
    authenticating, channeling = authenticators(settings, keys), channels(settings, keys)
    node = Node(
        EngineContext(_limits(settings), rules, stats, time.time),
        backend,
        Access(
            authenticating,
            channeling,
            build_application(settings, keys, stats),
            build_forwarding(settings, keys),
            sessions_key(settings.journal.data_dir or role.data_dir or role.directory, keys.sessions),
        ),
        chosen.session_log,
        keeps_ephemeral=settings.broker.broker != "memory" or bool(settings.journal.data_dir or role.data_dir),
        stream_key=shown_key,
    )
    keeper = JournalKeeper(settings, journal, chosen.recovering)
    transactions = build_transactions(settings, node.broker)
    broadcasters = build_broadcasters(settings, node, stats, publication_limits(settings))
    sources = ReportSources(
        journal.spans,
        archive.gauges if archive is not None else dict,
        transactions.gauges if transactions is not None else dict,
        broadcasters.gauges,
        broadcasters.health,
        chosen.impairments,
        chosen.counts,
    )
    inspector = NodeInspector(node, sources)
    return Parts(
        node,
        inspector,
        chosen,
        backend,
        journal,
        keeper,
        embedded_nats,
        transactions,
        broadcasters,
        StoreProxy(role.store_socket) if role.kind is ProcessKind.WORKER else None,
        role.kind is ProcessKind.WORKER and bool(role.data_dir),
        stats,
        keys,
        build_guards(keys, stats.refusals),
        rules,
        authenticating,
        channeling,
    )


def default_rules(settings: Settings) -> StreamRules:
    return StreamRules(settings.broker.history_limit, settings.broker.history_ttl)


def authenticators(settings: Settings, keys: Keys) -> list[Authenticator]:
    chain: list[Authenticator] = []
    auth = settings.auth
    verifiers: list[TokenVerifier] = [SharedSecret(keys.jwt)] if keys.jwt else []
    if auth.jwks_url:
        verifiers.append(IssuerKeys(auth.jwks_url, fetch))
    if verifiers:
        rules = TokenRules(auth.jwt_param, auth.enforce_jwt, auth.jwt_issuer, auth.jwt_audience, auth.jwt_identity)
        chain.append(JwtAuthenticator(verifiers, rules))
    if auth.noauth:
        chain.append(NoAuth())
    return chain


def channels(settings: Settings, keys: Keys) -> list[Channels]:
    auth, longest = settings.auth, settings.limits.max_stream_name
    chain: list[Channels] = [
        PubSubChannel(auth.public_streams, keys.streams, auth.streams_whisper, auth.streams_presence, longest)
    ]
    if auth.turbo_streams:
        chain.append(turbo_streams(keys.turbo_streams, longest))
    if auth.cable_ready:
        chain.append(cable_ready(keys.cable_ready, longest))
    return chain


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_pending=settings.websocket.ws_max_pending_size,
        write_timeout=settings.websocket.ws_write_timeout,
        max_conn_per_user=settings.limits.max_conn_per_user,
        max_conn_per_address=settings.limits.max_conn_per_address,
        conn_rate_per_address=settings.limits.conn_rate_per_address,
        max_subscriptions=settings.limits.max_subscriptions,
        tcp_max_subscriptions=settings.limits.tcp_max_subscriptions,
        max_member_info=settings.limits.max_member_info,
        command_rate=settings.limits.command_rate,
        tcp_command_rate=settings.limits.tcp_command_rate,
        command_burst=settings.limits.command_burst,
        command_backlog=settings.limits.command_backlog,
        max_whisper=settings.limits.max_whisper_size,
        whisper_rate=settings.limits.whisper_rate,
        sessions_ttl=settings.broker.sessions_ttl,
        presence_ttl=settings.broker.presence_ttl,
        resume_timeout=settings.broker.resume_timeout,
        max_pending_history=settings.limits.max_pending_history,
        archive_replay=settings.archive.archive_replay_limit,
        ping_interval=settings.websocket.ping_interval,
        ping_units=PING_UNITS[settings.websocket.ping_timestamp_precision],
        pong_timeout=settings.websocket.pong_timeout,
        max_stream_name=settings.limits.max_stream_name,
        max_identifier=settings.limits.max_identifier,
        max_payload=settings.limits.max_publish_size,
        disconnect_mode=settings.app.disconnect_mode,
        disconnect_rate=settings.app.disconnect_rate,
        disconnect_backlog=settings.app.disconnect_backlog_size,
    )


def publication_limits(settings: Settings) -> PublicationLimits:
    limits = settings.limits
    return PublicationLimits(limits.max_stream_name, limits.max_publish_batch, limits.max_publish_size)


def _websocket_endpoint(settings: Settings, parts: Parts) -> WebSocketEndpoint:
    return WebSocketEndpoint(
        parts.node.open,
        _origins(settings, parts.stats),
        TrustedProxies(settings.server.trusted_proxies),
        WebSocketOptions(
            paths=settings.server.path,
            token_param=settings.auth.jwt_param,
            max_message_size=settings.limits.max_message_size,
            native_pings=settings.websocket.enable_native_pings,
            secure=bool(settings.server.ssl_cert),
        ),
    )


def _origins(settings: Settings, stats: Stats) -> AllowedOrigins:
    return AllowedOrigins(settings.server.allowed_origins, settings.server.require_origin, stats.refusals)


def build_shared_port(settings: Settings, parts: Parts) -> SharedPort:
    websocket = _websocket_endpoint(settings, parts)
    limits = settings.limits
    shared_port = SharedPort(
        websocket,
        ConnectionLimits(
            limits.max_conn,
            limits.max_http_conn,
            idle_timeout=limits.http_keepalive_timeout,
            write_timeout=settings.websocket.ws_write_timeout,
        ),
        parts.stats.refusals,
        TrustedProxies(settings.server.trusted_proxies),
        settings.server.proxy_protocol,
        _broky_endpoint(settings, parts),
    )
    return shared_port


def _broky_endpoint(settings: Settings, parts: Parts) -> BrokyEndpoint:
    broker = parts.node.broker
    guards = list(_publish_guards(settings, parts).values())
    return BrokyEndpoint(
        parts.node.open,
        Pushes(broker, publication_limits(settings), parts.stats, time.time, broker.instant),
        BrokyClients(guards, TrustedProxies(settings.server.trusted_proxies)),
        parts.stats,
        BrokyOptions(
            settings.limits.max_message_size,
            settings.websocket.ws_write_timeout,
            settings.journal.journal_shards,
            None if settings.auth.public_streams else unverified_name,
        ),
        LoopTurns(),
    )


def _publish_guards(settings: Settings, parts: Parts) -> dict[str, KeyGuard]:
    """The guards of the HTTP paths for publishing."""
    guards: dict[str, KeyGuard] = {}
    if parts.guards.api is not None:
        guards[f"{settings.api.api_path.rstrip('/')}/publish"] = parts.guards.api
    if "http" in settings.broadcast.broadcast_adapter and parts.guards.broadcast is not None:
        guards[settings.broadcast.http_broadcast_path] = parts.guards.broadcast
    return guards


def publish_endpoints(settings: Settings, parts: Parts) -> dict[str, PublishEndpoint]:
    """The HTTP endpoints for publishing, by path."""
    guards = _publish_guards(settings, parts)
    broker, bounds = parts.node.broker, publication_limits(settings)
    return {path: PublishEndpoint(broker, guard, bounds, parts.stats, instant=broker.instant) for path, guard in guards.items()}


def http_routes(settings: Settings, parts: Parts, shared_port: SharedPort, inspector: Inspector) -> list[HttpRoute]:
    """The routes of all configured HTTP endpoints. `inspector`: of the whole node."""
    node, api = parts.node, settings.api.api_path.rstrip("/")
    metrics = MetricsPage(inspector, __version__)
    operations = OperationsEndpoint(inspector, metrics.render, metrics.content_type)
    routes = [*operations.routes(settings.server.health_path, settings.operations.metrics_http), _client_route()]
    guards = parts.guards
    for path, endpoint in publish_endpoints(settings, parts).items():
        routes += endpoint.routes(path)
    if guards.api is not None:
        routes += RestEndpoint(parts.backend, guards.api).routes(api)
        if parts.chosen.ring is not None and guards.ring_changes is not None:
            routes += RingEndpoint(parts.chosen.ring, guards.api, guards.ring_changes).routes(api)
        elif parts.store_proxy is not None and settings.ring.ring:
            routes += parts.store_proxy.routes(f"{api}/ring")
    if settings.sse.sse:
        origins, most = _origins(settings, parts.stats), settings.limits.max_subscriptions
        sse = SseEndpoint(node.open, origins, most, parts.stats.refusals, settings.auth.jwt_param)
        routes.append(HttpRoute(ANY, settings.sse.sse_path, shared_port.admission.event_stream(sse.handle)))
    if parts.transactions is not None and guards.journal is not None:
        routes += journal_routes(settings, parts.journal, parts.transactions, guards.journal)
    if parts.store_proxy is not None and parts.journal_elsewhere and guards.journal is not None:
        routes += parts.store_proxy.routes(JOURNAL_PATH)
    if settings.server.demo:
        root = "/" not in {*settings.server.path, *(route.path for route in routes)}
        routes += [
            _fixed(path, page) for path, page in DemoPage(settings.server.path[0], f"{api}/publish", root).pages().items()
        ]
    return [*routes, *(HttpRoute("GET", path, shared_port.upgrade) for path in settings.server.path)]


def _fixed(path: str, page: StaticPage) -> HttpRoute:
    fields = encode_fields(page.headers)

    async def answer(request: HttpRequest) -> HttpAnswer:
        return HttpResponse(page.status, page.body, fields)

    return HttpRoute("GET", path, answer)


def _client_route() -> HttpRoute:
    """The JavaScript client. A browser that has the same file gets 304."""
    script, headers = client_script()
    fields = encode_fields(headers)

    async def answer(request: HttpRequest) -> HttpAnswer:
        if headers["ETag"] in request.headers.get("if-none-match"):
            return HttpResponse(304, fields=fields)
        return HttpResponse(200, script, fields)

    return HttpRoute("GET", PATH, answer)


# --- the application behind the server: Python channels, RPC over gRPC or HTTP, or none ------------------------------

HTTP_SCHEMES = ("http://", "https://")


def build_application(settings: Settings, keys: Keys, stats: Stats) -> Application | None:
    """Raises UserMistake for an application that cannot be loaded."""
    app = settings.app
    if app.app:
        return _python(settings, stats)
    if not has_application(settings):
        return None
    calls = resolve(APPLICATIONS, "calls")(stats, _app_limits(settings))
    application: Application
    if app.rpc_host.startswith(HTTP_SCHEMES):
        application = resolve(APPLICATIONS, "http")(
            app.rpc_host, keys.rpc, calls, restore=app.rpc_restore, tls_root_ca=app.rpc_tls_root_ca
        )
        return application
    application = resolve(APPLICATIONS, "grpc")(
        app.rpc_host,
        calls,
        resolve(APPLICATIONS, "grpc options")(
            tls=app.rpc_enable_tls,
            tls_root_ca=app.rpc_tls_root_ca,
            max_receive_bytes=app.rpc_max_call_recv_size,
            max_send_bytes=app.rpc_max_call_send_size,
        ),
        restore=app.rpc_restore,
    )
    return application


def _app_limits(settings: Settings) -> AppLimits:
    app = settings.app
    return AppLimits(
        threads=app.app_threads,
        timeout=app.app_timeout,
        concurrency=app.rpc_concurrency,
        command_timeout=app.rpc_command_timeout,
        request_timeout=app.rpc_request_timeout,
        wait_timeout=app.app_wait_timeout,
    )


def require_loadable(settings: Settings) -> None:
    """Raises UserMistake if certificates or the modules of the app cannot be loaded."""
    tls_context(settings)
    if settings.app.app:
        resolve(APPLICATIONS, "python app")(settings.app.app, settings.app.app_dir)


def _python(settings: Settings, stats: Stats) -> Application:
    app = settings.app
    application: Application = resolve(APPLICATIONS, "python")(
        app.app, stats, _app_limits(settings), directory=app.app_dir, reload=app.app_reload
    )
    return application


def build_forwarding(settings: Settings, keys: Keys) -> Forwarding:
    token = f"x-{settings.auth.jwt_param.lower()}" if keys.jwt or settings.auth.jwks_url else ""
    return Forwarding(settings.app.headers, settings.app.proxy_cookies, token)


# --- cold history ----------------------------------------------------------------------------------------------------


def build_archive(settings: Settings, journal: JournalReader) -> Archive | None:
    chosen = settings.archive
    if not chosen.archive_dir:
        return None
    archive: Archive = resolve(ARCHIVES, "archive")(
        chosen.archive_dir, settings.journal.journal_shards, time.time, chosen.archive_refresh, journal
    )
    return archive


def tiered(settings: Settings, hot: Backend, archive: Archive | None) -> Backend:
    """Extends the history of a backend with the archive, if there is one."""
    return hot if archive is None else TieredBackend(hot, archive, settings.archive.archive_replay_limit)
