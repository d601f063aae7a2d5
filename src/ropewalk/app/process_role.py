"""The role of a process: the only one of its server, or the store or a worker started by a supervisor.

The supervisor passes the role in an environment variable. The child removes the variable when it reads it, so that processes
started by the child do not inherit it.
"""

import os
from collections.abc import MutableMapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import msgspec

from ropewalk.app import embedded_nats
from ropewalk.app.settings import Settings, SettingsCopy
from ropewalk.app.settings.sections import BroadcastSettings

VARIABLE = "_ROPEWALK_ROLE"
STORE_SOCKET = "store.sock"
BUS_SOCKET = "bus.sock"
SETTINGS_COPY = "settings.toml"


class ProcessKind(StrEnum):
    ALONE = "alone"
    STORE = "store"
    WORKER = "worker"


class Role(msgspec.Struct, frozen=True):
    """The role of one process.

    Attributes:
        number: of the worker.
        workers: how many workers the server has.
        directory: private to the processes of the server.
        host: what workers bind, with `port`, unless they accept from `sockets`; on a ring also the store, with the ring's port.
        sockets: file descriptors of the supervisor's listening sockets.
        control: file descriptor of the channel to the supervisor.
        others: file descriptor of a pipe that ends when the supervisor and all workers have ended: workers hold its writing
            end, the store reads.
        supervisor: its process id.
        data_dir: of the store process.
        nats_address: where the embedded NATS server of the store process listens, with credentials.
        settings_file: the path the user gave, or empty.
    """

    kind: ProcessKind = ProcessKind.ALONE
    number: int = 0
    workers: int = 1
    directory: str = ""
    host: str = ""
    port: int = 0
    sockets: tuple[int, ...] = ()
    control: int = -1
    others: int = -1
    supervisor: int = 0
    data_dir: str = ""
    nats_address: str = ""
    settings_file: str = ""

    @property
    def name(self) -> str:
        """The name of the process in logs; empty for the only process."""
        if self.kind is ProcessKind.WORKER:
            return f"worker {self.number}"
        return "" if self.kind is ProcessKind.ALONE else str(self.kind)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The inherited file descriptors."""
        return tuple(number for number in (self.control, self.others, *self.sockets) if number >= 0)

    @property
    def settings_copy(self) -> SettingsCopy:
        """The settings file as it was last applied. A restarted process must not use later changes."""
        return SettingsCopy(Path(self.directory, SETTINGS_COPY), Path(self.settings_file) if self.settings_file else None)

    @property
    def store_socket(self) -> str:
        return os.path.join(self.directory, STORE_SOCKET)

    @property
    def bus_socket(self) -> str:
        return os.path.join(self.directory, BUS_SOCKET)


ALONE = Role()


def written(role: Role) -> dict[str, str]:
    """The environment variable for a child."""
    return {VARIABLE: msgspec.json.encode(role).decode()}


def taken_from(environ: MutableMapping[str, str]) -> Role:
    text = environ.pop(VARIABLE, "")
    if not text:
        return ALONE
    role = msgspec.json.decode(text, type=Role)
    for number in role.descriptors:
        os.set_inheritable(number, False)
    return role


# --- the settings of each role ---------------------------------------------------------------------------------------

DELIVERED_LOCALLY = frozenset(("redis", "nats"))
"""Broadcasters without positions: each worker receives all messages and delivers to its own clients."""


def own_settings(role: Role, settings: Settings) -> Settings:
    """The settings of a server, adapted to a process of this role."""
    if role.kind is ProcessKind.ALONE:
        return settings
    if settings.enats.embed_nats:
        settings = embedded_nats.with_address(settings, role.nats_address, role.directory)
    return _of_the_store(role, settings) if role.kind is ProcessKind.STORE else _of_a_worker(role, settings)


def _of_the_store(role: Role, settings: Settings) -> Settings:
    """The store serves its HTTP endpoints to the workers only. They do TLS, proxy headers and calls of the application. Its
    certificate is for the ring's port."""
    server = replace(settings.server, host=f"unix:{role.store_socket}", port=0, tcp_port=0, proxy_protocol=False)
    return replace(
        settings,
        server=server,
        app=replace(settings.app, app="", norpc=True),
        broadcast=_broadcasting(settings, without=DELIVERED_LOCALLY),
        operations=replace(settings.operations, shutdown_delay=0.0, shutdown_spread=0.0),  # it has no clients to wait for
        limits=replace(settings.limits, max_conn=0),
    )


def _of_a_worker(role: Role, settings: Settings) -> Settings:
    """The store alone has the journal, the archive and the redisx consumer."""
    settings = share_of_worker(settings, role.workers)
    if settings.enats.embed_nats:
        settings = embedded_nats.as_client(settings)
    return replace(
        settings,
        server=replace(settings.server, host=role.host, port=role.port, takeover=False),
        journal=replace(settings.journal, data_dir=""),
        archive=replace(settings.archive, archive_dir=""),
        broadcast=_broadcasting(settings, without=frozenset(("redisx",))),
    )


def _broadcasting(settings: Settings, without: frozenset[str]) -> BroadcastSettings:
    chosen = settings.broadcast.broadcast_adapter
    return replace(settings.broadcast, broadcast_adapter=tuple(name for name in chosen if name not in without))


def share_of_worker(settings: Settings, workers: int) -> Settings:
    """Divide the limits that a process can only enforce for itself, so that the load on the application and the rates of
    clients do not grow with the number of workers. Shares are rounded up; 0 stays unlimited.

    `--max_conn`, `--max_http_conn`, `--max_conn_per_user` and `--max_conn_per_address` are not divided: workers exchange their
    numbers of connections.
    """
    app, operations, limits = settings.app, settings.operations, settings.limits
    return replace(
        settings,
        app=replace(
            app,
            rpc_concurrency=_share(app.rpc_concurrency, workers),
            disconnect_rate=_share(app.disconnect_rate, workers),
            disconnect_backlog_size=_share(app.disconnect_backlog_size, workers),
        ),
        limits=replace(limits, conn_rate_per_address=_share(limits.conn_rate_per_address, workers)),
        operations=replace(operations, reconnect_rate=_share(operations.reconnect_rate, workers)),
    )


def _share(whole: int, workers: int) -> int:
    return -(-whole // workers)
