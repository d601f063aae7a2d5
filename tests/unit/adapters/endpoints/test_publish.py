"""The publish endpoint over a real socket: every response, and that a refusal registers nothing."""

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.publish import PublishEndpoint
from ropewalk.core.stats import Stats
from ropewalk.model.errors import PartitionChanged, Unavailable
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.protocol.publications import PublicationLimits
from tests.unit.adapters.http_server import Client, serving

LIMITS = PublicationLimits(max_batch=3, max_publish_size=1000)
GOOD = {"stream": "chat", "data": '{"n":1}'}


class Registry:
    """A publisher with one epoch that detects repeated uids."""

    def __init__(self) -> None:
        self.registered: list[Publication] = []
        self.orders: list[RemoteDisconnect] = []
        self.down = False
        self._known: dict[str, Receipt] = {}
        self._offsets = itertools.count(1)

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self.down:
            raise Unavailable("the store is away")
        for publication in publications:
            if publication.stream == "chat" and publication.partition_key == "other" and not publication.transient:
                raise PartitionChanged(publication.stream, "other", "k")
        return [self._register(publication) for publication in publications]

    def _register(self, publication: Publication) -> Receipt:
        if known := self._known.get(publication.uid):
            return Receipt(known.stream, known.epoch, known.offset, True)
        self.registered.append(publication)
        if publication.transient:
            return Receipt(publication.stream, "", 0)
        receipt = Receipt(publication.stream, "e1", next(self._offsets))
        if publication.uid:
            self._known[publication.uid] = receipt
        return receipt

    async def disconnect(self, order: RemoteDisconnect) -> int:
        self.orders.append(order)
        return 2


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def stats() -> Stats:
    return Stats()


@pytest.fixture
async def client(registry: Registry, stats: Stats) -> AsyncIterator[Client]:
    closed = PublishEndpoint(registry, KeyGuard("k3y", stats.refusals), LIMITS, stats).routes("/_broadcast")
    opened = PublishEndpoint(registry, KeyGuard("", stats.refusals), LIMITS, stats).routes("/open")
    async with serving([*closed, *opened]) as client:
        yield client


