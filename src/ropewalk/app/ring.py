"""The part of a server that makes it a node of a ring."""

import os
import secrets
import ssl
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropewalk.app.data_directory import private_opener
from ropewalk.app.journal import StoredJournal
from ropewalk.app.keys import keys_of
from ropewalk.app.process_role import Role
from ropewalk.app.registry import BACKENDS, resolve
from ropewalk.app.settings import Settings
from ropewalk.app.settings.check import ring_members, ring_node
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.engine.session_log import ForwardedSessionLog, JournalSessionLog, SessionLog
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.ring import RingNews

if TYPE_CHECKING:
    from ropewalk.adapters.backends.ring.backend import RingBackend
    from ropewalk.adapters.backends.ring.gate import NodeGate
    from ropewalk.adapters.backends.ring.passage import StoreDoor, WorkerGate
    from ropewalk.adapters.backends.ring.server import NodeServer
    from ropewalk.adapters.backends.ring.worker import RingWorkerBackend
    from ropewalk.adapters.backends.workers.store import SharedStore


class RingSessionLog(ForwardedSessionLog):
    """Of a node of a ring: rows go to where a session is kept, and every node writes which sessions were revoked."""

    async def ordered(self, order: RemoteDisconnect) -> None:
        await JournalSessionLog.ordered(self, order)


RING_FILE = "ring.json"


class KeptRing(RingNews, frozen=True, kw_only=True):
    """What the file has: also whose it is."""

    node: str


def state_of(settings: Settings) -> RingState:
    """What a node with a journal has kept of its ring, or what the settings say. Raises UserMistake."""
    node, data_dir = ring_node(settings), settings.journal.data_dir
    path = Path(data_dir, RING_FILE)
    if not data_dir or not path.exists():
        return RingState(node, build_first_table(ring_members(settings), settings.journal.journal_shards))
    try:
        news = msgspec.json.decode(path.read_bytes(), type=KeptRing)
    except (OSError, msgspec.DecodeError) as error:
        raise UserMistake(f"what this node knows of its ring cannot be read from {path}: {error}") from None
    if news.node != node:
        raise UserMistake(f"{data_dir} is the directory of the node {news.node}, and this is {node}: each node has its own")
    return RingState(node, news.table, news.possessions)


def _keep(path: Path, node: str, news: RingNews) -> None:
    """Survives a crash of the machine, as the journal does."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    with open(written, "wb", opener=private_opener) as file:
        file.write(msgspec.json.encode(KeptRing(news.table, news.possessions, node=node)))
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


def server_of(state: RingState, journal: StoredJournal | None) -> "NodeServer":
    server: NodeServer = resolve(BACKENDS, "ring server")(state, secrets.token_hex(4), journal)
    return server


def backend_of(
    settings: Settings,
    state: RingState,
    store: "SharedStore",
    server: "NodeServer",
    journal: StoredJournal | None,
    role: Role,
) -> "RingBackend":
    member = next(member for member in ring_members(settings) if member.name == state.me)
    keep = (lambda news: None) if journal is None else partial(_keep, Path(settings.journal.data_dir, RING_FILE), state.me)
    backend: RingBackend = resolve(BACKENDS, "ring")(
        state, member, store, server, keys_of(settings).ring, _trust(settings, role), journal, keep
    )
    return backend


def worker_of(settings: Settings, role: Role) -> "RingWorkerBackend":
    """It begins with what the settings say, and hears from its store what has become of the ring."""
    state = RingState(ring_node(settings), build_first_table(ring_members(settings), settings.journal.journal_shards))
    backend: RingWorkerBackend = resolve(BACKENDS, "ring worker")(
        state, role.bus_socket, role.number, secrets.token_hex(4), keys_of(settings).ring, _trust(settings, role), time.time
    )
    return backend


def gate_of_worker(settings: Settings, role: Role) -> "WorkerGate":
    gate: WorkerGate = resolve(BACKENDS, "ring worker gate")(ring_node(settings), keys_of(settings).ring, role.ring_socket)
    return gate


def door_of(backend: "RingBackend", role: Role) -> "StoreDoor":
    door: StoreDoor = resolve(BACKENDS, "ring door")(backend.accept, role.ring_socket)
    return door


def gate_of(settings: Settings, backend: "RingBackend") -> "NodeGate":
    gate: NodeGate = resolve(BACKENDS, "ring gate")(backend, keys_of(settings).ring)
    return gate


def session_log_of(backend: "RingBackend", journal: StoredJournal | None) -> SessionLog:
    return SessionLog() if journal is None else RingSessionLog(backend.journal_over(journal), time.time)


def _trust(settings: Settings, role: Role) -> ssl.SSLContext | None:
    """Nodes speak to each other as clients do: with TLS where their ports have it."""
    if not (settings.server.ssl_cert or role.tls):
        return None
    try:
        return ssl.create_default_context(cafile=settings.ring.ring_ca_file or None)
    except OSError as error:  # an SSLError is one too
        raise UserMistake(f"--ring_ca_file cannot be read as certificates: {error}") from None
