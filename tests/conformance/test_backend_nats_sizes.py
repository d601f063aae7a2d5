"""What the NATS backend does with what is larger than a message of NATS, or larger together."""

from collections.abc import Iterator

import pytest

from ropewalk.model.errors import TooLarge
from ropewalk.model.messages import Publication
from tests.conformance.test_backend_nats_failures import Heard, node_of, published, running, until
from tests.services import NatsServer, nats_server

MESSAGE = 1024 * 1024
"""Bytes of a message, by the default of NATS."""


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


@pytest.mark.parametrize("uid", ["", "u" * 200])
async def test_what_does_not_fit_into_a_message_is_refused_and_nothing_else_notices(server: NatsServer, uid: str) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        heard = Heard()
        await two.feed.start(heard.deliver, heard.obey, heard.miss)
        await two.feed.listen("a")
        await published(one, "a", b"first")
        missed, largest, refused = heard.missed, 0, 0
        for size in range(MESSAGE - 2048, MESSAGE + 64, 64):
            try:
                await one.streams.append([Publication("a", bytes(size), uid=uid and f"{uid} {size}")])
                largest = size
            except TooLarge:
                refused += 1
        assert refused
        assert MESSAGE - 2048 <= largest < MESSAGE
        with pytest.raises(TooLarge):
            await one.streams.append([Publication("a", bytes(MESSAGE), transient=True)])
        assert (await one.streams.append([Publication("a", b"last")]))[0].offset == 2 + len(
            range(MESSAGE - 2048, largest + 1, 64)
        )
        await until(lambda: heard.has(b"first", bytes(largest), b"last"))
        assert (one.health(), two.health(), heard.missed) == ("", "", missed)
    assert "maximum payload" not in server.log().lower()


async def test_of_a_batch_with_something_too_large_nothing_is_registered(server: NatsServer) -> None:
    one = node_of([server.url], "rw", "one")
    async with running(one):
        for number in range(4):  # whatever their shards are
            small, large = Publication(f"small {number}", b"1"), Publication(f"large {number}", bytes(3 * MESSAGE // 2))
            with pytest.raises(TooLarge):
                await one.streams.append([small, large])
            assert (await one.streams.tip(small.stream)).offset == 0


async def test_a_batch_whose_text_is_larger_than_its_payloads_is_registered(server: NatsServer) -> None:
    one = node_of([server.url], "rw", "one")
    async with running(one):
        batch = [Publication("a", b"%d" % number, broadcast_type="t" * 5000) for number in range(500)]
        assert [receipt.offset for receipt in await one.streams.append(batch)] == list(range(1, 501))


async def test_transient_messages_that_are_too_many_for_one_message_all_come(server: NatsServer) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        heard = Heard()
        await two.feed.start(heard.deliver, heard.obey)
        await two.feed.listen("a")
        payloads = [bytes([number]) * (MESSAGE // 5) for number in range(20)]
        for payload in payloads:
            one.feed.pass_on([Publication("a", payload, transient=True)])
        await until(lambda: heard.has(*payloads))
        assert [message.payload for message in heard.messages] == payloads
