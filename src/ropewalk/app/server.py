"""One process that serves: opens the door, waits for a signal, and shuts down as an ordered list of steps."""

import asyncio
import contextlib
import logging
import signal
import ssl

from aiohttp import web

from ropewalk import __version__
from ropewalk.adapters.transports.door import Door
from ropewalk.adapters.transports.request_log import RequestLog, request_logger
from ropewalk.app import wiring
from ropewalk.app.settings import Settings, has_application
from ropewalk.model.errors import UserMistake

logger = logging.getLogger("ropewalk.server")

BACKLOG = 4096  # a crowd that comes back at once waits here, not in retries


class Server:
    """`start`, then `wait`, then `stop`; `addresses` are URLs once it is started."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._parts = wiring.build(settings)
        self._stopping = asyncio.Event()
        self.addresses: list[str] = []

    async def start(self) -> None:
        settings = self._settings
        application = web.Application(client_max_size=settings.limits.max_publish_size)
        application.add_routes(wiring.http_routes(settings, self._parts))
        websocket = wiring.websocket_door(settings, self._parts)
        self._runner = web.AppRunner(
            application, access_log=request_logger(), access_log_class=RequestLog, handle_signals=False
        )
        # The door needs the runner's protocol factory, and the application a route into the door, which must be
        # there before it is frozen by `setup`: so the door is given its factory as soon as there is one.
        door = Door(websocket, settings.limits.max_conn)
        application.add_routes(wiring.upgrade_routes(settings, door))
        await self._runner.setup()
        assert self._runner.server is not None
        door.http = self._runner.server
        await self._parts.keeper.start()
        try:
            await self._parts.node.start()
            if self._parts.transactions is not None:
                await self._parts.transactions.start()
            await self._listen(door)
        except BaseException:
            await self._parts.keeper.stop()  # a start that failed must not look like a crash to the next one
            raise
        self._announce()

    async def _listen(self, door: Door) -> None:
        server = self._settings.server
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                door.knock, server.host, server.port, ssl=tls_context(self._settings), backlog=BACKLOG
            )
        except OSError as error:
            raise UserMistake(f"cannot listen on {server.host}:{server.port}: {error.strerror or error}") from None
        scheme = "https" if server.ssl_cert else "http"
        for sock in self._listener.sockets:
            host, port = sock.getsockname()[:2]
            self.addresses.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    def _announce(self) -> None:
        settings, keys, broker = self._settings, self._parts.keys, self._settings.broker
        logger.info("ropewalk %s", __version__, extra={"addresses": " ".join(self.addresses)})
        logger.info(
            "broker %s",
            broker.broker,
            extra={
                "history_limit": broker.history_limit,
                "history_ttl": broker.history_ttl,
                "rules": len(self._settings.streams),
            },
        )
        if keys.broadcast is None:
            logger.warning("publishing over HTTP is off; set --secret or --broadcast_key to turn it on")
        elif not keys.broadcast:
            logger.warning("publishing over HTTP needs no key")
        if has_application(settings) and "cookie" in settings.app.headers and not settings.server.allowed_origins:
            logger.warning(
                "the application sees cookies, and pages of every origin may connect with them; set --allowed_origins"
            )
        if settings.auth.public:
            logger.warning("public mode: everybody may connect, subscribe and publish")

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        await self._stopping.wait()

    def _signalled(self) -> None:
        if self._stopping.is_set():
            raise SystemExit(1)  # a second signal means now
        self._parts.node.leave()
        self._stopping.set()

    async def stop(self) -> None:
        operations = self._settings.operations
        logger.info("shutting down")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(operations.shutdown_timeout):
                await asyncio.sleep(operations.shutdown_delay)
                self._listener.close()
                await self._parts.node.drain(operations.shutdown_spread)
                await self._runner.cleanup()
                await self._parts.node.stop()
        await self._parts.keeper.stop()  # never cut short: what is not sealed has to be doubted by the next start
        logger.info("stopped")


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.server.ssl_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.server.ssl_cert, settings.server.ssl_key)
    except (OSError, ssl.SSLError) as error:
        raise UserMistake(f"the TLS certificate or key cannot be read: {error}") from None
    return context
