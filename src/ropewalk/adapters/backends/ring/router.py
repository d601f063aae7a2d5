"""Finds the node that holds a shard, and asks it.

Invariant: a call ends as answered by the holder, as `Unavailable` when nothing happened, or as `Unanswered`. A shard that moves
meanwhile costs a pause: the call is made again where it has gone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from ropewalk.adapters.backends.ring.links import RECONNECT_SECONDS, NodeCalls
from ropewalk.core.ring import locate_stream
from ropewalk.core.ring_state import RingState
from ropewalk.model.errors import Moved, Unanswered, Unavailable

MAX_PENDING_CALLS = 100_000

SendCall = Callable[..., Awaitable[object]]


class UnsentCall(Struct, frozen=True):
    """`name` is the sid of the session."""

    name: str
    method: str
    arguments: tuple[object, ...]


class UnsentCalls:
    """Calls for unreachable nodes, sent when they are reached: the latest one of each session.

    Above the limit the oldest calls are dropped. The end of this node's lease there has the same effect.
    """

    def __init__(self) -> None:
        self._calls: dict[str, dict[tuple[object, ...], tuple[str, tuple[object, ...]]]] = {}  # by node, in order

    def add(self, node: str, key: tuple[object, ...], method: str, *arguments: object) -> None:
        """Replaces an earlier call with this key."""
        calls = self._calls.setdefault(node, {})
        calls.pop(key, None)
        calls[key] = method, arguments
        if len(calls) > MAX_PENDING_CALLS:
            del calls[next(iter(calls))]

    def discard(self, node: str, key: tuple[object, ...]) -> None:
        self._calls.get(node, {}).pop(key, None)

    async def flush(self, node: str, send: SendCall) -> list[UnsentCall]:
        """Send all calls. Returns those for shards that another node holds now. Raises `Unavailable`; then the rest is kept."""
        moved: list[UnsentCall] = []
        while calls := self._calls.get(node):
            key = next(iter(calls))
            method, arguments = calls[key]
            try:
                await send(method, *arguments)
            except Moved:
                moved.append(UnsentCall(str(key[-1]), method, arguments))
            if calls.get(key) == (method, arguments):
                del calls[key]
        self._calls.pop(node, None)
        return moved

    def forget(self, node: str) -> None:
        """The node was removed."""
        self._calls.pop(node, None)


LOOK_SECONDS = 0.05
"""Between two checks of a shard that is about to move."""

T = TypeVar("T")


class Router:
    """Routes calls by stream and session.

    Args:
        nodes: all nodes by name, including this one and unreachable ones.

    Attributes:
        stale: set when a node refuses a call because it does not hold the shard: the ring state here may be out of date.
        forwarded: publications sent to other nodes.
    """

    def __init__(self, state: RingState, nodes: Mapping[str, NodeCalls], patience: float = RECONNECT_SECONDS) -> None:
        self.state = state
        self.nodes = nodes
        self._patience = patience
        self._change: asyncio.Future[None] | None = None
        self.stale = asyncio.Event()
        self.forwarded = 0

    def shard(self, name: str) -> int:
        return locate_stream(name, self.state.table.shards)

    def holder(self, name: str) -> str:
        """The node that holds a stream or a session; "" if it is unknown."""
        return self.state.holder(self.shard(name))

    def reached(self) -> dict[str, NodeCalls]:
        return {node: calls for node, calls in self.nodes.items() if calls.connected}

    def went_to(self, node: str, publications: int) -> None:
        if node != self.state.me:
            self.forwarded += publications

    def changed(self) -> None:
        """A node came or went, or a shard moved."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None

    def call(self, name: str, method: str, *arguments: object) -> Coroutine[Any, Any, Any]:
        """Ask the holder of a stream or a session."""
        return self.call_at(self.state.holder(self.shard(name)), name, method, *arguments)

    async def call_at(self, holder: str, name: str, method: str, *arguments: object) -> Any:
        """As `call`, if the holder is already known."""
        calls = self.nodes.get(holder)
        if calls is not None and calls.connected:
            try:
                return await calls.call(method, *arguments)
            except Moved:
                self.stale.set()
        return await self.until_done(lambda: self._call(name, method, arguments))

    async def _call(self, name: str, method: str, arguments: tuple[object, ...]) -> Any:
        return await self.holder_calls(name).call(method, *arguments)

    def holder_calls(self, name: str) -> NodeCalls:
        """Raises `Moved` while a node may serve it soon, otherwise `Unavailable`."""
        holder = self.holder(name)
        calls = self.nodes.get(holder)
        if calls is None:
            raise Moved("no node of the ring is known to hold this")
        if calls.connected:
            return calls
        away = calls.away_since
        if away is not None and time.monotonic() - away > self._patience:
            raise Unavailable(f"the node {holder} of the ring is not reached, which holds this")
        raise Moved(f"the node {holder} of the ring is not reached, which holds this")

    async def until_done(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat the attempt while it raises `Moved`, for `patience` seconds."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return await attempt()
            except Moved as moved:
                self.stale.set()
                if time.monotonic() > deadline:
                    raise Unavailable(str(moved)) from None
            await self._wait()

    async def _wait(self) -> None:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=LOOK_SECONDS)

    async def ask_all(self, method: str, *arguments: object, timeout: float | None = None) -> dict[str, Any]:
        """The answers of all reachable nodes, without those that fail or are late. Raises `Unavailable` if all do."""
        reached = self.reached() or await self._anybody()
        asked = {node: self._ask(calls, method, arguments) for node, calls in reached.items()}
        answers, failure = await _gathered(asked, timeout)
        if not answers:
            raise failure
        return answers

    async def _anybody(self) -> dict[str, NodeCalls]:
        """Wait until a node is reachable. Raises `Unavailable`."""
        deadline = time.monotonic() + self._patience
        while not (reached := self.reached()):
            if time.monotonic() > deadline:
                raise Unavailable("no node of the ring is reached")
            await self._wait()
        return reached

    async def _ask(self, calls: NodeCalls, method: str, arguments: tuple[object, ...]) -> Any:
        try:
            return await calls.call(method, *arguments)
        except Moved:
            return await self.until_done(lambda: calls.call(method, *arguments))

    async def call_all(self, method: str, *arguments: object) -> tuple[dict[str, Any], list[str]]:
        """The answers of all nodes, and the names of unreachable ones. Raises `Unavailable` if a reachable node fails."""
        answers = await self.ask_all(method, *arguments)
        silent = [node for node in self.nodes if node not in answers]
        if any(self.nodes[node].connected for node in silent):
            raise Unavailable("not all nodes of the ring answer")
        return answers, silent


