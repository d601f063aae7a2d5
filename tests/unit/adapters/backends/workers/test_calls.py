"""Calls of a store are declared once: the class that carries them out has each call of the ports, with the same arguments."""

import inspect
from typing import Any, cast

import msgspec
import pytest
from msgspec import Raw

from ropewalk.adapters.backends.memory.calls import Scope
from ropewalk.adapters.backends.workers.backend import WorkerPresence, WorkerSessions, WorkerStreams
from ropewalk.adapters.backends.workers.calls import declared, names_of
from ropewalk.adapters.backends.workers.link import StoreLink, remote
from ropewalk.adapters.backends.workers.store_calls import StoreCalls
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.ports import Leases, PresenceStore, SessionStore, StreamStore

LOCAL = {"take_abandoned"}
"""Asks the store in portions, by another call."""


class Sent:
    """A caller that records the calls."""

    server_ends = False

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    async def call(self, method: str, *arguments: object) -> Any:
        self.calls.append((method, *arguments))

    def note(self, method: str, *arguments: object) -> bool:
        return True


@pytest.mark.parametrize("port", [StreamStore, SessionStore, PresenceStore, Leases], ids=lambda port: str(port.__name__))
def test_every_call_of_a_port_is_declared_with_its_arguments(port: type) -> None:
    calls = declared(StoreCalls)
    for name, method in inspect.getmembers(port, inspect.iscoroutinefunction):
        if name not in LOCAL:
            assert name in calls
            assert list(inspect.signature(getattr(StoreCalls, name)).parameters) == list(inspect.signature(method).parameters)


async def test_methods_of_a_port_are_sent_as_calls_with_their_defaults() -> None:
    sent = Sent()
    await remote(WorkerStreams, sent).replay("a", Position("e", 1))
    sessions = remote(WorkerSessions, cast(StoreLink, sent))
    await sessions.take("old")
    await sessions.renew(5.0, {"sid"})
    await remote(WorkerPresence, sent).members("a", "", 10)
    assert sent.calls == [
        ("replay", "a", Position("e", 1)),
        ("take", "old", ""),
        ("renew", 5.0, {"sid"}),
        ("members", "a", "", 10),
    ]


def test_history_with_gaps_is_the_same_after_its_way_over_the_bus() -> None:
    message = Registered("a", b"1", 1.0, "e", 3)
    answer = Gap("a", GapReason.TRIMMED, "e", 3, 3, (), Replay("a", "e", 3, (message,)))
    call = declared(StoreCalls)["replay"]
    assert call.sent is not None
    assert call.result(Raw(msgspec.msgpack.encode(call.sent(answer)))) == answer


def test_calls_about_a_shard_name_their_streams_and_sids() -> None:
    calls = declared(StoreCalls)
    assert {name for name in calls if calls[name].scope is Scope.SHARD} == {
        *(
            "append",
            "join",
            "leave",
            "members",
            "page",
            "partition_key",
            "publish_runs",
            "replay",
            "save",
            "since",
            "tip",
            "write",
        )
    }
    assert names_of("a") == ("a",)
    assert list(names_of([Publication("a", b""), Publication("b", b"")])) == ["a", "b"]
