"""Options of the format ropewalk_archive: mistakes are told before a batch is written."""

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive.options import archive_options


def test_the_server_is_who_hears_of_the_archive_and_may_be_nobody() -> None:
    assert archive_options({"path": "/archive"}).server is None
    server = archive_options({"path": "/archive", "url": "https://host:1/", "token": "t", "caFile": "ca.pem"}).server
    assert server is not None
    assert (server.url, server.token, server.ca, server.retries) == ("https://host:1", "t", "ca.pem", 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"url": "nonsense"}, "not 'nonsense'"), ({"path": ""}, "needs the option path"), ({"ulr": "x"}, "no option 'ulr'")],
)
def test_a_mistake_is_told_before_a_batch_is_written(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserMistake, match=said):
        archive_options({"path": "/archive", **given})
