"""Atomic resume: welcome first, live held until the history request is answered, a gap that is said."""

import asyncio
import json

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position
from ropewalk.model.rules import StreamRule
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from tests.unit.engine.workbench import Client, Workbench, public, settle

PATIENT = Limits(ping_interval=0, resume_timeout=3600)
IMPATIENT = Limits(ping_interval=0, resume_timeout=0)


async def subscribed(bench: Workbench, stream: str = "s") -> Client:
    client = await bench.connect()
    await client.send(command="subscribe", identifier=public(stream))
    return client


async def test_a_restored_session_is_welcomed_first_and_held_until_it_asks() -> None:
    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        (receipt,) = await bench.publish("s", "1")
        client.session.lost()
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


async def test_a_session_that_does_not_ask_in_time_is_told_of_the_gap_and_goes_live() -> None:
    async with Workbench(IMPATIENT) as bench:
        client = await subscribed(bench)
        client.session.lost()
        await bench.publish("s", "1")
        back = await bench.connect(client.sid)
        while "reject_history" not in back.seen():
            await settle()
        await bench.publish("s", "2")
        assert back.seen() == ["welcome", "reject_history", 2]
        assert back.connection.replies()[1]["reason"] == "unclaimed"


async def test_a_session_whose_commands_are_not_handled_yet_has_not_missed_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may wait for a store that does not answer, and the claim of another stream behind it."""
    async with Workbench(IMPATIENT) as bench:
        client = await subscribed(bench)
        (receipt,) = await bench.publish("s", "1")
        client.session.lost()
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
    """The resume timeout ends."""
    for subscription in back.session.subscriptions.values():
        await bench.node.joiner.abandon(back.session.link, subscription)


async def test_what_was_held_since_the_restore_is_delivered_before_the_gap_is_said() -> None:
    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        (receipt,) = await bench.publish("s", "1")
        client.session.lost()
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
        # What was missed can still be asked for, and nothing comes twice.
        position = {"epoch": receipt.epoch, "offset": 1}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert back.seen()[5:] == [2, 3, "confirm_history"]


async def test_the_oldest_offset_of_an_unclaimed_history_is_the_first_one_kept() -> None:
    async with Workbench(PATIENT, [StreamRule("s", history_limit=3)]) as bench:
        client = await subscribed(bench)
        client.session.lost()
        await bench.publish("s", *"12345")
        back = await bench.connect(client.sid)
        await unclaimed(bench, back)
        assert (back.connection.replies()[-1]["streams"]["s"]["oldest"], back.seen()) == (3, ["welcome", "reject_history"])


async def test_a_stream_that_began_while_it_was_held_is_delivered_from_its_first_message() -> None:
    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        client.session.lost()
        back = await bench.connect(client.sid)
        (receipt,) = await bench.publish("s", "1")
        await unclaimed(bench, back)
        assert back.seen() == ["welcome", 1, "reject_history"]
        gap = {"reason": "unclaimed", "epoch": receipt.epoch, "oldest": 1, "tip": 1}
        assert back.connection.replies()[-1]["streams"] == {"s": gap}


async def test_more_than_may_be_held_is_left_to_the_gap() -> None:
    async with Workbench(Limits(ping_interval=0, resume_timeout=3600, max_pending=100)) as bench:
        client = await subscribed(bench)
        client.session.lost()
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
async def test_nothing_is_held_any_longer_than_needed(end: str) -> None:
    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        client.session.lost()
        back = await bench.connect(client.sid)
        assert held(bench) == ["s"]
        match end:
            case "lost":
                back.session.lost()
            case "unclaimed":
                await unclaimed(bench, back)
            case _:
                await back.send(command=end, identifier=public("s"), history={"since": 1})
        assert not held(bench)


async def test_a_sid_is_good_for_one_restore() -> None:
    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        client.session.lost()
        await bench.connect(client.sid)
        again = await bench.connect(client.sid)
        assert "restored" not in again.connection.replies()[0]
        assert bench.stats.restores_missed == 1


async def test_a_client_that_comes_back_before_its_old_link_is_known_dead_takes_over() -> None:
    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        back = await bench.connect(client.sid)
        assert back.connection.replies()[0]["restored_ids"] == [public("s")]
        assert client.connection.closed == (1000, "Session resumed elsewhere")
        assert bench.report().sessions == 1
        late = await bench.connect(client.sid)
        assert "restored" not in late.connection.replies()[0], "the sid is spent, and whoever was replaced begins anew"


async def test_a_session_of_the_base_protocol_is_not_restored() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.connect(extended=False)
        client.session.lost()
        back = await bench.connect(client.sid, extended=False)
        assert back.connection.replies() == [{"type": "welcome", "sid": back.sid}]


async def test_a_refused_connection_leaves_no_session_behind() -> None:
    class Nobody:
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            return Refused("unauthorized")

    async with Workbench(PATIENT, authenticators=[Nobody()]) as bench:
        client = await bench.connect()
        assert client.connection.replies() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
        assert client.connection.closed == (1000, "Auth Failed")
        again = await bench.connect(client.sid)
        assert again.connection.replies()[0]["type"] == "disconnect"
        assert bench.report().backend["sessions_kept"] == 0


async def test_a_restored_session_obeys_the_expiry_of_its_token() -> None:
    class Tokens:
        """Lets the first one in until a moment, and after that nobody."""

        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            until = start + 60
            return Accepted("bo", until) if bench.clock() < until else Refused("token_expired")

    async with Workbench(PATIENT, authenticators=[Tokens()]) as bench:
        start = bench.clock()
        client = await subscribed(bench)
        client.session.lost()
        await settle()
        bench.clock.now += 61
        back = await bench.connect(client.sid)
        assert back.connection.replies() == [{"type": "disconnect", "reason": "token_expired", "reconnect": False}]


@pytest.mark.parametrize(("newcomer", "restored"), [("bo", True), ("eve", False)])
async def test_a_newer_token_of_the_same_client_extends_a_restored_session(newcomer: str, restored: bool) -> None:
    class Tokens:
        """The token says who, and each is good for a minute from now."""

        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            return Accepted(request.token, bench.clock() + 60)

    async with Workbench(PATIENT, authenticators=[Tokens()]) as bench:
        client = await bench.connect(token="bo")
        client.session.lost()
        await settle()
        bench.clock.now += 61
        back = await bench.connect(client.sid, token=newcomer)
        assert ("restored" in back.connection.replies()[0]) is restored
        assert back.session.ids == newcomer
        assert back.session.expires_at == bench.clock() + 60


async def test_a_kicked_session_does_not_come_back_by_its_sid() -> None:
    from ropewalk.model.messages import RemoteDisconnect

    async with Workbench(PATIENT) as bench:
        client = await subscribed(bench)
        assert await bench.node.broker.disconnect(RemoteDisconnect(client.session.ids, True)) == 1
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "remote", "reconnect": True}
        back = await bench.connect(client.sid)
        assert "restored" not in back.connection.replies()[0]


@pytest.mark.parametrize("away", [5, 60])
async def test_presence_is_held_through_a_resume_also_when_the_grace_is_over(away: int) -> None:
    async with Workbench(PATIENT) as bench:
        watcher = await subscribed(bench)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), presence={"id": "bo", "info": {"n": 1}})
        client.session.lost()
        await settle()
        bench.clock.now += away
        await bench.backend.presence.expire()
        await bench.connect(client.sid)
        await settle()
        events = [reply["message"]["type"] for reply in watcher.connection.replies() if reply.get("type") == "presence"]
        assert events == (["join"] if away < 15 else ["join", "leave", "join"])
        assert (await bench.backend.presence.page("s", "", 10)).total == 1
