"""Sessions in the journal: recovery finds all open ones, however old their last change is."""

import asyncio
import random
from pathlib import Path

import pyarrow as pa
import pytest

from ropewalk.adapters.journals.arrow import batches, state
from ropewalk.adapters.journals.arrow.batches import encode, frame_at, frame_batch
from ropewalk.adapters.journals.arrow.segment import state_path
from ropewalk.adapters.journals.arrow.state import TIPS, going_on, load_state, stream_tips
from ropewalk.model.journal import Recovered, Row, RowKind
from ropewalk.protocol.journal_schema import SCHEMA
from ropewalk.testing.clock import ManualClock
from tests.journals import as_if_killed, publication, running

SHORT = 60.0
"""A horizon much shorter than the age of the sessions in these tests."""

ONE_SHARD = {"shards": 1, "segment_size": 4096, "retention": 600.0, "for_archive": False}


def row(kind: RowKind, sid: str, detail: str = "", at: float = 1_000_000.0) -> Row:
    return Row(kind, sid, at, sid=sid, detail=detail)


def session_rows(recovered: Recovered) -> list[tuple[str, RowKind, str]]:
    return [(each.sid, each.kind, each.detail) for each in recovered.rows if each.kind is not RowKind.PUBLISH]


async def test_idle_session_is_recovered_after_retention_removed_its_rows(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    mine = [
        row(RowKind.CONNECTED, "idle", "beginning"),
        row(RowKind.SUBSCRIBED, "idle", "one"),
        row(RowKind.CONNECTED, "over"),
        row(RowKind.DISCONNECTED, "over"),
        row(RowKind.ENDED, "over"),
    ]
    async with running(tmp_path / "a", clock, **ONE_SHARD) as (journal, _):
        await journal.write(mine)
        for number in range(1, 41):
            clock.advance(3600.0)
            await journal.write([publication("s", number, b"x" * 500, clock())])
            await journal.sweep()
        assert journal.spans()[0].first > len(mine)
        killed = as_if_killed(tmp_path / "a", tmp_path / "b")
    expected = [("idle", RowKind.CONNECTED, "beginning"), ("idle", RowKind.SUBSCRIBED, "one")]
    for directory in (tmp_path / "a", killed):
        for _ in range(2):  # a restart changes nothing
            async with running(directory, clock, SHORT, **ONE_SHARD) as (_, recovered):
                assert session_rows(recovered) == expected


async def test_sessions_survive_a_new_generation_of_their_shard(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    async with running(tmp_path, clock, durability="memory", **ONE_SHARD) as (journal, _):
        await journal.write([row(RowKind.CONNECTED, "idle", "beginning"), publication("s", 1)])
        while journal.gauges()["journal_written_rows"] < 2:
            await asyncio.sleep(0)
        killed = as_if_killed(tmp_path / "journal", tmp_path / "other" / "journal")
    clock.advance(10_000.0)
    for _ in range(2):
        async with running(killed.parent, clock, SHORT, **ONE_SHARD) as (journal, recovered):
            assert session_rows(recovered) == [("idle", RowKind.CONNECTED, "beginning")]
            await journal.write([publication("s", 1, at=clock())])


async def test_damaged_state_is_ignored_and_rebuilt_from_the_segments(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    async with running(tmp_path, clock, shards=1, segment_size=4096) as (journal, _):
        await journal.write([row(RowKind.CONNECTED, "idle", "x" * 5000)])
        await journal.write([publication("s", 1)])
        await journal.sweep()
    (path,) = (tmp_path / "journal").glob("shard=00/*.state")
    segment, first = path.with_suffix(".arrow"), int(path.stem)
    whole = path.read_bytes()
    state = load_state(segment, 0, first)
    assert state is not None
    assert state.sessions.num_rows == 1
    tips = frame_at(memoryview(whole), 0)
    assert tips is not None
    for damaged in (whole[: tips.length], whole[:-1], b""):
        path.write_bytes(damaged)
        assert load_state(segment, 0, first) is None
    async with running(tmp_path, clock, SHORT, shards=1) as (_, recovered):  # rebuilt from the segments
        assert session_rows(recovered) == [("idle", RowKind.CONNECTED, "x" * 5000)]


async def test_state_of_an_older_version_is_read(tmp_path: Path) -> None:
    segment = tmp_path / "0.arrow"
    tips = pa.table({"kind": ["stream"], "name": ["s"], "epoch": ["e"], "reached": [7], "timestamp": [0]}).cast(TIPS)
    state_path(segment).write_bytes(frame_batch(tips.to_batches()[0], 3, 40, 0))
    state = load_state(segment, 3, 40)
    assert state is not None
    assert [(tip.stream, tip.tip) for tip in stream_tips(state)] == [("s", 7)]
    assert state.sessions.num_rows == 0


async def test_row_of_an_unknown_kind_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_000_000.0)
    async with running(tmp_path, clock, shards=1) as (journal, _):
        await journal.write([row(RowKind.CONNECTED, "idle"), row(RowKind.CHANGED, "idle")])
    monkeypatch.delitem(batches.KINDS, "changed")
    async with running(tmp_path, clock, shards=1) as (_, recovered):
        assert session_rows(recovered) == [("idle", RowKind.CONNECTED, "")]


# --- Rows of open sessions -------------------------------------------------------------------------------------------

BEGINNINGS = (RowKind.CONNECTED, RowKind.RESTORED, RowKind.ALIVE)


def naive(rows: list[Row]) -> list[Row]:
    """The same, session by session and row by row."""
    needed: dict[str, list[int]] = {}
    over: set[str] = set()
    gone: set[str] = set()
    for index, each in enumerate(rows):
        if each.kind is RowKind.ENDED:
            over.add(each.sid)
        elif each.kind in BEGINNINGS and each.sid not in gone:
            needed[each.sid] = [index]
        elif each.sid in needed:
            needed[each.sid].append(index)
        if each.kind is RowKind.DISCONNECTED:
            gone.add(each.sid)
    kept = sorted(index for sid, indexes in needed.items() if sid not in over for index in indexes)
    return [rows[index] for index in kept]


def arrow(rows: list[Row], chunks: int = 1) -> pa.Table:
    size = -(-len(rows) // chunks) or 1
    batches = [encode(rows[at : at + size], at)[0] for at in range(0, len(rows), size)]
    return pa.Table.from_batches(batches, SCHEMA)


def test_rows_of_open_sessions_equal_those_of_a_naive_model(subtests: pytest.Subtests) -> None:
    for seed in range(30):
        with subtests.test(seed=seed):
            chance = random.Random(seed)
            kinds = [kind for kind in RowKind if kind not in (RowKind.PUBLISH, RowKind.REVOKED)]
            rows = [row(RowKind.CONNECTED, f"sid {n}", f"beginning {n}") for n in range(8)]
            rows += [row(chance.choice(kinds), f"sid {chance.randrange(8)}", str(n)) for n in range(chance.randrange(60))]
            found = going_on(arrow(rows, chunks=chance.randrange(1, 5)))
            assert found["detail"].to_pylist() == [each.detail for each in naive(rows)]
            cut = chance.randrange(8, len(rows) + 1)  # the same in two steps
            stepwise = going_on(pa.concat_tables([going_on(arrow(rows[:cut])), arrow(rows[cut:])]))
            if not any(each.kind is RowKind.ENDED for each in rows[:cut]):
                assert stepwise["detail"].to_pylist() == found["detail"].to_pylist()


def test_open_sessions_are_not_scanned_again_for_every_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(rows: pa.Table) -> pa.Table:
        seen.append(rows.num_rows)
        return going_on(rows)

    monkeypatch.setattr(state, "going_on", counted)
    open_ones = arrow([row(RowKind.CONNECTED, f"sid {number}") for number in range(1000)])
    segments = [arrow([row(RowKind.CONNECTED, f"more {number}")]) for number in range(100)]

    merged = state.merge(state.ShardState(TIPS.empty_table(), open_ones), segments)

    assert merged.sessions.num_rows == 1100
    assert sum(seen) < 2 * 1100
