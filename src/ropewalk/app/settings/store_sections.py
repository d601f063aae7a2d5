"""The sections about where messages, sessions and presence are kept. `sections` has all others."""

from dataclasses import dataclass

from ropewalk.app.settings.declare import (
    address,
    addresses,
    choice,
    count,
    duration,
    port_number,
    secret_text,
    size,
    switch,
    text,
    words,
)
from ropewalk.model.journal import DURABILITIES
from ropewalk.model.limits import JournalLimits, Limits
from ropewalk.model.rules import StreamRules
from ropewalk.model.transactions import StagingLimits

# The server's parts have the same defaults when they are used without settings.
_SESSION = Limits()
_STREAM = StreamRules()
_JOURNAL = JournalLimits()


@dataclass(frozen=True)
class BrokerSettings:
    """Storage of streams, sessions and presence. `[[streams]]` rules override it by stream."""

    broker: str = choice("memory", ("memory", "redis", "nats"), "Backend that stores streams, sessions and presence.")
    pubsub: str = choice(
        "none", ("none", "redis", "nats"), "Carrier of messages between nodes; `none` leaves it to the broker."
    )
    history_limit: int = count(_STREAM.history_limit, "Messages kept per stream; 0 keeps none.")
    history_ttl: float = duration(_STREAM.history_ttl, "How long a message is kept; 0 keeps none.")
    sessions_ttl: float = duration(
        _SESSION.sessions_ttl, "How long a session can be resumed after its connection is lost; 0 disables resuming."
    )
    presence_ttl: float = duration(_SESSION.presence_ttl, "How long a member stays present after its connection is lost.")
    resume_timeout: float = duration(
        _SESSION.resume_timeout,
        "How long a restored session's streams wait for its history request before they continue with a gap notice.",
        alias="resume_patience",
    )
    dedup_ttl: float = duration(300.0, "How long the uid of a publication is remembered for deduplication.")
    dedup_limit: int = count(100_000, "Maximum uids kept for deduplication; the oldest are dropped first.")


@dataclass(frozen=True)
class RedisSettings:
    """Connection to Redis, for the Redis backend and broadcasters."""

    redis_url: str = address(
        "redis://localhost:6379",
        "Redis URL: redis://, rediss:// (TLS) or unix://; several nodes of a Redis Cluster are separated by commas.",
        also_env="REDIS_URL",
    )
    redis_sentinels: tuple[str, ...] = addresses(
        (), "Sentinels, as `[user:password@]host:port`; the host of --redis_url is then the name of the master."
    )
    redis_epoch: str = choice(
        "keep",
        ("keep", "restart"),
        "After a restart or failover of Redis: `keep` epochs unless data was lost, or `restart` them all.",
    )
    redis_tls_verify: bool = switch(True, "Verify the certificate of a rediss:// server.")
    redis_tls_ca_cert_path: str = text("", "File with trusted CA certificates (PEM); empty uses those of the system.")
    redis_tls_client_cert_path: str = text("", "File with the client certificate for Redis (PEM).")
    redis_tls_client_key_path: str = text("", "File with the private key of the client certificate (PEM).")


@dataclass(frozen=True)
class NatsSettings:
    """Connection to NATS, for the NATS backend and broadcaster."""

    nats_servers: tuple[str, ...] = addresses(("nats://127.0.0.1:4222",), "NATS servers: nats://, or tls:// to require TLS.")
    nats_dont_randomize_servers: bool = switch(False, "Try the servers in the given order.")
    nats_tls_ca_cert_path: str = text("", "File with trusted CA certificates (PEM); empty uses those of the system.")
    nats_replicas: int = count(
        1, "Copies of each message in the NATS backend, each on its own server: 1, 3 or 5.", positive=True, alias="replicas"
    )
    nats_shards: int = count(
        8,
        "JetStream streams of the NATS backend. The first node decides; nodes that join later use its number.",
        positive=True,
    )


