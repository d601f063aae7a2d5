"""Connections to NATS servers that stop answering."""

import asyncio

import pytest

from ropewalk.connections import nats
from ropewalk.connections.nats import NatsAddress, open_nats

INFO = b'INFO {"server_id":"one","version":"2.12.0","max_payload":1048576}\r\n'


@pytest.mark.parametrize("answer", [b"", b"INFO not JSON\r\n", b"220 mail ESMTP\r\n"], ids=["silent", "unreadable", "other"])
async def test_reconnect_without_a_valid_answer_closes_the_connection(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tries again with another one. One that was left open would warn when it is garbage collected."""
    monkeypatch.setattr(nats, "RECONNECT_SECONDS", 0.01)
    opened = asyncio.Event()
    closed: asyncio.Queue[int] = asyncio.Queue()
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        number = connections
        try:
            if number == 1:
                writer.write(INFO)
                await reader.readuntil(b"PING\r\n")
                writer.write(b"PONG\r\n")
                await opened.wait()
            else:
                writer.write(answer)
                await reader.read()
                closed.put_nowait(number)
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await open_nats(NatsAddress((f"nats://127.0.0.1:{port}",)), "one")
        client.options["connect_timeout"] = 0.1  # of the reconnects only: the first connection must succeed
        opened.set()
        async with asyncio.timeout(60):
            assert [await closed.get() for _ in range(3)] == [2, 3, 4]
        await client.close()


async def test_subscription_has_reached_the_server_after_a_flush() -> None:
    """A ping of the client overtakes commands that it has not written yet."""
    commands: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while command := await reader.readline():
            if command == b"PING\r\n":
                writer.write(b"PONG\r\n")
            commands.append(command.split()[0])
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await open_nats(NatsAddress((f"nats://127.0.0.1:{port}",)), "one")
        await client.subscribe("a")
        await client.flush()
        assert b"PING" in commands[commands.index(b"SUB") :]
        await client.close()
