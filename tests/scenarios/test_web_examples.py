"""The examples for FastAPI and Django: real web processes beside a real server that runs their channels."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.adapters.apps.jwt import issue
from ropewalk.core.signatures import API_PHRASE, derive
from tests.cable import Cable, Frame, cable
from tests.docs.pages import ROOT, blocks
from tests.scenarios.command_line import ENVIRON
from tests.web_examples import EXAMPLES, SECRET, Site, django_chat, fastapi_chat, visitor

TIMEOUT = 15.0
CHATS = {"fastapi": fastapi_chat, "django": django_chat}


def run_python(home: Path, environ: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *words], cwd=home, env=environ, capture_output=True, text=True, timeout=60)


def room(name: str) -> str:
    return json.dumps({"channel": "ChatChannel", "room": name})


@pytest.fixture(scope="module", params=CHATS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with CHATS[request.param]() as site:
        yield site


async def until(client: Cable, wanted: str, **message: object) -> Frame:
    """The next frame of this kind whose message has these fields. Bounded: pings alone would be read for ever."""
    async with asyncio.timeout(TIMEOUT):
        return await client.until(wanted, lambda frame: all(frame["message"][name] == value for name, value in message.items()))


@contextlib.asynccontextmanager
async def in_room(site: Site, name: str, where: str) -> AsyncIterator[Cable]:
    """Somebody who is logged in, connected, and in the room."""
    async with visitor(site, name) as somebody, somebody.cable() as client:
        await client.send(command="subscribe", identifier=room(where))
        await until(client, "confirm_subscription")
        yield client


async def said(client: Cable) -> tuple[str, str]:
    message = (await until(client, "message"))["message"]
    return message["name"], message["text"]


async def speak(client: Cable, where: str, text: object) -> None:
    await client.send(command="message", identifier=room(where), data=json.dumps({"action": "speak", "text": text}))


async def turned_away(client: Cable) -> Frame:
    return await client.expect("disconnect", reason="unauthorized", reconnect=False)


async def test_the_page_knows_where_the_cable_is(site: Site) -> None:
    async with visitor(site) as somebody:
        assert f'data-cable="{site.server.cable}"' in await somebody.page()


async def test_who_is_not_logged_in_can_neither_connect_nor_write(site: Site) -> None:
    async with visitor(site) as stranger:
        await stranger.page()
        assert (await stranger.post("/rooms/shut/messages", {"text": "hello"}))[0] == 401
        async with stranger.cable(welcome=False) as client:
            await turned_away(client)


async def test_cookies_are_kept_from_scripts_and_other_sites(site: Site) -> None:
    async with visitor(site, "Ada") as ada:
        morsels = {cookie.key: cookie for cookie in ada.jar}
        [session] = [morsels[name] for name in ("chat_session", "sessionid") if name in morsels]
        assert (session["httponly"], session["samesite"].lower()) == (True, "lax")


@pytest.mark.parametrize("site", ["fastapi"], indirect=True)
async def test_behind_https_the_cookie_is_for_https_only(site: Site) -> None:
    headers = {"X-Forwarded-Proto": "https"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{site.url}/login", json={"name": "Ada"}) as response,
    ):
        assert response.cookies["chat_session"]["secure"] is True


def test_without_debugging_djangos_cookies_are_for_https_only() -> None:
    program = "from chat import settings as s; print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.DEBUG)"
    environ = {**ENVIRON, "DJANGO_SECRET_KEY": "x" * 50}
    result = run_python(EXAMPLES / "django_chat", environ, "-c", program)
    assert result.stdout.split() == ["True", "True", "False"]


@pytest.mark.parametrize(
    ("example", "program", "variable"),
    [
        ("fastapi_chat", "import main", "CHAT_SECRET"),
        ("fastapi_chat", "import channels", "CHAT_SECRET"),
        ("django_chat", "import chat.channels", "DJANGO_SECRET_KEY"),
    ],
)
def test_an_example_without_a_secret_does_not_start_and_says_which(example: str, program: str, variable: str) -> None:
    environ = {name: value for name, value in ENVIRON.items() if name != variable}
    result = run_python(EXAMPLES / example, environ, "-c", program)
    assert result.returncode != 0
    assert f"export {variable}=$(openssl rand -hex 32)" in result.stderr


async def test_a_forged_cookie_is_turned_away(site: Site) -> None:
    for cookie in ("chat_session=eyJhbGciOiJub25lIn0.eyJzdWIiOiJBZGEifQ.", "sessionid=0123456789abcdefghijklmnopqrstuv"):
        client = await Cable.connect(site.server.cable, headers={"Cookie": cookie})
        await turned_away(client)
        await client.close()


async def test_what_is_written_over_http_and_over_the_cable_reaches_everybody_in_the_room(site: Site) -> None:
    async with in_room(site, "Ada", "talk") as ada, in_room(site, "Bo", "talk") as bo, visitor(site, "Cy") as cy:
        status, _ = await cy.post("/rooms/talk/messages", {"text": "by a request"})
        assert status == 201
        await speak(ada, "talk", "by an action")
        for client in (ada, bo):
            assert await said(client) == ("Cy", "by a request")
            assert await said(client) == ("Ada", "by an action")


async def test_rooms_are_kept_apart(site: Site) -> None:
    async with in_room(site, "Ada", "one") as ada, in_room(site, "Bo", "another") as bo:
        await speak(ada, "one", "only here")
        assert await said(ada) == ("Ada", "only here")
        await speak(bo, "another", "and only here")
        assert await said(bo) == ("Bo", "and only here")


async def members(client: Cable, where: str) -> dict[str, str]:
    """Names of those who are there, by id."""
    await client.send(command="presence", identifier=room(where))
    records = (await until(client, "presence", type="info"))["message"]["records"]
    return {member["id"]: member.get("info", {}).get("name", member["id"]) for member in records}


async def test_who_is_there_is_seen_under_the_name_of_their_login(site: Site) -> None:
    async with in_room(site, "Ada", "lobby") as ada, in_room(site, "Bo", "lobby") as bo:
        there = await members(bo, "lobby")
        assert sorted(there.values()) == ["Ada", "Bo"]
        [own] = [id for id, name in there.items() if name == "Bo"]
        await bo.send(command="unsubscribe", identifier=room("lobby"))
        await until(ada, "presence", type="leave", id=own)


async def test_nobody_is_there_under_anothers_name(site: Site) -> None:
    async with in_room(site, "Ada", "names") as ada, in_room(site, "Bo", "names") as bo:
        before = await members(ada, "names")
        await bo.send(command="join", identifier=room("names"), presence={"id": "Cy", "info": {"name": "Cy"}})
        await bo.send(command="ping")
        await until(bo, "pong")
        assert await members(ada, "names") == before


async def test_typing_is_whispered_to_the_others_and_cannot_be_taken_for_a_message(site: Site) -> None:
    async with in_room(site, "Ada", "whispers") as ada, in_room(site, "Bo", "whispers") as bo:
        forged = {"name": "Bo", "text": "I never said that"}
        await ada.send(command="whisper", identifier=room("whispers"), data=forged)
        whisper = (await until(bo, "whisper"))["message"]
        there = await members(bo, "whispers")
        assert whisper == {"$whisper": forged, "from": next(id for id, name in there.items() if name == "Ada")}
        await speak(ada, "whispers", "done")
        assert await said(bo) == ("Ada", "done")


@pytest.mark.parametrize("text", ["", "x" * 2001, None, ["a list"]])
async def test_a_text_that_cannot_be_one_is_not_sent_and_its_sender_hears_why(site: Site, text: object) -> None:
    async with in_room(site, "Ada", "strict") as ada, visitor(site, "Ada") as same:
        await speak(ada, "strict", text)
        assert (await until(ada, "reply"))["message"]["error"]["message"]
        assert (await same.post("/rooms/strict/messages", {"text": text}))[0] == 422
        await speak(ada, "strict", "as it should be")
        assert await said(ada) == ("Ada", "as it should be")


@pytest.mark.parametrize("name", ["no such room", "x" * 41, 7, None])
async def test_a_room_that_cannot_be_one_is_rejected(site: Site, name: object) -> None:
    identifier = json.dumps({"channel": "ChatChannel", "room": name})
    async with visitor(site, "Ada") as ada, ada.cable() as client:
        await client.send(command="subscribe", identifier=identifier)
        await client.expect("reject_subscription", identifier=identifier)


async def test_a_session_that_comes_back_gets_what_was_said_meanwhile(site: Site) -> None:
    async with visitor(site, "Ada") as ada:
        async with ada.cable() as client:
            await client.send(command="subscribe", identifier=room("away"))
            await until(client, "confirm_subscription")
            await speak(client, "away", "before")
            assert await said(client) == ("Ada", "before")
            await client.cut()
        assert (await ada.post("/rooms/away/messages", {"text": "meanwhile"}))[0] == 201
        back = await Cable.connect(site.server.cable, sid=client.sid)
        await back.welcomed(restored=True)
        await back.send(command="history", identifier=room("away"), history={"streams": client.positions})
        assert await said(back) == ("Ada", "meanwhile")
        await speak(back, "away", "again")
        assert await said(back) == ("Ada", "again")
        await back.close()


@pytest.mark.parametrize("site", ["fastapi"], indirect=True)
async def test_who_logs_out_can_be_disconnected_by_what_the_channels_know_them_by(site: Site) -> None:
    key = {"Authorization": f"Bearer {derive(SECRET, API_PHRASE)}"}
    order = {"command": "disconnect", "payload": {"identifier": '{"name":"Dee"}', "reconnect": False}}
    async with in_room(site, "Dee", "exit") as client, aiohttp.ClientSession(headers=key) as http:
        async with http.post(f"{site.server.url}/api/publish", json=order) as response:
            assert await response.json() == {"disconnected": 1}
        await until(client, "disconnect")


@pytest.mark.parametrize("site", ["fastapi"], indirect=True)
async def test_who_comes_with_a_token_is_known_by_it(site: Site) -> None:
    token = issue(SECRET, '{"name":"Tok"}', int(time.time()) + 60)
    async with cable(site.server, params={"jid": token}) as client:
        await client.send(command="subscribe", identifier=room("tokens"))
        await until(client, "confirm_subscription")
        await speak(client, "tokens", "hello")
        assert await said(client) == ("Tok", "hello")


@pytest.mark.parametrize("site", ["django"], indirect=True)
async def test_django_keeps_what_was_said_by_either_way(site: Site) -> None:
    async with in_room(site, "Ada", "kept") as client, visitor(site, "Ada") as ada:
        await speak(client, "kept", "by an action")
        assert await said(client) == ("Ada", "by an action")
        assert (await ada.post("/rooms/kept/messages", {"text": "by a request"}))[0] == 201
        status, body = await ada.get("/rooms/kept/messages")
        assert (status, [message["text"] for message in body["messages"]]) == (200, ["by an action", "by a request"])


@pytest.mark.parametrize(
    ("example", "command"),
    [
        ("fastapi_chat", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_chat.py"]),
        ("django_chat", ["manage.py", "test"]),
    ],
)
def test_the_tests_of_an_example_pass(example: str, command: list[str], tmp_path: Path) -> None:
    environ = {**ENVIRON, "CHAT_DATABASE": str(tmp_path / "chat.sqlite3")}
    result = run_python(EXAMPLES / example, environ, *command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("page", "example"), [("fastapi.md", "fastapi_chat"), ("django.md", "django_chat")])
def test_the_code_on_a_page_is_that_of_its_example(page: str, example: str) -> None:
    sources = [path.read_text() for path in (EXAMPLES / example).rglob("*.py")]
    shown = [block.text for block in blocks(ROOT / "docs" / "how-to" / page) if block.language == "python" and not block.role]
    assert shown
    assert [text for text in shown if not any(text in source for source in sources)] == []
