"""The publish body is decoded, or refused with a clear reason."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import SERVER_TYPES, Publication, RemoteDisconnect
from ropewalk.protocol.publications import (
    ENTRIES_AT_ONCE,
    LARGE_BYTES,
    MAX_UID_BYTES,
    PublicationLimits,
    decode,
    decode_gently,
)

LIMITS = PublicationLimits(max_stream_name=20, max_batch=3)


def one(body: object, key: str = "") -> Publication:
    answer = decode(json.dumps(body).encode(), LIMITS, key)
    assert isinstance(answer, list)
    (publication,) = answer
    return publication


def payload(data: str) -> bytes:
    return one({"stream": "s", "data": data}).payload


def refusal(body: object) -> MalformedPublication:
    with pytest.raises(MalformedPublication) as caught:
        decode(body if isinstance(body, bytes) else json.dumps(body).encode(), LIMITS)
    return caught.value


# --- valid bodies -----------------------------------------------------------------------------------------------------


def test_publication_has_the_stream_and_data_of_the_body() -> None:
    assert one({"stream": "chat/1", "data": '{"text": "hi"}'}) == Publication("chat/1", b'{"text": "hi"}')


def test_meta_and_uid_are_copied() -> None:
    meta = {"exclude_socket": "sid", "broadcast_type": "alert", "transient": True, "unknown": 1}
    body = {"stream": "s", "data": "1", "meta": meta, "uid": "u-1", "partition_key": "k"}
    assert one(body) == Publication("s", b"1", "sid", "alert", True, "u-1", partition_key="k")


def test_message_types_of_the_server_are_refused(subtests: pytest.Subtests) -> None:
    """A client would disconnect, or wait for a position that is never sent."""
    for kind in sorted(SERVER_TYPES):
        with subtests.test(kind=kind):
            good = {"stream": "s", "data": "1", "meta": {"broadcast_type": f"{kind}d"}}
            assert one(good).broadcast_type == f"{kind}d"
            refused = refusal([good, {"stream": "s", "data": "1", "meta": {"broadcast_type": kind}}])
            assert (kind in refused.reason, refused.index) == (True, 1)


def test_non_canonical_binary_key_is_refused(subtests: pytest.Subtests) -> None:
    """Subscribers by key would receive two streams under one key."""
    rows: list[str] = ["~b64:YQ", "~b64:_w==", "~b64:!", "~b64:_x"]
    for name in rows:
        with subtests.test(name=name):
            assert "~b64:" in refusal({"stream": name, "data": "1"}).reason
            assert one({"stream": "~b64:_w", "data": "1"}).stream == "~b64:_w"


def test_partition_key_is_limited_like_a_stream_name() -> None:
    assert one({"stream": "s", "data": "1", "partition_key": "k" * 20}).partition_key == "k" * 20
    with pytest.raises(MalformedPublication, match="partition_key is longer than 20 bytes"):
        one({"stream": "s", "data": "1", "partition_key": "k" * 21})


def test_null_equals_an_absent_key() -> None:
    body = {"stream": "s", "data": "1", "meta": {"exclude_socket": None, "transient": None}, "uid": None, "command": None}
    assert one(body) == Publication("s", b"1")
    assert one({"stream": "s", "data": "1", "meta": None}) == Publication("s", b"1")


def test_batch_keeps_its_order() -> None:
    body = [{"stream": "a", "data": "1"}, {"stream": "b", "data": "2"}, {"stream": "a", "data": "3"}]
    answer = decode(json.dumps(body).encode(), LIMITS)
    assert answer == [Publication("a", b"1"), Publication("b", b"2"), Publication("a", b"3")]


def test_disconnect_command_lets_clients_reconnect_unless_disabled(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, RemoteDisconnect]] = [
        ({"identifier": "user-1"}, RemoteDisconnect("user-1", True)),
        ({"identifier": "user-1", "reconnect": True}, RemoteDisconnect("user-1", True)),
        ({"identifier": "user-1", "reconnect": False}, RemoteDisconnect("user-1", False)),
    ]
    for payload, order in rows:
        with subtests.test(payload=payload, order=order):
            assert decode(json.dumps({"command": "disconnect", "payload": payload}).encode(), LIMITS) == order


# --- the payload ------------------------------------------------------------------------------------------------------


def test_valid_json_is_not_reformatted(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "12345678901234567890123456789",
        "0.1000000000000000055511151231257827",
        "1e400",
        '{"b":1,"a":2,"b":3}',
        '{"id": 9007199254740993}',
        '"\\u00e9"',
        "[1,\n 2]",
        "false",
        '""',
    ]
    for text in rows:
        with subtests.test(text=text):
            assert payload(text) == text.encode()


def test_json_outside_a_string_is_not_reformatted(subtests: pytest.Subtests) -> None:
    rows: list[str] = ['{"id": 9007199254740993}', '[1,\n 2, "é"]', "1e400", "false", "{}", '{"b":1,"a":2,"b":3}']
    for text in rows:
        with subtests.test(text=text):
            answer = decode(f'{{"stream":"s", "data" : {text} }}'.encode(), LIMITS)
            assert answer == [Publication("s", text.encode())]


def test_batch_may_mix_json_and_strings() -> None:
    answer = decode(b'[{"stream":"s","data":{"a":1}},{"stream":"s","data":"{\\"a\\":1}"},{"stream":"s","data":"a"}]', LIMITS)
    assert isinstance(answer, list)
    assert [each.payload for each in answer] == [b'{"a":1}', b'{"a":1}', b'"a"']


def test_empty_key_equals_an_absent_one(subtests: pytest.Subtests) -> None:
    rows: list[str] = ['""', "null"]
    for absent in rows:
        with subtests.test(absent=absent):
            meta = f'{{"exclude_socket":{absent},"broadcast_type":{absent}}}'
            text = f'{{"stream":"s","data":"1","uid":{absent},"partition_key":{absent},"meta":{meta}}}'
            assert decode(text.encode(), LIMITS, "") == [Publication("s", b"1")]
            assert decode(text.encode(), LIMITS, "key") == [Publication("s", b"1", uid="key")]


def test_whitespace_around_json_is_stripped() -> None:
    assert payload(' \r\n\t{"a": 1} \n') == b'{"a": 1}'


def test_invalid_json_and_null_become_json_strings(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        *("hello", "", " ", "null", " null ", "NaN", "01", "1.", "{", '{"a":1,}', "{'a':1}", '"open', "1 2", "tru"),
        *('"\\ud800"', '"\\x"', '"a\nb"', "\u00a01", "\ufeff1", "<turbo-stream>", "é", "\0"),
    ]
    for text in rows:
        with subtests.test(text=text):
            assert json.loads(payload(text)) == text


# --- uids -------------------------------------------------------------------------------------------------------------


def test_idempotency_key_is_the_default_uid() -> None:
    assert one({"stream": "s", "data": "1"}, key="k").uid == "k"
    assert one({"stream": "s", "data": "1", "uid": ""}, key="k").uid == "k"
    assert one({"stream": "s", "data": "1", "uid": "own"}, key="k").uid == "own"


def test_idempotency_key_in_a_batch_gets_the_index_of_each_item() -> None:
    body = [{"stream": "s", "data": "1"}, {"stream": "s", "data": "2", "uid": "own"}, {"stream": "s", "data": "3"}]
    answer = decode(json.dumps(body).encode(), LIMITS, "k")
    assert isinstance(answer, list)
    assert [publication.uid for publication in answer] == ["k:0", "own", "k:2"]


def test_long_or_invalid_idempotency_key_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["k" * (MAX_UID_BYTES + 1), "é" * (MAX_UID_BYTES // 2 + 1), "\udcff"]
    for key in rows:
        with subtests.test(key=key), pytest.raises(MalformedPublication, match="Idempotency-Key"):
            decode(b'{"stream":"s","data":"1"}', LIMITS, key)


def test_uid_length_is_limited() -> None:
    longest = "u" * MAX_UID_BYTES
    assert one({"stream": "s", "data": "1", "uid": longest}).uid == longest
    assert "uid" in refusal({"stream": "s", "data": "1", "uid": longest + "u"}).reason


# --- malformed bodies -------------------------------------------------------------------------------------------------

GOOD = {"stream": "s", "data": "1"}


def test_malformed_body_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"stream":"s","data":"1"} x', "not JSON"),
        (b'{"stream":"\xff","data":"1"}', "not UTF-8"),
        (b'{"stream":"s","data":"\xff"}', "not UTF-8"),
        (b'{"stream":"s","x":' + b'{"a":' * 5000, "nested"),
        (b'{"stream":"s","x":' + b'{"a":' * 100, "not JSON"),
        (b'{"stream":"\\ud800 and more","data":"1"}', "not JSON"),
        (b'{"stream":"s","data":"\\ud800"}', "surrogate pair"),
        (b'{"stream":"s","data":{"a":"\\ud800"}}', "surrogate pair"),
        (b'[{"stream":"s","data":"\\ud800"}]', "surrogate pair"),
        ("text", "publication"),
        (7, "publication"),
        (None, "publication"),
        ({}, "stream"),
        ({"data": "1"}, "stream"),
        ({"stream": "", "data": "1"}, "stream"),
        ({"stream": 7, "data": "1"}, "stream"),
        ({"stream": "s" * 21, "data": "1"}, "longer than 20 bytes"),
        ({"stream": "é" * 11, "data": "1"}, "longer than 20 bytes"),
        ({"stream": "s"}, "data"),
        ({"stream": "s", "data": None}, "data"),
        (b'{"stream":"s","data":{"a":"\xff"}}', "not UTF-8"),
        (b'{"stream":"s","data":{"a":}}', "not JSON"),
        ({"stream": "s", "data": "[" * 5000 + "]" * 5000}, "nested"),
        (b'{"stream":"s","data":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested"),
        ({**GOOD, "meta": []}, "meta"),
        ({**GOOD, "meta": {"transient": "yes"}}, "transient"),
        ({**GOOD, "meta": {"exclude_socket": 1}}, "exclude_socket"),
        ({**GOOD, "uid": 1}, "uid"),
        ({**GOOD, "command": "disconnect", "payload": {"identifier": "x"}}, "not both"),
        ({"command": "reboot", "payload": {"identifier": "x"}}, "disconnect"),
        ({"command": ""}, "disconnect"),
        ({"command": "disconnect"}, "identifier"),
        ({"command": "disconnect", "payload": {}}, "identifier"),
        ({"command": "disconnect", "payload": {"identifier": ""}}, "identifier"),
        ({"command": "disconnect", "payload": {"identifier": {"user": 1}}}, "identifier"),
        ({"command": "disconnect", "payload": {"identifier": "x", "reconnect": "no"}}, "reconnect"),
        ([], "1 to 3"),
        ([GOOD] * 4, "1 to 3"),
    ]
    for body, word in rows:
        with subtests.test(body=body, word=word):
            error = refusal(body)
            assert word in error.reason
            assert error.index == 0


def test_refused_batch_names_the_index_of_the_malformed_item(subtests: pytest.Subtests) -> None:
    items: list[object] = [
        *(7, None, [], {}),
        *({"stream": "", "data": "1"}, {"stream": "s", "data": None}, {"stream": "s"}),
        *({**GOOD, "meta": {"transient": 1}}, {**GOOD, "uid": "u" * 300}),
        {"stream": "s", "data": "[" * 5000 + "]" * 5000},
        {"command": "disconnect", "payload": {"identifier": "x"}},
    ]
    for item in items:
        for index in range(3):
            with subtests.test(item=item, index=index):
                batch: list[object] = [GOOD, GOOD, GOOD]
                batch[index] = item
                assert refusal(batch).index == index
                large = json.dumps(batch).encode() + b" " * LARGE_BYTES
                with pytest.raises(MalformedPublication) as caught:
                    asyncio.run(decode_gently(large, LIMITS))
                assert (caught.value.index, caught.value.reason) == (index, refusal(large).reason)


# --- large bodies -----------------------------------------------------------------------------------------------------


async def test_large_batch_is_decoded_in_pieces_with_yields_between_them() -> None:
    pieces = LARGE_BYTES // ENTRIES_AT_ONCE // 10
    body = json.dumps([{"stream": "s", "data": str(number)} for number in range(pieces * ENTRIES_AT_ONCE)]).encode()
    decoding = asyncio.create_task(decode_gently(body, PublicationLimits(max_batch=1_000_000), "key"))
    turns = 0
    while not decoding.done():
        turns += 1
        await asyncio.sleep(0)
    assert decoding.result() == decode(body, PublicationLimits(max_batch=1_000_000), "key")
    assert turns >= pieces


async def test_large_batch_with_too_many_publications_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b'{"stream":"s","data":1}', b'{"stream":"s","data":1,"x":[]}']
    for entry in rows:
        with subtests.test(entry=entry):
            body = b"[" + b",".join([entry] * (LARGE_BYTES // len(entry))) + b"]"
            with pytest.raises(MalformedPublication, match="1 to 3 publications, this one more"):
                await decode_gently(body, LIMITS)


# --- random bodies ----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["stream", "data", "meta", "uid", "command", "payload", "identifier", "reconnect", "transient"])
ALMOST = st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON))


def decodes_or_refuses(body: bytes, key: str) -> None:
    try:
        outcome: object = decode(body, LIMITS, key)
    except MalformedPublication as error:
        outcome = error
    match outcome:
        case MalformedPublication():
            assert outcome.reason
            assert outcome.index >= 0
        case _:
            assert outcome


@given(st.binary(), st.text(st.characters()))
def test_random_bytes_are_decoded_or_refused(body: bytes, key: str) -> None:
    decodes_or_refuses(body, key)


@given(ALMOST | st.lists(ALMOST, max_size=4) | JSON)
def test_random_json_is_decoded_or_refused(body: object) -> None:
    decodes_or_refuses(json.dumps(body).encode(), "")


@given(ALMOST | st.lists(ALMOST | st.just(GOOD), max_size=4) | JSON | st.binary(), st.sampled_from(["", "key"]))
def test_large_body_is_decoded_or_refused_like_a_small_one(body: object, key: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        expected: object = decode(data, LIMITS, key)
    except MalformedPublication:
        with pytest.raises(MalformedPublication):
            asyncio.run(decode_gently(data + b" " * LARGE_BYTES, LIMITS, key))
    else:
        assert asyncio.run(decode_gently(data + b" " * LARGE_BYTES, LIMITS, key)) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_becomes_json_of_the_same_value(data: str) -> None:
    seen = json.loads(payload(data))
    try:
        expected = json.loads(data)
    except ValueError:
        expected = None
    # Python's decoder accepts NaN and Infinity, which are not JSON.
    assert seen in (data, expected)


@given(JSON.filter(lambda value: value is not None), st.sampled_from(["", " ", "\n", "\t\r\n"]))
def test_any_json_is_passed_byte_for_byte(value: object, space: str) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    assert payload(space + text + space) == text.encode()


@given(st.integers(), st.from_regex(r"-?(0|[1-9][0-9]{0,40})\.[0-9]{1,40}", fullmatch=True))
def test_numbers_of_any_size_stay_exact(whole: int, decimal: str) -> None:
    text = f'{{"whole":{whole},"decimal":{decimal}}}'
    assert payload(text) == text.encode()


def test_decoding_stops_at_the_first_malformed_item_of_a_batch(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, int]] = [{}, {"unknown": 1}]
    for unknown in rows:
        with subtests.test(unknown=unknown):
            found = refusal([{"stream": "a", "data": "1"}, unknown] + [{}] * 5000)
            assert found.index == 1
            assert "stream" in found.reason
