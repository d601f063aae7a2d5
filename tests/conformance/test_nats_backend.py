"""The NATS backend through the suites, over one server and over a cluster of three."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count

import msgspec
import nats
import pytest
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.nats.link import NatsLink
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.ports import Backend
from ropewalk.testing.backend import RecordQueueConformance, SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.services import NatsServer, nats_cluster, nats_server

SLOW_SECONDS = 0.2
prefixes = (f"t{number}" for number in count(1))


class DisturbedLink(NatsLink):
    """A link to a real server that can fail. An answer that is lost is that of a write: whatever is asked after it is lost
    too."""

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
        if self.fault is StoreFault.SLOW:
            await asyncio.sleep(SLOW_SECONDS)
        answer = await super().request(subject, payload, headers)
        if self.fault is StoreFault.UNANSWERED and not subject.startswith("$JS.API."):
            self.written = True
            raise Unanswered("no answer")
        return answer


class NatsConformance(SharedBackendConformance, RecordQueueConformance):
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
        prefix = next(prefixes)
        first, second = (
            NatsBackend(
                NatsAddress(self.servers),
                node,
                Rulebook(setup.default, setup.rules),
                setup.clock,
                prefix=prefix,
                shards=2,
                replicas=self.replicas,
                dedup_ttl=setup.dedup_ttl,
                dedup_limit=setup.dedup_limit,
                presence_ttl=setup.presence_ttl,
                max_members=setup.max_members,
                count_seconds=0.0,
                patience=1.0,
                link_type=DisturbedLink,
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
        """Whatever was written before has come to both nodes by then."""
        for backend in self.instances:
            await backend.leases.catch_up()
        await super().advance(seconds)


@pytest.fixture(scope="module")
def one_server() -> Iterator[NatsServer]:
    with nats_server() as server:
        yield server


class TestOneServer(NatsConformance):
    @pytest.fixture(autouse=True)
    def at(self, one_server: NatsServer) -> None:
        self.servers = (one_server.url,)


@pytest.fixture(scope="module")
def three_servers() -> Iterator[tuple[str, ...]]:
    with nats_cluster() as servers:
        yield tuple(server.url for server in servers)


class TestThreeServers(NatsConformance):
    replicas = 3

    @pytest.fixture(autouse=True)
    def at(self, three_servers: tuple[str, ...]) -> None:
        self.servers = three_servers
