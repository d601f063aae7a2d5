"""Calls to several nodes of a ring whose caller is cancelled."""

import asyncio
import gc

from ropewalk.adapters.backends.ring.router import Router
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.model.errors import Unanswered
from ropewalk.model.ring import RingMember

STATE = RingState("a", build_first_table([RingMember("a", "h:1"), RingMember("b", "h:2")], 4))


class AskedNode:
    """Answers when the test sets `answer`."""

    connected = True
    away_since: float | None = None

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked = asyncio.Event()

    async def call(self, method: str, *arguments: object) -> int:
        self.asked.set()
        return await self.answer

    def note(self, method: str, *arguments: object) -> bool:
        return True


async def test_errors_of_cancelled_calls_are_not_reported() -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    nodes = {"a": AskedNode(), "b": AskedNode()}
    asking = asyncio.create_task(Router(STATE, nodes).ask_all("identity", "bo"))
    await asyncio.gather(*(node.asked.wait() for node in nodes.values()))
    nodes["a"].answer.set_exception(Unanswered("gone before"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    if not nodes["b"].answer.done():
        nodes["b"].answer.set_exception(Unanswered("gone after"))
    await asyncio.sleep(0)
    del asking, nodes
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
