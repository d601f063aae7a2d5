"""The page on authentication: its JavaScript gets a new token when the old one is over, and misses nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.clients.credentials import BROADCAST_KEY, SECRET, SHORT_LIFE, signed, token
from tests.clients.publishers import publish
from tests.docs.pages import ROOT, blocks
from tests.server import running_server

PAGE = ROOT / "docs" / "how-to" / "authenticate.md"
BEFORE = 'import WebSocket from "ws";\nglobalThis.WebSocket = WebSocket;\n'  # which a browser has
AFTER = """
const news = cable.streamFromSigned(%s);
news.on("connect", () => console.log(JSON.stringify({ subscribed: true })));
news.on("message", (message, { offset }) => console.log(JSON.stringify({ message, offset })));
"""
SECONDS = 30


class TokenEndpoint:
    """An application that gives a short-lived token first, and then one that lasts."""

    def __init__(self) -> None:
        self.given = 0

    async def give(self, request: web.Request) -> web.Response:
        self.given += 1
        return web.json_response({"token": token(expires_in=SHORT_LIFE if self.given == 1 else 3600)})


@pytest.fixture
async def application() -> AsyncIterator[tuple[TokenEndpoint, str]]:
    endpoint, routes = TokenEndpoint(), web.Application()
    routes.router.add_post("/cable-token", endpoint.give)
    async with TestServer(routes) as server:
        yield endpoint, str(server.make_url("/cable-token"))


@pytest.mark.needs_node
async def test_a_page_whose_token_ends_gets_another_and_goes_on(application: tuple[TokenEndpoint, str], tmp_path: Path) -> None:
    endpoint, url = application
    (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "clients" / "node_modules")
    block = next(block.text for block in blocks(PAGE) if block.language == "js")
    with running_server("--secret", SECRET) as server:
        text = block.replace("wss://live.example.com/cable", server.cable).replace('"/cable-token"', json.dumps(url))
        (tmp_path / "page.mjs").write_text(BEFORE + text + AFTER % json.dumps(signed("news")))
        node = await asyncio.create_subprocess_exec("node", "page.mjs", cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
        assert node.stdout is not None
        try:
            async with asyncio.timeout(SECONDS):
                assert json.loads(await node.stdout.readline()) == {"subscribed": True}
                await publish(server, "news", "one", key=BROADCAST_KEY)
                assert json.loads(await node.stdout.readline()) == {"message": "one", "offset": 1}
                assert json.loads(await node.stdout.readline()) == {"subscribed": True}
                await publish(server, "news", "two", key=BROADCAST_KEY)
                assert json.loads(await node.stdout.readline()) == {"message": "two", "offset": 2}
        finally:
            node.kill()
            await node.wait()
    assert endpoint.given == 2
