"""Listening sockets: bound, inherited, and taken over."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.adapters.endpoints.sockets import Listening, bound_sockets, inherited_sockets, listening_urls, reserved_sockets
from ropewalk.model.errors import UserMistake
from tests.services import free_port


@pytest.fixture
def listening() -> Iterator[Listening]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Listening(sock)


def test_second_port_is_listed_after_the_first(listening: Listening, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, bool, str, str]] = [
        ("127.0.0.1", False, "http", "tcp://127.0.0.1:9000"),
        ("::", False, "http", "tcp://[::]:9000"),
        ("127.0.0.1", True, "https", "tls://127.0.0.1:9000"),
    ]
    for host, tls, http, tcp in cases:
        with subtests.test(host=host, tls=tls):
            first = f"{http}://127.0.0.1:{listening.sock.getsockname()[1]}"
            assert listening_urls([listening], tls, host, 9000) == [first, tcp]


def test_only_the_first_port_is_listed_without_a_second_one(listening: Listening) -> None:
    assert len(listening_urls([listening], False, "127.0.0.1", 0)) == 1


def test_port_in_use_is_refused_unless_both_share_it() -> None:
    port = free_port()
    [first] = bound_sockets("127.0.0.1", port, reuse_port=False)
    for reuse_port in (False, True):
        with pytest.raises(UserMistake, match=f"127.0.0.1:{port}"):
            bound_sockets("127.0.0.1", port, reuse_port)
    first.close()
    [first] = bound_sockets("127.0.0.1", port, reuse_port=True)
    [second] = bound_sockets("127.0.0.1", port, reuse_port=True)
    first.close()
    second.close()


def test_reserved_port_can_be_bound_by_processes_that_share_it() -> None:
    [kept] = reserved_sockets("127.0.0.1", 0)
    port = kept.sock.getsockname()[1]
    assert not kept.listens
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    [first] = bound_sockets("127.0.0.1", port, reuse_port=True)
    assert first.listens
    with pytest.raises(UserMistake, match=f"127.0.0.1:{port}"):
        reserved_sockets("127.0.0.1", port)
    first.close()
    kept.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes share one socket")
def test_port_can_be_reserved_once() -> None:
    port = free_port()
    [kept] = reserved_sockets("127.0.0.1", port)
    with pytest.raises(UserMistake, match=f"127.0.0.1:{port}: another server with workers"):
        reserved_sockets("127.0.0.1", port)
    kept.close()
    [again] = reserved_sockets("127.0.0.1", port)
    again.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes share one socket")
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_name_that_another_process_has_bound_does_not_keep_a_port_from_being_reserved(kind: socket.SocketKind) -> None:
    port = free_port()
    with socket.socket(socket.AF_UNIX, kind) as squatter:
        squatter.bind(f"\0ropewalk 127.0.0.1 {port}")
        [kept] = reserved_sockets("127.0.0.1", port)
        kept.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes share one socket")
def test_port_stays_reserved_however_often_it_is_asked_for() -> None:
    port = free_port()
    [kept] = reserved_sockets("127.0.0.1", port)
    for _ in range(200):  # more than wait in the queue of a socket
        with pytest.raises(UserMistake, match="another server with workers"):
            reserved_sockets("127.0.0.1", port)
        kept.drain_claim()
    kept.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes share one socket")
def test_port_claimed_by_another_user_can_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux keeps other users from sharing the port itself."""
    port = free_port()
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(f"\0ropewalk 127.0.0.1 {port}")
        squatter.listen()
        with pytest.raises(UserMistake, match="another server with workers"):
            reserved_sockets("127.0.0.1", port)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        [kept] = reserved_sockets("127.0.0.1", port)
        kept.close()


def test_connection_waits_until_it_is_accepted() -> None:
    [listening] = bound_sockets("127.0.0.1", 0, reuse_port=False)
    with socket.create_connection(listening.sock.getsockname()):
        accepted, _ = listening.sock.accept()
        accepted.close()
    listening.close()


def test_all_addresses_of_a_name_have_the_same_port() -> None:
    sockets = bound_sockets("localhost", 0, reuse_port=False)
    assert len({listening.sock.getsockname()[1] for listening in sockets}) == 1
    for listening in sockets:
        listening.close()


def test_invalid_host_name_is_refused() -> None:
    with pytest.raises(UserMistake, match="cannot listen"):
        bound_sockets("no such host", 0, reuse_port=False)


def test_unix_socket_taken_over_is_not_removed_by_its_former_owner(tmp_path: Path) -> None:
    path = tmp_path / "s"
    [first] = bound_sockets(f"unix:{path}", 0, reuse_port=True)
    [second] = bound_sockets(f"unix:{path}", 0, reuse_port=True)
    first.close()
    assert path.is_socket()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert second.address("http") == f"unix:{path}"
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_not_a_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(UserMistake, match="not a socket"):
        bound_sockets(f"unix:{path}", 0, reuse_port=False)
    assert path.read_text() == "data"


def test_inherited_sockets_of_another_process_are_ignored(subtests: pytest.Subtests) -> None:
    for environ in [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}]:
        with subtests.test(environ=environ):
            environ = {**environ, "OTHER": "stays"}
            assert inherited_sockets(environ) == []
            assert environ == {"OTHER": "stays"}
