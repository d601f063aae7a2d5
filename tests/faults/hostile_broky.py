"""Hostile clients over TCP as a program: `python -m tests.faults.hostile_broky URL attack…` runs these attacks at once.

The attacks have the limits of those in `hostile`.
"""

import asyncio
import contextlib
import os
import random
import sys

from ropewalk.protocol.broky.frames import Credit, Format, Hello, Ping, Subscribe, Unsubscribe, Welcome
from ropewalk.protocol.broky.runs import build_run, encode_run
from ropewalk.protocol.broky.tables import encode
from tests.broky_frames import damaged
from tests.faults.hostile import (
    FIREHOSE,
    HEAD_SECONDS,
    STALL_SECONDS,
    TICKER,
    Attack,
    connection,
    main,
    send_over_and_over,
    together,
)
from tests.server import Address

HELLO = encode(Hello())
LARGEST = b'"' + b"." * ((1 << 20) - 100) + b'"'  # bytes, almost the maximum of a message
LARGE = b'"' + b"." * 300_000 + b'"'
PUSHES = 20  # of those, by each of two
KEYS = 100_000


def size(number: int) -> bytes:
    return number.to_bytes(4, "little")


async def half_hellos(server: Address) -> None:
    """Connections that send nothing, half a size, only the size of a frame, half a Hello, or all but its last byte."""
    beginnings = (b"", HELLO[:2], size(16_000), size(16_000) + HELLO[4:12], HELLO[:20], HELLO[:-1])

    async def attack(number: int) -> None:
        async with connection(server, opening=beginnings[number % len(beginnings)]) as link:
            await link.to_the_end()

    await together(120, attack, HEAD_SECONDS)


async def commands(server: Address) -> None:
    """Pings, subscriptions to 100,000 keys, to one key, and unsubscriptions, a megabyte at a time, from clients that read the
    responses and from clients that do not."""
    floods = (
        encode(Ping(1)) * 20_000,
        b"".join(encode(Subscribe(1, b"hostile/%d" % number)) for number in range(KEYS)),
        encode(Subscribe(1, b"hostile/one", history=True)) * 10_000,
        (encode(Subscribe(1, b"hostile/one")) * 2 + encode(Unsubscribe(1, b"hostile/one"))) * 5_000,
    )

    async def attack(number: int) -> None:
        async with connection(server, 8192 if number % 2 else 0, HELLO) as link:
            sending = asyncio.create_task(send_over_and_over(link, floods[number // 2 % 4], 200))
            await (asyncio.sleep(HEAD_SECONDS) if number % 2 else link.to_the_end())
            sending.cancel()

    await together(16, attack, HEAD_SECONDS)


async def pushes(server: Address) -> None:
    """Pushes that are tiny, invalid, all with the same ref, or without a ref, from producers that read the responses and from
    producers that do not."""
    runs = (
        build_run(b"hostile/small", [b""], 1),
        build_run(b"", [b""], 1),
        build_run(b"hostile/json", [b"{" * 30], 1, Format.JSON),
        build_run(b"k" * 600, [b""]),
    )

    async def attack(number: int) -> None:
        flood = encode_run(runs[number // 2 % 4]) * 2000
        async with connection(server, 8192 if number % 2 else 0, HELLO) as link:
            sending = asyncio.create_task(send_over_and_over(link, flood, 200 if number // 2 % 4 else 5))
            await (asyncio.sleep(HEAD_SECONDS) if number % 2 else link.to_the_end())
            sending.cancel()

    await together(8, attack)


async def unread_runs(server: Address) -> None:
    """Subscribers that do not read, on streams with large messages. Those of TICKER may be dropped.

    Those of FIREHOSE come at once, when all have subscribed: if they came slowly, the write timeout would end the connections
    before an outbox is full.
    """
    subscribed = asyncio.Barrier(14)

    async def attack(number: int) -> None:
        key = (FIREHOSE, TICKER)[number % 2].encode()
        async with connection(server, 8192, HELLO) as link:
            await link.some()
            await link.send(encode(Subscribe(1, key, history=True)))
            await link.some()
            await subscribed.wait()
            await asyncio.sleep(STALL_SECONDS)

    async def push(number: int) -> None:
        frame = encode_run(build_run((FIREHOSE, TICKER)[number].encode(), [LARGE], 1, Format.JSON))
        async with connection(server, opening=HELLO) as link:
            await link.some()  # the Welcome, after which frames may be large
            await subscribed.wait()
            for _ in range(PUSHES):
                await link.send(frame)
                await asyncio.sleep(number * STALL_SECONDS / PUSHES / 2)
            await asyncio.sleep(STALL_SECONDS)  # the end of the connection would discard unsent frames

    await asyncio.gather(together(12, attack, STALL_SECONDS), together(2, push, STALL_SECONDS))


async def frames_that_do_not_end(server: Address) -> None:
    """Frames of the maximum size without their last byte, and small ones byte by byte."""
    frame = encode_run(build_run(b"hostile/never", [LARGEST], 1, Format.JSON))[:-1]
    small = encode_run(build_run(b"hostile/small", [b""], 1))

    async def attack(number: int) -> None:
        async with connection(server, opening=HELLO) as link:
            await link.some()
            if number % 2:
                await link.send(frame)
            while True:
                for byte in small:
                    await link.send(b"" if number % 2 else bytes([byte]))
                    await asyncio.sleep(0.001)

    await together(16, attack)


async def bad_frames(server: Address) -> None:
    """Frames that are malformed, too large, for clients only, or out of order, and connections that end within a frame."""
    seed = int(os.environ.get("HOSTILE_SEED") or random.randrange(10**9))
    print(f"HOSTILE_SEED={seed}")
    wrong = (
        size(5 << 20),
        size(2**32 - 1),
        size(0),
        HELLO,
        encode(Credit(1)),
        encode(Welcome()),
        b"GET / HTTP/1.1\r\n\r\n",
        *damaged(seed, 40),
    )

    async def attack(number: int) -> None:
        for each in wrong:
            async with connection(server, opening=HELLO + each) as link:
                if number % 2:
                    with contextlib.suppress(TimeoutError):  # a damaged frame may be valid, or the beginning of one
                        await asyncio.wait_for(link.to_the_end(), 0.2)

    await together(4, attack)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack for attack in (half_hellos, commands, pushes, unread_runs, frames_that_do_not_end, bad_frames)
}


if __name__ == "__main__":
    asyncio.run(main(ATTACKS, sys.argv[1], sys.argv[2:]))
