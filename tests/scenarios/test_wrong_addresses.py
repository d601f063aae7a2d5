"""Errors of commands and clients whose address is that of a port without TLS, or without a server."""

import pytest

from ropewalk.client import Draft, Publisher, PublishUnavailable, TlsFailed, Unreachable, connect
from ropewalk.client.direct import Direct
from tests.scenarios.command_line import run_ropewalk
from tests.server import RunningServer
from tests.services import free_port

COMMANDS = (("tail", "a"), ("publish", "a", "1"), ("bench", "--subscribers", "1"), ("ring",), ("health",))


def test_command_with_tls_to_a_port_without_names_the_right_scheme(server: RunningServer) -> None:
    for words in COMMANDS:
        result = run_ropewalk(*words, "--url", f"https://127.0.0.1:{server.port}")
        assert result.returncode == 2, (words, result.stderr)
        assert "does not speak TLS as it should" in result.stderr, words
        assert "write http:// or ws:// in the place of https:// or wss://" in result.stderr, words
        assert "is the server running there?" not in result.stderr, words


async def test_client_with_tls_to_a_port_without_names_the_right_scheme(server: RunningServer) -> None:
    url = f"https://127.0.0.1:{server.port}"
    with pytest.raises(TlsFailed, match="write http:// or ws://"):
        async with connect(url):
            pass
    async with Publisher(url) as publisher:
        with pytest.raises(TlsFailed, match="write http:// or ws://"):
            await publisher.publish("a", 1)


def test_blocking_publisher_with_tls_to_a_port_without_names_the_right_scheme(server: RunningServer) -> None:
    with pytest.raises(TlsFailed, match="write http:// or ws://"):
        Direct(f"https://127.0.0.1:{server.port}", "", 10.0, "").publish_batch([Draft("a", 1)])


async def test_error_of_a_missing_server_does_not_mention_tls() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable) as client:
        async with connect(url):
            pass
    async with Publisher(url, attempts=1) as publisher:
        with pytest.raises(PublishUnavailable) as sent:
            await publisher.publish("a", 1)
    for error in (str(client.value), str(sent.value)):
        assert "cannot be reached: Connect call failed" in error
        assert "ssl" not in error
