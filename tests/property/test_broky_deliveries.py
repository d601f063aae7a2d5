"""Registered messages delivered over Broky, read by generated code."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.messages import MessageFields, Registered
from ropewalk.protocol.broky.codec import MESSAGES
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text
from ropewalk.protocol.broky.runs import decode, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.texts import decode_text, encode_text
from ropewalk.protocol.stream_keys import decode_key, encode_key
from tests.broky_frames import seen

uids = st.just("") | st.binary(min_size=KSUID_BYTES, max_size=KSUID_BYTES).map(ksuid_text)
times = st.just(0) | st.integers(0, 2**64 - 1)
payloads = st.sampled_from([b"1", b'{"a":1}', encode_text(b"\xff", Format.BYTES), encode_text(b"", Format.BYTES)])

MessageColumns = tuple[bytes, Format, bytes, int, bytes]


@st.composite
def histories(draw: st.DrawFn) -> list[Registered]:
    """Messages of one stream, registered in groups."""
    partition = draw(st.sampled_from(["", "part", decode_key(b"\xfe")]))
    found: list[Registered] = []
    for _ in range(draw(st.integers(1, 12))):
        uid, time = draw(uids), draw(times)
        fields = MessageFields(uid, time, partition) if uid or time or partition else None
        at = (found[-1].timestamp if found else 1.0) + draw(st.sampled_from([0, 0, 0, 1]))
        found.append(Registered("s", draw(payloads), at, "e", len(found) + 1, fields=fields))
    return found


def expected(message: Registered) -> MessageColumns:
    payload, format = decode_text(message.payload)
    fields = message.fields or MessageFields()
    number = 0
    for digit in fields.uid:  # independent of the code under test
        number = number * 62 + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".index(digit)
    uid = number.to_bytes(KSUID_BYTES) if fields.uid else b""
    return payload, format, uid, fields.ts_producer, encode_key(fields.partition_key)


def columns_of(run: Run) -> list[MessageColumns]:
    uids = [run.uid[at : at + KSUID_BYTES] for at in range(0, len(run.uid), KSUID_BYTES)] or [b""] * run.count
    times = run.ts_producer or (0,) * run.count
    return [
        (payload, run.format, uid, time, run.key_partition)
        for payload, uid, time in zip(split_payloads(run), uids, times, strict=True)
    ]


def run_header(run: Run) -> tuple[object, ...]:
    return run.format, run.ts_broker, bool(run.uid), bool(run.ts_producer)


@given(messages=histories())
def test_messages_are_delivered_with_their_fields_in_as_few_runs_as_possible(messages: list[Registered]) -> None:
    frames = list(FrameSplitter().feed(MESSAGES.batch(b"", messages)))
    runs = [seen(frame, Run) for frame in frames]
    assert runs == [decode(frame) for frame in frames]
    assert [each for run in runs for each in columns_of(run)] == [expected(message) for message in messages]
    assert [run.offset + place for run in runs for place in range(run.count)] == [message.offset for message in messages]
    assert all(run_header(before) != run_header(after) for before, after in pairwise(runs))


@given(messages=histories())
def test_single_message_has_the_same_fields(messages: list[Registered]) -> None:
    for message in messages:
        run = decode(MESSAGES.batch(b"", [message]))
        assert isinstance(run, Run)
        assert columns_of(run) == [expected(message)]
