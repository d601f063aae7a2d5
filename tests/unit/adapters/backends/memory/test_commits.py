"""Appends through a journal: nothing is visible before it is written, groups are whole, and order is kept."""

import asyncio
from collections.abc import Sequence

import pytest

from ropewalk.adapters.backends.memory import LocalFeed, MemoryBackend
from ropewalk.adapters.backends.memory.commits import JournaledCommit
from ropewalk.adapters.backends.memory.streams import StreamTable
from ropewalk.core.idempotency import MAX_PRODUCER_POSITIONS, UNKNOWN_POSITION, Registrations
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import RowKind
from ropewalk.model.limits import STORE_LIMITS
from ropewalk.model.messages import Deliverable, Position, Publication, Receipt, RemoteDisconnect
from ropewalk.model.rules import StreamRules
from ropewalk.ports import Journal
from ropewalk.testing.clock import ManualClock
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.waiting import settle

Task = asyncio.Task[list[Receipt]]


def backend_on(journal: Journal | None, clock: ManualClock | None = None) -> MemoryBackend:
    return MemoryBackend(Rulebook(StreamRules(history_limit=1000)), clock or ManualClock(), journal=journal)


def start(backend: MemoryBackend, publications: Sequence[Publication]) -> Task:
    return asyncio.get_running_loop().create_task(backend.streams.append(publications))


async def disconnect_nothing(order: RemoteDisconnect) -> int:
    return 0


async def collect_offsets(backend: MemoryBackend) -> list[int]:
    """Collects the offsets that the feed delivers from now on."""
    delivered: list[int] = []
    await backend.feed.start(lambda messages: delivered.extend(message.offset for message in messages), disconnect_nothing)
    return delivered


def one(stream: str = "a", payload: bytes = b"1", uid: str = "") -> list[Publication]:
    return [Publication(stream, payload, uid=uid)]


def offsets(receipts: Sequence[Receipt]) -> list[int]:
    return [receipt.offset for receipt in receipts]


async def test_message_is_neither_readable_nor_delivered_before_it_is_written() -> None:
    journal = FakeJournal(hold=True)
    backend = backend_on(journal)
    delivered = await collect_offsets(backend)
    task = start(backend, one())
    await settle()
    assert (await backend.streams.tip("a"), delivered, task.done()) == (Position("", 0), [], False)
    await journal.release()
    assert (await backend.streams.tip("a")).offset == 1
    assert (delivered, offsets(task.result())) == ([1], [1])


async def test_messages_are_readable_when_they_are_delivered() -> None:
    backend = backend_on(FakeJournal())
    seen: list[int] = []

    def deliver(messages: Sequence[Deliverable]) -> None:
        step = backend.streams.tip("a")
        try:
            step.send(None)
        except StopIteration as answer:
            seen.append(answer.value.offset)

    await backend.feed.start(deliver, disconnect_nothing)
    await backend.streams.append([*one(), *one()])
    assert seen == [2]


async def test_appends_during_a_write_form_the_next_group() -> None:
    journal = FakeJournal(hold=True)
    backend = backend_on(journal)
    delivered = await collect_offsets(backend)
    tasks = [start(backend, one())]
    await settle()
    tasks += [start(backend, [*one(), *one()]) for _ in range(3)]
    await journal.release()
    assert [len(group) for group in journal.groups] == [1, 6]
    await journal.release()
    assert [offsets(task.result()) for task in tasks] == [[1], [2, 3], [4, 5], [6, 7]]
    assert delivered == [1, 2, 3, 4, 5, 6, 7]


async def test_rows_have_all_fields_of_the_publication() -> None:
    journal, clock = FakeJournal(), ManualClock()
    publication = Publication("a", b"1", "sid", "kind", uid="u", producer="p", sequence=7)
    [registered] = await backend_on(journal, clock).streams.append([publication])
    [row] = journal.rows
    assert (row.kind, row.key, row.stream, row.epoch, row.offset) == (RowKind.PUBLISH, "a", "a", registered.epoch, 1)
    assert (row.value, row.uid, row.exclude_socket, row.broadcast_type) == (b"1", "u", "sid", "kind")
    assert (row.producer, row.sequence, row.timestamp, row.sid, row.detail) == ("p", 7, clock.now, "", "")


async def test_group_that_cannot_be_written_fails_and_changes_nothing() -> None:
    journal = FakeJournal(hold=True)
    backend = backend_on(journal)
    first = start(backend, one())
    await journal.release()
    failing = [start(backend, one(uid="u")), start(backend, one("b"))]
    await journal.refuse()
    assert [isinstance(task.exception(), Unavailable) for task in failing] == [True, True]
    assert await backend.streams.tip("b") == Position("", 0)
    again = start(backend, [*one(uid="u"), *one("b")])
    await journal.release()
    assert [(item.offset, item.duplicate) for item in again.result()] == [(2, False), (1, False)]
    assert again.result()[0].epoch == first.result()[0].epoch


