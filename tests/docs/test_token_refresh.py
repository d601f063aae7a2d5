"""The page on authentication: its JavaScript fetches a new token when the old one expires, and misses no message."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.clients.credentials import BROADCAST_KEY, SECRET, signed, token
from tests.clients.publishers import publish
from tests.docs.pages import ROOT, blocks
from tests.server import running_server

PAGE = ROOT / "docs" / "how-to" / "authenticate.md"
BEFORE = 'import WebSocket from "ws";\nglobalThis.WebSocket = WebSocket;\n'  # browsers have it built in
AFTER = """
const news = cable.streamFromSigned(%s);
news.on("connect", () => console.log(JSON.stringify({ subscribed: true })));
news.on("message", (message, { offset }) => console.log(JSON.stringify({ message, offset })));
"""
TIMEOUT_SECONDS = 60
TOKEN_SECONDS = 2


class TokenEndpoint:
    """An application that issues short-lived tokens until `lasting` is set, so that a slow client gets another one."""

    def __init__(self) -> None:
        self.lasting = False
        self.lasting_tokens = 0

    async def issue(self, request: web.Request) -> web.Response:
        self.lasting_tokens += self.lasting
        return web.json_response({"token": token(expires_in=3600 if self.lasting else TOKEN_SECONDS)})


@pytest.fixture
async def application() -> AsyncIterator[tuple[TokenEndpoint, str]]:
    endpoint, routes = TokenEndpoint(), web.Application()
    routes.router.add_post("/cable-token", endpoint.issue)
    async with TestServer(routes) as server:
        yield endpoint, str(server.make_url("/cable-token"))


@pytest.mark.needs_node
@pytest.mark.tier("standard")
async def test_client_with_an_expired_token_gets_a_new_one_and_resumes(
    application: tuple[TokenEndpoint, str], tmp_path: Path
) -> None:
    endpoint, url = application
    (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "clients" / "node_modules")
    block = next(block.text for block in blocks(PAGE) if "createCable" in block.text)
    with running_server("--secret", SECRET) as server:
        text = block.replace("wss://live.example.com/cable", server.cable).replace('"/cable-token"', json.dumps(url))
        (tmp_path / "page.mjs").write_text(BEFORE + text + AFTER % json.dumps(signed("news")))
        node = await asyncio.create_subprocess_exec("node", "page.mjs", cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
        assert node.stdout is not None
        lines = (json.loads(line) async for line in node.stdout)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert await anext(lines) == {"subscribed": True}
                await publish(server, "news", "one", key=BROADCAST_KEY)
                assert await next_message(lines) == {"message": "one", "offset": 1}
                endpoint.lasting = True
                while not endpoint.lasting_tokens:
                    assert await anext(lines) == {"subscribed": True}
                await publish(server, "news", "two", key=BROADCAST_KEY)
                assert await next_message(lines) == {"message": "two", "offset": 2}
        finally:
            node.kill()
            await node.wait()
    assert endpoint.lasting_tokens == 1


async def next_message(lines: AsyncIterator[object]) -> object:
    """The next message. The client subscribes again after each token."""
    while (line := await anext(lines)) == {"subscribed": True}:
        pass
    return line
