"""The settings by section. Each is declared once, here or in `store_sections`.

All limits have finite defaults, so that a server with default settings is protected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ropewalk.app.settings.declare import (
    Setting,
    address,
    choice,
    choices,
    count,
    declared_in,
    duration,
    milliseconds,
    number_of_workers,
    port_number,
    secret_text,
    size,
    switch,
    text,
    words,
)
from ropewalk.app.settings.store_sections import (
    ArchiveSettings,
    BrokerSettings,
    EmbeddedNatsSettings,
    JournalSettings,
    NatsSettings,
    RedisSettings,
    RingSettings,
)
from ropewalk.model.limits import APP_LIMITS, Limits
from ropewalk.model.rules import StreamRule
from ropewalk.protocol.publications import PublicationLimits

# The server's parts have the same defaults when they are used without settings.
_SESSION = Limits()
_PUBLISH = PublicationLimits()


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, and in which mode."""

    host: str = text(
        "127.0.0.1",
        "Address to listen on: 0.0.0.0 for every IPv4 address, :: for those of IPv6 too, unix:/path for a Unix socket.",
    )
    port: int = port_number(8080, "Port to listen on; 0 takes a free one.", also_env="PORT")
    tcp_port: int = port_number(
        0, "A second port with the same protocols, for Broky behind a firewall or proxy of its own; here 0 means none."
    )
    workers: int = number_of_workers(
        1, "Processes that serve clients, all at the same port; `auto`: one for each core that this server may use."
    )
    path: tuple[str, ...] = words(("/cable",), "Paths of the WebSocket endpoint.")
    health_path: str = text("/health", "Path of the health page.")
    allowed_origins: tuple[str, ...] = words((), "Hosts a browser may connect from, such as `*.example.com`; empty allows all.")
    require_origin: bool = switch(
        False, "With --allowed_origins, also refuse clients without an Origin header, which are programs and not browsers."
    )
    trusted_proxies: tuple[str, ...] = words(
        (), "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed: addresses, networks (10.0.0.0/8), or unix."
    )
    proxy_protocol: bool = switch(False, "Connections of --trusted_proxies begin with a PROXY header, version 1 or 2.")
    takeover: bool = switch(
        False, "Share the port (SO_REUSEPORT) with a server that has the same --data_dir, tell it to end, and take its place."
    )
    takeover_timeout: float = duration(120.0, "How long --takeover waits for the other server to end.", positive=True)
    ssl_cert: str = text("", "File with the TLS certificate chain (PEM).")
    ssl_key: str = text("", "File with the TLS private key (PEM).")
    node_id: str = text("", "Name of this node among others, which stays the same when it starts again; empty makes one up.")
    demo: bool = switch(False, "Public mode with SSE and the demo page at /demo, to which / leads; loopback only.")
    presets: tuple[str, ...] = choices((), ("broker",), "Named sets of defaults: `broker`.")


@dataclass(frozen=True)
class AuthSettings:
    """Who may connect, and to which streams."""

    secret: str = secret_text("The one secret from which every key that is not set by itself derives.")
    public: bool = switch(False, "Everyone may connect, subscribe to public streams and publish. Not for production.")
    noauth: bool = switch(False, "Everyone may connect.")
    jwt_secret: str = secret_text("Secret of the JWT tokens that clients connect with; `none` turns JWT off.")
    jwt_param: str = text("jid", "Query parameter of the JWT; its header is the same with x- before it.")
    enforce_jwt: bool = switch(False, "Refuse clients without a JWT.")
    streams_secret: str = secret_text("Secret of signed stream names; `none` refuses signed names.")
    public_streams: bool = switch(False, "Clients may subscribe to unsigned stream names.")
    streams_whisper: bool = switch(False, "Clients may whisper to signed streams; to public ones they always may.")
    streams_presence: bool = switch(True, "Signed streams have presence; public ones always have it.")
    turbo_streams: bool = switch(False, "Accept the signed stream names of Turbo (Hotwire).")
    turbo_streams_secret: str = secret_text("Secret of Turbo's stream names; the streams secret when empty.")
    cable_ready: bool = switch(False, "Accept the signed stream names of CableReady.")
    cable_ready_secret: str = secret_text("Secret of CableReady's stream names; the streams secret when empty.")


