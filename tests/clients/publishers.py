"""Publications as an application's backend sends them: over HTTP, with the bearer key when the server asks for one."""

import json

import aiohttp

from tests.server import RunningServer
from tests.server import publish as publish_one


async def publish(server: RunningServer, stream: str, *messages: object, key: str = "", **meta: object) -> None:
    """The messages one by one, each in its own request."""
    for message in messages:
        await publish_one(server, stream, json.dumps(message), key, **({"meta": meta} if meta else {}))


async def broadcast(server: RunningServer, body: object, key: str = "") -> None:
    """What is not a single publication: a batch, or a command."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as http, http.post(f"{server.url}/_broadcast", json=body) as response:
        assert response.status == 201, await response.text()
