"""Clients of a scripted application."""

import json

from ropewalk.model.limits import Limits
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Workbench

PATIENT = Limits(ping_interval=0, resume_timeout=3600, disconnect_rate=0)


def make_bench(script: Script, limits: Limits = PATIENT) -> Workbench:
    return Workbench(limits, authenticators=(), application=script)


def message_text(text: str) -> str:
    return json.dumps({"identifier": CHAT, "message": text})


async def chatting(bench: Workbench, cookie: str = "") -> Client:
    client = await bench.connect(cookie=cookie)
    await client.send(command="subscribe", identifier=CHAT)
    return client


def received(client: Client) -> list[object]:
    """Types of the replies and texts of the messages, in order."""
    return [reply.get("type") or reply["message"] for reply in client.connection.replies()]