async def test_repeated_uid_within_a_group_is_registered_once() -> None:
    journal = FakeJournal(hold=True)
    backend = backend_on(journal)
    tasks = [start(backend, one(uid="u")), start(backend, [*one(uid="v"), *one(uid="u")]), start(backend, one("b", uid="u"))]
    await journal.release()
    answers = [[(item.offset, item.duplicate) for item in task.result()] for task in tasks]
    assert answers == [[(1, False)], [(2, False), (1, True)], [(1, False)]]
    assert len(journal.rows) == 3


async def test_duplicates_are_not_written_to_the_journal() -> None:
    journal = FakeJournal()
    backend = backend_on(journal)
    for new in (True, False):
        [receipt] = await backend.streams.append(one(uid="u"))
        assert receipt.duplicate is not new
    assert len(journal.groups) == 1


async def test_stream_removed_during_a_write_continues_its_epoch() -> None:
    journal, clock = FakeJournal(hold=True), ManualClock()
    backend = backend_on(journal, clock)
    tasks = [start(backend, one())]
    await journal.release()
    tasks.append(start(backend, one()))
    await settle()
    clock.advance(1_000_000)
    await backend.sweep()
    await backend.sweep()
    assert await backend.streams.tip("a") == Position("", 0)
    await journal.release()
    first, second = [task.result()[0] for task in tasks]
    assert (second.epoch, second.offset) == (first.epoch, 2)
    assert await backend.streams.tip("a") == Position(first.epoch, 2)


async def test_cancelled_publisher_does_not_stop_its_group() -> None:
    journal = FakeJournal(hold=True)
    backend = backend_on(journal)
    leaver, stayer = start(backend, one()), start(backend, one())
    await settle()
    leaver.cancel()
    await journal.release()
    assert offsets(stayer.result()) == [2]
    assert (await backend.streams.tip("a")).offset == 2


async def test_transient_publications_are_delivered_in_order_and_not_journaled() -> None:
    journal = FakeJournal()
    backend = backend_on(journal)
    delivered = await collect_offsets(backend)
    batch = [*one(), Publication("a", b"2", transient=True), *one()]
    assert offsets(await backend.streams.append(batch)) == [1, 0, 2]
    assert delivered == [1, 0, 2]
    assert [row.offset for row in journal.rows] == [1, 2]


async def test_publishers_are_refused_when_too_many_publications_wait() -> None:
    journal, clock = FakeJournal(hold=True), ManualClock()
    commit = JournaledCommit(
        StreamTable(Rulebook(StreamRules()), STORE_LIMITS, lambda: "e"),
        Registrations(1.0, 10, str),
        clock,
        LocalFeed(),
        journal,
        most_waiting=3,
    )
    tasks = [asyncio.get_running_loop().create_task(commit.append(one()))]
    await settle()  # it is being written and no longer waits
    large = [Publication("a", b"1")] * 5
    tasks += [asyncio.get_running_loop().create_task(commit.append(large))]
    await settle()
    with pytest.raises(Unavailable):
        await commit.append(one())
    await journal.release()
    await journal.release()
    assert [offsets(task.result()) for task in tasks] == [[1], [2, 3, 4, 5, 6]]


async def test_stop_waits_for_pending_writes() -> None:
    journal = FakeJournal(hold=True)
    backend = backend_on(journal)
    task = start(backend, one())
    await settle()
    stopping = asyncio.get_running_loop().create_task(backend.stop())
    await settle()
    assert not stopping.done()
    await journal.release()
    assert (offsets(task.result()), stopping.done()) == ([1], True)


async def test_append_with_an_instant_journal_does_not_suspend() -> None:
    journal = FakeJournal(instant=True)
    step = backend_on(journal).streams.append([*one(uid="u"), *one(uid="u"), *one()])
    with pytest.raises(StopIteration):
        step.send(None)
    assert [(row.offset, row.uid) for row in journal.rows] == [(1, "u"), (2, "")]


async def test_sequence_is_registered_once_and_recent_ones_return_their_position(subtests: pytest.Subtests) -> None:
    for journal in [None, FakeJournal(instant=True), FakeJournal()]:
        with subtests.test(journal=journal):
            backend = backend_on(journal)
            numbered = [Publication("a", b"1", producer="p", sequence=number) for number in range(MAX_PRODUCER_POSITIONS + 1)]
            first = await backend.streams.append(numbered)
            again = await backend.streams.append(numbered)
            assert not any(item.duplicate for item in first)
            assert all(item.duplicate for item in again)
            expected = [UNKNOWN_POSITION, *(Position(item.epoch, item.offset) for item in first[1:])]
            assert [Position(item.epoch, item.offset) for item in again] == expected


async def test_each_producer_has_its_own_sequence(subtests: pytest.Subtests) -> None:
    for journal in [None, FakeJournal()]:
        with subtests.test(journal=journal):
            backend = backend_on(journal)
            batch = [
                Publication("a", b"1", producer=name, sequence=number)
                for name, number in (("p", 5), ("q", 1), ("p", 4), ("q", 1))
            ]
            assert [item.duplicate for item in await backend.streams.append(batch)] == [False, False, True, True]
