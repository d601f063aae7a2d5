"""Where a server says that it listens."""

import socket
from collections.abc import Iterator

import pytest

from ropewalk.adapters.endpoints.sockets import Listening
from ropewalk.app.addresses import addresses_of
from ropewalk.app.settings.sections import ServerSettings


@pytest.fixture
def listening() -> Iterator[Listening]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Listening(sock)


@pytest.mark.parametrize(
    ("host", "cert", "http", "tcp"),
    [
        ("127.0.0.1", "", "http", "tcp://127.0.0.1:9000"),
        ("::", "", "http", "tcp://[::]:9000"),
        ("127.0.0.1", "cert.pem", "https", "tls://127.0.0.1:9000"),
    ],
)
def test_the_second_port_comes_after_the_first(host: str, cert: str, http: str, tcp: str, listening: Listening) -> None:
    server = ServerSettings(host=host, ssl_cert=cert, tcp_port=9000)
    first = f"{http}://127.0.0.1:{listening.sock.getsockname()[1]}"
    assert addresses_of(server, [listening]) == [first, tcp]


def test_without_a_second_port_nothing_is_said_of_one(listening: Listening) -> None:
    assert len(addresses_of(ServerSettings(), [listening])) == 1
