"""Rows survive encoding into batches."""

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.adapters.journals.arrow.batches import decode, encode, frame_at, frame_batch
from ropewalk.model.journal import Row, RowKind

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, 4_000_000_000).map(float)
PUBLICATIONS = st.builds(
    lambda key, time, epoch, offset, value, uid, exclude, kind, produced: Row(
        RowKind.PUBLISH, key, time, key, epoch, offset, value, uid, exclude, kind, "", "", *produced
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    TIMES,
    TEXTS,
    NUMBERS,
    st.binary(max_size=20),
    TEXTS,
    TEXTS,
    TEXTS,
    st.just(("", 0)) | st.tuples(st.just("app"), NUMBERS),
)
SESSION_EVENTS = st.builds(
    lambda kind, key, time, stream, detail: Row(kind, key, time, stream, sid=key, detail=detail),
    st.sampled_from([kind for kind in RowKind if kind is not RowKind.PUBLISH]),
    TEXTS,
    TIMES,
    TEXTS,
    TEXTS,
)


@given(rows=st.lists(PUBLICATIONS | SESSION_EVENTS, min_size=1, max_size=20), first=st.integers(0, 2**50))
def test_rows_survive_encoding_with_their_positions(rows: list[Row], first: int) -> None:
    batch, newest = encode(rows, first)
    assert list(decode(batch, 0)) == rows
    assert batch.column("position").to_pylist() == list(range(first, first + len(rows)))
    assert newest == max(row.timestamp for row in rows) * 1_000_000


@given(rows=st.lists(PUBLICATIONS, min_size=1, max_size=3), data=st.data())
def test_batch_with_a_flipped_bit_is_refused(rows: list[Row], data: st.DataObject) -> None:
    message = bytearray(frame_batch(encode(rows, 7)[0], 2, 7, 0, group=3, members=1))
    frame = frame_at(memoryview(message), 0)
    assert frame is not None
    assert (frame.first, frame.rows, frame.shard, frame.length) == (7, len(rows), 2, len(message))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= 1 << data.draw(st.integers(0, 7))
    assert frame_at(memoryview(message), 0) is None