async def post(client: Client, body: object, **headers: str) -> tuple[int, dict[str, object]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post("/open", data=data, headers=named) as response:
        return response.status, await response.json()


async def test_publication_is_registered_and_its_position_returned(client: Client, registry: Registry) -> None:
    assert await post(client, GOOD) == (201, {"publications": [{"stream": "chat", "epoch": "e1", "offset": 1}]})
    assert registry.registered == [Publication("chat", b'{"n":1}')]


async def test_batch_is_answered_in_order_and_transient_messages_have_no_position(client: Client) -> None:
    body = [GOOD, {"stream": "other", "data": "x", "meta": {"transient": True}}, GOOD]
    status, answer = await post(client, body)
    assert status == 201
    assert answer["publications"] == [
        {"stream": "chat", "epoch": "e1", "offset": 1},
        {"stream": "other"},
        {"stream": "chat", "epoch": "e1", "offset": 2},
    ]


async def test_retry_with_the_same_idempotency_key_returns_the_first_position(client: Client, registry: Registry) -> None:
    first = await post(client, [GOOD, GOOD], Idempotency_Key="k")
    again = await post(client, [GOOD, GOOD], Idempotency_Key="k")
    assert first[0] == again[0] == 201
    assert again[1]["publications"] == [
        {"stream": "chat", "epoch": "e1", "offset": 1, "duplicate": True},
        {"stream": "chat", "epoch": "e1", "offset": 2, "duplicate": True},
    ]
    assert len(registry.registered) == 2


async def test_remote_disconnect_returns_the_number_of_sessions(client: Client, registry: Registry) -> None:
    body = {"command": "disconnect", "payload": {"identifier": "user-1", "reconnect": False}}
    assert await post(client, body) == (201, {"disconnected": 2})
    assert registry.orders == [RemoteDisconnect("user-1", False)]


async def test_malformed_batch_is_refused_with_the_index_and_nothing_is_registered(
    client: Client, registry: Registry, stats: Stats
) -> None:
    status, answer = await post(client, [GOOD, {"stream": "chat", "data": None}])
    assert (status, answer["index"]) == (422, 1)
    assert "data" in str(answer["error"])
    assert registry.registered == []
    assert stats.publications_refused == 1


async def test_unavailable_store_is_answered_with_503(client: Client, registry: Registry) -> None:
    registry.down = True
    assert await post(client, GOOD) == (503, {"error": "the store is away"})
    async with client.post("/open", json=GOOD) as response:
        assert response.headers["Retry-After"] == "1"


async def test_changed_partition_key_is_answered_with_409(client: Client, registry: Registry, stats: Stats) -> None:
    status, answer = await post(client, [GOOD | {"partition_key": "k"}, GOOD | {"partition_key": "other"}])
    reason = "the stream 'chat' has the partition key 'k', which cannot become 'other'"
    assert (status, answer) == (409, {"error": reason, "index": 1})
    assert (registry.registered, stats.publications_refused) == ([], 1)


async def test_index_of_a_changed_partition_key_skips_new_streams_and_transient_messages(
    client: Client,
) -> None:
    other = {"partition_key": "other"}
    passing = [GOOD | other | {"stream": "new"}, GOOD | other | {"meta": {"transient": True}}]
    status, answer = await post(client, [*passing, GOOD | other])
    assert (status, answer["index"]) == (409, 2)


async def test_missing_or_wrong_key_is_answered_with_401(client: Client, registry: Registry, subtests: pytest.Subtests) -> None:
    for authorization in ["", "Bearer", "Bearer ", "Bearer wrong", "Basic k3y", "k3y", "Bearer k3y2", "Bearer k3\u00ff"]:
        with subtests.test(authorization=authorization):
            async with client.post("/_broadcast", json=GOOD, headers={"Authorization": authorization}) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert "error" in await response.json()
            assert registry.registered == []


async def test_correct_key_is_accepted(client: Client, subtests: pytest.Subtests) -> None:
    for authorization in ["Bearer k3y", "bearer k3y", "Bearer  k3y"]:
        with subtests.test(authorization=authorization):
            async with client.post("/_broadcast", json=GOOD, headers={"Authorization": authorization}) as response:
                assert response.status == 201


async def test_other_methods_are_answered_with_405_and_the_allowed_one(client: Client, subtests: pytest.Subtests) -> None:
    for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"]:
        with subtests.test(method=method):
            async with client.request(method, "/open") as response:
                assert response.status == 405
                assert response.headers["Allow"] == "POST"


# --- Sizes -----------------------------------------------------------------------------------------------------------


def sized(size: int) -> bytes:
    frame = b'{"stream":"chat","data":"%b"}'
    return frame % (b"x" * (size - len(frame) + 2))


async def test_body_of_exactly_the_limit_is_accepted(client: Client) -> None:
    assert (await post(client, sized(1000)))[0] == 201


async def test_content_length_over_the_limit_is_refused_before_the_body_is_read(client: Client, stats: Stats) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /open HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
    assert b" 413 " in await reader.readline()
    writer.close()
    assert stats.publications_refused == 1


async def test_chunked_body_over_the_limit_is_refused(client: Client, registry: Registry) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 100

    async with client.post("/open", data=chunks()) as response:
        assert response.status == 413
    assert registry.registered == []


async def test_limit_applies_to_the_decompressed_body(client: Client) -> None:
    assert (await post(client, gzip.compress(sized(1000)), Content_Encoding="gzip"))[0] == 201
    assert (await post(client, gzip.compress(b" " * 100_000), Content_Encoding="gzip"))[0] == 413


async def test_compressed_body_that_cannot_be_decompressed_is_refused(client: Client, registry: Registry) -> None:
    for size in (20, 900):
        status, answer = await post(client, b"!" * size, Content_Encoding="gzip")
        assert (status, answer["error"]) == (422, "the body cannot be read")
    assert registry.registered == []
    assert (await post(client, GOOD))[0] == 201


async def test_client_that_disconnects_in_a_body_does_not_affect_others(client: Client, registry: Registry) -> None:
    _, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b'POST /open HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"stream":"chat"')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await post(client, GOOD))[0] == 201
    assert len(registry.registered) == 1


async def test_idempotency_key_that_is_not_ascii_is_refused(client: Client) -> None:
    body = json.dumps(GOOD).encode()
    head = b"POST /open HTTP/1.1\r\nHost: x\r\nIdempotency-Key: \xff\xfe\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(head + body)
    assert b" 422 " in await reader.readline()
    writer.close()


async def test_missing_body_is_answered_with_408(registry: Registry, stats: Stats) -> None:
    async with serving(
        PublishEndpoint(registry, KeyGuard("", stats.refusals), LIMITS, stats, timeout=0.01).routes("/open")
    ) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /open HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        await reader.read()  # and the connection is closed
        writer.close()
    assert registry.registered == []
