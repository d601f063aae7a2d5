"""`ropewalk.publish` and `apublish` against the real server: from threads, from loops, after a fork, and without an answer."""

import asyncio
import os
import subprocess
import sys
from asyncio import to_thread
from concurrent.futures import ThreadPoolExecutor

import pytest

from ropewalk import apublish, apublish_batch, configure, publish, publish_batch
from ropewalk.client import Draft, KeyRefused, PublicationRefused, PublishUnavailable, Receipt, direct
from tests.cable import cable
from tests.certificates import CERTIFICATE
from tests.clients.credentials import SECRET
from tests.scenarios.command_line import ENVIRON, SECONDS
from tests.scenarios.python_clients import API_KEY
from tests.scenarios.relay import Relay
from tests.server import RunningServer, clean_environ, running_server


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_configured", None)
    for name in os.environ.keys() - clean_environ().keys():
        monkeypatch.delenv(name)


@pytest.fixture
def relay(relay: Relay) -> Relay:
    configure(url=relay.url)
    return relay


def run_script(script: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, *flags, "-c", script]
    return subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, env={**ENVIRON, **variables})


# --- calls -------------------------------------------------------------------------------------------------


async def test_publication_returns_its_position_and_reaches_subscribers(server: RunningServer) -> None:
    configure(url=server.url)
    async with cable(server) as client:
        await client.subscribe("call/both")
        first = await to_thread(publish, "call/both", {"n": 1})
        second = await apublish("call/both", {"n": 2})
        assert (first.stream, first.offset, second.epoch, second.offset) == ("call/both", 1, first.epoch, 2)
        assert await client.messages(2) == [{"n": 1}, {"n": 2}]


async def test_every_option_of_a_call_reaches_the_server(server: RunningServer) -> None:
    configure(url=server.url)
    async with cable(server) as client, cable(server) as other:
        for subscriber in (client, other):
            await subscriber.subscribe("call/options")
        await to_thread(publish, "call/options", "not to you", exclude_socket=other.sid)
        assert await to_thread(publish, "call/options", "passing", transient=True) == Receipt("call/options", "", 0)
        await apublish("call/options", "sorted", type="note")
        assert await client.messages(2) == ["not to you", "passing"]
        assert await other.messages(1) == ["passing"]
        assert (await other.expect("note"))["message"] == "sorted"


def test_repeated_uid_gets_the_first_position(server: RunningServer) -> None:
    configure(url=server.url)
    first = publish("call/uid", 1, uid="order-7")
    assert asyncio.run(apublish("call/uid", 1, uid="order-7")) == Receipt("call/uid", first.epoch, first.offset, True)


def test_batch_is_registered_in_order_or_not_at_all(server: RunningServer) -> None:
    configure(url=server.url)
    with pytest.raises(PublicationRefused) as refused:
        publish_batch([Draft("call/batch", 1), Draft("", 2)])
    assert refused.value.index == 1
    assert [receipt.offset for receipt in publish_batch([Draft("call/batch", n) for n in range(3)])] == [1, 2, 3]
    assert [receipt.offset for receipt in asyncio.run(apublish_batch([Draft("call/batch", 3)]))] == [4]
    with pytest.raises(PublicationRefused, match=r"publication 2 was refused: .*partition key") as refused:
        publish_batch([Draft("call/new", 1), Draft("call/new", 2), Draft("call/batch", 3, partition_key="other")])
    assert refused.value.index == 2


# --- address and key -------------------------------------------------------------------------------------


