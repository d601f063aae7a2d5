"""Transactions over real files and a deduplicating publisher, with crashes at chosen points."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ropewalk.adapters.staging.arrow import ArrowRows
from ropewalk.adapters.staging.files import FileStaging
from ropewalk.core.transactions import MAX_GROUP_ROWS, TransactionLedger, encode_sequence
from ropewalk.engine.transactions import Transactions
from ropewalk.model.errors import Conflict, MalformedPublication, Unavailable
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.model.transactions import Committed, Produced, Staged, StagingLimits
from ropewalk.protocol.publications import PublicationLimits
from tests.arrow_rows import columns_body, rows_body


class Streams:
    """A publisher that survives restarts and registers each sequence of a producer once. Can fail after some groups."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.groups: list[int] = []
        self.groups_to_live: int | None = None
        self._last: dict[str, int] = {}

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self.groups_to_live is not None:
            if self.groups_to_live == 0:
                raise Unavailable("the journal is unavailable")
            self.groups_to_live -= 1
        self.groups.append(len(publications))
        return [self._register(each) for each in publications]

    def _register(self, publication: Publication) -> Receipt:
        if publication.producer and publication.sequence <= self._last.get(publication.producer, -1):
            return Receipt(publication.stream, "", 0, True)
        self._last[publication.producer] = publication.sequence
        self.messages.append((publication.stream, publication.payload))
        return Receipt(publication.stream, "e", len(self.messages))

    async def disconnect(self, order: RemoteDisconnect) -> int:
        raise AssertionError("unexpected disconnect")


@pytest.fixture
def streams() -> Streams:
    return Streams()


async def started(streams: Streams, directory: Path, limits: StagingLimits | None = None) -> Transactions:
    transactions = Transactions(
        streams,
        FileStaging(directory),
        lambda body: ArrowRows(body, PublicationLimits()),
        TransactionLedger(limits or StagingLimits()),
        lambda: 1_000_000.0,
    )
    await transactions.start()
    return transactions


def numbers(start: int, count: int) -> bytes:
    return columns_body(["s"] * count, [str(start + index) for index in range(count)])


def expected(start: int, count: int) -> list[tuple[str, bytes]]:
    return [("s", b"%d" % (start + index)) for index in range(count)]


async def test_committed_batch_is_published_in_order_of_part_piece_and_row(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    assert await transactions.stage("app", 0, (1, 0, 0), rows_body(("b", "5"))) == Staged(1)
    assert await transactions.stage("app", 0, (0, 2, 0), rows_body(("a", "1"), ("b", "2"))) == Staged(2)
    assert await transactions.stage("app", 0, (0, 2, 1), rows_body(("a", "3"))) == Staged(1)
    assert await transactions.stage("app", 0, (0, 9, 0), rows_body(("a", "never"))) == Staged(1)
    assert streams.messages == []
    assert await transactions.commit("app", 0, {0: 2, 1: 0}, {}) == Committed(4, 0, False, 0)
    assert streams.messages == [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"5")]
    assert await transactions.last_batch("app") == 0
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["state.json"]


async def test_repeated_commit_changes_nothing(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    for _ in range(2):
        await transactions.stage("app", 3, (0, 0, 0), numbers(0, 2))
        await transactions.commit("app", 3, {0: 0}, {})
    assert await transactions.stage("app", 3, (0, 0, 0), numbers(9, 2)) == Staged(0, True)
    assert await transactions.commit("app", 2, {0: 0}, {}) == Committed(0, 0, True, 3)
    transactions = await started(streams, tmp_path)
    assert await transactions.commit("app", 3, {0: 0}, {}) == Committed(0, 0, True, 3)
    assert streams.messages == expected(0, 2)


async def test_concurrent_commits_are_applied_once(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 0, (0, 0, 0), numbers(0, 2000))
    answers = await asyncio.gather(*(transactions.commit("app", 0, {0: 0}, {}) for _ in range(5)))
    assert sorted(answer.duplicate for answer in answers) == [False, True, True, True, True]
    assert streams.messages == expected(0, 2000)


async def test_large_batch_is_published_in_small_groups(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 0, (0, 0, 0), numbers(0, 3 * MAX_GROUP_ROWS + 1))
    await transactions.commit("app", 0, {0: 0}, {})
    assert streams.groups == [MAX_GROUP_ROWS] * 3 + [1]


@pytest.mark.parametrize("groups", range(5))
async def test_interrupted_commit_is_finished_at_the_next_start(streams: Streams, tmp_path: Path, groups: int) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 7, (0, 0, 0), numbers(0, 2 * MAX_GROUP_ROWS))
    await transactions.stage("app", 7, (1, 0, 0), numbers(2 * MAX_GROUP_ROWS, 2 * MAX_GROUP_ROWS))
    streams.groups_to_live = groups
    if groups < 4:
        with pytest.raises(Unavailable):
            await transactions.commit("app", 7, {0: 0, 1: 0}, {})
    streams.groups_to_live = None
    restarted = await started(streams, tmp_path)
    if groups < 4:
        assert streams.messages == expected(0, 4 * MAX_GROUP_ROWS)
        assert await restarted.last_batch("app") == 7
    assert (await restarted.commit("app", 7, {0: 0, 1: 0}, {})).duplicate is (groups < 4)
    assert streams.messages == expected(0, 4 * MAX_GROUP_ROWS)