@dataclass(frozen=True)
class EmbeddedNatsSettings:
    """A nats-server that this server starts, monitors and stops."""

    embed_nats: bool = switch(False, "Start a nats-server beside this server and use it.")
    enats_addr: str = address(
        "nats://127.0.0.1:4222", "Its listener for clients, as nats://[credentials@]host:port; port 0 takes a free port."
    )
    enats_cluster: str = address("", "Its listener for other nats-servers of its cluster, as nats://host:port.")
    enats_cluster_name: str = text("ropewalk-cluster", "Name of its cluster.")
    enats_cluster_routes: tuple[str, ...] = addresses((), "Other nats-servers of its cluster, as nats://host:port.")
    enats_store_dir: str = text("", "Its data directory; empty: next to the journal in --data_dir, or a temporary directory.")
    enats_server_name: str = text("", "Its name, unique in the cluster; empty: derived from --enats_cluster.")
    enats_max_payload: int = size(0, "Maximum bytes of a NATS message; 0 uses the default of NATS (1 MB).")
    enats_sync_interval: str = text(
        "always", "When it syncs to disk: `always` (before it acknowledges), or an interval such as 1s."
    )
    enats_debug: bool = switch(False, "Log its debug messages.")
    enats_trace: bool = switch(False, "Log the messages it sends and receives.")


@dataclass(frozen=True)
class RingSettings:
    """A cluster of servers with the memory broker: each stores a share of the streams, and clients connect to any of them."""

    ring: tuple[str, ...] = words(
        (),
        "Nodes that form the ring, as name=host:port, including this node; the ports are for nodes only. A node that joins "
        "later lists itself and any of the others. Empty disables the ring.",
    )
    ring_ca_file: str = text(
        "", "File with the CA certificates for TLS between nodes, if --ssl_cert is set; empty uses those of the system."
    )
    ring_key: str = secret_text(
        "Key for mutual authentication of nodes, never sent; 16 characters or more, the same at all nodes; empty: derived from "
        "--secret. It gives access to all messages and sessions of the ring."
    )
    ring_node: str = text(
        "",
        "Name of this node in --ring; empty uses --node_id or the host name.",
    )
    ring_port: int = port_number(0, "The port for the other nodes of the ring. 0: the port of this node in --ring.")


@dataclass(frozen=True)
class JournalSettings:
    """The log on disk from which streams and sessions are recovered after a restart."""

    data_dir: str = text("", "Directory of the journal; empty keeps all state in memory.")
    durability: str = choice(
        "journal",
        DURABILITIES,
        "When a publication is acknowledged and delivered: at once, once written, or once synced to disk.",
    )
    journal_shards: int = count(_JOURNAL.shards, "Shards of a new journal; an existing journal keeps its number.")
    journal_segment_size: int = size(
        _JOURNAL.segment_size, "Bytes after which a shard starts a new segment file.", positive=True
    )
    journal_retention: float = duration(_JOURNAL.retention, "How long rows are kept; 0 sets no limit.")
    journal_retention_size: int = size(
        _JOURNAL.retention_size, "Bytes of the whole journal above which the oldest rows are deleted; 0 sets no limit."
    )
    journal_hard_limit: int = size(
        _JOURNAL.hard_limit,
        "Bytes of the whole journal above which rows are deleted even if an archive or a consumer needs them; 0 sets no limit.",
    )
    journal_consumer_ttl: float = duration(
        _JOURNAL.consumer_ttl,
        "How long a consumer without progress protects unread rows from deletion; 0 protects none.",
    )
    journal_token: str = secret_text("Bearer key for reading the journal; `none` requires none.")
    staging_size: int = size(
        StagingLimits().max_bytes,
        "Maximum bytes of uncommitted transactions; one application may use half of it.",
        positive=True,
    )
    max_stage_size: int = size(16 << 20, "Maximum bytes of a request that stages or publishes rows.", positive=True)


@dataclass(frozen=True)
class ArchiveSettings:
    """Older history, read from the table that the archive job writes from the journal."""

    archive_dir: str = text("", "Directory of the archive; empty serves only the history of the broker.")
    archive_refresh: float = duration(2.0, "How long the list of the archive's files is cached.")
    archive_replay_limit: int = count(
        _SESSION.archive_replay, "Maximum messages of the archive in one response; clients request the rest.", positive=True
    )
