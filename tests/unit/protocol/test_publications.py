"""The publish body: what becomes of it, and that nothing else than a clear refusal comes out of what is wrong."""

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


# --- what is understood -----------------------------------------------------------------------------------------------


def test_a_publication_keeps_its_stream_and_the_text_of_its_data() -> None:
    assert one({"stream": "chat/1", "data": '{"text": "hi"}'}) == Publication("chat/1", b'{"text": "hi"}')


def test_meta_and_uid_are_carried_over() -> None:
    meta = {"exclude_socket": "sid", "broadcast_type": "alert", "transient": True, "unknown": 1}
    body = {"stream": "s", "data": "1", "meta": meta, "uid": "u-1", "partition_key": "k"}
    assert one(body) == Publication("s", b"1", "sid", "alert", True, "u-1", partition_key="k")


@pytest.mark.parametrize("kind", sorted(SERVER_TYPES))
def test_a_type_of_what_the_server_itself_says_is_refused(kind: str) -> None:
    """A client would go away, or wait for a position that never comes."""
    good = {"stream": "s", "data": "1", "meta": {"broadcast_type": f"{kind}d"}}
    assert one(good).broadcast_type == f"{kind}d"
    refused = refusal([good, {"stream": "s", "data": "1", "meta": {"broadcast_type": kind}}])
    assert (kind in refused.reason, refused.index) == (True, 1)


@pytest.mark.parametrize("name", ["~b64:YQ", "~b64:_w==", "~b64:!", "~b64:_x"])
def test_a_name_that_looks_like_a_key_of_bytes_and_is_none_is_refused(name: str) -> None:
    """Subscribers by key would see two streams under one."""
    assert "~b64:" in refusal({"stream": name, "data": "1"}).reason
    assert one({"stream": "~b64:_w", "data": "1"}).stream == "~b64:_w"


def test_a_partition_key_is_no_longer_than_a_stream_may_be() -> None:
    assert one({"stream": "s", "data": "1", "partition_key": "k" * 20}).partition_key == "k" * 20
    with pytest.raises(MalformedPublication, match="partition_key is longer than 20 bytes"):
        one({"stream": "s", "data": "1", "partition_key": "k" * 21})


def test_null_is_as_good_as_an_absent_key() -> None:
    body = {"stream": "s", "data": "1", "meta": {"exclude_socket": None, "transient": None}, "uid": None, "command": None}
    assert one(body) == Publication("s", b"1")
    assert one({"stream": "s", "data": "1", "meta": None}) == Publication("s", b"1")


def test_a_batch_keeps_its_order() -> None:
    body = [{"stream": "a", "data": "1"}, {"stream": "b", "data": "2"}, {"stream": "a", "data": "3"}]
    answer = decode(json.dumps(body).encode(), LIMITS)
    assert answer == [Publication("a", b"1"), Publication("b", b"2"), Publication("a", b"3")]


@pytest.mark.parametrize(
    ("payload", "order"),
    [
        ({"identifier": "user-1"}, RemoteDisconnect("user-1", True)),
        ({"identifier": "user-1", "reconnect": True}, RemoteDisconnect("user-1", True)),
        ({"identifier": "user-1", "reconnect": False}, RemoteDisconnect("user-1", False)),
    ],
)
def test_a_disconnect_command_is_an_order_that_lets_clients_come_back_unless_it_says_otherwise(
    payload: object, order: RemoteDisconnect
) -> None:
    assert decode(json.dumps({"command": "disconnect", "payload": payload}).encode(), LIMITS) == order


# --- the payload ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "12345678901234567890123456789",
        "0.1000000000000000055511151231257827",
        "1e400",
        '{"b":1,"a":2,"b":3}',
        '{"id": 9007199254740993}',
        '"\\u00e9"',
        "[1,\n 2]",
        "false",
        '""',
    ],
)
def test_valid_json_is_passed_on_as_it_was_written(text: str) -> None:
    assert payload(text) == text.encode()


