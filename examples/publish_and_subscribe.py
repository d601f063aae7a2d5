"""Publish to a stream and receive from it in one program: each message comes with its position, once and in order.

Start a server with `ropewalk serve --public`, then: python examples/publish_and_subscribe.py
"""

import asyncio
import sys

from ropewalk.client import Message, connect


async def main(url: str) -> None:
    async with connect(url) as client:
        stream = await client.subscribe("examples/hello")
        for word in ("warp", "weft", "rope"):
            receipt = await client.publish("examples/hello", {"word": word})
            print(f"sent      {word} at offset {receipt.offset}")
        for _ in range(3):
            message = await anext(stream)
            assert isinstance(message, Message)
            print(f"received  {message.data['word']} at offset {message.offset}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
