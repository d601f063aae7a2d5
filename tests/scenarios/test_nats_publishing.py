"""What the broker writes to a real NATS for publications that have no uid, and what becomes of them when an answer is lost."""

import random
import time
from collections.abc import AsyncIterator, Mapping

import pytest
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.nats.link import NatsLink
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import Broker
from ropewalk.model.errors import Unanswered
from ropewalk.model.messages import Publication
from ropewalk.model.rules import StreamRules
from tests.services import nats_server


class ForgetfulLink(NatsLink):
    """It can lose the answer to the next write."""

    lose_one = False

    async def request(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        answer = await super().request(subject, payload, headers)
        if self.lose_one and not subject.startswith("$JS.API."):
            self.lose_one = False
            raise Unanswered("the answer was lost")
        return answer


@pytest.fixture
async def backend() -> AsyncIterator[NatsBackend]:
    with nats_server() as server:
        address = NatsAddress((server.url,))
        made = NatsBackend(address, "one", Rulebook(StreamRules()), time.time, shards=1, link_type=ForgetfulLink)
        await made.start()
        yield made
        await made.stop()


def broker_over(backend: NatsBackend) -> Broker:
    return Broker(backend.streams, backend.feed, Stats(), time.time, random.random)


async def written(backend: NatsBackend) -> int:
    """Messages in the JetStream stream of all streams."""
    count: int = (await backend.link.api(f"STREAM.INFO.{backend.jet_of('a')}"))["state"]["messages"]
    return count


async def test_what_has_no_uid_is_one_message_of_jetstream_and_has_no_marker(backend: NatsBackend) -> None:
    broker = broker_over(backend)
    await broker.publish([Publication("a", b"1")])
    assert await written(backend) == 1
    await broker.publish([Publication("a", b"2"), Publication("a", b"3")])
    assert await written(backend) == 2
    await broker.publish([Publication("a", b"4", uid="u")])
    assert await written(backend) == 4


async def test_what_has_no_uid_is_registered_once_though_its_answer_was_lost(backend: NatsBackend) -> None:
    broker = broker_over(backend)
    assert isinstance(backend.link, ForgetfulLink)
    backend.link.lose_one = True
    receipt, *_ = await broker.publish([Publication("a", b"1")])
    assert (receipt.offset, receipt.duplicate) == (1, False)
    assert (await broker.publish([Publication("a", b"2")]))[0].offset == 2
    assert await written(backend) == 2
