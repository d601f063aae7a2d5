"""The server process: listens, waits for a signal, and shuts down in an ordered list of steps."""

import asyncio
import contextlib
import logging
import os
import resource
import secrets
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ropewalk import __version__
from ropewalk.adapters.endpoints.acceptor import Acceptor
from ropewalk.adapters.endpoints.admission import HTTP_RESERVE, MAX_UNIDENTIFIED, ConnectionAdmission
from ropewalk.adapters.endpoints.sockets import Listening, bound_sockets, inherited_sockets, listening_urls, passed_on
from ropewalk.adapters.metrics import process_figures
from ropewalk.app import composition, reload, ring
from ropewalk.app.keys import tls_context
from ropewalk.app.process_end import StopSignals
from ropewalk.app.process_role import ALONE, ProcessKind, Role
from ropewalk.app.settings import Settings, has_application, preset_choices, startup_warnings
from ropewalk.app.settings.sections import LimitSettings
from ropewalk.app.takeover import ServerLock
from ropewalk.engine.inspection import NodeWideInspector, reports_of_workers
from ropewalk.model.errors import UserMistake
from ropewalk.ports import Inspector

if TYPE_CHECKING:
    from ropewalk.adapters.backends.ring.port import RingPort

logger = logging.getLogger("ropewalk.server")


