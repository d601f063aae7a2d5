"""Builds the parts of a server that make it a node of a ring."""

import os
import secrets
import socket
import ssl
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropewalk.adapters.endpoints.sockets import bound_sockets
from ropewalk.app.data_directory import private_opener
from ropewalk.app.journal import StoredJournal
from ropewalk.app.keys import derive_keys, tls_context
from ropewalk.app.process_role import Role
from ropewalk.app.registry import BACKENDS, resolve
from ropewalk.app.settings import Settings
from ropewalk.app.settings.check import ring_members, ring_node, ring_port
from ropewalk.core.node_proofs import DialledNode
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.engine.session_log import ForwardedSessionLog, JournalSessionLog, SessionLog
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.ring import RingNews

if TYPE_CHECKING:
    from ropewalk.adapters.backends.ring.access import RingWorkerBackend
    from ropewalk.adapters.backends.ring.backend import RingBackend
    from ropewalk.adapters.backends.ring.links import NodeDialler
    from ropewalk.adapters.backends.ring.port import NodeAdmission, RingPort
    from ropewalk.adapters.backends.workers.server import StoreServer
    from ropewalk.adapters.backends.workers.store import SharedStore


class RingSessionLog(ForwardedSessionLog):
    """For ring nodes: rows go to the node that keeps the session, and every node records revoked sessions."""

    async def disconnect_requested(self, request: RemoteDisconnect) -> None:
        await JournalSessionLog.disconnect_requested(self, request)


RING_FILE = "ring.json"


class KeptRing(RingNews, frozen=True, kw_only=True):
    """The contents of RING_FILE, with the name of the node."""

    node: str


def load_ring_state(settings: Settings) -> RingState:
    """The ring state from the data directory, or from the settings. Raises UserMistake."""
    node, data_dir = ring_node(settings), settings.journal.data_dir
    path = Path(data_dir, RING_FILE)
    if not data_dir or not path.exists():
        return RingState(node, build_first_table(ring_members(settings), settings.journal.journal_shards))
    try:
        news = msgspec.json.decode(path.read_bytes(), type=KeptRing)
    except (OSError, msgspec.DecodeError) as error:
        raise UserMistake(f"the ring state in {path} cannot be read: {error}") from None
    if news.node != node:
        raise UserMistake(f"{data_dir} is the directory of node {news.node}, but this is {node}: each node needs its own")
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


def build_backend(
    settings: Settings,
    state: RingState,
    store: "SharedStore",
    server: "StoreServer",
) -> "RingBackend":
    member = next(member for member in ring_members(settings) if member.name == state.me)
    data_dir = settings.journal.data_dir
    keep = partial(_keep, Path(data_dir, RING_FILE), state.me) if data_dir else lambda news: None
    name = resolve(BACKENDS, "ring process name")(state.me, secrets.token_hex(4))
    dialler = _build_dialler(settings, name)
    backend: RingBackend = resolve(BACKENDS, "ring")(state, member, store, server, dialler, keep)
    return backend


def build_worker(settings: Settings, role: Role) -> "RingWorkerBackend":
    """Begins with the ring of the settings, and receives the current one from its store."""
    state = RingState(ring_node(settings), build_first_table(ring_members(settings), settings.journal.journal_shards))
    name = resolve(BACKENDS, "ring worker name")(state.me, role.number, secrets.token_hex(4))
    backend: RingWorkerBackend = resolve(BACKENDS, "ring worker")(
        state, role.bus_socket, _build_dialler(settings, name), time.time
    )
    return backend


def _build_dialler(settings: Settings, process: str) -> "NodeDialler":
    seeds = {member.name: member.address for member in ring_members(settings)}
    dialler: NodeDialler = resolve(BACKENDS, "ring dialler")(process, derive_keys(settings).ring, _trust(settings), seeds)
    return dialler


def build_port(settings: Settings, backend: "RingBackend", admission: "NodeAdmission") -> "RingPort":
    """Not started."""
    greet = partial(DialledNode, derive_keys(settings).ring, backend.state.me)
    port: RingPort = resolve(BACKENDS, "ring port")(backend.accept, greet, admission, tls_context(settings))
    return port


def bind_port(settings: Settings, role: Role) -> list[socket.socket]:
    """Raises UserMistake."""
    host = role.host or settings.server.host
    return [listening.sock for listening in bound_sockets(host, ring_port(settings), reuse_port=False, flag="ring_port")]


def build_session_log(backend: "RingBackend", journal: StoredJournal | None) -> SessionLog:
    return SessionLog() if journal is None else RingSessionLog(backend.journal_over(journal), time.time)


def _trust(settings: Settings) -> ssl.SSLContext | None:
    """The TLS context for connections to other nodes; None if their ports have no TLS."""
    if not settings.server.ssl_cert:
        return None
    try:
        return ssl.create_default_context(cafile=settings.ring.ring_ca_file or None)
    except OSError as error:  # an SSLError is one too
        raise UserMistake(f"--ring_ca_file cannot be read as certificates: {error}") from None
