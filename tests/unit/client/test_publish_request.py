"""The publish request and its answer, without a server."""

import pytest
from msgspec import Raw

from ropewalk.client.errors import KeyRefused, PublicationRefused, PublishError, PublishUnavailable
from ropewalk.client.publish_request import Draft, body, receipts
from ropewalk.model.messages import Publication, Receipt
from ropewalk.protocol.publications import PublicationLimits, decode


def test_the_server_reads_what_was_meant() -> None:
    drafts = [
        Draft("a", {"text": "hi"}, uid="u1"),
        Draft("b", "plain text"),
        Draft("c", Raw(b'{"price":1.10}')),
        Draft("d", [1], transient=True, exclude_socket="sid", broadcast_type="note"),
        Draft("e", 1, partition_key="k"),
    ]
    assert decode(body(drafts), PublicationLimits()) == [
        Publication("a", b'{"text":"hi"}', uid="u1"),
        Publication("b", b'"plain text"'),
        Publication("c", b'{"price":1.10}'),
        Publication("d", b"[1]", "sid", "note", True),
        Publication("e", b"1", partition_key="k"),
    ]


def test_positions_are_read_from_the_answer() -> None:
    first = b'{"stream":"a","epoch":"e","offset":3}'
    known = b'{"stream":"a","epoch":"e","offset":1,"duplicate":true}'
    answer = b'{"publications":[%b,%b,{"stream":"b"}]}' % (first, known)
    assert receipts(201, answer) == [Receipt("a", "e", 3), Receipt("a", "e", 1, True), Receipt("b", "", 0)]


@pytest.mark.parametrize("status", [409, 422])
def test_a_refused_publication_names_its_reason_and_its_place(status: int) -> None:
    with pytest.raises(PublicationRefused, match="stream must be") as refused:
        receipts(status, b'{"error":"stream must be a non-empty string","index":4}')
    assert (refused.value.reason, refused.value.index) == ("stream must be a non-empty string", 4)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, KeyRefused),
        (409, PublicationRefused),
        (413, PublicationRefused),
        (503, PublishUnavailable),
        (429, PublishUnavailable),
        (404, PublishError),
        (302, PublishError),
    ],
)
def test_each_refusal_has_its_type(status: int, kind: type[PublishError]) -> None:
    with pytest.raises(PublishError) as refused:
        receipts(status, b"<html>")
    assert type(refused.value) is kind
    assert str(status) in str(refused.value)


@pytest.mark.parametrize("answer", [b'{"error":"no such path"}', b"404: Not Found"])
def test_a_server_without_the_path_is_asked_about(answer: bytes) -> None:
    with pytest.raises(PublishError, match="was it started with a --secret or a key for publishing"):
        receipts(404, answer)


def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(PublishError, match="cannot be read"):
        receipts(201, b"OK")
