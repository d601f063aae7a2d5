"""The examples for FastAPI and Django: web processes, and a server that runs their channels."""

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
    """The next frame of this kind whose message has these fields."""
    return await client.until(wanted, lambda frame: all(frame["message"][name] == value for name, value in message.items()))


@contextlib.asynccontextmanager
async def in_room(site: Site, name: str, where: str) -> AsyncIterator[Cable]:
    """A logged-in user, connected and in the room."""
    async with visitor(site, name) as user, user.cable() as client:
        await client.send(command="subscribe", identifier=room(where))
        await until(client, "confirm_subscription")
        yield client


async def next_message(client: Cable) -> tuple[str, str]:
    message = (await until(client, "message"))["message"]
    return message["name"], message["text"]


async def speak(client: Cable, where: str, text: object) -> None:
    await client.send(command="message", identifier=room(where), data=json.dumps({"action": "speak", "text": text}))


async def refused(client: Cable) -> Frame:
    return await client.expect("disconnect", reason="unauthorized", reconnect=False)


async def test_page_contains_the_cable_url(site: Site) -> None:
    async with visitor(site) as user:
        assert f'data-cable="{site.server.cable}"' in await user.page()


async def test_visitor_without_login_can_neither_connect_nor_write(site: Site) -> None:
    async with visitor(site) as stranger:
        await stranger.page()
        assert (await stranger.post("/rooms/shut/messages", {"text": "hello"}))[0] == 401
        async with stranger.cable(welcome=False) as client:
            await refused(client)


async def test_session_cookie_is_httponly_and_samesite(site: Site) -> None:
    async with visitor(site, "Ada") as ada:
        morsels = {cookie.key: cookie for cookie in ada.jar}
        [session] = [morsels[name] for name in ("chat_session", "sessionid") if name in morsels]
        assert (session["httponly"], session["samesite"].lower()) == (True, "lax")


@pytest.mark.parametrize("site", ["fastapi"], indirect=True)
async def test_cookie_is_secure_behind_https(site: Site) -> None:
    headers = {"X-Forwarded-Proto": "https"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{site.url}/login", json={"name": "Ada"}) as response,
    ):
        assert response.cookies["chat_session"]["secure"] is True


def test_django_cookies_are_secure_without_debug() -> None:
    program = "from chat import settings as s; print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.DEBUG)"
    environ = {**ENVIRON, "DJANGO_SECRET_KEY": "x" * 50}
    result = run_python(EXAMPLES / "django_chat", environ, "-c", program)
    assert result.stdout.split() == ["True", "True", "False"]


def test_example_without_its_secret_names_the_variable() -> None:
    for example, program, variable in (
        ("fastapi_chat", "import main", "CHAT_SECRET"),
        ("fastapi_chat", "import channels", "CHAT_SECRET"),
        ("django_chat", "import chat.channels", "DJANGO_SECRET_KEY"),
    ):
        environ = {name: value for name, value in ENVIRON.items() if name != variable}
        result = run_python(EXAMPLES / example, environ, "-c", program)
        assert result.returncode != 0, program
        assert f"export {variable}=$(openssl rand -hex 32)" in result.stderr, program


async def test_forged_cookie_is_refused(site: Site) -> None:
    for cookie in ("chat_session=eyJhbGciOiJub25lIn0.eyJzdWIiOiJBZGEifQ.", "sessionid=0123456789abcdefghijklmnopqrstuv"):
        client = await Cable.connect(site.server.cable, headers={"Cookie": cookie})
        await refused(client)
        await client.close()


async def test_messages_by_http_and_by_cable_reach_all_in_the_room(site: Site) -> None:
    async with in_room(site, "Ada", "talk") as ada, in_room(site, "Bo", "talk") as bo, visitor(site, "Cy") as cy:
        status, _ = await cy.post("/rooms/talk/messages", {"text": "by a request"})
        assert status == 201
        await speak(ada, "talk", "by an action")
        for client in (ada, bo):
            assert await next_message(client) == ("Cy", "by a request")
            assert await next_message(client) == ("Ada", "by an action")


async def test_rooms_are_separate(site: Site) -> None:
    async with in_room(site, "Ada", "one") as ada, in_room(site, "Bo", "another") as bo:
        await speak(ada, "one", "only here")
        assert await next_message(ada) == ("Ada", "only here")
        await speak(bo, "another", "and only here")
        assert await next_message(bo) == ("Bo", "and only here")


async def members(client: Cable, where: str) -> dict[str, str]:
    """Names of the members by id."""
    await client.send(command="presence", identifier=room(where))
    records = (await until(client, "presence", type="info"))["message"]["records"]
    return {member["id"]: member.get("info", {}).get("name", member["id"]) for member in records}


async def test_members_have_the_names_of_their_logins(site: Site) -> None:
    async with in_room(site, "Ada", "lobby") as ada, in_room(site, "Bo", "lobby") as bo:
        there = await members(bo, "lobby")
        assert sorted(there.values()) == ["Ada", "Bo"]
        [own] = [id for id, name in there.items() if name == "Bo"]
        await bo.send(command="unsubscribe", identifier=room("lobby"))
        await until(ada, "presence", type="leave", id=own)


