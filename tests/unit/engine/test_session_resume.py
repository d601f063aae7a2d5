"""Atomic resume: welcome first, live messages held until the history request is answered, gaps reported."""

import asyncio
import json

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position, RemoteDisconnect
from ropewalk.model.rules import StreamRule
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from tests.unit.engine.workbench import Client, Workbench, public, settle

PATIENT = Limits(ping_interval=0, resume_timeout=3600)
IMPATIENT = Limits(ping_interval=0, resume_timeout=0)


async def test_restored_session_is_welcomed_first_and_held_until_it_requests_history() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        (receipt,) = await bench.publish("s", "1")
        client.session.connection_lost()
        await bench.publish("s", "2")
        back = await bench.connect(client.sid)
        await bench.publish("s", "3")
        assert back.connection.replies() == [
            {"type": "welcome", "sid": back.sid, "restored": True, "restored_ids": [public("s")]}
        ]
        position = {"epoch": receipt.epoch, "offset": 1}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        await bench.publish("s", "4")
        assert back.seen() == ["welcome", 2, 3, "confirm_history", 4]


async def test_session_that_requests_no_history_in_time_gets_a_gap_and_goes_live() -> None:
    async with Workbench(IMPATIENT) as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        await bench.publish("s", "1")
        back = await bench.connect(client.sid)
        while "reject_history" not in back.seen():
            await settle()
        await bench.publish("s", "2")
        assert back.seen() == ["welcome", "reject_history", 2]
        assert back.connection.replies()[1]["reason"] == "unclaimed"