class HolderCaller:
    """Implements `Caller`: a call goes to the node that holds the shard of its first argument, a stream or a sid."""

    def __init__(self, router: Router, unsent_calls: UnsentCalls) -> None:
        self.router = router
        self.unsent_calls = unsent_calls

    async def call(self, method: str, *arguments: object) -> Any:
        return await self.router.call(str(arguments[0]), method, *arguments)

    def note(self, method: str, *arguments: object) -> bool:
        node = self.router.nodes.get(self.router.holder(str(arguments[0])))
        return node is not None and node.note(method, *arguments)


async def gathered(asked: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """The answers of the nodes that do not fail."""
    return (await _gathered(asked, None))[0]


async def _gathered(asked: Mapping[str, Coroutine[Any, Any, T]], timeout: float | None) -> tuple[dict[str, T], Unavailable]:
    """The answers that arrive in time, and the error of one of the others."""
    answers: dict[str, T] = {}
    failure: Unavailable = Unanswered("no node of the ring answers in time")
    tasks = {node: asyncio.ensure_future(each) for node, each in asked.items()}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout)
    finally:  # also if the caller is cancelled: the results of all tasks are retrieved
        ended = {node: task.exception() for node, task in tasks.items() if not task.cancel() and not task.cancelled()}
    for node, error in ended.items():
        if error is None:
            answers[node] = tasks[node].result()
        elif isinstance(error, Unavailable):
            failure = error
        else:
            raise error
    return answers, failure


def grouped(names: Sequence[T], node_of: Callable[[T], NodeCalls]) -> dict[NodeCalls, list[int]]:
    """The indices of the names by node."""
    places: dict[NodeCalls, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(node_of(name), []).append(place)
    return places