@pytest.mark.parametrize("text", ['{"id": 9007199254740993}', '[1,\n 2, "é"]', "1e400", "false", "{}", '{"b":1,"a":2,"b":3}'])
def test_json_that_is_not_in_a_string_is_the_message_as_it_was_written(text: str) -> None:
    answer = decode(f'{{"stream":"s", "data" : {text} }}'.encode(), LIMITS)
    assert answer == [Publication("s", text.encode())]


def test_a_batch_may_hold_both_kinds_of_data() -> None:
    answer = decode(b'[{"stream":"s","data":{"a":1}},{"stream":"s","data":"{\\"a\\":1}"},{"stream":"s","data":"a"}]', LIMITS)
    assert isinstance(answer, list)
    assert [each.payload for each in answer] == [b'{"a":1}', b'{"a":1}', b'"a"']


@pytest.mark.parametrize("absent", ['""', "null"])
def test_an_empty_key_counts_as_an_absent_one(absent: str) -> None:
    meta = f'{{"exclude_socket":{absent},"broadcast_type":{absent}}}'
    text = f'{{"stream":"s","data":"1","uid":{absent},"partition_key":{absent},"meta":{meta}}}'
    assert decode(text.encode(), LIMITS, "") == [Publication("s", b"1")]
    assert decode(text.encode(), LIMITS, "key") == [Publication("s", b"1", uid="key")]


def test_whitespace_around_json_is_left_away() -> None:
    assert payload(' \r\n\t{"a": 1} \n') == b'{"a": 1}'


@pytest.mark.parametrize(
    "text",
    [
        *("hello", "", " ", "null", " null ", "NaN", "01", "1.", "{", '{"a":1,}', "{'a':1}", '"open', "1 2", "tru"),
        *('"\\ud800"', '"\\x"', '"a\nb"', "\u00a01", "\ufeff1", "<turbo-stream>", "é", "\0"),
    ],
)
def test_what_is_not_json_or_is_null_becomes_a_json_string_of_itself(text: str) -> None:
    assert json.loads(payload(text)) == text


# --- uids -------------------------------------------------------------------------------------------------------------


def test_an_idempotency_key_gives_a_uid_to_what_has_none() -> None:
    assert one({"stream": "s", "data": "1"}, key="k").uid == "k"
    assert one({"stream": "s", "data": "1", "uid": ""}, key="k").uid == "k"
    assert one({"stream": "s", "data": "1", "uid": "own"}, key="k").uid == "own"


def test_an_idempotency_key_names_the_items_of_a_batch_by_their_place() -> None:
    body = [{"stream": "s", "data": "1"}, {"stream": "s", "data": "2", "uid": "own"}, {"stream": "s", "data": "3"}]
    answer = decode(json.dumps(body).encode(), LIMITS, "k")
    assert isinstance(answer, list)
    assert [publication.uid for publication in answer] == ["k:0", "own", "k:2"]