async def test_interrupted_commit_is_finished_before_a_newer_one(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 1, (0, 0, 0), numbers(0, 2 * MAX_GROUP_ROWS))
    streams.groups_to_live = 1
    with pytest.raises(Unavailable):
        await transactions.commit("app", 1, {0: 0}, {})
    streams.groups_to_live = None
    await transactions.stage("app", 2, (0, 0, 0), numbers(2 * MAX_GROUP_ROWS, 5))
    assert await transactions.commit("app", 2, {0: 0}, {}) == Committed(5, 0, False, 2)
    assert streams.messages == expected(0, 2 * MAX_GROUP_ROWS + 5)


async def test_other_winners_are_ignored_once_decided(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 1, (0, 0, 0), numbers(0, 2))
    await transactions.stage("app", 1, (0, 1, 0), numbers(50, 2))
    streams.groups_to_live = 0
    with pytest.raises(Unavailable):
        await transactions.commit("app", 1, {0: 0}, {})
    streams.groups_to_live = None
    assert (await transactions.commit("app", 1, {0: 1}, {})).duplicate
    assert streams.messages == expected(0, 2)


async def test_transaction_that_cannot_be_finished_blocks_only_its_application(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("bad", 1, (0, 0, 0), numbers(0, 2))
    streams.groups_to_live = 0
    with pytest.raises(Unavailable):
        await transactions.commit("bad", 1, {0: 0}, {})
    streams.groups_to_live = None
    next(tmp_path.rglob("*.rows")).write_bytes(b"damage")
    restarted = await started(streams, tmp_path)
    with pytest.raises(Unavailable):
        await restarted.last_batch("bad")
    assert await restarted.commit("good", 0, {}, {}) == Committed(0, 0, False, 0)


async def test_pieces_staged_before_a_restart_can_be_committed_after_it(streams: Streams, tmp_path: Path) -> None:
    await (await started(streams, tmp_path)).stage("app", 1, (0, 4, 0), numbers(0, 3))
    restarted = await started(streams, tmp_path)
    await restarted.commit("app", 1, {0: 4}, {})
    assert streams.messages == expected(0, 3)


async def test_restarted_attempt_replaces_its_former_pieces(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    for seq in range(3):
        await transactions.stage("app", 1, (0, 0, seq), numbers(100 * seq, 3))
    await transactions.stage("app", 1, (0, 0, 0), numbers(0, 3))
    await transactions.commit("app", 1, {0: 0}, {})
    assert streams.messages == expected(0, 3)


async def test_damaged_piece_is_refused_and_can_be_staged_again(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 1, (0, 0, 0), numbers(0, 3))
    next(tmp_path.rglob("*.rows")).write_bytes(b"")
    with pytest.raises(Conflict) as refusal:
        await transactions.commit("app", 1, {0: 0}, {})
    assert refusal.value.missing == [{"part": 0, "attempt": 0}]
    assert streams.messages == []
    await transactions.stage("app", 1, (0, 0, 0), numbers(0, 3))
    await transactions.commit("app", 1, {0: 0}, {})
    assert streams.messages == expected(0, 3)


async def test_malformed_row_leaves_no_file(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    with pytest.raises(MalformedPublication) as refusal:
        await transactions.stage("app", 1, (0, 0, 0), columns_body(["s"] * 700 + [""], ["1"] * 701))
    assert refusal.value.index == 700
    with pytest.raises(Conflict):
        await transactions.commit("app", 1, {0: 0}, {})
    assert list(tmp_path.rglob("*.rows")) == []


async def test_dropped_batches_leave_no_file(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path, StagingLimits(max_open_batches=2))
    for batch in range(5):
        await transactions.stage("app", batch, (0, 0, 0), numbers(batch, 1))
    assert sorted(path.parent.name for path in tmp_path.rglob("*.rows")) == ["0000000003", "0000000004"]


async def test_sequences_are_derived_from_batch_and_row(streams: Streams, tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    original = streams.publish

    async def publish(publications: Sequence[Publication]) -> list[Receipt]:
        seen.extend((each.producer, each.sequence) for each in publications)
        return await original(publications)

    streams.publish = publish  # type: ignore[method-assign]
    transactions = await started(streams, tmp_path)
    await transactions.stage("app", 3, (0, 0, 0), numbers(0, MAX_GROUP_ROWS + 1))
    await transactions.stage("app", 3, (1, 0, 0), numbers(0, 2))
    await transactions.commit("app", 3, {0: 0, 1: 0}, {})
    assert seen == [("app", encode_sequence(3, index)) for index in range(MAX_GROUP_ROWS + 3)]


# --- without a transaction ----------------------------------------------------------------------------------------------


async def test_numbered_rows_are_published_once(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    assert await transactions.produce("p", 0, numbers(0, 3)) == Produced(3, 0)
    assert await transactions.produce("p", 0, numbers(0, 3)) == Produced(0, 3)
    assert await transactions.produce("p", 1, numbers(1, 4)) == Produced(2, 2)
    assert streams.messages == expected(0, 5)


async def test_requests_of_one_producer_do_not_interleave(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    count = 3 * MAX_GROUP_ROWS
    first = asyncio.create_task(transactions.produce("p", 0, numbers(0, count)))
    while not streams.groups:
        await asyncio.sleep(0)
    assert await transactions.produce("p", count, numbers(count, count)) == Produced(count, 0)
    assert await first == Produced(count, 0)
    assert streams.messages == expected(0, 2 * count)


async def test_rows_without_a_number_are_published_each_time(streams: Streams, tmp_path: Path) -> None:
    transactions = await started(streams, tmp_path)
    assert await transactions.publish(numbers(0, 2)) == await transactions.publish(numbers(0, 2)) == Produced(2, 0)
    assert streams.messages == expected(0, 2) * 2