class Server:
    """`start`, then `wait`, then `stop`. `addresses` has the URLs once it is started.

    Args:
        settings: adapted to the role of this process.
        load: reads the settings again (SIGHUP), also adapted.
        announced: the settings of the whole server.
    """

    def __init__(
        self, settings: Settings, load: Callable[[], Settings], role: Role = ALONE, announced: Settings | None = None
    ) -> None:
        self._settings = settings
        self._announced = announced or settings
        self._load = load
        self._role = role
        self._parts = composition.build(settings, role)
        self._tls = self._port_tls()
        self._lock = ServerLock(settings.journal.data_dir, role.supervisor) if settings.journal.data_dir else None
        self._run = secrets.token_hex(8)  # unique to this process
        self._node_wide: NodeWideInspector | None = None
        self._exchanging: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._stop_signals = StopSignals()
        self._acceptor: Acceptor | None = None
        self._ring_port: RingPort | None = None
        self.addresses: list[str] = []

    async def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        settings = self._settings
        # First, so that clients that connect from now on wait and are not refused. Beside a worker, others accept meanwhile.
        sockets = [] if self._role.kind is ProcessKind.WORKER else self._listen()
        shared_port = composition.build_shared_port(settings, self._parts)
        inspector = self._inspector(shared_port.admission)
        shared_port.http.serve(composition.http_routes(settings, self._parts, shared_port, inspector))
        await self._take_lock()
        if self._parts.embedded_nats is not None:
            await self._parts.embedded_nats.start()
        await self._parts.keeper.start()
        if self._role.kind is not ProcessKind.STORE:  # which the supervisor stops, after the workers
            self._handle_signals()  # not later: an unreachable store delays the start for seconds
        try:
            if self._parts.chosen.to_store is not None:
                await self._parts.chosen.to_store.start()
            await self._parts.node.start()
            try:
                await self._start_beside_node(shared_port.admission)
                sockets = sockets or self._listen()
            except BaseException:
                await self._parts.node.stop()
                raise
        except BaseException:
            await self._parts.keeper.stop()  # a failed start must not look like a crash
            if self._parts.embedded_nats is not None:
                await self._parts.embedded_nats.stop()
            raise
        room, spare = room_for_connections(settings)
        shared_port.admission.limits = replace(shared_port.admission.limits, descriptors=room, spare=spare)
        self._admission = shared_port.admission
        self._broky, self._http = shared_port.broky, shared_port.http
        if isinstance(inspector, NodeWideInspector):
            self._node_wide = inspector
            await inspector.exchange()
            self._exchanging = asyncio.get_running_loop().create_task(inspector.run())
        self._acceptor = Acceptor(shared_port, sockets, self._tls)
        self._acceptor.start()
        self._parts.node.watch_turns()
        if self._role.kind is not ProcessKind.WORKER:
            self._announce()

    async def _take_lock(self) -> None:
        if self._lock is None:
            return
        server = self._settings.server
        if server.takeover:
            composition.require_loadable(self._announced)  # while the former server still serves
        await self._lock.take(server.takeover_timeout if server.takeover else 0.0)

    def _port_tls(self) -> ssl.SSLContext | None:
        """For the port of this process. Only workers connect to that of a store process, over a Unix socket without TLS."""
        context = tls_context(self._settings)
        return None if self._role.kind is ProcessKind.STORE else context

    async def _start_beside_node(self, admission: ConnectionAdmission) -> None:
        parts = self._parts
        if parts.chosen.recorder is not None:
            await parts.chosen.recorder.start()
        if parts.transactions is not None:
            await parts.transactions.start()
        if parts.chosen.bus is not None:
            reports = reports_of_workers(parts.inspector, self._run, time.monotonic, process_figures)
            await parts.chosen.bus.start(parts.backend.streams, reports)
        if parts.chosen.ring is not None:
            self._ring_port = ring.build_port(self._settings, parts.chosen.ring, admission)
            self._ring_port.start(ring.bind_port(self._settings, self._role))
        await parts.broadcasters.start()

    def _inspector(self, admission: ConnectionAdmission) -> Inspector:
        """The inspector of the whole node."""
        to_store = self._parts.chosen.to_store
        if to_store is None:
            return self._parts.inspector
        number = str(self._role.number)
        parts = self._parts
        return NodeWideInspector(
            number, self._run, parts.inspector, to_store.exchange, admission, parts.node.quotas, process_figures
        )

    def _listen(self) -> list[Listening]:
        server, role = self._settings.server, self._role
        if role.kind is ProcessKind.WORKER:
            sockets = passed_on(role.sockets) or bound_sockets(server.host, server.port, reuse_port=True)
        else:
            sockets = inherited_sockets(os.environ) or bound_sockets(server.host, server.port, server.takeover)
        if sockets[0].inherited and role.kind is ProcessKind.ALONE:
            logger.info("sockets were inherited; --host and --port are ignored")
        self.addresses = listening_urls(sockets, bool(server.ssl_cert), server.host, server.tcp_port)
        if server.tcp_port:
            shares = server.takeover or role.kind is ProcessKind.WORKER
            sockets += bound_sockets(server.host, server.tcp_port, shares, "tcp_port")
        return sockets

    def _announce(self) -> None:
        settings = self._announced
        keys, broker = self._parts.keys, settings.broker
        logger.info("ropewalk %s", __version__, extra={"addresses": " ".join(self.addresses)})
        for chosen in preset_choices(settings):
            logger.info("%s", chosen)
        for warning in startup_warnings(settings):
            logger.warning("%s", warning)
        logger.info(
            "broker %s",
            broker.broker,
            extra={
                "history_limit": broker.history_limit,
                "history_ttl": broker.history_ttl,
                "rules": len(settings.streams),
            },
        )
        if "http" not in settings.broadcast.broadcast_adapter:
            logger.info("--http_broadcast_path is not served: --broadcast_adapter does not include http")
        elif keys.broadcast is None:
            logger.warning("publishing over HTTP is off; set --secret or --broadcast_key to turn it on")
        elif not keys.broadcast:
            logger.warning("publishing over HTTP needs no key")
        if keys.api == "":
            logger.warning("the REST API needs no key: anyone may publish, read streams and disconnect users")
        if keys.journal == "" and settings.journal.data_dir:
            logger.warning("the journal needs no key: anyone may read it and write to it")
        origins = settings.server.allowed_origins
        if has_application(settings) and "cookie" in settings.app.headers and (not origins or "*" in origins):
            logger.warning(
                "the application receives cookies, and pages of any origin may connect with them; set --allowed_origins"
            )
        if settings.auth.public:
            logger.warning("public mode: anyone may connect, subscribe and publish")

    async def wait(self) -> None:
        await self._stopping.wait()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        # The first signal may also follow a supervisor's command.
        if self._stop_signals.means_now(asyncio.get_running_loop().time()):
            raise SystemExit(1)
        self.leave()

    def leave(self) -> None:
        """End `wait`."""
        self._parts.node.leave()
        self._stopping.set()

    def ends_for_good(self) -> None:
        """The whole server ends, so its sessions cannot be resumed."""
        if self._parts.chosen.to_store is not None:
            self._parts.chosen.to_store.server_ends = True

    def stop_listening(self) -> None:
        """Leave new connections to other processes, but serve the open ones."""
        if self._acceptor is not None:
            self._acceptor.stop()

    def reload(self) -> None:
        """On SIGHUP or a supervisor's command. Invalid settings do not stop the server."""
        if self._acceptor is None or self._stopping.is_set():
            logger.info("settings are not reloaded while the server starts or stops")
            return
        try:
            new = self._load()
            alone = self._role.kind is ProcessKind.ALONE
            self._settings = reload.apply(self._settings, new, self._parts, self._admission, whole=alone)
            self._acceptor.tls = self._port_tls()
            if self._ring_port is not None:
                self._ring_port.tls = tls_context(self._settings)
        except UserMistake as mistake:
            logger.error("settings not reloaded, the old ones stay in effect", extra={"reason": str(mistake)})
        except Exception:
            logger.exception("settings not reloaded, the old ones stay in effect")

    async def stop(self) -> None:
        operations = self._settings.operations
        logger.info("shutting down")
        assert self._acceptor is not None
        try:
            async with asyncio.timeout(operations.shutdown_timeout):
                await asyncio.sleep(operations.shutdown_delay)
                self._acceptor.stop()
                if self._ring_port is not None:
                    await self._ring_port.stop()
                await self._parts.broadcasters.stop()  # fetched messages still reach the connected clients
                if self._broky is not None:
                    self._broky.drain()
                await self._parts.node.drain(operations.shutdown_spread, operations.reconnect_rate)
                await self._http.stop()
                if self._parts.store_proxy is not None:
                    await self._parts.store_proxy.stop()
                if self._parts.chosen.recorder is not None:
                    await self._parts.chosen.recorder.stop()
                if self._parts.chosen.bus is not None:
                    await self._parts.chosen.bus.stop()
                await self._parts.node.stop(self._report_at_last)
                if self._parts.chosen.to_store is not None:
                    await self._parts.chosen.to_store.stop()
        except TimeoutError:
            logger.warning("the shutdown exceeded --shutdown_timeout and was cut short")
        await self._parts.keeper.stop()  # never cut short: the next start would have to recover an unsealed journal
        if self._parts.embedded_nats is not None:
            await self._parts.embedded_nats.stop()
        if self._lock is not None:
            self._lock.release()
        logger.info("stopped")

    async def _report_at_last(self) -> None:
        """Pass the final counters of this process to the node, once all connections are closed."""
        if self._exchanging is not None:
            self._exchanging.cancel()
        if self._node_wide is not None:
            await self._node_wide.exchange()


