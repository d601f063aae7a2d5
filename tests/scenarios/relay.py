"""A TCP relay between a client and the server: the network that a test can break at will."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

CHUNK = 65536


class Relay:
    """`open`: new connections are let through, to `port`, which a test may change. `answers_lost`: so many connections lose
    whatever the server answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._links: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self.open = True
        self.answers_lost = 0
        self.accepted = 0
        self.url = ""

    def break_links(self) -> None:
        for writer in list(self._links):
            writer.transport.abort()

    def freeze(self) -> None:
        """Everything stays connected, and no byte passes any more until `thaw`."""
        self._passing.clear()

    def thaw(self) -> None:
        self._passing.set()

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
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, {writer, far_writer}))
                both.create_task(self._pump(far_reader, None if loses_answer else writer, {writer, far_writer}))
        finally:
            self._links -= {writer, far_writer}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, ends: set[asyncio.StreamWriter]
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                await self._passing.wait()
                if writer is None:
                    break
                writer.write(chunk)
                await writer.drain()
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
