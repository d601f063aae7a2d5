"""The `--debug` log: commands, writes, registered messages and application calls, without complete sids."""

import logging

import pytest

from ropewalk.model import closing as closings
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Workbench, public, settle

WIRE = "ropewalk.wire"


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if record.name == WIRE and record.getMessage() == message]


@pytest.fixture
def debugging(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "ropewalk")
    caplog.set_level(logging.DEBUG, WIRE)
    return caplog


async def test_commands_and_writes_are_logged_with_their_payload(debugging: pytest.LogCaptureFixture) -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("news"))
        await bench.publish("news", '{"text":"one"}', '{"text":"two"}')

    tag = client.sid[:6]
    assert '"command": "subscribe"' in str(logged(debugging, "in")[0]["data"])
    assert [line["session"] for line in logged(debugging, "in")] == [tag]
    written = [str(line["data"]) for line in logged(debugging, "out")]
    assert written[0] == f'{{"type":"welcome","sid":"{tag}…"}}'
    assert '"message":{"text":"one"}' in written[2]
    assert '"message":{"text":"two"}' in written[2]  # one tick, one write
    assert [(line["stream"], line["offset"], line["data"]) for line in logged(debugging, "registered")] == [
        ("news", 1, '{"text":"one"}'),
        ("news", 2, '{"text":"two"}'),
    ]
    assert client.sid not in "\n".join(str(vars(record)) for record in debugging.records)


async def test_application_calls_are_logged_without_cookies(debugging: pytest.LogCaptureFixture) -> None:
    async with Workbench(application=Script(), authenticators=()) as bench:
        client = await bench.connect(cookie="session=secret")
        await client.send(command="subscribe", identifier=CHAT)
        await client.send(command="message", identifier=CHAT, data='{"action":"speak"}')
        client.session.end(closings.UNAUTHORIZED)
        await settle()

    calls = logged(debugging, "application")
    assert [call["call"] for call in calls] == ["connect", "subscribe", "message", "disconnect"]
    assert calls[2]["data"] == '{"action":"speak"}'
    assert calls[1]["streams"] == ("s",)
    assert "secret" not in str(calls)


async def test_connection_is_not_wrapped_without_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ropewalk")
    caplog.set_level(logging.INFO, WIRE)
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("news"))
        await bench.publish("news", '"secret"')
        (group,) = client.session.subscriptions[public("news")].groups

        assert group.writers[client.session.link] == client.connection.write
    assert "secret" not in caplog.text
