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
    """Listeners, TLS, proxies and modes."""

    host: str = text(
        "127.0.0.1",
        "Address to listen on: 0.0.0.0 for every IPv4 address, :: for those of IPv6 too, unix:/path for a Unix socket.",
    )
    port: int = port_number(8080, "Port to listen on; 0 takes a free port.", also_env="PORT")
    tcp_port: int = port_number(
        0, "A second port with the same protocols, for Broky behind a separate firewall or proxy; 0 opens none."
    )
    workers: int = number_of_workers(1, "Processes that serve clients on the same port; `auto`: one for each usable core.")
    path: tuple[str, ...] = words(("/cable",), "Paths of the WebSocket endpoint.")
    health_path: str = text("/health", "Path of the health endpoint.")
    allowed_origins: tuple[str, ...] = words((), "Hosts a browser may connect from, such as `*.example.com`; empty allows all.")
    require_origin: bool = switch(
        False, "With --allowed_origins, also reject clients without an Origin header, which are not browsers."
    )
    trusted_proxies: tuple[str, ...] = words(
        (), "Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted: addresses, networks (10.0.0.0/8), or `unix`."
    )
    proxy_protocol: bool = switch(False, "Expect a PROXY header, version 1 or 2, on connections from --trusted_proxies.")
    takeover: bool = switch(
        False, "Share the port (SO_REUSEPORT) with the running server of the same --data_dir, stop it, and replace it."
    )
    takeover_timeout: float = duration(120.0, "How long --takeover waits for the other server to stop.", positive=True)
    ssl_cert: str = text("", "File with the TLS certificate chain (PEM).")
    ssl_key: str = text("", "File with the TLS private key (PEM).")
    node_id: str = text("", "Name of this node in a cluster, kept across restarts; empty generates one.")
    demo: bool = switch(False, "Public mode with SSE and the demo page at /demo, with a redirect from /; loopback only.")
    presets: tuple[str, ...] = choices((), ("broker",), "Named sets of defaults: `broker`.")


@dataclass(frozen=True)
class AuthSettings:
    """Authentication of clients and stream names."""

    secret: str = secret_text("Secret from which all keys that are not set separately are derived.")
    public: bool = switch(
        False, "Clients may connect, subscribe to public streams and publish without authentication. Development only."
    )
    noauth: bool = switch(False, "Clients may connect without authentication.")
    jwt_secret: str = secret_text("Secret of the JWT tokens that clients connect with; `none` turns JWT off.")
    jwt_param: str = text("jid", "Query parameter of the JWT; the header is the same name with the prefix x-.")
    jwks_url: str = text(
        "", "Address of the public keys (a JSON Web Key Set) of an identity provider whose JWT tokens clients connect with."
    )
    jwt_issuer: str = text("", "The `iss` that tokens must have; empty accepts any.")
    jwt_audience: str = text("", "An `aud` that tokens must have; empty accepts any.")
    jwt_identity: str = choice("ext", ("ext", "sub"), 'The claim that identifies the client; `sub` is used as {"sub":"…"}.')
    enforce_jwt: bool = switch(False, "Reject clients without a JWT.")
    streams_secret: str = secret_text("Secret of signed stream names; `none` rejects signed names.")
    public_streams: bool = switch(False, "Clients may subscribe to unsigned stream names.")
    streams_whisper: bool = switch(False, "Allow whispers on signed streams; public streams always allow them.")
    streams_presence: bool = switch(True, "Enable presence on signed streams; public streams always have it.")
    turbo_streams: bool = switch(False, "Accept the signed stream names of Turbo (Hotwire).")
    turbo_streams_secret: str = secret_text("Secret of Turbo's stream names; empty uses the streams secret.")
    cable_ready: bool = switch(False, "Accept the signed stream names of CableReady.")
    cable_ready_secret: str = secret_text("Secret of CableReady's stream names; empty uses the streams secret.")


