"""Addresses of the embedded nats-server: credentials, and addresses that would let in anyone."""

import re
import socket

import pytest

from ropewalk.app.nats_addresses import parse, private
from ropewalk.app.settings import load, require_startable
from ropewalk.model.errors import UserMistake

EMBEDDED = ("--public", "--broker=nats", "--embed_nats")


@pytest.mark.parametrize(
    ("address", "section"),
    [
        ("nats://127.0.0.1:4222", {}),
        ("nats://tok%2Fen@127.0.0.1", {"authorization": {"token": "tok/en"}}),
        ("me:pass%3Aword@127.0.0.1", {"authorization": {"user": "me", "password": "pass:word"}}),
    ],
)
def test_credentials_of_an_address_become_the_authorization_of_the_server(address: str, section: object) -> None:
    assert parse("enats_addr", address, 4222).authorization() == section


def test_address_without_credentials_or_port_gets_random_ones() -> None:
    first, second = (private(parse("enats_addr", "nats://127.0.0.1:0", 4222)) for _ in range(2))
    assert first.is_token
    assert len(first.credentials) >= 32
    assert first.credentials != second.credentials
    assert first.port > 0
    assert parse("enats_addr", first.url, 4222) == first
    assert private(first) == first


def test_random_port_is_reserved_for_the_server() -> None:
    """Two nodes that started together chose the same port once."""
    port = private(parse("enats_addr", "nats://127.0.0.1:0", 4222)).port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server does
        server.bind(("127.0.0.1", port))
        server.listen()


def test_address_on_every_interface_is_reached_on_loopback() -> None:
    assert parse("enats_addr", "nats://t@0.0.0.0:1", 4222).near.url == "nats://t@127.0.0.1:1"
    assert parse("enats_addr", "nats://t@[::]:1", 4222).near.url == "nats://t@[::1]:1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--enats_addr=nats://0.0.0.0"], "--enats_addr without credentials would let in everyone who reaches 0.0.0.0"),
        (["--enats_addr=nats://10.0.0.1:4222"], "put user:password@ or a token and @ before the host"),
        (["--enats_addr=nats://nats.internal"], "--enats_addr without credentials"),
        (["--enats_addr=nats://hush:@127.0.0.1"], "--enats_addr wants user:password@ or a token and @ before the host"),
        (["--enats_addr=nats://:hush@127.0.0.1"], "--enats_addr wants user:password@"),
        (["--enats_addr=nats://me:hu/hush@127.0.0.1"], "--enats_addr wants an address such as nats://127.0.0.1:4222"),
        (["--enats_addr=nats://me:hush@"], "--enats_addr wants an address"),
        (["--enats_cluster=nats://127.0.0.1:6222"], "--enats_cluster without credentials would let in everyone"),
        (["--enats_cluster=nats://127.0.0.1:6222", "--secret=none"], "set --secret, the same at all nodes"),
        (["--enats_cluster=nats://hush@127.0.0.1:6222", "--secret=s"], "between nats-servers NATS takes no token"),
        (
            ["--enats_cluster=nats://127.0.0.1", "--secret=s", "--enats_cluster_routes=nats://me:hush@"],
            "--enats_cluster_routes",
        ),
    ],
)
def test_address_that_would_let_in_anyone_is_refused_without_showing_it(flags: list[str], message: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(message)) as refused:
        require_startable(load([*EMBEDDED, *flags], {}))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        ["--enats_addr=nats://127.0.0.1:0"],
        ["--enats_addr=[::1]:0"],
        ["--enats_addr=nats://token@10.0.0.1"],
        ["--enats_cluster=nats://10.0.0.1", "--secret=s"],
        ["--enats_cluster=nats://me:pw@10.0.0.1"],
    ],
)
def test_guarded_address_can_start(flags: list[str]) -> None:
    require_startable(load([*EMBEDDED, *flags], {}))
