"""Hostile clients as a program: `python -m tests.faults.hostile URL attack…` runs these attacks at once.

Each attack has limits for its connections, bytes and time. It ends normally, regardless of the server's responses.
"""

import asyncio
import contextlib
import json
import socket
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

from tests.cable import identifier
from tests.scenarios.malformed_frames import FRAMES, MESSAGES
from tests.server import Address
from tests.tcp import CONTINUATION, PING, TEXT, Tcp, client_frame, upgrade_request

Attack = Callable[[Address], Awaitable[None]]

SECONDS = 3.0  # of an attack
HEAD_SECONDS = 7.0  # more than the timeout of a request head
STALL_SECONDS = 7.0  # enough to fill the buffers of a client that does not read, and for the write timeout
EXTENDED = "actioncable-v1-ext-json"
FIREHOSE, TICKER, HALL = "hostile/firehose", "hostile/ticker", "hostile/hall"
NUMBER_OF_400_DIGITS = "9" * 400


def command(**fields: object) -> bytes:
    return client_frame(json.dumps(fields).encode())


@contextlib.asynccontextmanager
async def connection(server: Address, window: int = 0, opening: bytes = b"") -> AsyncIterator[Tcp]:
    """A TCP connection that discards unsent data at the end. `window` limits the bytes that it accepts unread."""
    sock = socket.socket()
    if window:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=window or 65536)
    link = Tcp(reader, writer)
    try:
        await link.send(opening)
        yield link
    finally:
        link.abort()


async def together(count: int, attack: Callable[[int], Awaitable[None]], seconds: float = SECONDS) -> None:
    """Run `count` attackers at once. The failure of one does not affect the others."""
    await asyncio.gather(*(_for_a_while(attack(number), seconds) for number in range(count)))


async def _for_a_while(attack: Awaitable[None], seconds: float = SECONDS) -> None:
    with contextlib.suppress(TimeoutError, OSError, EOFError):
        async with asyncio.timeout(seconds):
            await attack


async def send_over_and_over(link: Tcp, data: bytes, times: int) -> None:
    for _ in range(times):
        if not link.lost:
            await link.send(data)


# --- over WebSocket -------------------------------------------------------------------------------------------------------


async def fragments(server: Address) -> None:
    """200,000 empty continuation frames, also before the session is open."""

    async def attack(number: int) -> None:
        beginning = client_frame(b"{", TEXT, fin=False)
        async with connection(server, opening=upgrade_request() + beginning) as link:
            if number % 2:
                await link.head()
            await send_over_and_over(link, client_frame(b"", CONTINUATION, fin=False) * 20_000, 10)
            await asyncio.sleep(SECONDS)

    await together(5, attack)


async def unread_pongs(server: Address) -> None:
    """Pings, a megabyte at a time, from clients that do not read."""

    async def attack(number: int) -> None:
        async with connection(server, 8192, upgrade_request()) as link:
            if number < 8:
                await link.head()
            await send_over_and_over(link, client_frame(b"." * (125 if number % 2 else 0), PING) * 8000, 200)

    await together(10, attack)


async def large_presence(server: Address) -> None:
    """Requests for the list of present members from clients that do not read."""
    subscribe = {"command": "subscribe", "identifier": identifier(HALL)}

    async def join(number: int) -> None:
        member = {"id": f"{number:06}", "info": "." * 4000}
        async with connection(server, opening=upgrade_request(protocol=EXTENDED)) as link:
            await link.send(command(**subscribe, presence=member))
            await link.frame_with(b"confirm_subscription")

    async def attack(number: int) -> None:
        async with connection(server, 8192, upgrade_request()) as link:
            await link.send(command(**subscribe))
            await send_over_and_over(link, command(command="presence", identifier=identifier(HALL)), 200)
            await asyncio.sleep(SECONDS)

    for number in range(200):  # one by one: each is announced to the others
        await _for_a_while(join(number))
    await together(20, attack)


async def unread_messages(server: Address) -> None:
    """Clients that switch pings off and do not read, on streams with large messages. Those of TICKER may be dropped."""

    async def attack(number: int) -> None:
        pings = ("0", "3600", NUMBER_OF_400_DIGITS)[number % 3]
        async with connection(server, 8192, upgrade_request(f"/cable?pi={pings}")) as link:
            await link.send(command(command="subscribe", identifier=identifier((FIREHOSE, TICKER)[number % 2])))
            await asyncio.sleep(STALL_SECONDS)

    async def publish(number: int) -> None:
        body = json.dumps({"stream": (FIREHOSE, TICKER)[number], "data": "." * 100_000}).encode()
        head = b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        async with connection(server) as link:
            for _ in range(60):
                await link.send(head + body)
                await link.response()

    await asyncio.gather(together(12, attack, STALL_SECONDS), together(2, publish, STALL_SECONDS))


