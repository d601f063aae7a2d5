"""Appends through a journal: nothing counts before it is written, groups are whole, and order is kept."""

import asyncio
from collections.abc import Sequence

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.memory.committing import GroupCommit
from ropewalk.adapters.backends.memory.known import Known
from ropewalk.adapters.backends.memory.shelf import Shelf
from ropewalk.core.producers import FORGOTTEN, REMEMBERED
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import RowKind
from ropewalk.model.messages import Position, Publication
from ropewalk.model.rules import StreamRules
from ropewalk.ports import Appended, Journal
from ropewalk.testing.clock import ManualClock
from tests.unit.adapters.backends.paper import PaperJournal, settle

Task = asyncio.Task[Appended]


def backend_on(journal: Journal | None, clock: ManualClock | None = None) -> MemoryBackend:
    return MemoryBackend(Rulebook(StreamRules(history_limit=1000)), clock or ManualClock(), journal=journal)


def start(backend: MemoryBackend, publications: Sequence[Publication], heard: list[int] | None = None) -> Task:
    def hear(appended: Appended) -> None:
        if heard is not None:
            heard.extend(registered.offset for registered, _ in appended)

    return asyncio.get_running_loop().create_task(backend.streams.append(publications, hear))


def one(stream: str = "a", payload: bytes = b"1", uid: str = "") -> list[Publication]:
    return [Publication(stream, payload, uid=uid)]


def offsets(appended: Appended) -> list[int]:
    return [registered.offset for registered, _ in appended]


async def test_nothing_is_readable_or_heard_before_it_is_written() -> None:
    journal, heard = PaperJournal(hold=True), list[int]()
    backend = backend_on(journal)
    task = start(backend, one(), heard)
    await settle()
    assert (await backend.streams.tip("a"), heard, task.done()) == (Position("", 0), [], False)
    await journal.release()
    assert (await backend.streams.tip("a")).offset == 1
    assert (heard, offsets(task.result())) == ([1], [1])


async def test_messages_are_readable_in_the_step_in_which_they_are_heard() -> None:
    backend = backend_on(PaperJournal())
    seen: list[int] = []

    def hear(appended: Appended) -> None:
        step = backend.streams.tip("a")
        try:
            step.send(None)
        except StopIteration as answer:
            seen.append(answer.value.offset)

    await backend.streams.append([*one(), *one()], hear)
    assert seen == [2]


async def test_what_comes_while_a_group_is_written_forms_the_next() -> None:
    journal, heard = PaperJournal(hold=True), list[int]()
    backend = backend_on(journal)
    tasks = [start(backend, one(), heard)]
    await settle()
    tasks += [start(backend, [*one(), *one()], heard) for _ in range(3)]
    await journal.release()
    assert [len(group) for group in journal.groups] == [1, 6]
    await journal.release()
    assert [offsets(task.result()) for task in tasks] == [[1], [2, 3], [4, 5], [6, 7]]
    assert heard == [1, 2, 3, 4, 5, 6, 7]


async def test_rows_say_what_was_registered_and_where() -> None:
    journal, clock = PaperJournal(), ManualClock()
    publication = Publication("a", b"1", "sid", "kind", uid="u", producer="p", sequence=7)
    [(registered, _)] = await backend_on(journal, clock).streams.append([publication])
    [row] = journal.rows
    assert (row.kind, row.key, row.stream, row.epoch, row.offset) == (RowKind.PUBLISH, "a", "a", registered.epoch, 1)
    assert (row.value, row.uid, row.exclude_socket, row.broadcast_type) == (b"1", "u", "sid", "kind")
    assert (row.producer, row.sequence, row.timestamp, row.sid, row.detail) == ("p", 7, clock.now, "", "")


async def test_a_group_that_cannot_be_written_fails_as_a_whole_and_changes_nothing() -> None:
    journal = PaperJournal(hold=True)
    backend = backend_on(journal)
    first = start(backend, one())
    await journal.release()
    failing = [start(backend, one(uid="u")), start(backend, one("b"))]
    await journal.refuse()
    assert [isinstance(task.exception(), Unavailable) for task in failing] == [True, True]
    assert await backend.streams.tip("b") == Position("", 0)
    again = start(backend, [*one(uid="u"), *one("b")])
    await journal.release()
    assert [(item.offset, new) for item, new in again.result()] == [(2, True), (1, True)]
    assert again.result()[0][0].epoch == first.result()[0][0].epoch


