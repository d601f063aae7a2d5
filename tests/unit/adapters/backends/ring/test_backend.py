"""What a node of a ring knows of the others while its links come and go; over real links in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from ropewalk.adapters.backends.ring.links import NodeLink
from ropewalk.adapters.backends.ring.router import SendCall
from ropewalk.model.rules import StreamRules
from ropewalk.testing.backend_rig import BackendSetup
from ropewalk.testing.clock import ManualClock
from tests.ring_nodes import RingInProcess, RingNodeInProcess


@pytest.fixture
async def ring() -> AsyncIterator[RingInProcess]:
    ring = RingInProcess(BackendSetup(ManualClock(), StreamRules(history_limit=10, history_ttl=300.0)))
    await ring.start("abcd")
    await ring.settled()
    yield ring
    await ring.stop()


class Greetings:
    """Holds the greetings of one node: each before the news are exchanged, and again after that."""

    def __init__(self, node: RingNodeInProcess) -> None:
        self._fetch_news, self._listen_at = node._fetch_news, node.feed.listen_at
        self.begun = asyncio.Event()
        self.released = {name: asyncio.Event() for name in "bcd"}
        self.held: set[str] = set()
        node._fetch_news = self._hold_news  # type: ignore[method-assign]
        node.feed.listen_at = self._hold  # type: ignore[method-assign]

    async def _hold_news(self, link: NodeLink) -> None:
        await self.begun.wait()
        await self._fetch_news(link)

    async def _hold(self, node: str, call: SendCall, shards: Sequence[int] | None = None) -> None:
        self.held.add(node)
        await self.released[node].wait()
        await self._listen_at(node, call, shards)


async def restart_with_held_greetings(ring: RingInProcess) -> tuple[RingNodeInProcess, Greetings]:
    """The others reach the node first, so it serves its shards and all know the same before its own links exchange news."""
    await ring.kill("a")
    ring.prepare("a")
    a = ring.nodes["a"]
    greetings = Greetings(a)
    await a.run()
    await ring.until(lambda: all(node.state.news == a.state.news for node in ring.nodes.values()) and a.health() == "")
    greetings.begun.set()
    await ring.until(lambda: greetings.held == set("bcd"))
    return a, greetings


async def test_news_of_a_node_being_greeted_count_when_another_link_is_ready_first(ring: RingInProcess) -> None:
    a, greetings = await restart_with_held_greetings(ring)
    for name in "bcd":
        greetings.released[name].set()
        await ring.until(lambda name=name: a._is_alive(name))  # type: ignore[misc]
    assert a.health() == ""
    await ring.settled()


async def test_news_of_a_node_lost_while_being_greeted_do_not_count(ring: RingInProcess) -> None:
    a, greetings = await restart_with_held_greetings(ring)
    for name in "cd":
        await ring.kill(name)
    await ring.until(lambda: a._links["c"]._connection is a._links["d"]._connection is None)
    greetings.released["b"].set()
    await ring.until(lambda: a._is_alive("b"))
    assert a.health().startswith("no more than half of the nodes of the ring are reached")