@pytest.mark.parametrize("key", ["k" * (MAX_UID_BYTES + 1), "é" * (MAX_UID_BYTES // 2 + 1), "\udcff"])
def test_an_idempotency_key_that_is_too_long_or_no_text_is_refused(key: str) -> None:
    with pytest.raises(MalformedPublication, match="Idempotency-Key"):
        decode(b'{"stream":"s","data":"1"}', LIMITS, key)


def test_a_uid_may_be_as_long_as_the_limit_says() -> None:
    longest = "u" * MAX_UID_BYTES
    assert one({"stream": "s", "data": "1", "uid": longest}).uid == longest
    assert "uid" in refusal({"stream": "s", "data": "1", "uid": longest + "u"}).reason


# --- what is refused --------------------------------------------------------------------------------------------------

GOOD = {"stream": "s", "data": "1"}


@pytest.mark.parametrize(
    ("body", "word"),
    [
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
    ],
)
def test_a_malformed_body_is_refused_and_the_reason_says_why(body: object, word: str) -> None:
    error = refusal(body)
    assert word in error.reason
    assert error.index == 0


@pytest.mark.parametrize(
    "bad",
    [
        *(7, None, [], {}),
        *({"stream": "", "data": "1"}, {"stream": "s", "data": None}, {"stream": "s"}),
        *({**GOOD, "meta": {"transient": 1}}, {**GOOD, "uid": "u" * 300}),
        {"stream": "s", "data": "[" * 5000 + "]" * 5000},
        {"command": "disconnect", "payload": {"identifier": "x"}},
    ],
)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_refused_batch_names_the_place_of_the_bad_one(bad: object, index: int) -> None:
    batch: list[object] = [GOOD, GOOD, GOOD]
    batch[index] = bad
    assert refusal(batch).index == index
    large = json.dumps(batch).encode() + b" " * LARGE_BYTES
    with pytest.raises(MalformedPublication) as caught:
        asyncio.run(decode_gently(large, LIMITS))
    assert (caught.value.index, caught.value.reason) == (index, refusal(large).reason)


# --- large bodies -----------------------------------------------------------------------------------------------------


async def test_a_large_batch_is_decoded_in_pieces_between_which_others_have_their_turn() -> None:
    pieces = LARGE_BYTES // ENTRIES_AT_ONCE // 10
    body = json.dumps([{"stream": "s", "data": str(number)} for number in range(pieces * ENTRIES_AT_ONCE)]).encode()
    decoding = asyncio.create_task(decode_gently(body, PublicationLimits(max_batch=1_000_000), "key"))
    turns = 0
    while not decoding.done():
        turns += 1
        await asyncio.sleep(0)
    assert decoding.result() == decode(body, PublicationLimits(max_batch=1_000_000), "key")
    assert turns >= pieces


@pytest.mark.parametrize("entry", [b'{"stream":"s","data":1}', b'{"stream":"s","data":1,"x":[]}'])
async def test_a_large_batch_with_too_many_publications_is_refused(entry: bytes) -> None:
    body = b"[" + b",".join([entry] * (LARGE_BYTES // len(entry))) + b"]"
    with pytest.raises(MalformedPublication, match="1 to 3 publications, this one more"):
        await decode_gently(body, LIMITS)


# --- whatever comes ---------------------------------------------------------------------------------------------------

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
def test_random_bytes_are_decoded_or_refused_and_nothing_else(body: bytes, key: str) -> None:
    decodes_or_refuses(body, key)


@given(ALMOST | st.lists(ALMOST, max_size=4) | JSON)
def test_random_json_is_decoded_or_refused_and_nothing_else(body: object) -> None:
    decodes_or_refuses(json.dumps(body).encode(), "")


@given(ALMOST | st.lists(ALMOST | st.just(GOOD), max_size=4) | JSON | st.binary(), st.sampled_from(["", "key"]))
def test_a_large_body_is_taken_or_refused_as_the_same_body_would_be(body: object, key: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        expected: object = decode(data, LIMITS, key)
    except MalformedPublication:
        with pytest.raises(MalformedPublication):
            asyncio.run(decode_gently(data + b" " * LARGE_BYTES, LIMITS, key))
    else:
        assert asyncio.run(decode_gently(data + b" " * LARGE_BYTES, LIMITS, key)) == expected


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_at_all_reaches_receivers_as_json_of_the_same_meaning(data: str) -> None:
    seen = json.loads(payload(data))
    try:
        meant = json.loads(data)
    except ValueError:
        meant = None
    # Python's own reader takes NaN and Infinity, which are no JSON.
    assert seen in (data, meant)


@given(JSON.filter(lambda value: value is not None), st.sampled_from(["", " ", "\n", "\t\r\n"]))
def test_any_json_at_all_is_passed_on_byte_for_byte(value: object, space: str) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    assert payload(space + text + space) == text.encode()


@given(st.integers(), st.from_regex(r"-?(0|[1-9][0-9]{0,40})\.[0-9]{1,40}", fullmatch=True))
def test_numbers_of_any_size_stay_exact(whole: int, decimal: str) -> None:
    text = f'{{"whole":{whole},"decimal":{decimal}}}'
    assert payload(text) == text.encode()


@pytest.mark.parametrize("unknown", [{}, {"unknown": 1}])
def test_a_batch_is_read_only_as_far_as_it_holds_publications(unknown: dict[str, int]) -> None:
    found = refusal([{"stream": "a", "data": "1"}, unknown] + [{}] * 5000)
    assert found.index == 1
    assert "stream" in found.reason
