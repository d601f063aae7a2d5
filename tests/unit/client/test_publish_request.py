"""The publish request and its response, without a server."""

import pytest
from msgspec import Raw

from ropewalk.client.errors import KeyRefused, PublicationRefused, PublishError, PublishUnavailable
from ropewalk.client.publish_request import Draft, decode_receipts, encode_batch
from ropewalk.model.messages import Publication, Receipt
from ropewalk.protocol.publications import PublicationLimits, decode


def test_server_decodes_the_request_body() -> None:
    drafts = [
        Draft("a", {"text": "hi"}, uid="u1"),
        Draft("b", "plain text"),
        Draft("c", Raw(b'{"price":1.10}')),
        Draft("d", [1], transient=True, exclude_socket="sid", broadcast_type="note"),
        Draft("e", 1, partition_key="k"),
    ]
    assert decode(encode_batch(drafts), PublicationLimits()) == [
        Publication("a", b'{"text":"hi"}', uid="u1"),
        Publication("b", b'"plain text"'),
        Publication("c", b'{"price":1.10}'),
        Publication("d", b"[1]", "sid", "note", True),
        Publication("e", b"1", partition_key="k"),
    ]


def test_receipts_are_read_from_the_response() -> None:
    first = b'{"stream":"a","epoch":"e","offset":3}'
    known = b'{"stream":"a","epoch":"e","offset":1,"duplicate":true}'
    response = b'{"publications":[%b,%b,{"stream":"b"}]}' % (first, known)
    assert decode_receipts(201, response) == [Receipt("a", "e", 3), Receipt("a", "e", 1, True), Receipt("b", "", 0)]


def test_rejected_publication_has_its_reason_and_index(subtests: pytest.Subtests) -> None:
    for status in [409, 422]:
        with subtests.test(status=status):
            with pytest.raises(PublicationRefused, match="stream must be") as rejected:
                decode_receipts(status, b'{"error":"stream must be a non-empty string","index":4}')
            assert (rejected.value.reason, rejected.value.index) == ("stream must be a non-empty string", 4)


def test_status_selects_the_error_type(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, type[PublishError]]] = [
        (401, KeyRefused),
        (409, PublicationRefused),
        (413, PublicationRefused),
        (503, PublishUnavailable),
        (429, PublishUnavailable),
        (404, PublishError),
        (302, PublishError),
    ]
    for status, kind in cases:
        with subtests.test(status=status):
            with pytest.raises(PublishError) as rejected:
                decode_receipts(status, b"<html>")
            assert type(rejected.value) is kind
            assert str(status) in str(rejected.value)


def test_missing_path_is_reported_with_a_hint(subtests: pytest.Subtests) -> None:
    for response in [b'{"error":"no such path"}', b"404: Not Found"]:
        hint = "was it started with a --secret or a key for publishing"
        with subtests.test(response=response), pytest.raises(PublishError, match=hint):
            decode_receipts(404, response)


def test_malformed_response_is_an_error() -> None:
    with pytest.raises(PublishError, match="cannot be read"):
        decode_receipts(201, b"OK")