# --- the limit of open files -----------------------------------------------------------------------------------------

OWN_FILES = 256
"""Files besides connections: journal segments and their readers, staging, the application, late imports."""

MIN_CONNECTIONS = 16


def room_for_connections(settings: Settings) -> tuple[int, int]:
    """How many connections of all kinds the limit of open files permits, and how many more that are not of clients. Called once
    all files of the start are open."""
    limits = settings.limits
    in_use = _open_files()
    own = in_use + OWN_FILES
    wanted = own + limits.max_conn + limits.max_http_conn + HTTP_RESERVE + MAX_UNIDENTIFIED
    allowed = _raise_limit(wanted if limits.max_conn and limits.max_http_conn else None)
    room = max(MIN_CONNECTIONS, allowed - own)
    if limits.max_conn not in (0, LimitSettings().max_conn) and room < limits.max_conn:
        logger.warning(
            "the limit of open files permits fewer connections than --max_conn; raise it (LimitNOFILE=, ulimit -n)",
            extra={"open_files": allowed, "connections": room, "max_conn": limits.max_conn},
        )
    else:
        logger.info("open files", extra={"limit": allowed, "connections": room})
    return room, max(0, allowed - in_use - room) // 2


def _raise_limit(wanted: int | None) -> int:
    """The soft limit, raised to `wanted` (None: as far as possible) within the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Systems that report "unlimited" often refuse to set it.
    most = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    target = most if wanted is None else min(wanted, most)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return most if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 64
