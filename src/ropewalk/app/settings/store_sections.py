"""The sections about where messages, sessions and presence are kept. `sections` has all others."""

from dataclasses import dataclass

from ropewalk.app.settings.declare import (
    address,
    addresses,
    choice,
    count,
    duration,
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
    """What is kept of streams, sessions and presence, and how long. `[[streams]]` rules override it by stream."""

    broker: str = choice("memory", ("memory", "redis", "nats"), "Backend that keeps streams, sessions and presence.")
    pubsub: str = choice(
        "none", ("none", "redis", "nats"), "What carries messages between nodes; none leaves it to the broker."
    )
    history_limit: int = count(_STREAM.history_limit, "Messages kept for each stream; 0 keeps none.")
    history_ttl: float = duration(_STREAM.history_ttl, "How long a message is kept; 0 keeps none.")
    sessions_ttl: float = duration(
        _SESSION.sessions_ttl, "How long a session whose connection is lost can be resumed; 0 turns resuming off."
    )
    presence_ttl: float = duration(_SESSION.presence_ttl, "How long a member stays present after its connection is lost.")
    resume_patience: float = duration(
        _SESSION.resume_timeout,
        "How long a restored session's streams wait for its history request before they go on and a gap is said.",
    )
    dedup_ttl: float = duration(300.0, "How long the uid of a publication is known.")
    dedup_limit: int = count(100_000, "How many uids are known at most; the oldest go first.")


@dataclass(frozen=True)
class RedisSettings:
    """Where Redis is: for the Redis backend, feed and broadcasters."""

    redis_url: str = address(
        "redis://localhost:6379",
        "Redis to use: redis://, rediss:// (TLS) or unix://; several nodes of a Redis Cluster are separated by commas.",
        also_env="REDIS_URL",
    )
    redis_sentinels: tuple[str, ...] = addresses(
        (), "Sentinels to ask for the master, as `[user:password@]host:port`; the host of --redis_url is then its name."
    )
    redis_epoch: str = choice(
        "keep",
        ("keep", "restart"),
        "When Redis starts again or another one takes over: `keep` epochs unless something was lost, or `restart` them all.",
    )
    redis_tls_verify: bool = switch(True, "Check the certificate of a rediss:// server.")
    redis_tls_ca_cert_path: str = text("", "File with the certificates to trust there (PEM); empty trusts the usual ones.")
    redis_tls_client_cert_path: str = text("", "File with the certificate that this server shows to Redis (PEM).")
    redis_tls_client_key_path: str = text("", "File with the private key of that certificate (PEM).")


@dataclass(frozen=True)
class NatsSettings:
    """Where NATS is: for the NATS backend, feed and broadcaster."""

    nats_servers: tuple[str, ...] = addresses(
        ("nats://127.0.0.1:4222",), "NATS servers to use: nats://, or tls:// for nothing without TLS."
    )
    nats_dont_randomize_servers: bool = switch(False, "Try the servers in the order in which they are written.")
    nats_tls_ca_cert_path: str = text("", "File with the certificates to trust there (PEM); empty trusts the usual ones.")
    nats_replicas: int = count(
        1, "NATS servers that keep each message of the NATS backend: 1, 3 or 5.", positive=True, alias="replicas"
    )
    nats_shards: int = count(
        8,
        "JetStream streams that the NATS backend divides streams among; later nodes take the number of the first.",
        positive=True,
    )


@dataclass(frozen=True)
class EmbeddedNatsSettings:
    """A nats-server that this server starts, watches and ends."""

    embed_nats: bool = switch(False, "Start a nats-server beside this server and use it.")
    enats_addr: str = address(
        "nats://127.0.0.1:4222", "Where it listens for clients, as nats://[credentials@]host:port; port 0 takes a free one."
    )
    enats_cluster: str = address("", "Where it listens for other nats-servers of its cluster, as nats://host:port.")
    enats_cluster_name: str = text("ropewalk-cluster", "Name of its cluster.")
    enats_cluster_routes: tuple[str, ...] = addresses((), "Other nats-servers of its cluster, as nats://host:port.")
    enats_store_dir: str = text(
        "", "Directory of what it keeps; empty: beside the journal of --data_dir, or a temporary one that goes with it."
    )
    enats_server_name: str = text("", "Its name, different for each in a cluster; empty: made from --enats_cluster.")
    enats_max_payload: int = size(0, "Bytes of one NATS message; 0 leaves it to NATS (1 MB).")
    enats_sync_interval: str = text(
        "always", "How often it writes to the disk: `always`, before it answers; or an interval such as 1s."
    )
    enats_debug: bool = switch(False, "Let it log debug messages.")
    enats_trace: bool = switch(False, "Let it log what it sends and gets.")


@dataclass(frozen=True)
class RingSettings:
    """Several servers with the memory broker that are one: each keeps a share of the streams, and any takes any client."""

    ring: tuple[str, ...] = words(
        (),
        "Nodes that begin the ring together, as name=host:port of the port of each, this one included; a node that joins later "
        "names itself and any of the others. Empty: this server is alone.",
    )
    ring_ca_file: str = text(
        "", "File with the certificates that nodes trust at each other, where --ssl_cert is set; empty: those of the system."
    )
    ring_key: str = secret_text(
        "Key that nodes prove to each other and never send, at least 16 characters, the same at all nodes; empty: derived from "
        "--secret. It gives access to all messages and sessions of the ring."
    )
    ring_node: str = text(
        "",
        "Which of them this server is; empty: --node_id, or the name of the host.",
    )


@dataclass(frozen=True)
class JournalSettings:
    """What outlives the process: a record on disk of all that is registered, from which streams and sessions are recovered."""

    data_dir: str = text("", "Directory of the journal; empty keeps everything in memory only.")
    durability: str = choice(
        "journal",
        DURABILITIES,
        "When a publication is acknowledged and delivered: at once, once it is written, or once it is on the disk.",
    )
    journal_shards: int = count(_JOURNAL.shards, "Shards of a new journal; one that exists keeps the number it was made with.")
    journal_segment_size: int = size(
        _JOURNAL.segment_size, "Bytes after which a shard's file is closed and the next one begun.", positive=True
    )
    journal_retention: float = duration(_JOURNAL.retention, "How long rows are kept; 0 sets no limit.")
    journal_retention_size: int = size(
        _JOURNAL.retention_size, "Bytes of the whole journal beyond which the oldest rows go; 0 sets no limit."
    )
    journal_hard_limit: int = size(
        _JOURNAL.hard_limit,
        "Bytes of the whole journal beyond which rows go that an archive or a consumer needs; 0 sets no limit.",
    )
    journal_consumer_ttl: float = duration(
        _JOURNAL.consumer_ttl,
        "How long a consumer that does not move keeps rows from going that it has not read; 0 keeps none.",
    )
    journal_token: str = secret_text("Bearer key for reading the journal; `none` needs none.")
    staging_size: int = size(
        StagingLimits().max_bytes,
        "Bytes that uncommitted transactions may take; one application may have half of them.",
        positive=True,
    )
    max_stage_size: int = size(16 << 20, "Bytes of one request that stages or publishes rows.", positive=True)


@dataclass(frozen=True)
class ArchiveSettings:
    """History beyond what is kept hot: read from the table that the archive job writes from the journal."""

    archive_dir: str = text("", "Directory of the archive; empty serves hot history only.")
    archive_refresh: float = duration(2.0, "How old the list of the archive's files may be when it is read.")
    archive_replay_limit: int = count(
        _SESSION.archive_replay, "Messages of the archive in one answer; clients ask again for what follows.", positive=True
    )
