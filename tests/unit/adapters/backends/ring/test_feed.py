"""The feed of a node while it connects to another one."""

from ropewalk.adapters.backends.ring.feed import RingFeed, RingReceiver
from ropewalk.adapters.backends.ring.router import Router
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.model.ring import RingMember

STATE = RingState("a", build_first_table([RingMember("a", "h:1"), RingMember("b", "h:2")], 4))


class ReachedNode:
    """The store of a node. It accepts every call."""

    connected = server_ends = True
    away_since: float | None = None

    async def call(self, method: str, *arguments: object) -> None:
        pass

    def note(self, method: str, *arguments: object) -> bool:
        return True


async def test_connecting_node_receives_prefixes_added_meanwhile() -> None:
    feed = RingFeed(Router(STATE, {"a": ReachedNode()}), RingReceiver(lambda news: None))
    calls: list[object] = []

    async def call(method: str, prefixes: list[bytes]) -> None:
        """The node is not connected yet, so this call is the only way to send it a prefix."""
        calls.append((method, prefixes))
        if len(calls) == 1:
            await feed.listen_prefix(b"later")

    await feed.listen_prefix(b"first")
    await feed.listen_to_prefixes(call)
    assert calls == [("listen_prefixes", [b"first"]), ("listen_prefixes", [b"later"])]
