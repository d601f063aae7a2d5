"""Broky frames against generated code, and round trips of its text forms."""

import json
from itertools import chain, pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import ksuid_text, parse_ksuid
from ropewalk.protocol.broky.read_ahead import ReadAhead
from ropewalk.protocol.broky.runs import decode, encode_run
from ropewalk.protocol.broky.splitter import MAX_FRAME, FrameSplitter
from ropewalk.protocol.broky.tables import encode, read
from ropewalk.protocol.broky.texts import decode_text, encode_text
from ropewalk.protocol.stream_keys import MARK, decode_key, encode_key
from tests.broky_frames import BODIES, built, records, runs, seen


@pytest.mark.parametrize("kind", BODIES)
@given(data=st.data())
def test_generated_code_reads_encoded_frames(kind: type, data: st.DataObject) -> None:
    record = data.draw(records(kind))
    assert seen(encode(record), kind) == record


@pytest.mark.parametrize("kind", BODIES)
@given(data=st.data())
def test_frames_of_generated_code_are_decoded(kind: type, data: st.DataObject) -> None:
    record = data.draw(records(kind))
    assert decode(built(record)) == record


@given(run=runs())
def test_run_is_the_same_on_the_fast_and_the_slow_path(run: Run) -> None:
    fast = encode_run(run)
    assert decode(fast) == read(fast) == run == seen(fast, Run)
    assert decode(encode(run)) == run


@given(frames=st.lists(runs().map(encode_run), max_size=5), cuts=st.lists(st.integers(0, 3000), max_size=10))
def test_stream_is_split_into_its_frames(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = FrameSplitter()
    got = [frame for start, stop in pairwise(places) for frame in splitter.feed(stream[start:stop])]
    assert got == frames


@given(
    frames=st.lists(runs().map(encode_run), max_size=8),
    cuts=st.lists(st.integers(0, 3000), max_size=20),
    taken=st.lists(st.integers(0, 3), max_size=25),
)
def test_frames_are_read_ahead_in_any_fragmentation(frames: list[bytes], cuts: list[int], taken: list[int]) -> None:
    stream = b"".join(frames)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    ahead = ReadAhead(MAX_FRAME)
    got: list[bytes] = []

    def take() -> bool:
        if frame := ahead.frame():
            assert ahead.frame() == frame == ahead.data[ahead.at : ahead.end()]
            assert ahead.size >= len(frame)
            ahead.pass_by(len(frame))
            got.append(frame)
        return bool(frame)

    for (start, stop), count in zip(pairwise(places), chain(taken, repeat(0)), strict=False):
        ahead.put(stream[start:stop])
        for _ in range(count):
            take()
    while take():
        pass
    assert got == frames
    assert ahead.size == 0


@given(ksuid=st.binary(min_size=20, max_size=20))
def test_ksuid_survives_its_text_form(ksuid: bytes) -> None:
    assert parse_ksuid(ksuid_text(ksuid)) == ksuid


# --- text -------------------------------------------------------------------------------------------------------------

hostile_names = st.text(max_size=12) | st.text("AQgw-_=~b64:", max_size=12).map(MARK.__add__)
keys = st.binary(max_size=20) | hostile_names.map(str.encode)


@given(keys=st.lists(keys, max_size=20, unique=True))
def test_each_key_has_a_unique_name_and_survives_it(keys: list[bytes]) -> None:
    names = [decode_key(key) for key in keys]
    assert len(set(names)) == len(keys)
    assert [encode_key(name) for name in names] == keys
    assert [name.encode().decode() for name in names] == names


@given(name=hostile_names)
def test_name_belongs_to_at_most_one_key(name: str) -> None:
    try:
        key = encode_key(name)
    except ValueError:
        assert name.startswith(MARK)
    else:
        assert decode_key(key) == name


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=6).map(lambda data: data.hex()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$bytes", "$json", "$", "a"]) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
spaces = st.sampled_from(["", " ", "\n", "\t "])


@st.composite
def json_texts(draw: st.DrawFn) -> bytes:
    """JSON as other encoders may write it: with spaces, and with an escaped dollar sign."""
    text = json.dumps(draw(values), ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1)))
    if draw(st.booleans()):
        text = text.replace("$", "\\u0024")
    return f"{draw(spaces)}{text}{draw(spaces)}".encode("utf-8", "replace")


@given(payload=st.binary(max_size=40))
def test_bytes_survive_their_text_form(payload: bytes) -> None:
    text = encode_text(payload, Format.BYTES)
    assert list(json.loads(text)) == ["$bytes"]
    assert decode_text(text) == (payload, Format.BYTES)


@given(payload=json_texts())
def test_json_survives_its_text_form_and_is_not_read_as_bytes(payload: bytes) -> None:
    text = encode_text(payload, Format.JSON)
    assert decode_text(text) == (payload, Format.JSON)
    decoded = json.loads(text)
    assert decoded is not None
    if isinstance(decoded, dict) and list(decoded) in (["$bytes"], ["$json"]):
        assert list(decoded) == ["$json"]
        assert decoded["$json"] == json.loads(payload)
    else:
        assert text == payload


@given(text=json_texts())
def test_each_stored_text_has_a_payload(text: bytes) -> None:
    payload, format = decode_text(text)
    if format is Format.BYTES:
        assert list(json.loads(text)) == ["$bytes"]
    else:
        json.loads(payload)


@given(payload=st.binary(max_size=30) | st.text('[]{}",:0$aé ', max_size=12).map(str.encode))
def test_invalid_json_payload_is_refused(payload: bytes) -> None:
    try:
        json.loads(payload.decode())
    except ValueError:
        with pytest.raises(ValueError, match="not JSON"):
            encode_text(payload, Format.JSON)


def test_deeply_nested_json_is_refused() -> None:
    encode_text(b"[" * 127 + b"]" * 127, Format.JSON)
    with pytest.raises(ValueError, match="deep"):
        encode_text(b"[" * 128 + b"]" * 128, Format.JSON)


@pytest.mark.parametrize(
    "text", [b'{"$bytes":5}', b'{"$bytes":"a"}', b'{"$bytes":"aB=="}', b'{"$bytes":"aGk=","a":1}', b'{"$json":{"a":1}}']
)
def test_invalid_tagged_form_is_ordinary_json(text: bytes) -> None:
    assert decode_text(text) == (text, Format.JSON)


def test_tagged_bytes_may_have_spaces() -> None:
    assert decode_text(b'{ "$bytes": "aGk=" }') == (b"hi", Format.BYTES)