@dataclass(frozen=True)
class AppSettings:
    """The application: Python channels in this process, or a separate process called over RPC."""

    app: str = text("", "Python channels to run, as `module:app`.")
    app_dir: str = text(".", "Directory from which the module of --app is imported.")
    app_reload: bool = switch(False, "Reload --app when its files change (development only).")
    app_threads: int = count(APP_LIMITS.threads, "Threads for handlers that are not async.", positive=True)
    app_timeout: float = duration(APP_LIMITS.timeout, "Timeout of a handler of --app, from when it starts.", positive=True)
    app_wait_timeout: float = duration(
        APP_LIMITS.wait_timeout,
        "How long a call to the application may queue for a thread (--app) or for --rpc_concurrency.",
        positive=True,
    )
    rpc_host: str = address(
        "", "Application to call: `host:port`, `dns:///host:port`, `grpc-list://h1:p,h2:p`, or a URL for RPC over HTTP."
    )
    norpc: bool = switch(False, "Disable RPC even if --rpc_host is set.")
    rpc_concurrency: int = count(
        APP_LIMITS.concurrency, "Maximum concurrent calls to the application; further calls are queued.", positive=True
    )
    rpc_command_timeout: float = milliseconds(
        APP_LIMITS.command_timeout, "Timeout of a call including its retries, from when it starts.", positive=True
    )
    rpc_request_timeout: float = milliseconds(0.0, "Timeout of one attempt of a call; 0 leaves only --rpc_command_timeout.")
    rpc_restore: bool = switch(False, "Call Restore in the application when a session is restored.")
    rpc_enable_tls: bool = switch(False, "Use TLS to a gRPC application.")
    rpc_tls_root_ca: str = text("", "File with trusted CA certificates (PEM); empty uses those of the system.")
    rpc_max_call_recv_size: int = size(0, "Maximum bytes of a gRPC response; 0 uses the default of the library.")
    rpc_max_call_send_size: int = size(0, "Maximum bytes of a gRPC request; 0 uses the default of the library.")
    http_rpc_secret: str = secret_text("Bearer key sent with RPC over HTTP; `none` sends none.")
    headers: tuple[str, ...] = words(("cookie",), "Headers of a connection to forward to the application.")
    proxy_cookies: tuple[str, ...] = words((), "Cookies to forward to the application; empty forwards all.")
    disconnect_mode: str = choice(
        _SESSION.disconnect_mode,
        ("auto", "always", "never"),
        "Which sessions trigger a Disconnect call: `auto` (those the application authenticated), `always`, `never`.",
    )
    disconnect_rate: int = count(int(_SESSION.disconnect_rate), "Maximum Disconnect calls a second; 0 sets no limit.")
    disconnect_backlog_size: int = count(
        _SESSION.disconnect_backlog, "Maximum queued Disconnect calls; further ones are dropped and counted.", positive=True
    )


@dataclass(frozen=True)
class BroadcastSettings:
    """Ingress of publications from applications."""

    broadcast_adapter: tuple[str, ...] = choices(
        ("http",),
        ("http", "redisx", "redis", "nats"),
        "Broadcasters to start: http, redisx (Redis Streams), redis and nats (live only, without history).",
        alias="broadcaster",
    )
    broadcast_key: str = secret_text("Bearer key for publishing over HTTP; `none` requires none.")
    http_broadcast_path: str = text("/_broadcast", "Path that accepts publications.")
    redisx_stream: str = text("__anycable__", "Key of the Redis stream that redisx reads.")
    redisx_group: str = text("bx", "Consumer group of redisx, which divides the entries among nodes.")
    redisx_read_block_milliseconds: float = milliseconds(2.0, "How long one read of redisx blocks for entries.", positive=True)
    redis_channel: str = text("__anycable__", "Redis channel that redis subscribes to.")
    nats_channel: str = text("__anycable__", "NATS subject that nats subscribes to.")


@dataclass(frozen=True)
class ApiSettings:
    """The REST API."""

    api_path: str = text("/api", "Base path of the REST API.")
    api_secret: str = secret_text("Bearer key for the REST API; `none` requires none.")


@dataclass(frozen=True)
class WebSocketSettings:
    """Pings, and limits of slow connections."""

    ping_interval: float = duration(3.0, "Time between pings; 0 sends none.")
    ping_timestamp_precision: str = choice("s", ("s", "ms", "ns"), "Unit of the timestamp in a ping.")
    pong_timeout: float = duration(0.0, "Time a client has to answer a ping before its connection is closed; 0 sets no limit.")
    enable_native_pings: bool = switch(False, "Also send WebSocket ping frames.")
    ws_write_timeout: float = duration(
        _SESSION.write_timeout,
        "Time after which a connection that reads none of its pending data is closed.",
        positive=True,
    )
    ws_max_pending_size: int = size(
        _SESSION.max_pending,
        "Maximum pending bytes of a connection; beyond it, the stream's slow_consumer rule applies.",
        positive=True,
    )


@dataclass(frozen=True)
class SseSettings:
    """Server-sent events."""

    sse: bool = switch(False, "Serve streams as server-sent events (SSE) too.")
    sse_path: str = text("/events", "Path of the SSE endpoint.")