async def test_resume_timeout_does_not_apply_while_commands_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may wait for a slow store, with the history request of another stream queued behind it."""
    async with Workbench(IMPATIENT) as bench:
        client = await bench.subscribed("s")
        (receipt,) = await bench.publish("s", "1")
        client.session.connection_lost()
        await bench.publish("s", "2")
        answering, tip = asyncio.Event(), bench.backend.streams.tip

        async def slow(stream: str) -> Position:
            if stream == "slow":
                await answering.wait()
            return await tip(stream)

        monkeypatch.setattr(bench.backend.streams, "tip", slow)
        back = bench.open_connection(client.sid)
        position = {"epoch": receipt.epoch, "offset": 1}
        claim = {"command": "history", "identifier": public("s"), "history": {"streams": {"s": position}}}
        for command in ({"command": "subscribe", "identifier": public("slow")}, claim):
            back.session.receive(json.dumps(command).encode())
        await settle()
        answering.set()
        await settle()
        assert back.seen() == ["welcome", "confirm_subscription", 2, "confirm_history"]


async def unclaimed(bench: Workbench, back: Client) -> None:
    """Let the resume timeout expire."""
    for subscription in back.session.subscriptions.values():
        await bench.node.joiner.abandon(back.session.link, subscription)


async def test_messages_held_since_the_restore_are_delivered_before_the_gap() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        (receipt,) = await bench.publish("s", "1")
        client.session.connection_lost()
        await bench.publish("s", "2", "3")
        back = await bench.connect(client.sid)
        await bench.publish("s", "4")
        await bench.publish("s", "5", exclude_socket=client.sid)
        await bench.publish("s", "6")
        await unclaimed(bench, back)
        await bench.publish("s", "7")
        assert back.seen() == ["welcome", 4, 6, "reject_history", 7]
        gap = {"reason": "unclaimed", "epoch": receipt.epoch, "oldest": 1, "tip": 6}
        assert back.connection.replies()[3]["streams"] == {"s": gap}
        # Missed messages can still be requested, and none is sent twice.
        position = {"epoch": receipt.epoch, "offset": 1}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert back.seen()[5:] == [2, 3, "confirm_history"]


async def test_oldest_offset_of_an_unclaimed_history_is_the_first_one_kept() -> None:
    async with Workbench(PATIENT, [StreamRule("s", history_limit=3)]) as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        await bench.publish("s", *"12345")
        back = await bench.connect(client.sid)
        await unclaimed(bench, back)
        assert (back.connection.replies()[-1]["streams"]["s"]["oldest"], back.seen()) == (3, ["welcome", "reject_history"])


async def test_stream_that_began_while_held_is_delivered_from_its_first_message() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        (receipt,) = await bench.publish("s", "1")
        await unclaimed(bench, back)
        assert back.seen() == ["welcome", 1, "reject_history"]
        gap = {"reason": "unclaimed", "epoch": receipt.epoch, "oldest": 1, "tip": 1}
        assert back.connection.replies()[-1]["streams"] == {"s": gap}


async def test_messages_above_the_limit_are_not_held() -> None:
    async with Workbench(Limits(ping_interval=0, resume_timeout=3600, max_pending=100)) as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        (receipt, *_) = await bench.publish("s", *['"0123456789"'] * 20)
        await unclaimed(bench, back)
        await bench.publish("s", "21")
        assert back.seen() == ["welcome", "reject_history", 21]
        position = {"epoch": receipt.epoch, "offset": 18}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert back.seen()[3:] == [19, 20, "confirm_history"]


def held(bench: Workbench) -> list[str]:
    return [audience.stream for audience in bench.node.hub.audiences.values() if audience.buffers]


@pytest.mark.parametrize("end", ["history", "unsubscribe", "lost", "unclaimed"])
async def test_hold_ends_on_history_unsubscribe_loss_or_timeout(end: str) -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        assert held(bench) == ["s"]
        match end:
            case "lost":
                back.session.connection_lost()
            case "unclaimed":
                await unclaimed(bench, back)
            case _:
                await back.send(command=end, identifier=public("s"), history={"since": 1})
        assert not held(bench)


async def test_sid_can_be_restored_once() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        await bench.connect(client.sid)
        again = await bench.connect(client.sid)
        assert "restored" not in again.connection.replies()[0]
        assert bench.stats.restores_missed == 1


async def test_client_that_reconnects_takes_over_its_live_session() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        back = await bench.connect(client.sid)
        assert back.connection.replies()[0]["restored_ids"] == [public("s")]
        assert client.connection.closed == (1000, "Session resumed elsewhere")
        assert bench.report().sessions == 1
        late = await bench.connect(client.sid)
        assert "restored" not in late.connection.replies()[0], "the sid is used up, so the replaced client gets a new session"


async def test_base_protocol_session_is_not_restored() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.connect(extended=False)
        client.session.connection_lost()
        back = await bench.connect(client.sid, extended=False)
        assert back.connection.replies() == [{"type": "welcome", "sid": back.sid}]


async def test_refused_connection_leaves_no_session() -> None:
    class RefuseAll:
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            return Refused("unauthorized")

    async with Workbench(PATIENT, authenticators=[RefuseAll()]) as bench:
        client = await bench.connect()
        assert client.connection.replies() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
        assert client.connection.closed == (1000, "Auth Failed")
        again = await bench.connect(client.sid)
        assert again.connection.replies()[0]["type"] == "disconnect"
        assert bench.report().backend["sessions_kept"] == 0


async def test_restored_session_ends_with_its_token() -> None:
    class Tokens:
        """Accepts clients until `start + 60`."""

        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            until = start + 60
            return Accepted("bo", until) if bench.clock() < until else Refused("token_expired")

    async with Workbench(PATIENT, authenticators=[Tokens()]) as bench:
        start = bench.clock()
        client = await bench.subscribed("s")
        client.session.connection_lost()
        await settle()
        bench.clock.now += 61
        back = await bench.connect(client.sid)
        assert back.connection.replies() == [{"type": "disconnect", "reason": "token_expired", "reconnect": False}]


@pytest.mark.parametrize(("newcomer", "restored"), [("bo", True), ("eve", False)])
async def test_newer_token_of_the_same_user_extends_a_restored_session(newcomer: str, restored: bool) -> None:
    class Tokens:
        """The token is the user, and expires a minute from now."""

        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            return Accepted(request.token, bench.clock() + 60)

    async with Workbench(PATIENT, authenticators=[Tokens()]) as bench:
        client = await bench.connect(token="bo")
        client.session.connection_lost()
        await settle()
        bench.clock.now += 61
        back = await bench.connect(client.sid, token=newcomer)
        assert ("restored" in back.connection.replies()[0]) is restored
        assert back.session.ids == newcomer
        assert back.session.expires_at == bench.clock() + 60


async def test_kicked_session_is_not_restored() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.subscribed("s")
        assert await bench.node.broker.disconnect(RemoteDisconnect(client.session.ids, True)) == 1
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "remote", "reconnect": True}
        back = await bench.connect(client.sid)
        assert "restored" not in back.connection.replies()[0]


@pytest.mark.parametrize("seconds", [5, 60])
async def test_member_stays_present_through_a_resume_and_joins_again_after_the_grace(seconds: int) -> None:
    async with Workbench(PATIENT) as bench:
        watcher = await bench.subscribed("s")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), presence={"id": "bo", "info": {"n": 1}})
        client.session.connection_lost()
        await settle()
        bench.clock.now += seconds
        await bench.backend.presence.expire()
        await bench.connect(client.sid)
        await settle()
        events = [reply["message"]["type"] for reply in watcher.connection.replies() if reply.get("type") == "presence"]
        assert events == (["join"] if seconds < 15 else ["join", "leave", "join"])
        assert (await bench.backend.presence.members("s", "", 10)).total == 1
