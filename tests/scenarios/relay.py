"""A TCP relay between a client and the server: a network that a test can break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

CHUNK = 65536
SECONDS = 60


class Relay:
    """`open`: new connections are passed on to `port`, which a test may change. `answers_lost`: the number of connections whose
    answers are dropped. `accepted` counts connections, `answers` the chunks that the server sent on the longest of them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._links: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self.open = True
        self.answers_lost = 0
        self.accepted = 0
        self.answers = 0
        self.url = ""

    def break_links(self) -> None:
        for writer in list(self._links):
            writer.transport.abort()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Breaks all connections and accepts no new ones for the length of a block."""
        self.open = False
        self.break_links()
        try:
            yield
        finally:
            self.open = True

    def freeze(self) -> None:
        """Connections stay open, and pass no byte until `thaw`."""
        self._passing.clear()

    def thaw(self) -> None:
        self._passing.set()

    async def wait(self, fits: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not fits():
                await asyncio.sleep(0.02)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        self.thaw()
        self.open = False
        self.break_links()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        self.accepted += 1
        loses_answer = self.answers_lost > 0
        self.answers_lost -= loses_answer
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:  # the server is down
            writer.transport.abort()
            return
        self._links |= {writer, far_writer}
        if not self.open:
            self.break_links()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, {writer, far_writer}, answers=False))
                both.create_task(self._pump(far_reader, None if loses_answer else writer, {writer, far_writer}, answers=True))
        finally:
            self._links -= {writer, far_writer}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter | None,
        ends: set[asyncio.StreamWriter],
        answers: bool,
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                await self._passing.wait()
                if writer is None:
                    break
                writer.write(chunk)
                await writer.drain()
                passed += 1
                if answers:
                    self.answers = max(self.answers, passed)
        for end in ends:
            end.transport.abort()


@contextlib.asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    relay = Relay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        await relay.close()
