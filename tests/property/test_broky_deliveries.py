"""Registered messages as Broky delivers them, read by generated code: each has what it has, and runs are as few as can be."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.messages import MessageFields, Registered
from ropewalk.protocol.broky.codec import MESSAGES
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text
from ropewalk.protocol.broky.runs import decode, payloads_of
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.texts import payload_of, text_of
from ropewalk.protocol.stream_keys import key_of, name_of
from tests.broky_frames import seen

uids = st.just("") | st.binary(min_size=KSUID_BYTES, max_size=KSUID_BYTES).map(ksuid_text)
times = st.just(0) | st.integers(0, 2**64 - 1)
payloads = st.sampled_from([b"1", b'{"a":1}', text_of(b"\xff", Format.BYTES), text_of(b"", Format.BYTES)])

Told = tuple[bytes, Format, bytes, int, bytes]


@st.composite
def histories(draw: st.DrawFn) -> list[Registered]:
    """Of one stream, registered together in groups."""
    partition = draw(st.sampled_from(["", "part", name_of(b"\xfe")]))
    found: list[Registered] = []
    for _ in range(draw(st.integers(1, 12))):
        uid, time = draw(uids), draw(times)
        fields = MessageFields(uid, time, partition) if uid or time or partition else None
        at = (found[-1].timestamp if found else 1.0) + draw(st.sampled_from([0, 0, 0, 1]))
        found.append(Registered("s", draw(payloads), at, "e", len(found) + 1, fields=fields))
    return found


def expected(message: Registered) -> Told:
    payload, format = payload_of(message.payload)
    fields = message.fields or MessageFields()
    number = 0
    for digit in fields.uid:  # not by the code that is looked at
        number = number * 62 + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz".index(digit)
    uid = number.to_bytes(KSUID_BYTES) if fields.uid else b""
    return payload, format, uid, fields.ts_producer, key_of(fields.partition_key)


def told(run: Run) -> list[Told]:
    uids = [run.uid[at : at + KSUID_BYTES] for at in range(0, len(run.uid), KSUID_BYTES)] or [b""] * run.count
    times = run.ts_producer or (0,) * run.count
    return [
        (payload, run.format, uid, time, run.key_partition)
        for payload, uid, time in zip(payloads_of(run), uids, times, strict=True)
    ]


def alike(run: Run) -> tuple[object, ...]:
    return run.format, run.ts_broker, bool(run.uid), bool(run.ts_producer)


@given(messages=histories())
def test_every_message_comes_with_its_fields_in_as_few_runs_as_can_be(messages: list[Registered]) -> None:
    frames = list(FrameSplitter().feed(MESSAGES.batch(b"", messages)))
    runs = [seen(frame, Run) for frame in frames]
    assert runs == [decode(frame) for frame in frames]
    assert [each for run in runs for each in told(run)] == [expected(message) for message in messages]
    assert [run.offset + place for run in runs for place in range(run.count)] == [message.offset for message in messages]
    assert all(alike(before) != alike(after) for before, after in pairwise(runs))


@given(messages=histories())
def test_a_message_alone_has_the_same_fields(messages: list[Registered]) -> None:
    for message in messages:
        run = decode(MESSAGES.batch(b"", [message]))
        assert isinstance(run, Run)
        assert told(run) == [expected(message)]
