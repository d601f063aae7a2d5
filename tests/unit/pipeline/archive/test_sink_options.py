"""Options of the format ropewalk_archive, and their errors."""

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive.sink import archive_options


def test_server_is_optional() -> None:
    assert archive_options({"path": "/archive"}).server is None
    server = archive_options({"path": "/archive", "url": "https://host:1/", "token": "t", "caFile": "ca.pem"}).server
    assert server is not None
    assert (server.url, server.token, server.ca, server.retries) == ("https://host:1", "t", "ca.pem", 0)


def test_invalid_option_is_rejected(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"url": "nonsense"}, "not 'nonsense'"),
        ({"path": ""}, "needs the option path"),
        ({"ulr": "x"}, "no option 'ulr'"),
    ]
    for given, message in cases:
        with subtests.test(given=given), pytest.raises(UserMistake, match=message):
            archive_options({"path": "/archive", **given})
