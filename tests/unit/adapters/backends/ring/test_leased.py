"""The lease of a node when it stops."""

import asyncio

from ropewalk.adapters.backends.ring.leased import LeasedMembers
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import first_table
from ropewalk.model.errors import Unavailable
from ropewalk.model.ring import MemberLease, RingMember, RingRecord, SeenLeases

ME = MemberLease("a", "h:1", "a~1", 0, journal=False)


class LeasesInMemory:
    """The leases of one node. While `away`, they are unavailable."""

    store = "a store"
    place = "its record"

    def __init__(self) -> None:
        self.renewed: list[MemberLease] = []
        self.first = asyncio.Event()
        self.away = False
        self.stopped = False
        self._record: RingRecord | None = None

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped = True

    async def renew(self, lease: MemberLease, lasting: float) -> SeenLeases:
        assert not self.stopped
        if self.away:
            raise Unavailable("it is away")
        self.renewed.append(lease)
        self.first.set()
        return SeenLeases((lease,), self._record)

    async def replace_record(self, seen: SeenLeases, record: RingRecord) -> bool:
        self._record = record
        return True


def leased(leases: LeasesInMemory) -> LeasedMembers:
    return LeasedMembers(RingState("a", first_table([RingMember("a", "h:1")], 4)), ME, leases)


async def test_stopping_node_renews_its_lease_as_ended_and_without_links() -> None:
    leases = LeasesInMemory()
    node = leased(leases)
    node.away_since = lambda: {"b": None}
    await node.start()
    await leases.first.wait()
    await node.stop_looking()
    before = leases.renewed[-1]
    assert (before.ended, before.links) == (False, ("b",))
    await node.stop()
    last = leases.renewed[-1]
    assert (last.run, last.number, last.ended, last.links) == (before.run, before.number + 1, True, ())
    assert leases.stopped


async def test_node_stops_when_the_lease_store_is_unavailable() -> None:
    leases = LeasesInMemory()
    node = leased(leases)
    await node.start()
    await leases.first.wait()
    await node.stop_looking()
    leases.away = True
    await node.stop()
    assert not any(lease.ended for lease in leases.renewed)
    assert leases.stopped


async def test_node_that_never_started_renews_no_lease() -> None:
    leases = LeasesInMemory()
    node = leased(leases)
    await node.stop_looking()
    await node.stop()
    assert leases.renewed == []
    assert leases.stopped