async def test_a_uid_known_within_its_group_counts_once() -> None:
    journal = PaperJournal(hold=True)
    backend = backend_on(journal)
    tasks = [start(backend, one(uid="u")), start(backend, [*one(uid="v"), *one(uid="u")]), start(backend, one("b", uid="u"))]
    await journal.release()
    answers = [[(item.offset, new) for item, new in task.result()] for task in tasks]
    assert answers == [[(1, True)], [(2, True), (1, False)], [(1, True)]]
    assert len(journal.rows) == 3


async def test_repetitions_alone_need_no_journal() -> None:
    journal = PaperJournal()
    backend = backend_on(journal)
    for new in (True, False):
        [(_, fresh)] = await backend.streams.append(one(uid="u"))
        assert fresh is new
    assert len(journal.groups) == 1


async def test_a_stream_forgotten_while_its_group_is_written_goes_on_in_its_epoch() -> None:
    journal, clock = PaperJournal(hold=True), ManualClock()
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
    (first, _), (second, _) = [task.result()[0] for task in tasks]
    assert (second.epoch, second.offset) == (first.epoch, 2)
    assert await backend.streams.tip("a") == Position(first.epoch, 2)


async def test_a_publisher_that_goes_away_does_not_stop_its_group() -> None:
    journal = PaperJournal(hold=True)
    backend = backend_on(journal)
    leaver, stayer = start(backend, one()), start(backend, one())
    await settle()
    leaver.cancel()
    await journal.release()
    assert offsets(stayer.result()) == [2]
    assert (await backend.streams.tip("a")).offset == 2


async def test_a_fan_out_that_fails_is_heard_by_its_publisher_alone() -> None:
    journal = PaperJournal(hold=True)
    backend = backend_on(journal)

    def fail(appended: Appended) -> None:
        raise RuntimeError("no")

    unlucky = asyncio.get_running_loop().create_task(backend.streams.append(one(), fail))
    lucky = start(backend, one())
    await journal.release()
    assert isinstance(unlucky.exception(), RuntimeError)
    assert offsets(lucky.result()) == [2]


async def test_publishers_are_turned_away_when_too_much_waits() -> None:
    journal, clock = PaperJournal(hold=True), ManualClock()
    commit = GroupCommit(Shelf(Rulebook(StreamRules()), lambda: "e", 1.0, 1.0), Known(1.0, 10), clock, journal, most_waiting=3)
    tasks = [asyncio.get_running_loop().create_task(commit.append(one(), lambda appended: None))]
    await settle()  # on its way: it waits no more
    large = [Publication("a", b"1")] * 5
    tasks += [asyncio.get_running_loop().create_task(commit.append(large, lambda appended: None))]
    await settle()
    with pytest.raises(Unavailable):
        await commit.append(one(), lambda appended: None)
    await journal.release()
    await journal.release()
    assert [offsets(task.result()) for task in tasks] == [[1], [2, 3, 4, 5, 6]]


async def test_stopping_waits_for_what_is_under_way() -> None:
    journal = PaperJournal(hold=True)
    backend = backend_on(journal)
    task = start(backend, one())
    await settle()
    stopping = asyncio.get_running_loop().create_task(backend.stop())
    await settle()
    assert not stopping.done()
    await journal.release()
    assert (offsets(task.result()), stopping.done()) == ([1], True)


async def test_an_instant_journal_is_told_of_what_is_new_and_nobody_waits_for_it() -> None:
    journal = PaperJournal(instant=True)
    step = backend_on(journal).streams.append([*one(uid="u"), *one(uid="u"), *one()])
    with pytest.raises(StopIteration):
        step.send(None)
    assert [(row.offset, row.uid) for row in journal.rows] == [(1, "u"), (2, "")]


@pytest.mark.parametrize("journal", [None, PaperJournal(instant=True), PaperJournal()])
async def test_a_sequence_is_registered_once_and_answered_exactly_while_it_is_recent(journal: Journal | None) -> None:
    backend = backend_on(journal)
    numbered = [Publication("a", b"1", producer="p", sequence=number) for number in range(REMEMBERED + 1)]
    first = await backend.streams.append(numbered)
    again = await backend.streams.append(numbered)
    assert all(new for _, new in first)
    assert not any(new for _, new in again)
    expected = [FORGOTTEN, *(Position(item.epoch, item.offset) for item, _ in first[1:])]
    assert [Position(item.epoch, item.offset) for item, _ in again] == expected


@pytest.mark.parametrize("journal", [None, PaperJournal()])
async def test_another_producer_has_its_own_sequence(journal: Journal | None) -> None:
    backend = backend_on(journal)
    batch = [
        Publication("a", b"1", producer=name, sequence=number) for name, number in (("p", 5), ("q", 1), ("p", 4), ("q", 1))
    ]
    assert [new for _, new in await backend.streams.append(batch)] == [True, True, False, False]