async def huge_identifiers(server: Address) -> None:
    """The maximum number of subscriptions of a session, each with an identifier of 60 KB."""

    async def attack(number: int) -> None:
        async with connection(server, opening=upgrade_request(protocol=EXTENDED)) as link:
            for each in range(100):
                name = json.dumps({"channel": "$pubsub", "stream_name": "s", "": f"{number}/{each}" + "." * 60_000})
                await send_over_and_over(link, command(command="subscribe", identifier=name), 1)
            await link.to_the_end()

    await together(5, attack)


async def bad_frames(server: Address) -> None:
    """Malformed WebSocket frames, messages and numbers."""

    async def attack(number: int) -> None:
        for case in (*FRAMES.values(), *MESSAGES.values()):
            await case(server)
        for query in (f"pi={NUMBER_OF_400_DIGITS}", f"pi=-{NUMBER_OF_400_DIGITS}", "pi=%ff&ptp=%00&sid=%ff"):
            async with connection(server, opening=upgrade_request(f"/cable?{query}")) as link:
                await link.send(command(command="ping"))
                await link.frame_with(b"pong")

    await together(3, attack)


# --- over HTTP ------------------------------------------------------------------------------------------------------------


def _bomb(size: int) -> bytes:
    """The beginning of a gzip stream that decompresses to a thousand times its size."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = deflate.compress(b" ") + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(b" " * (1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)  # can be repeated after a full flush
    return head + block * (size // len(block))


async def compressed_bodies(server: Address) -> None:
    """3.9 MB that decompress to gigabytes, without a key, to paths that read a body and to others."""
    body = _bomb(3_900_000)
    paths = ("/_broadcast", "/api/publish", "/events", "/health", "/nowhere")

    async def attack(number: int) -> None:
        head = f"POST {paths[number]} HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n"
        async with connection(server, opening=head.encode() + body) as link:
            await link.to_the_end()

    await together(len(paths), attack)


async def chunked_bodies(server: Address) -> None:
    """Chunks of a byte, chunks of a few, and chunk extensions, without a key, to paths that read a body and to others."""
    paths = ("/_broadcast", "/events", "/health", "/nowhere")
    floods = (b"1\r\n \r\n" * 10_000, b"8\r\n        \r\n" * 5_000, b"1;" + b"a" * 60_000 + b"\r\n \r\n")

    async def attack(number: int) -> None:
        head = f"POST {paths[number % 4]} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        for _ in range(20):
            async with connection(server, opening=head) as link:
                await send_over_and_over(link, floods[number % 3], 200)

    await together(12, attack)


async def large_batches(server: Address) -> None:
    """A megabyte of tiny publications with an unknown field: far more than the limit of a batch."""
    body = b"[" + b",".join([b'{"stream":"s","data":1,"x":1}'] * 34_900) + b"]"
    head = b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def attack(number: int) -> None:
        async with connection(server) as link:
            for _ in range(30):
                await link.send(head + body)
                await link.response()

    await together(2, attack)


async def idle_requests(server: Address) -> None:
    """Connections that stay open after a request, or send half of a first or a second one."""
    half = b"GET /health HTTP/1.1\r\nhost: x\r\n"

    async def attack(number: int) -> None:
        async with connection(server) as link:
            if number % 3:
                await link.send(half + b"\r\n")
                await link.response()
            if number % 3 != 1:
                await link.send(half)
            await link.to_the_end()

    await together(120, attack, HEAD_SECONDS)


async def bad_requests(server: Address) -> None:
    """Bodies that are cut off, and a method without a body."""
    cut = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"

    async def attack(number: int) -> None:
        async with connection(server, opening=cut) as link:
            await asyncio.sleep(0.1)
            link.abort()
        async with connection(server, opening=b"HEAD /journal/0 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n") as link:
            await link.to_the_end()

    await together(20, attack)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        fragments,
        unread_pongs,
        compressed_bodies,
        chunked_bodies,
        large_batches,
        huge_identifiers,
        large_presence,
        unread_messages,
        idle_requests,
        bad_frames,
        bad_requests,
    )
}


async def ordinary_clients(server: Address) -> None:
    """Not an attack: ordinary clients. The ping times beside them are the baseline."""

    async def ordinary(number: int) -> None:
        async with connection(server, opening=upgrade_request()) as link:
            await link.send(command(command="subscribe", identifier=identifier(f"ordinary/{number}")))
            while True:
                await link.send(command(command="ping"))
                await link.frame_with(b"pong")
                await asyncio.sleep(0.02)

    await together(20, ordinary)


async def main(attacks: Mapping[str, Attack], url: str, names: Iterable[str]) -> None:
    known = {**attacks, ordinary_clients.__name__: ordinary_clients}
    await asyncio.gather(*(known[name](Address(url)) for name in names))


if __name__ == "__main__":
    asyncio.run(main(ATTACKS, sys.argv[1], sys.argv[2:]))
