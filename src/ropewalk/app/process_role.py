"""What one process of a server is: the only one, or one of several that a supervisor has started, and which.

The supervisor writes the role into one variable of a child's environment. Whoever reads it takes it away: it is meant for that
process alone, and not for what it starts itself.
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
RING_SOCKET = "ring.sock"
SETTINGS_COPY = "settings.toml"


class ProcessKind(StrEnum):
    ALONE = "alone"
    STORE = "store"
    WORKER = "worker"


class Role(msgspec.Struct, frozen=True):
    """`number` and `workers`: which worker it is, and how many there are. `directory` is private to the processes of a server.

    `host` and `port` are what workers bind, unless they accept from the sockets of the supervisor (`sockets`). File
    descriptors: `control` is the channel to the supervisor, whose process id is `supervisor`; `others` is a pipe that ends
    when the supervisor and all workers are gone (workers hold its writing end, the store reads). `data_dir` is that of the
    store, `nats_address` where its embedded NATS server listens, with credentials. `tls`: the port of the server has it.
    `settings_file` is the one of the user; empty: there is none.
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
    tls: bool = False
    settings_file: str = ""

    @property
    def name(self) -> str:
        """As logs call the process; empty for one that is alone."""
        if self.kind is ProcessKind.WORKER:
            return f"worker {self.number}"
        return "" if self.kind is ProcessKind.ALONE else str(self.kind)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those that a process of this role inherits."""
        return tuple(number for number in (self.control, self.others, *self.sockets) if number >= 0)

    @property
    def settings_copy(self) -> SettingsCopy:
        """The settings file as it was when it was last put into force. Whoever is started again must not follow one that was
        changed since."""
        return SettingsCopy(Path(self.directory, SETTINGS_COPY), Path(self.settings_file) if self.settings_file else None)

    @property
    def store_socket(self) -> str:
        return os.path.join(self.directory, STORE_SOCKET)

    @property
    def bus_socket(self) -> str:
        return os.path.join(self.directory, BUS_SOCKET)

    @property
    def ring_socket(self) -> str:
        """Where the store process gets connections of other nodes of its ring."""
        return os.path.join(self.directory, RING_SOCKET)


ALONE = Role()


def written(role: Role) -> dict[str, str]:
    """What a child's environment has besides that of the supervisor."""
    return {VARIABLE: msgspec.json.encode(role).decode()}


def taken_from(environ: MutableMapping[str, str]) -> Role:
    text = environ.pop(VARIABLE, "")
    if not text:
        return ALONE
    role = msgspec.json.decode(text, type=Role)
    for number in role.descriptors:
        os.set_inheritable(number, False)
    return role


# --- which part of the settings is whose -----------------------------------------------------------------------------

DELIVERED_LOCALLY = frozenset(("redis", "nats"))
"""Broadcasters without positions: every process with clients hears all of them and delivers to its own."""


def own_settings(role: Role, settings: Settings) -> Settings:
    """The settings of a whole server as a process of this role follows them."""
    if role.kind is ProcessKind.ALONE:
        return settings
    if settings.enats.embed_nats:
        settings = embedded_nats.pinned(settings, role.nats_address, role.directory)
    return _of_the_store(role, settings) if role.kind is ProcessKind.STORE else _of_a_worker(role, settings)


def _of_the_store(role: Role, settings: Settings) -> Settings:
    """It serves its HTTP endpoints to the workers, who speak TLS, read the headers of proxies, and ask the application."""
    server = replace(
        settings.server, host=f"unix:{role.store_socket}", port=0, tcp_port=0, proxy_protocol=False, ssl_cert="", ssl_key=""
    )
    return replace(
        settings,
        server=server,
        app=replace(settings.app, app="", norpc=True),
        broadcast=_broadcasting(settings, without=DELIVERED_LOCALLY),
        operations=replace(settings.operations, shutdown_delay=0.0, shutdown_spread=0.0),  # it has no clients to wait for
        limits=replace(settings.limits, max_conn=0),
    )


def _of_a_worker(role: Role, settings: Settings) -> Settings:
    """Everything that a node has once is the store's: the journal and what belongs to it, the archive, entries of redisx."""
    settings = share_of_worker(settings, role.workers)
    if settings.enats.embed_nats:
        settings = embedded_nats.reached(settings)
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
    """What the application is asked to bear, and how fast clients come, does not grow with the number of workers. Shares
    are rounded up, so that nobody's is nothing; 0 stays "no limit"."""
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