@dataclass(frozen=True)
class AppSettings:
    """The application behind the server: Python channels in this process, or another one that is asked by RPC."""

    app: str = text("", "Python channels to run, as `module:app`.")
    app_dir: str = text(".", "Directory from which the module of --app is imported.")
    app_reload: bool = switch(False, "Load --app again when its files change; for development.")
    app_threads: int = count(APP_LIMITS.threads, "Threads for handlers that are not async.", positive=True)
    app_timeout: float = duration(
        APP_LIMITS.timeout, "How long a handler of --app may take, from when it begins.", positive=True
    )
    app_wait_timeout: float = duration(
        APP_LIMITS.wait_timeout,
        "How long a call to the application, --app or RPC, may wait until it begins: for a thread, or for --rpc_concurrency.",
        positive=True,
    )
    rpc_host: str = address(
        "", "Application to ask: `host:port`, `dns:///host:port`, `grpc-list://h1:p,h2:p`, or a URL for RPC over HTTP."
    )
    norpc: bool = switch(False, "Ask no application, whatever --rpc_host says.")
    rpc_concurrency: int = count(APP_LIMITS.concurrency, "Calls to the application at once; others wait.", positive=True)
    rpc_command_timeout: float = milliseconds(
        APP_LIMITS.command_timeout, "How long a call may take with all its retries, from when it begins.", positive=True
    )
    rpc_request_timeout: float = milliseconds(0.0, "How long one try of a call may take; 0 sets no limit of its own.")
    rpc_restore: bool = switch(False, "Tell the application of restored sessions, by the call Restore.")
    rpc_enable_tls: bool = switch(False, "Speak TLS with a gRPC application.")
    rpc_tls_root_ca: str = text("", "File with the certificates to trust there (PEM); empty trusts the usual ones.")
    rpc_max_call_recv_size: int = size(0, "Bytes of an answer over gRPC; 0 leaves it to the library.")
    rpc_max_call_send_size: int = size(0, "Bytes of a call over gRPC; 0 leaves it to the library.")
    http_rpc_secret: str = secret_text("Bearer key that RPC over HTTP proves itself with; `none` sends none.")
    headers: tuple[str, ...] = words(("cookie",), "Headers of a connection that the application sees.")
    proxy_cookies: tuple[str, ...] = words((), "Cookies that the application sees; empty shows all.")
    disconnect_mode: str = choice(
        _SESSION.disconnect_mode,
        ("auto", "always", "never"),
        "Of which sessions the application hears the end: those it was asked about, all, none.",
    )
    disconnect_rate: int = count(int(_SESSION.disconnect_rate), "Ends a second that the application hears of; 0 sets no limit.")
    disconnect_backlog_size: int = count(
        _SESSION.disconnect_backlog, "Ends that may wait to be told; more are dropped and counted.", positive=True
    )


@dataclass(frozen=True)
class BroadcastSettings:
    """How publications come in from applications."""

    broadcast_adapter: tuple[str, ...] = choices(
        ("http",),
        ("http", "redisx", "redis", "nats"),
        "Broadcasters to start: http, redisx (Redis Streams), redis and nats (fan-out without history).",
        alias="broadcaster",
    )
    broadcast_key: str = secret_text("Bearer key for publishing over HTTP; `none` needs none.")
    http_broadcast_path: str = text("/_broadcast", "Path that accepts publications.")
    redisx_stream: str = text("__anycable__", "Key of the Redis stream that redisx reads.")
    redisx_group: str = text("bx", "Consumer group that shares it among nodes.")
    redisx_read_block_milliseconds: float = milliseconds(
        2.0, "How long one read of it waits for entries before it is repeated.", positive=True
    )
    redis_channel: str = text("__anycable__", "Redis channel that redis subscribes to.")
    nats_channel: str = text("__anycable__", "NATS subject that nats subscribes to.")


@dataclass(frozen=True)
class ApiSettings:
    """The REST API."""

    api_path: str = text("/api", "Where the REST API begins.")
    api_secret: str = secret_text("Bearer key for the REST API; `none` needs none.")


@dataclass(frozen=True)
class WebSocketSettings:
    """Pings, and what waits for a slow connection."""

    ping_interval: float = duration(3.0, "Time between pings; 0 sends none.")
    ping_timestamp_precision: str = choice("s", ("s", "ms", "ns"), "Unit of the timestamp in a ping.")
    pong_timeout: float = duration(0.0, "How long a client may leave a ping unanswered; 0 waits for ever.")
    enable_native_pings: bool = switch(False, "Also send WebSocket ping frames.")
    ws_write_timeout: float = duration(
        _SESSION.write_timeout,
        "How long a connection may take nothing of what waits for it before it is closed.",
        positive=True,
    )
    ws_max_pending_size: int = size(
        _SESSION.max_pending,
        "Bytes that may wait for one connection before its stream's slow_consumer rule acts.",
        positive=True,
    )


@dataclass(frozen=True)
class SseSettings:
    """Server-sent events."""

    sse: bool = switch(False, "Serve streams as server-sent events too.")
    sse_path: str = text("/events", "Path of the SSE endpoint.")


