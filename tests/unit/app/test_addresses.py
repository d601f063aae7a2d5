"""The addresses that a server logs as its own."""

import socket
from collections.abc import Iterator

import pytest

from ropewalk.adapters.endpoints.sockets import Listening
from ropewalk.app.addresses import listening_urls
from ropewalk.app.settings.sections import ServerSettings


@pytest.fixture
def listening() -> Iterator[Listening]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Listening(sock)


def test_second_port_is_listed_after_the_first(listening: Listening, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str, str]] = [
        ("127.0.0.1", "", "http", "tcp://127.0.0.1:9000"),
        ("::", "", "http", "tcp://[::]:9000"),
        ("127.0.0.1", "cert.pem", "https", "tls://127.0.0.1:9000"),
    ]
    for host, cert, http, tcp in cases:
        with subtests.test(host=host, cert=cert):
            server = ServerSettings(host=host, ssl_cert=cert, tcp_port=9000)
            first = f"{http}://127.0.0.1:{listening.sock.getsockname()[1]}"
            assert listening_urls(server, [listening]) == [first, tcp]


def test_only_the_first_port_is_listed_without_a_second_one(listening: Listening) -> None:
    assert len(listening_urls(ServerSettings(), [listening])) == 1