async def test_client_cannot_join_under_another_name(site: Site) -> None:
    async with in_room(site, "Ada", "names") as ada, in_room(site, "Bo", "names") as bo:
        before = await members(ada, "names")
        await bo.send(command="join", identifier=room("names"), presence={"id": "Cy", "info": {"name": "Cy"}})
        await bo.send(command="ping")
        await until(bo, "pong")
        assert await members(ada, "names") == before


async def test_whisper_cannot_be_mistaken_for_a_message(site: Site) -> None:
    async with in_room(site, "Ada", "whispers") as ada, in_room(site, "Bo", "whispers") as bo:
        forged = {"name": "Bo", "text": "I did not write that"}
        await ada.send(command="whisper", identifier=room("whispers"), data=forged)
        whisper = (await until(bo, "whisper"))["message"]
        there = await members(bo, "whispers")
        assert whisper == {"$whisper": forged, "from": next(id for id, name in there.items() if name == "Ada")}
        await speak(ada, "whispers", "done")
        assert await next_message(bo) == ("Ada", "done")


async def test_invalid_text_is_refused_with_an_error(site: Site) -> None:
    async with in_room(site, "Ada", "strict") as ada, visitor(site, "Ada") as same:
        for text in ("", "x" * 2001, None, ["a list"]):
            await speak(ada, "strict", text)
            assert (await until(ada, "reply"))["message"]["error"]["message"], text
            assert (await same.post("/rooms/strict/messages", {"text": text}))[0] == 422, text
        await speak(ada, "strict", "valid")
        assert await next_message(ada) == ("Ada", "valid")


async def test_invalid_room_is_rejected(site: Site) -> None:
    async with visitor(site, "Ada") as ada, ada.cable() as client:
        for name in ("no such room", "x" * 41, 7, None):
            identifier = json.dumps({"channel": "ChatChannel", "room": name})
            await client.send(command="subscribe", identifier=identifier)
            await client.expect("reject_subscription", identifier=identifier)


async def test_restored_session_gets_missed_messages(site: Site) -> None:
    async with visitor(site, "Ada") as ada:
        async with ada.cable() as client:
            await client.send(command="subscribe", identifier=room("away"))
            await until(client, "confirm_subscription")
            await speak(client, "away", "before")
            assert await next_message(client) == ("Ada", "before")
            await client.cut()
        assert (await ada.post("/rooms/away/messages", {"text": "meanwhile"}))[0] == 201
        back = await Cable.connect(site.server.cable, sid=client.sid)
        await back.welcomed(restored=True)
        await back.send(command="history", identifier=room("away"), history={"streams": client.positions})
        assert await next_message(back) == ("Ada", "meanwhile")
        await speak(back, "away", "again")
        assert await next_message(back) == ("Ada", "again")
        await back.close()


@pytest.mark.parametrize("site", ["fastapi"], indirect=True)
async def test_user_is_disconnected_by_its_identifiers(site: Site) -> None:
    key = {"Authorization": f"Bearer {derive(SECRET, API_PHRASE)}"}
    order = {"command": "disconnect", "payload": {"identifier": '{"name":"Dee"}', "reconnect": False}}
    async with in_room(site, "Dee", "exit") as client, aiohttp.ClientSession(headers=key) as http:
        async with http.post(f"{site.server.url}/api/publish", json=order) as response:
            assert await response.json() == {"disconnected": 1}
        await until(client, "disconnect")


@pytest.mark.parametrize("site", ["fastapi"], indirect=True)
async def test_token_gives_the_name(site: Site) -> None:
    token = issue(SECRET, '{"name":"Tok"}', int(time.time()) + 60)
    async with cable(site.server, params={"jid": token}) as client:
        await client.send(command="subscribe", identifier=room("tokens"))
        await until(client, "confirm_subscription")
        await speak(client, "tokens", "hello")
        assert await next_message(client) == ("Tok", "hello")


@pytest.mark.parametrize("site", ["django"], indirect=True)
async def test_django_stores_messages_by_http_and_by_cable(site: Site) -> None:
    async with in_room(site, "Ada", "kept") as client, visitor(site, "Ada") as ada:
        await speak(client, "kept", "by an action")
        assert await next_message(client) == ("Ada", "by an action")
        assert (await ada.post("/rooms/kept/messages", {"text": "by a request"}))[0] == 201
        status, body = await ada.get("/rooms/kept/messages")
        assert (status, [message["text"] for message in body["messages"]]) == (200, ["by an action", "by a request"])


@pytest.mark.parametrize(
    ("example", "command"),
    [
        ("fastapi_chat", [str(Path(sys.executable).with_name("pytest")), "-q", "-p", "no:cacheprovider"]),
        ("django_chat", ["manage.py", "test"]),
    ],
)
def test_tests_of_the_example_pass(example: str, command: list[str], tmp_path: Path) -> None:
    environ = {**ENVIRON, "CHAT_DATABASE": str(tmp_path / "chat.sqlite3")}
    result = run_python(EXAMPLES / example, environ, *command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("page", "example"), [("fastapi.md", "fastapi_chat"), ("django.md", "django_chat")])
def test_code_on_the_page_is_that_of_the_example(page: str, example: str) -> None:
    sources = [path.read_text() for path in (EXAMPLES / example).rglob("*.py")]
    shown = [block.text for block in blocks(ROOT / "docs" / "how-to" / page) if block.language == "python" and not block.role]
    assert shown
    assert [text for text in shown if not any(text in source for source in sources)] == []
