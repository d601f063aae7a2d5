"""One rule for stream names: what may be published to may be subscribed to and read, over every protocol."""

import json
from urllib.parse import quote

import aiohttp
import pytest

from ropewalk.core.signatures import sign_stream
from ropewalk.protocol.broky.frames import History, HistoryPage, Pushed, Refused, Run, Subscribe, Subscribed
from ropewalk.protocol.broky.runs import build_run
from ropewalk.protocol.stream_keys import decode_key
from tests.broky_client import client
from tests.cable import cable, identifier
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer

SECRET = "a secret that is long enough for HMAC"
LONGEST = 512
KEYS = {
    "control characters": b"\x01" * 400,
    "longest": b"\x1f" * LONGEST,
    "quotes": b'"' * LONGEST,
    "not ascii": "ü".encode() * (LONGEST // 2),
    "bytes": b"\xff\x00" * 190,
}
TOO_LONG = {"too long": b"\x01" * (LONGEST + 1), "too many bytes": b"\xff" * 400}


@pytest.fixture
def server(server_with: ServerWith) -> RunningServer:
    return server_with("--public", "--streams_secret", SECRET, "--sse")


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
async def test_allowed_name_can_be_published_subscribed_to_and_read(server: RunningServer, key: bytes) -> None:
    name = decode_key(key)
    signed = json.dumps({"channel": "$pubsub", "signed_stream_name": sign_stream(name, SECRET)})
    async with client(server) as broky, cable(server) as reader, cable(server) as signer, aiohttp.ClientSession() as http:
        broky.send(build_run(key, [b"1"], ref=1))
        assert isinstance(await broky.receive(), Pushed)
        broky.send(Subscribe(2, key, history=True))
        assert (await broky.expect(Subscribed)).ref == 2
        assert (await broky.expect(Run)).payload == b"1"
        broky.send(History(3, key))
        assert (await broky.expect(Run)).key == key
        assert (await broky.expect(HistoryPage)).tip == 1
        await reader.subscribe(name)
        await signer.send(command="subscribe", identifier=signed)
        await signer.expect("confirm_subscription", identifier=signed)
        async with http.get(f"{server.url}/events", params={"stream": name}) as events:
            assert events.status == 200
            async with http.post(f"{server.url}/api/publish", json={"stream": name, "data": "2"}) as response:
                assert response.status == 201
            assert await reader.messages(1) == [2]
            assert await signer.messages(1) == [2]
            while not (line := await events.content.readline()).startswith(b"data: 2"):
                assert line
        async with http.get(f"{server.url}/api/streams/{quote(name, safe='')}/history") as response:
            assert (response.status, len((await response.json())["messages"])) == (200, 2)


@pytest.mark.parametrize("key", TOO_LONG.values(), ids=TOO_LONG.keys())
async def test_name_beyond_the_limit_is_refused_everywhere(server: RunningServer, key: bytes) -> None:
    name = decode_key(key)
    signed = json.dumps({"channel": "$pubsub", "signed_stream_name": sign_stream(name, SECRET)})
    async with client(server) as broky, cable(server) as reader, aiohttp.ClientSession() as http:
        broky.send(build_run(key, [b"1"], ref=1), Subscribe(2, key), History(3, key))
        assert [type(await broky.receive()) for _ in range(3)] == [Refused] * 3
        for each in (identifier(name), signed):
            await reader.send(command="subscribe", identifier=each)
            await reader.expect("reject_subscription", identifier=each)
        async with http.get(f"{server.url}/events", params={"stream": name}) as events:
            assert events.status == 400
        async with http.post(f"{server.url}/api/publish", json={"stream": name, "data": "2"}) as response:
            assert response.status == 422
