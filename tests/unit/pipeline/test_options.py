"""Options of source and sink, and their errors."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Boundary, Delivery, sink_options, source_options

URL = {"url": "http://127.0.0.1:8080/"}


def test_stream_starts_at_latest_and_batch_at_earliest() -> None:
    assert source_options(URL, streaming=True).start == Boundary("latest")
    assert source_options(URL, streaming=False).start == Boundary("earliest")


def test_option_names_are_case_insensitive() -> None:
    options = source_options({**URL, "maxoffsetspertrigger": "10", "FAILONDATALOSS": "False"}, streaming=True)

    assert (options.batch_limits.max_rows, options.fail_on_data_loss) == (10, False)
    assert options.address.url == "http://127.0.0.1:8080"


def test_list_of_streams_can_be_json() -> None:
    assert source_options({**URL, "subscribe": '["a,b", "c"]'}, streaming=True).selection.streams == ("a,b", "c")


def test_invalid_option_is_named(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTriger": "5"}, "maxOffsetsPerTrigger"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"startingOffsets": "newest"}, "startingOffsets"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"subscribePattern": "(?!secret).*"}, "subscribePattern"),
        ({"provider": "ropewalk"}, "CREATE TEMPORARY VIEW"),
        ({"assign": "0,x"}, "assign"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"tiered": "true"}, "archive"),
        ({"archive": "s3a://bucket/archive"}, "like /mnt/archive, not 's3a://bucket/archive'"),
        ({"archive": "/nowhere/archive"}, "the option archive: directory /nowhere/archive does not exist"),
        ({"url": "127.0.0.1"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://127.0.0.1:port"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://a b"}, "url"),
        ({"url": "http://127.0.0.1/?x=1"}, "url"),
    ]
    for given, named in cases:
        with subtests.test(given=given), pytest.raises(UserMistake, match=named):
            source_options({**URL, **given}, streaming=True)


def test_archive_may_be_an_empty_directory(tmp_path: Path) -> None:
    assert source_options({**URL, "archive": f"file://{tmp_path}"}, streaming=True).archive == str(tmp_path)
    assert source_options({**URL, "archive": str(tmp_path), "tiered": "false"}, streaming=True).archive == ""


def test_sink_is_transactional_by_default() -> None:
    assert sink_options(URL).delivery is Delivery.TRANSACTIONAL
    assert sink_options({**URL, "delivery": "keyed"}).delivery is Delivery.KEYED


def test_txn_version_without_an_app_id_is_rejected() -> None:
    with pytest.raises(UserMistake, match="txnAppId"):
        sink_options({**URL, "txnVersion": "3"})
