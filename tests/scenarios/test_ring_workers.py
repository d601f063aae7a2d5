"""A ring whose nodes have workers is one server too: whichever worker of whichever node somebody talks to."""

from tests.cable import cable
from tests.scenarios.ring import running_ring, streams_of_all_shards
from tests.server import publish

TWO_WORKERS = ("--workers", "2")


async def test_what_is_published_at_any_node_comes_to_clients_of_all_in_one_order() -> None:
    with running_ring("ab", *TWO_WORKERS) as ring:
        await ring.healthy()
        a, b = ring.nodes["a"], ring.nodes["b"]
        for stream in streams_of_all_shards():
            async with cable(a) as first, cable(b) as second:
                for client in (first, second):
                    await client.subscribe(stream)
                positions = [await publish(node, stream, str(number)) for number, node in enumerate((a, b) * 3)]
                assert [position["offset"] for position in positions] == list(range(1, 7))
                for client in (first, second):
                    assert [message["offset"] for message in await client.messages_up_to(6)] == list(range(1, 7))