def test_address_and_key_are_taken_from_the_environment(keyed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_URL", keyed.url)
    monkeypatch.setenv("ROPEWALK_SECRET", SECRET)
    assert publish("call/environment", 1).offset == 1
    assert asyncio.run(apublish("call/environment", 2)).offset == 2


def test_configure_overrides_the_environment(keyed: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ROPEWALK_SECRET", "another")
    configure(url=keyed.url, key=API_KEY)
    assert publish("call/configured", 1).offset == 1


def test_wrong_key_is_refused_and_a_missing_one_is_explained(keyed: RunningServer) -> None:
    configure(url=keyed.url, key="guess")
    with pytest.raises(KeyRefused) as refused:
        publish("call/refused", 1)
    assert "ROPEWALK_SECRET" not in str(refused.value)
    configure(url=keyed.url)
    with pytest.raises(KeyRefused, match="set ROPEWALK_SECRET"):
        publish("call/refused", 1)
    with pytest.raises(KeyRefused, match="set ROPEWALK_SECRET"):
        asyncio.run(apublish("call/refused", 1))


def test_certificate_is_verified(tls_server: RunningServer) -> None:
    script = """
import asyncio, ropewalk
print(ropewalk.publish("call/tls", 1).offset, ropewalk.publish("call/tls", 2).offset)
print(asyncio.run(ropewalk.apublish("call/tls", 3)).offset)
"""
    trusting = run_script(script, ROPEWALK_URL=tls_server.url, SSL_CERT_FILE=CERTIFICATE)
    assert (trusting.stdout, trusting.stderr) == ("1 2\n3\n", "")
    named = run_script(script, ROPEWALK_URL=tls_server.url, ROPEWALK_CA_FILE=CERTIFICATE)
    assert (named.stdout, named.stderr) == ("4 5\n6\n", "")
    wary = run_script(script, ROPEWALK_URL=tls_server.url)
    assert wary.returncode == 1
    assert "certificate verify failed" in wary.stderr


# --- connections ------------------------------------------------------------------------------------------------------


async def test_sequential_calls_share_a_connection(relay: Relay) -> None:
    for _ in range(3):
        await to_thread(publish, "call/kept", 1)
    assert relay.accepted == 1
    for _ in range(3):
        await apublish("call/kept", 1)
    assert relay.accepted == 2


async def test_threads_publish_concurrently_on_separate_connections(relay: Relay) -> None:
    def publish_some(thread: int) -> list[int]:
        return [publish("call/threads", [thread, n]).offset for n in range(20)]

    with ThreadPoolExecutor(8) as threads:
        loop = asyncio.get_running_loop()
        offsets = await asyncio.gather(*(loop.run_in_executor(threads, publish_some, thread) for thread in range(8)))
    assert sorted(offset for some in offsets for offset in some) == list(range(1, 161))
    assert all(some == sorted(some) for some in offsets)
    assert relay.accepted <= 8


async def test_calls_succeed_after_a_restart_even_if_they_are_transient() -> None:
    with running_server("--public") as first_life:
        configure(url=first_life.url)
        await apublish("call/restart", 1)
        await to_thread(publish, "call/restart", 2)
        assert await to_thread(first_life.stop) == 0
        with running_server("--public", "--port", str(first_life.port)):
            await to_thread(publish, "call/restart", 3, transient=True)
            await apublish("call/restart", 4, transient=True)


async def test_parent_and_child_of_a_fork_have_separate_connections(relay: Relay) -> None:
    script = """
import os, ropewalk
ropewalk.publish("call/fork", "before")
child = os.fork()
stream = f"call/fork/{os.getpid()}"
receipts = [ropewalk.publish(stream, n) for n in range(200)]
assert [(receipt.stream, receipt.offset) for receipt in receipts] == [(stream, n) for n in range(1, 201)]
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    result = await to_thread(run_script, script, ROPEWALK_URL=relay.url)
    assert (result.returncode, result.stderr) == (0, "")
    assert relay.accepted == 2


def test_program_exits_without_resource_warnings(server: RunningServer) -> None:
    script = """
import asyncio, ropewalk
async def main():
    await asyncio.gather(*(ropewalk.apublish("call/quiet", n) for n in range(3)))
ropewalk.publish("call/quiet", 1)
asyncio.run(main())
asyncio.run(main())
ropewalk.publish("call/quiet", 2)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.run_until_complete(ropewalk.aclose())
loop.close()
"""
    result = run_script(script, "-X", "dev", "-W", "error::ResourceWarning", ROPEWALK_URL=server.url)
    assert (result.returncode, result.stderr) == (0, "")


# --- missing answers ------------------------------------------------------------------------------------------


async def test_publication_whose_answer_is_lost_is_registered_once(relay: Relay) -> None:
    relay.answers_lost = 1
    first = await to_thread(publish, "call/once", 1)
    assert (first.offset, first.duplicate) == (1, True)
    relay.answers_lost = 1
    second = await apublish("call/once", 2)
    assert (second.offset, second.duplicate) == (2, True)


async def test_transient_publication_is_not_sent_twice(relay: Relay) -> None:
    relay.answers_lost = 1
    with pytest.raises(PublishUnavailable):
        await to_thread(publish, "call/transient", 1, transient=True)
    assert relay.accepted == 1


async def test_missing_answer_is_reported_after_the_timeout(relay: Relay) -> None:
    configure(url=relay.url, timeout=0.2)
    relay.freeze()
    with pytest.raises(PublishUnavailable, match="gave no answer"):
        await to_thread(publish, "call/frozen", 1)
    with pytest.raises(PublishUnavailable, match="gave no answer"):
        await apublish("call/frozen", 1)


async def test_unreachable_server_is_unavailable() -> None:
    configure(url="http://127.0.0.1:1", timeout=0.2)
    with pytest.raises(PublishUnavailable, match="cannot be reached"):
        await to_thread(publish, "call/away", 1)
    with pytest.raises(PublishUnavailable, match="cannot be reached"):
        await apublish("call/away", 1)