@dataclass(frozen=True)
class LimitSettings:
    """Limits on connections, messages and rates."""

    max_conn: int = count(65536, "Maximum concurrent clients over WebSocket, SSE and TCP; 0 sets no limit.")
    max_http_conn: int = count(
        4096, "Maximum concurrent other HTTP connections: publishers, API, health, metrics; 0 sets no limit."
    )
    max_conn_per_user: int = count(
        _SESSION.max_conn_per_user, "Maximum concurrent clients with the same connection identifiers; 0 sets no limit."
    )
    max_conn_per_address: int = count(
        _SESSION.max_conn_per_address,
        "Maximum concurrent clients from one address, for IPv6 one /64. Loopback is exempt. 0 sets no limit.",
    )
    conn_rate_per_address: int = count(
        int(_SESSION.conn_rate_per_address),
        "New clients a second from one address, with bursts of 10 seconds. Loopback is exempt. 0 sets no limit.",
    )
    http_keepalive_timeout: float = duration(75.0, "Idle timeout of an HTTP connection between requests.", positive=True)
    max_message_size: int = size(65536, "Maximum bytes of a message from a client.", positive=True)
    max_publish_size: int = size(_PUBLISH.max_publish_size, "Maximum bytes of an HTTP publish request.", positive=True)
    max_publish_batch: int = count(_PUBLISH.max_batch, "Maximum publications in an HTTP publish request.", positive=True)
    max_subscriptions: int = count(
        _SESSION.max_subscriptions, "Maximum subscriptions of a session; see --tcp_max_subscriptions for TCP.", positive=True
    )
    tcp_max_subscriptions: int = count(
        _SESSION.tcp_max_subscriptions,
        "Maximum subscriptions of a TCP connection. Each takes 2 to 3 KB of memory.",
        positive=True,
    )
    max_identifier: int = size(_SESSION.max_identifier, "Maximum bytes of the identifier of a subscription.", positive=True)
    max_pending_history: int = size(
        _SESSION.max_pending_history,
        "Maximum pending bytes of history for clients of one process; 0 sets no limit.",
    )
    max_session_size: int = size(
        128 << 10, "Maximum bytes of a session stored for resuming; larger sessions are not stored.", positive=True
    )
    max_sessions_size: int = size(
        256 << 20, "Maximum bytes of all sessions stored for resuming; the oldest are dropped first.", positive=True
    )
    command_rate: int = count(
        int(_SESSION.command_rate),
        "Maximum commands a second of a connection; 0 sets no limit. see --tcp_command_rate for TCP.",
    )
    tcp_command_rate: int = count(
        int(_SESSION.tcp_command_rate),
        "Maximum commands a second of a TCP connection; 0 sets no limit. Pushes do not count. A command takes about "
        "50 µs, so 5000 a second use a quarter of a core.",
    )
    command_burst: int = count(
        _SESSION.command_burst, "Commands that a connection may send in a burst above its rate.", positive=True
    )
    command_backlog: float = duration(
        _SESSION.command_backlog,
        "Maximum delay of commands above the rate; beyond it, the connection is closed.",
        positive=True,
    )
    max_whisper_size: int = size(
        _SESSION.max_whisper, "Maximum bytes of a whisper; larger whispers are dropped.", positive=True
    )
    whisper_rate: int = size(
        int(_SESSION.whisper_rate),
        "Maximum bytes of whispers a second of a session; further ones are dropped. 0 sets no limit.",
    )
    max_stream_name: int = size(
        _SESSION.max_stream_name,
        "Maximum bytes of a stream name; --max_identifier should be 8 times as large.",
        positive=True,
    )
    max_member_info: int = size(
        _SESSION.max_member_info, "Maximum bytes of the id and of the info of a presence member.", positive=True
    )


@dataclass(frozen=True)
class OperationsSettings:
    """Metrics and shutdown."""

    metrics_http: str = text("/metrics", "Path of the Prometheus metrics; empty disables them.")
    shutdown_delay: float = duration(0.0, "Delay between the signal and the first disconnect.")
    shutdown_spread: float = duration(1.0, "Time over which many sessions are disconnected; few take less.")
    reconnect_rate: int = count(
        2000, "Reconnect requests to clients per second on shutdown, if their protocol supports them; 0 sends none."
    )
    shutdown_timeout: float = duration(30.0, "Time after which the shutdown is aborted and the process exits.")


@dataclass(frozen=True)
class LoggingSettings:
    """Logs."""

    log_level: str = choice("info", ("debug", "info", "warn", "error"), "Minimum level to log.")
    log_format: str = choice("text", ("text", "json"), "Format of log lines.")
    debug: bool = switch(False, "Log at level debug, including the messages of clients and publishers (development only).")


@dataclass(frozen=True)
class Settings:
    """Every setting, by section. `origins` describes the source of each value, by setting name."""

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
