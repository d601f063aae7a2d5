"""`@anycable/core` repeats a subscribe without a response. A second confirmation would make it unsubscribe."""

import asyncio
import json

import pytest

from tests.clients.publishers import publish
from tests.clients.script import Client, Script
from tests.rpc_servers import HttpServer
from tests.server import RunningServer, running_server
from tests.unit.engine.script import Script as Application

pytestmark = pytest.mark.needs_node

CHANNELS = [f"channel {number}" for number in range(6)]
REPEAT_AFTER_MS = (1000, 5000, 20000)  # the client gives up after as many more: the first that is long enough is used


def sent(client: Client, command: str) -> list[str]:
    """The identifiers of the commands that the client sent, in order."""
    commands = [json.loads(event["text"]) for event in client.all("sent")]
    return [each["identifier"] for each in commands if each["command"] == command]


async def test_channels_with_a_repeated_subscribe_are_all_live(anycable: Script) -> None:
    application = Application()
    async with HttpServer(application) as rpc:
        flags = ("--rpc_host", rpc.url, "--rpc_command_timeout", "60s", "--broadcast_key", "none")
        with running_server(*flags) as server:
            for milliseconds in REPEAT_AFTER_MS:
                alice = await subscribe_all_twice(anycable, server, application, milliseconds)
                if not alice.all("channel_close"):
                    break
            for fence in ("all commands are handled", "and the reactions of the client"):
                await alice.subscribe(fence, kind="ChatChannel", params={"name": fence})
            await publish(server, "s", "hello")

            for channel in CHANNELS:
                assert len(await alice.gets(channel, 1)) == 1
            assert sent(alice, "unsubscribe") == []
            assert len(alice.frames("confirm_subscription")) == len(CHANNELS) + 2
            await asyncio.to_thread(server.stop)  # it calls the application, which runs in this thread


async def subscribe_all_twice(script: Script, server: RunningServer, application: Application, milliseconds: int) -> Client:
    """A client whose subscribe commands are all answered after it has repeated them, or given up."""
    options = {"subscribeRetryInterval": milliseconds}
    client = await script.connect(f"alice-{milliseconds}", server.cable, protocolOptions=options)
    application.held = asyncio.Event()
    for channel in CHANNELS:
        await client.order("subscribe", channel=channel, kind="ChatChannel", params={"name": channel})
    await script.until(lambda: len(sent(client, "subscribe")) == 2 * len(CHANNELS), "all commands are repeated")
    application.held.set()
    for channel in CHANNELS:
        await script.until(
            lambda channel=channel: bool(
                client.all("subscribed", channel=channel) or client.all("channel_close", channel=channel)
            ),  # type: ignore[misc]
            f"{channel} is subscribed or closed",
        )
    return client
