"""Follow a stream from its beginning until you stop it. Lost connections are resumed, and gaps are reported.

Start a server with `ropewalk serve --public`, then: python examples/tail_a_stream.py
Publish from another terminal with `ropewalk publish examples/tail hello`; stop with Ctrl-C.
"""

import asyncio
import sys
from contextlib import suppress

from ropewalk.client import Gap, Message, Position, connect


async def main(url: str) -> None:
    async with connect(url) as client:
        async for event in await client.subscribe("examples/tail", position=Position("", 0)):
            match event:
                case Message():
                    print(f"{event.offset}: {event.data}", flush=True)
                case Gap():
                    print(f"lost ({event.reason}), going on at {event.resumes_at}", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
