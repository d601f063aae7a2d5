"""Builds the configured backend."""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import structs

from ropewalk.app import ring
from ropewalk.app.data_directory import private_opener
from ropewalk.app.journal import Recovering, StoredJournal
from ropewalk.app.process_role import ProcessKind, Role
from ropewalk.app.registry import BACKENDS, CONNECTIONS, resolve
from ropewalk.app.settings import Settings
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.core.worker_reports import WorkerReports
from ropewalk.engine.recorder import QueuedNotes, RecordedSessionLog, Recorder
from ropewalk.engine.session_log import ForwardedSessionLog, JournalSessionLog, SessionLog
from ropewalk.model.errors import UserMistake
from ropewalk.model.limits import StoreLimits
from ropewalk.ports import Backend, NodeName, StreamStore

if TYPE_CHECKING:
    from ropewalk.adapters.backends.ring.backend import RingBackend
    from ropewalk.adapters.backends.workers.backend import WorkerBackend
    from ropewalk.adapters.backends.workers.link import StoreLink
    from ropewalk.adapters.backends.workers.server import StoreServer
    from ropewalk.adapters.backends.workers.store import SharedStore
    from ropewalk.connections.nats import NatsAddress
    from ropewalk.connections.redis import RedisAddress

LEASE_BITS = 52


class RecoveringBackend(Backend, Recovering, Protocol):
    """A backend that is restored from its journal."""


class ChosenBackend(NamedTuple):
    """A backend and the parts that belong to it.

    Attributes:
        recovering: is restored from the journal.
        recorder: records the journal of a cluster.
        bus: the store process's end of the bus to its workers.
        to_store: a worker's end of that bus.
        ring: of the process that holds the shards of a ring node.
        impairments: reports unreachable ring nodes.
        counts: further counters for metrics.
    """

    backend: Backend
    session_log: SessionLog
    recovering: Recovering | None = None
    recorder: Recorder | None = None
    bus: "Bus | None" = None
    to_store: "StoreLink | None" = None
    ring: "RingBackend | None" = None
    impairments: Callable[[], Sequence[str]] = tuple
    counts: Callable[[], Mapping[str, int]] = dict


class Bus:
    """The bus between a store process and its workers.

    Args:
        whole: the store process keeps all streams; not Redis, NATS or a ring.
    """

    def __init__(self, server: "StoreServer", path: str, whole: bool = False) -> None:
        self._server = server
        self._path = path
        self._whole = whole

    async def start(self, streams: StreamStore, reports: WorkerReports) -> None:
        """`streams`: of the store, or with the archive behind them."""
        if self._whole:
            self._server.read_through(streams)
        await self._server.start(self._path, reports)

    async def stop(self) -> None:
        await self._server.stop()


def build_backend(settings: Settings, rules: Rulebook, journal: StoredJournal, stats: Stats, role: Role) -> ChosenBackend:
    if settings.broker.broker != "memory":
        make = _nats if settings.broker.broker == "nats" else _redis
        return _joined(_cluster_backend(settings, make(settings, rules), journal), role)
    if settings.ring.ring:
        return _ring_backend(settings, rules, journal, stats, role)
    if role.kind is ProcessKind.WORKER:
        return _worker(role)
    if role.kind is ProcessKind.STORE:
        return _store(settings, rules, journal, stats, role)
    kept = journal if settings.journal.data_dir else None
    memory: RecoveringBackend = resolve(BACKENDS, "memory")(rules, time.time, _kept_limits(settings, kept), kept, stats)
    return ChosenBackend(memory, SessionLog() if kept is None else JournalSessionLog(kept, time.time), memory)


def _joined(chosen: ChosenBackend, role: Role) -> ChosenBackend:
    """Adds the bus between the processes of one node of a Redis or NATS cluster."""
    if role.kind is ProcessKind.WORKER:
        return chosen._replace(to_store=resolve(BACKENDS, "link")(role.bus_socket, _worker_name(role)))
    if role.kind is ProcessKind.STORE:
        backend: Backend = resolve(BACKENDS, "engine")(chosen.backend)
        return chosen._replace(backend=backend, bus=Bus(resolve(BACKENDS, "bus")(), role.bus_socket))
    return chosen


def _cluster_backend(settings: Settings, backend: Backend, journal: StoredJournal) -> ChosenBackend:
    """A backend shared by several nodes. Nodes with a data directory can record the journal of all of them."""
    if backend.record_queue is None:
        return ChosenBackend(backend, SessionLog())
    records = bool(settings.journal.data_dir)
    recorder = Recorder(backend.record_queue, journal, time.time, random.random) if records else None
    log = RecordedSessionLog(QueuedNotes(backend.record_queue, time.time), time.time, recorder)
    return ChosenBackend(backend, log, recorder, recorder)


def _kept_limits(settings: Settings, kept: StoredJournal | None) -> StoreLimits:
    limits = store_limits(settings)
    if kept is not None:
        # Streams in a journal are not lost when idle, so their epochs must not change. The journal keeps all tips anyway.
        limits = structs.replace(limits, idle_factor=inf)
    return limits


def store_limits(settings: Settings) -> StoreLimits:
    return StoreLimits(
        dedup_ttl=settings.broker.dedup_ttl,
        dedup_limit=settings.broker.dedup_limit,
        presence_ttl=settings.broker.presence_ttl,
        max_session_size=settings.limits.max_session_size,
        max_sessions_size=settings.limits.max_sessions_size,
    )


