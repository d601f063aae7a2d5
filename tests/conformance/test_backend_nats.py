"""The NATS backend on one real server: the complete suite of shared backends."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count

import msgspec
import nats
import pytest
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.nats.link import NatsLink
from ropewalk.adapters.backends.nats.names import NatsOptions
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.ports import Backend, NodeName
from ropewalk.testing.backend import RecordQueueConformance, SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.services import NatsServer, nats_server

pytestmark = pytest.mark.tier("standard")

POLL_SECONDS = 0.005
prefixes = (f"t{number}" for number in count(1))


class DisturbedLink(NatsLink):
    """A link to a real server that can fail. The response of the next write is lost, and so are all requests after it."""

    fault = StoreFault.NONE
    written = False

    @property
    def connected(self) -> bool:
        return super().connected and self.fault is not StoreFault.UNAVAILABLE and not self.written

    def disturb(self, fault: StoreFault) -> None:
        self.fault, self.written = fault, False

    async def request(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        if self.fault is StoreFault.UNAVAILABLE:
            raise Unavailable("cut off")
        if self.written:
            raise Unanswered("no answer")
        while self.fault is StoreFault.SLOW:
            await asyncio.sleep(POLL_SECONDS)
        answer = await super().request(subject, payload, headers)
        if self.fault is StoreFault.UNANSWERED and not subject.startswith("$JS.API."):
            self.written = True
            raise Unanswered("no answer")
        return answer


class NatsSuite(SharedBackendConformance, RecordQueueConformance):
    servers: tuple[str, ...]
    replicas = 1
    instances: list[NatsBackend]

    @pytest.fixture(autouse=True)
    async def cleaned(self) -> AsyncIterator[None]:
        self.instances = []
        yield
        client = await nats.connect(list(self.servers))
        answer = msgspec.json.decode((await client.request("$JS.API.STREAM.NAMES", b"", 5)).data)
        for name in answer["streams"] or ():
            await client.request(f"$JS.API.STREAM.DELETE.{name}", b"", 5)
        await client.close()

    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        options = NatsOptions(
            next(prefixes),
            shards=2,
            replicas=self.replicas,
            count_seconds=0.0,
            timeout=30.0,
            retry_seconds=1.0,
            link_type=DisturbedLink,
        )
        first, second = (
            NatsBackend(
                NatsAddress(self.servers),
                NodeName(node, node),
                Rulebook(setup.default, setup.rules),
                setup.clock,
                setup.limits,
                options,
            )
            for node in ("one", "two")
        )
        self.instances = [first, second]
        return first, second

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, NatsBackend)
        assert isinstance(backend.link, DisturbedLink)
        backend.link.disturb(fault)

    async def advance(self, seconds: float) -> None:
        """Both nodes have received all writes before the time advances."""
        for backend in self.instances:
            await backend.leases.catch_up()
        await super().advance(seconds)


@pytest.fixture(scope="module")
def one_server() -> Iterator[NatsServer]:
    with nats_server() as server:
        yield server


class TestNatsBackend(NatsSuite):
    @pytest.fixture(autouse=True)
    def at(self, one_server: NatsServer) -> None:
        self.servers = (one_server.url,)