@dataclass(frozen=True)
class LimitSettings:
    """How much anyone may ask for."""

    max_conn: int = count(65536, "Clients at once, over WebSocket, SSE and TCP; 0 sets no limit.")
    max_http_conn: int = count(4096, "Other HTTP connections at once: publishers, API, health, metrics; 0 sets no limit.")
    max_conn_per_user: int = count(
        _SESSION.max_conn_per_user, "Clients at once with the same connection identifiers; 0 sets no limit."
    )
    max_conn_per_address: int = count(
        _SESSION.max_conn_per_address,
        "Clients at once from one address, for IPv6 from one /64; not from this machine. 0 sets no limit.",
    )
    conn_rate_per_address: int = count(
        int(_SESSION.conn_rate_per_address),
        "Clients a second from one address, and at once as many as in 10 seconds; not from this machine. 0 sets no limit.",
    )
    http_keepalive_timeout: float = duration(
        75.0, "How long an HTTP connection may stay open between two requests.", positive=True
    )
    max_message_size: int = size(65536, "Bytes of one message from a client.", positive=True)
    max_publish_size: int = size(_PUBLISH.max_publish_size, "Bytes of one HTTP publish request.", positive=True)
    max_publish_batch: int = count(_PUBLISH.max_batch, "Publications in one HTTP publish request.", positive=True)
    max_subscriptions: int = count(
        _SESSION.max_subscriptions, "Subscriptions of one session; over TCP see the next one.", positive=True
    )
    tcp_max_subscriptions: int = count(
        _SESSION.tcp_max_subscriptions,
        "Subscriptions of one connection over TCP, a program that may have many streams. Each takes 2 to 3 KB of memory.",
        positive=True,
    )
    max_identifier: int = size(_SESSION.max_identifier, "Bytes of the identifier of a subscription.", positive=True)
    max_pending_history: int = size(
        _SESSION.max_pending_history,
        "Bytes of history that may wait in one process until clients take them; 0 sets no limit.",
    )
    max_session_size: int = size(
        128 << 10, "Bytes of one session that is kept for resuming; a larger one is not kept.", positive=True
    )
    max_sessions_size: int = size(
        256 << 20, "Bytes of all sessions that are kept for resuming; the oldest go first.", positive=True
    )
    command_rate: int = count(
        int(_SESSION.command_rate), "Commands a second one connection may send; 0 sets no limit. Over TCP see the next one."
    )
    tcp_command_rate: int = count(
        int(_SESSION.tcp_command_rate),
        "Commands a second one connection over TCP may send; 0 sets no limit. Pushes are not commands. A command takes about "
        "50 µs, so that 5000 a second keep a core busy for a quarter of its time.",
    )
    command_burst: int = count(
        _SESSION.command_burst, "Commands a connection may send at once before its rate counts.", positive=True
    )
    command_backlog: float = duration(
        _SESSION.command_backlog,
        "How long commands beyond the rate may keep a connection waiting before it is closed.",
        positive=True,
    )
    max_whisper_size: int = size(_SESSION.max_whisper, "Bytes of one whisper; a larger one is dropped.", positive=True)
    whisper_rate: int = size(
        int(_SESSION.whisper_rate), "Bytes of whispers a second that one session may send; more are dropped. 0 sets no limit."
    )
    max_stream_name: int = size(
        _SESSION.max_stream_name,
        "Bytes of a stream's name, to publish, to subscribe and to read alike; --max_identifier should be 8 times as much.",
        positive=True,
    )
    max_member_info: int = size(_SESSION.max_member_info, "Bytes of what a member says of itself.", positive=True)


@dataclass(frozen=True)
class OperationsSettings:
    """Metrics and shutting down."""

    metrics_http: str = text("/metrics", "Path of the Prometheus metrics; empty turns them off.")
    shutdown_delay: float = duration(0.0, "Wait between the signal and the first goodbye.")
    shutdown_spread: float = duration(1.0, "Sessions are told to leave spread over this time.")
    reconnect_rate: int = count(
        2000, "Clients a second that are told to come back when the server ends, as far as they understand it; 0 tells none."
    )
    shutdown_timeout: float = duration(30.0, "When shutting down takes longer than this, it is cut short.")


@dataclass(frozen=True)
class LoggingSettings:
    """What is logged, and how."""

    log_level: str = choice("info", ("debug", "info", "warn", "error"), "Least serious level to log.")
    log_format: str = choice("text", ("text", "json"), "One line a record, as text or JSON.")
    debug: bool = switch(False, "Log at level debug, and what clients and publishers send and get; for development.")


@dataclass(frozen=True)
class Settings:
    """Every setting, by section, and where each value came from (setting name → words)."""

    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    app: AppSettings = AppSettings()
    broadcast: BroadcastSettings = BroadcastSettings()
    api: ApiSettings = ApiSettings()
    broker: BrokerSettings = field(default=BrokerSettings())
    redis: RedisSettings = field(default=RedisSettings())
    nats: NatsSettings = field(default=NatsSettings())
    enats: EmbeddedNatsSettings = field(default=EmbeddedNatsSettings())
    ring: RingSettings = field(default=RingSettings())
    journal: JournalSettings = field(default=JournalSettings())
    archive: ArchiveSettings = field(default=ArchiveSettings())
    websocket: WebSocketSettings = WebSocketSettings()
    sse: SseSettings = SseSettings()
    limits: LimitSettings = LimitSettings()
    operations: OperationsSettings = OperationsSettings()
    logging: LoggingSettings = LoggingSettings()
    streams: tuple[StreamRule, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


SECTIONS: dict[str, type] = {
    place.name: type(place.default) for place in fields(Settings) if place.name not in ("streams", "origins")
}
SETTINGS: dict[str, Setting] = {
    setting.name: setting for section, holder in SECTIONS.items() for setting in declared_in(section, holder)
}
