"""What `--debug` shows: commands, writes, registered messages and the application's answers, and no whole sid."""

import logging

import pytest

from ropewalk.model import closing as closings
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Workbench, public, settle

WIRE = "ropewalk.wire"


def told(caplog: pytest.LogCaptureFixture, what: str) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if record.name == WIRE and record.getMessage() == what]


@pytest.fixture
def debugging(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "ropewalk")
    caplog.set_level(logging.DEBUG, WIRE)
    return caplog


async def test_what_a_client_says_and_hears_is_told_with_its_payload(debugging: pytest.LogCaptureFixture) -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("news"))
        await bench.publish("news", '{"text":"one"}', '{"text":"two"}')

    tag = client.sid[:6]
    assert '"command": "subscribe"' in str(told(debugging, "in")[0]["data"])
    assert [line["session"] for line in told(debugging, "in")] == [tag]
    written = [str(line["data"]) for line in told(debugging, "out")]
    assert written[0] == f'{{"type":"welcome","sid":"{tag}…"}}'
    assert '"message":{"text":"one"}' in written[2]
    assert '"message":{"text":"two"}' in written[2]  # one tick, one write
    assert [(line["stream"], line["offset"], line["data"]) for line in told(debugging, "registered")] == [
        ("news", 1, '{"text":"one"}'),
        ("news", 2, '{"text":"two"}'),
    ]
    assert client.sid not in "\n".join(str(vars(record)) for record in debugging.records)


async def test_what_the_application_is_asked_and_answers_is_told_without_cookies(debugging: pytest.LogCaptureFixture) -> None:
    async with Workbench(application=Script(), authenticators=()) as bench:
        client = await bench.connect(cookie="session=secret")
        await client.send(command="subscribe", identifier=CHAT)
        await client.send(command="message", identifier=CHAT, data='{"action":"speak"}')
        client.session.end(closings.UNAUTHORIZED)
        await settle()

    calls = told(debugging, "application")
    assert [call["call"] for call in calls] == ["connect", "subscribe", "message", "disconnect"]
    assert calls[2]["data"] == '{"action":"speak"}'
    assert calls[1]["streams"] == ("s",)
    assert "secret" not in str(calls)


async def test_without_it_nothing_is_wrapped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ropewalk")
    caplog.set_level(logging.INFO, WIRE)
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("news"))
        await bench.publish("news", '"secret"')
        (group,) = client.session.subscriptions[public("news")].groups

        assert group.writers[client.session.link] == client.connection.write
    assert "secret" not in caplog.text
