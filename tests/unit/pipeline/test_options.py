"""Options are checked where they are given; a mistake names the option."""

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Delivery, Edge, sink_options, source_options

URL = {"url": "http://127.0.0.1:8080/"}


def test_a_stream_begins_with_what_comes_and_a_batch_with_what_there_is() -> None:
    assert source_options(URL, streaming=True).start == Edge("latest")
    assert source_options(URL, streaming=False).start == Edge("earliest")


def test_names_are_read_without_case_as_spark_hands_them_over() -> None:
    options = source_options({**URL, "maxoffsetspertrigger": "10", "FAILONDATALOSS": "False"}, streaming=True)

    assert (options.batch_limits.max_rows, options.fail_on_data_loss) == (10, False)
    assert options.address.url == "http://127.0.0.1:8080"


def test_a_list_of_streams_may_be_json_where_names_have_commas() -> None:
    assert source_options({**URL, "subscribe": '["a,b", "c"]'}, streaming=True).selection.streams == ("a,b", "c")


@pytest.mark.parametrize(
    ("given", "named"),
    [
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
        ({"url": "127.0.0.1"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://127.0.0.1:port"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://a b"}, "url"),
        ({"url": "http://127.0.0.1/?x=1"}, "url"),
    ],
)
def test_a_mistake_names_the_option(given: dict[str, str], named: str) -> None:
    with pytest.raises(UserMistake, match=named):
        source_options({**URL, **given}, streaming=True)


def test_a_sink_is_transactional_unless_told_otherwise() -> None:
    assert sink_options(URL).delivery is Delivery.TRANSACTIONAL
    assert sink_options({**URL, "delivery": "keyed"}).delivery is Delivery.KEYED


def test_a_version_without_a_name_is_a_mistake() -> None:
    with pytest.raises(UserMistake, match="txnAppId"):
        sink_options({**URL, "txnVersion": "3"})
