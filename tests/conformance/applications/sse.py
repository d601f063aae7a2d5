"""Clients that listen by server-sent events ask the application too, and are gone with their connection."""

import asyncio

import aiohttp

from ropewalk.testing.application_orders import Order, seat
from tests.conformance.applications.stage import TIMEOUT, Stage
from tests.server import publish


class Sse:
    async def test_a_listener_is_let_in_subscribed_and_told_to_be_gone(self, stage: Stage) -> None:
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
        while "disconnect" not in stage.story(sid):  # that a listener is gone is noticed when there is something to send
            await publish(stage.server, "sse/1", '"is anybody there?"')
            await asyncio.sleep(0.05)
        assert (await stage.heard(sid, "disconnect")).subscriptions == {wanted: {"seat": "1"}}
        assert stage.story(sid) == ["connect", "subscribe", "disconnect"]

    async def test_a_listener_that_is_refused_is_told_by_the_status(self, stage: Stage) -> None:
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
