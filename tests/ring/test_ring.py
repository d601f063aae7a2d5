"""A ring of three servers behaves as one server, at each of its nodes."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import aiohttp
import msgspec
import pytest

from ropewalk.model.ring import RingReport
from ropewalk.protocol.broky.frames import Format, Match, Pushed, Run, Subscribe, Subscribed
from tests import broky_client
from tests.cable import cable
from tests.clients.credentials import token
from tests.metrics import metrics_when
from tests.ring.ring import SHARDS, Ring, running_ring, streams_of_all_shards
from tests.server import publish


@pytest.fixture(scope="module", params=[{}, {"a": 2, "c": 2}], ids=["one process each", "some with workers"])
def shared_ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    with running_ring(workers=request.param) as ring:
        yield ring


@pytest.fixture
async def ring(shared_ring: Ring) -> Ring:
    await shared_ring.healthy()
    return shared_ring


async def test_clients_of_all_nodes_receive_messages_of_all_publishers_in_one_order(ring: Ring) -> None:
    a, b, c = (ring.nodes[name] for name in "abc")
    for stream in streams_of_all_shards(prefix="order"):
        async with cable(a) as first, cable(b) as second, cable(c) as third:
            for client in (first, second, third):
                await client.subscribe(stream)
            positions = [await publish(node, stream, str(number)) for number, node in enumerate((a, b, c) * 3)]
            assert [position["offset"] for position in positions] == list(range(1, 10))
            for client in (first, second, third):
                assert [message["offset"] for message in await client.messages_up_to(9)] == list(range(1, 10))


async def test_concurrent_publishers_at_all_nodes_get_consecutive_offsets(ring: Ring) -> None:
    async with cable(ring.nodes["a"]) as first, cable(ring.nodes["b"]) as second:
        for client in (first, second):
            await client.subscribe("crowd")

        async def publish_many(name: str) -> None:
            for number in range(50):
                await publish(ring.nodes[name], "crowd", f"{name}{number}")

        await asyncio.gather(*map(publish_many, "abc"))
        received, at_second = [await client.messages_up_to(150) for client in (first, second)]
        assert received == at_second
        assert all(after["offset"] == before["offset"] + 1 for before, after in pairwise(received))
        for name in "abc":
            published = [message["message"] for message in received if message["message"].startswith(name)]
            assert published == [f"{name}{number}" for number in range(50)]


async def test_batch_over_many_shards_is_published(ring: Ring) -> None:
    streams = [f"batch/{number}" for number in range(20)]
    batch = [{"stream": stream, "data": "1"} for stream in streams]
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{ring.nodes['b'].url}/_broadcast", json=batch) as response,
    ):
        assert response.status == 201
        receipts = (await response.json())["publications"]
    assert [(receipt["stream"], receipt["offset"]) for receipt in receipts] == [(stream, 1) for stream in streams]


async def test_push_over_tcp_reaches_tcp_and_websocket_clients_of_other_nodes(ring: Ring) -> None:
    async with (
        cable(ring.nodes["a"]) as web,
        broky_client.client(ring.nodes["b"]) as subscriber,
        broky_client.client(ring.nodes["c"]) as pusher,
    ):
        await web.subscribe("pushed")
        await subscriber.subscribe(b"pushed")
        pusher.send(Run(7, 1, key=b"pushed", payload=b'"x"', format=Format.JSON))
        assert (await pusher.expect(Pushed)).refs == (7,)
        assert (await web.expect("message"))["offset"] == 1
        assert (await subscriber.expect(Run)).offset == 1


async def test_each_node_returns_the_history(ring: Ring) -> None:
    for number in range(5):
        await publish(ring.nodes["a"], "past", str(number))
    for node in ring.nodes.values():
        async with cable(node) as client:
            assert [each["offset"] for each in await client.subscribe("past", history={"since": 1})] == [1, 2, 3, 4, 5]


async def test_session_resumes_at_another_node_repeatedly(ring: Ring) -> None:
    async with cable(ring.nodes["a"]) as client:
        await client.subscribe("roaming")
        await publish(ring.nodes["b"], "roaming", "0")
        await client.messages_up_to(1)
        sid, position = client.sid, client.positions["roaming"]
    for number, name in enumerate("bcabcabca", 1):
        await publish(ring.nodes["a"], "roaming", str(number))
        async with cable(ring.nodes[name], sid=sid) as client:
            missed = await client.ask_history("roaming", position)
            assert [message["message"] for message in missed] == [number]
            assert client.sid != sid
            sid, position = client.sid, client.positions["roaming"]


async def test_each_node_reports_the_presence_of_all(ring: Ring) -> None:
    async with cable(ring.nodes["a"]) as first, cable(ring.nodes["b"]) as second, cable(ring.nodes["c"]) as third:
        await third.subscribe("room")
        await first.subscribe("room", presence={"id": "anna"})
        assert (await third.until("presence"))["message"]["id"] == "anna"
        await second.subscribe("room", presence={"id": "bo"})
        assert (await third.until("presence"))["message"]["id"] == "bo"
        for node in ring.nodes.values():
            async with aiohttp.ClientSession() as http, http.get(f"{node.url}/api/presence/room/users") as response:
                assert response.status == 200, await response.text()
                assert [record["id"] for record in (await response.json())["records"]] == ["anna", "bo"]


async def test_disconnect_request_reaches_each_node_and_removes_stored_sessions(ring: Ring) -> None:
    user = {"jid": token("user/1")}
    async with cable(ring.nodes["b"], params=user) as away:
        await away.subscribe("s")
        sid = away.sid
    async with cable(ring.nodes["a"], params=user) as first, cable(ring.nodes["c"], params=user) as second:
        request = {"command": "disconnect", "payload": {"identifier": "user/1", "reconnect": False}}
        async with aiohttp.ClientSession() as http, http.post(f"{ring.nodes['b'].url}/_broadcast", json=request) as response:
            assert response.status == 201, await response.text()
        for client in (first, second):
            await client.until("disconnect")
            await client.closed()
    async with cable(ring.nodes["c"], welcome=False, sid=sid, params=user) as client:
        await client.welcomed(restored=False)


async def test_prefix_subscription_receives_the_streams_of_all_nodes(ring: Ring) -> None:
    streams = [f"prefixed/{number}" for number in range(20)]
    async with broky_client.client(ring.nodes["b"]) as subscriber:
        subscriber.send(Subscribe(1, b"prefixed/", match=Match.PREFIX))
        await subscriber.expect(Subscribed)
        for stream in streams:
            await publish(ring.nodes["a"], stream, "1")
        received = [run.key.decode() for run in await subscriber.some(Run, len(streams))]
    assert sorted(received) == sorted(streams)


async def test_each_node_reports_the_metrics_of_the_ring(ring: Ring) -> None:
    """A node with workers too, from each of its processes."""
    await ring.settled()
    reports = {name: await ring_report(ring, name) for name in ring.nodes}
    for name, node in ring.nodes.items():
        held = next(each.holds for each in reports[name].nodes if each.name == name)
        expected = {
            "ring_term": reports[name].term,
            "ring_nodes": 3,
            "ring_nodes_unreached": 0,
            "ring_shards_held": held,
            "ring_shards_handed_over_total": 0,
        }
        before = await metrics_when(node, lambda now, expected=expected: expected.items() <= now.items())  # type: ignore[misc]
        for stream in streams_of_all_shards(prefix="counted"):
            await publish(node, stream, "counted")
        forwarded = before["ring_publications_forwarded_total"] + SHARDS - held
        await metrics_when(node, lambda now, forwarded=forwarded: now["ring_publications_forwarded_total"] >= forwarded)  # type: ignore[misc]


async def ring_report(ring: Ring, name: str) -> RingReport:
    async with aiohttp.ClientSession() as http, http.get(f"{ring.nodes[name].url}/api/ring") as response:
        return msgspec.json.decode(await response.read(), type=RingReport)
