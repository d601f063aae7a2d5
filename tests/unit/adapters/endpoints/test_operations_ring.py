"""The ring over HTTP: anybody may see it in public mode, and only a holder of the key changes it."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.operations import RingEndpoint
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import RingMember, RingReport
from tests.unit.adapters.http_server import Client, serving

KEY = {"Authorization": "Bearer key for changes"}


class Ring:
    """Keeps the changes. A node at port 1 does not prove the key."""

    def __init__(self) -> None:
        self.changes: list[object] = []

    def report(self, stream: str = "") -> RingReport:
        return RingReport("a", 1, 16, [])

    def impairments(self) -> Sequence[str]:
        return ()

    async def add(self, member: RingMember) -> None:
        if member.address.endswith(":1"):
            raise Conflict("it does not have the key of this ring")
        self.changes.append(member)

    def remove(self, name: str, lost: bool) -> None:
        self.changes.append((name, lost))


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
async def client(ring: Ring) -> AsyncIterator[Client]:
    """A server in public mode: the key of the API is empty."""
    endpoint = RingEndpoint(ring, KeyGuard("", Counter()), KeyGuard("key for changes", Counter()))
    async with serving(endpoint.routes()) as client:
        yield client


async def test_changes_need_their_own_key(client: Client, ring: Ring) -> None:
    assert (await client.get("/api/ring")).status == 200
    change = {"add": "d=h:2"}
    assert (await client.post("/api/ring", json=change)).status == 401
    assert (await client.post("/api/ring", json=change, headers={"Authorization": "Bearer "})).status == 401
    assert (await client.post("/api/ring", json={"remove": "b"}, headers={"Authorization": "Bearer wrong"})).status == 401
    assert ring.changes == []
    assert (await client.post("/api/ring", json=change, headers=KEY)).status == 200
    assert (await client.post("/api/ring", json={"remove": "b"}, headers=KEY)).status == 200
    assert ring.changes == [RingMember("d", "h:2"), ("b", False)]


async def test_node_that_cannot_be_added_is_refused_with_the_reason(client: Client) -> None:
    for added, status, reason in (("d=h:1", 409, "does not have the key"), ("d", 400, "name=host:port")):
        async with client.post("/api/ring", json={"add": added}, headers=KEY) as response:
            assert (response.status, reason in (await response.json())["error"]) == (status, True)
