"""The routes of the demo page, their headers, and the links on the page."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ropewalk.dashboard.demo import DemoPage

Client = TestClient[web.Request, web.Application]

CONTENT_TYPES = {
    "/demo": "text/html; charset=utf-8",
    "/demo/": "text/html; charset=utf-8",
    "/demo/demo.css": "text/css; charset=utf-8",
    "/demo/demo.js": "text/javascript; charset=utf-8",
    "/demo/cable.js": "text/javascript; charset=utf-8",
    "/demo/messages.js": "text/javascript; charset=utf-8",
    "/demo/publisher.js": "text/javascript; charset=utf-8",
    "/demo/report.js": "text/javascript; charset=utf-8",
    "/demo/icon.svg": "image/svg+xml; charset=utf-8",
}


async def serving(page: DemoPage) -> AsyncIterator[Client]:
    app = web.Application()
    app.add_routes(page.routes())
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async for client in serving(DemoPage()):
        yield client


async def test_every_file_has_its_content_type_and_security_headers(client: Client, subtests: pytest.Subtests) -> None:
    for path in CONTENT_TYPES:
        with subtests.test(path=path):
            response = await client.get(path)
            policy = response.headers["Content-Security-Policy"]
            assert response.status == 200
            assert response.headers["Content-Type"] == CONTENT_TYPES[path]
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy


async def test_every_file_in_the_folder_is_served(client: Client) -> None:
    names = {file.name for file in files("ropewalk.dashboard").joinpath("static").iterdir()} - {"demo.html"}
    assert names
    assert {name: (await client.get(f"/demo/{name}")).status for name in names} == dict.fromkeys(names, 200)


async def test_all_links_of_the_page_and_its_scripts_are_served(client: Client) -> None:
    page = await (await client.get("/demo")).text()
    script = await (await client.get("/demo/demo.js")).text()
    modules = re.findall(r'from "\./([^"]+)"', script)
    wanted = {*re.findall(r'(?:src|href)="(/[^"]+)"', page), *(f"/demo/{name}" for name in modules)}
    assert len(wanted) > 5
    assert {path: (await client.get(path)).status for path in wanted} == dict.fromkeys(wanted, 200)


async def test_page_has_no_inline_script_inline_style_or_external_address(client: Client) -> None:
    page = await (await client.get("/demo")).text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', page)


async def test_page_has_the_configured_paths_escaped() -> None:
    async for client in serving(DemoPage(cable_path='/ws"><script>', publish_path="/v1/publish")):
        page = await (await client.get("/demo")).text()
        assert 'data-cable="/ws&quot;&gt;&lt;script&gt;"' in page
        assert 'data-publish="/v1/publish"' in page


async def test_page_has_the_default_paths(client: Client) -> None:
    page = await (await client.get("/demo")).text()
    assert 'data-cable="/cable"' in page
    assert 'data-publish="/api/publish"' in page
    assert "{{" not in page


async def test_other_methods_and_unknown_files_are_rejected(client: Client) -> None:
    assert (await client.post("/demo")).status == 405
    assert (await client.get("/demo/../demo.py")).status == 404
    assert (await client.get("/demo/nothing.js")).status == 404


async def test_root_redirects_to_the_page_unless_disabled(client: Client) -> None:
    response = await client.get("/", allow_redirects=False)
    assert (response.status, response.headers["Location"]) == (302, "/demo")
    async for other in serving(DemoPage(root=False)):
        assert (await other.get("/")).status == 404