def _store(settings: Settings, rules: Rulebook, journal: StoredJournal, stats: Stats, role: Role) -> ChosenBackend:
    """The memory backend for several workers."""
    kept = journal if settings.journal.data_dir else None
    server: StoreServer = resolve(BACKENDS, "bus")(kept)
    store = _shared_store(settings, rules, kept, stats, server)
    backend: RecoveringBackend = resolve(BACKENDS, "own store")(store, server)
    log = SessionLog() if kept is None else JournalSessionLog(kept, time.time)
    return ChosenBackend(backend, log, backend, bus=Bus(server, role.bus_socket, whole=True))


def _shared_store(
    settings: Settings, rules: Rulebook, kept: StoredJournal | None, stats: Stats, carrier: "StoreServer", shards: int = 1
) -> "SharedStore":
    options = resolve(BACKENDS, "store options")(_kept_limits(settings, kept), kept, stats, shards)
    store: SharedStore = resolve(BACKENDS, "store")(rules, time.time, carrier, options, secrets.randbits(LEASE_BITS))
    return store


def _ring_backend(settings: Settings, rules: Rulebook, journal: StoredJournal, stats: Stats, role: Role) -> ChosenBackend:
    """The memory backend for several nodes. A worker connects to the stores of all nodes."""
    if role.kind is ProcessKind.WORKER:
        worker = ring.build_worker(settings, role)
        log = ForwardedSessionLog(worker.journal_over(journal), time.time) if role.data_dir else SessionLog()
        return ChosenBackend(worker, log, to_store=worker.link, impairments=worker.impairments, counts=worker.counts)
    node = _ring_node(settings, rules, journal, stats, role)
    if role.kind is ProcessKind.ALONE:
        return node
    backend: Backend = resolve(BACKENDS, "engine")(node.backend)
    return node._replace(backend=backend)


def _ring_node(settings: Settings, rules: Rulebook, journal: StoredJournal, stats: Stats, role: Role) -> ChosenBackend:
    kept = journal if settings.journal.data_dir else None
    state = ring.load_ring_state(settings)
    server: StoreServer = resolve(BACKENDS, "bus")(kept)
    store = _shared_store(settings, rules, kept, stats, server, state.table.shards)
    backend = ring.build_backend(settings, state, store, server)
    return ChosenBackend(
        backend,
        ring.build_session_log(backend, kept),
        backend,
        bus=Bus(server, role.bus_socket) if role.kind is ProcessKind.STORE else None,
        ring=backend,
        impairments=backend.impairments,
        counts=backend.counts,
    )


def _worker(role: Role) -> ChosenBackend:
    backend: WorkerBackend = resolve(BACKENDS, "worker")(role.bus_socket, _worker_name(role))
    log = ForwardedSessionLog(backend.journal, time.time) if role.data_dir else SessionLog()
    return ChosenBackend(backend, log, to_store=backend.link)


def _worker_name(role: Role) -> str:
    """Unique to this process."""
    return f"{role.number}~{secrets.token_hex(4)}"


def _redis(settings: Settings, rules: Rulebook) -> Backend:
    backend: Backend = resolve(BACKENDS, "redis")(
        rules,
        redis_address(settings),
        _node_name(settings),
        store_limits(settings),
        resolve(BACKENDS, "redis options")(restart_epochs=settings.redis.redis_epoch == "restart"),
    )
    return backend


def redis_address(settings: Settings) -> "RedisAddress":
    redis = settings.redis
    made: RedisAddress = resolve(CONNECTIONS, "redis")(
        redis.redis_url,
        redis.redis_sentinels,
        redis.redis_tls_verify,
        redis.redis_tls_ca_cert_path,
        redis.redis_tls_client_cert_path,
        redis.redis_tls_client_key_path,
    )
    return made


def _nats(settings: Settings, rules: Rulebook) -> Backend:
    nats = settings.nats
    backend: Backend = resolve(BACKENDS, "nats")(
        nats_address(settings),
        _node_name(settings),
        rules,
        time.time,
        store_limits(settings),
        resolve(BACKENDS, "nats options")(shards=nats.nats_shards, replicas=nats.nats_replicas),
    )
    return backend


def nats_address(settings: Settings) -> "NatsAddress":
    nats = settings.nats
    made: NatsAddress = resolve(CONNECTIONS, "nats")(
        nats.nats_servers, nats.nats_dont_randomize_servers, nats.nats_tls_ca_cert_path
    )
    return made


# --- the name of a node ----------------------------------------------------------------------------------------------

NODE_ID_FILE = "node_id"


def _node_name(settings: Settings) -> NodeName:
    node_id = load_node_id(settings)
    return NodeName(f"{node_id}~{secrets.token_hex(4)}", node_id)


def load_node_id(settings: Settings) -> str:
    """From the settings, or from the data directory, so that a restarted node keeps it, or random. Raises UserMistake."""
    if settings.server.node_id or not settings.journal.data_dir:
        return settings.server.node_id or secrets.token_hex(6)
    path = Path(settings.journal.data_dir, NODE_ID_FILE)
    try:
        if path.exists() and (kept := path.read_text(encoding="utf-8").strip()):
            return kept
        made = secrets.token_hex(6)
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", opener=private_opener) as file:
            file.write(made + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"the node id in {path} cannot be read: {error}") from None
    return made
