"""Limits of an application's results."""

import pytest

from ropewalk.engine.bounds import MAX_STREAMS
from ropewalk.model.application import CommandResult, ConnectResult, RestoreResult
from tests.unit.engine.conversations import PATIENT, chatting, make_bench, message_text, received
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import settle


async def test_transmission_that_is_not_a_json_object_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["", "hello", "{", '"a string"', "[1]", "null", '{"type":"ping"} {}', '{"a":"\ud800"}']
    for text in rows:
        with subtests.test(text=text):
            script = Script(
                CommandResult(transmissions=(text,)),
                CommandResult(),
                CommandResult(transmissions=(message_text("first"), text)),
            )
            async with make_bench(script) as bench:
                client = await chatting(bench)
                assert received(client) == ["welcome", "reject_subscription"]
                await client.send(command="subscribe", identifier=CHAT)
                await client.send(command="message", identifier=CHAT, data="{}")
                assert received(client)[2:] == ["confirm_subscription"]
                script.restore_result = RestoreResult((text,))
                client.session.connection_lost()
                back = await bench.connect(client.sid)
                await settle()
                assert received(back) == ["welcome"]
                script.connect_result = ConnectResult(True, "bo", (text,))
                assert (await bench.connect()).connection.closed == (1011, "Auth Error")


async def test_transmission_is_limited_to_the_payload_size() -> None:
    script = Script(CommandResult(transmissions=(message_text("x" * PATIENT.max_payload),)))
    async with make_bench(script) as bench:
        assert received(await chatting(bench)) == ["welcome", "reject_subscription"]


async def test_streams_are_limited_per_subscription_not_per_result() -> None:
    def streams(first: int, count: int) -> tuple[str, ...]:
        return tuple(f"s{number}" for number in range(first, first + count))

    most = MAX_STREAMS
    script = Script(
        CommandResult(streams=streams(0, most)),
        CommandResult(streams=("one more",)),
        CommandResult(streams=streams(0, most)),
        CommandResult(streams=("another",), stopped=("s0",)),
        CommandResult(streams=streams(most, most), stop_all=True),
    )
    async with make_bench(script) as bench:
        client = await chatting(bench)
        granted = client.session.subscriptions[CHAT]
        failed = []
        for _ in range(4):
            await client.send(command="message", identifier=CHAT, data="{}")
            failed.append(bench.stats.commands_failed)
            assert len(granted.granted.streams) == most
        assert failed == [1, 1, 1, 1], "only the stream above the limit is refused"
