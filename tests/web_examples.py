"""The web examples: a web process, a server with their channels, and a visitor with cookies."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from http.cookies import Morsel
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from msgspec import Struct

from tests.cable import Cable, cable
from tests.server import START_SECONDS, STOP_SECONDS, RunningServer, running_server
from tests.services import free_port

EXAMPLES = Path(__file__).parents[1] / "examples"
SECRET = "one secret for both processes of an example"


class Site(Struct, frozen=True):
    """`url` is the web process, `server` runs the channels."""

    url: str
    server: RunningServer


@contextlib.contextmanager
def fastapi_chat() -> Iterator[Site]:
    home = EXAMPLES / "fastapi_chat"
    with (
        _environ(CHAT_SECRET=secrets.token_hex(32)),
        running_server("--secret", SECRET, "--app", "channels:app", "--app_dir", str(home)) as server,
    ):
        port = free_port()
        with _web_process(home, server, port, "-m", "uvicorn", "main:app", "--port", str(port)) as url:
            yield Site(url, server)


@contextlib.contextmanager
def django_chat() -> Iterator[Site]:
    home = EXAMPLES / "django_chat"
    secret = secrets.token_hex(32)
    with (
        tempfile.TemporaryDirectory() as data,
        _environ(CHAT_DATABASE=f"{data}/chat.sqlite3", DJANGO_SECRET_KEY=secret, DJANGO_DEBUG="1"),
    ):
        subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=home, check=True, timeout=START_SECONDS)
        with running_server("--secret", SECRET, "--app", "chat.channels:app", "--app_dir", str(home)) as server:
            port = free_port()
            with _web_process(home, server, port, "manage.py", "runserver", str(port), "--noreload") as url:
                yield Site(url, server)


@contextlib.contextmanager
def _environ(**variables: str) -> Iterator[None]:
    """Variables that both processes inherit."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def _web_process(home: Path, server: RunningServer, port: int, *words: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    environ = {**os.environ, "ROPEWALK_URL": server.url, "ROPEWALK_SECRET": SECRET, "CABLE_URL": server.cable}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, *words], cwd=home, env=environ, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_it_answers(url, process)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.seek(0)
            print(log.read().decode(errors="replace"))  # pytest shows it where a test failed


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=START_SECONDS):
            return
        time.sleep(0.05)
    raise AssertionError(f"{process.args!r} does not answer")


class Visitor:
    """A client with the cookies of a browser that sends the requests of the page."""

    def __init__(self, site: Site, http: aiohttp.ClientSession) -> None:
        self._site = site
        self._http = http

    async def page(self) -> str:
        async with self._http.get(self._site.url) as response:
            assert response.status == 200
            return await response.text()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(self._site.url + path) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        csrf = {"X-CSRFToken": self.cookies["csrftoken"]} if "csrftoken" in self.cookies else {}
        async with self._http.post(self._site.url + path, json=body, headers=csrf) as response:
            return response.status, await response.json() if response.content_type == "application/json" else None

    async def log_in(self, name: str) -> Self:
        await self.page()
        assert await self.post("/login", {"name": name}) == (204, None)
        return self

    @property
    def jar(self) -> list["Morsel[str]"]:
        return list(self._http.cookie_jar)

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self.jar}

    def cable(self, welcome: bool = True) -> contextlib.AbstractAsyncContextManager[Cable]:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return cable(self._site.server, welcome=welcome, headers={"Cookie": cookies})


@contextlib.asynccontextmanager
async def visitor(site: Site, name: str = "") -> AsyncIterator[Visitor]:
    """Logged in if there is a name."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:  # unsafe: by IP address
        visiting = Visitor(site, http)
        yield await visiting.log_in(name) if name else visiting
