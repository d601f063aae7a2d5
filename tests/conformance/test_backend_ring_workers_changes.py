"""Workers of a ring while shards move, links break and disconnect requests arrive; over real links in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from ropewalk.model.messages import Deliverable, Position, Publication, Registered, RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import EndRequest, SessionSnapshot, SessionWrite
from ropewalk.testing.backend_rig import BackendSetup
from ropewalk.testing.clock import ManualClock
from tests.ring_nodes import SHARDS, RingInProcess, RingWorkerInProcess

STREAMS = [f"chat/{number}" for number in range(40)]
ORDER = RemoteDisconnect("bo", reconnect=True)

pytestmark = pytest.mark.tier("all")


@pytest.fixture
async def ring() -> AsyncIterator[RingInProcess]:
    ring = RingInProcess(BackendSetup(ManualClock(), StreamRules(history_limit=1000, history_ttl=300.0)))
    await ring.start("abc")
    await ring.settled()
    yield ring
    await ring.stop()


class HeardByWorker:
    """The messages and requests that a worker received through its feed."""

    def __init__(self) -> None:
        self.messages: list[Registered] = []
        self.orders: list[EndRequest] = []

    async def start(self, worker: RingWorkerInProcess) -> "HeardByWorker":
        await worker.feed.start(self._deliver, self._obey)
        return self

    def _deliver(self, messages: Sequence[Deliverable]) -> None:
        self.messages += [message for message in messages if isinstance(message, Registered)]

    async def _obey(self, order: EndRequest) -> int:
        self.orders.append(order)
        return 1


async def publish(worker: RingWorkerInProcess, stream: str) -> Position:
    (receipt,) = await worker.streams.append([Publication(stream, b"1")])
    return Position(receipt.epoch, receipt.offset)


async def test_worker_uses_the_shard_count_of_its_store(ring: RingInProcess) -> None:
    worker = RingWorkerInProcess(ring, "a", shards=SHARDS // 2)
    await worker.start()
    for stream in STREAMS:
        position = await publish(worker, stream)
        assert await ring.nodes["b"].streams.tip(stream) == position
    await worker.stop()


async def test_worker_follows_a_stream_to_its_new_node(ring: RingInProcess) -> None:
    worker = RingWorkerInProcess(ring, "a")
    await worker.start()
    heard = await HeardByWorker().start(worker)
    for stream in STREAMS:
        await worker.feed.listen(stream)
        await publish(worker, stream)
    before = list(worker.state.table.owners)
    await ring.start("d")
    await ring.settled()
    await ring.until(lambda: worker.state.table.owners != tuple(before) and not worker._moved and not worker.impairments())
    for stream in STREAMS:
        assert (await publish(worker, stream)).offset == 2
    await ring.until(lambda: len(heard.messages) == 2 * len(STREAMS))
    for stream in STREAMS:
        assert [message.offset for message in heard.messages if message.stream == stream] == [1, 2]
    await worker.stop()


async def test_disconnect_request_reaches_a_reconnected_worker_once(
    ring: RingInProcess,
) -> None:
    worker = RingWorkerInProcess(ring, "a")
    await worker.start()
    heard = await HeardByWorker().start(worker)
    mend_own, mend_other = worker.cut("a"), worker.cut("c")
    await ring.until(lambda: not worker._links["a"].connected and not worker._links["c"].connected)
    await ring.nodes["b"].feed.disconnect(ORDER)
    assert heard.orders == []
    mend_own()
    mend_other()
    await ring.until(lambda: heard.orders != [] and worker._links["c"].connected)
    await worker._links["c"].call("tip", next(stream for stream in STREAMS if worker.router.holder(stream) == "c"))
    assert heard.orders == [ORDER]
    await worker.stop()


async def test_sessions_of_a_stopped_worker_are_kept_on_all_nodes(ring: RingInProcess) -> None:
    worker = RingWorkerInProcess(ring, "a")
    await worker.start()
    now = ring.setup.clock()
    await worker.leases.renew(60.0, ())
    sids = [f"sid{number}" for number in range(30)]
    for sid in sids:
        await worker.leases.write([SessionWrite(sid, SessionSnapshot("bo", {}), 1, 300.0, True, now)])
    stores = [node._store.sessions for node in ring.nodes.values()]
    assert all(store.nodes() for store in stores)
    await worker.stop()
    await ring.until(lambda: not any(store.nodes() for store in stores))
    for sid in sids:
        assert await ring.nodes["b"].sessions.take(sid, f"{sid} again") == SessionSnapshot("bo", {})


async def test_call_to_all_nodes_waits_until_a_node_is_reachable(ring: RingInProcess) -> None:
    worker = RingWorkerInProcess(ring, "a")
    await worker.start()
    await worker.presence.join(STREAMS[0], "sid", Member("bo"))
    mending = [worker.cut(name) for name in "abc"]
    await ring.until(lambda: not worker.router.reached())
    adopting = asyncio.ensure_future(worker.presence.adopt("sid", "sid again"))
    for mend in mending:
        mend()
    await ring.until(adopting.done)
    assert adopting.exception() is None
    await ring.until(lambda: any(node._store.presence.roster.holds("sid again") for node in ring.nodes.values()))
    await worker.stop()
