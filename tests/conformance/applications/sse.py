"""Clients over server-sent events: connect and subscribe calls, and a disconnect call at the end of the connection."""

import asyncio

import aiohttp

from ropewalk.testing.application_orders import Order, seat
from tests.conformance.applications.stage import TIMEOUT, Stage
from tests.server import publish


class Sse:
    async def test_sse_client_is_connected_subscribed_and_disconnected(self, stage: Stage) -> None:
        timeout = aiohttp.ClientTimeout(TIMEOUT)
        wanted = seat(Order(say=("hello",), streams=("sse/1", "sse/2"), keep={"seat": "1"}))
        params = {"user": "listener", "identifier": wanted, "raw": "1"}
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(f"{stage.server.url}/events", params=params) as response,
        ):
            assert response.status == 200
            await publish(stage.server, "sse/2", '"two"')
            assert [await self._data(response) for _ in range(2)] == ["hello", "two"]
            sid = (await stage.heard_by("user=listener", "subscribe")).sid
        while "disconnect" not in stage.story(sid):  # the server notices a closed connection when it sends
            await publish(stage.server, "sse/1", '"ping"')
            await asyncio.sleep(0.05)
        assert (await stage.heard(sid, "disconnect")).subscriptions == {wanted: {"seat": "1"}}
        assert stage.story(sid) == ["connect", "subscribe", "disconnect"]

    async def test_refused_sse_client_gets_an_error_status(self, stage: Stage) -> None:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{stage.server.url}/events", params={"identifier": seat()}) as response:
                assert response.status == 401
            rejected = {"user": "listener", "identifier": seat(Order(reject=True))}
            async with http.get(f"{stage.server.url}/events", params=rejected) as response:
                assert response.status == 400

    async def _data(self, response: aiohttp.ClientResponse) -> str:
        while True:
            line = (await response.content.readline()).decode().strip()
            if line.startswith("data:"):
                return line.removeprefix("data:").strip()
