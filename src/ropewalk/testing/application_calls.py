"""Conformance of `ports.Application`: each call is made once and in order, and returns the response of the application."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.model.application import PRESENCE_KEY, WHISPER_KEY
from ropewalk.model.errors import ApplicationError
from ropewalk.testing.application_orders import FAILING, WELCOME_BACK, YES, Order, info, seat
from ropewalk.testing.application_rig import ApplicationRig, ApplicationSession, known_by, said

ODD_TEXT = 'ключ \U0001f600 \u2028 \0 "quoted" \\ 1e400'
MANY = 20


class SessionCalls(ApplicationRig):
    """Connect, restore, disconnect."""

    async def test_accepted_client_has_its_ids(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            result = await ann.connect()
            assert result.accepted
            assert known_by(result) == {"user": "ann"}
            assert record.kinds("s-1") == ["connect"]

    async def test_connect_call_has_the_url_and_the_headers(self, tmp_path: Path) -> None:
        headers = {"cookie": "theme=dark; user=bo", "x-odd": "ж", "REMOTE_ADDR": "10.0.0.1"}
        async with self.running(tmp_path) as (application, record):
            bo = ApplicationSession(application, "s-1", user="", headers=headers, params={"room": "a&b"})
            assert known_by(await bo.connect()) == {"user": "bo"}
            [event] = record.of("s-1")
            assert (event.url, event.headers) == (bo.context.url, headers)

    async def test_refused_client_is_not_an_error(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            result = await ApplicationSession(application, "s-1", user="").connect()
            assert (result.accepted, result.ids) == (False, "")
            assert record.kinds("s-1") == ["refused"]

    async def test_failed_connect_does_not_affect_others(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            with pytest.raises(ApplicationError):
                await ApplicationSession(application, "s-1", user=FAILING).connect()
            assert (await ApplicationSession(application, "s-2").connect()).accepted
            assert application.health() == ""

    async def test_session_authenticated_elsewhere_starts_with_a_command(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            ann.ids = '{"user":"ann"}'
            assert (await ann.subscribe()).accepted
            assert [(event.kind, event.ids) for event in record.of("s-1")] == [("subscribe", ann.ids)]

    async def test_restored_call_has_the_state_of_all_subscriptions(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            one, two = Order(keep={"seat": "1"}), Order(keep={"seat": "2"}, remember={"who": "me"})
            await ann.subscribe(one)
            await ann.subscribe(two)
            ann.sid = "s-2"
            result = await ann.restored("s-1")
            [event] = record.of("s-2")
            assert (event.kind, event.ids, event.state) == ("restored", ann.ids, {"entered": YES, "who": "me"})
            assert event.subscriptions == {seat(one): {"seat": "1"}, seat(two): {"seat": "2"}}
            assert said(result) == [(seat(one), WELCOME_BACK), (seat(two), WELCOME_BACK)]
            assert not result.disconnect
            await ann.disconnect()
            event = record.of("s-2")[-1]
            assert event.state == {"entered": YES, "who": "me", "returned": YES}
            assert event.subscriptions[seat(one)] == {"seat": "1", "returned": YES}

    async def test_restored_call_without_subscriptions_changes_none(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            result = await ann.restored("s-0")
            assert (said(result), result.own, result.disconnect) == ([], {}, False)

    async def test_disconnect_call_has_all_state(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            order = Order(keep={"seat": "1"}, remember={"who": "me"})
            await ann.subscribe(order)
            await ann.disconnect()
            assert record.kinds("s-1") == ["connect", "subscribe", "disconnect"]
            event = record.of("s-1")[-1]
            assert (event.ids, event.state) == (ann.ids, {"entered": YES, "who": "me"})
            assert event.subscriptions == {seat(order): {"seat": "1"}}


class CommandCalls(ApplicationRig):
    """Subscribe, perform, unsubscribe."""

    async def test_subscription_has_its_streams_and_transmissions_in_order(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            order = Order(streams=("b", "чат", "a"), say=("one", "two", "three"))
            result = await ann.subscribe(order)
            assert result.accepted
            assert (result.streams, result.stopped, result.stop_all) == (("b", "чат", "a"), (), False)
            assert said(result) == [(seat(order), text) for text in order.say]
            assert record.of("s-1")[-1].identifier == seat(order)

    async def test_rejected_subscription_has_transmissions_and_no_streams(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            result = await ann.subscribe(Order(reject=True, say=("no",), streams=("a",)))
            assert (result.accepted, result.streams, [text for _, text in said(result)]) == (False, (), ["no"])
            assert (await ann.subscribe(number=1)).accepted

    async def test_action_changes_the_streams(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            await ann.subscribe(Order(streams=("a", "b")))
            there = seat(Order(streams=("a", "b")))
            result = await ann.perform(there, Order(stop=("a",), streams=("c",)))
            assert (result.stopped, result.streams, result.stop_all) == (("a",), ("c",), False)
            result = await ann.perform(there, Order(stop_all=True, streams=("d",)))
            assert (result.streams, result.stop_all) == (("d",), True)

    async def test_whisper_and_presence_streams_are_reserved_keys(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            order = Order(whisper="w", presence="p")
            result = await ann.subscribe(order)
            assert (result.own[WHISPER_KEY], result.own[PRESENCE_KEY]) == ("w", "p")
            assert sorted(result.streams) == ["p", "w"]
            joined = (await ann.perform(seat(order), Order(join="ann"))).presence_update
            assert joined is not None
            assert (joined.join, joined.member.id, json.loads(joined.member.info)) == (True, "ann", info("ann"))
            left = (await ann.perform(seat(order), Order(leave=True))).presence_update
            assert left is not None
            assert not left.join
            assert record.of("s-1")[-1].own == {}

    async def test_action_may_end_the_session(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            assert not (await ann.subscribe()).disconnect
            assert (await ann.perform(seat(), Order(disconnect=True))).disconnect

    async def test_state_accumulates_over_calls(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            order = Order(keep={"n": "1", "odd": ODD_TEXT}, remember={"c": "1"})
            await ann.subscribe(order)
            await ann.perform(seat(order), Order(keep={"n": "2"}, remember={"d": ODD_TEXT}))
            result = await ann.perform(seat(order), Order(keep={"n": ""}, remember={"c": ""}))
            assert (result.own, result.state) == ({"n": ""}, {"c": ""})
            await ann.perform(seat(order))
            seen = [(event.own, event.state) for event in record.of("s-1")[2:]]
            assert seen == [
                ({"n": "1", "odd": ODD_TEXT}, {"entered": YES, "c": "1"}),
                ({"n": "2", "odd": ODD_TEXT}, {"entered": YES, "c": "1", "d": ODD_TEXT}),
                ({"odd": ODD_TEXT}, {"entered": YES, "d": ODD_TEXT}),
            ]

    async def test_unsubscribe_call_has_the_state(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            order = Order(keep={"seat": "1"})
            await ann.subscribe(order)
            assert (await ann.unsubscribe(seat(order))).accepted
            await ann.subscribe()
            event = record.of("s-1")[-2]
            assert (event.kind, event.identifier, event.own) == ("unsubscribe", seat(order), {"seat": "1"})

    async def test_commands_are_called_once_in_order(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            await ann.subscribe()
            for number in range(MANY):
                result = await ann.perform(seat(), Order(say=(f"{number} {ODD_TEXT}",)))
                assert said(result) == [(seat(), f"{number} {ODD_TEXT}")]
            seen = [json.loads(event.data)["order"]["say"] for event in record.of("s-1")[2:]]
            assert seen == [[f"{number} {ODD_TEXT}"] for number in range(MANY)]

    async def test_concurrent_sessions_are_kept_apart(self, tmp_path: Path) -> None:
        async def live(session: ApplicationSession) -> list[tuple[str, Any]]:
            order = Order(keep={"who": session.sid}, say=(session.sid,))
            await session.connect()
            heard = said(await session.subscribe(order))
            await session.perform(seat(order))
            await session.disconnect()
            return heard

        async with self.running(tmp_path) as (application, record):
            sids = [f"s-{number}" for number in range(MANY)]
            heard = await asyncio.gather(*(live(ApplicationSession(application, sid, user=sid)) for sid in sids))
            assert [[text for _, text in each] for each in heard] == [[sid] for sid in sids]
            for sid in sids:
                assert record.kinds(sid) == ["connect", "subscribe", "message", "disconnect"]
                last = record.of(sid)[-1]
                assert json.loads(last.ids) == {"user": sid}
                assert list(last.subscriptions.values()) == [{"who": sid}]
