"""Roles of processes: how a child receives its role, and the settings of each kind of process."""

import os
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from ropewalk.app.embedded_nats import client_url
from ropewalk.app.process_role import ALONE, VARIABLE, ProcessKind, Role, own_settings, taken_from, written
from ropewalk.app.reload import needs_full_restart
from ropewalk.app.settings import Settings, load, require_startable

STORE = Role(ProcessKind.STORE, directory="/private", supervisor=1, nats_address="nats://token@127.0.0.1:5000")
WORKER = Role(ProcessKind.WORKER, 2, 4, "/private", "0.0.0.0", 8080, nats_address="nats://token@127.0.0.1:5000")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def settings(*argv: str) -> Settings:
    loaded = load(["--public", "--config_path=", *argv], {})
    require_startable(loaded)
    return loaded


def test_process_without_the_variable_is_alone() -> None:
    assert taken_from({}) == ALONE
    assert ALONE.name == ""


def test_role_is_read_once_and_its_descriptors_are_not_inherited_further(pipe: tuple[int, int]) -> None:
    role = msgspec.structs.replace(WORKER, control=pipe[0], others=pipe[1])
    for end in pipe:
        os.set_inheritable(end, True)
    environ = {"PATH": "/bin", **written(role)}

    assert taken_from(environ) == role
    assert environ == {"PATH": "/bin"}
    assert not any(map(os.get_inheritable, pipe))
    assert taken_from(environ) == ALONE


def test_variable_is_not_a_setting() -> None:
    assert load(["--config_path="], {VARIABLE: "x"}) == load(["--config_path="], {})


def test_role_names_are_distinct() -> None:
    assert (STORE.name, WORKER.name) == ("store", "worker 2")


def test_process_alone_uses_all_settings() -> None:
    whole = settings("--data_dir", "d", "--takeover")
    assert own_settings(ALONE, whole) is whole


def test_store_listens_on_its_private_socket_only() -> None:
    whole = settings("--port", "80", "--ssl_cert", "a", "--ssl_key", "b", "--data_dir", "d", "--shutdown_delay", "9")
    own = own_settings(STORE, whole)
    assert own.server.host == "unix:/private/store.sock"
    assert own.operations.shutdown_delay == 0.0
    assert own.journal == whole.journal
    require_startable(own)


def test_worker_has_no_journal_archive_or_exclusive_reader() -> None:
    whole = settings("--port", "0", "--data_dir", "d", "--archive_dir", "a", "--takeover", "--broadcast_adapter", "http,redisx")
    own = own_settings(WORKER, whole)
    assert (own.server.host, own.server.port, own.server.takeover) == ("0.0.0.0", 8080, False)
    assert (own.journal.data_dir, own.archive.archive_dir, own.broadcast.broadcast_adapter) == ("", "", ("http",))
    require_startable(own)


def test_workers_subscribe_to_fan_out_and_the_store_reads_queues() -> None:
    whole = settings("--broadcast_adapter", "http,redisx,redis,nats")
    assert own_settings(STORE, whole).broadcast.broadcast_adapter == ("http", "redisx")
    assert own_settings(WORKER, whole).broadcast.broadcast_adapter == ("http", "redis", "nats")


def test_workers_connect_to_the_embedded_nats_server_of_the_store(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("nats://token@127.0.0.1:5000", "nats://token@127.0.0.1:5000"),
        ("nats://user:pass@0.0.0.0:5000", "nats://user:pass@127.0.0.1:5000"),
        ("nats://token@[::]:5000", "nats://token@[::1]:5000"),
    ]
    whole = settings("--broker", "nats", "--embed_nats", "--enats_addr", "nats://127.0.0.1:0")
    for address, reached in cases:
        with subtests.test(address=address):
            worker, store = (replace(role, nats_address=address) for role in (WORKER, STORE))
            own, stores = own_settings(worker, whole), own_settings(store, whole)
            assert (own.enats.embed_nats, own.nats.nats_servers) == (False, (reached,))
            assert stores.enats.enats_addr == address
            assert client_url(stores) == address
            assert stores.enats.enats_store_dir == "/private/nats"  # outlives the process
            require_startable(own)
            require_startable(stores)


def test_embedded_nats_keeps_a_configured_store_directory() -> None:
    flags = ("--broker", "nats", "--embed_nats", "--data_dir", "d")
    assert own_settings(STORE, settings(*flags)).enats.enats_store_dir == ""
    assert own_settings(STORE, settings(*flags, "--enats_store_dir", "e")).enats.enats_store_dir == "e"


def test_settings_shared_with_the_store_need_a_full_restart() -> None:
    old = settings("--workers", "2", "--max_message_size", "1000")
    assert needs_full_restart(old, settings("--workers", "3", "--max_message_size", "2000", "--history_limit", "7")) == []
    other = settings("--workers", "2", "--broker", "redis", "--port", "1", "--data_dir", "d")
    assert set(needs_full_restart(old, other)) == {"broker", "port", "data_dir"}


def test_ring_secret_needs_a_full_restart() -> None:
    ring = ("--ring", "a=h:1,b=h:2", "--ring_node", "a")
    assert needs_full_restart(settings("--secret", "s"), settings("--secret", "t")) == []
    assert needs_full_restart(settings("--secret", "s", *ring), settings("--secret", "t", *ring)) == ["secret"]


def test_ring_key_needs_a_full_restart_and_the_secret_beside_it_does_not() -> None:
    ring = ("--ring", "a=h:1,b=h:2", "--ring_node", "a")
    one, other = (*ring, "--ring_key", "k" * 16), (*ring, "--ring_key", "l" * 16)
    assert needs_full_restart(settings("--secret", "s", *one), settings("--secret", "t", *one)) == []
    assert needs_full_restart(settings("--secret", "s", *one), settings("--secret", "s", *other)) == ["ring_key"]


def test_secret_of_an_embedded_nats_cluster_needs_a_full_restart() -> None:
    """A node that starts later could not reach the NATS servers of the others."""
    cluster = ("--embed_nats", "--broker", "nats", "--enats_cluster", "nats://127.0.0.1:6222")
    assert needs_full_restart(settings("--secret", "s", *cluster), settings("--secret", "t", *cluster)) == ["secret"]
    own = (*cluster[:-1], "nats://user:password@127.0.0.1:6222")
    assert needs_full_restart(settings("--secret", "s", *own), settings("--secret", "t", *own)) == []
