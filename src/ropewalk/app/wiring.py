"""Plugs the parts together. The only place that knows both sides."""

import time
from dataclasses import dataclass
from math import inf

from aiohttp import web

from ropewalk.adapters.apps.jwt import JwtAuthenticator
from ropewalk.adapters.apps.noauth import NoAuth
from ropewalk.adapters.apps.streams import PubSubChannel, cable_ready, turbo_streams
from ropewalk.adapters.broadcasters.http import PublishDoor
from ropewalk.adapters.metrics.prometheus import MetricsPage
from ropewalk.adapters.transports.door import Door
from ropewalk.adapters.transports.operations import OperationsDoor
from ropewalk.adapters.transports.rest import RestDoor
from ropewalk.adapters.transports.sse import SseDoor
from ropewalk.adapters.transports.websocket import WebSocketDoor
from ropewalk.app.applying import application_of, forwarding_of
from ropewalk.app.archiving import tiered
from ropewalk.app.journaling import JournalKeeper, RecoveringBackend, StoredJournal, journal_of
from ropewalk.app.keys import Keys, keys_of
from ropewalk.app.registry import BACKENDS, PUBSUBS, resolve
from ropewalk.app.settings import Settings
from ropewalk.app.transacting import journal_routes, transactions_of
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.dashboard.demo import DemoPage
from ropewalk.engine.annals import Annals, JournalAnnals
from ropewalk.engine.node import Node
from ropewalk.engine.transactions import Transactions
from ropewalk.model.limits import Limits
from ropewalk.model.rules import StreamRules
from ropewalk.ports import Authenticator, Backend, Channels, PubSub
from ropewalk.protocol.handshake import AllowedOrigins
from ropewalk.protocol.publications import PublicationLimits

IDLE_FACTOR = 10.0  # history TTLs for which a stream that lives in memory only is remembered


@dataclass(frozen=True)
class Parts:
    """A node and what its doors are made of, before anything listens."""

    node: Node
    backend: Backend
    journal: StoredJournal
    keeper: JournalKeeper
    transactions: Transactions | None
    stats: Stats
    keys: Keys


def build(settings: Settings) -> Parts:
    keys = keys_of(settings)
    stats = Stats()
    broker = settings.broker
    rules = Rulebook(StreamRules(broker.history_limit, broker.history_ttl), settings.streams)
    journal = journal_of(settings)
    kept = bool(settings.journal.data_dir)
    backend: RecoveringBackend = resolve(BACKENDS, broker.broker)(
        rules,
        time.time,
        dedup_ttl=broker.dedup_ttl,
        dedup_limit=broker.dedup_limit,
        journal=journal if kept else None,
        # What is written down is not lost by being idle, so its epoch must not change: the journal keeps every tip anyway.
        idle_factor=inf if kept else IDLE_FACTOR,
    )
    annals = JournalAnnals(journal, time.time) if kept else Annals()
    pubsub: PubSub = resolve(PUBSUBS, broker.pubsub)()
    whole = tiered(settings, backend, journal)
    node = Node(
        whole,
        pubsub,
        _authenticators(settings, keys),
        _channels(settings, keys),
        rules,
        _limits(settings),
        stats,
        time.time,
        annals,
        application_of(settings, keys, stats),
        forwarding_of(settings, keys),
    )
    keeper = JournalKeeper(settings, journal, backend)
    return Parts(node, whole, journal, keeper, transactions_of(settings, node.broker), stats, keys)


def _authenticators(settings: Settings, keys: Keys) -> list[Authenticator]:
    chain: list[Authenticator] = []
    if keys.jwt:
        chain.append(JwtAuthenticator(keys.jwt, settings.auth.jwt_param, settings.auth.enforce_jwt, time.time))
    if settings.auth.noauth:
        chain.append(NoAuth())
    return chain


def _channels(settings: Settings, keys: Keys) -> list[Channels]:
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
        max_subscriptions=settings.limits.max_subscriptions,
        max_member_info=settings.limits.max_member_info,
        command_rate=settings.limits.command_rate,
        command_burst=settings.limits.command_burst,
        sessions_ttl=settings.broker.sessions_ttl,
        presence_ttl=settings.broker.presence_ttl,
        resume_patience=settings.broker.resume_patience,
        ping_interval=settings.websocket.ping_interval,
        ping_precision=settings.websocket.ping_timestamp_precision,
        pong_timeout=settings.websocket.pong_timeout,
        native_pings=settings.websocket.enable_native_pings,
        max_stream_name=settings.limits.max_stream_name,
        max_payload=settings.limits.max_publish_size,
        disconnect_mode=settings.app.disconnect_mode,
        disconnect_rate=settings.app.disconnect_rate,
        disconnect_backlog=settings.app.disconnect_backlog_size,
    )


def websocket_door(settings: Settings, parts: Parts) -> WebSocketDoor:
    return WebSocketDoor(
        open_session=parts.node.open,
        paths=settings.server.path,
        origin_allowed=AllowedOrigins(settings.server.allowed_origins),
        token_param=settings.auth.jwt_param,
        max_message_size=settings.limits.max_message_size,
        native_pings=settings.websocket.enable_native_pings,
        secure=bool(settings.server.ssl_cert),
    )


def http_routes(settings: Settings, parts: Parts) -> list[web.RouteDef]:
    """The HTTP doors that are open under these settings."""
    node, api = parts.node, settings.api.api_path.rstrip("/")
    bounds = PublicationLimits(
        settings.limits.max_stream_name, settings.limits.max_publish_batch, settings.limits.max_publish_size
    )
    metrics = MetricsPage(parts.stats, node, parts.transactions.gauges if parts.transactions else dict)
    operations = OperationsDoor(node, metrics.render, metrics.content_type)
    routes = operations.routes(settings.server.health_path, settings.operations.metrics_http)
    if "http" in settings.broadcast.broadcast_adapter and parts.keys.broadcast is not None:
        door = PublishDoor(node.broker, parts.keys.broadcast, bounds, parts.stats)
        routes += door.routes(settings.broadcast.http_broadcast_path)
    if parts.keys.api is not None:
        routes += PublishDoor(node.broker, parts.keys.api, bounds, parts.stats).routes(f"{api}/publish")
        routes += RestDoor(parts.backend, parts.keys.api).routes(api)
    if settings.sse.sse:
        origins = AllowedOrigins(settings.server.allowed_origins)
        sse = SseDoor(node.open, origins, settings.limits.max_subscriptions, settings.auth.jwt_param)
        routes += sse.routes(settings.sse.sse_path)
    if parts.transactions is not None and parts.keys.journal is not None:
        routes += journal_routes(settings, parts.journal, parts.transactions, parts.keys.journal)
    if settings.server.demo:
        routes += DemoPage(settings.server.path[0], f"{api}/publish").routes()
    return routes


def upgrade_routes(settings: Settings, door: Door) -> list[web.RouteDef]:
    return [web.get(path, door.upgrade) for path in settings.server.path]
