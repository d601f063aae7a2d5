"""Commands and clients that are led to a port on which no TLS is spoken, or on which nobody is: they say what to write."""

from collections.abc import Iterator

import pytest

from ropewalk.client import Draft, Publisher, PublishUnavailable, TlsFailed, Unreachable, connect
from ropewalk.client.direct import Direct
from tests.scenarios.command_line import run_ropewalk
from tests.server import RunningServer, running_server
from tests.services import free_port

COMMANDS = (("tail", "a"), ("publish", "a", "1"), ("bench", "--subscribers", "1"), ("ring",), ("health",))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public") as server:
        yield server


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_that_begins_tls_where_none_is_spoken_says_what_to_write(
    words: tuple[str, ...], server: RunningServer
) -> None:
    result = run_ropewalk(*words, "--url", f"https://127.0.0.1:{server.port}")
    assert result.returncode == 2, result.stderr
    assert "does not speak TLS as it should" in result.stderr
    assert "write http:// or ws:// in the place of https:// or wss://" in result.stderr
    assert "is the server running there?" not in result.stderr


async def test_a_client_that_begins_tls_where_none_is_spoken_says_what_to_write(server: RunningServer) -> None:
    url = f"https://127.0.0.1:{server.port}"
    with pytest.raises(TlsFailed, match="write http:// or ws://"):
        async with connect(url):
            pass
    async with Publisher(url) as publisher:
        with pytest.raises(TlsFailed, match="write http:// or ws://"):
            await publisher.publish("a", 1)


def test_a_blocking_publisher_says_it_too(server: RunningServer) -> None:
    with pytest.raises(TlsFailed, match="write http:// or ws://"):
        Direct(f"https://127.0.0.1:{server.port}", "", 10.0, "").publish_batch([Draft("a", 1)])


async def test_what_is_said_of_a_server_that_is_not_there_has_no_word_of_tls() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable) as client:
        async with connect(url):
            pass
    async with Publisher(url, attempts=1) as publisher:
        with pytest.raises(PublishUnavailable) as sent:
            await publisher.publish("a", 1)
    for told in (str(client.value), str(sent.value)):
        assert "cannot be reached: Connect call failed" in told
        assert "ssl" not in told
