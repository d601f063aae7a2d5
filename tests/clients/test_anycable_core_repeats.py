"""`@anycable/core` repeats a subscribe that is not answered in time. A second answer would make it unsubscribe."""

import asyncio
import json

import pytest

from tests.clients.publishers import publish
from tests.clients.script import Client, Script
from tests.rpc_servers import HttpServer
from tests.server import running_server
from tests.unit.engine.script import Script as Application

pytestmark = pytest.mark.needs_node

CHANNELS = [f"channel {number}" for number in range(6)]
REPEAT_AFTER = 2500  # milliseconds; the client gives up after as many more


def said(client: Client, command: str) -> list[str]:
    """The identifiers of what the client sent, in order."""
    commands = [json.loads(sent["text"]) for sent in client.all("sent")]
    return [each["identifier"] for each in commands if each["command"] == command]


async def test_channels_whose_subscribe_was_repeated_before_a_slow_application_answered_are_all_live(anycable: Script) -> None:
    application = Application()
    async with HttpServer(application) as rpc:
        flags = ("--rpc_host", rpc.url, "--rpc_command_timeout", "60s", "--broadcast_key", "none")
        with running_server(*flags) as server:
            options = {"subscribeRetryInterval": REPEAT_AFTER}
            alice = await anycable.connect("alice", server.cable, protocolOptions=options)
            application.held = asyncio.Event()
            for channel in CHANNELS:
                await alice.order("subscribe", channel=channel, kind="ChatChannel", params={"name": channel})
            await anycable.until(lambda: len(said(alice, "subscribe")) == 2 * len(CHANNELS), "alice repeats all of them")
            application.held.set()
            for channel in CHANNELS:
                await alice.sees("subscribed", channel=channel)
            for fence in ("handled", "and what the client said to that"):
                await alice.subscribe(fence, kind="ChatChannel", params={"name": fence})
            await publish(server, "s", "hello")

            for channel in CHANNELS:
                assert len(await alice.gets(channel, 1)) == 1
            assert said(alice, "unsubscribe") == []
            assert len(alice.frames("confirm_subscription")) == len(CHANNELS) + 2
